//! The records that processes share, in all orders of their accesses: `make explore`.
//!
//! Loom runs each test again and again, each time in another order that the memory model permits, and
//! with other values where it permits old ones. A process that stops for ever between two accesses needs
//! no test of its own: the others run to their end at each of its accesses. Where somebody learns that a
//! process was killed, and only then acts, the test kills it ([`explore_kills`]). A signal may interrupt a
//! thread before each of its accesses ([`explore_signals`]).
//!
//! Each file begins with the protocol and what must hold. Each of these tests failed once, when an order
//! or a check that it looks after was taken away: see the commit that brought it.

mod cell;
mod channel;
mod claim;
mod landing;
mod ofd;
mod owner;
mod ring;
mod tail;

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::sync::Arc;

use loom::sync::{Condvar, Mutex};
use weir_core::sync::{AtomicU32, Ordering};

/// Runs `model` in all orders in which at most `preemptions` threads stop although they could go on.
/// Most faults need two.
fn explore(preemptions: usize, model: impl Fn() + Send + Sync + 'static) {
    let orders = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&orders);
    let mut loom = loom::model::Builder::new();
    loom.preemption_bound = Some(preemptions);
    loom.max_branches = 10_000;
    loom.check(move || {
        counted.fetch_add(1, Relaxed);
        model();
    });
    eprintln!("{} orders", orders.load(Relaxed));
}

/// A process of a test that is killed at one of its accesses.
#[derive(Clone)]
struct Victim {
    accesses: usize,
    was_killed: Arc<AtomicBool>,
}

impl Victim {
    /// Runs `program`, up to the access at which the process is killed.
    fn run<T>(&self, program: impl FnOnce() -> T) -> Option<T> {
        let done = weir_core::sync::run_until_killed(self.accesses, program);
        if done.is_none() {
            self.was_killed.store(true, Relaxed);
        }
        done
    }
}

/// As [`explore`], with a process that is killed at each of its accesses, and in the end at none.
fn explore_kills(preemptions: usize, model: impl Fn(&Victim) + Clone + Send + Sync + 'static) {
    for accesses in 0.. {
        let was_killed = Arc::new(AtomicBool::new(false));
        let victim = Victim {
            accesses,
            was_killed: Arc::clone(&was_killed),
        };
        let model = model.clone();
        explore(preemptions, move || model(&victim));
        if !was_killed.load(Relaxed) {
            return;
        }
    }
}

/// A thread of a test that a signal interrupts before one of its accesses.
#[derive(Clone)]
struct Interrupted {
    accesses: usize,
    was_interrupted: Arc<AtomicBool>,
}

impl Interrupted {
    /// Runs `program`; `handler` runs before the access at which the signal comes. Returns true if it came.
    fn run(&self, handler: impl FnOnce() + 'static, program: impl FnOnce()) -> bool {
        let ((), came) = weir_core::sync::run_interrupted(self.accesses, handler, program);
        if came {
            self.was_interrupted.store(true, Relaxed);
        }
        came
    }
}

/// As [`explore`], with a thread that a signal interrupts before each of its accesses, and in the end never.
fn explore_signals(
    preemptions: usize,
    model: impl Fn(&Interrupted) + Clone + Send + Sync + 'static,
) {
    for accesses in 0.. {
        let was_interrupted = Arc::new(AtomicBool::new(false));
        let thread = Interrupted {
            accesses,
            was_interrupted: Arc::clone(&was_interrupted),
        };
        let model = model.clone();
        explore(preemptions, move || model(&thread));
        if !was_interrupted.load(Relaxed) {
            return;
        }
    }
}

/// A futex. A thread that nobody wakes is a deadlock, which loom reports.
#[derive(Default)]
struct Futex {
    queue: Mutex<()>,
    wakes: Condvar,
}

impl Futex {
    /// Sleeps until it is woken, unless `word` has another value already.
    fn wait(&self, word: &AtomicU32, value: u32) {
        let queue = self.queue.lock().unwrap();
        if word.load(Ordering::SeqCst) == value {
            drop(self.wakes.wait(queue));
        }
    }

    fn wake(&self) {
        let _queue = self.queue.lock().unwrap();
        self.wakes.notify_all();
    }
}
