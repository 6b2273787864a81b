//! Fork and exec: descriptors that several processes come to share.
//!
//! Before a process may come to share a description with another, the description is *marked*: the
//! placeholder carries its index in the kernel's file offset, and a lock of the kernel's on one
//! byte lasts exactly as long as some process has the description. From then on the server alone
//! frees it. A forked child has the parent's tables, with every description marked, and makes its
//! own session when it needs one.

use core::sync::atomic::Ordering;

use weir_core::node::ofd::{lock_byte, placeholder_offset, Ofd};

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

use super::forks::MemoryUser;
use super::table::{self, Handle};
use super::Process;
use crate::beneath::{open_inode, share_offset};
use crate::internal::Internal;
use crate::kernel::{self, Fd};

const F_GETFD: i32 = 1;
const FD_CLOEXEC: i32 = 1;
const SEEK_SET: i32 = 0;

impl Handle {
    /// Marks a description as one that other processes may have.
    pub(super) fn mark_shared(&self, fd: Fd) {
        // Another server's description is marked already, but its anchor is not.
        let fd = self.anchor_fd.get().map_or(fd, Internal::number);
        let Some(ofd) = self.entry() else { return };
        if ofd.state.load(Ordering::Acquire) & Ofd::BOTH == Ofd::BOTH {
            return;
        }
        let index = self.index.load(Ordering::Relaxed);
        let at = placeholder_offset(index).cast_signed();
        let marked = kernel::lseek(fd, at, SEEK_SET)
            .and_then(|_| kernel::lock_byte_shared(fd, lock_byte(index)));
        // Without its lock the server would free it with this client; it is shared all the same, so
        // that this client does not free it.
        let state = if marked.is_ok() {
            Ofd::BOTH
        } else {
            Ofd::SHARED
        };
        ofd.state.fetch_or(state, Ordering::AcqRel);
    }
}

impl Process {
    /// True if a child of vfork is calling. A forked child that nothing announced is detected here,
    /// and becomes the owner of its copy of the state.
    pub(super) fn is_vfork_child(&'static self) -> bool {
        match self.server.forks.memory_user() {
            MemoryUser::Owner => false,
            MemoryUser::VforkChild => true,
            MemoryUser::UnannouncedChild => {
                self.become_owner();
                for (fd, handle) in table::all() {
                    handle.mark_shared(fd);
                }
                false
            }
        }
    }

    /// True if the state is this process's own: false in a child of vfork, and in a forked child
    /// that was not detected yet.
    pub fn owns_memory(&self) -> bool {
        self.server.forks.is_owner()
    }

    /// Before fork(2), vfork(2), clone(2) of a process, posix_spawn(3): makes the
    /// descriptors ready to be shared, and takes this crate's locks.
    pub fn before_fork(&'static self) {
        if self.server.connection.instance().is_none() {
            return;
        }
        self.server.lock.acquire();
        self.server.forks.begin_fork();
        self.server.forks.detect_forks();
        #[cfg(debug_assertions)]
        crate::bugs::planted::set_off_in_step("before_fork");
        if !self.is_vfork_child() {
            self.name_cwd();
            for (fd, handle) in table::all() {
                handle.mark_shared(fd);
            }
        }
    }

    /// After fork, in the parent, even if it failed, or if [`Process::before_fork`] did not end.
    pub fn after_fork_parent(&'static self) {
        // Not if there was no instance yet when the fork began.
        if self.server.lock.is_mine() {
            self.server.forks.finish_fork();
            self.server.lock.release();
        }
    }

    /// After fork, in a child that has its own memory (not of vfork).
    pub fn after_fork_child(&'static self) {
        if self.server.connection.instance().is_some() {
            self.server.forks.forget_forks();
            self.become_owner();
            self.server.lock.release();
        }
    }

    /// Makes the tables this process's; it does not get the loans of the parent.
    fn become_owner(&'static self) {
        self.server.lock.inherit();
        self.server.forks.become_owner();
        self.server.connection.hang_up();
        self.open_files.forget_loans();
    }

    /// Before execve(2): makes the descriptors that will survive it ready, and publishes the
    /// written bytes, which ends the streams that wrote them. True if the program may inherit
    /// descriptors of weir's.
    pub fn before_exec(&'static self) -> bool {
        if self.server.connection.instance().is_none() {
            return true;
        }
        let _held = self.server.lock.hold();
        #[cfg(debug_assertions)]
        crate::bugs::planted::set_off_in_step("before_exec");
        self.name_cwd();
        let mut any = false;
        for (fd, handle) in table::all() {
            let survives = kernel::fcntl(fd, F_GETFD, 0).is_ok_and(|flags| flags & FD_CLOEXEC == 0);
            if survives {
                any = true;
                handle.mark_shared(fd);
            }
        }
        self.publish_written();
        any
    }

    /// Before a program begins without an interposer: replaces the descriptors that it inherits by
    /// files of the kernel mount, if there is one. The tables stay as they are: this process is
    /// about to become that program, and if it does not, it finds the descriptors to be the
    /// kernel's.
    pub fn replace_inherited_fds(&'static self) {
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
    fn make_real(
        &'static self,
        mount: &[u8],
        fd: Fd,
        handle: &'static Handle,
    ) -> Result<(), Errno> {
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
    pub fn has_inherited_fds(&'static self) -> bool {
        let is_inherited = |fd| kernel::fcntl(fd, F_GETFD, 0).is_ok_and(|f| f & FD_CLOEXEC == 0);
        self.server.connection.instance().is_some() && table::all().any(|(fd, _)| is_inherited(fd))
    }

    /// True if a program that posix_spawn(3) begins may inherit descriptors of weir's.
    pub fn may_have_inherited_fds(&'static self) -> bool {
        self.server.connection.instance().is_none() || table::all().next().is_some()
    }

    /// Before descriptors are sent to another process: makes those that are ours ready.
    pub fn share(&'static self, fds: &[Fd]) {
        let _held = self.server.lock.hold();
        for fd in fds {
            if let Some(handle) = table::get(*fd) {
                handle.mark_shared(*fd);
            }
        }
    }

    /// After descriptors were received: takes over those that stand for files of ours.
    pub fn received(&'static self, fds: &[Fd]) {
        let Some(instance) = self.instance() else {
            return;
        };
        for fd in fds {
            self.note_kernel_fd(*fd);
        }
        let _held = self.server.lock.hold();
        self.adopt_fds(Some(instance), fds.iter().copied());
    }
}
