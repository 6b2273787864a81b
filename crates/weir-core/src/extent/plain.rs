//! Contiguous extents of a file that share no byte, sorted: what most of an index is.
//!
//! An extent is a run of one piece in 40 bytes. Two of them are joined when they are neighbours in the file and in the
//! log and carry the same stamp; with different stamps they are not, since a late arrival with a stamp between the
//! two would have to tell them apart.

use super::map::{At, Keyed, OffsetMap};
use super::run::{Piece, PieceSource, Run, Source};

/// A run of one piece, packed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Extent {
    pub(super) offset: u64,
    pub(super) length: u64,
    pub(super) stamp: u64,
    pos: u64,
    slab: u32,
    rank: u16,
    hole: bool,
}

impl Keyed for Extent {
    fn offset(&self) -> u64 {
        self.offset
    }
}

impl Extent {
    /// The packed form of a run of one piece.
    pub(super) fn of(run: &Run) -> Extent {
        debug_assert!(run.count == 1, "an extent is one piece");
        let (rank, slab, pos, hole) = match run.source {
            Source::Log {
                rank, slab, pos, ..
            } => (rank, slab, pos, false),
            Source::Hole => (0, 0, 0, true),
        };
        Extent {
            offset: run.offset,
            length: run.length,
            stamp: run.stamp,
            pos,
            slab,
            rank,
            hole,
        }
    }

    pub(super) fn run(&self) -> Run {
        self.piece().into_run()
    }

    pub(super) fn piece(&self) -> Piece {
        let source = if self.hole {
            PieceSource::Hole
        } else {
            PieceSource::Log {
                rank: self.rank,
                slab: self.slab,
                pos: self.pos,
            }
        };
        Piece {
            offset: self.offset,
            length: self.length,
            source,
            stamp: self.stamp,
        }
    }

    pub(super) fn end(&self) -> u64 {
        self.offset + self.length
    }

    pub(super) fn is_hole(&self) -> bool {
        self.hole
    }

    /// Bytes of the log.
    pub(super) fn log_bytes(&self) -> u64 {
        if self.hole {
            0
        } else {
            self.length
        }
    }

    /// The part in `[start, end)`, which lies within.
    pub(super) fn part(&self, start: u64, end: u64) -> Extent {
        debug_assert!(
            self.offset <= start && start < end && end <= self.end(),
            "a part lies within"
        );
        let pos = if self.hole {
            0
        } else {
            self.pos + (start - self.offset)
        };
        Extent {
            offset: start,
            length: end - start,
            pos,
            ..*self
        }
    }

    /// Whether both put a shared byte at the same place.
    pub(super) fn same_bytes(&self, other: &Extent) -> bool {
        let place = |extent: &Extent| {
            (
                extent.rank,
                extent.slab,
                extent.pos.wrapping_sub(extent.offset),
            )
        };
        self.hole == other.hole && (self.hole || place(self) == place(other))
    }

    /// Whether `next` goes on where this ends, in the file and in the log, as the same write.
    pub(super) fn continued_by(&self, next: &Extent) -> bool {
        self.end() == next.offset && self.stamp == next.stamp && self.same_bytes(next)
    }
}

impl OffsetMap<Extent> {
    /// The first extent that ends behind `at`.
    pub(super) fn seek(&self, at: u64) -> At {
        match self.floor(at) {
            Some(place) if self.get(place).is_some_and(|extent| extent.end() > at) => place,
            Some(place) => self.next(place),
            None => self.lower_bound(at),
        }
    }

    /// Takes `[start, end)` out of the file; reports what was there.
    pub(super) fn clear_range(&mut self, start: u64, end: u64, taken: &mut dyn FnMut(Extent)) {
        let at = self.seek(start);
        let Some(first) = self.get_mut(at).filter(|extent| extent.offset < end) else {
            return;
        };
        let whole = *first;
        if whole.offset < start {
            first.length = start - whole.offset;
            taken(whole.part(start, end.min(whole.end())));
            if whole.end() > end {
                self.insert(whole.part(end, whole.end()));
            }
            if whole.end() >= end {
                return;
            }
        }
        let mut tail = None;
        self.drain(start, end, &mut |extent| {
            if extent.end() > end {
                tail = Some(extent.part(end, extent.end()));
            }
            taken(extent.part(extent.offset, end.min(extent.end())));
        });
        if let Some(tail) = tail {
            self.insert(tail);
        }
    }

    /// Puts in an extent where nothing is, and joins it to what it continues and what continues it.
    pub(super) fn join(&mut self, mut extent: Extent) {
        let before = self.floor(extent.offset);
        let after = before.map_or_else(|| self.lower_bound(0), |at| self.next(at));
        let next = self
            .get(after)
            .copied()
            .filter(|next| extent.continued_by(next));
        if let Some(next) = next {
            extent.length += next.length;
            self.remove(after);
        }
        // What follows was removed, so that `before` still stands where it stood, unless chunks were joined.
        let before = if next.is_some() {
            self.floor(extent.offset)
        } else {
            before
        };
        match before.and_then(|at| self.get_mut(at)) {
            Some(left) if left.continued_by(&extent) => left.length += extent.length,
            _ => self.insert(extent),
        }
    }
}
