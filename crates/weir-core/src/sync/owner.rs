//! The word of a lock between the threads of one process, which says who holds it.
//!
//! ```text
//! 0 -> (take_word) -> the holder's thread pointer -> (release) -> 0
//! ```
//!
//! A thread that finds its own number there holds the lock already: it is in a signal handler. A process with one
//! thread takes the word by plain stores, because an atomic read-modify-write costs as much as a whole small write.
//! Waiters sleep on the futex [`OwnerWord::waiters`] for a limited time, so that the release needs no fence: a wake that
//! is missed costs that time, and is rare. Sleeping and waking are the caller's.

use super::{AtomicU32, AtomicU64, Ordering};

/// See the module.
#[derive(Debug, Default)]
pub struct OwnerWord {
    owner: AtomicU64,
    waiters: AtomicU32,
}

impl OwnerWord {
    /// A word that nobody holds.
    #[cfg(not(feature = "explore"))]
    pub const fn new() -> OwnerWord {
        OwnerWord {
            owner: AtomicU64::new(0),
            waiters: AtomicU32::new(0),
        }
    }

    /// Takes the word for the thread `me`, which is not 0, without waiting; else returns who holds it. `alone`: the
    /// process has no other thread.
    #[inline]
    pub fn take_word(&self, me: u64, alone: bool) -> Result<(), u64> {
        if alone {
            return match self.owner.load(Ordering::Relaxed) {
                0 => {
                    self.owner.store(me, Ordering::Relaxed);
                    Ok(())
                }
                owner => Err(owner),
            };
        }
        self.owner
            .compare_exchange(0, me, Ordering::Acquire, Ordering::Relaxed)
            .map(drop)
    }

    /// Releases the word; true if waiters are to be woken.
    #[inline]
    pub fn release(&self) -> bool {
        self.owner.store(0, Ordering::Release);
        let is_awaited = self.waiters.load(Ordering::Relaxed) != 0;
        if is_awaited {
            self.waiters.store(0, Ordering::Relaxed);
        }
        is_awaited
    }

    /// Says that this thread is about to sleep; returns the value of the futex at which it is to, unless nobody holds
    /// the word by now.
    pub fn begin_wait(&self) -> Option<u32> {
        let seen = self.waiters.fetch_add(1, Ordering::SeqCst).wrapping_add(1);
        (self.owner.load(Ordering::SeqCst) != 0).then_some(seen)
    }

    /// The futex on which waiters sleep.
    pub fn waiters(&self) -> &AtomicU32 {
        &self.waiters
    }

    /// Forgets the holder and the waiters: in a child after fork, whose other threads are gone.
    pub fn forget_all(&self) {
        self.owner.store(0, Ordering::Relaxed);
        self.waiters.store(0, Ordering::Relaxed);
    }
}
