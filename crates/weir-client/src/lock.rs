//! A lock around slow paths of this process, safe against signal handlers and forks.
//!
//! While it is held, every signal of its thread is blocked, so that no handler runs that could want
//! it. The thread that holds it may take it again: it is held on purpose within a fork, whose
//! handlers may use files. So the state that it guards is made of atomics and is consistent
//! whenever other code can run.
//!
//! Robustness against killed holders is not needed: a thread that dies takes the process along.

use core::sync::atomic::{AtomicU32, AtomicUsize, Ordering};

use rustix::thread::futex;

use crate::kernel::{block_signals, SignalsBlocked};

/// The lock. It guards nothing by type: the documentation of the guarded state names it.
#[derive(Debug)]
pub struct SlowLock {
    /// The thread that has it; 0: nobody.
    owner: AtomicUsize,
    /// The number of times that the owner has taken it.
    depth: AtomicU32,
    /// 0: free; 1: taken; 2: taken and waited for.
    word: AtomicU32,
}

/// Holds the lock until dropped.
#[derive(Debug)]
pub struct Held<'a> {
    lock: &'a SlowLock,
    /// Dropped last, so that the lock is free before a signal comes.
    _signals: SignalsBlocked,
}

std::thread_local! {
    static HERE: u8 = const { 0 };
}

/// A number that no two living threads share, never 0. (A child of vfork has its parent's; the
/// parent does not run meanwhile.)
pub fn thread_token() -> usize {
    HERE.with(|here| core::ptr::from_ref(here) as usize)
}

impl SlowLock {
    /// A free lock.
    pub const fn new() -> SlowLock {
        SlowLock {
            owner: AtomicUsize::new(0),
            depth: AtomicU32::new(0),
            word: AtomicU32::new(0),
        }
    }

    /// Waits for the lock.
    pub fn hold(&self) -> Held<'_> {
        let signals = block_signals();
        self.acquire();
        Held {
            lock: self,
            _signals: signals,
        }
    }

    /// True if the calling thread has it.
    pub fn is_mine(&self) -> bool {
        self.owner.load(Ordering::Relaxed) == thread_token()
    }

    /// Takes it over a call of foreign code (fork); [`SlowLock::release`] ends it. The caller blocks
    /// signals, if need be.
    pub fn acquire(&self) {
        if !self.is_mine() {
            self.wait();
            self.owner.store(thread_token(), Ordering::Relaxed);
        }
        self.depth.fetch_add(1, Ordering::Relaxed);
    }

    /// Undoes one [`SlowLock::acquire`].
    pub fn release(&self) {
        if self.depth.fetch_sub(1, Ordering::Relaxed) > 1 {
            return;
        }
        self.owner.store(0, Ordering::Relaxed);
        if self.word.swap(0, Ordering::Release) == 2 {
            let _ = futex::wake(&self.word, futex::Flags::PRIVATE, 1);
        }
    }

    /// In a forked child: gives the calling thread the lock, as often as the parent's thread had
    /// it, without waiters.
    pub fn inherit(&self) {
        if self.is_mine() {
            self.word.store(1, Ordering::Release);
        } else {
            self.reset();
            self.acquire();
        }
    }

    /// Forgets every holder: in a forked child, whose other threads are gone.
    pub fn reset(&self) {
        self.depth.store(0, Ordering::Relaxed);
        self.owner.store(0, Ordering::Relaxed);
        self.word.store(0, Ordering::Release);
    }

    fn wait(&self) {
        let free = self
            .word
            .compare_exchange(0, 1, Ordering::Acquire, Ordering::Relaxed);
        if free.is_ok() {
            return;
        }
        while self.word.swap(2, Ordering::Acquire) != 0 {
            let _ = futex::wait(&self.word, futex::Flags::PRIVATE, 2, None);
        }
    }
}

impl Default for SlowLock {
    fn default() -> SlowLock {
        SlowLock::new()
    }
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        self.lock.release();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_exclude_each_other_and_the_owner_may_return() {
        static LOCK: SlowLock = SlowLock::new();
        let count = AtomicU32::new(0);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..2_000 {
                        let _outer = LOCK.hold();
                        let seen = count.load(Ordering::Relaxed);
                        let _inner = LOCK.hold();
                        assert!(LOCK.is_mine());
                        count.store(seen + 1, Ordering::Relaxed);
                    }
                });
            }
        });
        assert_eq!(count.load(Ordering::Relaxed), 8_000);
        assert!(!LOCK.is_mine());
    }
}
