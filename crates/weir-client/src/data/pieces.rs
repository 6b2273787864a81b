//! The pieces that a call reads: each is a range of a log, and goes to a target.
//!
//! A [`Target`] is a part of the file that a call reads; a [`WantedPiece`] is a piece of it that another
//! server has; a [`Batch`] is a read of one server, made of such pieces. Nothing here asks for bytes.

use std::collections::BTreeMap;
use std::ops::Range;

use weir_core::proto::peer::LogRange;
use weir_core::proto::{FETCH_BYTES, FETCH_PIECES};

/// One of the reads of a batch.
#[derive(Debug)]
pub struct Target<'a> {
    /// The offset in the file.
    pub offset: u64,
    /// The bytes to fill; cut to the end of the file.
    pub bytes: &'a mut [u8],
}

/// A piece that a call wants: a range of a log, and its position in a target.
#[derive(Clone, Copy, Debug)]
pub struct WantedPiece {
    pub range: LogRange,
    pub target: usize,
    pub at: usize,
}

impl WantedPiece {
    /// Splits it into its first `len` bytes and the others.
    pub fn split(self, len: u64) -> (WantedPiece, WantedPiece) {
        let (mut first, mut rest) = (self, self);
        first.range.len = len;
        rest.range.len -= len;
        rest.range.pos += len;
        rest.at += index(len);
        (first, rest)
    }
}

/// A piece of a read: the position of its bytes in the read, and in its target.
#[derive(Debug)]
pub struct PiecePosition {
    /// The offset in the read.
    pub from: usize,
    /// The index of the target.
    pub target: usize,
    /// The range in the target's bytes.
    pub bytes: Range<usize>,
}

impl PiecePosition {
    /// The position of a piece whose bytes begin at `from` of a read.
    pub fn in_read(from: usize, wanted: &WantedPiece) -> PiecePosition {
        PiecePosition {
            from,
            target: wanted.target,
            bytes: wanted.at..wanted.at + index(wanted.range.len),
        }
    }

    /// The end of its bytes in the read.
    pub fn read_end(&self) -> usize {
        self.from + self.bytes.len()
    }
}

/// One read of a server.
#[derive(Debug, Default)]
pub struct Batch {
    pub ranges: Vec<LogRange>,
    pub positions: Vec<PiecePosition>,
    bytes: u64,
}

impl Batch {
    /// The server.
    pub fn rank(&self) -> u16 {
        self.ranges.first().map_or(0, |range| range.rank)
    }

    /// The offset of the first position in the read.
    pub fn first(&self) -> usize {
        self.positions.first().map_or(0, |position| position.from)
    }

    /// The end of the last position in the read.
    pub fn last(&self) -> usize {
        self.positions.last().map_or(0, PiecePosition::read_end)
    }

    /// Adds bytes to the read; ranges that are contiguous in the log become one.
    fn want(&mut self, range: LogRange) {
        if let Some(last) = self.ranges.last_mut() {
            let touches = (last.rank, last.slab) == (range.rank, range.slab)
                && last.pos.checked_add(last.len) == Some(range.pos);
            if touches {
                last.len += range.len;
                return;
            }
        }
        self.ranges.push(range);
    }

    /// The least offset of all positions in their target.
    pub fn target_begin(&self) -> usize {
        self.positions
            .first()
            .map_or(0, |position| position.bytes.start)
    }

    /// The end of all positions in their target.
    pub fn target_end(&self) -> usize {
        let ends = self.positions.iter().map(|position| position.bytes.end);
        ends.max().unwrap_or(0)
    }
}

/// The reads: each of one server, and none too large.
pub fn batches(pieces: &[WantedPiece]) -> Vec<Batch> {
    let mut full = Vec::new();
    let mut open: BTreeMap<u16, Batch> = BTreeMap::new();
    for WantedPiece { range, target, at } in pieces {
        let mut done = 0;
        while done < range.len {
            let batch = open.entry(range.rank).or_default();
            let len = (range.len - done).min(FETCH_BYTES - batch.bytes);
            let start = at + index(done);
            batch.positions.push(PiecePosition {
                from: index(batch.bytes),
                target: *target,
                bytes: start..start + index(len),
            });
            let pos = range.pos + done;
            batch.want(LogRange { pos, len, ..*range });
            batch.bytes += len;
            done += len;
            if batch.bytes == FETCH_BYTES || batch.ranges.len() == FETCH_PIECES {
                full.push(std::mem::take(batch));
            }
        }
    }
    full.extend(open.into_values().filter(|batch| batch.bytes > 0));
    full
}

/// A distance within a buffer, which fits because the buffer does.
#[allow(clippy::cast_possible_truncation)] // at most the buffer's length, a usize
pub fn index(distance: u64) -> usize {
    distance as usize
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn every_byte_is_read_once_and_goes_where_it_belongs(
            pieces in proptest::collection::vec((0..4_u16, 1..2_500_000_u64, 0..1_u64 << 40), 0..40),
            little in proptest::collection::vec((0..4_u16, 1..40_u64, any::<bool>()), 0..1500),
        ) {
            // Small ones follow one another in the log, or all have the same position.
            let mut next = [0; 4];
            let little = little.into_iter().map(|(rank, len, follows)| {
                let next = &mut next[usize::from(rank)];
                let pos = if follows { *next } else { 7 };
                *next = pos + len;
                (rank, len, pos)
            });
            let little: Vec<_> = little.collect();
            let mut at = 0;
            let all: Vec<_> = pieces.into_iter().chain(little)
                .map(|(rank, len, pos)| {
                    let range = LogRange { rank, slab: 3, pos, len };
                    let piece = WantedPiece { range, target: usize::from(rank % 2), at };
                    at += index(len);
                    piece
                })
                .collect();
            let made = batches(&all);
            // And back: the parts of each piece in order.
            let mut parts: Vec<(usize, usize, u64, u16, u64)> = Vec::new();
            for batch in &made {
                prop_assert!((1..=FETCH_BYTES).contains(&batch.bytes));
                prop_assert!(batch.ranges.len() <= FETCH_PIECES);
                // The position of each byte of the read, by its positions and by its ranges.
                let mut ranges = batch.ranges.iter();
                let (mut from, mut range) = (0, *ranges.next().unwrap());
                for position in &batch.positions {
                    prop_assert_eq!(range.rank, batch.ranges[0].rank);
                    prop_assert_eq!(position.from, from);
                    let len = position.bytes.len() as u64;
                    prop_assert!(len <= range.len, "a position is of one range");
                    from += position.bytes.len();
                    parts.push((position.bytes.start, position.target, range.pos, range.rank, len));
                    range.pos += len;
                    range.len -= len;
                    if range.len == 0 {
                        range = ranges.next().copied().unwrap_or(range);
                    }
                }
                prop_assert_eq!((from as u64, range.len), (batch.bytes, 0));
                let joined = batch.ranges.windows(2).any(|two| {
                    two[0].slab == two[1].slab && two[0].pos + two[0].len == two[1].pos
                });
                prop_assert!(!joined, "what touches is one piece");
            }
            parts.sort_unstable();
            let mut parts = parts.into_iter();
            for WantedPiece { range, target, at } in all {
                let mut done = 0;
                while done < range.len {
                    let part = parts.next().unwrap();
                    prop_assert_eq!(part.0, at + index(done));
                    prop_assert_eq!((part.1, part.2, part.3), (target, range.pos + done, range.rank));
                    done += part.4;
                }
                prop_assert_eq!(done, range.len);
            }
            prop_assert_eq!(parts.next(), None);
        }
    }
}
