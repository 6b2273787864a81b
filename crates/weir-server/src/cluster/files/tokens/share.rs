//! The bytes of a file that one write token is for.

use weir_core::extent::MAX_OFFSET;
use weir_core::node::claim::Claim;

/// A node that was granted this many claims of a file gives them up before it asks for more.
const CLAIMS_MOST: usize = 512;

/// The bytes that a token is for.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Share {
    /// All of the file.
    Whole,
    /// These claims.
    Claims(Vec<Claim>),
}

impl Share {
    /// No bytes.
    pub fn none() -> Share {
        Share::Claims(Vec::new())
    }

    /// Returns true if some of these bytes may be claimed.
    pub fn overlaps(&self, claim: &Claim) -> bool {
        match self {
            Share::Whole => true,
            Share::Claims(claims) => claims.iter().any(|one| one.overlaps(claim)),
        }
    }

    /// The claim among these bytes that contains another one.
    pub fn claim_with(&self, claim: &Claim) -> Option<Claim> {
        match self {
            Share::Whole => Some(Claim::range(0, MAX_OFFSET)),
            Share::Claims(claims) => claims.iter().find(|one| one.contains(claim)).copied(),
        }
    }

    /// Returns true if it has the maximal number of claims.
    pub fn is_full(&self) -> bool {
        matches!(self, Share::Claims(claims) if claims.len() >= CLAIMS_MOST)
    }

    /// Adds a claim, joined with a range that it continues.
    pub fn add(&mut self, claim: Claim) {
        let Share::Claims(claims) = self else {
            return;
        };
        if claims.iter().any(|one| one.contains(&claim)) {
            return;
        }
        claims.retain(|one| !claim.contains(one));
        let next = |one: &&mut Claim| one.count == 1 && claim.count == 1 && touch(one, &claim);
        match claims.iter_mut().find(next) {
            Some(one) => {
                let (from, to) = (one.offset.min(claim.offset), one.end().max(claim.end()));
                *one = Claim::range(from, to - from);
            }
            None => claims.push(claim),
        }
    }
}

/// Returns true if two ranges overlap or are adjacent.
fn touch(a: &Claim, b: &Claim) -> bool {
    a.offset <= b.end() && b.offset <= a.end()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn contains(share: &Share, from: u64, length: u64) -> bool {
        share.claim_with(&Claim::range(from, length)).is_some()
    }

    #[test]
    fn ranges_that_continue_each_other_are_one_claim() {
        let mut share = Share::none();
        for (offset, length) in [(0, 10), (20, 10), (10, 10), (5, 2)] {
            share.add(Claim::range(offset, length));
        }
        assert!(contains(&share, 0, 20) && contains(&share, 20, 10));
        assert!(!share.overlaps(&Claim::range(30, 1)) && share.overlaps(&Claim::range(29, 1)));
        share.add(Claim::range(0, 100));
        assert_eq!(share, Share::Claims(vec![Claim::range(0, 100)]));
    }

    #[test]
    fn progressions_of_neighbours_do_not_meet() {
        let of = |rank: u64| Claim {
            offset: rank * 8,
            length: 8,
            stride: 32,
            count: u64::MAX / 32,
        };
        let mut share = Share::none();
        share.add(of(0));
        share.add(of(2));
        assert!(!share.overlaps(&of(1)) && share.overlaps(&of(2)));
        assert!(contains(&share, 64, 8) && !contains(&share, 64, 9));
    }

    #[test]
    fn what_holds_too_many_claims_is_full() {
        let mut share = Share::none();
        for number in 0..CLAIMS_MOST as u64 {
            assert!(!share.is_full());
            share.add(Claim::range(number * 10, 1));
        }
        assert!(share.is_full());
    }
}
