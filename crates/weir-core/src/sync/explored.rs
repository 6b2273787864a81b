//! Loom's atomics, in processes that can be killed, and in threads that a signal can interrupt.
//!
//! Loom treats an access with `SeqCst` as one with acquire and release, which is weaker than it is, but
//! models `SeqCst` fences. So a fence comes before each such access: the usual mapping to processors that
//! have fences only. No other thread runs between an access and a fence behind it, and no load sees a store that
//! the thread of the store makes later: faults of these two kinds stay hidden.

use std::cell::Cell;
use std::panic::{catch_unwind, resume_unwind, AssertUnwindSafe};

use loom::sync::atomic as model;
pub use loom::sync::atomic::{fence, Ordering};

loom::thread_local! {
    /// The number of accesses before this thread's process is killed.
    static ACCESSES_LEFT: Cell<usize> = Cell::new(usize::MAX);
    /// The signal that is still to come.
    static SIGNAL: Cell<Option<Signal>> = Cell::new(None);
}

/// A signal that interrupts its thread between two accesses to shared memory.
struct Signal {
    /// The number of accesses before it comes.
    accesses_left: usize,
    handler: Box<dyn FnOnce()>,
}

/// The payload of the panic that ends a killed process.
struct ProcessKilled;

/// Runs `program` as a process that is killed after so many accesses to shared memory. Returns `None`
/// if it was killed.
///
/// Destructors that run while the stack of a killed process unwinds change no shared memory.
pub fn run_until_killed<T>(accesses: usize, program: impl FnOnce() -> T) -> Option<T> {
    ACCESSES_LEFT.with(|left| left.set(accesses));
    let outcome = catch_unwind(AssertUnwindSafe(program));
    ACCESSES_LEFT.with(|left| left.set(usize::MAX));
    match outcome {
        Ok(value) => Some(value),
        Err(payload) if payload.is::<ProcessKilled>() => None,
        Err(payload) => resume_unwind(payload),
    }
}

/// Runs `program` on a thread that a signal interrupts after so many accesses to shared memory: `handler` runs
/// there and then, on the same thread. Returns what the program does, and true if the signal came before its end.
pub fn run_interrupted<T>(
    accesses: usize,
    handler: impl FnOnce() + 'static,
    program: impl FnOnce() -> T,
) -> (T, bool) {
    let signal = Signal {
        accesses_left: accesses,
        handler: Box::new(handler),
    };
    SIGNAL.with(|next| next.set(Some(signal)));
    let done = program();
    let came = SIGNAL.with(Cell::take).is_none();
    (done, came)
}

/// Runs the handler of a signal that comes before this access.
fn handle_signal() {
    let due = SIGNAL.with(|next| {
        let mut signal = next.take()?;
        if signal.accesses_left == 0 {
            return Some(signal.handler);
        }
        signal.accesses_left -= 1;
        next.set(Some(signal));
        None
    });
    if let Some(handler) = due {
        handler();
    }
}

/// Counts an access. Returns false if the process is dead.
fn count_access() -> bool {
    if std::thread::panicking() {
        return false;
    }
    handle_signal();
    ACCESSES_LEFT.with(|left| match left.get() {
        0 => resume_unwind(Box::new(ProcessKilled)),
        usize::MAX => {}
        more => left.set(more - 1),
    });
    true
}

/// Makes room for other threads: this one waits for a change.
pub fn spin_loop() {
    loom::hint::spin_loop();
}

fn fence_before(order: Ordering) {
    if order == Ordering::SeqCst {
        fence(Ordering::SeqCst);
    }
}

macro_rules! atomic {
    ($name:ident, $integer:ty) => {
        /// See the module.
        #[derive(Debug, Default)]
        pub struct $name(model::$name);

        #[allow(missing_docs)] // std's
        impl $name {
            pub fn new(value: $integer) -> Self {
                Self(model::$name::new(value))
            }

            pub fn load(&self, order: Ordering) -> $integer {
                if !count_access() {
                    return 0;
                }
                fence_before(order);
                self.0.load(order)
            }

            pub fn store(&self, value: $integer, order: Ordering) {
                if count_access() {
                    fence_before(order);
                    self.0.store(value, order);
                }
            }

            pub fn compare_exchange(
                &self,
                current: $integer,
                new: $integer,
                success: Ordering,
                failure: Ordering,
            ) -> Result<$integer, $integer> {
                if !count_access() {
                    return Err(0);
                }
                fence_before(success);
                self.0.compare_exchange(current, new, success, failure)
            }

            pub fn swap(&self, value: $integer, order: Ordering) -> $integer {
                self.change(order, |word| word.swap(value, order))
            }

            pub fn fetch_add(&self, value: $integer, order: Ordering) -> $integer {
                self.change(order, |word| word.fetch_add(value, order))
            }

            pub fn fetch_max(&self, value: $integer, order: Ordering) -> $integer {
                self.change(order, |word| word.fetch_max(value, order))
            }

            pub fn fetch_or(&self, value: $integer, order: Ordering) -> $integer {
                self.change(order, |word| word.fetch_or(value, order))
            }

            fn change(
                &self,
                order: Ordering,
                change: impl FnOnce(&model::$name) -> $integer,
            ) -> $integer {
                if !count_access() {
                    return 0;
                }
                fence_before(order);
                change(&self.0)
            }
        }
    };
}

atomic!(AtomicU32, u32);
atomic!(AtomicU64, u64);
