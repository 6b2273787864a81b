//! Sizes and durability: ftruncate, fallocate, fsync.

use rustix::fd::BorrowedFd;
use rustix::fs::FallocateFlags;
use rustix::io::Errno;
use weir_core::proto::{Allocate, Truncate};
use weir_core::types::Ino;

use super::super::inodes::InodeOperations;
use super::super::table::{Handle, PATH, READ, WRITE};
use super::super::Outcome;
use super::IoCalls;
use crate::beneath::zero_mapped;
use crate::kernel::{self, Fd};
use crate::limits;
use crate::operation;

const FALLOC_KEEP_SIZE: i32 = 1;
const FALLOC_PUNCH_HOLE: i32 = 2;
const FALLOC_ZERO_RANGE: i32 = 16;

impl IoCalls {
    /// ftruncate(2).
    pub fn ftruncate(&self, fd: Fd, length: i64) -> Outcome<()> {
        let _call = operation::begin();
        let handle = self.descriptors.verified_handle(fd)?;
        if handle.file.get().is_none() || !handle.has(WRITE) {
            return Some(Err(if handle.has(PATH) {
                Errno::BADF
            } else {
                Errno::INVAL
            }));
        }
        let intact = handle.intact();
        Some(intact.and_then(|()| self.inodes.set_size(handle.ino(), length)))
    }

    /// fsync(2).
    pub fn fsync(&self, fd: Fd) -> Outcome<()> {
        let _call = operation::begin();
        let handle = self.descriptors.handle(fd)?;
        Some(self.sync(handle))
    }

    /// fdatasync(2).
    pub fn fdatasync(&self, fd: Fd) -> Outcome<()> {
        self.fsync(fd)
    }

    /// Makes a file as durable as its tiers: memory as it is, files by fdatasync.
    fn sync(&self, handle: &Handle) -> Result<(), Errno> {
        if handle.has(PATH) {
            return Err(Errno::BADF);
        }
        let Some(file) = handle.file.get() else {
            return Ok(());
        };
        handle.intact()?;
        file.vnode.refine_time();
        self.server.session()?.sync_file(handle.ino())
    }

    /// sync_file_range(2).
    pub fn sync_file_range(&self, fd: Fd, offset: i64, length: i64, flags: u32) -> Outcome<()> {
        let handle = self.descriptors.verified_handle(fd)?;
        if offset < 0 || length < 0 || flags > 7 {
            return Some(Err(Errno::INVAL));
        }
        Some(self.sync(handle))
    }

    /// syncfs(2).
    pub fn syncfs(&self, fd: Fd) -> Outcome<()> {
        let handle = self.descriptors.verified_handle(fd)?;
        Some(match handle.has(PATH) {
            true => Err(Errno::BADF),
            false => Ok(()),
        })
    }

    /// readahead(2): accepted, without effect.
    pub fn readahead(&self, fd: Fd) -> Outcome<usize> {
        let handle = self.descriptors.verified_handle(fd)?;
        Some(if !handle.has(READ) {
            Err(Errno::BADF)
        } else if handle.file.get().is_none() {
            Err(Errno::INVAL)
        } else {
            Ok(0)
        })
    }

    /// fallocate(2); posix_fallocate(3) is mode 0. Does not reserve space: a later write may still
    /// fail with ENOSPC.
    pub fn fallocate(&self, fd: Fd, mode: i32, offset: i64, length: i64) -> Outcome<()> {
        let _call = operation::begin();
        let handle = self.descriptors.verified_handle(fd)?;
        Some(self.allocate(handle, mode, offset, length))
    }

    pub(in super::super) fn allocate(
        &self,
        handle: &Handle,
        mode: i32,
        offset: i64,
        length: i64,
    ) -> Result<(), Errno> {
        // Also a directory, which cannot be open for writing.
        if handle.file.get().is_none() || !handle.has(WRITE) {
            return Err(Errno::BADF);
        }
        handle.intact()?;
        let keep_size = mode & FALLOC_KEEP_SIZE != 0;
        let zero = match mode & !FALLOC_KEEP_SIZE {
            0 => false,
            FALLOC_PUNCH_HOLE if keep_size => true,
            FALLOC_ZERO_RANGE => true,
            _ => {
                self.server.count_refusal("fallocate-mode");
                return Err(Errno::OPNOTSUPP);
            }
        };
        let first = u64::try_from(offset).map_err(|_| Errno::INVAL)?;
        let bytes = u64::try_from(length).ok().filter(|n| *n > 0);
        let bytes = bytes.ok_or(Errno::INVAL)?;
        if offset.checked_add(length).is_none() {
            return Err(Errno::FBIG);
        }
        let (session, ino) = (self.server.session()?, handle.ino());
        if !zero || !keep_size {
            // Linux checks the end of the range even if the size stays, except for a hole.
            self.inodes.check_growth(ino, first + bytes)?;
        }
        self.inodes.clear_set_ids(ino)?;
        let flags = FallocateFlags::from_bits_retain(mode.cast_unsigned());
        let allocate = |file: BorrowedFd<'_>| match zero {
            true => zero_mapped(file, flags, first..first + bytes),
            false => rustix::fs::fallocate(file, flags, first, bytes),
        };
        if let Some(done) = session.if_mapped(ino, allocate) {
            return done;
        }
        session.call(Allocate {
            ino,
            offset: first,
            length: bytes,
            zero,
            keep_size,
        })
    }

    /// posix_fadvise(2): accepted, without effect.
    pub fn fadvise(&self, fd: Fd, _offset: i64, length: i64, advice: i32) -> Outcome<()> {
        let handle = self.descriptors.verified_handle(fd)?;
        Some(if handle.has(PATH) {
            Err(Errno::BADF)
        } else if length < 0 || !(0..=5).contains(&advice) {
            Err(Errno::INVAL)
        } else {
            Ok(())
        })
    }
}

impl InodeOperations {
    /// ETXTBSY if a program runs whose file this is, as far as the kernel knows: it maps the file then.
    pub(in super::super) fn check_not_running(self, ino: Ino) -> Result<(), Errno> {
        let session = self.server.session()?;
        if !session.is_mapped(ino) || self.attr(ino)?.mode & 0o111 == 0 {
            return Ok(());
        }
        match session.if_mapped(ino, |_| Ok(())) {
            Some(Err(Errno::TXTBSY)) => Err(Errno::TXTBSY),
            _ => Ok(()),
        }
    }

    pub(in super::super) fn set_size(self, ino: Ino, length: i64) -> Result<(), Errno> {
        let size = u64::try_from(length).map_err(|_| Errno::INVAL)?;
        self.check_growth(ino, size)?;
        self.clear_set_ids(ino)?;
        let session = self.server.session()?;
        let cut = session.if_mapped(ino, |file| rustix::fs::ftruncate(file, size));
        cut.unwrap_or_else(|| session.call(Truncate { ino, size }))
    }

    /// Fails with EFBIG, and the signal, if this process may not let a file grow to `size`.
    fn check_growth(self, ino: Ino, size: u64) -> Result<(), Errno> {
        if size > limits::file_bytes() && size > self.stat_of(ino)?.size {
            kernel::raise_file_size_signal();
            return Err(Errno::FBIG);
        }
        Ok(())
    }
}
