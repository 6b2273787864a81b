//! Calls whose bodies are not written yet: everything of weir's gets ENOSYS.

use std::io::{IoSlice, IoSliceMut};

use super::Process;
use crate::kernel::Fd;
use crate::types::{LockRange, Outcome, Stat, StatFs, Time};

macro_rules! pending {
    ($( $(#[$meta:meta])* $name:ident($($arg:ident: $type:ty),*) -> $result:ty; )*) => {
        impl Process {
            $( $(#[$meta])* #[allow(clippy::unused_self, clippy::too_many_arguments)]
            pub fn $name(&self $(, $arg: $type)*) -> Outcome<$result> { $( let _ = $arg; )* None } )*
        }
    };
}

pending! {
    /// openat(2); `mode` counts where a file is created.
    openat(dirfd: Fd, path: &[u8], flags: i32, mode: u32) -> Fd;
    /// close(2).
    close(fd: Fd) -> ();
    /// close_range(2). Also when nothing in the range is weir's files but its own
    /// descriptors must survive.
    close_range(first: u32, last: u32, flags: u32) -> ();
    /// dup(2).
    dup(fd: Fd) -> Fd;
    /// dup2(2); ours if either number is.
    dup2(old: Fd, new: Fd) -> Fd;
    /// dup3(2); ours if either number is.
    dup3(old: Fd, new: Fd, flags: i32) -> Fd;
    /// fcntl(2), commands with an integer argument or none.
    fcntl(fd: Fd, command: i32, argument: i64) -> i32;
    /// fcntl(2), F_GETLK, F_SETLK, F_SETLKW and their F_OFD_ kin.
    fcntl_lock(fd: Fd, command: i32, lock: &mut LockRange) -> ();
    /// read(2).
    read(fd: Fd, bytes: &mut [u8]) -> usize;
    /// write(2).
    write(fd: Fd, bytes: &[u8]) -> usize;
    /// pread(2).
    pread(fd: Fd, bytes: &mut [u8], offset: i64) -> usize;
    /// pwrite(2).
    pwrite(fd: Fd, bytes: &[u8], offset: i64) -> usize;
    /// readv(2).
    readv(fd: Fd, slices: &mut [IoSliceMut<'_>]) -> usize;
    /// writev(2).
    writev(fd: Fd, slices: &[IoSlice<'_>]) -> usize;
    /// preadv(2).
    preadv(fd: Fd, slices: &mut [IoSliceMut<'_>], offset: i64) -> usize;
    /// pwritev(2).
    pwritev(fd: Fd, slices: &[IoSlice<'_>], offset: i64) -> usize;
    /// preadv2(2); offset -1: the current one.
    preadv2(fd: Fd, slices: &mut [IoSliceMut<'_>], offset: i64, flags: i32) -> usize;
    /// pwritev2(2); offset -1: the current one.
    pwritev2(fd: Fd, slices: &[IoSlice<'_>], offset: i64, flags: i32) -> usize;
    /// lseek(2).
    lseek(fd: Fd, offset: i64, whence: i32) -> i64;
    /// fstat(2).
    fstat(fd: Fd) -> Stat;
    /// fstatat(2): stat, lstat and statx, by flags (AT_EMPTY_PATH, AT_SYMLINK_NOFOLLOW).
    fstatat(dirfd: Fd, path: &[u8], flags: i32) -> Stat;
    /// faccessat2(2); `mode` is R_OK and its like.
    faccessat(dirfd: Fd, path: &[u8], mode: i32, flags: i32) -> ();
    /// ftruncate(2).
    ftruncate(fd: Fd, length: i64) -> ();
    /// truncate(2).
    truncate(path: &[u8], length: i64) -> ();
    /// fsync(2).
    fsync(fd: Fd) -> ();
    /// fdatasync(2).
    fdatasync(fd: Fd) -> ();
    /// sync_file_range(2).
    sync_file_range(fd: Fd, offset: i64, length: i64, flags: u32) -> ();
    /// syncfs(2).
    syncfs(fd: Fd) -> ();
    /// fallocate(2); posix_fallocate(3) is mode 0.
    fallocate(fd: Fd, mode: i32, offset: i64, length: i64) -> ();
    /// posix_fadvise(2).
    fadvise(fd: Fd, offset: i64, length: i64, advice: i32) -> ();
    /// mkdirat(2).
    mkdirat(dirfd: Fd, path: &[u8], mode: u32) -> ();
    /// mknodat(2): regular files only.
    mknodat(dirfd: Fd, path: &[u8], mode: u32, device: u64) -> ();
    /// unlinkat(2); rmdir(2) is AT_REMOVEDIR.
    unlinkat(dirfd: Fd, path: &[u8], flags: i32) -> ();
    /// renameat2(2).
    renameat2(old_dirfd: Fd, old: &[u8], new_dirfd: Fd, new: &[u8], flags: u32) -> ();
    /// linkat(2).
    linkat(old_dirfd: Fd, old: &[u8], new_dirfd: Fd, new: &[u8], flags: i32) -> ();
    /// symlinkat(2).
    symlinkat(target: &[u8], dirfd: Fd, path: &[u8]) -> ();
    /// readlinkat(2): how many bytes were put.
    readlinkat(dirfd: Fd, path: &[u8], out: &mut [u8]) -> usize;
    /// realpath(3): the canonical path of something that exists, how many bytes.
    realpath(path: &[u8], out: &mut [u8]) -> usize;
    /// fchmod(2).
    fchmod(fd: Fd, mode: u32) -> ();
    /// fchmodat2(2).
    fchmodat(dirfd: Fd, path: &[u8], mode: u32, flags: i32) -> ();
    /// fchown(2); `u32::MAX` leaves as it is.
    fchown(fd: Fd, uid: u32, gid: u32) -> ();
    /// fchownat(2).
    fchownat(dirfd: Fd, path: &[u8], uid: u32, gid: u32, flags: i32) -> ();
    /// futimens(2): access and modification time; `None`: now.
    futimens(fd: Fd, times: Option<[Time; 2]>) -> ();
    /// utimensat(2).
    utimensat(dirfd: Fd, path: &[u8], times: Option<[Time; 2]>, flags: i32) -> ();
    /// getdents64(2): fills `out` with `struct linux_dirent64`.
    getdents64(fd: Fd, out: &mut [u8]) -> usize;
    /// chdir(2). To be called for every chdir, whatever the path.
    chdir(path: &[u8]) -> ();
    /// fchdir(2). To be called for every fchdir.
    fchdir(fd: Fd) -> ();
    /// getcwd(2): the path's bytes without a NUL; ERANGE if it does not fit with one.
    getcwd(out: &mut [u8]) -> usize;
    /// statfs(2).
    statfs(path: &[u8]) -> StatFs;
    /// fstatfs(2).
    fstatfs(fd: Fd) -> StatFs;
    /// flock(2).
    flock(fd: Fd, operation: i32) -> ();
    /// getxattr, setxattr, removexattr and their l- and -at kin: EOPNOTSUPP.
    xattr(dirfd: Fd, path: &[u8], follow: bool) -> usize;
    /// fgetxattr, fsetxattr, fremovexattr: EOPNOTSUPP.
    fxattr(fd: Fd) -> usize;
    /// listxattr and llistxattr: there are none.
    listxattr(path: &[u8], follow: bool) -> usize;
    /// flistxattr: there are none.
    flistxattr(fd: Fd) -> usize;
    /// copy_file_range(2), where either side is ours.
    copy_file_range(from: Fd, from_offset: Option<&mut i64>, to: Fd, to_offset: Option<&mut i64>, length: usize, flags: u32) -> usize;
    /// sendfile(2), where either side is ours.
    sendfile(to: Fd, from: Fd, offset: Option<&mut i64>, length: usize) -> usize;
    /// splice(2), vmsplice(2), tee(2): EINVAL.
    splice(from: Fd, to: Fd) -> usize;
    /// ioctl(2): ENOTTY, but for those that concern the descriptor, which the kernel does.
    ioctl(fd: Fd, request: u64) -> i32;
    /// Whether a file may be mapped: shared mappings get ENODEV, counted.
    mmap(fd: Fd, shared: bool, write: bool) -> ();
    /// Fills anonymous memory that stands in for a private mapping from `offset` on;
    /// how many bytes the file had (the rest is left as it is).
    mmap_private_fill(fd: Fd, offset: u64, bytes: &mut [u8]) -> usize;
    /// A descriptor of the kernel with a copy of the file (a memfd), for execve, dlopen.
    materialize(fd: Fd) -> Fd;
    /// As `materialize`, by path.
    materialize_at(dirfd: Fd, path: &[u8], flags: i32) -> Fd;
    /// inotify_add_watch, fanotify_mark, name_to_handle_at, bind of a Unix socket,
    /// acct, swapon, mount, chroot and so on: refused and counted as `name`.
    refuse_path(dirfd: Fd, path: &[u8], name: &'static str) -> ();
}

impl Process {
    /// Whether the descriptor is a file of weir's.
    #[inline]
    pub fn is_ours(&self, fd: Fd) -> bool {
        let _ = fd;
        false
    }

    /// Whether the descriptor is one that weir uses itself.
    #[inline]
    pub fn is_internal_fd(&self, fd: Fd) -> bool {
        crate::internal::is_internal(fd)
    }

    /// Before fork(2), vfork(2), clone(2) of a process, posix_spawn(3): makes the
    /// descriptors ready to be shared, and takes this crate's locks.
    pub fn before_fork(&self) {}

    /// After that, in the parent, also when it failed.
    pub fn after_fork_parent(&self) {}

    /// After that, in a child that has memory of its own (not of vfork).
    pub fn after_fork_child(&self) {}

    /// Before execve(2): makes the descriptors that will survive it ready.
    pub fn before_exec(&self) {}

    /// umask(2) was called with `mask`.
    pub fn umask_changed(&self, mask: u32) {
        let _ = mask;
    }

    /// setuid(2) or one of its kin was called.
    pub fn credentials_changed(&self) {}

    /// Initialises, if that has not happened yet: adopts what was inherited over exec.
    pub fn init(&self) {}
}
