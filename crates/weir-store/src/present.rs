//! Memory behind a sparse shared file, made present before it is touched.
//!
//! Regions that servers and clients share are sparse files on tmpfs, of which only a small part is
//! used. A first touch of a page for which the file system has no room raises SIGBUS in the process
//! that touches it, and others fill a tmpfs too. So code that lends a part of a region calls [`PresentMemory::ensure`]
//! first, and gets an error if tmpfs is full.
//!
//! Memory is allocated in steps of [`STEP_BYTES`], so that most calls test a bit only; if there is no
//! room for a step, just the range is allocated.
//!
//! Left out: slabs, which are warmed or written (`warm`, `window`), and the journal, which grows
//! by itself.

use core::ops::Range;
use core::sync::atomic::{AtomicU64, Ordering};

use rustix::fd::OwnedFd;
use rustix::fs::{fallocate, FallocateFlags};
use rustix::io::Errno;

/// The size of the pieces in which memory is taken.
pub const STEP_BYTES: u64 = 256 << 10;
const PAGE_BYTES: u64 = 4096;

/// A sparse file and the record of its present memory, which stays present.
#[derive(Debug)]
pub struct PresentMemory {
    file: OwnedFd,
    len: u64,
    /// A bit a step.
    steps: Box<[AtomicU64]>,
}

impl PresentMemory {
    /// A file of `len` bytes, none of which is known to be present.
    pub fn new(file: OwnedFd, len: u64) -> PresentMemory {
        let words = len.div_ceil(STEP_BYTES).div_ceil(64);
        PresentMemory {
            file,
            len,
            steps: (0..words).map(|_| AtomicU64::new(0)).collect(),
        }
    }

    /// Allocates the memory behind a range that is not there yet. `ENOSPC`: the file system is full, and
    /// nothing of the range may be touched.
    pub fn ensure(&self, range: Range<u64>) -> Result<(), Errno> {
        if range.start > range.end || range.end > self.len {
            return Err(Errno::INVAL);
        }
        for step in range.start / STEP_BYTES..range.end.div_ceil(STEP_BYTES) {
            if self.has_step(step) {
                continue;
            }
            let whole = step * STEP_BYTES..((step + 1) * STEP_BYTES).min(self.len);
            match self.allocate(&whole) {
                Ok(()) => self.note_step(step),
                Err(Errno::NOSPC) => {
                    let first = range.start.max(whole.start) / PAGE_BYTES * PAGE_BYTES;
                    let end = range.end.min(whole.end).next_multiple_of(PAGE_BYTES);
                    self.allocate(&(first..end.min(self.len)))?;
                }
                Err(errno) => return Err(errno),
            }
        }
        Ok(())
    }

    /// Returns the end of the step that holds the byte before `end`, if that step is present; else
    /// `end`.
    pub fn present_end(&self, end: u64) -> u64 {
        match end.checked_sub(1) {
            Some(last) if self.has_step(last / STEP_BYTES) => {
                ((last / STEP_BYTES + 1) * STEP_BYTES).min(self.len)
            }
            _ => end,
        }
    }

    fn has_step(&self, step: u64) -> bool {
        let word = usize::try_from(step / 64)
            .ok()
            .and_then(|at| self.steps.get(at));
        word.is_some_and(|word| word.load(Ordering::Relaxed) & 1 << (step % 64) != 0)
    }

    fn note_step(&self, step: u64) {
        if let Some(word) = usize::try_from(step / 64)
            .ok()
            .and_then(|at| self.steps.get(at))
        {
            word.fetch_or(1 << (step % 64), Ordering::Relaxed);
        }
    }

    fn allocate(&self, range: &Range<u64>) -> Result<(), Errno> {
        let (at, len) = (range.start, range.end - range.start);
        if len == 0 {
            return Ok(());
        }
        rustix::io::retry_on_intr(|| fallocate(&self.file, FallocateFlags::empty(), at, len))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::map::create_sparse;
    use crate::testdir::TestDir;

    #[test]
    fn what_is_asked_for_is_present_and_little_more() {
        let dir = TestDir::new("present");
        let len = 10 * STEP_BYTES + 100;
        let file = create_sparse(dir.fd(), "region", len).unwrap();
        let look = rustix::io::dup(&file).unwrap();
        let blocks = || u64::try_from(rustix::fs::fstat(&look).unwrap().st_blocks).unwrap() * 512;
        let present = PresentMemory::new(file, len);
        assert_eq!(blocks(), 0);
        present.ensure(10..11).unwrap();
        assert_eq!(present.present_end(11), STEP_BYTES);
        assert_eq!(present.present_end(STEP_BYTES + 11), STEP_BYTES + 11);
        assert_eq!(blocks(), STEP_BYTES);
        present.ensure(STEP_BYTES - 1..STEP_BYTES + 1).unwrap();
        assert_eq!(blocks(), 2 * STEP_BYTES);
        present.ensure(0..0).unwrap();
        present.ensure(len - 1..len).unwrap();
        assert_eq!(blocks(), 2 * STEP_BYTES + PAGE_BYTES);
        assert_eq!(present.ensure(0..len + 1), Err(Errno::INVAL));
    }
}
