//! Which places of the pool are taken. Places are whole units; the lowest that fits is given, so
//! that a node with little to do touches little memory, and what it touches stays in caches.

/// What is given at least, in bytes.
const UNIT: usize = 64 << 10;

/// The pool grows by so much, in bytes.
const STEP: usize = 8 << 20;

/// The pool's units.
#[derive(Debug)]
pub struct Pool {
    /// True: taken.
    units: Vec<bool>,
    /// How many of them there is memory for.
    present: usize,
    used: usize,
}

impl Pool {
    /// A pool of so many bytes, all free, and none of them to be used before [`Pool::allow`].
    pub fn new(bytes: usize) -> Pool {
        Pool {
            units: vec![false; bytes / UNIT],
            present: 0,
            used: 0,
        }
    }

    /// There is memory for so many bytes.
    pub fn allow(&mut self, bytes: usize) {
        self.present = (bytes / UNIT).clamp(self.present, self.units.len());
    }

    /// For how many bytes there should be memory, to take so many more; `None`: there is for all.
    pub fn wants(&self, bytes: u32) -> Option<usize> {
        let more = units(bytes).max(STEP / UNIT);
        let wanted = (self.present + more).min(self.units.len());
        (wanted > self.present).then_some(wanted * UNIT)
    }

    /// Whether so many bytes may have a place some time.
    pub fn may_fit(&self, bytes: u32) -> bool {
        units(bytes) <= self.present
    }

    /// Takes a place for so many bytes, at least one; where it begins.
    pub fn take(&mut self, bytes: u32) -> Option<u32> {
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

    /// Gives back a place that was taken for so many bytes.
    pub fn give_back(&mut self, at: u32, bytes: u32) {
        let first = at as usize / UNIT;
        let place = &mut self.units[first..first + units(bytes)];
        assert!(place.iter().all(|taken| *taken), "given back twice");
        place.fill(false);
        self.used -= place.len();
    }

    /// Whether so many bytes more would leave a quarter free.
    pub fn has_plenty(&self, bytes: u32) -> bool {
        4 * (self.used + units(bytes)) <= 3 * self.units.len()
    }

    /// Bytes in all.
    pub fn bytes(&self) -> usize {
        self.units.len() * UNIT
    }

    /// Bytes that are taken.
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
            prop_assert_eq!(pool.take(1), None);
            prop_assert_eq!(pool.wants(1), Some(2 << 20));
            pool.allow(usize::MAX);
            let mut taken: Vec<(u32, u32)> = Vec::new();
            for (take, bytes, which) in steps {
                if take {
                    if let Some(at) = pool.take(bytes) {
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
            prop_assert_eq!(pool.take(2 << 20), Some(0));
        }
    }
}
