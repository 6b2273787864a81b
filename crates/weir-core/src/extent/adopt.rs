//! Inserting a fragment into free space, and joining it to the rest of its record.
//!
//! A record that is harvested while it grows arrives in fragments; the parts of it that newer
//! writes left are fragments, too. Those of one stamp that are neighbours in file and log are
//! joined as extents; those that are one stride of their record apart are joined as progressions.
//! Fragments of different stamps never are: a late arrival may have to come between them.

use super::index::Runs;
use super::overlay::{strides_of, Strides};
use super::plain::Extent;
use super::run::{Run, Source};
use super::strided::FEW;

impl Runs {
    /// Inserts a run into free space.
    pub(super) fn place(&mut self, run: Run) {
        if run.count >= FEW {
            self.strided.insert(run);
        } else {
            (0..run.count).for_each(|index| self.plain.insert(Extent::of(&run.sub(index, 1))));
        }
    }

    /// Inserts a run into free space, and joins it to the other fragments of its record.
    pub(super) fn adopt(&mut self, mut run: Run, strides: Option<Strides>) {
        let fits = |strides: Strides| run.count == 1 || strides_of(&run) == Some(strides);
        let Some((stride, pos_stride)) = strides.filter(|strides| fits(*strides)) else {
            self.join(run);
            return;
        };
        while let Some(before) = self.piece_run_before(&run, stride, pos_stride) {
            self.take(&before);
            run = chained(&before, &run, stride, pos_stride);
        }
        while let Some(after) = self.piece_run_after(&run, stride, pos_stride) {
            self.take(&after);
            run = chained(&run, &after, stride, pos_stride);
        }
        self.join(run);
    }

    /// Inserts a run into free space, and joins it to its neighbours.
    fn join(&mut self, run: Run) {
        if run.count == 1 {
            self.plain.join(Extent::of(&run));
        } else {
            self.place(run);
        }
    }

    /// Returns the run of the same record whose last piece is one stride before the first of `run`.
    fn piece_run_before(&self, run: &Run, stride: u64, pos_stride: u64) -> Option<Run> {
        let at = run.offset.checked_sub(stride)?;
        let plain = self.plain.find(at).map(Extent::run);
        let found = plain.or_else(|| self.strided.ending_at(at).copied())?;
        chains(&found, run, stride, pos_stride).then_some(found)
    }

    /// Returns the run of the same record whose first piece is one stride behind the last of `run`.
    fn piece_run_after(&self, run: &Run, stride: u64, pos_stride: u64) -> Option<Run> {
        let at = run.start_of(run.count - 1) + stride;
        let plain = self.plain.find(at).map(Extent::run);
        let found = plain.or_else(|| self.strided.starting_at(at).copied())?;
        chains(run, &found, stride, pos_stride).then_some(found)
    }

    /// Removes a run that is in the index.
    fn take(&mut self, run: &Run) {
        if run.count == 1 {
            let at = self.plain.seek(run.offset);
            self.plain.remove(at);
        } else {
            self.strided.remove(run);
        }
    }
}

/// Returns true if `next` continues `run`, as a progression of the given strides, by the same
/// write.
pub(super) fn chains(run: &Run, next: &Run, stride: u64, pos_stride: u64) -> bool {
    let fits =
        |run: &Run| run.count == 1 || (run.stride, run.source.pos_stride()) == (stride, pos_stride);
    let last = run.piece(run.count - 1);
    fits(run)
        && fits(next)
        && (run.length, run.stamp) == (next.length, next.stamp)
        && last.offset + stride == next.offset
        && last.source.advanced(pos_stride) == next.piece(0).source
}

/// Joins two runs that [`chains`] accepts.
pub(super) fn chained(run: &Run, next: &Run, stride: u64, pos_stride: u64) -> Run {
    let mut joined = *run;
    joined.count += next.count;
    joined.stride = stride;
    if let Source::Log {
        pos_stride: own, ..
    } = &mut joined.source
    {
        *own = pos_stride;
    }
    joined
}
