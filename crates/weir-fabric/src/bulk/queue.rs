//! The order of service: the two-level queue of BurstFS.
//!
//! A server that serves requests as they come spends its time on small ones and changes between
//! them all the time. So requests wait in classes by size, [`SMALLEST_CLASS_BYTES`] to
//! [`LARGEST_CLASS_BYTES`], and the largest class goes first: most bytes for each turn of the link
//! or the device. Within a class the oldest goes first. A request that has waited for
//! [`WAIT_MAX_US`] goes before all others, so that small ones are late by at most that time plus
//! the current transfer.
//!
//! Requests of a connection whose peer does not receive are skipped, and keep their positions.
//!
//! Pure: the caller passes the time.

use std::collections::VecDeque;

/// Requests up to this size are one class.
pub const SMALLEST_CLASS_BYTES: usize = 32 << 10;
/// Requests above half of this size are one class.
pub const LARGEST_CLASS_BYTES: usize = 1 << 20;
/// A request that has waited this long goes first.
pub const WAIT_MAX_US: u64 = 5000;

const CLASSES: usize = (LARGEST_CLASS_BYTES / SMALLEST_CLASS_BYTES).ilog2() as usize + 1;

#[derive(Debug)]
struct Waiting<T> {
    since_us: u64,
    item: T,
}

/// The waiting requests.
#[derive(Debug)]
pub struct Queue<T> {
    /// By size, the smallest first; each in the order of arrival.
    classes: [VecDeque<Waiting<T>>; CLASSES],
}

impl<T> Default for Queue<T> {
    fn default() -> Self {
        Queue {
            classes: std::array::from_fn(|_| VecDeque::new()),
        }
    }
}

/// The class of a request of `bytes` bytes.
fn class_of(bytes: usize) -> usize {
    let units = bytes
        .div_ceil(SMALLEST_CLASS_BYTES)
        .max(1)
        .next_power_of_two();
    (units.ilog2() as usize).min(CLASSES - 1)
}

impl<T> Queue<T> {
    /// Adds a request of `bytes` bytes; `now_us` never decreases.
    pub fn push(&mut self, now_us: u64, bytes: usize, item: T) {
        let since_us = now_us;
        self.classes[class_of(bytes)].push_back(Waiting { since_us, item });
    }

    /// Removes and returns the next request among those for which `can` is true.
    pub fn pop(&mut self, now_us: u64, can: impl Fn(&T) -> bool) -> Option<T> {
        let first = |class: &VecDeque<Waiting<T>>| class.iter().position(|w| can(&w.item));
        let late = (0..CLASSES)
            .filter_map(|class| {
                let at = first(&self.classes[class])?;
                let since_us = self.classes[class][at].since_us;
                (now_us.saturating_sub(since_us) >= WAIT_MAX_US).then_some((since_us, class, at))
            })
            .min();
        let next = late.map(|(_, class, at)| (class, at)).or_else(|| {
            let found = |class| first(&self.classes[class]).map(|at| (class, at));
            (0..CLASSES).rev().find_map(found)
        });
        let (class, at) = next?;
        self.classes[class].remove(at).map(|waiting| waiting.item)
    }

    /// Removes the requests for which `keep` is false.
    pub fn retain(&mut self, keep: impl Fn(&T) -> bool) {
        for class in &mut self.classes {
            class.retain(|waiting| keep(&waiting.item));
        }
    }

    /// Returns true if no request waits.
    pub fn is_empty(&self) -> bool {
        self.classes.iter().all(VecDeque::is_empty)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn sizes_have_their_classes() {
        assert_eq!(CLASSES, 6);
        let of = [
            0,
            1,
            SMALLEST_CLASS_BYTES,
            SMALLEST_CLASS_BYTES + 1,
            LARGEST_CLASS_BYTES / 2,
            LARGEST_CLASS_BYTES / 2 + 1,
            LARGEST_CLASS_BYTES,
            9 * LARGEST_CLASS_BYTES,
        ];
        assert_eq!(of.map(class_of), [0, 0, 0, 1, 4, 5, 5, 5]);
    }

    #[test]
    fn the_largest_class_goes_first_and_in_it_the_oldest() {
        let mut queue = Queue::default();
        for (i, bytes) in [
            100,
            LARGEST_CLASS_BYTES,
            200,
            LARGEST_CLASS_BYTES - 1,
            SMALLEST_CLASS_BYTES * 2,
        ]
        .into_iter()
        .enumerate()
        {
            queue.push(i as u64, bytes, i);
        }
        let order: Vec<usize> = std::iter::from_fn(|| queue.pop(10, |_| true)).collect();
        assert_eq!(order, [1, 3, 4, 0, 2]);
        assert!(queue.is_empty());
    }

    #[test]
    fn nobody_waits_longer_than_patience_for_what_came_later() {
        let mut queue = Queue::default();
        queue.push(0, 1, "little");
        queue.push(1, LARGEST_CLASS_BYTES, "large");
        queue.push(2, LARGEST_CLASS_BYTES, "larger");
        assert_eq!(queue.pop(WAIT_MAX_US - 1, |_| true), Some("large"));
        assert_eq!(queue.pop(WAIT_MAX_US, |_| true), Some("little"));
        assert_eq!(queue.pop(WAIT_MAX_US, |_| true), Some("larger"));
    }

    #[test]
    fn who_cannot_be_served_is_passed_over_and_keeps_its_place() {
        let mut queue = Queue::default();
        queue.push(0, LARGEST_CLASS_BYTES, ('a', 1));
        queue.push(1, LARGEST_CLASS_BYTES, ('b', 2));
        queue.push(2, LARGEST_CLASS_BYTES, ('a', 3));
        assert_eq!(queue.pop(2, |w| w.0 == 'b'), Some(('b', 2)));
        assert_eq!(queue.pop(2, |w| w.0 == 'b'), None);
        queue.push(3, LARGEST_CLASS_BYTES, ('b', 4));
        assert_eq!(queue.pop(3, |_| true), Some(('a', 1)));
        queue.retain(|w| w.0 != 'a');
        assert_eq!(queue.pop(3, |_| true), Some(('b', 4)));
    }

    proptest! {
        /// Compares with a list that is searched each time.
        #[test]
        fn it_is_the_order_that_the_text_says(
            steps in proptest::collection::vec((0..3000_u64, proptest::option::of(0..2 * LARGEST_CLASS_BYTES), 0..4_u32), 1..200)
        ) {
            let mut queue = Queue::default();
            let mut model: Vec<(u64, usize, usize)> = Vec::new();
            let (mut now, mut next) = (0, 0);
            for (pass, push, busy) in steps {
                now += pass;
                if let Some(bytes) = push {
                    queue.push(now, bytes, next);
                    model.push((now, class_of(bytes), next));
                    next += 1;
                    continue;
                }
                let can = |id: &usize| u32::try_from(*id % 4).unwrap() != busy;
                let able = || model.iter().filter(|w| can(&w.2));
                let late = able().filter(|w| now - w.0 >= WAIT_MAX_US).min_by_key(|w| (w.0, w.1));
                let expected = late
                    .or_else(|| able().min_by_key(|w| (CLASSES - w.1, w.2)))
                    .map(|w| w.2);
                prop_assert_eq!(queue.pop(now, can), expected);
                model.retain(|w| Some(w.2) != expected);
            }
            prop_assert_eq!(queue.is_empty(), model.is_empty());
        }
    }
}
