//! A lock of one process whose holder may be interrupted by a signal handler.
//!
//! A handler that runs on the holder's own thread and wants the lock can never get it by waiting,
//! so the attempt reports that ([`TryLock::Own`]) and the caller takes another way. glibc's
//! `__libc_single_threaded` tells if the process has only one thread: then the lock costs plain stores
//! ([`OwnerWord`]).
//!
//! The holder is identified by its thread pointer, the cheapest value that no two living threads
//! share. Waiters sleep on a futex with a timeout.

use core::cell::UnsafeCell;
use core::marker::PhantomData;
use core::ops::{Deref, DerefMut};

use weir_core::sync::OwnerWord;

use crate::sys;

/// A value behind a lock.
#[derive(Debug, Default)]
pub struct SigLock<T> {
    owner: OwnerWord,
    value: UnsafeCell<T>,
}

// SAFETY: the value is reached only through a guard, which only the thread whose
// pointer is in the owner's word holds, once.
unsafe impl<T: Send> Sync for SigLock<T> {}

/// The right to use the value; given back when dropped. Not `Send`: the lock identifies its holder
/// by thread. Not `Sync`: the value need only be `Send`.
#[derive(Debug)]
pub struct Guard<'a, T> {
    lock: &'a SigLock<T>,
    of_this_thread: PhantomData<*mut T>,
}

/// The result of trying to take a lock.
#[derive(Debug)]
pub enum TryLock<'a, T> {
    /// This thread has it now.
    Held(Guard<'a, T>),
    /// Another thread has it.
    Taken,
    /// This thread had it already: we are in a signal handler that interrupted it.
    Own,
}

/// The number of looks before sleeping.
const SPINS: u32 = 200;
/// The longest sleep of a waiter before it looks again, in ns.
const NAP_NS: i64 = 200_000;

impl<T> SigLock<T> {
    /// A lock around `value`.
    pub const fn new(value: T) -> SigLock<T> {
        SigLock {
            owner: OwnerWord::new(),
            value: UnsafeCell::new(value),
        }
    }

    /// Tries to take the lock without waiting.
    #[inline]
    pub fn try_lock(&self) -> TryLock<'_, T> {
        let me = sys::thread_pointer() as u64;
        match self.owner.take_word(me, sys::single_threaded()) {
            Ok(()) => TryLock::Held(Guard::new(self)),
            Err(owner) if owner == me => TryLock::Own,
            Err(_) => TryLock::Taken,
        }
    }

    /// Waits for the lock; `None` if this thread has it already.
    pub fn lock(&self) -> Option<Guard<'_, T>> {
        let mut tries = 0;
        loop {
            match self.try_lock() {
                TryLock::Held(guard) => return Some(guard),
                TryLock::Own => return None,
                TryLock::Taken => {}
            }
            tries += 1;
            if tries < SPINS {
                core::hint::spin_loop();
            } else if let Some(seen) = self.owner.begin_wait() {
                sys::futex_wait(self.owner.waiters(), seen, NAP_NS);
            }
        }
    }

    /// Releases a lock that [`Guard::keep`] kept.
    ///
    /// # Safety
    ///
    /// This thread kept a guard of this lock, and has not given it back.
    pub unsafe fn give_back(&self) {
        drop(Guard::new(self));
    }

    /// Forgets its holder: in a child after fork, whose other threads are gone.
    ///
    /// The value may be in the middle of a change; the caller replaces it.
    ///
    /// # Safety
    ///
    /// No guard of this lock is used afterwards: its holder was another thread, or a function to which
    /// this thread does not return.
    pub unsafe fn break_after_fork(&self) {
        self.owner.forget_all();
    }
}

impl<'a, T> Guard<'a, T> {
    fn new(lock: &'a SigLock<T>) -> Guard<'a, T> {
        Guard {
            lock,
            of_this_thread: PhantomData,
        }
    }

    /// Keeps the lock until [`SigLock::give_back`].
    pub fn keep(self) {
        core::mem::forget(self);
    }
}

impl<T> Drop for Guard<'_, T> {
    #[inline]
    fn drop(&mut self) {
        if self.lock.owner.release() {
            sys::futex_wake(self.lock.owner.waiters(), i32::MAX);
        }
    }
}

impl<T> Deref for Guard<'_, T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        // SAFETY: a guard exists only while its thread is the owner, and `try_lock`
        // gives no second one; so nobody changes the value meanwhile.
        unsafe { &*self.lock.value.get() }
    }
}

impl<T> DerefMut for Guard<'_, T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: this thread owns the lock, and has one guard of it, which is borrowed mutably.
        unsafe { &mut *self.lock.value.get() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_exclude_each_other() {
        let lock = SigLock::new(0u64);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..20_000 {
                        let mut guard = lock.lock().unwrap();
                        let value = *guard;
                        core::hint::spin_loop();
                        *guard = value + 1;
                    }
                });
            }
        });
        assert_eq!(*lock.lock().unwrap(), 80_000);
    }

    #[test]
    fn its_own_holder_is_told() {
        let lock = SigLock::new(());
        let guard = lock.lock().unwrap();
        assert!(lock.lock().is_none());
        drop(guard);
        assert!(lock.lock().is_some());
    }
}
