//! The free and taken places of the pool. A place is a number of whole units. The lowest place that
//! fits is taken, so that a node that reads little touches little memory, and that memory stays in
//! caches.

/// The size of a unit, bytes.
const UNIT: usize = 64 << 10;

/// The step by which the pool grows, bytes.
const STEP: usize = 8 << 20;

/// The pool's units.
#[derive(Debug)]
pub struct Pool {
    /// True for a unit that is taken.
    units: Vec<bool>,
    /// The number of units that have memory.
    present: usize,
    used: usize,
}

impl Pool {
    /// A pool of `bytes` bytes, all free. None of them may be used before [`Pool::allow`].
    pub fn new(bytes: usize) -> Pool {
        Pool {
            units: vec![false; bytes / UNIT],
            present: 0,
            used: 0,
        }
    }

    /// Allows the first `bytes` bytes to be used: they have memory.
    pub fn allow(&mut self, bytes: usize) {
        self.present = (bytes / UNIT).clamp(self.present, self.units.len());
    }

    /// The size of the memory, in bytes, that the pool needs to take a place of `bytes` more;
    /// `None`: the whole pool has memory.
    pub fn wants(&self, bytes: u32) -> Option<usize> {
        let more = units(bytes).max(STEP / UNIT);
        let wanted = (self.present + more).min(self.units.len());
        (wanted > self.present).then_some(wanted * UNIT)
    }

    /// Returns true if the memory of the pool is large enough for a place of `bytes` bytes.
    pub fn may_fit(&self, bytes: u32) -> bool {
        units(bytes) <= self.present
    }

    /// Takes a place for `bytes` bytes, at least one. Returns its beginning.
    pub fn take_place(&mut self, bytes: u32) -> Option<u32> {
        let count = units(bytes);
        let mut free = 0;
        let last = self.units[..self.present].iter().position(|taken| {
            free = if *taken { 0 } else { free + 1 };
            free == count
        })?;
        let first = last + 1 - count;
        self.units[first..=last].fill(true);
        self.used += count;
        u32::try_from(first * UNIT).ok()
    }

    /// Gives back a place that was taken for `bytes` bytes.
    pub fn give_back(&mut self, at: u32, bytes: u32) {
        let first = at as usize / UNIT;
        let place = &mut self.units[first..first + units(bytes)];
        assert!(place.iter().all(|taken| *taken), "given back twice");
        place.fill(false);
        self.used -= place.len();
    }

    /// Returns true if a quarter would stay free after a place of `bytes` bytes were taken.
    pub fn has_plenty(&self, bytes: u32) -> bool {
        4 * (self.used + units(bytes)) <= 3 * self.units.len()
    }

    /// The size of the pool in bytes.
    pub fn bytes(&self) -> usize {
        self.units.len() * UNIT
    }

    /// The number of bytes that are taken.
    pub fn used_bytes(&self) -> usize {
        self.used * UNIT
    }
}

fn units(bytes: u32) -> usize {
    (bytes as usize).div_ceil(UNIT).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn places_never_overlap_and_come_back(
            steps in proptest::collection::vec((any::<bool>(), 1..600_000_u32, any::<prop::sample::Index>()), 1..300)
        ) {
            let mut pool = Pool::new(2 << 20);
            prop_assert_eq!(pool.take_place(1), None);
            prop_assert_eq!(pool.wants(1), Some(2 << 20));
            pool.allow(usize::MAX);
            let mut taken: Vec<(u32, u32)> = Vec::new();
            for (take, bytes, which) in steps {
                if take {
                    if let Some(at) = pool.take_place(bytes) {
                        prop_assert!(at as usize + bytes as usize <= 2 << 20);
                        let apart = |(a, n): &(u32, u32)| at + bytes <= *a || a + n <= at;
                        prop_assert!(taken.iter().all(apart));
                        taken.push((at, bytes));
                    }
                } else if !taken.is_empty() {
                    let (at, bytes) = taken.swap_remove(which.index(taken.len()));
                    pool.give_back(at, bytes);
                }
            }
            for (at, bytes) in taken {
                pool.give_back(at, bytes);
            }
            prop_assert_eq!(pool.used_bytes(), 0);
            prop_assert_eq!(pool.take_place(2 << 20), Some(0));
        }
    }
}
