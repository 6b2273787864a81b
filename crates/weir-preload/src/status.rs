//! Calls that fill a structure with the status of a file or file system: stat, statx, statfs, statvfs,
//! pathconf.

use core::ffi::{c_char, c_int, c_long, c_uint};
use core::mem::MaybeUninit;

use rustix::io::Errno;
use weir_client::types::{Outcome, Stat, StatFs};

use crate::bytes_of;
use crate::next::interpose;

const HERE: c_int = libc::AT_FDCWD;
const NOFOLLOW: c_int = libc::AT_SYMLINK_NOFOLLOW;
const EMPTY: c_int = libc::AT_EMPTY_PATH;

/// Fills a caller's structure.
///
/// # Safety
///
/// `into` is no address of the program, or has room for a structure that no other code uses meanwhile.
unsafe fn give<T, F>(outcome: Outcome<F>, into: *mut T, convert: fn(&F) -> T) -> Outcome<()> {
    outcome.map(|result| {
        let value = result?;
        if !crate::is_address(into) {
            return Err(Errno::FAULT);
        }
        // SAFETY: the address can be the program's, so it has room for a structure, by the caller.
        unsafe { into.write(convert(&value)) };
        Ok(())
    })
}

/// The status as a `struct stat`.
#[allow(clippy::cast_lossless)] // other widths on aarch64
fn stat_of(s: &Stat) -> libc::stat {
    // SAFETY: a structure of numbers.
    let mut c: libc::stat = unsafe { core::mem::zeroed() };
    c.st_dev = s.dev;
    c.st_ino = s.ino;
    c.st_mode = s.mode;
    c.st_nlink = s.nlink.into();
    c.st_uid = s.uid;
    c.st_gid = s.gid;
    c.st_size = s.size as i64;
    c.st_blksize = s.blksize as libc::blksize_t;
    c.st_blocks = s.blocks as i64;
    (c.st_atime, c.st_atime_nsec) = (s.atime.sec, s.atime.nsec);
    (c.st_mtime, c.st_mtime_nsec) = (s.mtime.sec, s.mtime.nsec);
    (c.st_ctime, c.st_ctime_nsec) = (s.ctime.sec, s.ctime.nsec);
    c
}

/// The status as a `struct statx`.
#[allow(clippy::cast_possible_truncation)] // nanoseconds below 10^9; the mode's upper bits are 0
fn statx_of(s: &Stat) -> libc::statx {
    // SAFETY: a structure of numbers.
    let mut c: libc::statx = unsafe { core::mem::zeroed() };
    c.stx_mask = libc::STATX_BASIC_STATS;
    if let Some(mount) = s.mount {
        c.stx_mask |= STATX_MNT_ID;
        c.stx_mnt_id = mount;
    }
    c.stx_blksize = s.blksize;
    c.stx_nlink = s.nlink;
    c.stx_uid = s.uid;
    c.stx_gid = s.gid;
    c.stx_mode = s.mode as u16;
    c.stx_ino = s.ino;
    c.stx_size = s.size;
    c.stx_blocks = s.blocks;
    c.stx_dev_major = libc::major(s.dev);
    c.stx_dev_minor = libc::minor(s.dev);
    if s.btime.is_some() {
        c.stx_mask |= libc::STATX_BTIME;
    }
    for (to, from) in [
        (&mut c.stx_btime, &s.btime.unwrap_or_default()),
        (&mut c.stx_atime, &s.atime),
        (&mut c.stx_mtime, &s.mtime),
        (&mut c.stx_ctime, &s.ctime),
    ] {
        to.tv_sec = from.sec;
        to.tv_nsec = u32::try_from(from.nsec).unwrap_or(0);
    }
    c
}

fn statfs_of(s: &StatFs) -> libc::statfs {
    // SAFETY: a structure of numbers.
    let mut c: libc::statfs = unsafe { core::mem::zeroed() };
    c.f_type = s.kind.into();
    c.f_bsize = s.bsize.into();
    c.f_frsize = s.bsize.into();
    c.f_blocks = s.blocks;
    c.f_bfree = s.bfree;
    c.f_bavail = s.bfree;
    c.f_files = s.files;
    c.f_ffree = s.ffree;
    c.f_namelen = s.namelen.into();
    c
}

fn statvfs_of(s: &StatFs) -> libc::statvfs {
    // SAFETY: a structure of numbers.
    let mut c: libc::statvfs = unsafe { core::mem::zeroed() };
    c.f_bsize = s.bsize.into();
    c.f_frsize = s.bsize.into();
    c.f_blocks = s.blocks;
    c.f_bfree = s.bfree;
    c.f_bavail = s.bfree;
    c.f_files = s.files;
    c.f_ffree = s.ffree;
    c.f_favail = s.ffree;
    c.f_fsid = s.fsid;
    c.f_namemax = s.namelen.into();
    c
}

/// The bytes of a string that the caller of the C function passes, if there is one.
macro_rules! path {
    ($p:expr) => {
        // SAFETY: the string is null, no address of the program, or a C string through the call, by the caller.
        unsafe { bytes_of($p) }
    };
}

/// `fstatat` with a path, which with AT_EMPTY_PATH may be null.
///
/// # Safety
///
/// `path` is no address of the program's, or a C string.
unsafe fn at(
    p: &'static weir_client::process::Process,
    fd: c_int,
    path: *const c_char,
    flags: c_int,
) -> Outcome<Stat> {
    let path = if path.is_null() && flags & EMPTY != 0 {
        Some(&b""[..])
    } else {
        path!(path)
    };
    path.and_then(|path| p.attributes.fstatat(fd, path, flags))
}

/// `statx(2)`: `at` with statx's flags and a mask; all fields are filled in any case.
///
/// # Safety
///
/// See `at`.
unsafe fn statx_at(
    p: &'static weir_client::process::Process,
    fd: c_int,
    path: *const c_char,
    flags: c_int,
    mask: c_uint,
) -> Outcome<Stat> {
    // SAFETY: `path` is no address of the program or a C string, by the caller.
    let found = unsafe { at(p, fd, path, flags & !SYNC_TYPE) }?;
    if flags & SYNC_TYPE == SYNC_TYPE || mask & STATX_RESERVED != 0 {
        return Some(Err(Errno::INVAL));
    }
    Some(found)
}

/// AT_STATX_SYNC_TYPE: how fresh the status is to be; weir's is always current.
const SYNC_TYPE: c_int = 0x6000;
/// STATX__RESERVED.
const STATX_RESERVED: c_uint = 0x8000_0000;
/// Linux 5.8.
const STATX_MNT_ID: c_uint = 0x1000;

interpose! {
    [fstat fstat64] (fd: c_int, into: *mut libc::stat) -> c_int: libc::SYS_fstat, [fd, into]
        // SAFETY: the caller owes `into`: room for one structure that only this call writes to.
        => |p| unsafe { give(p.attributes.fstat(fd), into, stat_of) };
    [stat stat64] (path: *const c_char, into: *mut libc::stat) -> c_int: libc::SYS_newfstatat, [HERE, path, into, 0]
        // SAFETY: the caller owes `path`, a C string, and `into`, room for one structure that only this call writes to.
        => |p| unsafe { give(at(p, HERE, path, 0), into, stat_of) };
    [lstat lstat64] (path: *const c_char, into: *mut libc::stat) -> c_int: libc::SYS_newfstatat, [HERE, path, into, NOFOLLOW]
        // SAFETY: the caller owes `path`, a C string, and `into`, room for one structure that only this call writes to.
        => |p| unsafe { give(at(p, HERE, path, NOFOLLOW), into, stat_of) };
    [fstatat fstatat64] (fd: c_int, path: *const c_char, into: *mut libc::stat, flags: c_int) -> c_int: libc::SYS_newfstatat, [fd, path, into, flags]
        // SAFETY: the caller owes `path`, a C string, and `into`, room for one structure that only this call writes to.
        => |p| unsafe { give(at(p, fd, path, flags), into, stat_of) };
    [__fxstat __fxstat64] (_version: c_int, fd: c_int, into: *mut libc::stat) -> c_int: libc::SYS_fstat, [fd, into]
        // SAFETY: the caller owes `into`: room for one structure that only this call writes to.
        => |p| unsafe { give(p.attributes.fstat(fd), into, stat_of) };
    [__xstat __xstat64] (_version: c_int, path: *const c_char, into: *mut libc::stat) -> c_int: libc::SYS_newfstatat, [HERE, path, into, 0]
        // SAFETY: the caller owes `path`, a C string, and `into`, room for one structure that only this call writes to.
        => |p| unsafe { give(at(p, HERE, path, 0), into, stat_of) };
    [__lxstat __lxstat64] (_version: c_int, path: *const c_char, into: *mut libc::stat) -> c_int: libc::SYS_newfstatat, [HERE, path, into, NOFOLLOW]
        // SAFETY: the caller owes `path`, a C string, and `into`, room for one structure that only this call writes to.
        => |p| unsafe { give(at(p, HERE, path, NOFOLLOW), into, stat_of) };
    [__fxstatat __fxstatat64] (_version: c_int, fd: c_int, path: *const c_char, into: *mut libc::stat, flags: c_int) -> c_int: libc::SYS_newfstatat, [fd, path, into, flags]
        // SAFETY: the caller owes `path`, a C string, and `into`, room for one structure that only this call writes to.
        => |p| unsafe { give(at(p, fd, path, flags), into, stat_of) };
    [statx] (fd: c_int, path: *const c_char, flags: c_int, mask: c_uint, into: *mut libc::statx) -> c_int: libc::SYS_statx, [fd, path, flags, mask, into]
        // SAFETY: the caller owes `path`, a C string, and `into`, room for one structure that only this call writes to.
        => |p| unsafe { give(statx_at(p, fd, path, flags, mask), into, statx_of) };
    [statfs statfs64] (path: *const c_char, into: *mut libc::statfs) -> c_int: libc::SYS_statfs, [path, into]
        // SAFETY: the caller owes `into`: room for one structure that only this call writes to.
        => |p| { let found = path!(path).and_then(|path| p.attributes.statfs(path)); unsafe { give(found, into, statfs_of) } };
    [fstatfs fstatfs64] (fd: c_int, into: *mut libc::statfs) -> c_int: libc::SYS_fstatfs, [fd, into]
        // SAFETY: the caller owes `into`: room for one structure that only this call writes to.
        => |p| unsafe { give(p.attributes.fstatfs(fd), into, statfs_of) };
}

/// The status of an open file; `None`, with errno set, if the call fails.
pub(crate) fn stat_descriptor(fd: c_int) -> Option<libc::stat> {
    let mut found = MaybeUninit::uninit();
    // SAFETY: `found` has room for one structure; a call that succeeds has filled it.
    unsafe { (fstat(fd, found.as_mut_ptr()) == 0).then(|| found.assume_init()) }
}

/// [`stat`] or [`lstat`].
pub(crate) type StatusFn = unsafe extern "C-unwind" fn(*const c_char, *mut libc::stat) -> c_int;

/// The status of the file that a path names; `None`, with errno set, if the call fails.
///
/// # Safety
///
/// `path` is null or a C string; `by` is [`stat`] or [`lstat`].
pub(crate) unsafe fn stat_path(path: *const c_char, by: StatusFn) -> Option<libc::stat> {
    let mut found = MaybeUninit::uninit();
    // SAFETY: `path` is null or a C string, by the caller, and `found` has room for one structure; a call that
    // succeeds has filled it.
    unsafe { (by(path, found.as_mut_ptr()) == 0).then(|| found.assume_init()) }
}

pub use others::resolve_all as resolve_others;

mod others {
    use super::{c_char, c_int, c_long};

    crate::next::next_fn! {
        statvfs: fn(*const c_char, *mut libc::statvfs) -> c_int;
        statvfs64: fn(*const c_char, *mut libc::statvfs) -> c_int;
        fstatvfs: fn(c_int, *mut libc::statvfs) -> c_int;
        fstatvfs64: fn(c_int, *mut libc::statvfs) -> c_int;
        pathconf: fn(*const c_char, c_int) -> c_long;
        fpathconf: fn(c_int, c_int) -> c_long;
    }
}

macro_rules! by_path_or_descriptor {
    ($($path_fn:ident $fd_fn:ident)*) => {$(
        /// `statvfs(3)`.
        ///
        /// # Safety
        ///
        /// The caller meets the requirements of the C function of this name.
        #[no_mangle]
        pub unsafe extern "C" fn $path_fn(path: *const c_char, into: *mut libc::statvfs) -> c_int {
            crate::guarded(|| {
                let p = weir_client::process::process();
                // SAFETY: `path` is null or a C string, and `into` has room for a structure, by the
                // caller.
                unsafe {
                    match give(bytes_of(path).and_then(|path| p.attributes.statfs(path)), into, statvfs_of) {
                        Some(result) => crate::finish(result),
                        None => others::$path_fn().map_or(-1, |f| f(path, into)),
                    }
                }
            })
        }

        /// `fstatvfs(3)`.
        ///
        /// # Safety
        ///
        /// The caller meets the requirements of the C function of this name.
        #[no_mangle]
        pub unsafe extern "C" fn $fd_fn(fd: c_int, into: *mut libc::statvfs) -> c_int {
            crate::guarded(|| {
                let p = weir_client::process::process();
                // SAFETY: `into` has room for a structure, by the caller.
                unsafe {
                    match give(p.attributes.fstatfs(fd), into, statvfs_of) {
                        Some(result) => crate::finish(result),
                        None => others::$fd_fn().map_or(-1, |f| f(fd, into)),
                    }
                }
            })
        }
    )*};
}
by_path_or_descriptor! { statvfs fstatvfs statvfs64 fstatvfs64 }

/// The greatest number of a limit (_PC_2_SYMLINKS).
const LAST_LIMIT: c_int = libc::_PC_2_SYMLINKS;

/// A limit of our file system, as pathconf(3) names it; -1: there is no limit, or no such name.
fn limit(name: c_int) -> c_long {
    match name {
        // The last two as libc answers for any file.
        libc::_PC_NAME_MAX | libc::_PC_MAX_CANON | libc::_PC_MAX_INPUT => 255,
        libc::_PC_LINK_MAX => c_long::from(u16::MAX),
        libc::_PC_FILESIZEBITS => 64,
        libc::_PC_NO_TRUNC | libc::_PC_CHOWN_RESTRICTED | libc::_PC_2_SYMLINKS => 1,
        libc::_PC_PATH_MAX
        | libc::_PC_PIPE_BUF
        | libc::_PC_REC_MIN_XFER_SIZE
        | libc::_PC_REC_INCR_XFER_SIZE
        | libc::_PC_REC_XFER_ALIGN
        | libc::_PC_ALLOC_SIZE_MIN => 4096,
        libc::_PC_VDISABLE => 0,
        libc::_PC_SYMLINK_MAX => 4095,
        // No limit, or a feature that we do not have: errno stays unchanged.
        other if (0..=LAST_LIMIT).contains(&other) => -1,
        _ => {
            crate::raw::set_errno(Errno::INVAL);
            -1
        }
    }
}

/// `pathconf(3)`.
///
/// # Safety
///
/// The caller meets the requirements of the C function of this name.
#[no_mangle]
pub unsafe extern "C" fn pathconf(path: *const c_char, name: c_int) -> c_long {
    crate::guarded(|| {
        // SAFETY: `path` is null or a C string, by the caller.
        unsafe {
            if crate::is_our_c_path(HERE, path) {
                // A file that does not exist has no limits.
                match at(weir_client::process::process(), HERE, path, 0) {
                    Some(Err(errno)) => {
                        crate::raw::set_errno(errno);
                        -1
                    }
                    _ => limit(name),
                }
            } else {
                others::pathconf().map_or(-1, |f| f(path, name))
            }
        }
    })
}

/// `fpathconf(3)`.
///
/// # Safety
///
/// None.
#[no_mangle]
pub unsafe extern "C" fn fpathconf(fd: c_int, name: c_int) -> c_long {
    crate::guarded(|| {
        if crate::is_ours(fd) {
            return limit(name);
        }
        // SAFETY: numbers.
        unsafe { others::fpathconf().map_or(-1, |f| f(fd, name)) }
    })
}
