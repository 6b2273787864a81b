//! `daemon(3)`, `login_tty(3)`, `forkpty(3)`: in libc they fork, change the current directory and
//! replace descriptors without a symbol that could be interposed. So this file implements them after
//! their manual pages, on top of the interposed functions.

use core::ffi::{c_char, c_int, c_void};

use weir_client::process::process;

use crate::launch::fork;
use crate::{calls, ending, names, raw};

mod next {
    use super::{c_char, c_int, c_void};

    crate::next::next_fn! {
        daemon: fn(c_int, c_int) -> c_int;
        login_tty: fn(c_int) -> c_int;
        openpty: fn(*mut c_int, *mut c_int, *mut c_char, *const c_void, *const c_void) -> c_int;
        forkpty: fn(*mut c_int, *mut c_char, *const c_void, *const c_void) -> libc::pid_t;
    }
}

pub use next::resolve_all as resolve;

/// Makes standard input, output and error duplicates of `fd`, which is closed.
fn onto_standard(fd: c_int) -> c_int {
    for standard in 0..3 {
        // SAFETY: numbers.
        if unsafe { calls::dup2(fd, standard) } < 0 {
            return -1;
        }
    }
    if fd > 2 {
        calls::close_fd(fd);
    }
    0
}

/// `daemon(3)`.
///
/// # Safety
///
/// The caller meets the requirements of fork(2).
#[no_mangle]
pub unsafe extern "C" fn daemon(keep_directory: c_int, keep_standard: c_int) -> c_int {
    crate::guarded(|| {
        // SAFETY: C strings, numbers.
        unsafe {
            if !process().is_active() {
                return next::daemon().map_or(-1, |f| f(keep_directory, keep_standard));
            }
            match fork() {
                -1 => return -1,
                0 => {}
                _ => ending::_exit(0),
            }
            if libc::setsid() < 0 {
                return -1;
            }
            if keep_directory == 0 {
                names::chdir(c"/".as_ptr());
            }
            if keep_standard != 0 {
                return 0;
            }
            let null = names::open(c"/dev/null".as_ptr(), libc::O_RDWR, 0);
            if null < 0 {
                return -1;
            }
            onto_standard(null)
        }
    })
}

/// `login_tty(3)`.
///
/// # Safety
///
/// None beyond that of the descriptors that it replaces.
#[no_mangle]
pub unsafe extern "C" fn login_tty(fd: c_int) -> c_int {
    crate::guarded(|| {
        // SAFETY: numbers.
        unsafe {
            if !process().is_active() {
                return next::login_tty().map_or(-1, |f| f(fd));
            }
            libc::setsid();
            if calls::ioctl(fd, libc::TIOCSCTTY, 0) < 0 {
                return -1;
            }
            onto_standard(fd)
        }
    })
}

/// `openpty(3)`.
///
/// # Safety
///
/// The caller meets the requirements of the C function of this name.
#[no_mangle]
pub unsafe extern "C" fn openpty(
    master: *mut c_int,
    slave: *mut c_int,
    name: *mut c_char,
    terminal: *const c_void,
    window: *const c_void,
) -> c_int {
    crate::guarded(|| {
        // SAFETY: the arguments are those of openpty(3), by the caller; a call that succeeds has
        // stored both descriptors.
        unsafe {
            let done = next::openpty().map_or_else(crate::fail_with_enosys, |f| {
                f(master, slave, name, terminal, window)
            });
            if done == 0 {
                crate::note_made(master.read());
                crate::note_made(slave.read());
            }
            done
        }
    })
}

/// `forkpty(3)`.
///
/// # Safety
///
/// The caller meets the requirements of the C function of this name and of fork(2).
#[no_mangle]
pub unsafe extern "C-unwind" fn forkpty(
    master: *mut c_int,
    name: *mut c_char,
    terminal: *const c_void,
    window: *const c_void,
) -> libc::pid_t {
    let _ends = crate::EndsByPanic;
    // SAFETY: `name`, `terminal` and `window` are those of openpty(3), and `master` has room for a
    // descriptor, by the caller.
    unsafe {
        if !process().is_active() {
            return next::forkpty().map_or_else(crate::fail_with_enosys, |f| {
                f(master, name, terminal, window)
            });
        }
        let (mut own, mut other) = (-1, -1);
        if openpty(&raw mut own, &raw mut other, name, terminal, window) < 0 {
            return -1;
        }
        match fork() {
            -1 => {
                let saved = raw::errno();
                calls::close(own);
                calls::close(other);
                raw::restore_errno(saved);
                -1
            }
            0 => {
                calls::close(own);
                if login_tty(other) < 0 {
                    ending::_exit(1);
                }
                0
            }
            child => {
                calls::close(other);
                master.write(own);
                child
            }
        }
    }
}
