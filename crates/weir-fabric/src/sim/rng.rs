//! Random numbers from a seed, by `weir_core::splitmix`.

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use weir_core::splitmix::{mix, STEP};

/// A seeded generator. Clones share one sequence.
#[derive(Clone, Debug)]
pub struct SeededRng(Rc<Cell<u64>>);

impl SeededRng {
    /// Creates the sequence of a seed.
    pub fn new(seed: u64) -> SeededRng {
        SeededRng(Rc::new(Cell::new(seed)))
    }

    /// Creates an independent sequence, for a user that must draw the same however often others do.
    #[must_use]
    pub fn fork(&self) -> SeededRng {
        SeededRng::new(self.next())
    }

    /// The next number.
    pub fn next(&self) -> u64 {
        let state = self.0.get();
        self.0.set(state.wrapping_add(STEP));
        mix(state)
    }

    /// A number from 0 to `below - 1`, or 0 if `below` is 0.
    pub fn below(&self, below: u64) -> u64 {
        self.next() % below.max(1)
    }

    /// An index below `below`.
    #[allow(clippy::cast_possible_truncation)] // less than `below`, a usize
    pub fn pick(&self, below: usize) -> usize {
        self.below(below as u64) as usize
    }

    /// True with a probability of `per_mille` of 1000.
    pub fn chance(&self, per_mille: u32) -> bool {
        self.below(1000) < u64::from(per_mille)
    }

    /// A duration from `least` to `most`, both included.
    pub fn duration(&self, least: Duration, most: Duration) -> Duration {
        let span = most.saturating_sub(least).as_nanos();
        let span = u64::try_from(span).unwrap_or(u64::MAX);
        least + Duration::from_nanos(self.below(span.saturating_add(1)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_is_a_sequence_for_ever() {
        let rng = SeededRng::new(1);
        let first: Vec<u64> = (0..3).map(|_| rng.below(1000)).collect();
        assert_eq!(first, [465, 519, 590]);
        assert_eq!(
            SeededRng::new(1).fork().next(),
            SeededRng::new(SeededRng::new(1).next()).next()
        );
    }
}
