//! Functions of libc that return a descriptor of the kernel.
//!
//! These descriptors are not weir's. If weir knows such a number, it was closed without a call of ours,
//! and later writes to it must not go to the file that had it: see `weir_client`'s `process/descriptors/lost.rs`.
//! Functions that open a path are in [`crate::names`], [`crate::stdio`] and [`crate::dir`].

use core::ffi::{c_char, c_int, c_uint, c_void};

use libc::{mode_t, sockaddr, socklen_t};
use rustix::io::Errno;

use crate::next::{interpose, Descriptor};
use crate::note_made;

type Kernels = Option<Result<c_int, Errno>>;

interpose! {
    [socket __socket] (domain: c_int, kind: c_int, protocol: c_int) -> Descriptor: libc::SYS_socket, [domain, kind, protocol]
        => |_p| Kernels::None;
    [accept] (fd: c_int, address: *mut sockaddr, length: *mut socklen_t) -> Descriptor: libc::SYS_accept, [fd, address, length]
        => |_p| Kernels::None;
    [accept4] (fd: c_int, address: *mut sockaddr, length: *mut socklen_t, flags: c_int) -> Descriptor: libc::SYS_accept4, [fd, address, length, flags]
        => |_p| Kernels::None;
    [epoll_create] (_size: c_int) -> Descriptor: libc::SYS_epoll_create1, [0] => |_p| Kernels::None;
    [epoll_create1] (flags: c_int) -> Descriptor: libc::SYS_epoll_create1, [flags] => |_p| Kernels::None;
    [eventfd] (value: c_uint, flags: c_int) -> Descriptor: libc::SYS_eventfd2, [value, flags] => |_p| Kernels::None;
    [timerfd_create] (clock: c_int, flags: c_int) -> Descriptor: libc::SYS_timerfd_create, [clock, flags] => |_p| Kernels::None;
    [signalfd] (fd: c_int, mask: *const c_void, flags: c_int) -> Descriptor: libc::SYS_signalfd4, [fd, mask, KERNEL_SIGSET, flags]
        => |_p| Kernels::None;
    [inotify_init] () -> Descriptor: libc::SYS_inotify_init1, [0] => |_p| Kernels::None;
    [inotify_init1] (flags: c_int) -> Descriptor: libc::SYS_inotify_init1, [flags] => |_p| Kernels::None;
    [fanotify_init] (flags: c_uint, events: c_uint) -> Descriptor: libc::SYS_fanotify_init, [flags, events] => |_p| Kernels::None;
    [memfd_create] (name: *const c_char, flags: c_uint) -> Descriptor: libc::SYS_memfd_create, [name, flags] => |_p| Kernels::None;
    [pidfd_open] (pid: libc::pid_t, flags: c_uint) -> Descriptor: libc::SYS_pidfd_open, [pid, flags] => |_p| Kernels::None;
    [pidfd_getfd] (pidfd: c_int, fd: c_int, flags: c_uint) -> Descriptor: libc::SYS_pidfd_getfd, [pidfd, fd, flags] => |_p| Kernels::None;
    [open_by_handle_at] (mount: c_int, handle: *mut c_void, flags: c_int) -> Descriptor: libc::SYS_open_by_handle_at, [mount, handle, flags]
        => |_p| Kernels::None;
    [posix_openpt] (flags: c_int) -> Descriptor: libc::SYS_openat, [libc::AT_FDCWD, c"/dev/ptmx".as_ptr(), flags, 0]
        => |_p| Kernels::None;
}

/// Size of the kernel's sigset_t, in bytes.
const KERNEL_SIGSET: usize = 8;

/// Functions that return two descriptors, in an array.
macro_rules! pairs {
    ($($name:ident ($($p:ident: $t:ty),*), $both:ident: $number:expr, [$($a:expr),*];)*) => {$(
        #[doc = concat!("`", stringify!($name), "(2)`.")]
        ///
        /// # Safety
        ///
        /// The caller meets the requirements of the C function of this name.
        #[no_mangle]
        pub unsafe extern "C-unwind" fn $name($($p: $t),*) -> c_int {
            let _ends = crate::EndsByPanic;
            // SAFETY: the arguments meet the C function's requirements, by the caller; `next` has
            // this signature. A call that succeeds has stored two descriptors.
            unsafe {
                let next = pairs::$name.get();
                let done = match next.is_null() {
                    true => {
                        let arguments = crate::next::six([$($a as usize),*]);
                        crate::raw::outcome(crate::raw::syscall($number, arguments)) as c_int
                    }
                    false => core::mem::transmute::<*mut c_void, unsafe extern "C" fn($($t),*) -> c_int>(next)($($p),*),
                };
                if done == 0 {
                    note_made($both.read());
                    note_made($both.add(1).read());
                }
                done
            }
        }
    )*

        #[allow(non_upper_case_globals)] // named as the functions they stand for
        mod pairs {
            $( $crate::next::interpose!(@static $name); )*

            /// Looks up the next functions behind these.
            pub fn resolve() {
                $( $name.resolve(); )*
            }
        }
    };
}

pub use pairs::resolve as resolve_pairs;

pairs! {
    pipe(both: *mut c_int), both: libc::SYS_pipe2, [both, 0];
    pipe2(both: *mut c_int, flags: c_int), both: libc::SYS_pipe2, [both, flags];
    socketpair(domain: c_int, kind: c_int, protocol: c_int, both: *mut c_int), both:
        libc::SYS_socketpair, [domain, kind, protocol, both];
}

mod others {
    use super::{c_char, c_int, c_void, mode_t};

    crate::next::next_fn! {
        shm_open: fn(*const c_char, c_int, mode_t) -> c_int;
        mq_open: fn(*const c_char, c_int, mode_t, *mut c_void) -> c_int;
    }
}

pub use others::resolve_all as resolve_others;

/// `shm_open(3)`.
///
/// # Safety
///
/// The caller meets the requirements of the C function of this name.
#[no_mangle]
pub unsafe extern "C-unwind" fn shm_open(name: *const c_char, flags: c_int, mode: mode_t) -> c_int {
    let _ends = crate::EndsByPanic;
    // SAFETY: `name` is a C string, by the caller.
    unsafe {
        match others::shm_open() {
            Some(f) => note_made(f(name, flags, mode)),
            None => shm_open_here(name, flags, mode),
        }
    }
}

/// `shm_open(3)` for glibc before 2.34, which has it in a library that this program did not load into
/// the global scope.
///
/// # Safety
///
/// `name` is null or a C string.
unsafe fn shm_open_here(name: *const c_char, flags: c_int, mode: mode_t) -> c_int {
    // SAFETY: `name` is null or a C string, by the caller.
    let name = unsafe { crate::bytes_of(name) }.unwrap_or_default();
    let name = &name[name.iter().take_while(|byte| **byte == b'/').count()..];
    if name.is_empty() || name.contains(&b'/') {
        crate::raw::set_errno(Errno::INVAL);
        return -1;
    }
    let path = [b"/dev/shm/", name, b"\0"].concat();
    let flags = flags | libc::O_NOFOLLOW | libc::O_CLOEXEC | libc::O_NONBLOCK;
    // SAFETY: a C string.
    unsafe { crate::names::open(path.as_ptr().cast(), flags, mode) }
}

/// `mq_open(3)`.
///
/// # Safety
///
/// The caller meets the requirements of the C function of this name.
#[no_mangle]
pub unsafe extern "C-unwind" fn mq_open(
    name: *const c_char,
    flags: c_int,
    mode: mode_t,
    attributes: *mut c_void,
) -> c_int {
    let _ends = crate::EndsByPanic;
    // SAFETY: `name` is a C string, and `attributes` is what mq_open(3) takes with these flags, by
    // the caller.
    unsafe {
        others::mq_open().map_or_else(crate::fail_with_enosys, |f| {
            note_made(f(name, flags, mode, attributes))
        })
    }
}
