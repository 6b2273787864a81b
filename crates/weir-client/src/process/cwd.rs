//! The current directory, where it is one of weir's.
//!
//! The kernel's current directory is then a real directory of the instance that is named
//! by the inode, so that children and executed programs inherit it.

use core::sync::atomic::Ordering;

use rustix::fs::Mode;
use rustix::io::Errno;
use weir_core::names::FileType;
use weir_core::types::Ino;

use super::place::{kernel_cwd, Found};
use super::start::Instance;
use super::table::DIR;
use super::{Outcome, Process};
use crate::kernel::{Fd, AT_FDCWD};
use crate::operation;
use crate::path::access;

impl Process {
    /// chdir(2). To be called for every chdir, whatever the path.
    pub fn chdir(&'static self, path: &[u8]) -> Outcome<()> {
        let _call = operation::begin();
        self.instance()?;
        match self.existing(AT_FDCWD, path, true, false) {
            None => Some(self.leave_for(|| rustix::process::chdir(path))),
            Some(Err(error)) => Some(Err(error)),
            Some(Ok(Found::Outside(path))) => {
                Some(self.leave_for(|| rustix::process::chdir(&path[..])))
            }
            Some(Ok(Found::Inode(ino, FileType::Dir))) => Some(self.enter(ino)),
            Some(Ok(Found::Inode(..))) => Some(Err(Errno::NOTDIR)),
        }
    }

    /// fchdir(2). To be called for every fchdir.
    pub fn fchdir(&'static self, fd: Fd) -> Outcome<()> {
        self.instance()?;
        match self.handle(fd) {
            Some(handle) if handle.has(DIR) => Some(self.enter(handle.ino())),
            Some(_) => Some(Err(Errno::NOTDIR)),
            None => {
                let borrowed = crate::kernel::borrow(fd);
                Some(self.leave_for(|| rustix::process::fchdir(borrowed?)))
            }
        }
    }

    fn leave_for(&'static self, go: impl FnOnce() -> Result<(), Errno>) -> Result<(), Errno> {
        let gone = go();
        if gone.is_ok() {
            self.cwd.store(0, Ordering::Relaxed);
            self.cwd_unknown.store(true, Ordering::Relaxed);
        }
        gone
    }

    fn enter(&'static self, ino: Ino) -> Result<(), Errno> {
        let attr = self.attr(ino)?;
        if !self.who().may(&attr, access::EXECUTE) {
            return Err(Errno::ACCESS);
        }
        let instance = self.instance.get().ok_or(Errno::SHUTDOWN)?;
        let path = marker(instance, ino);
        match rustix::fs::mkdir(&path[..], Mode::RWXU) {
            Ok(()) | Err(Errno::EXIST) => {}
            Err(error) => return Err(error),
        }
        rustix::process::chdir(&path[..])?;
        self.cwd.store(ino.0, Ordering::Relaxed);
        Ok(())
    }

    /// getcwd(2): the path's bytes without a NUL; ERANGE if it does not fit with one.
    pub fn getcwd(&'static self, out: &mut [u8]) -> Outcome<usize> {
        self.instance()?;
        let cwd = match self.cwd.load(Ordering::Relaxed) {
            0 => return None,
            cwd => Ino(cwd),
        };
        Some(self.path_of(cwd).and_then(|path| {
            let room = out.get_mut(..path.len() + 1).ok_or(Errno::RANGE)?;
            room[..path.len()].copy_from_slice(&path);
            Ok(path.len())
        }))
    }

    /// Finds out whether the directory that was inherited is one of weir's.
    pub(super) fn adopt_cwd(&self, instance: &Instance) {
        let Some(cwd) = kernel_cwd() else { return };
        let dir = [&instance.shm_dir, &b"/cwd/"[..]].concat();
        let ino = cwd
            .strip_prefix(&dir[..])
            .and_then(|name| core::str::from_utf8(name).ok())
            .and_then(|name| u64::from_str_radix(name, 16).ok());
        if let Some(ino) = ino {
            self.cwd.store(ino, Ordering::Relaxed);
        }
    }
}

/// The real directory that stands for a directory of weir's.
fn marker(instance: &Instance, ino: Ino) -> Vec<u8> {
    let name = format!("/cwd/{:016x}", ino.0);
    [&instance.shm_dir, name.as_bytes()].concat()
}
