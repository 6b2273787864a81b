//! Interfaces that hand requests for files to the kernel: its aio (libaio), and io_uring.
//!
//! The kernel does the requests of an io_uring without a call that the interposer could see. So a
//! program gets no ring, unless the settings allow it (docs/SEMANTICS.md).
//!
//! liburing makes its system calls itself, so this file also interposes its functions that make a ring.
//! They return negative error numbers.

use core::ffi::{c_int, c_long, c_uint, c_void};
use core::sync::atomic::{AtomicU32, Ordering};

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use weir_client::process::process;

use crate::{calls, next, raw};

type Ring = *mut c_void;

/// `struct iocb` of io_submit(2): see linux/aio_abi.h.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Request {
    data: u64,
    key: u32,
    rw_flags: c_int,
    operation: u16,
    priority: i16,
    fd: c_int,
    buffer: u64,
    bytes: u64,
    offset: i64,
    reserved: u64,
    flags: u32,
    event_fd: u32,
}

const _: () = assert!(size_of::<Request>() == 64);

const IOCB_CMD_PREAD: u16 = 0;
const IOCB_CMD_PWRITE: u16 = 1;
const IOCB_CMD_FSYNC: u16 = 2;
const IOCB_CMD_FDSYNC: u16 = 3;
const IOCB_CMD_PREADV: u16 = 7;
const IOCB_CMD_PWRITEV: u16 = 8;
const IOCB_FLAG_RESFD: u32 = 1;
/// Any address that the kernel accepts and does not read.
const UNREAD: u64 = 4096;
/// The maximum time, in yields, for which [`events`] waits until requests are given back: if the process
/// forked meanwhile, no thread is left to give them back.
const MOST_YIELDS: u32 = 10_000;

/// The number of requests that are replaced by others at this moment.
static REPLACED: AtomicU32 = AtomicU32::new(0);

/// `io_submit(2)`, which libaio makes by `syscall`. The wrapper does a request for a file of weir at
/// once. To report its completion like that of any other, it hands the kernel a request in its place: to
/// write as many bytes as were moved to /dev/null, which reads none of them. That request must lie at
/// the address of the program's request, by which the program knows it.
///
/// Errors: those of io_submit(2), and those of the first request itself, which the kernel would report
/// later. EINVAL, counted: a request of another kind for a file of weir.
///
/// # Safety
///
/// The arguments must be valid for the system call.
pub unsafe fn submit(context: usize, count: c_long, requests: *const *mut Request) -> c_long {
    // SAFETY: the kernel checks the context and all addresses; the requests and their buffers stay
    // until they are done, by the caller.
    let kernel = |count: usize, from: *const *mut Request| unsafe {
        let arguments = next::six([context, count, from as usize]);
        raw::outcome(raw::syscall(libc::SYS_io_submit, arguments)) as c_long
    };
    let given = usize::try_from(count).unwrap_or(0);
    let ours = |nth: usize| {
        // SAFETY: `nth` is below `count`, and `requests` are `count` addresses, each of a request, by the caller.
        unsafe {
            let request = requests.add(nth).read();
            (crate::is_address(request) && crate::is_ours((*request).fd)).then_some(request)
        }
    };
    let is_looked_at = crate::is_address(requests) && process().is_active();
    if !is_looked_at || (0..given).all(|nth| ours(nth).is_none()) {
        return kernel(count as usize, requests);
    }
    // Before any work whose completion could not be reported.
    let null = rustix::fs::open(
        c"/dev/null",
        OFlags::WRONLY | OFlags::CLOEXEC,
        Mode::empty(),
    );
    let null = match null {
        Ok(null) => weir_client::kernel::into_number(null),
        Err(errno) => {
            raw::set_errno(errno);
            return -1;
        }
    };
    let mut handed_in = 0;
    let mut last = 1;
    while handed_in < given && last == 1 {
        let one = requests.wrapping_add(handed_in);
        last = match ours(handed_in) {
            // SAFETY: `ours` has found a request at this address; its addresses are as io_submit(2)
            // requires, by the caller.
            Some(request) => match unsafe { done_at_once(&*request) } {
                Ok(moved) => {
                    REPLACED.fetch_add(1, Ordering::SeqCst);
                    // SAFETY: no other code uses a request while it is handed in, and a thread that
                    // learns of its completion waits until the request is given back ([`events`]).
                    let original = unsafe { request.replace((*request).stand_in(null, moved)) };
                    let handed_in = kernel(1, one);
                    // SAFETY: the request is still this call's, as for `replace` above.
                    unsafe { request.write(original) };
                    REPLACED.fetch_sub(1, Ordering::SeqCst);
                    handed_in
                }
                Err(errno) => {
                    raw::set_errno(errno);
                    -1
                }
            },
            None => kernel(1, one),
        };
        handed_in += usize::from(last == 1);
    }
    let saved = raw::errno();
    let _ = weir_client::kernel::close(null);
    raw::restore_errno(saved);
    // The program submits the remaining requests again, or gives them up.
    match handed_in {
        0 => last,
        some => some as c_long,
    }
}

/// `io_getevents(2)`, made by `syscall`. Returns after the requests that it reports are the program's
/// own again.
///
/// # Safety
///
/// The arguments must be valid for the system call.
pub unsafe fn events(
    context: usize,
    least: c_long,
    most: c_long,
    events: *mut c_void,
    timeout: *mut c_void,
) -> c_long {
    let arguments = [
        context,
        least as usize,
        most as usize,
        events as usize,
        timeout as usize,
    ];
    // SAFETY: `events` has room for `most` events, and `timeout` is null or a time, by the caller.
    let told = unsafe { raw::syscall(libc::SYS_io_getevents, next::six(arguments)) };
    await_originals();
    raw::outcome(told) as c_long
}

fn await_originals() {
    let mut yields = 0;
    while REPLACED.load(Ordering::SeqCst) > 0 && yields < MOST_YIELDS {
        rustix::thread::sched_yield();
        yields += 1;
    }
}

impl Request {
    /// A request by which the kernel reports that `moved` bytes were moved.
    fn stand_in(&self, null: c_int, moved: u64) -> Request {
        Request {
            rw_flags: 0,
            operation: IOCB_CMD_PWRITE,
            priority: 0,
            fd: null,
            buffer: UNREAD,
            bytes: moved,
            offset: 0,
            flags: self.flags & IOCB_FLAG_RESFD,
            ..*self
        }
    }
}

/// Does a request for a file of weir; returns the number of bytes that were moved.
///
/// # Safety
///
/// The request's addresses meet the requirements of io_submit(2).
unsafe fn done_at_once(asked: &Request) -> Result<u64, Errno> {
    let one = libc::iovec {
        iov_base: asked.buffer as *mut c_void,
        iov_len: asked.bytes as usize,
    };
    let (pieces, count) = match asked.operation {
        IOCB_CMD_PREADV | IOCB_CMD_PWRITEV => (
            asked.buffer as *const libc::iovec,
            c_int::try_from(asked.bytes).map_err(|_| Errno::INVAL)?,
        ),
        _ => (&raw const one, 1),
    };
    let is_sync = matches!(asked.operation, IOCB_CMD_FSYNC | IOCB_CMD_FDSYNC);
    if asked.reserved != 0 || (asked.offset < 0 && !is_sync) {
        return Err(Errno::INVAL);
    }
    let (fd, offset, flags) = (asked.fd, asked.offset, asked.rw_flags);
    // SAFETY: the request's buffer, or the pieces that it names, are as its operation requires, by
    // the caller.
    let moved = unsafe {
        match asked.operation {
            IOCB_CMD_PREAD | IOCB_CMD_PREADV => calls::preadv2(fd, pieces, count, offset, flags),
            IOCB_CMD_PWRITE | IOCB_CMD_PWRITEV => calls::pwritev2(fd, pieces, count, offset, flags),
            IOCB_CMD_FSYNC => calls::fsync(fd) as isize,
            IOCB_CMD_FDSYNC => calls::fdatasync(fd) as isize,
            _ => {
                process().refusals.note_refusal("libaio");
                return Err(Errno::INVAL);
            }
        }
    };
    u64::try_from(moved).map_err(|_| Errno::from_raw_os_error(raw::errno()))
}

/// `io_uring_setup(2)`, made by `syscall`.
///
/// # Safety
///
/// The arguments must be valid for the system call.
pub unsafe fn setup(entries: c_uint, parameters: *mut c_void) -> next::Descriptor {
    if let Some(refused) = process().refusals.io_uring() {
        return crate::finish(refused);
    }
    // SAFETY: `parameters` is null or a structure that the kernel may fill, by the caller.
    let made = unsafe {
        raw::syscall(
            libc::SYS_io_uring_setup,
            next::six([entries as usize, parameters as usize]),
        )
    };
    crate::note_made(raw::outcome(made) as c_int)
}

/// The address of a function of liburing's; null if it is not there.
fn of_liburing(next: &next::Next, name: &core::ffi::CStr) -> *mut c_void {
    let address = next.get_or_resolve();
    if !address.is_null() {
        return address;
    }
    // A library may have loaded it without putting its names into the global scope.
    // SAFETY: C strings; a library that is loaded already stays loaded.
    unsafe {
        let library = crate::load::loaded(c"liburing.so.2");
        match library.is_null() {
            true => address,
            false => libc::dlsym(library, name.as_ptr()),
        }
    }
}

macro_rules! rings {
    ($($name:ident ($($p:ident: $t:ty),*);)*) => {$(
        #[doc = concat!("`", stringify!($name), "` of liburing.")]
        ///
        /// # Safety
        ///
        /// The caller meets the requirements of the C function of this name.
        #[no_mangle]
        pub unsafe extern "C-unwind" fn $name($($p: $t),*) -> c_int {
            let _ends = crate::EndsByPanic;
            if let Some(Err(errno)) = process().refusals.io_uring() {
                return -errno.raw_os_error();
            }
            let address = of_liburing(&liburing::$name, liburing::$name.name());
            if address.is_null() {
                return -libc::ENOSYS;
            }
            // SAFETY: the symbol of this name has this signature, and the arguments meet its requirements, by the
            // caller.
            unsafe {
                core::mem::transmute::<*mut c_void, unsafe extern "C" fn($($t),*) -> c_int>(address)($($p),*)
            }
        }
    )*

        #[allow(non_upper_case_globals)] // named as the functions they stand for
        mod liburing {
            $( crate::next::interpose!(@static $name); )*
        }
    };
}

rings! {
    io_uring_setup(entries: c_uint, parameters: *mut c_void);
    io_uring_queue_init(entries: c_uint, ring: Ring, flags: c_uint);
    io_uring_queue_init_params(entries: c_uint, ring: Ring, parameters: *mut c_void);
    io_uring_queue_init_mem(entries: c_uint, ring: Ring, parameters: *mut c_void, memory: *mut c_void, size: usize);
}
