//! Fork and exec: what the process that comes after is to find.
//!
//! The descriptions that it may share with this one are marked (`descriptors/sharing.rs`), and the current
//! directory is named by a real one (`cwd`). A program that begins without an interposer gets files of the
//! kernel mount in place of its descriptors.

use core::sync::atomic::Ordering;

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

use super::cwd::CurrentDirCalls;
use super::descriptors::Descriptors;
use super::inodes::InodeOperations;
use super::server_link::ServerLink;
use super::table::{self, Handle};
use super::ProcessState;
use crate::beneath::{open_inode, share_offset};
use crate::kernel::{self, Fd};

const F_GETFD: i32 = 1;
const FD_CLOEXEC: i32 = 1;
const SEEK_SET: i32 = 0;

/// The calls around fork and exec. They may touch descriptors, the calls on the current directory, inodes and the
/// server.
#[derive(Debug)]
pub struct ForkCalls {
    descriptors: Descriptors,
    current_dir: CurrentDirCalls,
    server: &'static ServerLink,
    inodes: InodeOperations,
}

impl ForkCalls {
    pub(super) const fn over(state: &'static ProcessState) -> ForkCalls {
        ForkCalls {
            descriptors: Descriptors::over(state),
            current_dir: CurrentDirCalls::over(state),
            server: &state.server,
            inodes: InodeOperations::over(state),
        }
    }

    /// True if the state is this process's own: false in a child of vfork, and in a forked child
    /// that was not detected yet.
    pub fn owns_memory(&self) -> bool {
        self.server.forks.is_owner()
    }

    /// Before fork(2), vfork(2), clone(2) of a process, posix_spawn(3): makes the
    /// descriptors ready to be shared, and takes this crate's locks.
    pub fn before_fork(&self) {
        if self.server.connection.instance().is_none() {
            return;
        }
        self.server.lock.acquire();
        self.server.forks.begin_fork();
        self.server.forks.detect_forks();
        #[cfg(debug_assertions)]
        crate::bugs::planted::set_off_in_step("before_fork");
        if !self.descriptors.is_vfork_child() {
            self.current_dir.name_cwd();
            for (fd, handle) in table::all() {
                handle.mark_shared(fd);
            }
        }
    }

    /// After fork, in the parent, even if it failed, or if [`ForkCalls::before_fork`] did not end.
    pub fn after_fork_parent(&self) {
        // Not if there was no instance yet when the fork began.
        if self.server.lock.is_mine() {
            self.server.forks.finish_fork();
            self.server.lock.release();
        }
    }

    /// After fork, in a child that has its own memory (not of vfork).
    pub fn after_fork_child(&self) {
        if self.server.connection.instance().is_some() {
            self.server.forks.forget_forks();
            self.descriptors.become_owner();
            self.server.lock.release();
        }
    }

    /// Before execve(2): makes the descriptors that will survive it ready, and publishes the
    /// written bytes, which ends the streams that wrote them. True if the program may inherit
    /// descriptors of weir's.
    pub fn before_exec(&self) -> bool {
        if self.server.connection.instance().is_none() {
            return true;
        }
        let _held = self.server.lock.hold();
        #[cfg(debug_assertions)]
        crate::bugs::planted::set_off_in_step("before_exec");
        self.current_dir.name_cwd();
        let mut any = false;
        for (fd, handle) in table::all() {
            let survives = kernel::fcntl(fd, F_GETFD, 0).is_ok_and(|flags| flags & FD_CLOEXEC == 0);
            if survives {
                any = true;
                handle.mark_shared(fd);
            }
        }
        self.descriptors.publish_written();
        any
    }

    /// Before a program begins without an interposer: replaces the descriptors that it inherits by
    /// files of the kernel mount, if there is one. The tables stay as they are: this process is
    /// about to become that program, and if it does not, it finds the descriptors to be the
    /// kernel's.
    pub fn replace_inherited_fds(&self) {
        let Some(mount) = self.server.connection.mount() else {
            return;
        };
        let _held = self.server.lock.hold();
        for (fd, handle) in table::all() {
            let survives = kernel::fcntl(fd, F_GETFD, 0).is_ok_and(|flags| flags & FD_CLOEXEC == 0);
            if survives && !handle.is_elsewhere() {
                // A file that cannot be opened anew stays a placeholder, which refuses everything.
                let _ = self.make_real(&mount, fd, handle);
            }
        }
    }

    /// Puts the file of the kernel mount in the place of a placeholder, with the same offset.
    fn make_real(&self, mount: &[u8], fd: Fd, handle: &'static Handle) -> Result<(), Errno> {
        let ofd = handle.ofd.get().ok_or(Errno::BADF)?;
        let opened = if handle.has(table::DIR) {
            let path = self.inodes.path_of_real_dir(Some(mount), handle.ino())?;
            let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
            kernel::into_number(rustix::fs::open(path, flags, Mode::empty())?)
        } else {
            let flags = OFlags::from_bits_retain(ofd.flags.load(Ordering::Relaxed));
            open_inode(mount, handle.ino(), flags)?
        };
        let index = u64::from(handle.index.load(Ordering::Relaxed));
        let life = u64::from(ofd.generation.load(Ordering::Relaxed));
        let offset = ofd.offset.load(Ordering::Acquire).cast_signed();
        let put = kernel::lseek(opened, offset, SEEK_SET).and_then(|_| {
            if !handle.has(table::DIR) {
                // So that the next user of the description continues where this process stopped.
                share_offset(opened, life << 32 | index)?;
            }
            kernel::dup3(opened, fd, 0)
        });
        let _ = kernel::close(opened);
        put.map(drop)
    }

    /// True if a program that begins now may inherit a descriptor or a current directory of weir's.
    pub fn has_inherited_fds(&self) -> bool {
        let is_inherited = |fd| kernel::fcntl(fd, F_GETFD, 0).is_ok_and(|f| f & FD_CLOEXEC == 0);
        self.server.connection.instance().is_some() && table::all().any(|(fd, _)| is_inherited(fd))
    }

    /// True if a program that posix_spawn(3) begins may inherit descriptors of weir's.
    pub fn may_have_inherited_fds(&self) -> bool {
        self.server.connection.instance().is_none() || table::all().next().is_some()
    }
}
