//! A few things of a kind, each lent to one thread of this process.
//!
//! As with [`crate::lock`], every signal of a thread is blocked while it has one, and a killed
//! holder takes the process along. Unlike a lock, a thread that has one may take another.

use core::sync::atomic::{AtomicU32, AtomicUsize, Ordering};

use rustix::thread::futex;

use crate::kernel::{block_signals, SignalsBlocked};
use crate::lock::thread_token;

/// Some thread sleeps until one is given back.
const AWAITED: u32 = 1 << 31;

/// `N` slots, 31 at most.
#[derive(Debug)]
pub struct Slots<const N: usize> {
    /// A bit for each that is taken, and [`AWAITED`]; a futex.
    taken: AtomicU32,
    /// The thread that has it; 0: nobody.
    owners: [AtomicUsize; N],
}

/// A slot that is held until dropped.
#[derive(Debug)]
pub struct Slot<'a, const N: usize> {
    slots: &'a Slots<N>,
    place: usize,
    /// Dropped last, so that the slot is given back before a signal comes.
    _signals: SignalsBlocked,
}

impl<const N: usize> Slots<N> {
    /// None is taken.
    pub const fn new() -> Slots<N> {
        assert!(N < 32, "a bit each, and one to spare");
        Slots {
            taken: AtomicU32::new(0),
            owners: [const { AtomicUsize::new(0) }; N],
        }
    }

    /// Waits for one of the first `usable`; `None`: the calling thread has them all.
    pub fn hold(&self, usable: usize) -> Option<Slot<'_, N>> {
        let signals = block_signals();
        loop {
            if let Some(place) = self.take_free(usable) {
                return Some(self.slot(place, signals));
            }
            let me = thread_token();
            let mut owners = self.owners[..usable].iter();
            if owners.all(|owner| owner.load(Ordering::Relaxed) == me) {
                return None;
            }
            let seen = self.taken.fetch_or(AWAITED, Ordering::Relaxed) | AWAITED;
            if free_of(seen, usable) == 0 {
                let _ = futex::wait(&self.taken, futex::Flags::PRIVATE, seen, None);
            }
        }
    }

    /// Takes one of the first `usable`, if any is free.
    pub fn try_hold(&self, usable: usize) -> Option<Slot<'_, N>> {
        let signals = block_signals();
        let place = self.take_free(usable)?;
        Some(self.slot(place, signals))
    }

    fn slot(&self, place: usize, signals: SignalsBlocked) -> Slot<'_, N> {
        Slot {
            slots: self,
            place,
            _signals: signals,
        }
    }

    fn take_free(&self, usable: usize) -> Option<usize> {
        let mut seen = self.taken.load(Ordering::Relaxed);
        loop {
            let free = free_of(seen, usable);
            let place = (free != 0).then(|| free.trailing_zeros() as usize)?;
            let wanted = seen | 1 << place;
            let taken = self.taken.compare_exchange_weak(
                seen,
                wanted,
                Ordering::Acquire,
                Ordering::Relaxed,
            );
            match taken {
                Ok(_) => {
                    self.owners[place].store(thread_token(), Ordering::Relaxed);
                    return Some(place);
                }
                Err(now) => seen = now,
            }
        }
    }
}

/// The bits of the first `usable` that are not set.
fn free_of(taken: u32, usable: usize) -> u32 {
    !taken & !(u32::MAX << usable)
}

impl<const N: usize> Slot<'_, N> {
    /// The index of the slot.
    pub fn place(&self) -> usize {
        self.place
    }
}

impl<const N: usize> Drop for Slot<'_, N> {
    fn drop(&mut self) {
        self.slots.owners[self.place].store(0, Ordering::Relaxed);
        let back = !(AWAITED | 1 << self.place);
        if self.slots.taken.fetch_and(back, Ordering::Release) & AWAITED != 0 {
            // All of them: those that find none set the bit again.
            let _ = futex::wake(&self.slots.taken, futex::Flags::PRIVATE, i32::MAX as u32);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_is_held_by_one_thread_at_a_time() {
        static SLOTS: Slots<3> = Slots::new();
        let counts = [const { AtomicU32::new(0) }; 3];
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    for _ in 0..1_000 {
                        let slot = SLOTS.hold(3).unwrap();
                        let count = &counts[slot.place()];
                        let seen = count.load(Ordering::Relaxed);
                        std::thread::yield_now();
                        count.store(seen + 1, Ordering::Relaxed);
                    }
                });
            }
        });
        let all: u32 = counts.iter().map(|c| c.load(Ordering::Relaxed)).sum();
        assert_eq!(all, 8_000);
    }

    #[test]
    fn a_thread_may_have_several_but_none_twice() {
        let slots = Slots::<3>::new();
        let first = slots.hold(1).unwrap();
        assert!(slots.try_hold(1).is_none() && slots.hold(1).is_none());
        let others = [slots.hold(3).unwrap(), slots.try_hold(3).unwrap()];
        assert_eq!(others.each_ref().map(Slot::place), [1, 2]);
        assert!(slots.hold(3).is_none());
        drop(first);
        assert_eq!(slots.hold(3).unwrap().place(), 0);
    }
}
