//! The shared state of a file that is open for writing on this node.
//!
//! A block is lent by the server when the first client attaches to write, and taken
//! back when the last one has detached. Line 0 is read at every write and written
//! seldom; line 1 is written when a record begins or an append reserves its place.
//!
//! No single word holds the size of such a file, because N writers that extend it would fight for
//! its cache line: it is the greatest of `base_size` and the ends that the writers' cells show
//! ([`FileBlock::size`]).

use crate::sync::{fence, AtomicU32, AtomicU64, Ordering};

use super::cell::Cell;

/// The state that the writers of one file share. Two cache lines.
#[repr(C, align(128))]
#[derive(Debug, Default)]
pub struct FileBlock {
    /// The inode number; 0: the block is free.
    pub ino: AtomicU64,
    /// Bumped to end every claim of the file (a conflict, a truncation).
    pub epoch: AtomicU64,
    /// The stamp of the newest truncation: cells whose stamp is older no longer
    /// count for the size.
    pub trunc_stamp: AtomicU64,
    /// The size without the bytes that attached cells have written since.
    pub base_size: AtomicU64,
    /// Odd while the server changes `trunc_stamp` and `base_size` together.
    pub size_version: AtomicU64,
    /// The first cell of the file's list: index + 1, 0 for none.
    pub head: AtomicU32,
    /// 1: other nodes write the file too, and a program that appends asks its home for the offset.
    pub appends_elsewhere: AtomicU32,
    /// The word that a writer checks before a record begins or grows: [`FREE`], [`HELD`] or
    /// [`ASK`].
    pub tokens: AtomicU64,
    /// Bumped when this node gives up its write token of the file.
    pub revocations: AtomicU64,
    /// The stamp that the next record takes.
    pub next_stamp: AtomicU64,
    /// The end of all appends: reserved here, or handed out by the file's home.
    pub append: AtomicU64,
    /// The value of `append` when appends began to go elsewhere: reservations below stay valid.
    pub counted: AtomicU64,
    /// Bumped when the server takes all records for finished ([`FileBlock::settle`]).
    pub settlings: AtomicU64,
    /// The size that the newest truncation gave; `u64::MAX` while the server changes it.
    pub trunc_size: AtomicU64,
    spare_shared: [AtomicU64; 3],
}

/// [`FileBlock::tokens`]: the file is not raw, and writers do not ask.
pub const FREE: u64 = 0;
/// The file is raw, and this node may write all of it.
pub const HELD: u64 = 1;
/// The file is raw, and a writer that begins a record asks the server for a write token.
pub const ASK: u64 = 2;

/// The number of times that a reader looks again while the server changes the size, before it takes
/// the words that are there: a server killed in between must not hang its clients.
const SIZE_RETRIES: u32 = 10_000;

impl FileBlock {
    /// Prepares the block for `ino`, whose size is `size` and whose extents carry
    /// stamps below `next_stamp` (at least 1: stamp 0 belongs to settled extents).
    pub fn lend(&self, ino: u64, size: u64, next_stamp: u64) {
        debug_assert!(next_stamp > 0);
        self.trunc_stamp.store(0, Ordering::Relaxed);
        self.base_size.store(size, Ordering::Relaxed);
        self.head.store(0, Ordering::Relaxed);
        self.next_stamp.store(next_stamp, Ordering::Relaxed);
        self.append.store(0, Ordering::Relaxed);
        self.counted.store(0, Ordering::Relaxed);
        self.appends_elsewhere.store(0, Ordering::Relaxed);
        self.tokens.store(FREE, Ordering::Relaxed);
        self.epoch.fetch_add(1, Ordering::AcqRel);
        self.ino.store(ino, Ordering::Release);
    }

    /// Returns a stamp for a record that begins now. Stamps of one file follow real time: a write
    /// that began after another returned has the greater one.
    pub fn stamp(&self) -> u64 {
        self.next_stamp.fetch_add(1, Ordering::AcqRel)
    }

    /// Ends every claim of the file; writes after this call are in records with new stamps.
    pub fn end_claims(&self) {
        self.epoch.fetch_add(1, Ordering::AcqRel);
    }

    /// Ends every claim of the file, and returns a stamp: no record with a lower one grows any more (server only).
    /// A writer that looked before sees that `settlings` changed once its bytes are in place: either the
    /// server's next look at the cells finds the bytes, or the writer writes them to a new record. (The
    /// server ensures this by a barrier on all processors before it looks.)
    pub fn settle(&self) -> u64 {
        // Before the claims end: a record that has its claim from then on has a greater stamp.
        let stamp = self.stamp();
        self.end_claims();
        self.settlings.fetch_add(1, Ordering::SeqCst);
        stamp
    }

    /// Ends this node's right to write a raw file without asking (server only). A writer that
    /// looked before sees that `revocations` changed once its bytes are in place: either the
    /// server's next look at the cells finds the bytes, or the writer finds that it must ask. (The
    /// server ensures this by a barrier on all processors before it looks.)
    pub fn revoke(&self) {
        self.tokens.store(ASK, Ordering::SeqCst);
        self.revocations.fetch_add(1, Ordering::SeqCst);
        self.end_claims();
    }

    /// Sets the size (server only). All earlier writes are cut or kept by the returned stamp, which
    /// the caller gives to the hole beyond `size`.
    pub fn truncate(&self, size: u64) -> u64 {
        self.size_version.fetch_add(1, Ordering::AcqRel);
        self.end_claims();
        let stamp = self.stamp();
        self.trunc_size.store(u64::MAX, Ordering::Release);
        self.trunc_stamp.store(stamp, Ordering::Release);
        self.base_size.store(size, Ordering::Release);
        self.trunc_size.store(size, Ordering::Release);
        self.append.store(0, Ordering::Release);
        self.counted.store(0, Ordering::Release);
        self.size_version.fetch_add(1, Ordering::AcqRel);
        stamp
    }

    /// The newest truncation: its size and its stamp. A server that was killed in it may have left no other
    /// trace of it.
    pub fn last_truncation(&self) -> Option<(u64, u64)> {
        let stamp = self.trunc_stamp.load(Ordering::Acquire);
        (stamp > 0).then(|| (self.trunc_size.load(Ordering::Acquire), stamp))
    }

    /// Raises the size to at least `size` (server only: a cell that goes, a file that is extended
    /// without writing).
    pub fn raise(&self, size: u64) {
        self.base_size.fetch_max(size, Ordering::AcqRel);
    }

    /// Returns the file's size as of now: every write that returned before this call counts.
    pub fn size(&self, cells: &[Cell]) -> u64 {
        let mut tries = 0;
        loop {
            let version = self.size_version.load(Ordering::Acquire);
            let trunc = self.trunc_stamp.load(Ordering::Acquire);
            let mut size = self.base_size.load(Ordering::Acquire);
            for (_, cell) in self.cells(cells) {
                size = size.max(cell.end_after(trunc));
            }
            fence(Ordering::Acquire);
            let same = self.size_version.load(Ordering::Relaxed) == version;
            tries += 1;
            if (same && version.is_multiple_of(2)) || tries > SIZE_RETRIES {
                return size;
            }
            core::hint::spin_loop();
        }
    }

    /// Makes programs that append ask the file's home for the offset, from now on (server only).
    /// Returns the end of this node's appends.
    pub fn share_appends(&self) -> u64 {
        let shared = self.appends_elsewhere.swap(1, Ordering::SeqCst) != 0;
        fence(Ordering::SeqCst);
        let append = self.append.load(Ordering::SeqCst);
        if !shared {
            self.counted.store(append, Ordering::SeqCst);
        }
        append
    }

    /// True if a program reserved the bytes `[at, at + length)` before [`FileBlock::share_appends`].
    /// The file's home has counted these. It may have given later reservations to another node.
    pub fn is_counted(&self, at: u64, length: u64) -> bool {
        let counted = self.counted.load(Ordering::SeqCst);
        at.checked_add(length).is_some_and(|end| end <= counted)
    }

    /// Records that the file's home handed out the bytes below `end` (server only). Until they are
    /// written, nothing else on this node shows this.
    pub fn placed_below(&self, end: u64) {
        self.append.fetch_max(end, Ordering::SeqCst);
    }

    /// Returns true if the file's home chooses the offsets of appends. Also checked after a
    /// reservation: the server sets this before it looks at the reservations, so one of the two
    /// sees the other.
    pub fn shares_appends(&self) -> bool {
        fence(Ordering::SeqCst);
        self.appends_elsewhere.load(Ordering::SeqCst) != 0
    }

    /// Reserves `length` bytes at the end of the file for an append; returns their offset. No two
    /// appends get overlapping bytes.
    pub fn reserve_append(&self, cells: &[Cell], length: u64) -> u64 {
        loop {
            let reserved = self.append.load(Ordering::Acquire);
            let at = self.size(cells).max(reserved);
            let end = at.saturating_add(length);
            if self
                .append
                .compare_exchange(reserved, end, Ordering::AcqRel, Ordering::Acquire)
                .is_ok()
            {
                return at;
            }
        }
    }

    /// Returns the cells of the file, with their indexes. Links are checked and the walk is
    /// bounded, because any client could have written over them.
    pub fn cells<'a>(&self, cells: &'a [Cell]) -> impl Iterator<Item = (u32, &'a Cell)> {
        let mut next = self.head.load(Ordering::Acquire);
        let mut left = cells.len();
        core::iter::from_fn(move || {
            let index = next.checked_sub(1)?;
            let cell = cells.get(index as usize)?;
            left = left.checked_sub(1)?;
            next = cell.next.load(Ordering::Acquire);
            Some((index, cell))
        })
    }

    /// Returns a number that grows with each write to the file by cells other than `except`, while
    /// the same cells are attached. Two equal readings mean that nothing was written between them.
    pub fn activity(&self, cells: &[Cell], except: Option<u32>) -> u64 {
        let mut sum = self.epoch.load(Ordering::Acquire);
        for (index, cell) in self.cells(cells) {
            if Some(index) != except {
                sum = sum
                    .wrapping_add(cell.committed.load(Ordering::Acquire))
                    .wrapping_add(cell.version.load(Ordering::Acquire))
                    .wrapping_add(u64::from(index) << 40);
            }
        }
        sum
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::node::cell::State;

    fn attach(block: &FileBlock, cells: &[Cell], index: u32) {
        let cell = &cells[index as usize];
        cell.lend(0, 7, block.head.load(Ordering::Relaxed));
        block.head.store(index + 1, Ordering::Release);
    }

    fn write(block: &FileBlock, cell: &Cell, offset: u64, length: u64) {
        let old = cell.state();
        let mut state = State::begin(offset, 0, 0, block.stamp(), &old, block);
        state.mark = cell.committed.load(Ordering::Relaxed);
        cell.replace(&state);
        cell.commit(state.mark + length);
    }

    #[test]
    fn the_size_is_the_greatest_end_of_all_writers() {
        let block = FileBlock::default();
        let cells: Vec<Cell> = (0..3).map(|_| Cell::default()).collect();
        block.lend(1, 10, 1);
        assert_eq!(block.size(&cells), 10);
        attach(&block, &cells, 0);
        attach(&block, &cells, 2);
        write(&block, &cells[0], 100, 5);
        write(&block, &cells[2], 40, 5);
        assert_eq!(block.size(&cells), 105);
        write(&block, &cells[0], 0, 5);
        assert_eq!(block.size(&cells), 105, "an end outlives its record");
    }

    #[test]
    fn a_truncation_forgets_what_was_written_before_it_only() {
        let block = FileBlock::default();
        let cells: Vec<Cell> = (0..2).map(|_| Cell::default()).collect();
        block.lend(1, 0, 1);
        attach(&block, &cells, 0);
        attach(&block, &cells, 1);
        write(&block, &cells[0], 100, 5);
        let stamp = block.truncate(20);
        assert!(stamp > 0);
        assert_eq!(block.size(&cells), 20);
        write(&block, &cells[1], 30, 1);
        assert_eq!(block.size(&cells), 31);
        write(&block, &cells[0], 0, 1);
        assert_eq!(block.size(&cells), 31, "the old end stays forgotten");
    }

    #[test]
    fn appends_never_share_bytes() {
        let block = FileBlock::default();
        let cells = [Cell::default()];
        block.lend(1, 7, 1);
        assert_eq!(block.reserve_append(&cells, 3), 7);
        assert_eq!(block.reserve_append(&cells, 5), 10);
        block.truncate(2);
        assert_eq!(block.reserve_append(&cells, 1), 2);
    }

    #[test]
    fn what_is_reserved_after_appends_went_elsewhere_does_not_count() {
        let block = FileBlock::default();
        let cells = [Cell::default()];
        block.lend(1, 0, 1);
        assert_eq!(block.reserve_append(&cells, 10), 0);
        assert_eq!(block.share_appends(), 10);
        assert_eq!(block.reserve_append(&cells, 5), 10);
        assert!(block.is_counted(0, 10));
        assert!(!block.is_counted(10, 5));
        assert!(!block.is_counted(1, u64::MAX));
        block.placed_below(40);
        assert_eq!(block.share_appends(), 40, "a place that is not written yet");
        assert!(!block.is_counted(10, 5), "asked again");
        block.truncate(3);
        assert!(!block.is_counted(0, 10));
    }

    #[test]
    fn a_list_that_runs_in_circles_or_away_ends() {
        let block = FileBlock::default();
        let cells: Vec<Cell> = (0..4).map(|_| Cell::default()).collect();
        block.lend(1, 7, 1);
        block.head.store(2, Ordering::Relaxed);
        cells[1].next.store(2, Ordering::Relaxed);
        assert_eq!(block.cells(&cells).count(), 4);
        cells[1].next.store(999, Ordering::Relaxed);
        assert_eq!(block.cells(&cells).count(), 1);
    }

    #[test]
    fn format_of_a_block() {
        use crate::node::format::check_format;
        check_format!(FileBlock: ino epoch trunc_stamp base_size size_version head appends_elsewhere tokens revocations next_stamp append counted settlings trunc_size);
    }
}
