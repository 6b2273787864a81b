//! The queries of an index: pieces for a read, runs for a client's cache, data and holes for lseek
//! and st_blocks.
//!
//! Gaps between pieces read as zeros, as holes do; holes are reported all the same, with their
//! stamps, because a copy of an index needs them too.

use core::ops::ControlFlow;

use super::index::{ExtentIndex, Repr, Runs};
use super::plain::Extent;
use super::run::{Piece, Run, MAX_OFFSET};

/// The part of the file for which an answer of [`ExtentIndex::runs_in`] is complete.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Known {
    /// First offset.
    pub lo: u64,
    /// Offset behind the last.
    pub hi: u64,
}

/// Progressions that a visit follows side by side without allocating.
const CURSORS: usize = 32;

impl ExtentIndex {
    /// Appends to `out` the pieces that meet `[start, end)`, clipped to it, in order. The gaps
    /// between them are holes.
    pub fn query(&self, start: u64, end: u64, out: &mut Vec<Piece>) {
        let from = out.len();
        let mut strided = false;
        match &self.repr {
            _ if start >= end => {}
            Repr::Empty => {}
            Repr::One(only) => out.extend(clip(only, start, end)),
            Repr::Many(runs) => {
                for run in runs.strided.near(start, end) {
                    out.extend(run.pieces_in(start, end));
                    strided = true;
                }
                out.extend(
                    runs.extents_in(start, end)
                        .filter_map(|extent| clip(extent, start, end)),
                );
            }
        }
        if strided {
            out[from..].sort_unstable_by_key(|piece| piece.offset);
        }
    }

    /// Visits the pieces that meet `[start, end)`, clipped to it, in order, without allocating.
    ///
    /// If more than 32 progressions interleave in the range, each piece costs a check of each of
    /// them.
    pub fn for_each_piece_in(&self, start: u64, end: u64, visit: &mut dyn FnMut(Piece)) {
        let _ = self.try_for_each_piece_in(start, end, &mut |piece| {
            visit(piece);
            ControlFlow::Continue(())
        });
    }

    /// As [`ExtentIndex::for_each_piece_in`], until the visitor has enough.
    pub fn try_for_each_piece_in(
        &self,
        start: u64,
        end: u64,
        visit: &mut dyn FnMut(Piece) -> ControlFlow<()>,
    ) -> ControlFlow<()> {
        match &self.repr {
            _ if start >= end => ControlFlow::Continue(()),
            Repr::Empty => ControlFlow::Continue(()),
            Repr::One(only) => clip(only, start, end).into_iter().try_for_each(visit),
            Repr::Many(runs) if runs.strided.is_empty() => runs
                .extents_in(start, end)
                .filter_map(|extent| clip(extent, start, end))
                .try_for_each(visit),
            Repr::Many(runs) => runs.visit_merged(start, end, visit),
        }
    }

    /// Appends to `out` the runs that meet `[start, end)`, whole, at most `max` (at least one) of
    /// them. Returns the part of the range for which they are complete.
    ///
    /// A progression of a million pieces is one run. Runs come in the order in which they first
    /// meet the range.
    pub fn runs_in(&self, start: u64, end: u64, max: usize, out: &mut Vec<Run>) -> Known {
        let all = Known {
            lo: start,
            hi: end.max(start),
        };
        if start >= end {
            return all;
        }
        let max = max.max(1);
        let runs = match &self.repr {
            Repr::Empty => return all,
            Repr::One(only) => {
                out.extend(clip(only, start, end).map(|_| only.run()));
                return all;
            }
            Repr::Many(runs) => runs,
        };
        let first_met = |run: &Run| run.pieces_in(start, end).next().map(|piece| piece.offset);
        let mut met: Vec<(u64, Run)> = runs
            .strided
            .near(start, end)
            .filter_map(|run| Some((first_met(run)?, *run)))
            .collect();
        let extents = runs.extents_in(start, end).take(max.saturating_add(1));
        met.extend(extents.map(|extent| (extent.offset.max(start), extent.run())));
        met.sort_unstable_by_key(|(at, _)| *at);
        out.extend(met.iter().take(max).map(|(_, run)| *run));
        met.get(max)
            .map_or(all, |(at, _)| Known { lo: start, hi: *at })
    }

    /// Returns the first offset at or behind `from` that holds data, as SEEK_DATA does.
    pub fn next_data(&self, from: u64) -> Option<u64> {
        let extent_from = |extent: &Extent| {
            (extent.end() > from && !extent.is_hole()).then(|| extent.offset.max(from))
        };
        match &self.repr {
            Repr::Empty => None,
            Repr::One(only) => extent_from(only),
            Repr::Many(runs) => {
                let plain = runs.extents_in(from, MAX_OFFSET).find_map(extent_from);
                let pieces = runs.data_near(from, plain.unwrap_or(MAX_OFFSET));
                pieces
                    .filter_map(|run| data_from(run, from))
                    .chain(plain)
                    .min()
            }
        }
    }

    /// Returns the first offset at or behind `from` that holds no data, as SEEK_HOLE does (the
    /// caller handles the end of the file: behind the last data all is hole).
    pub fn next_hole(&self, from: u64) -> u64 {
        match &self.repr {
            Repr::Empty => from,
            Repr::One(only) if only.is_hole() || from < only.offset => from,
            Repr::One(only) => from.max(only.end()),
            Repr::Many(runs) => runs.next_hole(from),
        }
    }

    /// The offset behind the last byte of data; 0 where there is none.
    pub fn last_data(&self) -> u64 {
        let extent_end = |extent: &Extent| (!extent.is_hole()).then(|| extent.end());
        match &self.repr {
            Repr::Empty => 0,
            Repr::One(only) => extent_end(only).unwrap_or(0),
            Repr::Many(runs) => {
                let mut at = runs.plain.last();
                while let Some(place) = at {
                    if runs
                        .plain
                        .get(place)
                        .is_some_and(|extent| !extent.is_hole())
                    {
                        break;
                    }
                    at = runs.plain.previous(place);
                }
                let plain = at
                    .and_then(|at| runs.plain.get(at))
                    .and_then(extent_end)
                    .unwrap_or(0);
                runs.data_near(0, MAX_OFFSET)
                    .map(Run::end)
                    .max()
                    .unwrap_or(0)
                    .max(plain)
            }
        }
    }

    /// Returns the log bytes that the file refers to, for st_blocks.
    pub fn allocated_bytes(&self) -> u64 {
        match &self.repr {
            Repr::Empty => 0,
            Repr::One(only) => only.log_bytes(),
            Repr::Many(runs) => runs.allocated,
        }
    }

    /// Runs held, holes included.
    pub fn run_count(&self) -> usize {
        match &self.repr {
            Repr::Empty => 0,
            Repr::One(_) => 1,
            Repr::Many(runs) => runs.plain.len() + runs.strided.len(),
        }
    }

    /// Returns true if nothing is held, not even a hole.
    pub fn is_empty(&self) -> bool {
        self.run_count() == 0
    }

    /// Bytes of memory held, this value included, the allocator's own not.
    pub fn memory_bytes(&self) -> usize {
        size_of::<ExtentIndex>()
            + match &self.repr {
                Repr::Empty => 0,
                Repr::One(_) => size_of::<Extent>(),
                Repr::Many(runs) => {
                    size_of::<Runs>() + runs.plain.heap_bytes() + runs.strided.heap_bytes()
                }
            }
    }

    /// Visits all runs, in no particular order.
    pub fn for_each_run(&self, visit: &mut dyn FnMut(Run)) {
        match &self.repr {
            Repr::Empty => {}
            Repr::One(only) => visit(only.run()),
            Repr::Many(runs) => {
                runs.plain.iter().for_each(|extent| visit(extent.run()));
                runs.strided.iter().for_each(|run| visit(*run));
            }
        }
    }
}

fn clip(extent: &Extent, start: u64, end: u64) -> Option<Piece> {
    (extent.offset < end && extent.end() > start).then(|| extent.piece().clipped(start, end))
}

/// The first byte of `run` at or behind `from`.
fn data_from(run: &Run, from: u64) -> Option<u64> {
    let index = run.ending_after(from);
    (index < run.count).then(|| run.start_of(index).max(from))
}

impl Runs {
    fn extents_in(&self, start: u64, end: u64) -> impl Iterator<Item = &Extent> + '_ {
        self.plain
            .iter_from(self.plain.seek(start))
            .take_while(move |extent| extent.offset < end)
    }

    fn data_near(&self, start: u64, end: u64) -> impl Iterator<Item = &Run> + '_ {
        self.strided
            .near(start, end)
            .filter(|run| run.log_bytes() > 0)
    }

    /// Merges the extents and the progressions that meet the range.
    fn visit_merged(
        &self,
        start: u64,
        end: u64,
        visit: &mut dyn FnMut(Piece) -> ControlFlow<()>,
    ) -> ControlFlow<()> {
        let mut cursors: [Option<(&Run, u64)>; CURSORS] = [None; CURSORS];
        let mut used = 0;
        for run in self.strided.near(start, end) {
            let index = run.ending_after(start);
            if run.start_of(index) >= end {
                continue;
            }
            if used == CURSORS {
                return self.visit_stepwise(start, end, visit);
            }
            cursors[used] = Some((run, index));
            used += 1;
        }
        let mut extents = self.extents_in(start, end).peekable();
        loop {
            let next = cursors[..used]
                .iter_mut()
                .flatten()
                .filter(|(run, index)| *index < run.count);
            let next = next.min_by_key(|(run, index)| run.start_of(*index));
            let strided_at = next
                .as_ref()
                .map_or(end, |(run, index)| run.start_of(*index));
            if let Some(extent) = extents.next_if(|extent| extent.offset < strided_at) {
                clip(extent, start, end)
                    .into_iter()
                    .try_for_each(&mut *visit)?;
                continue;
            }
            let Some((run, index)) = next.filter(|_| strided_at < end) else {
                return ControlFlow::Continue(());
            };
            visit(run.piece(*index).clipped(start, end))?;
            *index += 1;
        }
    }

    /// As [`Runs::visit_merged`], for any number of progressions: each step looks for the next piece afresh.
    pub(super) fn visit_stepwise(
        &self,
        start: u64,
        end: u64,
        visit: &mut dyn FnMut(Piece) -> ControlFlow<()>,
    ) -> ControlFlow<()> {
        let mut at = start;
        while at < end {
            let plain = self.plain.get(self.plain.seek(at)).map(Extent::piece);
            let strided = self.strided.near(at, end).filter_map(|run| {
                let index = run.ending_after(at);
                (index < run.count).then(|| run.piece(index))
            });
            let next = strided.chain(plain).min_by_key(|piece| piece.offset);
            let Some(piece) = next.filter(|piece| piece.offset < end) else {
                break;
            };
            visit(piece.clipped(at, end))?;
            at = piece.end();
        }
        ControlFlow::Continue(())
    }

    /// Walks over data from `from` on. Where progressions of one stride cover a whole stride
    /// between them, they go on doing so as long as all of them last: so a file of a million
    /// interleaved pieces is a few steps.
    fn next_hole(&self, from: u64) -> u64 {
        let mut at = from;
        // The stretch over which all data came from progressions of one stride, and the periods
        // that all of them last.
        let mut stretch = from;
        let mut stride = 0;
        let mut periods = u64::MAX;
        while at < MAX_OFFSET {
            let extent = self
                .plain
                .get(self.plain.seek(at))
                .filter(|extent| extent.offset <= at);
            if let Some(extent) = extent {
                if extent.is_hole() {
                    return at;
                }
                at = extent.end();
                (stretch, stride, periods) = (at, 0, u64::MAX);
                continue;
            }
            let near = self.data_near(at, at + 1);
            let owner = near
                .map(|run| (run, run.ending_after(at)))
                .find(|(run, index)| run.start_of(*index) <= at);
            let Some((run, index)) = owner else { return at };
            if run.stride != stride {
                (stretch, stride, periods) = (at, run.stride, u64::MAX);
            }
            periods = periods.min(run.count - 1 - index);
            at = run.start_of(index) + run.length;
            if at - stretch >= stride {
                at += periods * stride;
                (stretch, periods) = (at, u64::MAX);
            }
        }
        at
    }
}
