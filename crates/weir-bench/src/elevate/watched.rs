//! One run of the program, and how many bytes the target had meanwhile.

use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{ensure, Context, Result};

use super::program::{Checkpoints, Interval, ProgramReport};
use crate::timing::now_ns;

/// The time between two looks at the target.
const LOOK_INTERVAL: Duration = Duration::from_millis(20);
/// The bytes of a block of `stat`.
const BLOCK_BYTES: u64 = 512;

/// The bytes that the target had at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TargetSample {
    /// `CLOCK_MONOTONIC`, ns.
    pub at_ns: u64,
    /// Bytes, with those of files that are being moved.
    pub bytes: u64,
}

/// A run of the program.
#[derive(Clone, Debug)]
pub struct WatchedRun {
    /// The times of the program.
    pub program: ProgramReport,
    /// When its command, and with that the move, had ended, `CLOCK_MONOTONIC`, ns.
    pub ended_ns: u64,
    /// The target meanwhile, if it was watched.
    pub target: Vec<TargetSample>,
}

#[allow(clippy::cast_precision_loss)] // few
impl WatchedRun {
    /// The time in I/O of a checkpoint, s: the mean.
    pub fn io_s(&self) -> f64 {
        mean(&self.program.writes)
    }

    /// The time of a computation, s: the mean.
    pub fn computation_s(&self) -> f64 {
        mean(&self.program.computations)
    }

    /// From the start of the first checkpoint to the end of the command, s.
    pub fn whole_s(&self) -> f64 {
        self.ended_ns.saturating_sub(self.began_ns()) as f64 / 1e9
    }

    /// The start of the first checkpoint, ns.
    pub fn began_ns(&self) -> u64 {
        self.program
            .writes
            .first()
            .map_or(0, |first| first.start_ns)
    }

    /// The time of the first look that found at least `bytes` bytes on the target, ns; `None`: no look did.
    pub fn reached_ns(&self, bytes: u64) -> Option<u64> {
        let found = self.target.iter().find(|sample| sample.bytes >= bytes);
        found.map(|sample| sample.at_ns)
    }
}

#[allow(clippy::cast_precision_loss)] // few
fn mean(intervals: &[Interval]) -> f64 {
    let all: f64 = intervals.iter().map(|interval| interval.seconds).sum();
    all / intervals.len().max(1) as f64
}

/// Runs the program as the last words of `command`, looks at the bytes of `target` meanwhile, and removes
/// its checkpoints. The program writes its report to the path `report`, where nothing is.
pub fn run_watched(
    mut command: Command,
    checkpoints: &Checkpoints,
    report: &Path,
    target: Option<&Path>,
) -> Result<WatchedRun> {
    let (name, value) = checkpoints.variable(report)?;
    let arguments = std::env::args_os().skip(1);
    command
        .args(arguments)
        .env(name, value)
        .stdin(Stdio::null())
        .stdout(Stdio::null());
    let is_over = AtomicBool::new(false);
    let (done, target) = std::thread::scope(|scope| {
        let watch = || target.map_or_else(Vec::new, |target| watch_target(target, &is_over));
        let watcher = scope.spawn(watch);
        let done = command.output().map(|output| (output, now_ns()));
        is_over.store(true, Ordering::Relaxed);
        (done, watcher.join().unwrap_or_default())
    });
    let (output, ended_ns) = done.context("starting the program")?;
    ensure!(
        output.status.success(),
        "the program ended with {}: {}",
        output.status,
        String::from_utf8_lossy(&output.stderr).trim_end()
    );
    let program = std::fs::read(report).with_context(|| report.display().to_string())?;
    std::fs::remove_file(report)?;
    let program = serde_json::from_slice(&program).context("the report of the program")?;
    remove_checkpoints(checkpoints)?;
    Ok(WatchedRun {
        program,
        ended_ns,
        target,
    })
}

/// Those of an instance went with it.
fn remove_checkpoints(checkpoints: &Checkpoints) -> Result<()> {
    let Ok(entries) = std::fs::read_dir(&checkpoints.directory) else {
        return Ok(());
    };
    for entry in entries {
        std::fs::remove_dir_all(entry?.path())?;
    }
    Ok(())
}

fn watch_target(target: &Path, is_over: &AtomicBool) -> Vec<TargetSample> {
    let mut samples: Vec<TargetSample> = Vec::new();
    let mut last = false;
    while !last {
        last = is_over.load(Ordering::Relaxed);
        let bytes = stored_bytes(target);
        samples.push(TargetSample {
            at_ns: now_ns(),
            bytes,
        });
        std::thread::sleep(LOOK_INTERVAL);
    }
    samples
}

/// The bytes of files below a directory; what is removed meanwhile counts or not.
fn stored_bytes(directory: &Path) -> u64 {
    let entries = std::fs::read_dir(directory).into_iter().flatten().flatten();
    let bytes = |entry: std::fs::DirEntry| match entry.metadata() {
        Ok(found) if found.is_dir() => stored_bytes(&entry.path()),
        Ok(found) => found.blocks() * BLOCK_BYTES,
        Err(_) => 0,
    };
    entries.map(bytes).sum()
}
