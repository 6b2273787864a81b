//! POSIX asynchronous I/O on our files: `aio_read(3)` and its family.
//!
//! libc does these calls in threads of its own, from inside libc. On a file of weir, a read or write is
//! a copy in memory, so the wrapper does it at once and marks the control block as complete: libc's
//! `aio_error`, `aio_return` and `aio_suspend` then give the right answers by themselves. The requests
//! of a list are done in order; consecutive reads of one file are done as one.

use core::ffi::{c_int, c_void};
use core::sync::atomic::Ordering;

use crate::aio_block::{ControlBlock, Event};
use crate::{aio_reads, calls, is_ours, raw};

/// The operation that a control block asks for.
#[derive(Clone, Copy)]
enum Action {
    Read,
    Write,
    Sync,
}

/// Performs the operation of a control block, and stores its result there.
///
/// # Safety
///
/// `block` is a control block with a buffer as the action requires it.
unsafe fn perform(block: *mut ControlBlock, action: Action) -> bool {
    let saved = raw::errno();
    // SAFETY: `block` is a control block that lives through the call, with a buffer for this
    // action, by the caller.
    unsafe {
        let b = &*block;
        let result = match action {
            Action::Read => calls::pread(b.fd, b.buffer, b.length, b.offset),
            Action::Write => calls::aio_write_at(b.fd, b.buffer, b.length, b.offset),
            Action::Sync => calls::fsync(b.fd) as isize,
        };
        let error = if result < 0 { raw::errno() } else { 0 };
        b.result.store(result, Ordering::Relaxed);
        b.error.store(error, Ordering::Release);
        raw::restore_errno(saved);
        error == 0
    }
}

/// The argument of the thread that runs a notification function.
struct Call {
    function: unsafe extern "C-unwind" fn(usize),
    value: usize,
}

/// The thread that runs a notification function.
///
/// # Safety
///
/// `call` is a box of a [`Call`] that came from `Box::into_raw`, and becomes this function's.
unsafe extern "C-unwind" fn run(call: *mut c_void) -> *mut c_void {
    let _ends = crate::EndsByPanic;
    // SAFETY: such a box, by this function's contract.
    let call = unsafe { Box::from_raw(call.cast::<Call>()) };
    // SAFETY: the application asked for this call.
    unsafe { (call.function)(call.value) };
    core::ptr::null_mut()
}

/// Notifies the application of a completion in the way that it asked for.
///
/// # Safety
///
/// `event` came from the application.
unsafe fn notify(event: &Event) {
    match event.how {
        libc::SIGEV_SIGNAL if event.signal != 0 => {
            // struct siginfo: signo, errno, code, then (at 16) pid, uid, value.
            const SI_ASYNCIO: i32 = -4;
            let mut info = [0u32; 32];
            // SAFETY: getpid and getuid take nothing.
            let (pid, uid) = unsafe { (libc::getpid(), libc::getuid()) };
            info[0] = event.signal.cast_unsigned();
            info[2] = SI_ASYNCIO.cast_unsigned();
            info[4] = pid.cast_unsigned();
            info[5] = uid;
            let value = event.value.to_ne_bytes();
            info[6] = u32::from_ne_bytes([value[0], value[1], value[2], value[3]]);
            info[7] = u32::from_ne_bytes([value[4], value[5], value[6], value[7]]);
            // SAFETY: 128 bytes of siginfo, read by the kernel.
            unsafe {
                raw::syscall(
                    libc::SYS_rt_sigqueueinfo,
                    [
                        pid.cast_unsigned() as usize,
                        event.signal.cast_unsigned() as usize,
                        info.as_ptr() as usize,
                        0,
                        0,
                        0,
                    ],
                );
            }
        }
        libc::SIGEV_THREAD => {
            let Some(function) = event.function else {
                return;
            };
            let value = event.value;
            let call = Box::into_raw(Box::new(Call { function, value }));
            let mut thread = 0;
            // SAFETY: the attributes are the application's or null; the box goes to
            // the thread, or comes back if there is none.
            unsafe {
                // The application may end its thread by pthread_exit, which unwinds.
                let run = core::mem::transmute::<
                    unsafe extern "C-unwind" fn(*mut c_void) -> *mut c_void,
                    extern "C" fn(*mut c_void) -> *mut c_void,
                >(run);
                let made = libc::pthread_create(
                    &raw mut thread,
                    event.attributes,
                    run,
                    call.cast::<c_void>(),
                );
                if made == 0 {
                    libc::pthread_detach(thread);
                } else {
                    drop(Box::from_raw(call));
                }
            }
        }
        _ => {}
    }
}

/// Returns true if a control block is about a file of weir.
///
/// # Safety
///
/// `block` is null or a control block.
unsafe fn is_our_block(block: *const ControlBlock) -> bool {
    // SAFETY: it is not null, so it is a control block, by the caller.
    !block.is_null() && is_ours(unsafe { (*block).fd })
}

mod next {
    use super::{c_int, ControlBlock, Event};

    crate::next::next_fn! {
        aio_read: fn(*mut ControlBlock) -> c_int;
        aio_read64: fn(*mut ControlBlock) -> c_int;
        aio_write: fn(*mut ControlBlock) -> c_int;
        aio_write64: fn(*mut ControlBlock) -> c_int;
        aio_fsync: fn(c_int, *mut ControlBlock) -> c_int;
        aio_fsync64: fn(c_int, *mut ControlBlock) -> c_int;
        aio_cancel: fn(c_int, *mut ControlBlock) -> c_int;
        aio_cancel64: fn(c_int, *mut ControlBlock) -> c_int;
        lio_listio: fn(c_int, *const *mut ControlBlock, c_int, *mut Event) -> c_int;
        lio_listio64: fn(c_int, *const *mut ControlBlock, c_int, *mut Event) -> c_int;
    }
}

macro_rules! single {
    ($($name:ident = $action:expr;)*) => {$(
        /// `aio_read(3)` or `aio_write(3)`.
        ///
        /// # Safety
        ///
        /// The caller meets the requirements of the C function of this name.
        #[no_mangle]
        pub unsafe extern "C-unwind" fn $name(block: *mut ControlBlock) -> c_int {
            let _ends = crate::EndsByPanic;
            // SAFETY: `block` is a control block, by the caller, that no other code changes before
            // the request has ended.
            unsafe {
                if !is_our_block(block) {
                    return next::$name().map_or(-1, |f| f(block));
                }
                perform(block, $action);
                notify(&(*block).event);
                0
            }
        }
    )*};
}
single! {
    aio_read = Action::Read;
    aio_read64 = Action::Read;
    aio_write = Action::Write;
    aio_write64 = Action::Write;
}

macro_rules! with_number {
    ($($name:ident ($number:ident, $block:ident) $ours:expr;)*) => {$(
        /// `aio_fsync(3)` or `aio_cancel(3)`.
        ///
        /// # Safety
        ///
        /// The caller meets the requirements of the C function of this name.
        #[no_mangle]
        pub unsafe extern "C-unwind" fn $name($number: c_int, $block: *mut ControlBlock) -> c_int {
            let _ends = crate::EndsByPanic;
            // SAFETY: the block is null or a control block, by the caller; aio_cancel of a file of
            // weir does not read it.
            unsafe {
                match $ours {
                    Some(result) => result,
                    None => next::$name().map_or(-1, |f| f($number, $block)),
                }
            }
        }
    )*};
}
with_number! {
    aio_fsync(number, block) sync_ours(number, block);
    aio_fsync64(number, block) sync_ours(number, block);
    // No request of ours is ever in progress: all are done.
    aio_cancel(fd, _block) is_ours(fd).then_some(libc::AIO_ALLDONE);
    aio_cancel64(fd, _block) is_ours(fd).then_some(libc::AIO_ALLDONE);
}

/// # Safety
///
/// The caller meets the requirements of aio_fsync(3).
unsafe fn sync_ours(_operation: c_int, block: *mut ControlBlock) -> Option<c_int> {
    // SAFETY: `block` is null or a control block, by the caller; a sync uses no buffer.
    unsafe {
        is_our_block(block).then(|| {
            perform(block, Action::Sync);
            notify(&(*block).event);
            0
        })
    }
}

type ListFn =
    unsafe extern "C-unwind" fn(c_int, *const *mut ControlBlock, c_int, *mut Event) -> c_int;

/// # Safety
///
/// The caller meets the requirements of lio_listio(3).
unsafe fn list(
    mode: c_int,
    blocks: *const *mut ControlBlock,
    count: c_int,
    event: *mut Event,
    next: Option<ListFn>,
) -> c_int {
    // SAFETY: `blocks` are `count` addresses, each null or of a control block, and `event` is null or an event, by
    // the caller. A list of none may be null, which is no slice.
    unsafe {
        let all = match usize::try_from(count) {
            Ok(count) if count > 0 && crate::is_address(blocks) => {
                core::slice::from_raw_parts(blocks, count)
            }
            _ => &[],
        };
        if !all.iter().any(|b| is_our_block(*b)) {
            return next.map_or(-1, |f| f(mode, blocks, count, event));
        }
        if mode != libc::LIO_WAIT && mode != libc::LIO_NOWAIT {
            raw::set_errno(rustix::io::Errno::INVAL);
            return -1;
        }
        let mut fine = true;
        let mut others = Vec::new();
        let mut rest = all;
        while let Some((&block, behind)) = rest.split_first() {
            rest = behind;
            if block.is_null() {
                continue;
            }
            if !is_our_block(block) {
                others.push(block);
                continue;
            }
            let reads = aio_reads::as_one(&all[all.len() - behind.len() - 1..]);
            if reads > 1 {
                let together = &all[all.len() - behind.len() - 1..][..reads];
                if aio_reads::perform((*block).fd, together) {
                    for block in together {
                        notify(&(**block).event);
                    }
                    rest = &behind[reads - 1..];
                    continue;
                }
            }
            fine &= match (*block).opcode {
                libc::LIO_READ => perform(block, Action::Read),
                libc::LIO_WRITE => perform(block, Action::Write),
                _ => true,
            };
            if (*block).opcode != libc::LIO_NOP {
                notify(&(*block).event);
            }
        }
        if let (Some(next), false) = (next, others.is_empty()) {
            let n = c_int::try_from(others.len()).unwrap_or(c_int::MAX);
            fine &= next(libc::LIO_WAIT, others.as_ptr(), n, core::ptr::null_mut()) == 0;
        }
        if mode == libc::LIO_NOWAIT {
            if let Some(event) = event.as_ref() {
                notify(event);
            }
            return 0;
        }
        if !fine {
            raw::set_errno(rustix::io::Errno::IO);
            return -1;
        }
        0
    }
}

macro_rules! lists {
    ($($name:ident)*) => {$(
        /// `lio_listio(3)`.
        ///
        /// # Safety
        ///
        /// The caller meets the requirements of the C function of this name.
        #[no_mangle]
        pub unsafe extern "C-unwind" fn $name(
            mode: c_int,
            blocks: *const *mut ControlBlock,
            count: c_int,
            event: *mut Event,
        ) -> c_int {
            let _ends = crate::EndsByPanic;
            // SAFETY: `blocks` are `count` addresses, each null or of a control block, and `event`
            // is null or an event, by the caller.
            unsafe { list(mode, blocks, count, event, next::$name()) }
        }
    )*};
}
lists! { lio_listio lio_listio64 }

pub use next::resolve_all as resolve;
