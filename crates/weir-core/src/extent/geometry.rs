//! Parts of runs: positions of pieces, and sub-progressions with their sources.
//!
//! All runs here are as [`Run::checked`] leaves them, so that nothing overflows; parts asked for
//! must exist (bugs assert).

use super::run::{FreedRange, PieceSource, Run, Source};

impl Run {
    /// File offset of piece `index`.
    pub(super) fn start_of(&self, index: u64) -> u64 {
        self.offset + index * self.stride
    }

    /// Appends the part of the run in `[from, to)`: one run, and at most one more at each end,
    /// where a piece is cut.
    pub fn clip_to(&self, from: u64, to: u64, out: &mut Vec<Run>) {
        if from >= to {
            return;
        }
        let (first, end) = (self.ending_after(from), self.starting_from(to));
        let (mut first, mut end) = (first, end.max(first));
        let cut = |index: u64| {
            let at = self.start_of(index);
            let (lo, hi) = (from.max(at), to.min(at + self.length));
            self.sub(index, 1).within(lo - at, hi - lo)
        };
        let is_cut = |index: u64| {
            let at = self.start_of(index);
            at < from || at + self.length > to
        };
        if first < end && is_cut(first) {
            out.push(cut(first));
            first += 1;
        }
        let mut last = None;
        if first < end && is_cut(end - 1) {
            last = Some(cut(end - 1));
            end -= 1;
        }
        if first < end {
            out.push(self.sub(first, end - first));
        }
        out.extend(last);
    }

    /// The first piece that ends behind `at`; `count` if none does.
    pub(super) fn ending_after(&self, at: u64) -> u64 {
        if at < self.offset + self.length {
            return 0;
        }
        if self.count == 1 {
            return 1;
        }
        let index = (at - self.offset) / self.stride;
        let in_gap = at - self.offset - index * self.stride >= self.length;
        (index + u64::from(in_gap)).min(self.count)
    }

    /// The first piece that starts at or behind `at`; `count` if none does.
    pub(super) fn starting_from(&self, at: u64) -> u64 {
        if at <= self.offset {
            return 0;
        }
        if self.count == 1 {
            return 1;
        }
        (at - self.offset).div_ceil(self.stride).min(self.count)
    }

    /// The source of the byte at `at`, if it is in a piece.
    pub(super) fn source_at(&self, at: u64) -> Option<PieceSource> {
        let index = self.ending_after(at);
        if index == self.count {
            return None;
        }
        let piece = self.piece(index);
        (piece.offset <= at).then(|| piece.source.advanced(at - piece.offset))
    }

    /// Pieces `[first, first + count)` as a run.
    pub(super) fn sub(&self, first: u64, count: u64) -> Run {
        debug_assert!(
            count > 0 && first + count <= self.count,
            "pieces {first}+{count} of {}",
            self.count
        );
        let mut run = *self;
        run.offset = self.start_of(first);
        run.source = self.source.advanced(first * self.source.pos_stride());
        run.count = count;
        if count == 1 {
            run.stride = 0;
            run.source = run.source.with_stride(0);
        }
        run
    }

    /// The bytes `[from, from + length)` of every piece.
    pub(super) fn within(&self, from: u64, length: u64) -> Run {
        debug_assert!(
            length > 0 && from + length <= self.length,
            "bytes {from}+{length} of {}",
            self.length
        );
        Run {
            offset: self.offset + from,
            length,
            source: self.source.advanced(from),
            ..*self
        }
    }

    /// Makes of a run of one piece `count` pieces of `length`, `stride` apart, the first one at
    /// file offset `at`.
    pub(super) fn comb(&self, at: u64, length: u64, stride: u64, count: u64) -> Run {
        debug_assert!(self.count == 1, "only a contiguous run is combed");
        let stride = if count == 1 { 0 } else { stride };
        let source = self.source.advanced(at - self.offset).with_stride(stride);
        Run {
            offset: at,
            length,
            stride,
            count,
            stamp: self.stamp,
            source,
        }
    }

    /// Every `every`-th piece from `first` on.
    pub(super) fn thinned(&self, first: u64, every: u64) -> Run {
        let mut run = self.sub(first, self.count - first);
        run.count = run.count.div_ceil(every);
        let many = u64::from(run.count > 1);
        run.stride = self.stride * every * many;
        run.source = run
            .source
            .with_stride(self.source.pos_stride() * every * many);
        run
    }

    /// Reports the log ranges of this run, those contiguous in the log as one.
    pub fn for_each_log_range(&self, report: &mut dyn FnMut(FreedRange)) {
        let Source::Log {
            rank,
            slab,
            pos,
            pos_stride,
        } = self.source
        else {
            return;
        };
        if self.count == 1 || pos_stride == self.length {
            report(FreedRange {
                rank,
                slab,
                pos,
                len: self.total_bytes(),
            });
        } else {
            for index in 0..self.count {
                report(FreedRange {
                    rank,
                    slab,
                    pos: pos + index * pos_stride,
                    len: self.length,
                });
            }
        }
    }
}
