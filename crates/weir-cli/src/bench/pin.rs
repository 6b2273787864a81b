//! Processors of a worker and its server: a share of a machine that is shared by several servers.

use std::os::unix::net::UnixStream;
use std::path::Path;

use anyhow::{Context, Result};
use rustix::net::sockopt::socket_peercred;
use rustix::process::{getpid, Pid};
use rustix::thread::{sched_getaffinity, sched_setaffinity, CpuSet};
use weir_bench::{timed, Prepared};
use weir_instance::directories::SOCKET;

/// The processors that a worker may run on.
#[derive(Debug)]
pub struct ProcessorSet {
    allowed: CpuSet,
}

impl ProcessorSet {
    /// As it is.
    pub fn new() -> Result<ProcessorSet> {
        let allowed = sched_getaffinity(None).context("sched_getaffinity")?;
        Ok(ProcessorSet { allowed })
    }

    /// Has this process and the server of `run_dir`, which may run where it may, run on the
    /// `which`th of its processors alone, or on all.
    pub fn pin<'a>(&'a self, run_dir: &'a Path, which: Option<usize>) -> Prepared<'a> {
        timed(move || {
            let set = match which {
                None => self.allowed,
                Some(which) => self.only(which)?,
            };
            for process in [getpid(), server(run_dir)?] {
                pin_all(process, &set)?;
            }
            Ok(())
        })
    }

    fn only(&self, which: usize) -> Result<CpuSet> {
        let mut allowed = (0..CpuSet::MAX_CPU).filter(|cpu| self.allowed.is_set(*cpu));
        let cpu = allowed.nth(which).context("too few processors")?;
        let mut set = CpuSet::new();
        set.set(cpu);
        Ok(set)
    }
}

/// The process that listens at the socket of a run directory.
fn server(run_dir: &Path) -> Result<Pid> {
    let socket = UnixStream::connect(run_dir.join(SOCKET)).context("the server's socket")?;
    Ok(socket_peercred(&socket)?.pid)
}

/// Threads that begin later run where who began them does.
fn pin_all(process: Pid, set: &CpuSet) -> Result<()> {
    let tasks = format!("/proc/{}/task", process.as_raw_nonzero());
    for task in std::fs::read_dir(&tasks).context(tasks)? {
        let task = task?.file_name().into_string().ok();
        let task = task.and_then(|number| Pid::from_raw(number.parse().ok()?));
        // One that has ended meanwhile runs nowhere.
        match sched_setaffinity(task, set) {
            Err(rustix::io::Errno::SRCH) => {}
            other => other.context("sched_setaffinity")?,
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixListener;

    #[test]
    fn a_process_is_pinned_and_let_go_with_its_server() {
        let dir = tempfile::tempdir().unwrap();
        let _listener = UnixListener::bind(dir.path().join(SOCKET)).unwrap();
        let pinned = ProcessorSet::new().unwrap();
        let now = || sched_getaffinity(None).unwrap();
        pinned.pin(dir.path(), Some(0))().unwrap();
        assert_eq!(now().count(), 1);
        pinned.pin(dir.path(), None)().unwrap();
        assert_eq!(now(), pinned.allowed);
        let too_many = usize::try_from(pinned.allowed.count()).unwrap();
        assert!(pinned.pin(dir.path(), Some(too_many))().is_err());
    }
}
