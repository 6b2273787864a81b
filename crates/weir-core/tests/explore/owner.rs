//! The word of a lock of one process: one thread at a time holds it, and sees what the ones before it did under it.
//!
//! Waiters sleep for a limited time: here they look again at once, and a lost wake is only counted.

use std::sync::Arc;

use loom::cell::UnsafeCell;
use loom::thread;
use weir_core::sync::{spin_loop, OwnerWord};

use super::explore;

#[derive(Default)]
struct Locked {
    word: OwnerWord,
    /// Loom reports a use of it while another one is under way, and one that does not see another.
    value: UnsafeCell<u32>,
}

// SAFETY: only the thread that holds the word uses the value: what loom is to check.
unsafe impl Sync for Locked {}

impl Locked {
    /// Adds 1 to the value, as thread `me`; waits for the lock.
    fn add(&self, me: u64) {
        while self.word.take_word(me, false).is_err() {
            self.word.begin_wait();
            spin_loop();
        }
        assert_eq!(
            self.word.take_word(me, false),
            Err(me),
            "its own holder is told"
        );
        // SAFETY: this thread holds the word.
        self.value.with_mut(|value| unsafe { *value += 1 });
        self.word.release();
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
        assert_eq!(locked.word.take_word(3, false), Ok(()));
        // SAFETY: this thread holds the word.
        locked.value.with(|value| assert_eq!(unsafe { *value }, 2));
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
        assert_eq!(locked.word.take_word(1, true), Ok(()));
        // SAFETY: this thread holds the word.
        locked.value.with(|value| assert_eq!(unsafe { *value }, 2));
    });
}
