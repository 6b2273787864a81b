//! Our locks and tables around each fork: libc calls these handlers (pthread_atfork(3)).

use weir_client::process::process;

use crate::{launch, load, spawn, HEAP};

/// A panic in one of these three ends the process: fork(2) goes on whatever its handlers did, and a child
/// would have descriptions of which the server does not know that they are shared.
extern "C" fn prepare() {
    process().forks.before_fork();
    launch::before_fork();
    spawn::before_fork();
    load::before_fork();
    HEAP.before_fork();
}

/// Unlocks what `prepare` locked, in both processes.
fn give_back() {
    HEAP.after_fork();
    launch::after_fork();
    spawn::after_fork();
    load::after_fork();
}

extern "C" fn parent() {
    give_back();
    process().forks.after_fork_parent();
}

extern "C" fn child() {
    give_back();
    process().forks.after_fork_child();
}

/// Registers our handlers of fork with libc.
pub fn watch_forks() {
    // SAFETY: three functions that live as long as this library, which is never
    // unloaded.
    unsafe { libc::pthread_atfork(Some(prepare), Some(parent), Some(child)) };
}
