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

use rustix::fd::AsFd;
use rustix::fs::Mode;
use rustix::io::Errno;
use weir_core::names::FileType;
use weir_core::proto::beneath::OWN_DIR;
use weir_core::proto::SHM_LINK;
use weir_core::types::Ino;

use super::current_dir::{kernel_cwd, marker, named_by, INNER};
use super::instance::Instance;
use super::outcome::done;
use super::paths::ResolvedFile;
use super::table::{self, DIR, GONE};
use super::{Outcome, Process};
use crate::beneath::mount_of;
use crate::kernel::{self, Fd, AT_FDCWD};
use crate::neighbour::memory_of;
use crate::operation;
use crate::path::access;
use crate::session::Session;

impl Process {
    /// chdir(2). To be called for every chdir, whatever the path.
    pub fn chdir(&'static self, path: &[u8]) -> Outcome<()> {
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
    pub fn fchdir(&'static self, fd: Fd) -> Outcome<()> {
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

    fn enter_kernels(&'static self, go: impl FnOnce() -> Result<(), Errno>) -> Result<(), Errno> {
        // Another thread may be about to begin a program, and name its current directory.
        let _held = self.server.lock.hold();
        let gone = go();
        if gone.is_ok() {
            self.cwd.set_kernels();
        }
        gone
    }

    fn enter_weirs(&'static self, ino: Ino) -> Result<(), Errno> {
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
    pub(super) fn name_cwd(&'static self) {
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
    fn name_cwd_after(&'static self, ino: Ino) -> Result<(), Errno> {
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
    fn enter_mounted(&'static self, instance: &Instance, ino: Ino) -> Result<(), Errno> {
        let mount = mount_of(&instance.run_dir);
        let path = self.inodes.path_of_real_dir(mount.as_deref(), ino)?;
        rustix::process::chdir(path)
    }

    /// getcwd(2): the path's bytes without a NUL, of any length.
    pub fn getcwd(&'static self) -> Outcome<Vec<u8>> {
        self.concerns_weir()?;
        let cwd = done!(self.cwd.inode()?);
        Some(self.inodes.path_of(cwd))
    }

    /// `None` if there is neither an instance nor anything that was inherited from one.
    fn concerns_weir(&'static self) -> Option<()> {
        let inherited = || self.cwd.is_weirs() || table::all().next().is_some();
        (self.instance().is_some() || inherited()).then_some(())
    }

    /// Finds out if the inherited current directory is one of weir's.
    pub(super) fn adopt_cwd(&'static self, instance: Option<&Instance>) {
        if let Some(path) = kernel_cwd() {
            // A directory that has a path is none of weir's, except those of a kernel mount.
            if let Some(dir) = instance.and_then(|instance| self.mounted_dir(instance, &path)) {
                self.cwd.set_named(true);
                match dir {
                    Ok(ino) => self.cwd.set_inode(ino),
                    Err(_) => self.cwd.set_foreign(),
                }
            }
            return;
        }
        let Ok(cwd) = rustix::fs::readlink("/proc/self/cwd", Vec::new()) else {
            return;
        };
        let Some((memory, ino)) = named_by(cwd.as_bytes()) else {
            return;
        };
        self.cwd.set_named(true);
        let own = instance.is_some_and(|instance| instance.shm_dir == memory);
        if own {
            self.cwd.set_inode(ino);
            return;
        }
        let Ok(memory) = memory_of(rustix::fs::CWD, "../../..") else {
            return;
        };
        let neighbour = self
            .server
            .node()
            .and_then(|node| self.neighbours.at(memory.as_fd(), node));
        if neighbour.is_ok() {
            self.cwd.set_inode(ino);
        } else {
            self.cwd.set_foreign();
            self.server.count_refusal("other-instance");
        }
    }
}

impl Process {
    /// The directory of weir's that is the current one, by a path of the kernel's: it lies in the
    /// kernel mount of the own server, or of another one of the instance on this machine. An error:
    /// it was removed, and the kernel has not noticed.
    fn mounted_dir(&'static self, instance: &Instance, path: &[u8]) -> Outcome<Ino> {
        if instance.roots.main.strip(path).is_none() && !self.is_mount_of_neighbour(path) {
            return None;
        }
        let is_fuse = rustix::fs::statfs(".").is_ok_and(|fs| fs.f_type == FUSE_SUPER_MAGIC);
        is_fuse.then(|| Ok(Ino(rustix::fs::stat(".")?.st_ino)))
    }

    /// True if a path lies in the kernel mount of another server of the instance on this machine.
    fn is_mount_of_neighbour(&'static self, path: &[u8]) -> bool {
        let ends = path.iter().enumerate().filter(|(_, byte)| **byte == b'/');
        let mut parents = ends.map(|(at, _)| path.split_at(at));
        parents.any(|(dir, below)| {
            is_at_or_below(&below[1..], OWN_DIR.as_bytes())
                && mount_of(dir).is_some_and(|mount| is_at_or_below(path, &mount))
                && self.is_run_dir_of_neighbour(dir)
        })
    }

    fn is_run_dir_of_neighbour(&'static self, run_dir: &[u8]) -> bool {
        let link = [run_dir, b"/", SHM_LINK.as_bytes()].concat();
        let known = memory_of(rustix::fs::CWD, link).and_then(|memory| {
            let node = self.server.node()?;
            self.neighbours.at(memory.as_fd(), node).map(drop)
        });
        known.is_ok()
    }
}

/// The type that statfs(2) reports for a FUSE file system.
const FUSE_SUPER_MAGIC: i64 = 0x6573_5546;

/// True if a path is a directory or something below it.
fn is_at_or_below(path: &[u8], dir: &[u8]) -> bool {
    let rest = path.strip_prefix(dir);
    rest.is_some_and(|rest| rest.first().is_none_or(|byte| *byte == b'/'))
}
