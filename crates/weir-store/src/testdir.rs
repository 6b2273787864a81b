//! A directory for one test, on tmpfs where there is one, removed afterwards.

#![allow(dead_code)] // until the tiers use all of it

use std::path::{Path, PathBuf};

use std::os::unix::ffi::OsStrExt;

use rustix::fd::OwnedFd;
use rustix::fs::{open, Mode, OFlags};

/// A new directory, removed when dropped.
pub(crate) struct TestDir {
    path: PathBuf,
    fd: OwnedFd,
}

impl TestDir {
    /// A directory on tmpfs (where the memory tier lives), else in the temporary one.
    pub(crate) fn new(name: &str) -> TestDir {
        let shm = Path::new("/dev/shm");
        let base = if shm.is_dir() {
            shm.to_owned()
        } else {
            std::env::temp_dir()
        };
        TestDir::below(&base, name)
    }

    /// A directory on a disk.
    pub(crate) fn on_disk(name: &str) -> TestDir {
        TestDir::below(&std::env::temp_dir(), name)
    }

    fn below(base: &Path, name: &str) -> TestDir {
        let path = base.join(format!("weir-store-test-{name}-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&path);
        std::fs::create_dir(&path).unwrap();
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let fd = open(path.as_os_str().as_bytes(), flags, Mode::empty()).unwrap();
        TestDir { path, fd }
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    pub(crate) fn fd(&self) -> &OwnedFd {
        &self.fd
    }
}

impl Drop for TestDir {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.path);
    }
}
