//! The files that the kernel shows: those of the parallel file system, or of any directory.

use std::ffi::{OsStr, OsString};
use std::fs::{File, OpenOptions, Permissions, TryLockError};
use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use nix::fcntl::{OFlag, PosixFadviseAdvice, AT_FDCWD};
use nix::sys::stat::UtimensatFlags;
use nix::sys::time::TimeSpec;
use nix::unistd::Whence;
use rustix::fs::{AtFlags, Gid, Mode, OFlags, RenameFlags, XattrFlags, CWD};
use rustix::io::Errno;
use weir_client::types::{Stat, Time};

use crate::stripe::StripeSize;
use crate::tree::{
    failed_with, find_data, give_group, io_error, read_xattrs, unless, FileTree, KeptAttributes,
    NodeKind,
};

/// The extended attributes that a user may set.
const KEPT_XATTRS: [&[u8]; 2] = [b"user.", b"system.posix_acl_"];
/// The number of tries to replace a part that a dead process left, while other processes do the same.
const TRIES: u32 = 10;
/// The time for which a lock of a part may stay after its process has ended.
const LOCK_PATIENCE: Duration = Duration::from_millis(500);
/// The time between two looks at such a lock.
const LOCK_STEP: Duration = Duration::from_millis(10);

/// The tree that the kernel shows to this process.
#[derive(Clone, Copy, Debug)]
pub struct DirectoryTree;

impl FileTree for DirectoryTree {
    type File = File;

    fn look_up(&self, path: &Path) -> io::Result<Option<Stat>> {
        match std::fs::symlink_metadata(path) {
            Ok(found) => Ok(Some(stat_of(&found))),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    fn list(&self, path: &Path) -> io::Result<Vec<OsString>> {
        let entries = std::fs::read_dir(path)?;
        entries.map(|entry| Ok(entry?.file_name())).collect()
    }

    fn read_link(&self, path: &Path) -> io::Result<PathBuf> {
        std::fs::read_link(path)
    }

    fn xattrs(&self, path: &Path) -> io::Result<Vec<(OsString, Vec<u8>)>> {
        let path = path.as_os_str().as_bytes();
        read_xattrs(
            // rustix has a function of its own for the length.
            |buffer| match buffer.is_empty() {
                true => rustix::fs::llistxattr_query(path),
                false => rustix::fs::llistxattr(path, buffer),
            },
            |name, buffer| match buffer.is_empty() {
                true => rustix::fs::lgetxattr_query(path, name),
                false => rustix::fs::lgetxattr(path, name, buffer),
            },
            |name| KEPT_XATTRS.iter().any(|kept| name.starts_with(kept)),
        )
    }

    fn open(&self, path: &Path) -> io::Result<File> {
        // A fifo that took the file's place would block.
        let flags = OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK;
        let mut options = OpenOptions::new();
        options.read(true).custom_flags(flags.bits()).open(path)
    }

    fn stat(&self, file: &File) -> io::Result<Stat> {
        Ok(stat_of(&file.metadata()?))
    }

    fn read_at(&self, file: &File, offset: u64, bytes: &mut [u8]) -> io::Result<usize> {
        file.read_at(bytes, offset)
    }

    fn next_data(&self, file: &File, within: Range<u64>) -> io::Result<Option<Range<u64>>> {
        use nix::errno::Errno;
        find_data(within, |from, hole| {
            let whence = if hole {
                Whence::SeekHole
            } else {
                Whence::SeekData
            };
            match nix::unistd::lseek(file, from, whence) {
                Ok(at) => Ok(Some(at)),
                Err(Errno::ENXIO) => Ok(None),
                // A file system that does not know of holes: all is data.
                Err(Errno::EINVAL | Errno::ENOTSUP) => Ok((!hole).then_some(from)),
                Err(error) => Err(error.into()),
            }
        })
    }

    fn create_part(&self, path: &Path, mode: u32) -> io::Result<File> {
        let mut make = OpenOptions::new();
        make.read(true).write(true).create_new(true).mode(mode);
        for _ in 0..TRIES {
            match make.open(path) {
                Ok(file) => {
                    // The lock says that this process lives. If the file system has no locks, another process may take the
                    // part for a dead one's and remove it; `FileCopy::publish` detects that.
                    let _ = file.try_lock();
                    return Ok(file);
                }
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => remove_dead(path)?,
                Err(error) => return Err(error),
            }
        }
        Err(io_error(Errno::BUSY))
    }

    fn open_part(&self, path: &Path) -> io::Result<File> {
        let flags = OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK;
        let mut options = OpenOptions::new();
        options.write(true).custom_flags(flags.bits());
        // A part that has its final mode already may be write-only.
        match options.clone().read(true).open(path) {
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => options.open(path),
            opened => opened,
        }
    }

    fn lock_part(&self, file: &File) {
        let _ = file.try_lock();
    }

    fn stripe_of(&self, part: &File) -> StripeSize {
        StripeSize::of_file(part).unwrap_or_default()
    }

    fn write_at(&self, file: &File, offset: u64, bytes: &[u8]) -> io::Result<()> {
        file.write_all_at(bytes, offset)
    }

    fn set_size(&self, file: &File, size: u64) -> io::Result<()> {
        file.set_len(size)
    }

    fn begin_sync(&self, file: &File) {
        // On this advice Linux begins to write dirty pages.
        let _ = nix::fcntl::posix_fadvise(file, 0, 0, PosixFadviseAdvice::POSIX_FADV_DONTNEED);
    }

    fn sync(&self, file: &File) -> io::Result<()> {
        file.sync_all()?;
        // Now it drops them.
        let _ = nix::fcntl::posix_fadvise(file, 0, 0, PosixFadviseAdvice::POSIX_FADV_DONTNEED);
        Ok(())
    }

    fn set_mode(&self, file: &File, mode: u32) -> io::Result<()> {
        file.set_permissions(Permissions::from_mode(mode))
    }

    fn set_group(&self, file: &File, gid: u32) -> io::Result<()> {
        let there = || Ok(file.metadata()?.gid());
        give_group(gid, there, || {
            rustix::fs::fchown(file, None, Some(Gid::from_raw(gid)))
        })
    }

    fn set_times(&self, file: &File, kept: &KeptAttributes) -> io::Result<()> {
        let (atime, mtime) = (time_spec(kept.atime), time_spec(kept.mtime));
        Ok(nix::sys::stat::futimens(file, &atime, &mtime)?)
    }

    fn set_attributes(&self, path: &Path, kind: NodeKind, kept: &KeptAttributes) -> io::Result<()> {
        if kind != NodeKind::Symlink {
            let there = || Ok(std::fs::symlink_metadata(path)?.gid());
            give_group(kept.gid, there, || {
                let gid = Some(Gid::from_raw(kept.gid));
                rustix::fs::chownat(CWD, path, None, gid, AtFlags::SYMLINK_NOFOLLOW)
            })?;
            std::fs::set_permissions(path, Permissions::from_mode(kept.mode))?;
        }
        let (atime, mtime) = (time_spec(kept.atime), time_spec(kept.mtime));
        let flags = UtimensatFlags::NoFollowSymlink;
        Ok(nix::sys::stat::utimensat(
            AT_FDCWD, path, &atime, &mtime, flags,
        )?)
    }

    fn set_xattr(&self, path: &Path, name: &OsStr, value: &[u8]) -> io::Result<()> {
        let (path, name) = (path.as_os_str().as_bytes(), name.as_bytes());
        rustix::fs::lsetxattr(path, name, value, XattrFlags::empty()).map_err(io_error)
    }

    fn remove_xattr(&self, path: &Path, name: &OsStr) -> io::Result<()> {
        rustix::fs::lremovexattr(path, name).map_err(io_error)
    }

    fn make_directory(&self, path: &Path, mode: u32) -> io::Result<()> {
        use std::os::unix::fs::DirBuilderExt;
        std::fs::DirBuilder::new().mode(mode).create(path)
    }

    fn make_symlink(&self, target: &Path, path: &Path) -> io::Result<()> {
        std::os::unix::fs::symlink(target, path)
    }

    fn make_link(&self, existing: &Path, path: &Path) -> io::Result<()> {
        std::fs::hard_link(existing, path)
    }

    fn rename(&self, from: &Path, to: &Path, replace: bool) -> io::Result<()> {
        let names = RenamedNames::open(from, to)?;
        if replace {
            return Ok(names.rename(RenameFlags::empty())?);
        }
        match names.rename(RenameFlags::NOREPLACE) {
            // NFS and others have no such rename.
            Err(Errno::INVAL | Errno::NOSYS | Errno::OPNOTSUPP) => match self.look_up(to)? {
                Some(_) => Err(io_error(Errno::EXIST)),
                None => Ok(names.rename(RenameFlags::empty())?),
            },
            done => Ok(done?),
        }
    }

    fn exchange(&self, one: &Path, other: &Path) -> io::Result<()> {
        let flags = RenameFlags::EXCHANGE;
        Ok(rustix::fs::renameat_with(CWD, one, CWD, other, flags)?)
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        std::fs::remove_file(path)
    }

    fn remove_directory(&self, path: &Path) -> io::Result<()> {
        std::fs::remove_dir(path)
    }

    fn sync_directory(&self, path: &Path) -> io::Result<()> {
        match File::open(path).and_then(|dir| dir.sync_all()) {
            // The file system does not sync directories, or this user may change the directory but not read it.
            Err(error) if failed_with(&error, Errno::INVAL) => Ok(()),
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => Ok(()),
            done => done,
        }
    }
}

/// Removes a part if its process is dead; EBUSY: it lives.
fn remove_dead(path: &Path) -> io::Result<()> {
    let open = |is_writable: bool| {
        let flags = OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK;
        let mut options = OpenOptions::new();
        let options = options.read(true).write(is_writable);
        options.custom_flags(flags.bits()).open(path)
    };
    let is_refused = |error: &io::Error| error.kind() == io::ErrorKind::PermissionDenied;
    // NFS locks only files that are open for writing; a part that has its final mode may be read-only.
    let part = match open(true) {
        Err(error) if is_refused(&error) => open(false),
        part => part,
    };
    let part = match part {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        // A symbolic link that was to get a name, or a file that this process may not read. If its own process lives, that
        // one detects the removal.
        Err(error) if failed_with(&error, Errno::LOOP) || is_refused(&error) => {
            return remove_if_there(path)
        }
        part => part?,
    };
    match is_locked(&part) {
        true => Err(io_error(Errno::BUSY)),
        false => remove_if_there(path),
    }
}

/// True if a living process has locked a part. A killed process holds its locks until the kernel has closed its files, and
/// a new child process holds those of its parent until it executes its program: this waits for both.
fn is_locked(part: &File) -> bool {
    let begun = Instant::now();
    loop {
        match part.try_lock() {
            Err(TryLockError::WouldBlock) if begun.elapsed() < LOCK_PATIENCE => {
                std::thread::sleep(LOCK_STEP);
            }
            Err(TryLockError::WouldBlock) => return true,
            _ => return false,
        }
    }
}

fn remove_if_there(path: &Path) -> io::Result<()> {
    unless(std::fs::remove_file(path), io::ErrorKind::NotFound)
}

/// The old and the new name of a rename.
struct RenamedNames<'p> {
    /// The directory of both, if it is the same one: then the kernel resolves its path once.
    dir: Option<OwnedFd>,
    from: &'p OsStr,
    to: &'p OsStr,
}

impl RenamedNames<'_> {
    fn open<'p>(from: &'p Path, to: &'p Path) -> Result<RenamedNames<'p>, Errno> {
        let dirs = from.parent().zip(to.parent());
        let names = from.file_name().zip(to.file_name());
        let is_one = |(one, other): &(&Path, &Path)| one == other && !one.as_os_str().is_empty();
        let Some(((dir, _), (from, to))) = dirs.filter(is_one).zip(names) else {
            let (from, to) = (from.as_os_str(), to.as_os_str());
            return Ok(RenamedNames {
                dir: None,
                from,
                to,
            });
        };
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let dir = Some(rustix::fs::open(dir, flags, Mode::empty())?);
        Ok(RenamedNames { dir, from, to })
    }

    fn rename(&self, flags: RenameFlags) -> Result<(), Errno> {
        let dir = self.dir.as_ref().map_or(CWD, AsFd::as_fd);
        match flags.is_empty() {
            // Without flags every kernel and file system can do it.
            true => rustix::fs::renameat(dir, self.from, dir, self.to),
            false => rustix::fs::renameat_with(dir, self.from, dir, self.to, flags),
        }
    }
}

fn time_spec(time: Time) -> TimeSpec {
    TimeSpec::new(time.sec, time.nsec)
}

fn stat_of(found: &std::fs::Metadata) -> Stat {
    let time = |sec, nsec| Time { sec, nsec };
    Stat {
        dev: found.dev(),
        ino: found.ino(),
        mode: found.mode(),
        nlink: u32::try_from(found.nlink()).unwrap_or(u32::MAX),
        uid: found.uid(),
        gid: found.gid(),
        size: found.size(),
        blksize: u32::try_from(found.blksize()).unwrap_or(u32::MAX),
        blocks: found.blocks(),
        atime: time(found.atime(), found.atime_nsec()),
        mtime: time(found.mtime(), found.mtime_nsec()),
        ctime: time(found.ctime(), found.ctime_nsec()),
        mount: None,
        btime: None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As after a kill: the kernel takes its time to close a process's files.
    #[test]
    fn a_lock_that_goes_is_waited_for_and_one_that_stays_is_not() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("part");
        let held = File::create(&path).unwrap();
        held.lock().unwrap();
        assert!(failed_with(&remove_dead(&path).unwrap_err(), Errno::BUSY));
        let going = std::thread::spawn(move || {
            std::thread::sleep(LOCK_PATIENCE / 10);
            drop(held);
        });
        let removed = remove_dead(&path);
        going.join().unwrap();
        assert!(removed.is_ok() && !path.exists());
    }
}
