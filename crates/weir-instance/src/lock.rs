//! A lock on a file that the kernel drops with its holder, and that can be asked after.
//!
//! Open-file-description locks (fcntl(2), `F_OFD_SETLK`) and not flock(2): `F_OFD_GETLK` tells
//! whether one is held without taking it, so that `weir status` asking at the wrong moment
//! cannot make a start believe that somebody else is there.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use anyhow::{Context, Result};
use nix::errno::Errno;
use nix::fcntl::{fcntl, FcntlArg};

/// An exclusive lock, held until dropped.
#[derive(Debug)]
pub struct Lock {
    _file: File,
}

impl Lock {
    /// Takes the lock on `path`, waiting for it. Makes the file if it is not there.
    pub fn acquire(path: &Path) -> Result<Self> {
        let file = open(path)?;
        Self::wait(file).with_context(|| format!("locking {}", path.display()))
    }

    /// Takes the lock on a file that is there, waiting for it.
    pub fn acquire_existing(path: &Path) -> io::Result<Self> {
        Self::wait(existing(path)?)
    }

    fn wait(file: File) -> io::Result<Self> {
        loop {
            match fcntl(&file, FcntlArg::F_OFD_SETLKW(&whole_file())) {
                Ok(_) => return Ok(Self { _file: file }),
                Err(Errno::EINTR) => {}
                Err(e) => return Err(e.into()),
            }
        }
    }

    /// Takes the lock on `path` unless somebody holds it.
    pub fn try_acquire(path: &Path) -> Result<Option<Self>> {
        let file = open(path)?;
        match fcntl(&file, FcntlArg::F_OFD_SETLK(&whole_file())) {
            Ok(_) => Ok(Some(Self { _file: file })),
            Err(Errno::EAGAIN | Errno::EACCES) => Ok(None),
            Err(e) => Err(e).with_context(|| format!("locking {}", path.display())),
        }
    }

    /// True if a process holds the lock on `path`; a file that is not there is not locked.
    pub fn is_held(path: &Path) -> bool {
        let mut probe = whole_file();
        existing(path).is_ok_and(|file| {
            fcntl(&file, FcntlArg::F_OFD_GETLK(&mut probe)).is_ok()
                && i32::from(probe.l_type) != libc::F_UNLCK
        })
    }
}

fn existing(path: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options
        .read(true)
        .write(true)
        .custom_flags(libc::O_NOFOLLOW)
        .open(path)
}

fn open(path: &Path) -> Result<File> {
    OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .mode(0o600)
        .custom_flags(libc::O_NOFOLLOW)
        .open(path)
        .with_context(|| format!("opening {}", path.display()))
}

/// A write lock from the start to beyond any end; `l_pid` must be 0 for this kind of lock.
fn whole_file() -> libc::flock {
    libc::flock {
        l_type: i16::try_from(libc::F_WRLCK).expect("a small constant"),
        l_whence: i16::try_from(libc::SEEK_SET).expect("a small constant"),
        l_start: 0,
        l_len: 0,
        l_pid: 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn asking_does_not_take() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("lock");
        assert!(!Lock::is_held(&path));
        let lock = Lock::try_acquire(&path).unwrap().unwrap();
        assert!(Lock::is_held(&path));
        assert!(Lock::try_acquire(&path).unwrap().is_none());
        drop(lock);
        assert!(!Lock::is_held(&path));
        assert!(Lock::acquire(&path).is_ok());
    }
}
