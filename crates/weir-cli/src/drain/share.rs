//! The share of a node that moves take while programs compute.

use crate::stage;

/// The priority (setpriority(2)): a program that computes goes first.
const NICE: i32 = 10;
/// The most threads.
const MOST_THREADS: usize = 4;

/// Lowers the priority of this thread, and of those that it starts.
pub fn give_way() {
    // Where it is refused, moves have the priority of the program.
    let _ = rustix::process::setpriority_process(None, NICE);
}

/// The number of threads that move files.
pub fn threads() -> usize {
    stage::default_threads().min(MOST_THREADS)
}
