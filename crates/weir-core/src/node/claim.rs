//! Claims: how writers of one node keep real-time order without a lock or a clock.
//!
//! **Intuition.** A record that grows keeps the stamp of its beginning. That is right as long as no
//! other writer writes where it grows. So a writer publishes beforehand the bytes into which it may
//! grow, its *claim*, and a writer that wants to write there ends all claims of the file by bumping
//! the file's epoch. A growing writer looks at the epoch, a line of memory that almost never
//! changes, and that is all the hot path pays.
//!
//! **Why it is right.** Let A grow a record within its claim, and B write bytes of
//! that claim. Both publish their claim, then a full fence, then read the other's
//! (Dekker): at least one of them sees the other and bumps the epoch before its own
//! write returns. If A's write begins after B's returned, A sees the new epoch, ends
//! its record and takes a new, greater stamp. If it began before, the two writes are
//! concurrent and any order is right. A claim that was published under an older
//! epoch is dead: its owner will not grow by it again.
//!
//! **Killed and stopped writers** hold nothing up: a claim being changed (or left
//! half changed by a kill) is treated as a conflict, which costs a new epoch.
//!
//! Claims are ranges or arithmetic progressions, so that the ranks of an N-1 strided checkpoint do
//! not conflict. The overlap test may report an overlap where there is none (that costs an epoch),
//! but never misses one.

use crate::sync::{fence, Ordering};

use serde::{Deserialize, Serialize};

use super::block::FileBlock;
use super::cell::Cell;

/// Bytes of a file: `count` pieces of `length`, `stride` apart, the first at `offset`.
/// An empty claim has count 0.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Claim {
    /// The offset of the first piece.
    pub offset: u64,
    /// The length of a piece, in bytes.
    pub length: u64,
    /// The distance from one piece to the next; ignored if `count` is 1.
    pub stride: u64,
    /// The number of pieces.
    pub count: u64,
}

/// The outcome of asking for a claim.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Outcome {
    /// The record may grow within the claim while the file's epoch is `epoch`.
    Granted {
        /// The granted claim: `wished`, a part of it, or `needed`.
        claim: Claim,
        /// The epoch it belongs to.
        epoch: u64,
    },
    /// Another writer claimed these bytes; all claims have been ended. The record
    /// of this write takes a stamp and must not grow.
    Single,
}

impl Claim {
    /// The claim of the bytes `[offset, offset + length)`.
    pub fn range(offset: u64, length: u64) -> Claim {
        Claim {
            offset,
            length,
            stride: 0,
            count: 1,
        }
    }

    /// Returns the first byte behind the claim, saturating: a claim may reach to the end of all
    /// files.
    pub fn end(&self) -> u64 {
        match self.count {
            0 => self.offset,
            1 => self.offset.saturating_add(self.length),
            n => self
                .stride
                .saturating_mul(n - 1)
                .saturating_add(self.offset)
                .saturating_add(self.length),
        }
    }

    /// Returns true if the two may have a byte in common.
    pub fn overlaps(&self, other: &Claim) -> bool {
        if self.count == 0 || other.count == 0 || self.length == 0 || other.length == 0 {
            return false;
        }
        if self.offset >= other.end() || other.offset >= self.end() {
            return false;
        }
        match (self.count, other.count) {
            (1, 1) => true,
            (1, _) => other.meets_range(self),
            (_, 1) => self.meets_range(other),
            _ => self.residues_meet(other),
        }
    }

    /// Returns true if every byte of `other` is a byte of this claim. The test may return false for
    /// two progressions whose strides do not divide each other, but never true where a byte is
    /// missing.
    pub fn contains(&self, other: &Claim) -> bool {
        if other.count == 0 || other.length == 0 {
            return true;
        }
        if self.count == 0 || other.offset < self.offset || other.end() > self.end() {
            return false;
        }
        if self.count == 1 || self.length >= self.stride {
            return true;
        }
        let aligned = other.count == 1 || other.stride.is_multiple_of(self.stride);
        let phase = (other.offset - self.offset) % self.stride;
        aligned
            && phase
                .checked_add(other.length)
                .is_some_and(|end| end <= self.length)
    }

    /// Returns the longest beginning of this claim that contains `needed` and passes `test`, if
    /// there is one. `test` must accept every beginning of a claim that it accepts.
    pub fn clip(&self, needed: &Claim, test: impl Fn(&Claim) -> bool) -> Option<Claim> {
        let beginning = |size| match self.count {
            1 => Claim::range(self.offset, size),
            _ => Claim {
                count: size,
                ..*self
            },
        };
        let passes = |size| {
            let clipped = beginning(size);
            clipped.contains(needed) && test(&clipped)
        };
        let reach = needed.end().saturating_sub(self.offset);
        let (mut good, mut bad) = match self.count {
            0 => return None,
            1 => (reach, self.length),
            _ if self.stride == 0 => return None,
            _ => (reach.div_ceil(self.stride), self.count),
        };
        if passes(bad) {
            return Some(*self);
        }
        if good >= bad || !passes(good) {
            return None;
        }
        while bad - good > 1 {
            let middle = good + (bad - good) / 2;
            match passes(middle) {
                true => good = middle,
                false => bad = middle,
            }
        }
        Some(beginning(good))
    }

    /// Returns true if it has bytes at all, and none behind the greatest file size `limit`, so that
    /// it may be believed although another process made it. An endless progression is cut off by
    /// `limit`.
    pub fn is_sound(&self, limit: u64) -> bool {
        self.count > 0
            && self.length > 0
            && self
                .offset
                .checked_add(self.length)
                .is_some_and(|end| end <= limit)
            && (self.count == 1 || self.stride > 0)
    }

    /// Returns true if a piece of this progression meets the range `range` (count 1), which lies at
    /// least partly between the progression's beginning and end.
    fn meets_range(&self, range: &Claim) -> bool {
        if self.stride == 0 || self.length >= self.stride {
            return true;
        }
        // The first piece that ends behind the beginning of the range.
        let skip = range.offset.saturating_sub(self.offset);
        let mut k = skip / self.stride;
        if skip % self.stride >= self.length {
            k += 1;
        }
        k < self.count && self.offset.saturating_add(k.saturating_mul(self.stride)) < range.end()
    }

    /// Two progressions can only meet if their pieces do modulo the greatest common
    /// divisor of their strides.
    fn residues_meet(&self, other: &Claim) -> bool {
        let g = gcd(self.stride, other.stride);
        if g == 0 || self.length >= g || other.length >= g {
            return true;
        }
        let (a, b) = (self.offset % g, other.offset % g);
        // Circular intervals [a, a + length) and [b, b + length) modulo g.
        let ahead = (b + g - a) % g;
        ahead < self.length || g - ahead < other.length
    }
}

fn gcd(mut a: u64, mut b: u64) -> u64 {
    while b != 0 {
        (a, b) = (b, a % b);
    }
    a
}

/// Asks for permission to grow a record of cell `mine` in the file of `block`.
///
/// `needed` are the bytes of the write at hand; `wished` the bytes, among them the needed ones,
/// into which the writer is likely to go on. Never waits.
pub fn acquire(
    block: &FileBlock,
    cells: &[Cell],
    mine: u32,
    needed: &Claim,
    wished: &Claim,
) -> Outcome {
    let Some(cell) = cells.get(mine as usize) else {
        return Outcome::Single;
    };
    let epoch = block.epoch.load(Ordering::Acquire);
    cell.publish_claim(wished, epoch);
    fence(Ordering::SeqCst);
    let mut granted = *wished;
    for (index, other) in block.cells(cells) {
        if index == mine {
            continue;
        }
        match other.claimed() {
            Some((_, theirs)) if theirs != epoch => {}
            Some((claim, _)) if !claim.overlaps(wished) => {}
            Some((claim, _)) if !claim.overlaps(needed) => granted = *needed,
            _ => {
                cell.withdraw_claim();
                block.end_claims();
                return Outcome::Single;
            }
        }
    }
    if granted != *wished {
        // A part of the published claim: writers that looked meanwhile saw more, not less.
        cell.publish_claim(&granted, epoch);
    }
    Outcome::Granted {
        claim: granted,
        epoch,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn bytes(c: &Claim) -> Vec<u64> {
        (0..c.count)
            .flat_map(|k| (0..c.length).map(move |b| (k, b)))
            .map(|(k, b)| c.offset + k * c.stride + b)
            .collect()
    }

    fn claim() -> impl Strategy<Value = Claim> {
        (0u64..60, 0u64..9, 0u64..20, 0u64..6).prop_map(|(offset, length, gap, count)| Claim {
            offset,
            length,
            stride: length + gap,
            count,
        })
    }

    proptest! {
        #[test]
        fn no_overlap_is_missed(a in claim(), b in claim()) {
            let theirs = bytes(&b);
            let meet = bytes(&a).iter().any(|x| theirs.contains(x));
            prop_assert_eq!(a.overlaps(&b), b.overlaps(&a));
            if meet {
                prop_assert!(a.overlaps(&b));
            }
            if a.count <= 1 || b.count <= 1 {
                prop_assert_eq!(a.overlaps(&b), meet, "exact where one is a range");
            }
        }
    }

    proptest! {
        #[test]
        fn contained_bytes_are_bytes(a in claim(), b in claim()) {
            let ours = bytes(&a);
            let all = bytes(&b).iter().all(|byte| ours.contains(byte));
            if a.contains(&b) {
                prop_assert!(all);
            }
            if a.count <= 1 && b.count <= 1 {
                prop_assert_eq!(a.contains(&b), all, "exact for ranges");
            }
        }
    }

    proptest! {
        #[test]
        fn a_clipped_claim_is_the_longest_that_is_free(
            wish in claim(),
            piece in 0u64..6,
            others in proptest::collection::vec(claim(), 0..4),
        ) {
            prop_assume!(wish.is_sound(u64::MAX) && piece < wish.count);
            let needed = Claim::range(wish.offset + piece * wish.stride, wish.length);
            let is_free = |c: &Claim| !others.iter().any(|other| other.overlaps(c));
            let most = if wish.count == 1 { wish.length } else { wish.count };
            let beginnings = (1..=most).rev().map(|size| match wish.count {
                1 => Claim::range(wish.offset, size),
                _ => Claim { count: size, ..wish },
            });
            let longest = beginnings
                .filter(|c| c.contains(&needed))
                .find(|c| is_free(c));
            let clipped = wish.clip(&needed, is_free);
            prop_assert_eq!(clipped.map(|c| bytes(&c)), longest.map(|c| bytes(&c)));
        }
    }

    #[test]
    fn a_segment_is_clipped_where_the_neighbour_begins() {
        let wish = Claim::range(100, 1 << 40);
        let neighbour = Claim::range(1000, 50);
        let clipped = wish.clip(&Claim::range(100, 10), |c| !c.overlaps(&neighbour));
        assert_eq!(clipped, Some(Claim::range(100, 900)));
        let in_the_way = Claim::range(105, 1);
        assert_eq!(
            wish.clip(&Claim::range(100, 10), |c| !c.overlaps(&in_the_way)),
            None
        );
    }

    #[test]
    fn a_progression_contains_its_own_pieces() {
        let all = Claim {
            offset: 100,
            length: 10,
            stride: 40,
            count: u64::MAX / 40,
        };
        let later = Claim {
            offset: 100 + 7 * 40,
            count: 9,
            ..all
        };
        assert!(all.contains(&all) && all.contains(&later) && !later.contains(&all));
        assert!(all.contains(&Claim::range(142, 8)) && !all.contains(&Claim::range(142, 9)));
        assert!(all.is_sound(i64::MAX.unsigned_abs()));
        assert!(!Claim::range(u64::MAX, 2).is_sound(u64::MAX));
    }

    #[test]
    fn the_ranks_of_a_strided_checkpoint_do_not_conflict() {
        let rank = |r: u64| Claim {
            offset: r * 47_008,
            length: 47_008,
            stride: 4 * 47_008,
            count: u64::MAX,
        };
        for a in 0..4 {
            for b in 0..4 {
                assert_eq!(rank(a).overlaps(&rank(b)), a == b);
            }
        }
        assert!(rank(1).overlaps(&Claim::range(1 << 40, 1 << 20)));
    }

    fn writers(n: u32) -> (FileBlock, Vec<Cell>) {
        let block = FileBlock::default();
        block.lend(1, 0, 1);
        let cells: Vec<Cell> = (0..n).map(|_| Cell::default()).collect();
        for i in 0..n {
            cells[i as usize].lend(0, i, block.head.load(Ordering::Relaxed));
            block.head.store(i + 1, Ordering::Release);
        }
        (block, cells)
    }

    #[test]
    fn a_wish_gives_way_and_a_need_ends_all_claims() {
        let (block, cells) = writers(2);
        let epoch = block.epoch.load(Ordering::Relaxed);
        let a = acquire(
            &block,
            &cells,
            0,
            &Claim::range(0, 10),
            &Claim::range(0, 100),
        );
        assert_eq!(
            a,
            Outcome::Granted {
                claim: Claim::range(0, 100),
                epoch
            }
        );
        let b = acquire(
            &block,
            &cells,
            1,
            &Claim::range(200, 10),
            &Claim::range(50, 300),
        );
        assert_eq!(
            b,
            Outcome::Granted {
                claim: Claim::range(200, 10),
                epoch
            }
        );
        let b = acquire(&block, &cells, 1, &Claim::range(5, 1), &Claim::range(5, 1));
        assert_eq!(b, Outcome::Single);
        assert_ne!(block.epoch.load(Ordering::Relaxed), epoch);
        let b = acquire(&block, &cells, 1, &Claim::range(5, 1), &Claim::range(5, 1));
        assert!(
            matches!(b, Outcome::Granted { .. }),
            "dead claims do not bind"
        );
    }

    #[test]
    fn a_claim_left_half_changed_is_a_conflict() {
        let (block, cells) = writers(2);
        cells[0].publish_claim(&Claim::range(0, 1), 0);
        // The state that a kill in the middle of publish_claim leaves.
        cells[0]
            .claim_version_for_test()
            .fetch_add(1, Ordering::Relaxed);
        let got = acquire(&block, &cells, 1, &Claim::range(9, 1), &Claim::range(9, 1));
        assert_eq!(got, Outcome::Single);
    }
}
