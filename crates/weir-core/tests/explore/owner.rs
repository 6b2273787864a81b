//! The word of a lock of one process: one thread at a time holds it, and sees what the ones before it did under it.
//!
//! Waiters sleep for a limited time: here they look again at once, and a lost wake is only counted. The handler of
//! a signal takes the lock too, or is told that the thread that it interrupts holds it: it could wait for ever.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::Arc;

use loom::cell::UnsafeCell;
use loom::thread;
use weir_core::sync::{spin_loop, AtomicU32, Ordering, OwnerWord};

use super::{explore, explore_signals};

#[derive(Default)]
struct Locked {
    word: OwnerWord,
    /// Loaded while the value is in use, so that a signal may come there.
    within: AtomicU32,
    /// Loom reports a use of it while another one is under way, and one that does not see another.
    value: UnsafeCell<u32>,
}

// SAFETY: only the thread that holds the word uses the value: what loom is to check.
unsafe impl Sync for Locked {}

impl Locked {
    /// Adds 1 to the value, as thread `me`; waits for the lock, as the client's `SigLock` does. Returns false if
    /// that thread holds the lock already.
    fn try_add(&self, me: u64, alone: bool) -> bool {
        while let Err(owner) = self.word.take_word(me, alone) {
            if owner == me {
                return false;
            }
            self.word.begin_wait();
            spin_loop();
        }
        assert_eq!(
            self.word.take_word(me, alone),
            Err(me),
            "its own holder is told"
        );
        self.value.with_mut(|value| {
            self.within.load(Ordering::Relaxed);
            // SAFETY: this thread holds the word.
            unsafe { *value += 1 }
        });
        self.word.release();
        true
    }

    fn add(&self, me: u64) {
        assert!(self.try_add(me, false), "not taken by itself");
    }

    /// Takes the word as the last thread, and asserts the value.
    fn assert_value(&self, expected: u32, alone: bool) {
        assert_eq!(self.word.take_word(3, alone), Ok(()));
        // SAFETY: this thread holds the word.
        self.value
            .with(|value| assert_eq!(unsafe { *value }, expected));
    }
}

#[test]
fn threads_exclude_each_other_and_see_what_was_done() {
    explore(2, || {
        let locked = Arc::new(Locked::default());
        let other = thread::spawn({
            let locked = Arc::clone(&locked);
            move || locked.add(2)
        });
        locked.add(1);
        other.join().unwrap();
        locked.assert_value(2, false);
    });
}

/// A process that has just begun its second thread took the word by plain stores before.
#[test]
fn a_second_thread_sees_what_was_taken_alone() {
    explore(2, || {
        let locked = Arc::new(Locked::default());
        assert_eq!(locked.word.take_word(1, true), Ok(()));
        assert_eq!(locked.word.take_word(1, true), Err(1));
        let second = thread::spawn({
            let locked = Arc::clone(&locked);
            move || locked.add(2)
        });
        // SAFETY: this thread holds the word.
        locked.value.with_mut(|value| unsafe { *value += 1 });
        locked.word.release();
        second.join().unwrap();
        locked.assert_value(2, true);
    });
}

/// Adds as thread 1, and in the handler of a signal that interrupts it. `others`: threads that add meanwhile.
fn interrupt(others: u32) {
    let alone = others == 0;
    explore_signals(3, move |signal| {
        let locked = Arc::new(Locked::default());
        let threads: Vec<_> = (0..others)
            .map(|_| Arc::clone(&locked))
            .map(|locked| thread::spawn(move || locked.add(2)))
            .collect();
        let has_added = Arc::new(AtomicBool::new(false));
        let handler = {
            let (locked, has_added) = (Arc::clone(&locked), Arc::clone(&has_added));
            move || has_added.store(locked.try_add(1, alone), Relaxed)
        };
        signal.run(handler, || assert!(locked.try_add(1, alone)));
        for thread in threads {
            thread.join().unwrap();
        }
        locked.assert_value(1 + u32::from(has_added.load(Relaxed)) + others, alone);
    });
}

#[test]
fn a_handler_has_the_lock_or_is_told_that_its_thread_has_it() {
    interrupt(1);
}

#[test]
fn a_handler_of_the_only_thread_has_the_lock_or_is_told() {
    interrupt(0);
}
