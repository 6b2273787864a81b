//! The program: its processes compute, and write checkpoints together, a file each.
//!
//! It is this executable again, with the parameters in an environment variable, so that it can be the command of an
//! instance. Its report goes to a file that is no checkpoint's.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};

use crate::group::{self, Interrupt, Job, StepOfRank};
use crate::pieces::FilePieces;
use crate::timing::Measured;
use crate::wire::Step;

/// Set in the environment of the program: its parameters, and the path of its report.
const VARIABLE: &str = "WEIR_BENCH_CHECKPOINTS";

/// The parameters of the program.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Checkpoints {
    /// The directory of the checkpoints.
    pub directory: PathBuf,
    /// Processes.
    pub processes: u32,
    /// Bytes of each to each checkpoint.
    pub bytes: u64,
    /// Bytes of a call.
    pub transfer: u64,
    /// The number of checkpoints.
    pub count: u32,
    /// The computation after each, of each process; 0: none.
    pub work: u64,
}

/// From the first start of a process to the last end.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Interval {
    /// The start, `CLOCK_MONOTONIC`, ns.
    pub start_ns: u64,
    /// The length, s.
    pub seconds: f64,
}

impl From<Measured> for Interval {
    fn from(measured: Measured) -> Interval {
        Interval {
            start_ns: measured.start_ns,
            seconds: measured.seconds,
        }
    }
}

/// The times of the program.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct ProgramReport {
    /// The writing of each checkpoint, with its opens and closes.
    pub writes: Vec<Interval>,
    /// The computation after each, if there was one.
    pub computations: Vec<Interval>,
}

#[derive(Serialize, Deserialize)]
struct ProgramOrder {
    checkpoints: Checkpoints,
    report: PathBuf,
}

impl Checkpoints {
    /// The environment variable that makes this executable the program.
    pub fn variable(&self, report: &Path) -> Result<(&'static str, String)> {
        let told = ProgramOrder {
            checkpoints: self.clone(),
            report: report.to_owned(),
        };
        Ok((VARIABLE, serde_json::to_string(&told)?))
    }

    fn steps(&self) -> Vec<StepOfRank<'_>> {
        let mut steps: Vec<StepOfRank<'_>> = Vec::new();
        for number in 0..self.count {
            let directory = self.directory.join(format!("checkpoint.{number}"));
            steps.push({
                let directory = directory.clone();
                Box::new(move |_| Step::Directory(directory.clone()))
            });
            steps.push(Box::new(move |rank| {
                let path = directory.join(rank.to_string());
                let seed = u64::from(number) << 32 | u64::from(rank);
                Step::Create(FilePieces::contiguous(
                    path,
                    0,
                    self.bytes,
                    self.transfer,
                    seed,
                ))
            }));
            if self.work > 0 {
                steps.push(Box::new(|_| Step::Compute(self.work)));
            }
        }
        steps
    }
}

/// True if this process was started as the program.
pub fn is_program() -> bool {
    std::env::var_os(VARIABLE).is_some()
}

/// The program.
pub fn run_program() -> Result<u8> {
    let told = std::env::var(VARIABLE).context("the parameters of the program")?;
    let told: ProgramOrder =
        serde_json::from_str(&told).context("the parameters of the program")?;
    let checkpoints = &told.checkpoints;
    let job = Job {
        processes: checkpoints.processes,
        steps: checkpoints.steps(),
        bare: false,
    };
    let done = group::run(&job, &Interrupt::watch()?)?;
    let mut report = ProgramReport::default();
    let of_checkpoint = done.len() / checkpoints.count.max(1) as usize;
    for (at, measured) in done.into_iter().enumerate() {
        let measured = measured.context("a step was not done")?;
        let interval = Interval::from(measured);
        match at % of_checkpoint {
            0 => {}
            1 => report.writes.push(interval),
            _ => report.computations.push(interval),
        }
    }
    std::fs::write(&told.report, serde_json::to_vec(&report)?)
        .with_context(|| told.report.display().to_string())?;
    Ok(0)
}
