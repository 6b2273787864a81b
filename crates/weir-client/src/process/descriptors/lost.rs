//! Descriptors that were closed behind weir's back.
//!
//! The kernel's table of descriptors is authoritative, and a program may change it by system calls
//! that weir does not see: its own (a runtime in assembler), or libc's internal ones. A number that
//! becomes free in this way is given to another file, and bytes written to that must not go to the
//! file of weir that had the number. Three checks prevent it:
//!
//! | check | when |
//! | --- | --- |
//! | libc's functions that return a descriptor, and `syscall` | as they return ([`Descriptors::note_kernel_fd`]) |
//! | calls that take long anyway, [`SURE_BYTES`] and more read or written | before they begin, by a look at the kernel's descriptor |
//! | weir's own descriptors ([`crate::internal`], slabs of the file tier) | before they are used |
//!
//! Left out: small reads and writes, lseek, fstat and fsync, after a number was closed *and* given anew by
//! system calls that do not go through libc. To look at the descriptor costs ten times such a call.

use core::sync::atomic::Ordering;

use rustix::fs::FileType;

use super::super::table::{self, Handle, GONE};
use super::Descriptors;
use crate::internal;
use crate::kernel::{self, Fd};
use crate::neighbour::KernelIdentity;

/// The length from which a read or a write checks its descriptor, at a cost of two per cent at
/// most.
pub(in super::super) const SURE_BYTES: usize = 1 << 20;

impl Descriptors {
    /// Forgets a descriptor that was closed or replaced behind our back (by libc, from inside).
    pub fn forget(&self, fd: Fd) {
        let _held = self.server.lock.hold();
        self.install(fd, None);
    }

    /// Called when the kernel has given `fd` to a file that is not weir's: an earlier file with
    /// this number was closed unnoticed.
    #[inline]
    pub fn note_kernel_fd(&self, fd: Fd) {
        if self.is_known_fd(fd) {
            self.forget_lost(fd);
        }
    }

    /// True if the descriptor is of a file of weir's, or of weir itself, as far as the tables say.
    #[inline]
    pub fn is_known_fd(&self, fd: Fd) -> bool {
        table::get(fd).is_some() || self.is_internal_fd(fd)
    }

    /// Forgets a descriptor of a file of weir's, or of weir itself, that was closed behind our back.
    #[cold]
    pub fn forget_lost(&self, fd: Fd) {
        let _held = self.server.lock.hold();
        // The descriptors of a child of vfork are its own, the table is its parent's.
        if self.is_vfork_child() {
            return;
        }
        internal::disown(fd);
        self.server.connection.disown_slab_fd(fd);
        self.install(fd, None);
    }

    /// As [`Descriptors::handle`], for calls long enough to check that the descriptor still refers to
    /// the same file.
    pub(in super::super) fn verified_handle(&self, fd: Fd) -> Option<&'static Handle> {
        let handle = self.handle(fd)?;
        if self.is_still(fd, handle) {
            return Some(handle);
        }
        self.forget_lost(fd);
        None
    }

    /// The handle for a transfer of this many bytes.
    #[inline(always)]
    #[allow(clippy::inline_always)] // on the way of every read and write
    pub(in super::super) fn handle_for(&self, fd: Fd, bytes: usize) -> Option<&'static Handle> {
        match bytes < SURE_BYTES {
            true => self.handle(fd),
            false => self.verified_handle(fd),
        }
    }

    /// True if the kernel's descriptor is a placeholder: a removed directory, and the own server's,
    /// unless the description is another server's.
    fn is_still(&self, fd: Fd, handle: &Handle) -> bool {
        let Ok(stat) = kernel::borrow(fd).and_then(rustix::fs::fstat) else {
            return false;
        };
        let is_dir = FileType::from_raw_mode(stat.st_mode) == FileType::Directory;
        let of_own = !handle.is_elsewhere() && handle.access.load(Ordering::Relaxed) & GONE == 0;
        let own = self.server.connection.session().filter(|_| of_own);
        is_dir
            && stat.st_nlink == 0
            && own.is_none_or(|session| {
                session.placeholder_identity() == KernelIdentity::from_stat(&stat)
            })
    }
}
