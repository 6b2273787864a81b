//! A group of workers: started, watched and collected by the coordinator.
//!
//! Whatever happens to one worker, the others end: those at the barrier by `abort`, all by SIGKILL on an
//! interrupt, and by the kernel if the coordinator itself is killed.

use std::io::Read;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use anyhow::{anyhow, bail, Context};
use std::os::unix::process::ExitStatusExt;

use crate::control::Control;
use crate::job::{Answer, Job, Timing};
use crate::worker::RANK_VARIABLE;

/// Data was not what was written.
#[derive(Debug, thiserror::Error)]
#[error("wrong data: {0}")]
pub struct WrongData(pub String);

/// The user interrupted the run.
#[derive(Debug, thiserror::Error)]
#[error("interrupted")]
pub struct Interrupted;

/// What the coordinator does when a signal asks it to end: it remembers, and kills the running workers.
#[derive(Clone, Default)]
pub struct Interrupt(Arc<InterruptState>);

#[derive(Default)]
struct InterruptState {
    asked: AtomicBool,
    running: Mutex<Vec<libc::pid_t>>,
}

impl Interrupt {
    /// Watches for SIGINT and SIGTERM from now on.
    pub fn watch() -> anyhow::Result<Self> {
        use signal_hook::consts::{SIGINT, SIGTERM};
        let interrupt = Interrupt::default();
        let state = interrupt.0.clone();
        let mut signals = signal_hook::iterator::Signals::new([SIGINT, SIGTERM])?;
        std::thread::Builder::new()
            .name("signals".into())
            .spawn(move || {
                for _ in signals.forever() {
                    state.asked.store(true, Ordering::SeqCst);
                    for &pid in state.running.lock().expect("no panic while held").iter() {
                        // SAFETY: no memory is involved; the list holds only children not yet waited for.
                        unsafe { libc::kill(pid, libc::SIGKILL) };
                    }
                }
            })?;
        Ok(interrupt)
    }

    /// Whether the run shall end.
    pub fn asked(&self) -> bool {
        self.0.asked.load(Ordering::SeqCst)
    }

    fn started(&self, child: &Child) {
        let pid = libc::pid_t::try_from(child.id()).expect("a process id");
        self.0
            .running
            .lock()
            .expect("no panic while held")
            .push(pid);
        if self.asked() {
            // SAFETY: no memory is involved; the child has not been waited for.
            unsafe { libc::kill(pid, libc::SIGKILL) };
        }
    }

    /// Waits for a child that has closed its output. The list is locked, so that its id cannot be reused
    /// while a signal is handled.
    fn reap(&self, child: &mut Child) -> std::io::Result<ExitStatus> {
        let mut running = self.0.running.lock().expect("no panic while held");
        let status = child.wait();
        running.retain(|&pid| libc::pid_t::try_from(child.id()) != Ok(pid));
        status
    }
}

/// What a group of processes did in one step.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Measured {
    /// From the first start to the last end, in seconds.
    pub seconds: f64,
    /// Bytes of all.
    pub bytes: u64,
    /// Calls or files of all.
    pub ops: u64,
}

/// Runs `job` in new processes.
///
/// # Returns
/// One result for each step; `None` where the machine cannot do the step.
///
/// # Errors
/// `WrongData`, `Interrupted`, or what a worker said.
pub fn run(job: &Job, interrupt: &Interrupt) -> anyhow::Result<Vec<Option<Measured>>> {
    let (control, fd) = Control::create(job.ranks, &serde_json::to_vec(job)?)?;
    let mut children = Vec::new();
    let mut failed = None;
    for rank in 0..job.ranks {
        match start(rank, job.bare, &fd) {
            Ok(child) => {
                interrupt.started(&child);
                children.push(child);
            }
            Err(error) => {
                failed = Some(error);
                control.abort();
                break;
            }
        }
    }
    let outcomes: Vec<_> = std::thread::scope(|scope| {
        let watchers: Vec<_> = children
            .into_iter()
            .map(|child| scope.spawn(|| collect(child, &control, interrupt)))
            .collect();
        watchers
            .into_iter()
            .map(|w| w.join().expect("watchers do not panic"))
            .collect()
    });
    if interrupt.asked() {
        bail!(Interrupted);
    }
    if let Some(error) = failed {
        return Err(error);
    }
    combine(job, outcomes)
}

fn start(rank: u32, bare: bool, job: &std::os::fd::OwnedFd) -> anyhow::Result<Child> {
    let program = std::env::current_exe().context("finding this program")?;
    let mut command = Command::new(program);
    if bare {
        // Empty instead of absent: whatever is preloaded here may add itself where it is missing.
        command.env("LD_PRELOAD", "");
    }
    command
        .args(std::env::args_os().skip(1))
        .env(RANK_VARIABLE, rank.to_string())
        .stdin(Stdio::from(job.try_clone()?))
        .stdout(Stdio::piped())
        .spawn()
        .context("starting a worker process")
}

enum Outcome {
    Answered(Answer),
    /// Ended without an answer.
    Died(ExitStatus),
}

fn collect(mut child: Child, control: &Control, interrupt: &Interrupt) -> anyhow::Result<Outcome> {
    let mut text = Vec::new();
    let mut output = child.stdout.take().expect("piped by start");
    let read = output.read_to_end(&mut text);
    let status = interrupt.reap(&mut child)?;
    if !status.success() {
        control.abort();
    }
    read?;
    Ok(match serde_json::from_slice(&text) {
        Ok(answer) => Outcome::Answered(answer),
        Err(_) => Outcome::Died(status),
    })
}

/// Joins the answers; of several failures the one that caused the others.
fn combine(
    job: &Job,
    outcomes: Vec<anyhow::Result<Outcome>>,
) -> anyhow::Result<Vec<Option<Measured>>> {
    let mut timings = Vec::new();
    let mut failure = None;
    for (rank, outcome) in outcomes.into_iter().enumerate() {
        match outcome? {
            Outcome::Answered(Answer::Done(steps)) => timings.push(steps),
            Outcome::Answered(Answer::Aborted) => {}
            Outcome::Answered(Answer::Failed {
                message,
                wrong_data: true,
            }) => bail!(WrongData(message)),
            Outcome::Answered(Answer::Failed { message, .. }) => {
                failure.get_or_insert(anyhow!("process {rank}: {message}"));
            }
            Outcome::Died(status) if status.signal() == Some(libc::SIGINT) => bail!(Interrupted),
            Outcome::Died(status) => {
                failure.get_or_insert(anyhow!("process {rank} ended without an answer: {status}"));
            }
        }
    }
    if let Some(failure) = failure {
        return Err(failure);
    }
    let whole = timings.len() == job.ranks as usize
        && timings.iter().all(|steps| steps.len() == job.steps.len());
    anyhow::ensure!(whole, "the processes did not all answer");
    Ok((0..job.steps.len())
        .map(|step| join(timings.iter().map(|t| t[step])))
        .collect())
}

fn join(ranks: impl Iterator<Item = Timing> + Clone) -> Option<Measured> {
    let start = ranks.clone().map(|t| t.start_ns).min()?;
    let end = ranks.clone().map(|t| t.end_ns).max()?;
    if ranks.clone().any(|t| t.ops == 0) {
        return None;
    }
    #[allow(clippy::cast_precision_loss)] // A clock's difference, far below 2^53 ns.
    let seconds = end.saturating_sub(start).max(1) as f64 / 1e9;
    Some(Measured {
        seconds,
        bytes: ranks.clone().map(|t| t.bytes).sum(),
        ops: ranks.map(|t| t.ops).sum(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_is_from_the_first_start_to_the_last_end() {
        let timing = |start_ns, end_ns, ops| Timing {
            start_ns,
            end_ns,
            bytes: 10,
            ops,
        };
        let both = [timing(1_000, 3_000, 2), timing(2_000, 5_000, 2)];
        let joined = join(both.into_iter()).unwrap();
        assert!((joined.seconds - 4e-6).abs() < 1e-12);
        assert_eq!((joined.bytes, joined.ops), (20, 4));
        assert_eq!(join([timing(0, 1, 1), timing(0, 1, 0)].into_iter()), None);
    }
}
