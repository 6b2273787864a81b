//! The ranges of a unit's living bytes.
//!
//! When no unit is wholly free any more, the dead bytes between living ones are lent again: so no
//! bytes of a log are moved, and no extent changes. Contiguous bytes are one range, so that a unit
//! that one stream filled costs 8 bytes.
//!
//! Of some units only the amount of living bytes is known: of published bytes after a restart, or if
//! a client claims bytes twice. The [`crate::slab::Slab`] counts such a unit as a whole until none of
//! its bytes is alive. Pure: no I/O.

/// Gaps begin at cache lines, like all reservations.
const ALIGN: u32 = 64;

/// A piece of a unit without living bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Gap {
    /// Its offset in the unit.
    pub offset: u32,
    /// Its length, bytes.
    pub len: u32,
}

/// The living ranges of a unit.
#[derive(Debug, Clone)]
pub struct LiveRanges {
    /// From, to; in order, apart from each other.
    ranges: Vec<(u32, u32)>,
    is_exact: bool,
}

impl LiveRanges {
    /// Ranges without a living byte.
    pub fn new() -> LiveRanges {
        LiveRanges {
            ranges: Vec::new(),
            is_exact: true,
        }
    }

    /// True if the ranges are exactly the living bytes.
    pub fn is_exact(&self) -> bool {
        self.is_exact
    }

    /// Forgets the ranges until [`LiveRanges::clear`]: only the amount is known.
    pub fn forget_ranges(&mut self) {
        self.ranges = Vec::new();
        self.is_exact = false;
    }

    /// Marks all bytes as dead.
    pub fn clear(&mut self) {
        self.ranges = Vec::new();
        self.is_exact = true;
    }

    /// Marks `[from, to)` as alive. If part of it was alive already, the ranges are forgotten.
    pub fn add(&mut self, from: u32, to: u32) {
        if !self.is_exact {
            return;
        }
        let at = self.ranges.partition_point(|range| range.1 < from);
        let joins_left = self.ranges.get(at).is_some_and(|range| range.1 == from);
        let next = at + usize::from(joins_left);
        match self.ranges.get(next) {
            Some(range) if range.0 < to => self.forget_ranges(),
            Some(range) if range.0 == to && joins_left => {
                self.ranges[at].1 = range.1;
                self.ranges.remove(next);
            }
            Some(range) if range.0 == to => self.ranges[next].0 = from,
            _ if joins_left => self.ranges[at].1 = to,
            _ => self.ranges.insert(at, (from, to)),
        }
    }

    /// Marks `[from, to)` as dead. If part of it was dead already, the ranges are forgotten.
    pub fn remove(&mut self, from: u32, to: u32) {
        if !self.is_exact {
            return;
        }
        let at = self.ranges.partition_point(|range| range.1 <= from);
        match self.ranges.get(at).copied() {
            Some((first, end)) if first <= from && to <= end => match (first == from, to == end) {
                (true, true) => drop(self.ranges.remove(at)),
                (true, false) => self.ranges[at].0 = to,
                (false, true) => self.ranges[at].1 = from,
                (false, false) => {
                    self.ranges[at].1 = from;
                    self.ranges.insert(at + 1, (to, end));
                }
            },
            _ => self.forget_ranges(),
        }
    }

    /// Returns the gaps that can be lent between the living bytes of a unit of `unit` bytes.
    pub fn gaps(&self, unit: u32) -> impl Iterator<Item = Gap> + '_ {
        let starts = std::iter::once(0).chain(self.ranges.iter().map(|range| range.1));
        let ends = self.ranges.iter().map(|range| range.0);
        let between = starts.zip(ends.chain(std::iter::once(unit)));
        between
            .filter(|_| self.is_exact)
            .map(|(from, to)| (from.next_multiple_of(ALIGN), to))
            .filter(|(from, to)| to.saturating_sub(*from) >= ALIGN)
            .map(|(from, to)| Gap {
                offset: from,
                len: to - from,
            })
    }

    /// True if no byte of a gap is alive.
    pub fn is_dead(&self, gap: Gap) -> bool {
        let at = self.ranges.partition_point(|range| range.1 <= gap.offset);
        let next = self.ranges.get(at);
        self.is_exact && next.is_none_or(|range| range.0 >= gap.offset + gap.len)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const UNIT: u32 = 1024;

    proptest! {
        /// Compares with a model that has a byte for each.
        #[test]
        fn like_a_map_of_bytes(steps in prop::collection::vec((any::<bool>(), 0u32..UNIT, 1u32..200), 1..80)) {
            let mut live = LiveRanges::new();
            let mut bytes = vec![false; UNIT as usize];
            for (add, from, len) in steps {
                let to = (from + len).min(UNIT);
                let range = from as usize..to as usize;
                if bytes[range.clone()].contains(&add) {
                    continue;
                }
                bytes[range].fill(add);
                if add {
                    live.add(from, to);
                } else {
                    live.remove(from, to);
                }
                prop_assert!(live.is_exact());
                let ends = |range: &[(u32, u32)]| range[0].1 < range[1].0;
                prop_assert!(live.ranges.windows(2).all(ends), "joined where they meet");
                let alive = bytes.iter().filter(|alive| **alive).count();
                let sum: u32 = live.ranges.iter().map(|(from, to)| to - from).sum();
                prop_assert_eq!(sum as usize, alive);
                for gap in live.gaps(UNIT) {
                    let (from, len) = (gap.offset as usize, gap.len as usize);
                    prop_assert!(bytes[from..from + len].iter().all(|alive| !alive));
                    prop_assert!(from + len == UNIT as usize || bytes[from + len]);
                    prop_assert!(live.is_dead(gap) && gap.offset % ALIGN == 0);
                }
            }
        }
    }

    #[test]
    fn what_is_claimed_twice_is_only_counted() {
        let mut live = LiveRanges::new();
        live.add(0, 100);
        live.add(50, 60);
        let behind = Gap {
            offset: 200,
            len: 64,
        };
        assert!(!live.is_exact() && !live.is_dead(behind));
        assert_eq!(live.gaps(UNIT).count(), 0);
        live.remove(0, 100);
        live.clear();
        assert_eq!(
            live.gaps(UNIT).collect::<Vec<_>>(),
            [Gap {
                offset: 0,
                len: UNIT
            }]
        );
        live.remove(5, 6);
        assert!(!live.is_exact());
    }
}
