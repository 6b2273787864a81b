//! Handles to mapped pieces of slabs, and the writing of segments through them.
//!
//! A [`Window`] is made with its bounds checked once; its reads and writes then check theirs
//! against it, and copy. A [`SegmentWriter`] is a window on a segment lent to this process that
//! knows how far its pages are mapped: stores go only there.
//!
//! Even the pages of a warm segment must be mapped by each process. A huge page takes one
//! fault; where the kernel gives small pages only (before Linux 6.1), a store to each
//! would fault: 1.5 GiB/s. A load maps the sixteen pages around it at once, and tmpfs
//! pages are mapped writable even so: loads ahead make that 6.5 GiB/s, against 5.0 for
//! pwrite, and cost nothing measurable where pages are huge.
//!
//! The fastest ways to fill a cold segment are (measured here, one process
//! and four, into fresh tmpfs pages): pwrite 2.5 to 3.5 and 2.8 to 3.7 GiB/s, populating
//! and then storing 1.6 and 1.3 to 2.3, faulting page by page 1.1 and 0.9. So larger
//! writes go by pwrite, and small ones, for which a system call each would be dear,
//! through pages populated a few at a time.

use core::ffi::c_void;
use core::sync::atomic::{AtomicUsize, Ordering};

use rustix::io::Errno;
use rustix::mm::{madvise, Advice};

use crate::copy::{copy_in, copy_out};
use crate::slab::SlabId;
use crate::slabmap::SlabMap;

/// The least length of a write to absent pages that is done by pwrite.
const PWRITE_MIN_BYTES: usize = 16 << 10;

/// The number of bytes populated at a time for smaller writes.
const POPULATE_BYTES: usize = 64 << 10;

/// The number of bytes of a warm segment that are mapped at a time.
const MAP_AHEAD_BYTES: usize = 1 << 20;

/// The range that the kernel maps around a load that faults: its default, 64 KiB, aligned.
const FAULT_AROUND_BYTES: usize = 64 << 10;

/// A piece of a mapped slab; valid until the process ends.
#[derive(Debug, Clone, Copy)]
pub struct Window {
    base: *mut u8,
    len: usize,
}

// SAFETY: a window is an address range mapped for the life of the process; the copies allow for
// other threads and processes that change its bytes at the same time.
unsafe impl Send for Window {}
// SAFETY: a window is never changed, and its copies allow for other threads that change its bytes.
unsafe impl Sync for Window {}

impl Window {
    /// # Safety
    ///
    /// `base..base + len` must stay mapped, readable and writable, until the process
    /// ends, and no Rust reference to any of it may exist.
    pub(crate) unsafe fn new(base: *mut u8, len: usize) -> Window {
        Window { base, len }
    }

    /// Its size in bytes.
    #[inline]
    pub fn len(&self) -> usize {
        self.len
    }

    /// The address at which it begins, for calls of the kernel.
    pub(crate) fn base(&self) -> *mut u8 {
        self.base
    }

    /// The `len` bytes from `at` on, if they lie within.
    pub fn part(&self, at: usize, len: usize) -> Option<Window> {
        let within = at <= self.len && len <= self.len - at;
        // SAFETY: the part lies within the window, which stays mapped as `new` requires, and so does the part.
        within.then(|| unsafe { Window::new(self.base.add(at), len) })
    }

    /// True if it has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Copies `bytes` to `at`, which must lie within. They are visible to all processors before any
    /// later store of the caller.
    #[inline(always)]
    #[allow(clippy::inline_always)] // as for `copy_in`
    pub fn write(&self, at: usize, bytes: &[u8]) {
        assert!(at <= self.len && bytes.len() <= self.len - at);
        // SAFETY: the destination lies within the window (asserted), which is writable
        // (`Window::new`); no reference to it exists, so `bytes` lies elsewhere.
        unsafe { copy_in(self.base.add(at), bytes.as_ptr(), bytes.len()) }
    }

    /// The same bytes, to be read alone.
    #[inline]
    pub fn for_reading(&self) -> ReadWindow {
        // SAFETY: what is mapped readable and writable is mapped readable.
        unsafe { ReadWindow::new(self.base, self.len) }
    }

    /// Copies the bytes at `at`, which must lie within, to `bytes`; see [`ReadWindow::read`].
    #[inline]
    pub fn read(&self, at: usize, bytes: &mut [u8]) {
        self.for_reading().read(at, bytes);
    }

    /// Maps its pages into this process ahead of stores, by loads; for warm memory, whose pages are
    /// all present (loads of absent pages would make pages too, or raise SIGBUS if tmpfs is full).
    /// Useful wherever pages are small, see above.
    pub fn prepare(&self) {
        self.map_ahead(0, self.len);
    }

    fn map_ahead(&self, from: usize, to: usize) {
        assert!(from <= to && to <= self.len);
        for at in (from..to).step_by(FAULT_AROUND_BYTES) {
            // SAFETY: `at` lies within the window, which is readable. The byte may be
            // written by others meanwhile; it is not used.
            core::hint::black_box(unsafe { self.base.add(at).read_volatile() });
        }
    }

    /// Makes the pages that hold `from..to` present, as far as they lie in the window.
    fn populate(&self, from: usize, to: usize) -> Result<(), Errno> {
        let page = rustix::param::page_size();
        assert!(from <= to && to <= self.len);
        // A gap may begin and end within a page: the pages are the slab's.
        let ahead = (self.base as usize + from) % page;
        let len = (ahead + to - from).next_multiple_of(page);
        loop {
            // SAFETY: these are the pages that hold the range, which lies in the window and
            // hence in a slab; a slab is mapped whole, and has whole pages. Populating
            // changes no contents.
            let done = unsafe {
                let first = self.base.add(from).cast::<c_void>();
                madvise(first.byte_sub(ahead), len, Advice::LinuxPopulateWrite)
            };
            match done {
                Err(Errno::INTR | Errno::AGAIN) => {}
                // The pages cannot be had: a store would have raised SIGBUS.
                Err(Errno::FAULT) => return Err(Errno::NOSPC),
                other => return other,
            }
        }
    }
}

/// A piece of mapped memory that this process may not store to; valid until the process ends.
#[derive(Debug, Clone, Copy)]
pub struct ReadWindow {
    base: *const u8,
    len: usize,
}

// SAFETY: an address range mapped for the life of the process, of which the copies allow for changes.
unsafe impl Send for ReadWindow {}
// SAFETY: a window is never changed, and its copies allow for other threads that change its bytes.
unsafe impl Sync for ReadWindow {}

impl ReadWindow {
    /// # Safety
    ///
    /// `base..base + len` must stay mapped and readable until the process ends, and no Rust
    /// reference to any of it may exist.
    pub(crate) unsafe fn new(base: *const u8, len: usize) -> ReadWindow {
        ReadWindow { base, len }
    }

    /// Its size in bytes.
    #[inline]
    pub fn len(&self) -> usize {
        self.len
    }

    /// True if it has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The `len` bytes from `at` on, if they lie within.
    pub fn part(&self, at: usize, len: usize) -> Option<ReadWindow> {
        let within = at <= self.len && len <= self.len - at;
        // SAFETY: the part lies within the window, which stays mapped as `new` requires, and so does the part.
        within.then(|| unsafe { ReadWindow::new(self.base.add(at), len) })
    }

    /// Copies the bytes at `at`, which must lie within, to `bytes`. A store to them at the same
    /// time may be seen in part.
    #[inline]
    pub fn read(&self, at: usize, bytes: &mut [u8]) {
        assert!(at <= self.len && bytes.len() <= self.len - at);
        // SAFETY: the source lies within the window (asserted); no reference to it
        // exists, so `bytes` lies elsewhere.
        unsafe { copy_out(bytes.as_mut_ptr(), self.base.add(at), bytes.len()) }
    }
}

/// Writes into a segment of the memory tier that this process was lent.
///
/// Threads may write at once, to different ranges. A forked child has its own copy.
#[derive(Debug)]
pub struct SegmentWriter {
    window: Window,
    slab: SlabId,
    /// The offset of the segment in its slab.
    pos: u64,
    /// True if all pages are present.
    warm: bool,
    /// All pages before this are present and mapped.
    ready: AtomicUsize,
}

impl SegmentWriter {
    pub(crate) fn new(window: Window, slab: SlabId, pos: u64, warm: bool) -> SegmentWriter {
        SegmentWriter {
            window,
            slab,
            pos,
            warm,
            ready: AtomicUsize::new(0),
        }
    }

    /// The segment's bytes.
    pub fn window(&self) -> Window {
        self.window
    }

    /// The slab it lies in.
    pub fn slab(&self) -> SlabId {
        self.slab
    }

    /// Its offset in its slab, in bytes.
    pub fn pos(&self) -> u64 {
        self.pos
    }

    /// Its length in bytes.
    #[allow(clippy::len_without_is_empty)] // a segment is never empty
    #[inline]
    pub fn len(&self) -> usize {
        self.window.len()
    }

    /// Writes `bytes` at `at` of the segment, which must lie within. They are visible to all
    /// processes before any later store of the caller.
    ///
    /// Only a cold segment can fail: `ENOSPC` if tmpfs is full (ask for another segment, and tell
    /// the server that this one is of no use).
    #[inline]
    pub fn write(&self, map: &SlabMap, at: usize, bytes: &[u8]) -> Result<(), Errno> {
        let end = at.checked_add(bytes.len()).ok_or(Errno::IO)?;
        if end <= self.ready.load(Ordering::Acquire) {
            self.window.write(at, bytes);
            return Ok(());
        }
        self.write_ahead(map, at, end, bytes)
    }

    /// Maps more pages, then writes; or writes by other means.
    #[cold]
    fn write_ahead(&self, map: &SlabMap, at: usize, end: usize, bytes: &[u8]) -> Result<(), Errno> {
        if end > self.len() {
            return Err(Errno::IO);
        }
        // Mapping continues from the known end of the mapped part, not from `at`: another thread
        // may have been given the range before ours and not have written it yet.
        let ready = self.ready.load(Ordering::Acquire);
        if self.warm {
            let to = end.next_multiple_of(MAP_AHEAD_BYTES).min(self.len());
            self.window.map_ahead(ready.min(to), to);
            self.ready.fetch_max(to, Ordering::AcqRel);
            self.window.write(at, bytes);
            return Ok(());
        }
        let pwrite = || map.write_cold(self.slab, self.pos + at as u64, bytes);
        if bytes.len() >= PWRITE_MIN_BYTES {
            return pwrite();
        }
        let to = end.next_multiple_of(POPULATE_BYTES).min(self.len());
        match self.window.populate(ready.min(to), to) {
            Ok(()) => {
                self.ready.fetch_max(to, Ordering::AcqRel);
                self.window.write(at, bytes);
                Ok(())
            }
            // A kernel before 5.14.
            Err(Errno::INVAL) => pwrite(),
            Err(errno) => Err(errno),
        }
    }
}
