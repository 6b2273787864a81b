//! Settling an index at rest: stamps are forgotten, holes go, neighbours join, progressions are
//! found again.

use super::adopt::{chained, chains};
use super::index::{ExtentIndex, Repr, Runs};
use super::map::OffsetMap;
use super::plain::Extent;
use super::run::{FreedRange, PieceSource, Run};
use super::strided::{Strided, FEW};

impl ExtentIndex {
    /// Forgets all holes: allowed once no run with a stamp below theirs can arrive any more.
    pub fn drop_holes(&mut self) {
        self.drop_holes_before(u64::MAX);
    }

    /// Forgets all stamps: allowed once no run can arrive any more whose stamp is not greater than
    /// all that are here.
    ///
    /// Also drops holes. The result is the smallest form that the index has for the file.
    pub fn settle(&mut self) {
        self.coalesce_before(u64::MAX);
    }

    /// Forgets the order of all runs with stamps below `stamp` (their stamps become 0), joins those
    /// that are then contiguous or in progression, and drops their holes.
    ///
    /// No run with a stamp below `stamp` may arrive afterwards, not even a record that is here
    /// already: `stamp` is at most that of the oldest record that is not yet finished or not yet
    /// harvested. Costs a sort of all extents.
    pub fn coalesce_before(&mut self, stamp: u64) {
        self.drop_holes_before(stamp);
        if let Repr::One(only) = &mut self.repr {
            if only.stamp < stamp {
                only.stamp = 0;
            }
        }
        if let Repr::Many(runs) = &mut self.repr {
            let (old, young) = runs.split_off_before(stamp);
            runs.rebuild(
                join_progressions(join_contiguous(old))
                    .into_iter()
                    .chain(young),
            );
        }
        self.simplify();
    }

    /// Forgets all runs: the file is gone. `freed` gets all its log bytes.
    pub fn clear(&mut self, freed: &mut dyn FnMut(FreedRange)) {
        self.for_each_run(&mut |run| run.for_each_log_range(freed));
        self.repr = Repr::Empty;
    }

    fn drop_holes_before(&mut self, stamp: u64) {
        let gone = |hole: bool, of: u64| hole && (of < stamp || stamp == u64::MAX);
        match &mut self.repr {
            Repr::One(only) if gone(only.is_hole(), only.stamp) => self.repr = Repr::Empty,
            Repr::Empty | Repr::One(_) => {}
            Repr::Many(runs) => {
                let any = runs
                    .plain
                    .iter()
                    .any(|extent| gone(extent.is_hole(), extent.stamp))
                    || runs
                        .strided
                        .iter()
                        .any(|run| gone(run.log_bytes() == 0, run.stamp));
                if any {
                    let kept: Vec<Run> = runs
                        .all()
                        .filter(|run| !gone(run.log_bytes() == 0, run.stamp))
                        .collect();
                    runs.rebuild(kept.into_iter());
                }
            }
        }
        self.simplify();
    }
}

impl Runs {
    fn all(&self) -> impl Iterator<Item = Run> + '_ {
        self.plain
            .iter()
            .map(Extent::run)
            .chain(self.strided.iter().copied())
    }

    /// Returns the runs with stamps below `stamp`, now 0, in the order of the file, and the others.
    fn split_off_before(&self, stamp: u64) -> (Vec<Run>, Vec<Run>) {
        let (mut old, young): (Vec<Run>, Vec<Run>) = self.all().partition(|run| run.stamp < stamp);
        for run in &mut old {
            run.stamp = 0;
        }
        old.sort_unstable_by_key(|run| run.offset);
        (old, young)
    }

    fn rebuild(&mut self, runs: impl Iterator<Item = Run>) {
        let mut runs: Vec<Run> = runs.collect();
        runs.sort_unstable_by_key(|run| run.offset);
        self.plain = OffsetMap::default();
        self.strided = Strided::default();
        for run in runs {
            self.place(run);
        }
        self.plain.shrink();
        self.strided.shrink();
    }
}

/// Joins extents that are neighbours in file and log; takes runs in the order of the file.
fn join_contiguous(runs: Vec<Run>) -> Vec<Run> {
    let mut joined: Vec<Run> = Vec::with_capacity(runs.len());
    for run in runs {
        match joined.last_mut() {
            Some(last)
                if last.count == 1
                    && run.count == 1
                    && Extent::of(last).continued_by(&Extent::of(&run)) =>
            {
                last.length += run.length;
            }
            _ => joined.push(run),
        }
    }
    joined
}

/// Finds progressions: the pieces of one follow one another in the log, with any gaps in the file.
fn join_progressions(mut runs: Vec<Run>) -> Vec<Run> {
    runs.sort_unstable_by_key(|run| match run.piece(0).source {
        PieceSource::Log { rank, slab, pos } => (rank, slab, pos),
        PieceSource::Hole => (u16::MAX, u32::MAX, run.offset),
    });
    let mut joined: Vec<Run> = Vec::with_capacity(runs.len());
    for run in runs {
        let Some(last) = joined.last_mut() else {
            joined.push(run);
            continue;
        };
        match strides(last, &run) {
            Some((stride, pos_stride)) if chains(last, &run, stride, pos_stride) => {
                *last = chained(last, &run, stride, pos_stride);
            }
            // Too short to be kept as a progression, and perhaps its last piece belongs to the next one.
            _ if last.count > 1 && last.count < FEW => {
                let tail = last.sub(last.count - 1, 1);
                match strides(&tail, &run) {
                    Some((stride, pos_stride)) if chains(&tail, &run, stride, pos_stride) => {
                        *last = last.sub(0, last.count - 1);
                        joined.push(chained(&tail, &run, stride, pos_stride));
                    }
                    _ => joined.push(run),
                }
            }
            _ => joined.push(run),
        }
    }
    joined
}

/// Returns the strides that two runs would have as one.
fn strides(run: &Run, next: &Run) -> Option<(u64, u64)> {
    if run.count > 1 {
        return Some((run.stride, run.source.pos_stride()));
    }
    if next.count > 1 {
        return Some((next.stride, next.source.pos_stride()));
    }
    let stride = next
        .offset
        .checked_sub(run.offset)
        .filter(|stride| *stride >= run.length)?;
    match (run.piece(0).source, next.piece(0).source) {
        (PieceSource::Log { pos, .. }, PieceSource::Log { pos: next_pos, .. }) => {
            let pos_stride = next_pos
                .checked_sub(pos)
                .filter(|stride| *stride >= run.length)?;
            Some((stride, pos_stride))
        }
        _ => None,
    }
}
