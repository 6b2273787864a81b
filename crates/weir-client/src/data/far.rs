//! Bytes of other nodes: gathered from all that a call reads, then brought at once.
//!
//! What a call needs of one server goes into few reads of up to 1 MiB, whatever the order in
//! which the pieces lie in the file; all servers are asked at once. As bytes arrive they are
//! copied to where they belong, while the rest is still on its way.

use std::collections::BTreeMap;
use std::ops::Range;

use rustix::io::Errno;
use weir_core::proto::peer::LogRange;
use weir_core::proto::{FETCH_BYTES, FETCH_PIECES};

use super::host::Host;
use super::read::Target;

/// Pieces that are gathered before they are brought.
const MOST_PIECES: usize = 4096;
/// Bytes that are gathered before they are brought.
const MOST_BYTES: u64 = 16 << 20;

/// A piece of a read: where its bytes come in it, and to which target they go.
#[derive(Debug)]
struct Place {
    /// Of the read.
    from: usize,
    target: usize,
    /// Of the target's bytes.
    bytes: Range<usize>,
}

/// Pieces to be brought.
#[derive(Debug, Default)]
pub struct Far {
    pieces: Vec<(LogRange, usize, usize)>,
    bytes: u64,
}

/// One read of a server.
#[derive(Debug, Default)]
struct Batch {
    ranges: Vec<LogRange>,
    places: Vec<Place>,
    bytes: u64,
}

impl Far {
    /// Adds a piece, which goes to `at` of the bytes of a target.
    pub fn add(&mut self, range: LogRange, target: usize, at: usize) {
        self.bytes += range.len;
        self.pieces.push((range, target, at));
    }

    /// Whether there is something to be brought.
    pub fn is_empty(&self) -> bool {
        self.pieces.is_empty()
    }

    /// Whether it is time to bring it.
    pub fn is_full(&self) -> bool {
        self.bytes >= MOST_BYTES || self.pieces.len() >= MOST_PIECES
    }

    /// Brings all of it.
    pub fn bring<H: Host>(&mut self, host: &H, targets: &mut [Target<'_>]) -> Result<(), Errno> {
        let batches = batches(&std::mem::take(self).pieces);
        let mut reads = Vec::with_capacity(batches.len());
        let mut places = Vec::with_capacity(batches.len());
        for batch in batches {
            reads.push(batch.ranges);
            places.push(batch.places);
        }
        host.fetch(&reads, &mut |read, from, window| {
            let places: &[Place] = places.get(read).map_or(&[], Vec::as_slice);
            let first = places.partition_point(|place| place.from + place.bytes.len() <= from);
            for place in &places[first..] {
                let begin = place.from.max(from);
                let end = (place.from + place.bytes.len()).min(from + window.len());
                if begin >= end {
                    break;
                }
                let to = place.bytes.start + (begin - place.from);
                let to = &mut targets[place.target].bytes[to..to + (end - begin)];
                window.read(begin - from, to);
            }
        })
    }
}

/// The reads: each of one server, and none too large.
fn batches(pieces: &[(LogRange, usize, usize)]) -> Vec<Batch> {
    let mut full = Vec::new();
    let mut open: BTreeMap<u16, Batch> = BTreeMap::new();
    for (range, target, at) in pieces {
        let mut done = 0;
        while done < range.len {
            let batch = open.entry(range.rank).or_default();
            let len = (range.len - done).min(FETCH_BYTES - batch.bytes);
            let start = at + index(done);
            batch.places.push(Place {
                from: index(batch.bytes),
                target: *target,
                bytes: start..start + index(len),
            });
            let pos = range.pos + done;
            batch.ranges.push(LogRange { pos, len, ..*range });
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
fn index(distance: u64) -> usize {
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
            little in proptest::collection::vec((0..4_u16, 1..40_u64), 0..1500),
        ) {
            let mut at = 0;
            let all: Vec<_> = pieces.into_iter().chain(little.into_iter().map(|(r, n)| (r, n, 7)))
                .map(|(rank, len, pos)| {
                    let piece = (LogRange { rank, slab: 3, pos, len }, usize::from(rank % 2), at);
                    at += index(len);
                    piece
                })
                .collect();
            let made = batches(&all);
            // Back again: the parts of each piece in their order.
            let mut parts: Vec<(usize, usize, u64, u16, u64)> = Vec::new();
            for batch in &made {
                prop_assert!((1..=FETCH_BYTES).contains(&batch.bytes));
                prop_assert!(batch.ranges.len() <= FETCH_PIECES);
                let mut from = 0;
                for (range, place) in batch.ranges.iter().zip(&batch.places) {
                    prop_assert_eq!(range.rank, batch.ranges[0].rank);
                    prop_assert_eq!((place.from, place.bytes.len()), (from, index(range.len)));
                    from += place.bytes.len();
                    parts.push((place.bytes.start, place.target, range.pos, range.rank, range.len));
                }
                prop_assert_eq!(from as u64, batch.bytes);
            }
            parts.sort_unstable();
            let mut parts = parts.into_iter();
            for (range, target, at) in all {
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
