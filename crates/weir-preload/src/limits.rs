//! Programs that set their limits: the client reads the new ones.

use core::ffi::{c_int, c_long, c_void};

use crate::raw;

mod next {
    use super::{c_int, c_void};

    crate::next::next_fn! {
        setrlimit: fn(c_int, *const c_void) -> c_int;
        setrlimit64: fn(c_int, *const c_void) -> c_int;
        prlimit: fn(libc::pid_t, c_int, *const c_void, *mut c_void) -> c_int;
        prlimit64: fn(libc::pid_t, c_int, *const c_void, *mut c_void) -> c_int;
    }
}

/// Looks up the next function behind each wrapper.
pub fn resolve() {
    next::resolve_all();
}

/// Tells the client that a limit of this process may have changed.
fn changed(resource: c_int) {
    if resource == libc::RLIMIT_FSIZE as c_int {
        weir_client::process::process().user.limits_changed();
    }
}

macro_rules! watched {
    ($($name:ident ($($p:ident: $t:ty),*) of $resource:ident;)*) => {$(
        #[doc = concat!("`", stringify!($name), "`: done by the next library's; then weir looks at the limit.")]
        ///
        /// # Safety
        ///
        /// The caller meets the requirements of the C function of this name.
        #[no_mangle]
        pub unsafe extern "C-unwind" fn $name($($p: $t),*) -> c_int {
            let _ends = crate::EndsByPanic;
            // SAFETY: the arguments meet the C function's requirements, by the caller; `f` is the
            // next function of this name.
            let done = next::$name().map_or_else(crate::fail_with_enosys, |f| unsafe { f($($p),*) });
            changed($resource);
            done
        }
    )*};
}

watched! {
    setrlimit(resource: c_int, new: *const c_void) of resource;
    setrlimit64(resource: c_int, new: *const c_void) of resource;
    prlimit(process: libc::pid_t, resource: c_int, new: *const c_void, old: *mut c_void) of resource;
    prlimit64(process: libc::pid_t, resource: c_int, new: *const c_void, old: *mut c_void) of resource;
}

/// `setrlimit(2)`, by number.
///
/// # Safety
///
/// The arguments must be valid for the system call.
pub unsafe fn set(resource: c_int, new: usize) -> c_long {
    let arguments = crate::next::six([resource as usize, new]);
    // SAFETY: `new` is an argument of setrlimit(2), by the caller.
    let done = raw::outcome(unsafe { raw::syscall(libc::SYS_setrlimit, arguments) });
    changed(resource);
    done as c_long
}

/// `prlimit64(2)`, by number.
///
/// # Safety
///
/// The arguments must be valid for the system call.
pub unsafe fn get_and_set(process: usize, resource: c_int, new: usize, old: usize) -> c_long {
    let arguments = crate::next::six([process, resource as usize, new, old]);
    // SAFETY: `new` and `old` are arguments of prlimit(2), by the caller.
    let done = raw::outcome(unsafe { raw::syscall(libc::SYS_prlimit64, arguments) });
    changed(resource);
    done as c_long
}
