//! Paths that begin in weir and lead out of it, by `..` or by a link: the kernel does the call, at
//! the path they lead to.

use rustix::fs::{Access, AtFlags, Mode, OFlags, CWD};
use rustix::io::Errno;

use crate::kernel::{self, Fd};
use crate::types::{Stat, StatFs, Time};

/// open(2).
pub fn open(path: &[u8], flags: i32, mode: u32) -> Result<Fd, Errno> {
    let flags = OFlags::from_bits_retain(flags.cast_unsigned());
    let mode = Mode::from_bits_truncate(mode);
    Ok(kernel::into_number(rustix::fs::open(path, flags, mode)?))
}

fn at_flags(follow: bool) -> AtFlags {
    if follow {
        AtFlags::empty()
    } else {
        AtFlags::SYMLINK_NOFOLLOW
    }
}

/// stat(2) or lstat(2).
#[allow(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    clippy::cast_possible_wrap
)] // as the kernel has them
#[allow(clippy::unnecessary_cast)] // other widths on aarch64
pub fn stat(path: &[u8], follow: bool) -> Result<Stat, Errno> {
    let s = rustix::fs::statat(CWD, path, at_flags(follow))?;
    let time = |sec, nsec| Time { sec, nsec };
    Ok(Stat {
        dev: s.st_dev,
        mount: None,
        ino: s.st_ino,
        mode: s.st_mode,
        nlink: s.st_nlink as u32,
        uid: s.st_uid,
        gid: s.st_gid,
        size: s.st_size as u64,
        blksize: s.st_blksize as u32,
        blocks: s.st_blocks as u64,
        atime: time(s.st_atime as i64, s.st_atime_nsec as i64),
        mtime: time(s.st_mtime as i64, s.st_mtime_nsec as i64),
        ctime: time(s.st_ctime as i64, s.st_ctime_nsec as i64),
        btime: None,
    })
}

/// access(2).
pub fn access(path: &[u8], mode: i32, _flags: i32) -> Result<(), Errno> {
    let access = Access::from_bits(mode.cast_unsigned()).ok_or(Errno::INVAL)?;
    rustix::fs::access(path, access)
}

/// statfs(2).
#[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)] // as the kernel has them
pub fn statfs(path: &[u8]) -> Result<StatFs, Errno> {
    let s = rustix::fs::statfs(path)?;
    Ok(StatFs {
        kind: s.f_type as u32,
        bsize: s.f_bsize as u32,
        blocks: s.f_blocks,
        bfree: s.f_bavail,
        files: s.f_files,
        ffree: s.f_ffree,
        fsid: 0,
        namelen: s.f_namelen as u32,
    })
}
