//! Makes mapped memory present, in huge pages where the kernel can.
//!
//! A first touch costs a fault: 0.6 GiB/s into fresh pages against 14 into present ones
//! and 20 into huge ones (DESIGN section 2). So the server's warmers touch slabs ahead of
//! time. No step changes contents, so all may run on memory in use:
//! - `MADV_COLLAPSE` (Linux 6.1) gathers pages into huge ones, even where huge pages of shared
//!   memory are configured off. It copies the small pages that are there and clears the rest, but
//!   gives up where there is none: so one is made in each huge page, and no more. With all of them
//!   there it took 2 to 11 times as long (0.3 to 1.0 GiB/s on 2 cores of a virtual machine, of
//!   which three quarters copied zeros; with one 2.3 to 3.4);
//! - `MADV_POPULATE_WRITE` (Linux 5.14) allocates and maps what is not there yet, and reports a
//!   full tmpfs as an error where a touch would raise SIGBUS. Before it, `fallocate` does the
//!   first half.
//!
//! Left out: the choice of slabs to warm, and of the time (`pool`).

use core::ffi::c_void;
use core::ops::Range;

use rustix::fd::AsFd;
use rustix::fs::{fallocate, FallocateFlags};
use rustix::io::Errno;
use rustix::mm::{madvise, Advice};

use crate::map::{Mapping, HUGE_PAGE_BYTES};

/// The size of the pages that [`warm`] got.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PageSize {
    /// Huge pages throughout.
    Huge,
    /// Present, but in small pages: the kernel does not collapse shared memory or found no huge
    /// page free. Holds the error.
    Small(Errno),
}

/// `MADV_COLLAPSE`, which rustix does not name.
const MADV_COLLAPSE: i32 = 25;

/// No page is smaller.
const SMALL_PAGE_BYTES: usize = 4096;

/// Makes `range` of `slab` (a mapping of `file`, aligned for huge pages) present.
///
/// Fails with `ENOSPC` if the file system is full, `ENOMEM` if memory is.
pub fn warm(slab: &Mapping, file: impl AsFd, range: Range<usize>) -> Result<PageSize, Errno> {
    assert!(range.start <= range.end && range.end <= slab.len());
    for start in range.clone().step_by(HUGE_PAGE_BYTES) {
        populate(
            slab,
            &file,
            &(start..range.end.min(start + SMALL_PAGE_BYTES)),
        )?;
    }
    let collapsed = collapse(slab, &range);
    populate(slab, file, &range)?;
    Ok(match collapsed {
        Ok(()) => PageSize::Huge,
        Err(errno) => PageSize::Small(errno),
    })
}

/// Makes `range` of a mapping of `file` present. Errors as for [`warm`].
pub(crate) fn populate(slab: &Mapping, file: impl AsFd, range: &Range<usize>) -> Result<(), Errno> {
    let first = slab.base().as_ptr().wrapping_add(range.start);
    loop {
        // SAFETY: the range is within the mapping (asserted by the caller); populating
        // changes no contents.
        let done = unsafe {
            madvise(
                first.cast::<c_void>(),
                range.len(),
                Advice::LinuxPopulateWrite,
            )
        };
        return match done {
            Ok(()) => Ok(()),
            Err(Errno::INTR | Errno::AGAIN) => continue,
            // A touch would have raised SIGBUS: no room on the file system.
            Err(Errno::FAULT) => Err(Errno::NOSPC),
            // A kernel before 5.14.
            Err(Errno::INVAL) => allocate(&file, range),
            Err(errno) => Err(errno),
        };
    }
}

/// Allocates the pages without mapping them.
fn allocate(file: &impl AsFd, range: &Range<usize>) -> Result<(), Errno> {
    let (offset, len) = (range.start as u64, range.len() as u64);
    rustix::io::retry_on_intr(|| fallocate(file, FallocateFlags::KEEP_SIZE, offset, len))
}

fn collapse(slab: &Mapping, range: &Range<usize>) -> Result<(), Errno> {
    let first = slab.base().as_ptr().wrapping_add(range.start);
    // SAFETY: the range is within the mapping (asserted by the caller); collapsing moves
    // pages but changes no contents. This is the one call of this crate that goes through
    // libc; only the server's warmers make it.
    let done = unsafe { libc::madvise(first.cast::<c_void>(), range.len(), MADV_COLLAPSE) };
    if done == 0 {
        return Ok(());
    }
    let errno = std::io::Error::last_os_error().raw_os_error();
    Err(errno.map_or(Errno::INVAL, Errno::from_raw_os_error))
}

#[cfg(test)]
mod tests {
    use core::sync::atomic::{AtomicU8, Ordering::Relaxed};

    use super::*;
    use crate::map::create_sparse;
    use crate::testdir::TestDir;

    #[test]
    fn warming_allocates_and_keeps_contents() {
        let dir = TestDir::new("warm");
        let len = 4 * HUGE_PAGE_BYTES;
        let file = create_sparse(dir.fd(), "slab", len as u64).unwrap();
        let viewer = Mapping::new(&file, len).unwrap().leak();
        let mapping = Mapping::new_huge_aligned(&file, len).unwrap();
        let bytes = viewer.slice::<AtomicU8>(0, len).unwrap();
        bytes[5].store(42, Relaxed);
        bytes[len - 1].store(43, Relaxed);
        let half = len / 2;
        warm(&mapping, &file, 0..half).unwrap();
        let blocks = rustix::fs::fstat(&file).unwrap().st_blocks;
        let present = |blocks: i64| usize::try_from(blocks * 512).unwrap();
        assert!(present(blocks) >= half && present(blocks) < len);
        warm(&mapping, &file, half..len).unwrap();
        assert_eq!(
            (bytes[5].load(Relaxed), bytes[len - 1].load(Relaxed)),
            (42, 43)
        );
        let blocks = rustix::fs::fstat(&file).unwrap().st_blocks;
        assert_eq!(present(blocks), len);
    }

    #[test]
    fn half_a_huge_page_is_made_present_too() {
        let dir = TestDir::new("warm");
        let len = 2 * HUGE_PAGE_BYTES;
        let file = create_sparse(dir.fd(), "slab", len as u64).unwrap();
        let mapping = Mapping::new_huge_aligned(&file, len).unwrap();
        let some = HUGE_PAGE_BYTES + HUGE_PAGE_BYTES / 2;
        warm(&mapping, &file, 0..some).unwrap();
        let blocks = rustix::fs::fstat(&file).unwrap().st_blocks;
        assert_eq!(usize::try_from(blocks * 512).unwrap(), some);
    }
}
