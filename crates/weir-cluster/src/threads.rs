//! The other threads of this process: do they sleep, and how often are they woken? Counts, unlike
//! processor time, are the same beside other work on the machine.

use std::time::{Duration, Instant};

use anyhow::{bail, Context, Result};

/// Threads that have work left do not sleep for as long as this.
const SETTLE: Duration = Duration::from_secs(60);

/// A thread, as /proc shows it (proc_pid_status(5)).
struct Thread {
    name: String,
    sleeps: bool,
    /// The number of times that it gave up the processor, to wait.
    waits: u64,
}

/// Waits until all other threads of this process sleep, and counts how often they wake in
/// `interval`. The caller measures their sleep, it does not wait for an event.
///
/// Errors: a thread never sleeps.
pub fn wakes_in(interval: Duration) -> Result<u64> {
    let begin = Instant::now();
    let before = loop {
        let threads = others()?;
        match threads.iter().find(|thread| !thread.sleeps) {
            None => break threads,
            Some(busy) if begin.elapsed() > SETTLE => bail!("{} never sleeps", busy.name),
            Some(_) => std::thread::sleep(Duration::from_millis(1)),
        }
    };
    std::thread::sleep(interval);
    let waits = |threads: &[Thread]| threads.iter().map(|thread| thread.waits).sum::<u64>();
    Ok(waits(&others()?).saturating_sub(waits(&before)))
}

fn others() -> Result<Vec<Thread>> {
    let own = std::fs::read_link("/proc/thread-self")?;
    let mut threads = Vec::new();
    for task in std::fs::read_dir("/proc/self/task")? {
        let task = task?;
        if Some(task.file_name().as_os_str()) == own.file_name() {
            continue;
        }
        // A thread that is gone meanwhile sleeps for good.
        if let Ok(status) = std::fs::read_to_string(task.path().join("status")) {
            threads.push(parsed(&status).context("no thread of proc_pid_status(5)")?);
        }
    }
    Ok(threads)
}

fn parsed(status: &str) -> Option<Thread> {
    let field = |name: &str| {
        let mut lines = status.lines();
        lines.find_map(|line| line.strip_prefix(name)?.strip_prefix(':').map(str::trim))
    };
    Some(Thread {
        name: field("Name")?.to_owned(),
        sleeps: field("State")?.starts_with('S'),
        waits: field("voluntary_ctxt_switches")?.parse().ok()?,
    })
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::sync::Arc;

    use super::*;

    /// The test runner's own threads sleep, or run other tests: only lower bounds can be asserted.
    #[test]
    fn a_thread_that_wakes_is_counted() {
        let done = Arc::new(AtomicBool::new(false));
        let ticker = std::thread::spawn({
            let done = Arc::clone(&done);
            move || {
                while !done.load(Ordering::Relaxed) {
                    std::thread::sleep(Duration::from_millis(1));
                }
            }
        });
        let mut wakes = 0;
        while wakes < 3 {
            wakes += wakes_in(Duration::from_millis(20)).unwrap();
        }
        done.store(true, Ordering::Relaxed);
        ticker.join().unwrap();
    }

    #[test]
    fn a_status_is_parsed() {
        let status = "Name:\tweir\nState:\tS (sleeping)\nvoluntary_ctxt_switches:\t7\n";
        let thread = parsed(status).unwrap();
        assert!(thread.sleeps && thread.waits == 7 && thread.name == "weir");
        assert!(!parsed(&status.replace("S (s", "R (s")).unwrap().sleeps);
        assert!(parsed("Name:\tweir\n").is_none());
    }
}
