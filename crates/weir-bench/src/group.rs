//! A group of workers of this node: started, told what to do, and waited for.
//!
//! Whatever happens to one worker, the others end: their connections close, an interrupt kills all, and so
//! does the kernel if the coordinator itself is killed.

use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use anyhow::{bail, Context, Result};

use crate::error::{Interrupted, WrongData};
use crate::timing::Measured;
use crate::wire::Step;
use crate::worker::WORKER_VARIABLE;
use crate::workers::{Assignment, WorkerId, Workers};

/// The coordinator's handling of a signal that asks it to end: it remembers, and kills the running workers.
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

    /// True if the run shall end.
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

/// A step, by the rank of the process that does it.
pub type StepOfRank<'a> = Box<dyn Fn(u32) -> Step + 'a>;

/// The steps of a group of workers.
pub struct Job<'a> {
    /// How many workers.
    pub processes: u32,
    /// The steps, in order; all workers begin each of them together.
    pub steps: Vec<StepOfRank<'a>>,
    /// With nothing preloaded into the workers.
    pub bare: bool,
}

/// Runs `job` in new processes.
///
/// # Returns
/// One result for each step; `None` where the machine cannot do the step.
///
/// # Errors
/// `WrongData`, `Interrupted`, or what a worker said.
pub fn run(job: &Job<'_>, interrupt: &Interrupt) -> Result<Vec<Option<Measured>>> {
    let mut workers = Workers::default();
    let mut children = Vec::new();
    let done = run_in(job, interrupt, &mut workers, &mut children);
    // Their connections end, and with that the processes.
    drop(workers);
    let mut ended = Vec::new();
    for child in &mut children {
        ended.push(interrupt.reap(child)?);
    }
    let by_interrupt = |status: &ExitStatus| status.signal() == Some(libc::SIGINT);
    if interrupt.asked() || ended.iter().any(by_interrupt) {
        bail!(Interrupted);
    }
    let killed = ended.iter().position(|status| status.signal().is_some());
    match killed {
        Some(rank) if done.as_ref().is_err_and(|error| !error.is::<WrongData>()) => {
            bail!("process {rank} ended without an answer: {}", ended[rank])
        }
        _ => done,
    }
}

fn run_in(
    job: &Job<'_>,
    interrupt: &Interrupt,
    workers: &mut Workers,
    children: &mut Vec<Child>,
) -> Result<Vec<Option<Measured>>> {
    for rank in 0..job.processes {
        let (ours, theirs) = UnixStream::pair().context("connecting a worker")?;
        let child = start(rank, job.bare, theirs.into())?;
        interrupt.started(&child);
        children.push(child);
        workers.add(
            WorkerId::try_from(rank)?,
            format!("process {rank}"),
            Box::new(ours),
        );
    }
    let step = |step: &StepOfRank<'_>| {
        let group = (0..job.processes).map(|rank| Ok((WorkerId::try_from(rank)?, step(rank))));
        let group: Vec<Assignment> = group.collect::<Result<_>>()?;
        Ok(Measured::join(&workers.run(&group)?.each))
    };
    job.steps.iter().map(step).collect()
}

fn start(rank: u32, bare: bool, socket: OwnedFd) -> Result<Child> {
    let program = std::env::current_exe().context("finding this program")?;
    let mut command = Command::new(program);
    if bare {
        // Empty instead of absent: whatever is preloaded here may add itself where it is missing.
        command.env("LD_PRELOAD", "");
    }
    command
        .args(std::env::args_os().skip(1))
        .env(WORKER_VARIABLE, rank.to_string())
        .stdin(Stdio::from(socket))
        .stdout(Stdio::null())
        .spawn()
        .context("starting a worker process")
}
