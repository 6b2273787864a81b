//! Descriptions that several processes share, and the process that the tables are of.
//!
//! Before a process may come to share a description with another, the description is *marked*: the
//! placeholder carries its index in the kernel's file offset, and a lock of the kernel's on one
//! byte lasts exactly as long as some process has the description. From then on the server alone
//! frees it. A forked child has the parent's tables, with every description marked, and makes its
//! own session when it needs one.

use core::sync::atomic::Ordering;

use weir_core::node::ofd::{lock_byte, placeholder_offset, Ofd};

use super::super::forks::MemoryUser;
use super::super::table::{self, Handle};
use super::Descriptors;
use crate::internal::Internal;
use crate::kernel::{self, Fd};

const SEEK_SET: i32 = 0;

impl Handle {
    /// Marks a description as one that other processes may have.
    pub(in super::super) fn mark_shared(&self, fd: Fd) {
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

impl Descriptors {
    /// True if a child of vfork is calling. A forked child that nothing announced is detected here,
    /// and becomes the owner of its copy of the state.
    pub(in super::super) fn is_vfork_child(&self) -> bool {
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

    /// Makes the tables this process's; it does not get the loans of the parent.
    pub(in super::super) fn become_owner(&self) {
        self.server.lock.inherit();
        self.server.forks.become_owner();
        self.server.connection.hang_up();
        self.open_files.forget_loans();
    }

    /// Before descriptors are sent to another process: makes those that are ours ready.
    pub fn share(&self, fds: &[Fd]) {
        let _held = self.server.lock.hold();
        for fd in fds {
            if let Some(handle) = table::get(*fd) {
                handle.mark_shared(*fd);
            }
        }
    }
}
