//! Reading and writing, at an offset and at the description's own.
//!
//! The parts of the hot path are always inlined: a result that goes through memory, written in
//! pieces of other sizes than it is read in, costs more than a small write itself.
//!
//! The path of a write: descriptor, handle, vnode; a handful of loads, nothing shared with another
//! process except the data that the write itself changes.
//!
//! The description's offset is shared by all processes that have it. A write reserves its bytes
//! there before it writes them, so no two writes through one description, in any process, overlap;
//! a read takes its bytes afterwards and reads again if another was faster. (Linux orders the calls
//! by a lock instead; a program sees the same, except if a write fails in the middle while another
//! follows it.)
//!
//! | file | subject |
//! | --- | --- |
//! | this one | read, write, lseek |
//! | `vector` | of several pieces of memory |
//! | `size` | ftruncate, fallocate, fsync |
//! | `copy` | copies between descriptors |
//! | `locks` | flock, and record locks of fcntl |

#![allow(clippy::inline_always)] // see above: measured

mod copy;
mod locks;
mod size;
mod vector;

use core::sync::atomic::Ordering;

use rustix::io::Errno;
use weir_core::node::ofd::Ofd;

use super::descriptors::Descriptors;
use super::inodes::InodeOperations;
use super::open_flags::{O_APPEND, O_DSYNC};
use super::server_link::ServerLink;
use super::table::{File, Handle, DIR, GONE, PATH, READ, WRITE};
use super::{Outcome, ProcessState};
use crate::errno::of_open;
use crate::kernel::Fd;
use crate::session::Session;
pub(super) use locks::until_granted;

const SEEK_SET: i32 = 0;
const SEEK_CUR: i32 = 1;
const SEEK_END: i32 = 2;
const SEEK_DATA: i32 = 3;
const SEEK_HOLE: i32 = 4;
/// The greatest offset: the largest `off_t`.
const MAX_OFFSET: u64 = i64::MAX as u64;

/// The calls on bytes of open files. They may touch the descriptors of the process, the way to the server, and
/// inodes; they know no paths.
#[derive(Debug)]
pub struct IoCalls {
    descriptors: Descriptors,
    server: &'static ServerLink,
    inodes: InodeOperations,
}

/// A file that is open in the mode that the caller needs.
#[derive(Clone, Copy)]
pub(super) struct Open {
    pub(super) file: &'static File,
    pub(super) ofd: &'static Ofd,
    pub(super) session: &'static Session,
}

impl IoCalls {
    pub(super) const fn over(state: &'static ProcessState) -> IoCalls {
        IoCalls {
            descriptors: Descriptors::over(state),
            server: &state.server,
            inodes: InodeOperations::over(state),
        }
    }

    /// write(2).
    #[inline(always)]
    pub fn write(&self, fd: Fd, bytes: &[u8]) -> Outcome<usize> {
        let handle = self.descriptors.handle_for(fd, bytes.len())?;
        Some(self.for_writing(handle).and_then(|open| open.write(bytes)))
    }

    /// pwrite(2). As on Linux, O_APPEND wins over the offset.
    #[inline(always)]
    pub fn pwrite(&self, fd: Fd, bytes: &[u8], offset: i64) -> Outcome<usize> {
        let handle = self.descriptors.handle_for(fd, bytes.len())?;
        let Ok(offset) = u64::try_from(offset) else {
            return Some(Err(Errno::INVAL));
        };
        Some(
            self.for_writing(handle)
                .and_then(|open| open.write_at(offset, bytes)),
        )
    }

    /// read(2).
    #[inline(always)]
    pub fn read(&self, fd: Fd, bytes: &mut [u8]) -> Outcome<usize> {
        let handle = self.descriptors.handle_for(fd, bytes.len())?;
        Some(self.for_reading(handle).and_then(|open| open.read(bytes)))
    }

    /// pread(2).
    #[inline(always)]
    pub fn pread(&self, fd: Fd, bytes: &mut [u8], offset: i64) -> Outcome<usize> {
        let handle = self.descriptors.handle_for(fd, bytes.len())?;
        // Also an end that `off_t` cannot hold.
        if offset < 0 || offset.wrapping_add_unsigned(bytes.len() as u64) < 0 {
            return Some(Err(Errno::INVAL));
        }
        let offset = offset.unsigned_abs();
        Some(
            self.for_reading(handle)
                .and_then(|open| open.read_at(offset, bytes)),
        )
    }

    /// The file behind `handle`, if it is open for writing.
    #[inline(always)]
    pub(super) fn for_writing(&self, handle: &'static Handle) -> Result<Open, Errno> {
        match (handle.file.get(), handle.ofd.get()) {
            (Some(file), Some(ofd)) if handle.has(WRITE) => Ok(Open {
                file,
                ofd,
                session: self.server.session()?,
            }),
            _ if handle.has(GONE) => Err(Errno::IO),
            _ => Err(Errno::BADF),
        }
    }

    /// The file behind `handle`, if it is open for reading.
    #[inline(always)]
    pub(super) fn for_reading(&self, handle: &'static Handle) -> Result<Open, Errno> {
        match (handle.file.get(), handle.ofd.get()) {
            (Some(file), Some(ofd)) if handle.has(READ) => Ok(Open {
                file,
                ofd,
                session: self.server.session()?,
            }),
            _ if handle.has(DIR) && !handle.has(PATH) => Err(Errno::ISDIR),
            _ if handle.has(GONE) => Err(Errno::IO),
            _ => Err(Errno::BADF),
        }
    }

    /// lseek(2). SEEK_SET of a directory takes an offset from its listing, or 0.
    pub fn lseek(&self, fd: Fd, offset: i64, whence: i32) -> Outcome<i64> {
        let handle = self.descriptors.handle(fd)?;
        Some(self.seek(handle, offset, whence))
    }

    fn seek(&self, handle: &'static Handle, offset: i64, whence: i32) -> Result<i64, Errno> {
        let ofd = handle.ofd.get().ok_or(Errno::BADF)?;
        if handle.has(PATH) {
            return Err(Errno::BADF);
        }
        let base = match whence {
            SEEK_SET => 0,
            // Another process may move it meanwhile: the move is one step.
            SEEK_CUR => return seek_from_here(ofd, offset),
            SEEK_END => signed(self.size(handle)?)?,
            SEEK_DATA | SEEK_HOLE => self.seek_data(handle, offset, whence == SEEK_HOLE)?,
            _ => return Err(Errno::INVAL),
        };
        let offset = if matches!(whence, SEEK_DATA | SEEK_HOLE) {
            0
        } else {
            offset
        };
        let to = target(base, offset)?;
        ofd.offset.store(to.unsigned_abs(), Ordering::Release);
        Ok(to)
    }

    pub(super) fn seek_data(&self, handle: &Handle, offset: i64, hole: bool) -> Result<i64, Errno> {
        let file = handle.file.get().ok_or(Errno::INVAL)?;
        let offset = u64::try_from(offset).map_err(|_| Errno::NXIO)?;
        let session = self.server.session()?;
        // Stores of programs in mappings are data too; the kernel may not have written them back yet.
        session.write_back(handle.ino()).transpose()?;
        let found = file.vnode.seek(session, offset, hole)?;
        signed(found.ok_or(Errno::NXIO)?)
    }

    /// The size of the file behind `handle`, bytes.
    pub(super) fn size(&self, handle: &Handle) -> Result<u64, Errno> {
        Ok(of_open(self.inodes.stat_of(handle.ino()))?.size)
    }
}

impl Open {
    /// write(2).
    #[inline(always)]
    fn write(self, bytes: &[u8]) -> Result<usize, Errno> {
        if is_special(self.ofd) {
            return self.write_specially(bytes);
        }
        let at = self.reserve(bytes.len())?;
        let done = self.file.vnode.write_at(self.session, at, bytes);
        self.settle(at, bytes.len(), done)
    }

    #[cold]
    #[inline(never)]
    fn write_specially(self, bytes: &[u8]) -> Result<usize, Errno> {
        let written = if appends(self.ofd) {
            self.append(bytes)?
        } else {
            let at = self.reserve(bytes.len())?;
            let done = self.file.vnode.write_at(self.session, at, bytes);
            self.settle(at, bytes.len(), done)?
        };
        self.synced(written)
    }

    /// Returns `written`, after a sync if the description asks for that.
    pub(super) fn synced(self, written: usize) -> Result<usize, Errno> {
        if written > 0 && syncs(self.ofd) {
            self.session.sync_file(self.file.vnode.ino())?;
        }
        Ok(written)
    }

    /// Takes the next `length` bytes at the description's offset for a write.
    #[inline(always)]
    pub(super) fn reserve(self, length: usize) -> Result<u64, Errno> {
        let offset = &self.ofd.offset;
        let mut at = offset.load(Ordering::Relaxed);
        loop {
            let end = at.saturating_add(length as u64);
            if end > MAX_OFFSET && length > 0 {
                return Err(Errno::INVAL);
            }
            // Atomic even if one thread has it alone: a signal handler may write too.
            match offset.compare_exchange_weak(at, end, Ordering::AcqRel, Ordering::Relaxed) {
                Ok(_) => return Ok(at),
                Err(now) => at = now,
            }
        }
    }

    /// Gives back the reserved bytes that were not written, if no reservation is behind them.
    #[inline(always)]
    pub(super) fn settle(
        self,
        at: u64,
        length: usize,
        done: Result<usize, Errno>,
    ) -> Result<usize, Errno> {
        let written = *done.as_ref().unwrap_or(&0);
        if written < length {
            let (from, to) = (at + length as u64, at + written as u64);
            let _ = self
                .ofd
                .offset
                .compare_exchange(from, to, Ordering::AcqRel, Ordering::Relaxed);
        }
        done
    }

    #[inline(always)]
    pub(super) fn append(self, bytes: &[u8]) -> Result<usize, Errno> {
        if bytes.is_empty() {
            return Ok(0);
        }
        let (at, written) = self.file.vnode.append(self.session, bytes)?;
        self.ofd
            .offset
            .store(at + written as u64, Ordering::Release);
        Ok(written)
    }

    /// Writes at an offset.
    #[inline(always)]
    pub(super) fn write_at(self, offset: u64, bytes: &[u8]) -> Result<usize, Errno> {
        if is_special(self.ofd) {
            return self.write_specially_at(offset, bytes);
        }
        self.file.vnode.write_at(self.session, offset, bytes)
    }

    #[cold]
    #[inline(never)]
    fn write_specially_at(self, offset: u64, bytes: &[u8]) -> Result<usize, Errno> {
        let vnode = &self.file.vnode;
        let written = if appends(self.ofd) {
            // The description's offset does not move.
            vnode.append(self.session, bytes)?.1
        } else {
            vnode.write_at(self.session, offset, bytes)?
        };
        self.synced(written)
    }

    /// read(2).
    #[inline(always)]
    fn read(self, bytes: &mut [u8]) -> Result<usize, Errno> {
        self.read_with(|open, at| open.read_at(at, bytes))
    }

    /// Reads at the description's offset by `read`, and moves it.
    #[inline(always)]
    pub(super) fn read_with(
        self,
        mut read: impl FnMut(Open, u64) -> Result<usize, Errno>,
    ) -> Result<usize, Errno> {
        let offset = &self.ofd.offset;
        let mut at = offset.load(Ordering::Acquire);
        loop {
            let got = read(self, at)?;
            let end = at + got as u64;
            match offset.compare_exchange(at, end, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => return Ok(got),
                Err(now) => at = now,
            }
        }
    }

    /// Reads at an offset.
    #[inline(always)]
    pub(super) fn read_at(self, offset: u64, bytes: &mut [u8]) -> Result<usize, Errno> {
        self.file.vnode.read_at(self.session, offset, bytes)
    }
}

fn seek_from_here(ofd: &Ofd, by: i64) -> Result<i64, Errno> {
    let mut at = ofd.offset.load(Ordering::Acquire);
    loop {
        let to = target(signed(at)?, by)?;
        let new = to.unsigned_abs();
        match ofd
            .offset
            .compare_exchange(at, new, Ordering::AcqRel, Ordering::Acquire)
        {
            Ok(_) => return Ok(to),
            Err(now) => at = now,
        }
    }
}

fn target(base: i64, by: i64) -> Result<i64, Errno> {
    match base.checked_add(by) {
        // Linux's error; POSIX has EOVERFLOW.
        None => Err(Errno::INVAL),
        Some(to) if to < 0 => Err(Errno::INVAL),
        Some(to) => Ok(to),
    }
}

fn signed(offset: u64) -> Result<i64, Errno> {
    i64::try_from(offset).map_err(|_| Errno::OVERFLOW)
}

/// True if a write through the description appends, or is synced before it returns.
#[inline]
fn is_special(ofd: &Ofd) -> bool {
    ofd.flags.load(Ordering::Relaxed).cast_signed() & (O_APPEND | O_DSYNC) != 0
}

/// True if a write through the description is synced before it returns (O_DSYNC, O_SYNC).
#[inline]
fn syncs(ofd: &Ofd) -> bool {
    ofd.flags.load(Ordering::Relaxed).cast_signed() & O_DSYNC != 0
}

/// True if a write through the description goes to the end of the file.
#[inline]
pub(super) fn appends(ofd: &Ofd) -> bool {
    ofd.flags.load(Ordering::Relaxed).cast_signed() & O_APPEND != 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seeking_stays_within_off_t() {
        let ofd = Ofd::default();
        assert_eq!(seek_from_here(&ofd, 10), Ok(10));
        assert_eq!(seek_from_here(&ofd, -11), Err(Errno::INVAL));
        assert_eq!(seek_from_here(&ofd, i64::MAX), Err(Errno::INVAL));
        assert_eq!(seek_from_here(&ofd, 0), Ok(10));
    }
}
