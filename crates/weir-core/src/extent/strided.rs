//! The progressions of an index, found by file range.
//!
//! Intuition: progressions interleave, so they cannot be sorted into disjoint ranges as extents
//! can. They are sorted by offset in levels by their span: level `l` holds those whose span (first
//! byte to last) is below `2^l` bytes. So a run that meets `[start, end)` begins in
//! `(start - 2^l, end)`, and at least every second run found there has a chance to meet it: N-1
//! strided by `P` processes looks at `O(P)` runs, for any number of pieces.
//!
//! Runs of one stride can be found better, and N-1 strided is nothing else: run `r` covers a byte
//! `x` with piece `i` just if its first piece covers `x - i * stride`, and first pieces, being
//! disjoint, *are* sorted. So where all runs of a level have one stride, a look-up is a binary
//! search for each stride's width in which runs begin: one, mostly.
//!
//! The offset of a run is unique among all runs of an index, for its first byte belongs to it
//! alone. Runs of few pieces are not kept here (see [`FEW`]): two random writes of one length are a
//! progression too, whose span is the whole file, and many of those would be looked at by every
//! query.

use super::map::{At, Keyed, OffsetMap};
use super::progression::first_common;
use super::run::Run;

/// A progression of fewer pieces is kept as so many extents.
pub(super) const FEW: u64 = 4;

impl Keyed for Run {
    fn offset(&self) -> u64 {
        self.offset
    }
}

/// The number of runs that are examined one by one.
const SCANNED: usize = if cfg!(test) { 1 } else { 8 };

#[derive(Clone, Debug)]
struct Level {
    /// Spans of this level are below `1 << bits`.
    bits: u32,
    /// The stride of all its runs, 0 if they have several.
    stride: u64,
    runs: OffsetMap<Run>,
}

/// Progressions that share no byte of the file.
#[derive(Clone, Debug, Default)]
pub(super) struct Strided {
    levels: Vec<Level>,
}

fn level_of(run: &Run) -> u32 {
    u64::BITS - (run.end() - run.offset).leading_zeros()
}

impl Level {
    /// Returns the position of the first run that may reach `start`.
    fn first(&self, start: u64) -> At {
        self.runs.lower_bound(start.saturating_sub(self.reach()))
    }

    fn reach(&self) -> u64 {
        1_u64.checked_shl(self.bits).unwrap_or(u64::MAX)
    }

    fn near(&self, start: u64, end: u64) -> Near<'_> {
        let scan = self.stride <= end - start || self.runs.len() <= SCANNED;
        let low = if scan {
            self.first(start)
        } else {
            self.first_piece_behind(start)
        };
        Near {
            level: self,
            start,
            end,
            turn: if scan { None } else { Some(0) },
            low,
            at: low,
        }
    }

    /// The first run whose first piece ends behind `at`.
    fn first_piece_behind(&self, at: u64) -> At {
        let Some(floor) = self.runs.floor(at) else {
            return self.runs.lower_bound(0);
        };
        let covers = self
            .runs
            .get(floor)
            .is_some_and(|run| run.offset + run.length > at);
        if covers {
            floor
        } else {
            self.runs.next(floor)
        }
    }
}

/// The runs of a level that may meet a range.
struct Near<'a> {
    level: &'a Level,
    start: u64,
    end: u64,
    /// In a level of one stride, the number of the piece with which the runs at hand would meet the
    /// range: their first pieces meet the range moved down by so many strides. `None` where runs
    /// are examined one by one.
    turn: Option<u64>,
    /// The position of the first run of this turn.
    low: At,
    at: At,
}

impl<'a> Iterator for Near<'a> {
    type Item = &'a Run;

    fn next(&mut self) -> Option<&'a Run> {
        let Some(turn) = self.turn else {
            loop {
                let run = self
                    .level
                    .runs
                    .get(self.at)
                    .filter(|run| run.offset < self.end)?;
                self.at = self.level.runs.next(self.at);
                if run.end() > self.start {
                    return Some(run);
                }
            }
        };
        self.next_in_turn(turn)
    }
}

impl<'a> Near<'a> {
    fn next_in_turn(&mut self, mut turn: u64) -> Option<&'a Run> {
        let runs = &self.level.runs;
        let stride = self.level.stride;
        loop {
            let moved_end = self.end.checked_sub(turn.checked_mul(stride)?)?;
            while let Some(run) = runs.get(self.at).filter(|run| run.offset < moved_end) {
                self.at = runs.next(self.at);
                // It met the range in the turn before already.
                let seen = turn > 0 && run.offset + run.length + (turn - 1) * stride > self.start;
                if turn < run.count && !seen {
                    return Some(run);
                }
            }
            // The next turn in which the run before these has its first piece.
            let before = runs.get(runs.previous(self.low)?)?;
            if before.offset.saturating_add(self.level.reach()) <= self.start {
                return None;
            }
            turn = (self.start - (before.offset + before.length)) / stride + 1;
            self.turn = Some(turn);
            self.low = match self.start.checked_sub(turn * stride) {
                Some(moved) => self.level.first_piece_behind(moved),
                None => runs.lower_bound(0),
            };
            self.at = self.low;
        }
    }
}

impl Strided {
    pub(super) fn len(&self) -> usize {
        self.levels.iter().map(|level| level.runs.len()).sum()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.levels.is_empty()
    }

    pub(super) fn insert(&mut self, run: Run) {
        let bits = level_of(&run);
        let slot = self.levels.partition_point(|level| level.bits < bits);
        if self.levels.get(slot).is_none_or(|level| level.bits != bits) {
            let level = Level {
                bits,
                stride: run.stride,
                runs: OffsetMap::default(),
            };
            self.levels.insert(slot, level);
        }
        let level = &mut self.levels[slot];
        if level.stride != run.stride {
            level.stride = 0;
        }
        level.runs.insert(run);
    }

    /// Removes a run that is in the index.
    pub(super) fn remove(&mut self, run: &Run) {
        let bits = level_of(run);
        let slot = self.levels.partition_point(|level| level.bits < bits);
        let runs = &mut self.levels[slot].runs;
        let at = runs.lower_bound(run.offset);
        let taken = runs.remove(at);
        debug_assert_eq!(taken, *run, "what is removed is what was there");
        if runs.is_empty() {
            self.levels.remove(slot);
        }
    }

    /// Returns the runs that may meet `[start, end)`: their spans do.
    pub(super) fn near(&self, start: u64, end: u64) -> impl Iterator<Item = &Run> + '_ {
        self.levels
            .iter()
            .flat_map(move |level| level.near(start, end))
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Run> + '_ {
        self.levels.iter().flat_map(|level| level.runs.iter())
    }

    /// Copies of the runs that share bytes with `run`.
    pub(super) fn meeting(&self, run: &Run) -> Vec<Run> {
        self.near(run.offset, run.end())
            .filter(|other| first_common(other, run).is_some())
            .copied()
            .collect()
    }

    /// The run whose first piece is at `offset`.
    pub(super) fn starting_at(&self, offset: u64) -> Option<&Run> {
        self.levels.iter().find_map(|level| level.runs.find(offset))
    }

    /// The run whose last piece starts at `offset`.
    pub(super) fn ending_at(&self, offset: u64) -> Option<&Run> {
        self.near(offset, offset.saturating_add(1))
            .find(|run| run.start_of(run.count - 1) == offset)
    }

    /// Bytes on the heap.
    pub(super) fn heap_bytes(&self) -> usize {
        let runs: usize = self
            .levels
            .iter()
            .map(|level| level.runs.heap_bytes())
            .sum();
        runs + self.levels.capacity() * size_of::<Level>()
    }

    /// Gives back the unused memory that growth left.
    pub(super) fn shrink(&mut self) {
        self.levels.iter_mut().for_each(|level| level.runs.shrink());
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::run::Source;
    use super::*;

    proptest! {
        #[test]
        fn runs_of_one_stride_are_found(
            tries in prop::collection::vec((0_u64..2000, 1_u64..30, 4_u64..40), 1..60),
            stride in 20_u64..200,
            ranges in prop::collection::vec((0_u64..8000, 1_u64..300), 20),
        ) {
            let mut all: Vec<Run> = Vec::new();
            let mut strided = Strided::default();
            for (offset, length, count) in tries {
                let run = Run { offset, length: length.min(stride), stride, count, stamp: 0, source: Source::Hole };
                if strided.meeting(&run).is_empty() {
                    prop_assert!(all.iter().all(|other| first_common(other, &run).is_none()));
                    strided.insert(run);
                    all.push(run);
                }
            }
            all.sort_by_key(|run| run.offset);
            for (start, length) in ranges {
                let meets = |run: &Run| run.pieces_in(start, start + length).next().is_some();
                let mut found: Vec<Run> = strided.near(start, start + length).filter(|run| meets(run)).copied().collect();
                found.sort_by_key(|run| run.offset);
                prop_assert_eq!(found, all.iter().filter(|run| meets(run)).copied().collect::<Vec<_>>());
            }
            for run in &all {
                prop_assert_eq!(strided.ending_at(run.start_of(run.count - 1)), Some(run));
                prop_assert_eq!(strided.starting_at(run.offset), Some(run));
            }
        }
    }
}
