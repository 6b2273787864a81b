//! Setting attributes: modes, owners, times.

use rustix::fs::{AtFlags, Mode, Timespec, Timestamps, CWD};
use rustix::io::Errno;
use weir_core::proto::SetAttr;
use weir_core::types::Ino;

use super::super::inodes::InodeOperations;
use super::super::outcome::done;
use super::super::paths::ResolvedFile;
use super::super::table::PATH;
use super::super::Outcome;
use super::{AttributeCalls, EMPTY_PATH, NOFOLLOW};
use crate::kernel::Fd;
use crate::limits;
use crate::operation;
use crate::path::access;
use crate::types::{Time, UTIME_NOW, UTIME_OMIT};

const S_ISGID: u32 = 0o2000;

impl AttributeCalls {
    /// The inode of a descriptor that is not O_PATH.
    fn changeable(&self, fd: Fd) -> Outcome<Ino> {
        let handle = self.descriptors.verified_handle(fd)?;
        Some(if handle.has(PATH) {
            Err(Errno::BADF)
        } else {
            Ok(handle.ino())
        })
    }

    /// fchmod(2).
    pub fn fchmod(&self, fd: Fd, mode: u32) -> Outcome<()> {
        let _call = operation::begin();
        Some(
            self.changeable(fd)?
                .and_then(|ino| self.inodes.change_mode(ino, mode)),
        )
    }

    /// fchmodat2(2).
    pub fn fchmodat(&self, dirfd: Fd, path: &[u8], mode: u32, flags: i32) -> Outcome<()> {
        let _call = operation::begin();
        done!(self.check_flags(dirfd, path, flags, NOFOLLOW | EMPTY_PATH)?);
        let (follow, empty) = (flags & NOFOLLOW == 0, flags & EMPTY_PATH != 0);
        self.paths
            .with_existing(dirfd, path, follow, empty, |found| match found {
                ResolvedFile::Outside(path) => {
                    let mode = Mode::from_bits_truncate(mode);
                    rustix::fs::chmodat(CWD, path, mode, AtFlags::empty())
                }
                // As on Linux: a link has no mode that could be changed.
                ResolvedFile::Inode(_, weir_core::names::FileType::Symlink) => {
                    Err(Errno::OPNOTSUPP)
                }
                ResolvedFile::Inode(ino, _) => self.inodes.change_mode(ino, mode),
            })
    }

    /// fchown(2); `u32::MAX` leaves as it is.
    pub fn fchown(&self, fd: Fd, uid: u32, gid: u32) -> Outcome<()> {
        let _call = operation::begin();
        let ino = self.changeable(fd)?;
        Some(ino.and_then(|ino| self.inodes.change_owner(ino, uid, gid)))
    }

    /// fchownat(2).
    pub fn fchownat(&self, dirfd: Fd, path: &[u8], uid: u32, gid: u32, flags: i32) -> Outcome<()> {
        let _call = operation::begin();
        done!(self.check_flags(dirfd, path, flags, NOFOLLOW | EMPTY_PATH)?);
        let (follow, empty) = (flags & NOFOLLOW == 0, flags & EMPTY_PATH != 0);
        self.paths
            .with_existing(dirfd, path, follow, empty, |found| match found {
                ResolvedFile::Outside(path) => {
                    let uid = given(uid).map(rustix::fs::Uid::from_raw);
                    let gid = given(gid).map(rustix::fs::Gid::from_raw);
                    let at = if follow {
                        AtFlags::empty()
                    } else {
                        AtFlags::SYMLINK_NOFOLLOW
                    };
                    rustix::fs::chownat(CWD, path, uid, gid, at)
                }
                ResolvedFile::Inode(ino, _) => self.inodes.change_owner(ino, uid, gid),
            })
    }

    /// futimens(2): access and modification time; `None`: now.
    pub fn futimens(&self, fd: Fd, times: Option<[Time; 2]>) -> Outcome<()> {
        let _call = operation::begin();
        let ino = self.changeable(fd)?;
        Some(ino.and_then(|ino| self.inodes.change_times(ino, times)))
    }

    /// utimensat(2).
    pub fn utimensat(
        &self,
        dirfd: Fd,
        path: &[u8],
        times: Option<[Time; 2]>,
        flags: i32,
    ) -> Outcome<()> {
        let _call = operation::begin();
        let omits = |time: &Time| time.nsec == UTIME_OMIT;
        if times.is_some_and(|times| times.iter().all(omits)) {
            // There is nothing to do, and Linux does not look at the path.
            return self.paths.is_our_path(dirfd, path).then_some(Ok(()));
        }
        done!(self.check_flags(dirfd, path, flags, NOFOLLOW | EMPTY_PATH)?);
        let (follow, empty) = (flags & NOFOLLOW == 0, flags & EMPTY_PATH != 0);
        self.paths
            .with_existing(dirfd, path, follow, empty, |found| match found {
                ResolvedFile::Outside(path) => set_outside(&path, times, follow),
                ResolvedFile::Inode(ino, _) => self.inodes.change_times(ino, times),
            })
    }
}

impl InodeOperations {
    fn change_mode(self, ino: Ino, mode: u32) -> Result<(), Errno> {
        self.check_owner(ino)?;
        let mode = match mode & S_ISGID {
            0 => mode & 0o7777,
            _ => limits::mode_of_chmod(&self.attr(ino)?, self.user.credentials(), mode),
        };
        self.server.session()?.call(SetAttr {
            mode: Some(mode),
            ..SetAttr::nothing(ino)
        })
    }

    /// Clears the set-id bits of a file whose contents this process changes other than by a write.
    pub(in super::super) fn clear_set_ids(self, ino: Ino) -> Result<(), Errno> {
        if self.user.credentials().uid == 0 {
            return Ok(());
        }
        let mode = limits::mode_after_write(&self.attr(ino)?);
        if mode.is_none() {
            return Ok(());
        }
        self.server.session()?.call(SetAttr {
            mode,
            ..SetAttr::nothing(ino)
        })
    }

    /// Only its owner, or root, may change a file's attributes.
    pub(in super::super) fn check_owner(self, ino: Ino) -> Result<(), Errno> {
        let uid = self.user.credentials().uid;
        if uid == 0 || self.attr(ino)?.uid == uid {
            return Ok(());
        }
        Err(Errno::PERM)
    }

    fn change_owner(self, ino: Ino, uid: u32, gid: u32) -> Result<(), Errno> {
        let (uid, gid) = (given(uid), given(gid));
        let who = self.user.credentials();
        let attr = self.attr(ino)?;
        let allowed = who.uid == 0
            || (attr.uid == who.uid
                && uid.is_none_or(|uid| uid == attr.uid)
                && gid.is_none_or(|gid| gid == attr.gid || who.is_in_group(gid)));
        if !allowed {
            return Err(Errno::PERM);
        }
        self.change_below(ino, |dir| {
            let uid = uid.map(rustix::fs::Uid::from_raw);
            let gid = gid.map(rustix::fs::Gid::from_raw);
            rustix::fs::chownat(CWD, dir, uid, gid, AtFlags::empty())
        })?;
        self.server.session()?.call(SetAttr {
            mode: limits::mode_after_chown(&attr, who),
            uid,
            gid,
            ..SetAttr::nothing(ino)
        })
    }

    fn change_times(self, ino: Ino, times: Option<[Time; 2]>) -> Result<(), Errno> {
        let now = Time {
            sec: 0,
            nsec: UTIME_NOW,
        };
        let [atime, mtime] = times.unwrap_or([now; 2]);
        // To now they may be set by all users that may write.
        let are_now = [atime, mtime].iter().all(|time| time.nsec == UTIME_NOW);
        match self.check_owner(ino) {
            Err(Errno::PERM) if are_now => {
                let attr = self.attr(ino)?;
                if !self.user.credentials().may(&attr, access::WRITE) {
                    return Err(Errno::ACCESS);
                }
            }
            checked => checked?,
        }
        let (atime_ns, mtime_ns) = (nanoseconds(atime)?, nanoseconds(mtime)?);
        if atime_ns.is_none() && mtime_ns.is_none() {
            return Ok(());
        }
        self.change_below(ino, |dir| set_outside(dir, Some([atime, mtime]), true))?;
        self.server.session()?.call(SetAttr {
            atime_ns,
            mtime_ns,
            ..SetAttr::nothing(ino)
        })
    }
}

impl InodeOperations {
    /// Changes the directory of the PFS that a directory covers, if it covers one and that is there.
    fn change_below(
        self,
        ino: Ino,
        change: impl FnOnce(&[u8]) -> Result<(), Errno>,
    ) -> Result<(), Errno> {
        match self.directory_below(ino)?.as_deref().map(change) {
            None | Some(Err(Errno::NOENT)) => Ok(()),
            Some(changed) => changed,
        }
    }
}

/// An owner or group to set; `None`: leave it.
fn given(id: u32) -> Option<u32> {
    (id != u32::MAX).then_some(id)
}

/// A time to set, in ns since 1970; `None`: leave it.
pub(in super::super) fn nanoseconds(time: Time) -> Result<Option<i64>, Errno> {
    match time.nsec {
        UTIME_OMIT => Ok(None),
        // Exact, as the time of a file that was made a moment ago.
        UTIME_NOW => Ok(Some(
            i64::try_from(crate::sys::now_ns()).unwrap_or(i64::MAX),
        )),
        0..=999_999_999 => Ok(Some(time.since_epoch_ns())),
        _ => Err(Errno::INVAL),
    }
}

fn set_outside(path: &[u8], times: Option<[Time; 2]>, follow: bool) -> Result<(), Errno> {
    let [a, m] = times.unwrap_or(
        [Time {
            sec: 0,
            nsec: UTIME_NOW,
        }; 2],
    );
    let spec = |t: Time| Timespec {
        tv_sec: t.sec,
        tv_nsec: t.nsec,
    };
    let times = Timestamps {
        last_access: spec(a),
        last_modification: spec(m),
    };
    let flags = if follow {
        AtFlags::empty()
    } else {
        AtFlags::SYMLINK_NOFOLLOW
    };
    rustix::fs::utimensat(CWD, path, &times, flags)
}
