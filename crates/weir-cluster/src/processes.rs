//! The first processes of a cluster's switch and nodes, by their `pid` files.
//!
//! A `pid` file holds the number of the first process, as the machine sees it, and the time of its start
//! (proc(5), stat field 22), so that a later process with the same number is not confused with it.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{ensure, Context, Result};
use nix::sys::signal::{kill, Signal};
use nix::unistd::Pid;

/// The time limit for the kernel to end the processes of a cluster.
const END_LIMIT: Duration = Duration::from_secs(20);

/// Kills the first process of the switch and of each node and waits until none is left.
pub fn kill_all(dir: &Path) -> Result<()> {
    let parts = std::fs::read_dir(dir)?.flatten().map(|entry| entry.path());
    let pids: Vec<PathBuf> = parts.map(|part| part.join("pid")).collect();
    for pid in &pids {
        kill_recorded(pid)?;
    }
    let start = Instant::now();
    while pids.iter().any(|pid| recorded(pid).is_some()) {
        ensure!(start.elapsed() < END_LIMIT, "some do not end");
        std::thread::sleep(Duration::from_millis(2));
    }
    Ok(())
}

/// Kills the process that the file names, if it lives.
pub fn kill_recorded(file: &Path) -> Result<()> {
    if let Some(pid) = recorded(file) {
        match kill(pid, Signal::SIGKILL) {
            Ok(()) | Err(nix::errno::Errno::ESRCH) => {}
            Err(e) => return Err(e).context("killing the first process of a node"),
        }
    }
    Ok(())
}

/// Writes the file that names a process.
pub fn record(file: &Path, pid: Pid) -> Result<()> {
    let start = start_time(pid).context("a first process died at once")?;
    std::fs::write(file, format!("{pid} {start}\n")).with_context(|| file.display().to_string())
}

/// The process that the file names, if it still is that one.
pub fn recorded(file: &Path) -> Option<Pid> {
    let text = std::fs::read_to_string(file).ok()?;
    let (pid, start) = text.trim().split_once(' ')?;
    let pid = Pid::from_raw(pid.parse().ok()?);
    (start_time(pid)? == start.parse().ok()?).then_some(pid)
}

/// The start time of a process, in ticks since the machine's start; `None` if it is a zombie or does not
/// exist.
fn start_time(pid: Pid) -> Option<u64> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name, in parentheses, may contain anything: the fields follow the last parenthesis.
    let mut fields = stat.rsplit_once(')')?.1.split_whitespace();
    let state = fields.next()?;
    (state != "Z" && state != "X").then(|| fields.nth(18)?.parse().ok())?
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_is_of_one_life_of_a_number() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("pid");
        record(&file, Pid::this()).unwrap();
        assert_eq!(recorded(&file), Some(Pid::this()));
        std::fs::write(&file, format!("{} 1\n", Pid::this())).unwrap();
        assert_eq!(recorded(&file), None);
    }
}
