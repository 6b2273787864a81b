//! Which bytes of a unit are alive, to the byte.
//!
//! Where no unit is wholly free any more, what is dead between living bytes is lent again: so
//! a log needs no bytes moved, and no extent anywhere changes. Bytes that were written one
//! behind the other are one range, so that a unit filled by one stream costs 8 bytes.
//!
//! Not every unit is known so well: after a restart, of what was published only its amount is
//! known, and a client may claim bytes twice. Such a unit is counted as a whole, by its
//! [`crate::slab::Slab`], until nothing in it is alive. Pure: no I/O.

/// Gaps begin at cache lines, as all that is reserved does.
const ALIGN: u32 = 64;

/// A piece of a unit that holds nothing alive: where it begins, and its bytes.
pub type Gap = (u32, u32);

/// The living ranges of a unit.
#[derive(Debug, Clone)]
pub struct Live {
    /// From, to; in order, apart from each other.
    ranges: Vec<(u32, u32)>,
    is_exact: bool,
}

impl Live {
    /// Nothing is alive.
    pub fn new() -> Live {
        Live {
            ranges: Vec::new(),
            is_exact: true,
        }
    }

    /// Whether the ranges are all that is alive.
    pub fn is_exact(&self) -> bool {
        self.is_exact
    }

    /// From now on only the amount is known, until [`Live::clear`].
    pub fn blur(&mut self) {
        self.ranges = Vec::new();
        self.is_exact = false;
    }

    /// Nothing is alive any more.
    pub fn clear(&mut self) {
        self.ranges = Vec::new();
        self.is_exact = true;
    }

    /// `[from, to)` is alive. If part of it was so before, only the amount is known.
    pub fn add(&mut self, from: u32, to: u32) {
        if !self.is_exact {
            return;
        }
        let at = self.ranges.partition_point(|range| range.1 < from);
        let joins_left = self.ranges.get(at).is_some_and(|range| range.1 == from);
        let next = at + usize::from(joins_left);
        match self.ranges.get(next) {
            Some(range) if range.0 < to => self.blur(),
            Some(range) if range.0 == to && joins_left => {
                self.ranges[at].1 = range.1;
                self.ranges.remove(next);
            }
            Some(range) if range.0 == to => self.ranges[next].0 = from,
            _ if joins_left => self.ranges[at].1 = to,
            _ => self.ranges.insert(at, (from, to)),
        }
    }

    /// `[from, to)` is dead. If part of it was so before, only the amount is known.
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
            _ => self.blur(),
        }
    }

    /// What can be lent of a unit of `unit` bytes beside what is alive.
    pub fn gaps(&self, unit: u32) -> impl Iterator<Item = Gap> + '_ {
        let starts = std::iter::once(0).chain(self.ranges.iter().map(|range| range.1));
        let ends = self.ranges.iter().map(|range| range.0);
        let between = starts.zip(ends.chain(std::iter::once(unit)));
        between
            .filter(|_| self.is_exact)
            .map(|(from, to)| (from.next_multiple_of(ALIGN), to))
            .filter(|(from, to)| to.saturating_sub(*from) >= ALIGN)
            .map(|(from, to)| (from, to - from))
    }

    /// Whether nothing of a gap is alive.
    pub fn is_dead(&self, (from, len): Gap) -> bool {
        let at = self.ranges.partition_point(|range| range.1 <= from);
        let next = self.ranges.get(at);
        self.is_exact && next.is_none_or(|range| range.0 >= from + len)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const UNIT: u32 = 1024;

    proptest! {
        /// Against a byte each.
        #[test]
        fn like_a_map_of_bytes(steps in prop::collection::vec((any::<bool>(), 0u32..UNIT, 1u32..200), 1..80)) {
            let mut live = Live::new();
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
                    let (from, len) = (gap.0 as usize, gap.1 as usize);
                    prop_assert!(bytes[from..from + len].iter().all(|alive| !alive));
                    prop_assert!(from + len == UNIT as usize || bytes[from + len]);
                    prop_assert!(live.is_dead(gap) && gap.0 % ALIGN == 0);
                }
            }
        }
    }

    #[test]
    fn what_is_claimed_twice_is_only_counted() {
        let mut live = Live::new();
        live.add(0, 100);
        live.add(50, 60);
        assert!(!live.is_exact() && !live.is_dead((200, 64)));
        assert_eq!(live.gaps(UNIT).count(), 0);
        live.remove(0, 100);
        live.clear();
        assert_eq!(live.gaps(UNIT).collect::<Vec<_>>(), [(0, UNIT)]);
        live.remove(5, 6);
        assert!(!live.is_exact());
    }
}
