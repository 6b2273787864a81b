//! Watching whether the program installs handlers of signals.
//!
//! Locks of the client block all signals while they are held, for a handler could want
//! them too. A program without handlers is spared that: two system calls of each open and
//! close. Whoever installs one does so by these functions (libc's own, for cancelling
//! threads and for setuid, run no code that could call us); one that makes the system call
//! itself and then opens our files in the handler may see EAGAIN there.

use core::ffi::c_int;

use libc::{sigaction as Action, sighandler_t};
use weir_client::kernel::a_handler_is_installed;

use crate::next::next_fn;

mod next {
    use super::{c_int, next_fn, sighandler_t, Action};

    next_fn! {
        sigaction: fn(c_int, *const Action, *mut Action) -> c_int;
        signal: fn(c_int, sighandler_t) -> sighandler_t;
        sigset: fn(c_int, sighandler_t) -> sighandler_t;
        __sysv_signal: fn(c_int, sighandler_t) -> sighandler_t;
    }
}

/// Looks up what stands behind each wrapper.
pub fn resolve_all() {
    next::resolve_all();
}

/// Signals of faults come where the program faults, blocked or not, and not within our
/// locks; many runtimes have handlers of them (Rust's, for a stack that overflows).
const FAULTS: [c_int; 4] = [libc::SIGSEGV, libc::SIGBUS, libc::SIGILL, libc::SIGFPE];

fn watch(number: c_int, handler: sighandler_t) {
    let none = handler == libc::SIG_DFL || handler == libc::SIG_IGN;
    if !none && !FAULTS.contains(&number) {
        a_handler_is_installed();
    }
}

/// As the C functions of these names; the handler is noted first.
macro_rules! watched {
    ($($name:ident, by $next:ident;)+) => {$(
        #[doc = concat!("`", stringify!($name), "`: noted, and done by the next library's.")]
        ///
        /// # Safety
        ///
        /// As the C function of this name demands.
        #[no_mangle]
        pub unsafe extern "C-unwind" fn $name(number: c_int, handler: sighandler_t) -> sighandler_t {
            let _ends = crate::EndsByPanic;
            watch(number, handler);
            match next::$next() {
                // SAFETY: as the caller vouches.
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

/// `sigaction`: noted, and done by the next library's.
///
/// # Safety
///
/// As sigaction(2) demands.
#[no_mangle]
pub unsafe extern "C-unwind" fn sigaction(
    number: c_int,
    new: *const Action,
    old: *mut Action,
) -> c_int {
    let _ends = crate::EndsByPanic;
    // SAFETY: null, or an action of the caller's.
    if let Some(new) = unsafe { new.as_ref() } {
        watch(number, new.sa_sigaction);
    }
    if let Some(next) = next::sigaction() {
        // SAFETY: as the caller vouches.
        return unsafe { next(number, new, old) };
    }
    crate::raw::set_errno(rustix::io::Errno::NOSYS);
    -1
}

/// `__sigaction`, by which parts of libc are called.
///
/// # Safety
///
/// As [`sigaction`].
#[no_mangle]
pub unsafe extern "C-unwind" fn __sigaction(
    number: c_int,
    new: *const Action,
    old: *mut Action,
) -> c_int {
    let _ends = crate::EndsByPanic;
    // SAFETY: as the caller vouches.
    unsafe { sigaction(number, new, old) }
}
