//! Taking up files of the PFS: making an entry of the elevated tree that stands for one, or replaces it.

use core::sync::atomic::{AtomicU64, Ordering};

use rustix::fd::OwnedFd;
use rustix::fs::{FileType as KernelType, Mode, OFlags, SeekFrom, Stat, XattrFlags};
use rustix::io::Errno;
use rustix::time::{clock_gettime, ClockId};
use weir_core::elevated::{name_of_inode, COVERS, NURSERY};
use weir_core::names::FileType;
use weir_core::proto::{CreateUnnamed, Link, Mkdir, Rename, Rmdir, SetAttr, Symlink, Unlink};
use weir_core::types::Ino;

use super::super::forks::own_pid;
use super::super::inodes::InodeOperations;
use super::super::open_flags::O_CLOEXEC;
use super::super::Outcome;
use super::name_lock::NameLock;
use super::truncation::is_taken_along;
use super::FileTakeUp;
use crate::kernel::Fd;
use crate::path::walk::Names;
use crate::path::Name;
use crate::types::Time;

/// `RENAME_NOREPLACE`.
const NOREPLACE: u32 = 1;
/// O_RDWR.
const O_RDWR: i32 = 2;
/// The times that a file is copied while somebody writes it.
const TRIES: u32 = 10;
/// The bytes that are copied at a time.
const PIECE: usize = 1 << 20;

impl InodeOperations {
    /// Makes a directory of the tree that covers one of the PFS. Nobody sees it before it says so, which
    /// is why it is made elsewhere and renamed. Another process may be faster: then that one's is
    /// returned.
    pub(super) fn take_up_directory(
        self,
        parent: Ino,
        name: &[u8],
        path: &[u8],
        stat: &Stat,
    ) -> Result<Ino, Errno> {
        let session = self.server.session()?;
        let nursling = nursling();
        let dir = session.call(Mkdir {
            parent: NURSERY,
            name: nursling.clone(),
            mode: stat.st_mode & 0o7777,
            uid: stat.st_uid,
            gid: stat.st_gid,
        })?;
        let [atime, mtime] = times_of(stat);
        session.call(SetAttr {
            atime_ns: Some(atime.since_epoch_ns()),
            mtime_ns: Some(mtime.since_epoch_ns()),
            ..SetAttr::nothing(dir)
        })?;
        let cover = name_of_inode(dir).to_vec();
        let placed = session
            .call(Symlink {
                parent: COVERS,
                name: cover.clone(),
                target: path.to_vec(),
                uid: stat.st_uid,
                gid: stat.st_gid,
            })
            .and_then(|link| {
                self.note_covered_mode(link, stat.st_mode & 0o7777)?;
                session.call(Rename {
                    parent: NURSERY,
                    name: nursling.clone(),
                    new_parent: parent,
                    new_name: name.to_vec(),
                    flags: NOREPLACE,
                })
            });
        let Err(error) = placed else {
            if self.is_whited_out(parent, name)? {
                // Another process has removed it meanwhile: it is not to come back.
                let again = session.call(Rmdir {
                    parent,
                    name: name.to_vec(),
                });
                let gone = session.call(Unlink {
                    parent: COVERS,
                    name: cover,
                });
                return again.and(gone).and(Err(Errno::NOENT));
            }
            return Ok(dir);
        };
        let _ = session.call(Unlink {
            parent: COVERS,
            name: cover,
        });
        let _ = session.call(Rmdir {
            parent: NURSERY,
            name: nursling,
        });
        if error == Errno::EXIST {
            if let Some((other, FileType::Dir)) = self.view()?.lookup(parent, name)? {
                return Ok(other);
            }
        }
        Err(error)
    }
}

impl InodeOperations {
    /// Notes the permission bits of a covered directory, as those of the link that leads to it.
    pub(in super::super) fn note_covered_mode(self, link: Ino, mode: u32) -> Result<(), Errno> {
        self.server.session()?.call(SetAttr {
            mode: Some(mode),
            ..SetAttr::nothing(link)
        })
    }
}

/// The times of the last access and of the last modification.
#[allow(clippy::unnecessary_cast)] // other widths on aarch64
#[allow(clippy::cast_possible_wrap)] // nanoseconds are small
fn times_of(stat: &Stat) -> [Time; 2] {
    [
        Time {
            sec: stat.st_atime as i64,
            nsec: stat.st_atime_nsec as i64,
        },
        Time {
            sec: stat.st_mtime as i64,
            nsec: stat.st_mtime_nsec as i64,
        },
    ]
}

/// A name that no other process uses.
pub(super) fn nursling() -> Vec<u8> {
    static MADE: AtomicU64 = AtomicU64::new(0);
    let time = clock_gettime(ClockId::Monotonic);
    let nth = MADE.fetch_add(1, Ordering::Relaxed);
    format!("{}-{}.{}-{nth}", own_pid(), time.tv_sec, time.tv_nsec).into_bytes()
}

impl FileTakeUp {
    /// Copies a file of the PFS into the tree, under the same name, so that it can be renamed or linked.
    /// The name shows one or the other. The caller looks for the name again: it may be gone. EXDEV: it is neither a regular file nor a symbolic link.
    pub(in super::super) fn take_up_file(
        &self,
        parent: Ino,
        name: &Name,
        path: &[u8],
    ) -> Result<(), Errno> {
        let _lock = NameLock::hold(self.server.session()?, parent, name.bytes())?;
        if !self.inodes.is_only_below(parent, name.bytes())? {
            // Another process has taken it up, or removed it: the caller looks again.
            return Ok(());
        }
        let stat = rustix::fs::lstat(path)?;
        self.inodes.note_taken_up(parent, name.bytes())?;
        let taken = match KernelType::from_raw_mode(stat.st_mode) {
            KernelType::RegularFile => self.copy_up(parent, name, path),
            KernelType::Symlink => {
                let target = rustix::fs::readlink(path, Vec::new())?.into_bytes();
                let made = self.server.session()?.call(Symlink {
                    parent,
                    name: name.to_vec(),
                    target,
                    uid: stat.st_uid,
                    gid: stat.st_gid,
                });
                made.map(drop)
            }
            _ => Err(Errno::XDEV),
        };
        match taken {
            // Another process has made the name anew.
            Err(Errno::EXIST) => Ok(()),
            taken => taken,
        }
    }

    fn copy_up(&self, parent: Ino, name: &Name, path: &[u8]) -> Result<(), Errno> {
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let from = rustix::fs::open(path, flags, Mode::empty())?;
        let made = self.inodes.view()?.create_unnamed(CreateUnnamed {
            dir: parent,
            mode: 0o600,
            uid: self.user.credentials().uid,
            gid: self.user.credentials().gid,
            linkable: true,
        })?;
        let ino = made.ino;
        let to = self.opener.open_made(&made, O_RDWR | O_CLOEXEC)?;
        let copied = self
            .copy_unchanged(&from, to)
            .and_then(|stat| self.copy_attributes(&from, &stat, to));
        let linked = copied.and_then(|()| {
            let name = name.to_vec();
            self.server.session()?.call(Link { ino, parent, name })
        });
        let closed = required(self.descriptors.close(to));
        linked.and(closed)
    }

    /// Copies the bytes, again if somebody writes them meanwhile; returns the attributes of what was copied.
    /// EBUSY: it never ends.
    fn copy_unchanged(&self, from: &OwnedFd, to: Fd) -> Result<Stat, Errno> {
        let version = |stat: &Stat| (stat.st_size, stat.st_ctime, stat.st_ctime_nsec);
        for _ in 0..TRIES {
            let before = rustix::fs::fstat(from)?;
            self.copy_whole(from, to)?;
            if version(&before) == version(&rustix::fs::fstat(from)?) {
                return Ok(before);
            }
        }
        Err(Errno::BUSY)
    }

    fn copy_whole(&self, from: &OwnedFd, to: Fd) -> Result<(), Errno> {
        for_each_piece(from, |at, bytes| {
            let mut done = 0;
            while done < bytes.len() {
                let offset = i64::try_from(at + done as u64).map_err(|_| Errno::FBIG)?;
                done += required(self.io.pwrite(to, &bytes[done..], offset))?;
            }
            Ok(())
        })?;
        let size = rustix::fs::fstat(from)?.st_size;
        required(self.io.ftruncate(to, size))
    }

    fn copy_attributes(&self, from: &OwnedFd, stat: &Stat, to: Fd) -> Result<(), Errno> {
        let mut names = [0; 4096];
        // A file system without them, or more of them than any program sets.
        let length = rustix::fs::flistxattr(from, &mut names).unwrap_or(0);
        for name in names[..length].split(|byte| *byte == 0) {
            if !is_taken_along(name) {
                continue;
            }
            let mut value = vec![0; 64 << 10];
            let length = rustix::fs::fgetxattr(from, name, &mut value)?;
            required(self.attributes.fsetxattr(
                to,
                name,
                &value[..length],
                XattrFlags::empty().bits(),
            ))?;
        }
        if (stat.st_uid, stat.st_gid) != (self.user.credentials().uid, self.user.credentials().gid)
        {
            // The owner is the PFS's business when the file is moved.
            let _ = required(self.attributes.fchown(to, stat.st_uid, stat.st_gid));
        }
        required(self.attributes.fchmod(to, stat.st_mode & 0o7777))?;
        required(self.attributes.futimens(to, Some(times_of(stat))))
    }
}

/// Reads a file of the PFS in pieces, without its holes, where the file system knows them. `act` gets the
/// offset of each, and its bytes.
pub(super) fn for_each_piece(
    file: &OwnedFd,
    mut act: impl FnMut(u64, &[u8]) -> Result<(), Errno>,
) -> Result<(), Errno> {
    let mut buffer = vec![0; PIECE];
    let mut at = 0;
    loop {
        match rustix::fs::seek(file, SeekFrom::Data(at)) {
            Ok(data) => at = data,
            Err(Errno::NXIO) => return Ok(()),
            Err(_) => {}
        }
        let got = rustix::io::pread(file, &mut buffer, at)?;
        if got == 0 {
            return Ok(());
        }
        act(at, &buffer[..got])?;
        at += got as u64;
    }
}

/// The result of a call on a descriptor of weir's.
fn required<T>(outcome: Outcome<T>) -> Result<T, Errno> {
    outcome.unwrap_or(Err(Errno::BADF))
}
