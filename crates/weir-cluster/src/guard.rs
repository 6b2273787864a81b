//! The guard of tests that wait. It ends a test that hangs, and is no assertion about time: tests
//! assert events, counts and orders, because a busy machine makes every call slow now and then.
//!
//! Measured times belong to docs/SPECIFICATION.md, with the command that shows them.

use std::process::{Child, Output};
use std::time::{Duration, Instant};

/// A wait of this length hangs. No load of the machine makes one so long, and no test may depend on
/// the number.
pub const HANG: Duration = Duration::from_secs(300);

/// The time between two looks at a condition.
const LOOK: Duration = Duration::from_millis(1);

/// Waits for a condition that no event tells of.
///
/// # Panics
/// If it hangs.
#[track_caller]
pub fn wait_until(what: &str, mut is_met: impl FnMut() -> bool) {
    let begin = Instant::now();
    while !is_met() {
        assert!(begin.elapsed() < HANG, "it hangs: {what}");
        std::thread::sleep(LOOK);
    }
}

/// Waits for the end of a child; returns its output, which must fit into pipes.
///
/// # Panics
/// If it hangs; the child is killed.
#[track_caller]
pub fn wait_for_output(mut child: Child) -> Output {
    let begin = Instant::now();
    while child.try_wait().expect("a child").is_none() {
        if begin.elapsed() > HANG {
            let _ = child.kill();
            panic!("it hangs: {:?}", child.wait_with_output());
        }
        std::thread::sleep(LOOK);
    }
    child.wait_with_output().expect("a child that has ended")
}
