//! Programs that change their user or groups: the client checks permissions for the new ones.
//!
//! libc makes these calls on all threads of the process, as POSIX demands. A program that makes the
//! system call itself changes one thread only; weir then treats its user as that of the process.

use core::ffi::{c_char, c_int, c_long};

use libc::{gid_t, size_t, uid_t};

use crate::raw;

/// Declares wrappers of functions that set identities: each is done by the next library's function.
macro_rules! watched {
    ($($name:ident ($($p:ident: $t:ty),*) $(as $effective:ident)?;)*) => {
        mod next {
            use super::{c_char, c_int, gid_t, size_t, uid_t};

            crate::next::next_fn! { $( $name: fn($($t),*) -> c_int; )* }
        }

        $(
            #[doc = concat!("`", stringify!($name), "`: done by the next library's; then weir looks who the program is.")]
            ///
            /// # Safety
            ///
            /// The caller meets the requirements of the C function of this name.
            #[no_mangle]
            pub unsafe extern "C-unwind" fn $name($($p: $t),*) -> c_int {
                let _ends = crate::EndsByPanic;
                $( becomes($effective); )?
                // SAFETY: the arguments meet the C function's requirements, by the caller; `f` is
                // the next function of this name.
                let done = next::$name().map_or_else(crate::fail_with_enosys, |f| unsafe { f($($p),*) });
                weir_client::process::process().user.credentials_changed();
                done
            }
        )*
    };
}

/// Tells the client that the program is about to act as this user; `uid_t::MAX`: no change.
fn becomes(uid: uid_t) {
    if uid != uid_t::MAX {
        weir_client::process::process().user.before_user_change(uid);
    }
}

watched! {
    setuid(uid: uid_t) as uid;
    seteuid(uid: uid_t) as uid;
    setreuid(real: uid_t, effective: uid_t) as effective;
    setresuid(real: uid_t, effective: uid_t, saved: uid_t) as effective;
    setgid(gid: gid_t);
    setegid(gid: gid_t);
    setregid(real: gid_t, effective: gid_t);
    setresgid(real: gid_t, effective: gid_t, saved: gid_t);
    setgroups(count: size_t, groups: *const gid_t);
    initgroups(user: *const c_char, group: gid_t);
}

/// Looks up the next function behind each wrapper.
pub fn resolve() {
    next::resolve_all();
}

/// Declares the functions for system calls by number: these concern the calling thread alone.
macro_rules! by_number {
    ($($name:ident($a:ident, $b:ident, $c:ident) $number:ident $(as $effective:ident)?;)*) => {$(
        #[doc = concat!("`", stringify!($number), "`, of the calling thread.")]
        ///
        /// # Safety
        ///
        /// The arguments must be valid for the system call.
        pub unsafe fn $name($a: usize, $b: usize, $c: usize) -> c_long {
            $( becomes($effective as uid_t); )?
            // SAFETY: the arguments are valid for the system call, by the caller.
            let done = raw::outcome(unsafe { raw::syscall(libc::$number, [$a, $b, $c, 0, 0, 0]) });
            weir_client::process::process().user.credentials_changed();
            done as c_long
        }
    )*};
}

by_number! {
    thread_setuid(a, b, c) SYS_setuid as a;
    thread_setgid(a, b, c) SYS_setgid;
    thread_setreuid(a, b, c) SYS_setreuid as b;
    thread_setregid(a, b, c) SYS_setregid;
    thread_setresuid(a, b, c) SYS_setresuid as b;
    thread_setresgid(a, b, c) SYS_setresgid;
    thread_setgroups(a, b, c) SYS_setgroups;
}
