//! The share of a node that moves take: threads, files, and a priority while programs compute.

use nix::sys::resource::{getrlimit, setrlimit, Resource};

/// The priority (setpriority(2)): a program that computes goes first.
const NICE: i32 = 10;
/// The most threads of a move that gives way.
const MOST_THREADS_BESIDE: usize = 4;
/// The most threads of a mover that another node has asked for.
pub const MOST_THREADS: usize = 1024;

/// Lowers the priority of this thread, and of those that it starts.
pub fn give_way() {
    // Where it is refused, moves have the priority of the program.
    let _ = rustix::process::setpriority_process(None, NICE);
}

/// The number of threads that move files while programs compute.
pub fn threads_beside() -> usize {
    default_threads().min(MOST_THREADS_BESIDE)
}

/// Copying waits for storage more than it computes: small files on a disk are faster by 16 threads than by
/// 4, also on two processors.
pub fn default_threads() -> usize {
    let processors = std::thread::available_parallelism().map_or(2, usize::from);
    (2 * processors).clamp(16, 32)
}

/// Lets this process have as many open files as it may: each thread has a batch of them open.
pub fn allow_open_files() {
    if let Ok((_, most)) = getrlimit(Resource::RLIMIT_NOFILE) {
        // Where it stays, batches are smaller.
        let _ = setrlimit(Resource::RLIMIT_NOFILE, most, most);
    }
}
