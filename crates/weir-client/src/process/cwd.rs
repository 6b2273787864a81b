//! The current directory, if it is one of weir's.
//!
//! The kernel's current directory is then a removed directory in the server's memory. So code that
//! is not interposed (a static program, a raw system call) gets ENOENT for a relative path, even as
//! root, and leaves no file there that nobody sees. Until another program can begin, that directory
//! is the placeholder, which costs one system call. Before a program begins, it is a directory
//! named by the inode and by the process that entered it (`name_cwd`), so that the program can find
//! out its current directory. The number is instance-wide, so that a program at another server of
//! this machine continues there. A program of another instance, or of none, must not take the real
//! directory for its current one: it would find nothing, and leave files that nobody sees. It has
//! no current directory then, as if that was removed.

use rustix::fs::Mode;
use rustix::io::Errno;
use weir_core::names::FileType;
use weir_core::types::Ino;

use super::current_dir::{marker, CurrentDir, INNER};
use super::descriptors::Descriptors;
use super::first_call::FirstCall;
use super::inodes::InodeOperations;
use super::instance::Instance;
use super::outcome::done;
use super::paths::{PathLookup, ResolvedFile};
use super::server_link::ServerLink;
use super::table::{self, DIR, GONE};
use super::user::ProcessUser;
use super::{Outcome, ProcessState};
use crate::beneath::mount_of;
use crate::kernel::{self, Fd, AT_FDCWD};
use crate::operation;
use crate::path::access;
use crate::session::Session;

/// The calls on the current directory. They may touch the current directory, the look-up of paths, descriptors, the
/// user, inodes and the server.
#[derive(Debug)]
pub struct CurrentDirCalls {
    first_call: FirstCall,
    cwd: &'static CurrentDir,
    paths: PathLookup,
    descriptors: Descriptors,
    server: &'static ServerLink,
    user: &'static ProcessUser,
    inodes: InodeOperations,
}

impl CurrentDirCalls {
    pub(super) const fn over(state: &'static ProcessState) -> CurrentDirCalls {
        CurrentDirCalls {
            first_call: FirstCall::over(state),
            cwd: &state.cwd,
            paths: PathLookup::over(state),
            descriptors: Descriptors::over(state),
            server: &state.server,
            user: &state.user,
            inodes: InodeOperations::over(state),
        }
    }

    /// chdir(2). To be called for every chdir, whatever the path.
    pub fn chdir(&self, path: &[u8]) -> Outcome<()> {
        let _call = operation::begin();
        self.concerns_weir()?;
        let entered = self
            .paths
            .with_existing(AT_FDCWD, path, true, false, |found| match found {
                ResolvedFile::Outside(path) => {
                    self.enter_kernels(|| rustix::process::chdir(&path[..]))
                }
                ResolvedFile::Inode(ino, FileType::Dir) => self.enter_weirs(ino),
                ResolvedFile::Inode(..) => Err(Errno::NOTDIR),
            });
        Some(entered.unwrap_or_else(|| self.enter_kernels(|| rustix::process::chdir(path))))
    }

    /// fchdir(2). To be called for every fchdir.
    pub fn fchdir(&self, fd: Fd) -> Outcome<()> {
        self.concerns_weir()?;
        match self.descriptors.verified_handle(fd) {
            Some(handle) if handle.has(GONE) => Some(Err(Errno::IO)),
            Some(handle) if handle.has(DIR) => Some(self.enter_weirs(handle.ino())),
            Some(_) => Some(Err(Errno::NOTDIR)),
            None => {
                let borrowed = crate::kernel::borrow(fd);
                Some(self.enter_kernels(|| rustix::process::fchdir(borrowed?)))
            }
        }
    }

    fn enter_kernels(&self, go: impl FnOnce() -> Result<(), Errno>) -> Result<(), Errno> {
        // Another thread may be about to begin a program, and name its current directory.
        let _held = self.server.lock.hold();
        let gone = go();
        if gone.is_ok() {
            self.cwd.set_kernels();
        }
        gone
    }

    fn enter_weirs(&self, ino: Ino) -> Result<(), Errno> {
        let attr = self.inodes.attr(ino)?;
        if !self.user.credentials().may(&attr, access::EXECUTE) {
            return Err(Errno::ACCESS);
        }
        let _held = self.server.lock.hold();
        let placeholder = self
            .server
            .connection
            .session()
            .and_then(Session::sure_placeholder);
        match placeholder.and_then(|fd| rustix::process::fchdir(kernel::borrow(fd).ok()?).ok()) {
            Some(()) => self.cwd.set_named(false),
            None => self.name_cwd_after(ino)?,
        }
        self.cwd.set_inode(ino);
        Ok(())
    }

    /// Called before another program can begin in this process's current directory.
    pub(super) fn name_cwd(&self) {
        if let Some(Ok(cwd)) = self.cwd.inode() {
            if !self.cwd.is_named() {
                // If this fails, the program finds itself in a directory that was removed.
                let _ = self.name_cwd_after(cwd);
            }
        }
    }

    /// Makes the kernel's current directory name the one of weir's for which it stands. If the
    /// kernel has mounted the instance, it is the directory itself; in an elevated tree, the one
    /// that it covers.
    fn name_cwd_after(&self, ino: Ino) -> Result<(), Errno> {
        let instance = self.server.connection.instance().ok_or(Errno::SHUTDOWN)?;
        if self.enter_mounted(instance, ino).is_ok() {
            self.cwd.set_named(true);
            return Ok(());
        }
        let outer = marker(instance, ino);
        let inner = [&outer[..], INNER].concat();
        rustix::fs::mkdir(&outer[..], Mode::RWXU)?;
        let entered = rustix::fs::mkdir(&inner[..], Mode::RWXU).and_then(|()| {
            let entered = rustix::process::chdir(&inner[..]);
            rustix::fs::rmdir(&inner[..])?;
            entered
        });
        rustix::fs::rmdir(&outer[..])?;
        entered?;
        self.cwd.set_named(true);
        Ok(())
    }

    /// Enters a directory of the kernel mount, or of the PFS below an elevated one. ENOTCONN: there is no
    /// mount.
    fn enter_mounted(&self, instance: &Instance, ino: Ino) -> Result<(), Errno> {
        let mount = mount_of(&instance.run_dir);
        let path = self.inodes.path_of_real_dir(mount.as_deref(), ino)?;
        rustix::process::chdir(path)
    }

    /// getcwd(2): the path's bytes without a NUL, of any length.
    pub fn getcwd(&self) -> Outcome<Vec<u8>> {
        self.concerns_weir()?;
        let cwd = done!(self.cwd.inode()?);
        Some(self.inodes.path_of(cwd))
    }

    /// `None` if there is neither an instance nor anything that was inherited from one.
    fn concerns_weir(&self) -> Option<()> {
        let inherited = || self.cwd.is_weirs() || table::all().next().is_some();
        (self.first_call.instance().is_some() || inherited()).then_some(())
    }
}
