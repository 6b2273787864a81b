//! A writer's cell: the extent record that one client is still growing in one file.
//!
//! ```text
//! line 0   block client next generation | claim_version, claim (5 words)
//! line 1   version committed mtime ...           written at every write
//! line 2   state copy 0   (10 words, 128 bytes)
//! line 4   state copy 1
//! ```
//!
//! A record is `count` whole pieces of `length` bytes, `stride` apart, and then one *live* piece
//! that grows. Growing is one store to `committed`; every other change writes the copy that is not
//! in force and then bumps `version`, whose lowest bit names the copy in force. So at every
//! instant, also one at which the writer is killed, the cell describes exactly its finished writes.
//!
//! `committed` counts all bytes that went through the cell and never falls: the live
//! piece has `committed - mark` of them. That makes it the activity counter too.

use crate::sync::{fence, AtomicU32, AtomicU64, Ordering};

use super::block::FileBlock;
use super::claim::Claim;

/// One client's writing to one file.
#[repr(C, align(128))]
#[derive(Debug, Default)]
pub struct Cell {
    /// The index of the file's block (server).
    pub block: AtomicU32,
    /// The client it is lent to (server).
    pub client: AtomicU32,
    /// The next cell of the file: index + 1; 0 ends the list (server).
    pub next: AtomicU32,
    /// The number of the cell's lending; 0: never lent (server).
    pub generation: AtomicU32,
    claim_version: AtomicU64,
    claim: [AtomicU64; 5],
    /// The lowest bit names the state in force.
    pub version: AtomicU64,
    /// Bytes written through the cell, in all.
    pub committed: AtomicU64,
    /// The time of the last write when `committed` was `mtime_mark`, in ns since 1970.
    pub mtime_ns: AtomicU64,
    /// See `mtime_ns`. Small writes do not look at the clock, so it may be behind.
    pub mtime_mark: AtomicU64,
    /// As `mtime_ns`, but set by the first process that looked at the file after a write; the time that it was told.
    pub seen_ns: AtomicU64,
    /// As `mtime_mark`, for `seen_ns`.
    pub seen_mark: AtomicU64,
    spare: [AtomicU64; 2],
    states: [StateWords; 2],
}

/// A [`State`] as it lies in shared memory.
#[repr(C, align(128))]
#[derive(Debug, Default)]
struct StateWords([AtomicU64; 10]);

/// The record that a cell holds.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct State {
    /// The file offset of the first piece.
    pub offset: u64,
    /// The length of a whole piece, in bytes; meaningless while `count` is 0.
    pub length: u64,
    /// The distance from one piece's offset to the next one's; meaningless while `count` is 0.
    pub stride: u64,
    /// Whole pieces before the live one.
    pub count: u64,
    /// The slab in which all pieces lie, one behind the other.
    pub slab: u32,
    /// The position in the slab of the first piece.
    pub pos: u64,
    /// The order of this record among those of the file; 0: no record.
    pub stamp: u64,
    /// The value of `committed` when the live piece began.
    pub mark: u64,
    /// The greatest end of the cell's earlier records and whole pieces...
    pub end: u64,
    /// ...which counts only if no truncation is newer than this.
    pub end_stamp: u64,
}

impl State {
    /// A record that begins at `offset`, after `old`, with the bytes at `pos` of
    /// `slab`. The caller sets `mark` from the cell.
    pub fn begin(
        offset: u64,
        slab: u32,
        pos: u64,
        stamp: u64,
        old: &(State, u64),
        block: &FileBlock,
    ) -> State {
        let trunc = block.trunc_stamp.load(Ordering::Acquire);
        let (end, end_stamp) = old.0.end_after(old.1, trunc);
        State {
            offset,
            slab,
            pos,
            stamp,
            end,
            end_stamp: if end == 0 { stamp } else { end_stamp },
            ..State::default()
        }
    }

    /// Returns the file offset of the live piece.
    pub fn live_offset(&self) -> u64 {
        self.offset
            .wrapping_add(self.count.wrapping_mul(self.stride))
    }

    /// Returns the position in the slab of the live piece.
    pub fn live_pos(&self) -> u64 {
        self.pos.wrapping_add(self.count.wrapping_mul(self.length))
    }

    /// Returns the greatest end that counts after a truncation with stamp `trunc`, and the oldest
    /// stamp that it rests on; `live` is the length of the live piece.
    pub fn end_after(&self, live: u64, trunc: u64) -> (u64, u64) {
        let mut end = 0;
        let mut stamp = self.stamp;
        if self.end_stamp > trunc {
            (end, stamp) = (self.end, self.end_stamp);
        }
        if self.stamp > trunc {
            if live > 0 {
                end = end.max(self.live_offset().wrapping_add(live));
            }
            if self.count > 0 {
                let last = self.live_offset().wrapping_sub(self.stride);
                end = end.max(last.wrapping_add(self.length));
            }
        }
        (end, stamp)
    }

    fn to_words(self) -> [u64; 10] {
        [
            self.offset,
            self.length,
            self.stride,
            self.count,
            u64::from(self.slab),
            self.pos,
            self.stamp,
            self.mark,
            self.end,
            self.end_stamp,
        ]
    }

    #[allow(clippy::cast_possible_truncation)] // a slab that is no u32 is refused where the record is checked
    fn from_words(w: [u64; 10]) -> State {
        State {
            offset: w[0],
            length: w[1],
            stride: w[2],
            count: w[3],
            slab: w[4] as u32,
            pos: w[5],
            stamp: w[6],
            mark: w[7],
            end: w[8],
            end_stamp: w[9],
        }
    }
}

impl Cell {
    /// Prepares the cell for `client` (server only); the caller links it.
    pub fn lend(&self, block: u32, client: u32, next: u32) {
        self.block.store(block, Ordering::Relaxed);
        self.client.store(client, Ordering::Relaxed);
        self.withdraw_claim();
        self.mtime_mark
            .store(self.committed.load(Ordering::Relaxed), Ordering::Relaxed);
        self.seen_mark
            .store(self.committed.load(Ordering::Relaxed), Ordering::Relaxed);
        self.mtime_ns.store(0, Ordering::Relaxed);
        self.seen_ns.store(0, Ordering::Relaxed);
        let empty = State {
            mark: self.committed.load(Ordering::Relaxed),
            ..State::default()
        };
        self.replace(&empty);
        self.generation.fetch_add(1, Ordering::AcqRel);
        self.next.store(next, Ordering::Release);
    }

    /// Returns the record in force and the length of its live piece.
    ///
    /// Consistent although the writer goes on: while it changes the record twice
    /// within this call, the call looks again.
    pub fn state(&self) -> (State, u64) {
        loop {
            let version = self.version.load(Ordering::Acquire);
            let words = &self.states[(version & 1) as usize].0;
            let state =
                State::from_words(core::array::from_fn(|i| words[i].load(Ordering::Relaxed)));
            let committed = self.committed.load(Ordering::Acquire);
            fence(Ordering::Acquire);
            if self.version.load(Ordering::Relaxed) == version {
                return (state, committed.wrapping_sub(state.mark));
            }
        }
    }

    /// Puts another record in force (owner only). One store decides.
    pub fn replace(&self, state: &State) {
        let version = self.version.load(Ordering::Relaxed).wrapping_add(1);
        let words = &self.states[(version & 1) as usize].0;
        // A reader that saw the version before last may be in this copy: it must see
        // the newest version after any of these words.
        fence(Ordering::Release);
        for (word, value) in words.iter().zip(state.to_words()) {
            word.store(value, Ordering::Relaxed);
        }
        self.version.store(version, Ordering::Release);
    }

    /// Makes the live piece end at `committed` bytes of the cell (owner only): the
    /// bytes must be in place before.
    #[inline]
    pub fn commit(&self, committed: u64) {
        self.committed.store(committed, Ordering::Release);
    }

    /// Returns the greatest end of the writes through this cell that a truncation with stamp
    /// `trunc` has left.
    pub fn end_after(&self, trunc: u64) -> u64 {
        let (state, live) = self.state();
        state.end_after(live, trunc).0
    }

    /// Shows `claim`, in force during `epoch`, to the other writers (owner only).
    pub fn publish_claim(&self, claim: &Claim, epoch: u64) {
        self.claim_version.fetch_add(1, Ordering::Relaxed);
        // A reader that sees any of these words must see that the claim is changing.
        fence(Ordering::Release);
        let words = [epoch, claim.offset, claim.length, claim.stride, claim.count];
        for (word, value) in self.claim.iter().zip(words) {
            word.store(value, Ordering::Relaxed);
        }
        self.claim_version.fetch_add(1, Ordering::Release);
    }

    /// Ends the claim (owner or server).
    pub fn withdraw_claim(&self) {
        self.publish_claim(&Claim::default(), 0);
    }

    /// Returns the claim and its epoch; `None` while its owner is changing it.
    pub fn claimed(&self) -> Option<(Claim, u64)> {
        let version = self.claim_version.load(Ordering::Acquire);
        let words: [u64; 5] = core::array::from_fn(|i| self.claim[i].load(Ordering::Relaxed));
        fence(Ordering::Acquire);
        if version % 2 == 1 || self.claim_version.load(Ordering::Relaxed) != version {
            return None;
        }
        let claim = Claim {
            offset: words[1],
            length: words[2],
            stride: words[3],
            count: words[4],
        };
        Some((claim, words[0]))
    }

    /// The seqlock of the claim, for tests that leave it as a kill would.
    #[cfg(test)]
    pub(crate) fn claim_version_for_test(&self) -> &AtomicU64 {
        &self.claim_version
    }

    /// True if somebody has been told the time of the last write: it is to stay.
    pub fn is_time_seen(&self) -> bool {
        let is_of_now =
            self.seen_mark.load(Ordering::Acquire) == self.committed.load(Ordering::Acquire);
        // Bytes that are written in place do not count as committed.
        let noted = self.mtime_ns.load(Ordering::Acquire);
        is_of_now && self.seen_ns.load(Ordering::Acquire) >= noted
    }

    /// Returns the time of the last write to the file through this cell, in ns since 1970 (0: none
    /// since it was lent). Writes that were too small to look at the clock count as of `now_ns`,
    /// which is remembered so that the answer stays.
    pub fn mtime(&self, now_ns: u64) -> u64 {
        let committed = self.committed.load(Ordering::Acquire);
        let own = self.mtime_ns.load(Ordering::Acquire);
        if self.mtime_mark.load(Ordering::Acquire) == committed {
            if !self.is_time_seen() {
                self.seen_ns.store(own, Ordering::Release);
                self.seen_mark.store(committed, Ordering::Release);
            }
            return own;
        }
        if self.seen_mark.load(Ordering::Acquire) == committed {
            return own.max(self.seen_ns.load(Ordering::Acquire));
        }
        self.seen_ns.store(now_ns, Ordering::Release);
        self.seen_mark.store(committed, Ordering::Release);
        now_ns
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_is_replaced_as_one() {
        let cell = Cell::default();
        let state = State {
            offset: 5,
            stamp: 3,
            mark: 0,
            slab: 9,
            ..State::default()
        };
        cell.replace(&state);
        cell.commit(11);
        assert_eq!(cell.state(), (state, 11));
        let next = State {
            offset: 50,
            mark: 11,
            ..state
        };
        cell.replace(&next);
        assert_eq!(cell.state(), (next, 0));
    }

    #[test]
    fn readers_never_see_two_records_mixed() {
        let cell = Cell::default();
        let stop = AtomicU32::new(0);
        std::thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    while stop.load(Ordering::Relaxed) == 0 {
                        let (state, _) = cell.state();
                        assert_eq!(state.offset, state.stamp);
                        assert_eq!(state.end, state.stamp);
                        assert_eq!(state.end_stamp, state.stamp);
                    }
                });
            }
            // Miri is slow, and switches threads at any access.
            for i in 0..if cfg!(miri) { 200 } else { 200_000 } {
                cell.replace(&State {
                    offset: i,
                    stamp: i,
                    end: i,
                    end_stamp: i,
                    ..State::default()
                });
            }
            stop.store(1, Ordering::Relaxed);
        });
    }

    #[test]
    fn an_unseen_small_write_is_dated_once() {
        let cell = Cell::default();
        cell.lend(0, 0, 0);
        assert_eq!(cell.mtime(100), 0);
        cell.commit(5);
        assert_eq!(cell.mtime(100), 100);
        assert_eq!(cell.mtime(200), 100);
        cell.commit(6);
        assert_eq!(cell.mtime(300), 300);
        cell.mtime_ns.store(400, Ordering::Relaxed);
        cell.mtime_mark.store(6, Ordering::Relaxed);
        assert_eq!(cell.mtime(500), 400);
    }

    #[test]
    fn format_of_a_cell() {
        use crate::node::format::check_format;
        check_format!(Cell: block client next generation claim_version claim version committed mtime_ns mtime_mark seen_ns seen_mark states);
    }
}
