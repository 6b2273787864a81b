//! The progressions of an index, found by file range.
//!
//! Intuition: progressions interleave, so they cannot be sorted into disjoint ranges as extents can. They are
//! sorted by offset in levels by their span: level `l` holds those whose span (first byte to last) is below `2^l`
//! bytes. What meets `[start, end)` then begins in `(start - 2^l, end)`, and at least every second run found there has
//! a chance to meet it: N-1 strided by `P` processes looks at `O(P)` runs, however many pieces they have.
//!
//! The offset of a run is unique among all runs of an index, for its first byte belongs to it alone. Runs of few
//! pieces are not kept here (see [`FEW`]): two random writes of one length are a progression too, whose span is the
//! whole file, and many of those would be looked at by every query.

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

#[derive(Clone, Debug)]
struct Level {
    /// Spans of this level are below `1 << bits`.
    bits: u32,
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
    /// Where the runs begin that may meet something at or behind `start`.
    fn first(&self, start: u64) -> At {
        let reach = 1_u64.checked_shl(self.bits).unwrap_or(u64::MAX);
        self.runs.lower_bound(start.saturating_sub(reach))
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
            self.levels.insert(
                slot,
                Level {
                    bits,
                    runs: OffsetMap::default(),
                },
            );
        }
        self.levels[slot].runs.insert(run);
    }

    /// Takes out a run that is in here.
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

    /// The runs that may meet `[start, end)`: their spans do.
    pub(super) fn near(&self, start: u64, end: u64) -> impl Iterator<Item = &Run> + '_ {
        self.levels.iter().flat_map(move |level| {
            let runs = level.runs.iter_from(level.first(start));
            runs.take_while(move |run| run.offset < end)
                .filter(move |run| run.end() > start)
        })
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

    /// Gives back what growth left unused.
    pub(super) fn shrink(&mut self) {
        self.levels.iter_mut().for_each(|level| level.runs.shrink());
    }
}
