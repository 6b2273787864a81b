//! Tracks whether the program installs signal handlers.
//!
//! The client's locks block all signals while they are held, because a handler could need them too. A
//! program without handlers is spared the two system calls of each open and close. Handlers are
//! installed by these functions; libc's own, for cancelling threads and for setuid, run no code that
//! could call us. A program that makes the system call itself and then opens our files in the handler
//! may see EAGAIN there.

use core::ffi::c_int;

use libc::{sigaction as Action, sighandler_t};
use rustix::io::Errno;
use weir_client::kernel::a_handler_is_installed;

use crate::next::next_fn;
use crate::{attempt, raw};

mod next {
    use super::{c_int, next_fn, sighandler_t, Action};

    next_fn! {
        sigaction: fn(c_int, *const Action, *mut Action) -> c_int;
        signal: fn(c_int, sighandler_t) -> sighandler_t;
        sigset: fn(c_int, sighandler_t) -> sighandler_t;
        __sysv_signal: fn(c_int, sighandler_t) -> sighandler_t;
    }
}

/// Looks up the next function behind each wrapper.
pub fn resolve_all() {
    next::resolve_all();
}

/// Signals of faults come when the program faults, blocked or not, and not within our locks; many
/// runtimes handle them (Rust's, for stack overflows).
const FAULTS: [c_int; 4] = [libc::SIGSEGV, libc::SIGBUS, libc::SIGILL, libc::SIGFPE];

/// Notes a handler. EIO: it could not be noted; it must not be installed then, because it could wait for
/// a lock of the thread that it interrupts.
fn watch(number: c_int, handler: sighandler_t) -> Result<(), Errno> {
    attempt(|| note_handler(number, handler))
}

fn note_handler(number: c_int, handler: sighandler_t) {
    #[cfg(debug_assertions)]
    weir_client::bugs::planted::set_off_in_step("sigaction");
    let none = handler == libc::SIG_DFL || handler == libc::SIG_IGN;
    if !none && !FAULTS.contains(&number) {
        a_handler_is_installed();
    }
}

/// Wrappers of the C functions of these names; they note the handler first.
macro_rules! watched {
    ($($name:ident, by $next:ident;)+) => {$(
        #[doc = concat!("`", stringify!($name), "`: noted, and done by the next library's.")]
        ///
        /// # Safety
        ///
        /// The caller meets the requirements of the C function of this name.
        #[no_mangle]
        pub unsafe extern "C-unwind" fn $name(number: c_int, handler: sighandler_t) -> sighandler_t {
            let _ends = crate::EndsByPanic;
            if let Err(errno) = watch(number, handler) {
                raw::set_errno(errno);
                return libc::SIG_ERR;
            }
            match next::$next() {
                // SAFETY: `handler` may run as a handler of this signal, by the caller; `next` is
                // libc's function of this name.
                Some(next) => unsafe { next(number, handler) },
                None => libc::SIG_ERR,
            }
        }
    )+};
}

watched! {
    signal, by signal;
    bsd_signal, by signal;
    ssignal, by signal;
    sigset, by sigset;
    sysv_signal, by __sysv_signal;
    __sysv_signal, by __sysv_signal;
}

/// `sigaction`: noted, then done by the next library's function.
///
/// # Safety
///
/// The caller meets the requirements of sigaction(2).
#[no_mangle]
pub unsafe extern "C-unwind" fn sigaction(
    number: c_int,
    new: *const Action,
    old: *mut Action,
) -> c_int {
    let _ends = crate::EndsByPanic;
    // SAFETY: null, or an action of the caller's.
    if let Some(new) = unsafe { new.as_ref() } {
        if let Err(errno) = watch(number, new.sa_sigaction) {
            raw::set_errno(errno);
            return -1;
        }
    }
    if let Some(next) = next::sigaction() {
        // SAFETY: `new` and `old` are null or actions, and a new one's function may run as a
        // handler, by the caller.
        return unsafe { next(number, new, old) };
    }
    crate::fail_with_enosys()
}

/// `__sigaction`, the name by which parts of libc call it.
///
/// # Safety
///
/// See [`sigaction`].
#[no_mangle]
pub unsafe extern "C-unwind" fn __sigaction(
    number: c_int,
    new: *const Action,
    old: *mut Action,
) -> c_int {
    let _ends = crate::EndsByPanic;
    // SAFETY: `new` and `old` are arguments of sigaction(2), by the caller.
    unsafe { sigaction(number, new, old) }
}
