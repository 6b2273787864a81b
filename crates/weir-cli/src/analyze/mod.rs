//! `weir analyze`: runs a command for each file that programs have written, before it is moved.
//!
//! The drain processes (`drain/analyzers.rs`) choose the files, and hold them back until they are analysed. This process
//! opens one connection to each of them for each command that may run at once (`worker`), runs the user's `command`, and
//! keeps a `tally`. When it ends, its connections close, and the drains hold back nothing for it.
//!
//! Left out: files that were moved before this process connected, and analyses on other nodes.

mod command;
mod tally;
mod worker;

use std::collections::{HashMap, HashSet};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};
use std::sync::mpsc::{channel, Receiver, RecvTimeoutError, Sender};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{anyhow, Context, Result};
use weir_config::{Config, Environment};
use weir_instance::directories;
use weir_instance::errln;
use weir_launch::random::random;
use weir_mover::drain::AnalyzerId;
use weir_mover::PathFilter;

use crate::args::AnalyzeArgs;
use crate::drain::messages::{sockets, AnalyzerArrival};
use crate::exit::Failure;
use crate::locate::live_run_dir;
use crate::{inject, run, stage, supervise};
use command::AnalysisCommand;
use tally::AnalysisTally;
use worker::{AnalyzerState, JobSlots, WorkerEnd};

/// The interval between two searches for drain processes.
const LOOK_INTERVAL: Duration = Duration::from_millis(100);
/// The time after which a message says that there is no drain process.
const TELL_TIME: Duration = Duration::from_secs(3);

/// `weir analyze`.
pub fn analyze(
    args: &AnalyzeArgs,
    config: &Config,
    env: &Environment,
) -> Result<ExitCode, Failure> {
    PathFilter::new(&args.on, &[]).map_err(|error| Failure::Refused(format!("--on: {error}")))?;
    let run_dir = live_run_dir(args.instance.as_deref(), config, env)?;
    let libraries = run::libraries(env, &config.run.connectors, &args.command)?;
    let state = Arc::new(AnalyzerState {
        arrival: AnalyzerArrival {
            id: AnalyzerId(u64::from_ne_bytes(random()?)),
            patterns: args.on.clone(),
        },
        command: AnalysisCommand {
            words: args.command.clone(),
            variables: inject::variables(&run_dir, &libraries, env)?,
            time_limit: Some(args.timeout).filter(|limit| !limit.is_zero()),
        },
        slots: JobSlots::new(args.jobs.get().into()),
        tally: AnalysisTally::new(args.json),
        stop: AtomicBool::new(false),
    });
    let signal = hear_signals(&state)?;
    let (tell_end, ends) = channel();
    let mut analyzer = FileAnalyzer {
        run_dir,
        jobs: args.jobs.get().into(),
        state,
        known: HashSet::new(),
        working: 0,
        tell_end,
        ends,
        lost: HashSet::new(),
        successors: 0,
        unanalysed: HashMap::new(),
    };
    let ended = analyzer.work(args.wait);
    let signal = signal.load(Ordering::Relaxed);
    analyzer.tell_totals();
    match u8::try_from(signal) {
        Ok(signal) if signal > 0 => Ok(ExitCode::from(128 + signal)),
        _ => ended
            .and_then(|()| analyzer.judge())
            .map(|()| ExitCode::SUCCESS),
    }
}

/// Makes a signal that ends a process end the commands first. Returns the number of the signal that came; 0: none yet.
fn hear_signals(state: &Arc<AnalyzerState>) -> Result<Arc<AtomicI32>> {
    let came = Arc::new(AtomicI32::new(0));
    let (state, note) = (Arc::clone(state), Arc::clone(&came));
    stage::on_signals(supervise::not_ignored(&stage::ENDING), move |signal| {
        note.store(signal as i32, Ordering::Relaxed);
        state.stop.store(true, Ordering::Relaxed);
        true
    })?;
    Ok(came)
}

/// The end of a connection to a process.
#[derive(Debug)]
struct EndedConnection {
    socket: PathBuf,
    end: WorkerEnd,
}

/// An analyzer at work.
#[derive(Debug)]
struct FileAnalyzer {
    run_dir: PathBuf,
    /// The number of connections to each process.
    jobs: usize,
    state: Arc<AnalyzerState>,
    /// The sockets of the drain processes to which it has connected.
    known: HashSet<PathBuf>,
    /// Connections that have not ended.
    working: usize,
    tell_end: Sender<EndedConnection>,
    ends: Receiver<EndedConnection>,
    /// The sockets whose connections were lost.
    lost: HashSet<PathBuf>,
    /// The processes that came after the first ones: each in the place of one whose connections were lost.
    successors: usize,
    /// The files that each process has moved without an analysis.
    unanalysed: HashMap<PathBuf, u64>,
}

impl FileAnalyzer {
    /// Works for all drain processes of the instance until they have ended. `patience`: the longest wait for the first one.
    fn work(&mut self, patience: Duration) -> Result<(), Failure> {
        let began = Instant::now();
        let mut is_told = false;
        loop {
            let is_stopped = self.state.stop.load(Ordering::Relaxed);
            if !is_stopped {
                self.come_to_all()?;
            }
            match self.ends.recv_timeout(LOOK_INTERVAL) {
                Ok(ended) => self.note_end(ended),
                Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => {}
            }
            while let Ok(ended) = self.ends.try_recv() {
                self.note_end(ended);
            }
            if self.working > 0 {
                continue;
            }
            if is_stopped {
                return Ok(());
            }
            // Another process may have taken the place of one whose connection was lost.
            self.come_to_all()?;
            if self.working > 0 {
                continue;
            }
            if !self.known.is_empty() {
                return Ok(());
            }
            if !directories::lives(&self.run_dir) {
                let run_dir = self.run_dir.clone();
                return Err(Failure::NoInstance { run_dir });
            }
            if began.elapsed() >= patience {
                return Err(nothing_drains(&self.run_dir).into());
            }
            if began.elapsed() >= TELL_TIME && !std::mem::replace(&mut is_told, true) {
                errln!("weir: {}; waits for one", nothing_drains(&self.run_dir));
            }
        }
    }

    /// Connects to new drain processes.
    fn come_to_all(&mut self) -> Result<(), Failure> {
        // The run directory is removed with the instance.
        let is_later = !self.known.is_empty();
        for socket in sockets(&self.run_dir).unwrap_or_default() {
            if self.known.contains(&socket) {
                continue;
            }
            for _ in 0..self.jobs {
                // The socket of a process that was killed, or has just ended, refuses connections.
                let Ok(stream) = UnixStream::connect(&socket) else {
                    break;
                };
                self.start_worker(&socket, stream)
                    .context("starting a thread")?;
                if self.known.insert(socket.clone()) && is_later {
                    self.successors += 1;
                }
            }
        }
        Ok(())
    }

    fn start_worker(&mut self, socket: &Path, stream: UnixStream) -> std::io::Result<()> {
        let (state, tell_end) = (Arc::clone(&self.state), self.tell_end.clone());
        let socket = socket.to_owned();
        let work = move || {
            let end = state.serve(&stream);
            // Close the connection before the end is noted: then the drain holds back nothing for it any more.
            drop(stream);
            let _ = tell_end.send(EndedConnection { socket, end });
        };
        std::thread::Builder::new().spawn(work)?;
        self.working += 1;
        Ok(())
    }

    fn note_end(&mut self, ended: EndedConnection) {
        self.working -= 1;
        match ended.end {
            WorkerEnd::Finished { unanalysed } => {
                // A process sends its number to each connection: it counts once.
                let all = self.unanalysed.entry(ended.socket).or_default();
                *all = unanalysed.max(*all);
            }
            WorkerEnd::Lost => {
                self.lost.insert(ended.socket);
            }
            WorkerEnd::Stopped => {}
        }
    }

    fn unanalysed(&self) -> u64 {
        self.unanalysed.values().sum()
    }

    /// Prints the totals.
    fn tell_totals(&self) {
        let files = self.state.tally.files();
        let mut parts = vec![format!("{} files analysed", files.analysed)];
        if files.failed > 0 {
            parts.push(format!("{} analyses failed", files.failed));
        }
        if self.unanalysed() > 0 {
            parts.push(format!(
                "{} files moved before their analysis",
                self.unanalysed()
            ));
        }
        errln!("weir: {}", parts.join(", "));
    }

    fn judge(&self) -> Result<(), Failure> {
        if self.lost.len() > self.successors {
            return Err(anyhow!(
                "the connection to a process that moves files was lost: files written from now on are moved \
                 without an analysis"
            )
            .into());
        }
        let failed = self.state.tally.files().failed + self.unanalysed();
        match failed {
            0 => Ok(()),
            _ => Err(Failure::NotAnalysed(
                "not all files were analysed; they are moved all the same".to_owned(),
            )),
        }
    }
}

fn nothing_drains(run_dir: &Path) -> anyhow::Error {
    anyhow!(
        "nothing drains the instance in {} from this node: weir run --drain-to and --elevate do, on the node \
         where they run",
        run_dir.display()
    )
}
