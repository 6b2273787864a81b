//! The servers that a range or a run of a file concerns, and the part that each of them keeps.
//!
//! A run goes whole to every server that has a slice it touches, and each keeps the parts in its
//! own slices. So a strided run costs one record a server, for any number of pieces; runs whose
//! pieces are slices apart are examined piece by piece, and go to no server that gets nothing.

use std::collections::BTreeSet;

use super::{home_of_extents, slice_of, SLICE_BYTES};
use crate::extent::Run;
use crate::types::{Ino, Rank};

/// Returns the ranges of a file that a run may have bytes in: all of it, or its pieces if they are
/// slices apart.
pub fn spans(run: &Run) -> impl Iterator<Item = (u64, u64)> + '_ {
    let sparse = run.stride > SLICE_BYTES;
    let count = if sparse { run.count } else { 1 };
    (0..count).map(move |index| {
        if sparse {
            let piece = run.piece(index);
            (piece.offset, piece.offset + piece.length)
        } else {
            (run.offset, run.end())
        }
    })
}

/// Returns the servers whose slices `[from, to)` touches.
pub fn homes_of(ino: Ino, from: u64, to: u64, servers: u16) -> BTreeSet<Rank> {
    let mut homes = BTreeSet::new();
    add_homes(ino, from, to, servers, &mut homes);
    homes
}

/// Returns the servers that keep a part of a run.
pub fn homes_of_run(ino: Ino, run: &Run, servers: u16) -> BTreeSet<Rank> {
    let mut homes = BTreeSet::new();
    for (from, to) in spans(run) {
        add_homes(ino, from, to, servers, &mut homes);
    }
    homes
}

/// Adds the servers whose slices `[from, to)` touches.
fn add_homes(ino: Ino, from: u64, to: u64, servers: u16, homes: &mut BTreeSet<Rank>) {
    let (first, last) = (slice_of(from), slice_of(to.saturating_sub(1).max(from)));
    for slice in first..=last {
        if homes.len() == usize::from(servers) {
            return;
        }
        homes.insert(home_of_extents(ino, slice, servers));
    }
}

/// Returns the parts of `[from, to)` in slices of server `rank`; neighbours are joined.
pub fn own_parts(ino: Ino, from: u64, to: u64, rank: Rank, servers: u16) -> Vec<(u64, u64)> {
    let mut parts: Vec<(u64, u64)> = Vec::new();
    let mut at = from;
    while at < to {
        let slice = slice_of(at);
        let end = (slice + 1).saturating_mul(SLICE_BYTES).min(to);
        if home_of_extents(ino, slice, servers) == rank {
            match parts.last_mut() {
                Some(last) if last.1 == at => last.1 = end,
                _ => parts.push((at, end)),
            }
        }
        at = end;
    }
    parts
}

/// Appends the parts of a run that server `rank` keeps to `out`.
pub fn clip_to_own(ino: Ino, run: &Run, rank: Rank, servers: u16, out: &mut Vec<Run>) {
    let whole: Vec<_> = spans(run).collect();
    let parts: Vec<_> = whole
        .iter()
        .flat_map(|&(from, to)| own_parts(ino, from, to, rank, servers))
        .collect();
    if parts == whole {
        out.push(*run);
        return;
    }
    for (from, to) in parts {
        run.clip_to(from, to, out);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::extent::Source;
    use proptest::prelude::*;

    const FILE: Ino = Ino::new(Rank(1), 0, 7);

    fn run(offset: u64, length: u64, stride: u64, count: u64) -> Run {
        Run {
            offset,
            length,
            stride,
            count,
            stamp: 1,
            source: Source::Log {
                rank: 0,
                slab: 0,
                pos: 0,
                pos_stride: length,
            },
        }
    }

    proptest! {
        /// Every byte is kept once, and only by servers that the run is sent to.
        #[test]
        fn servers_share_a_run_without_overlap(
            offset in 0..4 * SLICE_BYTES,
            length in 1..1000_u64,
            gap in prop_oneof![0..5000_u64, 0..3 * SLICE_BYTES],
            count in 1..200_u64,
            servers in 2..9_u16,
        ) {
            let run = run(offset, length, length + gap, count).checked().unwrap();
            let homes = homes_of_run(FILE, &run, servers);
            let mut kept = Vec::new();
            for rank in (0..servers).map(Rank) {
                let before = kept.len();
                clip_to_own(FILE, &run, rank, servers, &mut kept);
                prop_assert!(kept.len() == before || homes.contains(&rank));
            }
            let mut pieces: Vec<(u64, u64)> = kept
                .iter()
                .flat_map(|run| (0..run.count).map(|i| run.piece(i)))
                .map(|piece| (piece.offset, piece.end()))
                .collect();
            pieces.sort_unstable();
            prop_assert!(pieces.windows(2).all(|two| two[0].1 <= two[1].0));
            let bytes: u64 = pieces.iter().map(|(from, to)| to - from).sum();
            prop_assert_eq!(bytes, run.total_bytes());
        }
    }

    #[test]
    fn a_run_with_pieces_far_apart_goes_to_few() {
        let sparse = run(0, 100, 50 * SLICE_BYTES, 3);
        assert!(homes_of_run(FILE, &sparse, 1000).len() <= 3);
        let dense = run(0, 100, SLICE_BYTES / 4, 400);
        assert_eq!(homes_of_run(FILE, &dense, 4).len(), 4);
    }
}
