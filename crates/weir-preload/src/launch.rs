//! The start of processes: fork, system, popen. [`crate::forks`] has what is done around each fork.
//!
//! `vfork` becomes `fork`: a child in its parent's memory would run our wrappers on the parent's tables.

use core::ffi::{c_char, c_int, CStr};
use std::ffi::CString;

use rustix::io::Errno;
use weir_client::kernel::block_signals;
use weir_client::process::process;
use weir_client::siglock::SigLock;

use crate::environment::{environ, lacking};
use crate::{attempt, bytes_of, raw, stdio};

mod next {
    use super::{c_char, c_int};

    crate::next::next_fn! {
        fork: fn() -> libc::pid_t;
        system: fn(*const c_char) -> c_int;
        popen: fn(*const c_char, *const c_char) -> *mut libc::FILE;
    }
}

/// Looks up the next functions behind the wrappers of this file.
pub fn resolve() {
    next::resolve_all();
}

/// `fork(2)` of the next library.
///
/// # Safety
///
/// The caller meets the requirements of fork(2).
pub(crate) unsafe fn fork() -> libc::pid_t {
    // SAFETY: what a child of fork may do if the process has several threads is the caller's to
    // keep to.
    unsafe { next::fork().map_or(-1, |f| f()) }
}

/// `vfork(2)`, implemented as fork.
///
/// # Safety
///
/// The caller meets the requirements of fork(2).
#[no_mangle]
pub unsafe extern "C" fn vfork() -> libc::pid_t {
    // SAFETY: a caller of vfork(2) does less in the child than fork(2) allows.
    unsafe { fork() }
}

/// The changes that [`in_own_environment`] made to the environment, and the number of callers that
/// need them.
#[derive(Default)]
struct Changed {
    callers: u32,
    before: Vec<(&'static CStr, Option<CString>)>,
}

static CHANGED: SigLock<Changed> = SigLock::new(Changed {
    callers: 0,
    before: Vec::new(),
});

/// Takes the lock of the changed environment before a fork, and keeps it.
pub(crate) fn before_fork() {
    // The holder of this lock cannot be the forking thread: its signals are blocked.
    if let Some(changed) = CHANGED.lock() {
        changed.keep();
    }
}

/// Releases the lock, in both processes.
pub(crate) fn after_fork() {
    // SAFETY: `before_fork` kept it, by this thread.
    unsafe { CHANGED.give_back() };
}

/// Runs `call`, in which libc starts a program with this process's environment. Meanwhile the
/// environment has the variables that load the interposer.
fn in_own_environment<T>(call: impl FnOnce() -> T) -> Result<T, Errno> {
    let done = attempt(change_environment).map(|()| call());
    change_environment_back();
    done
}

fn change_environment() {
    let _signals = block_signals();
    // `None` only for a handler that interrupts the lock's holder: signals are blocked.
    let Some(mut changed) = CHANGED.lock() else {
        return;
    };
    changed.callers += 1;
    // SAFETY: libc's environment.
    for (name, value) in unsafe { lacking(environ, true) } {
        // SAFETY: C strings.
        unsafe {
            let before = bytes_of(libc::getenv(name.as_ptr())).map(<[u8]>::to_vec);
            let before = before.and_then(|before| CString::new(before).ok());
            changed.before.push((name, before));
            libc::setenv(name.as_ptr(), value.as_ptr(), 1);
        }
    }
}

fn change_environment_back() {
    let _signals = block_signals();
    let Some(mut changed) = CHANGED.lock() else {
        return;
    };
    changed.callers = changed.callers.saturating_sub(1);
    if changed.callers > 0 {
        return;
    }
    for (name, value) in core::mem::take(&mut changed.before) {
        // SAFETY: C strings.
        unsafe {
            match value {
                Some(value) => libc::setenv(name.as_ptr(), value.as_ptr(), 1),
                None => libc::unsetenv(name.as_ptr()),
            };
        }
    }
}

/// Prepares the descriptors and holds our locks while libc makes a child. An error: one of our assertions
/// failed before.
pub(crate) fn around_fork<T>(call: impl FnOnce() -> T) -> Result<T, Errno> {
    let result = attempt(|| process().forks.before_fork()).map(|()| call());
    process().forks.after_fork_parent();
    result
}

/// `system(3)`.
///
/// # Safety
///
/// The caller meets the requirements of the C function of this name.
#[no_mangle]
pub unsafe extern "C-unwind" fn system(command: *const c_char) -> c_int {
    let _ends = crate::EndsByPanic;
    // libc waits for the child from inside, so our locks are not held meanwhile.
    let done = around_fork(|| ()).and_then(|()| {
        // SAFETY: `command` is null or a C string, by the caller.
        in_own_environment(|| unsafe { next::system().map_or(-1, |f| f(command)) })
    });
    done.unwrap_or_else(|errno| {
        raw::set_errno(errno);
        -1
    })
}

/// `popen(3)`.
///
/// # Safety
///
/// The caller meets the requirements of the C function of this name.
#[no_mangle]
pub unsafe extern "C-unwind" fn popen(
    command: *const c_char,
    mode: *const c_char,
) -> *mut libc::FILE {
    let _ends = crate::EndsByPanic;
    let made = around_fork(|| {
        // SAFETY: `command` and `mode` are C strings, by the caller; what comes back is null or a
        // FILE of libc's.
        in_own_environment(|| unsafe {
            stdio::note_stream(next::popen().map_or(core::ptr::null_mut(), |f| f(command, mode)))
        })
    });
    made.flatten().unwrap_or_else(|errno| {
        raw::set_errno(errno);
        core::ptr::null_mut()
    })
}
