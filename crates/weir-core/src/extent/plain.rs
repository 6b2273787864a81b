//! Contiguous extents of a file that share no byte, sorted: most of an index.
//!
//! An extent is a run of one piece in 40 bytes. Two of them are joined when they are neighbours in
//! the file and in the log and carry the same stamp. With different stamps they are not, because a
//! late arrival with a stamp between the two would have to tell them apart.

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

    /// Returns true if both map their shared bytes to the same source.
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

    /// Returns true if `next` continues this extent, in the file and in the log, by the same write.
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

    /// Removes `[start, end)` from the file; reports the extents that were there.
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

    /// Inserts an extent into free space, and joins it to its neighbours.
    pub(super) fn join(&mut self, extent: Extent) {
        self.join_at(self.lower_bound(extent.offset), extent);
    }

    /// As [`OffsetMap::join`], where `next` is the first extent behind.
    pub(super) fn join_at(&mut self, next: At, mut extent: Extent) {
        let before = self.previous(next);
        let continues = before
            .and_then(|at| self.get(at))
            .is_some_and(|left| left.continued_by(&extent));
        if let Some(right) = self
            .get(next)
            .copied()
            .filter(|right| extent.continued_by(right))
        {
            extent.length += right.length;
            if !continues {
                self.advance(next, extent);
                return;
            }
            self.remove(next);
            let before = self.floor(extent.offset);
            self.lengthen(before, extent.length);
        } else if continues {
            self.lengthen(before, extent.length);
        } else {
            self.insert_at(next, extent);
        }
    }

    fn lengthen(&mut self, at: Option<At>, bytes: u64) {
        if let Some(left) = at.and_then(|at| self.get_mut(at)) {
            left.length += bytes;
        }
    }

    /// Replaces an extent of the same range by `extent`; returns false if it could not, because
    /// there are neighbours to join.
    pub(super) fn exchange(&mut self, at: At, extent: Extent) -> bool {
        let before = self.previous(at).and_then(|at| self.get(at));
        let after = self.get(self.next(at));
        if before.is_some_and(|left| left.continued_by(&extent))
            || after.is_some_and(|right| extent.continued_by(right))
        {
            return false;
        }
        self.get_mut(at).map(|old| *old = extent).is_some()
    }
}
