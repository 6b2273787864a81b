//! Mapped files: calls that go through the kernel mount beneath the interposer, and the sync of files.
//!
//! If programs have mapped a file, the kernel keeps pages of it. Reads and writes of the file then
//! go through the mount too, so that they and the pages are the same: the kernel writes a page back
//! before it reads its bytes, and drops a page whose bytes are written. The server's
//! `cluster/files/mapped.rs` says which files these are.

use core::sync::atomic::Ordering;

use rustix::fd::BorrowedFd;
use rustix::fs::OFlags;
use rustix::io::Errno;
use weir_core::proto::beneath::{PRIVATE, SHARED};
use weir_core::proto::Sync;
use weir_core::types::Ino;
use weir_store::slab::SlabId;

use super::Session;
use crate::beneath::{mount_of, open_inode, write_all, Transfer};
use crate::internal::{Internal, InternalSlot};
use crate::kernel::{self, Fd};

impl Session {
    /// True if the kernel keeps pages of a file. Always false in the mount itself: the kernel asks
    /// it for them.
    pub(crate) fn is_mapped(&self, ino: Ino) -> bool {
        self.names().is_mapped(ino) && self.header().mount.load(Ordering::Relaxed) == 0
    }

    /// Does something that changes a file as a whole through the kernel mount, if the kernel keeps
    /// pages of it: `None` if it does not, or the mount is gone.
    pub(crate) fn if_mapped<T>(
        &self,
        ino: Ino,
        act: impl FnOnce(BorrowedFd<'_>) -> Result<T, Errno>,
    ) -> Option<Result<T, Errno>> {
        if !self.is_mapped(ino) {
            return None;
        }
        let slot = InternalSlot::default();
        let opened = self.open_mapped(ino, &slot);
        let done = opened.and_then(|(fd, is_kept)| {
            let done = kernel::borrow(fd).and_then(act);
            if !is_kept {
                let _ = kernel::close(fd);
            }
            done
        });
        slot.take_descriptor().into_iter().for_each(Internal::close);
        there(done)
    }

    /// Lets the kernel write back the pages of a file and sync it: `None` if it keeps none.
    pub(crate) fn write_back(&self, ino: Ino) -> Option<Result<(), Errno>> {
        self.if_mapped(ino, |file| rustix::fs::fsync(file))
    }

    /// Makes a file as durable as its tiers; other servers see its bytes afterwards.
    pub(crate) fn sync_file(&self, ino: Ino) -> Result<(), Errno> {
        if let Some(written_back) = self.write_back(ino) {
            return written_back;
        }
        if self.is_all_in_memory() && !self.server_gone() {
            return Ok(());
        }
        for slab in self.call(Sync { ino })? {
            let slab = SlabId::from_raw(slab).ok_or(Errno::IO)?;
            self.slabs().sync(slab)?;
        }
        Ok(())
    }

    /// See [`crate::data::Host::move_mapped`].
    pub(crate) fn move_mapped(
        &self,
        ino: Ino,
        slot: &InternalSlot,
        bytes: Transfer<'_>,
    ) -> Option<Result<usize, Errno>> {
        let opened = match bytes {
            // Through a read-only descriptor: the kernel lets it ask the server, which knows what
            // other nodes have synced.
            Transfer::Read(..) => self.open_beneath(ino, slot, OFlags::RDONLY),
            Transfer::Write(..) => self.open_mapped(ino, slot),
        };
        let (fd, is_kept) = match opened {
            Ok(opened) => opened,
            Err(error) => return there(Err(error)),
        };
        let moved = kernel::borrow(fd).and_then(|file| match bytes {
            Transfer::Read(offset, bytes) => rustix::io::pread(file, bytes, offset),
            Transfer::Write(offset, bytes) => write_all(file, offset, bytes),
        });
        if !is_kept {
            let _ = kernel::close(fd);
        }
        there(moved)
    }

    /// The descriptor of a file in the mount, and true if `slot` keeps it; if false, the caller
    /// closes it. It is read-only where the file's mode allows no more.
    pub(crate) fn open_mapped(&self, ino: Ino, slot: &InternalSlot) -> Result<(Fd, bool), Errno> {
        let shared = OFlags::from_bits_retain(SHARED.cast_unsigned());
        self.open_beneath(ino, slot, OFlags::RDWR | shared)
    }

    /// A descriptor for private mappings alone; otherwise as [`Session::open_mapped`].
    pub(crate) fn open_private(&self, ino: Ino, slot: &InternalSlot) -> Result<(Fd, bool), Errno> {
        let private = OFlags::from_bits_retain(PRIVATE.cast_unsigned());
        self.open_beneath(ino, slot, OFlags::RDONLY | private)
    }

    /// A descriptor for shared mappings that only read: the kernel must know that they may not become
    /// writable. Never kept.
    pub(crate) fn open_readable(&self, ino: Ino) -> Result<(Fd, bool), Errno> {
        let mount = mount_of(self.run_dir()).ok_or(Errno::NOTCONN)?;
        Ok((open_inode(&mount, ino, OFlags::RDONLY)?, false))
    }

    fn open_beneath(
        &self,
        ino: Ino,
        slot: &InternalSlot,
        flags: OFlags,
    ) -> Result<(Fd, bool), Errno> {
        if let Some(fd) = slot.get().and_then(Internal::sure) {
            return Ok((fd, true));
        }
        let mount = mount_of(self.run_dir()).ok_or(Errno::NOTCONN)?;
        let opened = match open_inode(&mount, ino, flags) {
            Err(Errno::ACCESS | Errno::ROFS) if flags.contains(OFlags::RDWR) => {
                open_inode(&mount, ino, OFlags::RDONLY)?
            }
            opened => opened?,
        };
        match Internal::adopt_spare(opened) {
            Ok(kept) => {
                if let Some(lost) = slot.replace(kept) {
                    lost.close();
                }
                Ok((kept.number(), true))
            }
            // The table has no room to keep one more.
            Err(opened) => Ok((opened, false)),
        }
    }
}

/// `None` if the mount is gone, and the kernel's pages with it. The directory of the mount may be
/// left, if the name of an inode is too long for one of the kernel's file systems.
fn there<T>(done: Result<T, Errno>) -> Option<Result<T, Errno>> {
    match done {
        Err(
            Errno::NOTCONN | Errno::CONNABORTED | Errno::NOENT | Errno::NODEV | Errno::NAMETOOLONG,
        ) => None,
        done => Some(done),
    }
}
