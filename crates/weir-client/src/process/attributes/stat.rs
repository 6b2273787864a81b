//! Looking at attributes: stat, access, statfs.
//!
//! Everything is read from shared memory, except the state of the whole file system, which the
//! server tells. The size and the modification time of a file that is being written are those of
//! the writers' cells.

use core::sync::atomic::Ordering;

use rustix::io::Errno;
use weir_core::names::{Attr, FileType};
use weir_core::node::block::FileBlock;
use weir_core::node::region::Hub;
use weir_core::proto::Statfs;
use weir_core::types::Ino;

use super::super::inodes::check_not_gone;
use super::super::inodes::InodeOperations;
use super::super::outcome::{done, ours};
use super::super::paths::ResolvedFile;
use super::super::table::Handle;
use super::super::{outside, Outcome};
use super::{AttributeCalls, EMPTY_PATH, NOFOLLOW};
use crate::errno::of_open;
use crate::kernel::{Fd, AT_FDCWD};
use crate::node::Node;
use crate::operation;
use crate::path::Credentials;
use crate::types::{Stat, StatFs, Time};

/// The preferred unit of I/O. Python and cp use it as the size of their buffers: at 64 KiB a call
/// costs little beside its bytes, and the buffer of each open file stays below the size that malloc
/// maps (and unmaps) anew each time. C's stdio never uses more than 8 KiB.
const BLKSIZE: u32 = 64 << 10;
/// "WEIR". A number of its own: MPI-IO (ROMIO, OMPIO) treats an unknown number as a plain Unix file
/// system, which is right. It would treat tmpfs's number likewise, but coreutils then believes that
/// inotify works (tail -f); for an unknown number it polls.
const KIND: u32 = 0x5745_4952;
/// AT_EACCESS.
const EACCESS: i32 = 0x200;

impl AttributeCalls {
    /// fstat(2).
    #[inline]
    pub fn fstat(&self, fd: Fd) -> Outcome<Stat> {
        let handle = self.descriptors.handle(fd)?;
        Some(self.stat_of_open(handle))
    }

    /// fstatat(2): stat, lstat and statx, by flags (AT_EMPTY_PATH, AT_SYMLINK_NOFOLLOW).
    pub fn fstatat(&self, dirfd: Fd, path: &[u8], flags: i32) -> Outcome<Stat> {
        const NO_AUTOMOUNT: i32 = 0x800;
        let _call = operation::begin();
        let known = NOFOLLOW | EMPTY_PATH | NO_AUTOMOUNT;
        done!(self.check_flags(dirfd, path, flags, known)?);
        let (follow, empty) = (flags & NOFOLLOW == 0, flags & EMPTY_PATH != 0);
        self.paths
            .with_existing(dirfd, path, follow, empty, |found| match found {
                ResolvedFile::Outside(path) => {
                    let stat = outside::stat(&path, follow)?;
                    let nlink = self.inodes.names_left(&stat)?;
                    Ok(Stat { nlink, ..stat })
                }
                ResolvedFile::Inode(ino, _) if path.is_empty() => of_open(self.inodes.stat_of(ino)),
                ResolvedFile::Inode(ino, _) => self.inodes.stat_of(ino),
            })
    }

    /// The current attributes of an open file.
    pub(in super::super) fn stat_of_open(&self, handle: &Handle) -> Result<Stat, Errno> {
        of_open(self.inodes.stat_of(handle.ino()))
    }

    /// faccessat2(2); `mode` is R_OK and its like.
    pub fn faccessat(&self, dirfd: Fd, path: &[u8], mode: i32, flags: i32) -> Outcome<()> {
        let _call = operation::begin();
        let known = NOFOLLOW | EMPTY_PATH | EACCESS;
        done!(self.check_flags(dirfd, path, flags, known)?);
        let (follow, empty) = (flags & NOFOLLOW == 0, flags & EMPTY_PATH != 0);
        self.paths
            .with_existing(dirfd, path, follow, empty, |found| {
                let ino = match found {
                    ResolvedFile::Outside(path) => return outside::access(&path, mode, flags),
                    ResolvedFile::Inode(ino, _) => ino,
                };
                let Ok(want @ 0..=7) = u32::try_from(mode) else {
                    return Err(Errno::INVAL);
                };
                let attr = self.inodes.attr(ino)?;
                let allowed = if flags & EACCESS != 0 {
                    self.user.credentials().may(&attr, want)
                } else {
                    real_credentials(self.user.credentials()).may(&attr, want)
                };
                allowed.then_some(()).ok_or(Errno::ACCESS)
            })
    }

    /// statfs(2).
    pub fn statfs(&self, path: &[u8]) -> Outcome<StatFs> {
        Some(
            match ours!(self.paths.resolve_existing(AT_FDCWD, path, true, false)) {
                ResolvedFile::Outside(path) => outside::statfs(&path),
                ResolvedFile::Inode(..) => self.inodes.state_of_all(),
            },
        )
    }

    /// fstatfs(2).
    pub fn fstatfs(&self, fd: Fd) -> Outcome<StatFs> {
        self.descriptors.handle(fd)?;
        Some(self.inodes.state_of_all())
    }
}

impl InodeOperations {
    /// The attributes of an inode as of now; ENOENT: it is gone.
    pub(in super::super) fn stat_of(self, ino: Ino) -> Result<Stat, Errno> {
        check_not_gone(ino)?;
        let node = self.server.node()?;
        self.view()?.at_once(ino, |attr, block| {
            let mut stat = stat_from(attr, node.hub());
            if let Some(block) = block {
                add_writers(&mut stat, attr, block, node);
            }
            stat
        })
    }

    pub(in super::super) fn state_of_all(self) -> Result<StatFs, Errno> {
        const UNIT: u32 = 4096;
        let state = self.server.session()?.call(Statfs {})?;
        Ok(StatFs {
            kind: KIND,
            bsize: UNIT,
            blocks: state.capacity_bytes / u64::from(UNIT),
            bfree: state.free_bytes / u64::from(UNIT),
            files: state.inodes,
            ffree: state.free_inodes,
            fsid: device(self.server.node()?.hub()),
            namelen: 255,
        })
    }
}

/// The credentials for access(2): the real user, not the effective one.
fn real_credentials(effective: &Credentials) -> Credentials {
    let mut who = effective.clone();
    who.uid = rustix::process::getuid().as_raw();
    who.gid = rustix::process::getgid().as_raw();
    who
}

fn stat_from(attr: &Attr, hub: &Hub) -> Stat {
    Stat {
        dev: device(hub),
        mount: Some(mount(hub)),
        ino: attr.home.0,
        mode: attr.mode,
        nlink: attr.nlink,
        uid: attr.uid,
        gid: attr.gid,
        size: match attr.file_type() {
            FileType::Dir => 4096,
            _ => attr.size,
        },
        blksize: BLKSIZE,
        blocks: match attr.evicted {
            // As if it had its bytes: programs take one with none for a hole.
            true => attr.size.div_ceil(512),
            false => attr.allocated.div_ceil(512),
        },
        atime: Time::from_epoch_ns(attr.atime_ns),
        mtime: Time::from_epoch_ns(attr.mtime_ns),
        ctime: Time::from_epoch_ns(attr.ctime_ns),
        btime: Some(Time::from_epoch_ns(attr.btime_ns)),
    }
}

/// A device number that no device has (major 0x57e), different for each instance that a process
/// could meet.
fn device(hub: &Hub) -> u64 {
    let incarnation = hub.incarnation.load(Ordering::Relaxed);
    let minor = (incarnation ^ (incarnation >> 20) ^ (incarnation >> 40)) & 0xf_ffff;
    // As the kernel packs them: 8 bits of the minor below the major.
    ((minor & 0xfff00) << 12) | (0x57e << 8) | (minor & 0xff)
}

/// A mount number that no mount of the kernel's has, different for each instance.
fn mount(hub: &Hub) -> u64 {
    (1 << 63) | device(hub)
}

/// Adds the writes to the file that the server has not heard of yet.
fn add_writers(stat: &mut Stat, attr: &Attr, block: &FileBlock, node: &Node) {
    let size = block.size(node.cells());
    let (mtime, unpublished) = writers(block, node);
    stat.size = size;
    // The server may have heard of some of it: at least this much is stored.
    stat.blocks = attr.allocated.max(unpublished.min(size)).div_ceil(512);
    // 0: not written since the writers attached.
    if mtime != 0 && mtime > attr.mtime_ns {
        stat.mtime = Time::from_epoch_ns(mtime);
        stat.ctime = stat.ctime.max(stat.mtime);
    }
}

/// The time of the last write through the cells, and the number of bytes that their records hold.
fn writers(block: &FileBlock, node: &Node) -> (i64, u64) {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::RealtimeCoarse);
    let now = now.tv_sec.saturating_mul(1_000_000_000) + now.tv_nsec;
    let (mut mtime, mut bytes) = (0, 0u64);
    for (_, cell) in block.cells(node.cells()) {
        mtime = cell.mtime(now.unsigned_abs()).max(mtime);
        let (state, live) = cell.state();
        let whole = state.count.saturating_mul(state.length);
        bytes = bytes.saturating_add(whole).saturating_add(live);
    }
    (i64::try_from(mtime).unwrap_or(i64::MAX), bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_before_1970_keep_their_nanoseconds_positive() {
        assert_eq!(
            Time::from_epoch_ns(1_500_000_000),
            Time {
                sec: 1,
                nsec: 500_000_000
            }
        );
        assert_eq!(
            Time::from_epoch_ns(-1),
            Time {
                sec: -1,
                nsec: 999_999_999
            }
        );
    }
}
