//! `syscall(2)`: system calls by number, as Node, libuv and others make them.
//!
//! System calls that take a descriptor or a path, or return a descriptor, go to the interposed functions
//! of the same names; all others go directly to the kernel. No frame of a compiled function may stand
//! between the program and the kernel: `syscall(SYS_vfork)` returns twice. So the front is a few
//! instructions, which look the number up and jump.

use core::arch::naked_asm;
use core::ffi::{c_char, c_int, c_long, c_uint, c_void};

use rustix::io::Errno;

use crate::raw;
use crate::{
    calls, ending, exec, limits, made, memory, names, rings, sockets, status, temp, users,
};

/// All interposed numbers are below this; the table has a bit for each.
const NUMBERS: usize = 512;

/// Declares which functions implement system calls, by number.
macro_rules! by_number {
    ([$a:ident, $b:ident, $c:ident, $d:ident, $e:ident, $f:ident]
    $($(#[$only:meta])* $number:ident: $function:path, ($($argument:ident $t:ty),*);)*) => {
        /// The numbers of these, one bit each.
        static OURS: [u64; NUMBERS / 64] = {
            let mut ours = [0; NUMBERS / 64];
            $($(#[$only])* { ours[libc::$number as usize / 64] |= 1 << (libc::$number % 64); })*
            ours
        };

        /// Calls the function of one of these numbers.
        ///
        /// # Safety
        ///
        /// The arguments must be valid for the system call.
        #[allow(
            clippy::too_many_arguments, unused_variables, clippy::cast_lossless,
            reason = "as many as a system call has, words all of them"
        )]
        unsafe extern "C" fn call(
            number: c_long, $a: usize, $b: usize, $c: usize, $d: usize, $e: usize, $f: usize,
        ) -> c_long {
            // SAFETY: the arguments are valid for the system call of this number, by the caller, so
            // they are for the function that does it.
            unsafe {
                match number {
                    $($(#[$only])* libc::$number => $function($($argument as $t),*) as c_long,)*
                    _ => c_long::from(crate::fail_with_enosys()),
                }
            }
        }
    };
}

by_number! {
    [a, b, c, d, e, f]
    SYS_read: calls::read, (a c_int, b *mut c_void, c usize);
    SYS_write: calls::write, (a c_int, b *const c_void, c usize);
    SYS_pread64: calls::pread, (a c_int, b *mut c_void, c usize, d i64);
    SYS_pwrite64: calls::pwrite, (a c_int, b *const c_void, c usize, d i64);
    SYS_readv: calls::readv, (a c_int, b *const libc::iovec, c c_int);
    SYS_writev: calls::writev, (a c_int, b *const libc::iovec, c c_int);
    // The upper half of the offset is a separate argument, which a 64-bit kernel ignores.
    SYS_preadv: calls::preadv, (a c_int, b *const libc::iovec, c c_int, d i64);
    SYS_pwritev: calls::pwritev, (a c_int, b *const libc::iovec, c c_int, d i64);
    SYS_preadv2: calls::preadv2, (a c_int, b *const libc::iovec, c c_int, d i64, f c_int);
    SYS_pwritev2: calls::pwritev2, (a c_int, b *const libc::iovec, c c_int, d i64, f c_int);
    SYS_lseek: calls::lseek, (a c_int, b i64, c c_int);
    SYS_close: calls::close, (a c_int);
    SYS_close_range: calls::close_range, (a c_uint, b c_uint, c c_int);
    SYS_dup: calls::dup, (a c_int);
    #[cfg(target_arch = "x86_64")] SYS_dup2: calls::dup2, (a c_int, b c_int);
    SYS_dup3: calls::dup3, (a c_int, b c_int, c c_int);
    SYS_fcntl: calls::fcntl, (a c_int, b c_int, c usize);
    SYS_ioctl: calls::ioctl, (a c_int, b libc::c_ulong, c usize);
    SYS_flock: calls::flock, (a c_int, b c_int);
    SYS_ftruncate: calls::ftruncate, (a c_int, b i64);
    SYS_fallocate: calls::fallocate, (a c_int, b c_int, c i64, d i64);
    SYS_fsync: calls::fsync, (a c_int);
    SYS_fdatasync: calls::fdatasync, (a c_int);
    SYS_syncfs: calls::syncfs, (a c_int);
    SYS_sync_file_range: calls::sync_file_range, (a c_int, b i64, c i64, d c_uint);
    SYS_fadvise64: advise, (a c_int, b i64, c i64, d c_int);
    SYS_readahead: calls::readahead, (a c_int, b i64, c usize);
    SYS_getdents64: calls::getdents64, (a c_int, b *mut c_void, c usize);
    SYS_copy_file_range: calls::copy_file_range, (a c_int, b *mut i64, c c_int, d *mut i64, e usize, f c_uint);
    SYS_sendfile: calls::sendfile, (a c_int, b c_int, c *mut i64, d usize);
    SYS_splice: calls::splice, (a c_int, b *mut i64, c c_int, d *mut i64, e usize, f c_uint);
    SYS_tee: calls::tee, (a c_int, b c_int, c usize, d c_uint);
    SYS_fchdir: calls::fchdir, (a c_int);
    SYS_fchmod: calls::fchmod, (a c_int, b libc::mode_t);
    SYS_fchown: calls::fchown, (a c_int, b libc::uid_t, c libc::gid_t);
    SYS_mmap: memory::map, (a *mut c_void, b usize, c c_int, d c_int, e c_int, f i64);

    #[cfg(target_arch = "x86_64")] SYS_open: names::open, (a *const c_char, b c_int, c libc::mode_t);
    #[cfg(target_arch = "x86_64")] SYS_creat: names::creat, (a *const c_char, b libc::mode_t);
    #[cfg(target_arch = "x86_64")] SYS_access: names::access, (a *const c_char, b c_int);
    #[cfg(target_arch = "x86_64")] SYS_unlink: names::unlink, (a *const c_char);
    #[cfg(target_arch = "x86_64")] SYS_rmdir: names::rmdir, (a *const c_char);
    #[cfg(target_arch = "x86_64")] SYS_rename: names::rename, (a *const c_char, b *const c_char);
    #[cfg(target_arch = "x86_64")] SYS_link: names::link, (a *const c_char, b *const c_char);
    #[cfg(target_arch = "x86_64")] SYS_symlink: names::symlink, (a *const c_char, b *const c_char);
    #[cfg(target_arch = "x86_64")] SYS_readlink: names::readlink, (a *const c_char, b *mut c_char, c usize);
    #[cfg(target_arch = "x86_64")] SYS_mkdir: names::mkdir, (a *const c_char, b libc::mode_t);
    #[cfg(target_arch = "x86_64")] SYS_mknod: names::mknod, (a *const c_char, b libc::mode_t, c libc::dev_t);
    #[cfg(target_arch = "x86_64")] SYS_chmod: names::chmod, (a *const c_char, b libc::mode_t);
    #[cfg(target_arch = "x86_64")] SYS_chown: names::chown, (a *const c_char, b libc::uid_t, c libc::gid_t);
    #[cfg(target_arch = "x86_64")] SYS_lchown: names::lchown, (a *const c_char, b libc::uid_t, c libc::gid_t);
    SYS_openat: names::openat, (a c_int, b *const c_char, c c_int, d libc::mode_t);
    SYS_openat2: openat2, (a c_int, b *const c_char, c *const OpenHow, d usize);
    SYS_faccessat: names::faccessat, (a c_int, b *const c_char, c c_int, NO_FLAGS c_int);
    SYS_faccessat2: names::faccessat, (a c_int, b *const c_char, c c_int, d c_int);
    SYS_unlinkat: names::unlinkat, (a c_int, b *const c_char, c c_int);
    #[cfg(target_arch = "x86_64")]
    SYS_renameat: names::renameat, (a c_int, b *const c_char, c c_int, d *const c_char);
    SYS_renameat2: names::renameat2, (a c_int, b *const c_char, c c_int, d *const c_char, e c_uint);
    SYS_linkat: names::linkat, (a c_int, b *const c_char, c c_int, d *const c_char, e c_int);
    SYS_symlinkat: names::symlinkat, (a *const c_char, b c_int, c *const c_char);
    SYS_readlinkat: names::readlinkat, (a c_int, b *const c_char, c *mut c_char, d usize);
    SYS_mkdirat: names::mkdirat, (a c_int, b *const c_char, c libc::mode_t);
    SYS_mknodat: names::mknodat, (a c_int, b *const c_char, c libc::mode_t, d libc::dev_t);
    SYS_fchmodat: names::fchmodat, (a c_int, b *const c_char, c libc::mode_t, NO_FLAGS c_int);
    SYS_fchownat: names::fchownat, (a c_int, b *const c_char, c libc::uid_t, d libc::gid_t, e c_int);
    SYS_truncate: names::truncate, (a *const c_char, b i64);
    #[cfg(target_arch = "x86_64")] SYS_utime: names::utime, (a *const c_char, b *const libc::utimbuf);
    #[cfg(target_arch = "x86_64")] SYS_utimes: names::utimes, (a *const c_char, b *const libc::timeval);
    #[cfg(target_arch = "x86_64")]
    SYS_futimesat: names::futimesat, (a c_int, b *const c_char, c *const libc::timeval);
    SYS_utimensat: names::utimensat, (a c_int, b *const c_char, c *const libc::timespec, d c_int);
    SYS_chdir: names::chdir, (a *const c_char);
    SYS_chroot: names::chroot, (a *const c_char);
    SYS_umask: names::umask, (a libc::mode_t);
    SYS_getcwd: getcwd, (a *mut c_char, b usize);
    SYS_getxattr: names::getxattr, (a *const c_char, b *const c_char, c *mut c_void, d usize);
    SYS_lgetxattr: names::lgetxattr, (a *const c_char, b *const c_char, c *mut c_void, d usize);
    SYS_fgetxattr: names::fgetxattr, (a c_int, b *const c_char, c *mut c_void, d usize);
    SYS_setxattr: names::setxattr, (a *const c_char, b *const c_char, c *const c_void, d usize, e c_int);
    SYS_lsetxattr: names::lsetxattr, (a *const c_char, b *const c_char, c *const c_void, d usize, e c_int);
    SYS_fsetxattr: names::fsetxattr, (a c_int, b *const c_char, c *const c_void, d usize, e c_int);
    SYS_listxattr: names::listxattr, (a *const c_char, b *mut c_char, c usize);
    SYS_llistxattr: names::llistxattr, (a *const c_char, b *mut c_char, c usize);
    SYS_flistxattr: names::flistxattr, (a c_int, b *mut c_char, c usize);
    SYS_removexattr: names::removexattr, (a *const c_char, b *const c_char);
    SYS_lremovexattr: names::lremovexattr, (a *const c_char, b *const c_char);
    SYS_fremovexattr: names::fremovexattr, (a c_int, b *const c_char);
    SYS_inotify_add_watch: names::inotify_add_watch, (a c_int, b *const c_char, c u32);
    SYS_fanotify_mark: names::fanotify_mark, (a c_int, b c_uint, c u64, d c_int, e *const c_char);
    SYS_mount: names::mount, (a *const c_char, b *const c_char, c *const c_char, d libc::c_ulong, e *const c_void);
    SYS_umount2: names::umount2, (a *const c_char, b c_int);
    SYS_name_to_handle_at: names::name_to_handle_at, (a c_int, b *const c_char, c *mut c_void, d *mut c_int, e c_int);

    #[cfg(target_arch = "x86_64")] SYS_stat: status::stat, (a *const c_char, b *mut libc::stat);
    #[cfg(target_arch = "x86_64")] SYS_lstat: status::lstat, (a *const c_char, b *mut libc::stat);
    SYS_fstat: status::fstat, (a c_int, b *mut libc::stat);
    SYS_newfstatat: status::fstatat, (a c_int, b *const c_char, c *mut libc::stat, d c_int);
    SYS_statx: status::statx, (a c_int, b *const c_char, c c_int, d c_uint, e *mut libc::statx);
    SYS_statfs: status::statfs, (a *const c_char, b *mut libc::statfs);
    SYS_fstatfs: status::fstatfs, (a c_int, b *mut libc::statfs);

    SYS_socket: made::socket, (a c_int, b c_int, c c_int);
    SYS_socketpair: made::socketpair, (a c_int, b c_int, c c_int, d *mut c_int);
    SYS_accept: made::accept, (a c_int, b *mut libc::sockaddr, c *mut libc::socklen_t);
    SYS_accept4: made::accept4, (a c_int, b *mut libc::sockaddr, c *mut libc::socklen_t, d c_int);
    #[cfg(target_arch = "x86_64")] SYS_pipe: made::pipe, (a *mut c_int);
    SYS_pipe2: made::pipe2, (a *mut c_int, b c_int);
    SYS_epoll_create1: made::epoll_create1, (a c_int);
    SYS_eventfd2: made::eventfd, (a c_uint, b c_int);
    SYS_timerfd_create: made::timerfd_create, (a c_int, b c_int);
    SYS_inotify_init1: made::inotify_init1, (a c_int);
    #[cfg(target_arch = "x86_64")] SYS_epoll_create: made::epoll_create, (a c_int);
    #[cfg(target_arch = "x86_64")] SYS_inotify_init: made::inotify_init, ();
    SYS_fanotify_init: made::fanotify_init, (a c_uint, b c_uint);
    SYS_open_by_handle_at: made::open_by_handle_at, (a c_int, b *mut c_void, c c_int);
    SYS_memfd_create: made::memfd_create, (a *const c_char, b c_uint);
    SYS_pidfd_open: made::pidfd_open, (a libc::pid_t, b c_uint);
    SYS_pidfd_getfd: made::pidfd_getfd, (a c_int, b c_int, c c_uint);
    SYS_bind: sockets::bind, (a c_int, b *const libc::sockaddr, c libc::socklen_t);
    SYS_connect: sockets::connect, (a c_int, b *const libc::sockaddr, c libc::socklen_t);
    SYS_getsockname: sockets::getsockname, (a c_int, b *mut libc::sockaddr, c *mut libc::socklen_t);
    SYS_getpeername: sockets::getpeername, (a c_int, b *mut libc::sockaddr, c *mut libc::socklen_t);
    SYS_sendto: sockets::sendto,
        (a c_int, b *const c_void, c usize, d c_int, e *const libc::sockaddr, f libc::socklen_t);
    SYS_sendmsg: sockets::sendmsg, (a c_int, b *const libc::msghdr, c c_int);
    SYS_recvmsg: sockets::recvmsg, (a c_int, b *mut libc::msghdr, c c_int);
    SYS_sendmmsg: sockets::sendmmsg, (a c_int, b *mut libc::mmsghdr, c c_uint, d c_int);
    SYS_recvmmsg: sockets::recvmmsg, (a c_int, b *mut libc::mmsghdr, c c_uint, d c_int, e *mut libc::timespec);
    SYS_io_submit: rings::submit, (a usize, b c_long, c *const *mut rings::Request);
    SYS_io_getevents: rings::events, (a usize, b c_long, c c_long, d *mut c_void, e *mut c_void);
    SYS_io_uring_setup: rings::setup, (a c_uint, b *mut c_void);

    SYS_setrlimit: limits::set, (a c_int, b usize);
    SYS_prlimit64: limits::get_and_set, (a usize, b c_int, c usize, d usize);
    SYS_setuid: users::thread_setuid, (a usize, b usize, c usize);
    SYS_setgid: users::thread_setgid, (a usize, b usize, c usize);
    SYS_setreuid: users::thread_setreuid, (a usize, b usize, c usize);
    SYS_setregid: users::thread_setregid, (a usize, b usize, c usize);
    SYS_setresuid: users::thread_setresuid, (a usize, b usize, c usize);
    SYS_setresgid: users::thread_setresgid, (a usize, b usize, c usize);
    SYS_setgroups: users::thread_setgroups, (a usize, b usize, c usize);

    #[cfg(target_arch = "x86_64")] SYS_fork: crate::launch::vfork, ();
    #[cfg(target_arch = "x86_64")] SYS_vfork: crate::launch::vfork, ();
    SYS_execve: exec::execve, (a *const c_char, b *const *const c_char, c *const *const c_char);
    SYS_execveat: exec::execveat, (a c_int, b *const c_char, c *const *const c_char, d *const *const c_char, e c_int);
    SYS_exit_group: exit_group, (a c_int);
}

/// The flags of calls that have none.
const NO_FLAGS: c_int = 0;

fn exit_group(status: c_int) -> c_long {
    ending::_exit(status)
}

/// `fadvise64(2)`, which reports by errno the error that libc's function returns.
fn advise(fd: c_int, offset: i64, length: i64, advice: c_int) -> c_int {
    // SAFETY: numbers.
    match unsafe { calls::posix_fadvise(fd, offset, length, advice) } {
        0 => 0,
        number => {
            raw::set_errno(Errno::from_raw_os_error(number));
            -1
        }
    }
}

/// `getcwd(2)`, which returns the length of the path with its NUL.
///
/// # Safety
///
/// `into` is no address of the program, or has `room` bytes.
unsafe fn getcwd(into: *mut c_char, room: usize) -> c_long {
    // SAFETY: `into` has `room` bytes, by the caller; what getcwd(3) gives is null or a C string
    // there.
    unsafe {
        if into.is_null() {
            raw::set_errno(Errno::FAULT);
            return -1;
        }
        let path = temp::getcwd(into, room);
        crate::bytes_of(path).map_or(-1, |path| path.len() as c_long + 1)
    }
}

/// `struct open_how` of openat2(2), its first version.
#[repr(C)]
struct OpenHow {
    flags: u64,
    mode: u64,
    resolve: u64,
}

/// `openat2(2)`. ENOSYS for our paths with rules for their resolution: callers then do without openat2.
///
/// # Safety
///
/// The arguments are valid for the system call.
unsafe fn openat2(at: c_int, path: *const c_char, how: *const OpenHow, size: usize) -> c_int {
    // SAFETY: `path` is no address of the program or a C string, and `how` has `size` bytes, by the
    // caller.
    unsafe {
        if size < size_of::<OpenHow>() || !crate::is_address(how) || !crate::is_our_c_path(at, path)
        {
            let arguments = [at as usize, path as usize, how as usize, size];
            let opened = raw::syscall(libc::SYS_openat2, crate::next::six(arguments));
            return crate::note_made(raw::outcome(opened) as c_int);
        }
        match c_int::try_from((*how).flags) {
            Ok(flags) if (*how).resolve == 0 => {
                names::openat(at, path, flags, (*how).mode as libc::mode_t)
            }
            _ => crate::fail_with_enosys(),
        }
    }
}

/// The return value for a call that the kernel failed; sets errno.
extern "C" fn failed(result: isize) -> isize {
    raw::outcome(result)
}

/// `syscall(2)`.
///
/// # Safety
///
/// The arguments must be valid for the system call.
#[cfg(target_arch = "x86_64")]
#[unsafe(naked)]
#[no_mangle]
pub unsafe extern "C" fn syscall(number: c_long) -> c_long {
    naked_asm!(
        "cmp rdi, {numbers}",
        "jae 2f",
        "lea rax, [rip + {ours}]",
        "bt qword ptr [rax], rdi",
        "jc {call}",
        "2:",
        "mov rax, rdi",
        "mov rdi, rsi",
        "mov rsi, rdx",
        "mov rdx, rcx",
        "mov r10, r8",
        "mov r8, r9",
        "mov r9, [rsp + 8]",
        "syscall",
        "cmp rax, -4095",
        "jae 3f",
        "ret",
        "3:",
        "mov rdi, rax",
        "jmp {failed}",
        numbers = const NUMBERS,
        ours = sym OURS,
        call = sym call,
        failed = sym failed,
    )
}

/// `syscall(2)`.
///
/// # Safety
///
/// The arguments must be valid for the system call.
#[cfg(target_arch = "aarch64")]
#[unsafe(naked)]
#[no_mangle]
pub unsafe extern "C" fn syscall(number: c_long) -> c_long {
    naked_asm!(
        "cmp x0, #{numbers}",
        "b.hs 2f",
        "adrp x9, {ours}",
        "add x9, x9, :lo12:{ours}",
        "lsr x10, x0, #6",
        "ldr x10, [x9, x10, lsl #3]",
        "lsr x10, x10, x0",
        "tbz x10, #0, 2f",
        "b {call}",
        "2:",
        "mov x8, x0",
        "mov x0, x1",
        "mov x1, x2",
        "mov x2, x3",
        "mov x3, x4",
        "mov x4, x5",
        "mov x5, x6",
        "svc #0",
        "cmn x0, #4095",
        "b.hs 3f",
        "ret",
        "3:",
        "b {failed}",
        numbers = const NUMBERS,
        ours = sym OURS,
        call = sym call,
        failed = sym failed,
    )
}
