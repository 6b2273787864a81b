//! `weir bench --elevate`: a program that computes and writes checkpoints to a directory of the parallel
//! file system, directly, through an instance that elevates the directory, and to the instance alone,
//! in the same run, round by round. After the evaluation of Data Elevator (Dong et al., HiPC 2016,
//! section V): the time that the program spends in I/O, and the whole run, are what counts.
//!
//! | file | subject |
//! | --- | --- |
//! | `program` | the program, in processes of its own |
//! | `watched` | one run of it, and what reached the target meanwhile |
//! | `promises` | the rows |
//! | `timeline` | one run over time, as a picture |
//!
//! It leaves out files that several processes share, many small files, and the limit of the target, which is what
//! direct writes reach.

mod program;
mod promises;
mod timeline;
mod watched;

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{ensure, Context, Result};

use crate::compute::work_per_second;
use crate::own_directory::OwnDirectory;
use crate::rows::{PromiseTable, RowVerdict};
use program::Checkpoints;
pub use program::{is_program, run_program};
use promises::{CheckpointPlan, ElevateRound};
pub use timeline::draw;
use watched::{run_watched, WatchedRun};

/// The program computes this many times as long as a checkpoint takes directly, so that the target can
/// keep up.
const EASE: f64 = 1.25;
/// Checkpoints of the direct run: its time is that of each.
const DIRECT_CHECKPOINTS: u32 = 2;
/// Bytes of each call.
const TRANSFER: u64 = 1 << 20;

/// Starts instances for the program.
pub struct ElevateHost<'a> {
    /// A command that runs the words that are added to it in a new instance with room for this many
    /// bytes, which elevates a directory if one is given. It ends once all is moved.
    pub in_instance: &'a dyn Fn(Option<&Path>, u64) -> Command,
    /// The directory of an instance.
    pub directory: PathBuf,
}

/// How much is measured.
#[derive(Clone, Debug)]
pub struct ElevatePlan {
    /// The directory of the parallel file system; a new one is made in it.
    pub directory: PathBuf,
    /// Processes of the program.
    pub processes: u32,
    /// Bytes that each writes to each checkpoint.
    pub bytes: u64,
    /// Checkpoints of a run.
    pub checkpoints: u32,
    /// Rounds; each measures everything.
    pub rounds: u32,
    /// No progress.
    pub quiet: bool,
}

/// The measurements.
#[derive(Debug)]
pub struct ElevateOutcome {
    /// The rows, judged.
    pub verdicts: Vec<RowVerdict>,
    /// The run through an instance with computation that lets the target keep up, of the last round.
    pub shown: WatchedRun,
}

/// Measures.
///
/// # Errors
/// A directory that cannot be written, an instance that cannot be started, a program that fails.
pub fn measure(plan: &ElevatePlan, host: &ElevateHost<'_>) -> Result<ElevateOutcome> {
    ensure!(plan.checkpoints >= 2, "at least two checkpoints, please");
    let own = OwnDirectory::make(&plan.directory, "weir-bench")?;
    let reports = OwnDirectory::make(&std::env::temp_dir(), "weir-bench-report")?;
    let report = reports.0.join("report.json");
    let mut rows = PromiseTable::default();
    let mut shown = None;
    for number in 1..=plan.rounds {
        let round = one_round(plan, host, &own.0, &report)?;
        round.add_to(&mut rows);
        if !plan.quiet {
            eprintln!("round {number}/{}  {}", plan.rounds, round.in_words());
        }
        shown = Some(round.eased);
    }
    Ok(ElevateOutcome {
        verdicts: rows.verdicts(),
        shown: shown.context("no round")?,
    })
}

fn one_round(
    plan: &ElevatePlan,
    host: &ElevateHost<'_>,
    directory: &Path,
    report: &Path,
) -> Result<ElevateRound> {
    let checkpoints = |directory: &Path, count: u32, work: u64| Checkpoints {
        directory: directory.to_owned(),
        processes: plan.processes,
        bytes: plan.bytes,
        transfer: TRANSFER.min(plan.bytes),
        count,
        work,
    };
    let run = |program, told: &Checkpoints, target| run_watched(program, told, report, target);
    let direct = |count, work| {
        let mut program = Command::new(std::env::current_exe().context("finding this program")?);
        program.env("LD_PRELOAD", "");
        run(program, &checkpoints(directory, count, work), None)
    };
    let of_run = |count: u32| u64::from(plan.processes) * plan.bytes * u64::from(count);
    let elevated = |count, work| {
        let program = (host.in_instance)(Some(directory), of_run(count));
        let told = checkpoints(directory, count, work);
        run(program, &told, Some(directory))
    };
    let speed = work_per_second(plan.processes);
    let first = direct(1, 0)?;
    let (even, eased) = (first.io_s(), first.io_s() * EASE);
    let (even, eased) = (work_of(speed, even), work_of(speed, eased));
    let in_weir = {
        let program = (host.in_instance)(None, of_run(plan.checkpoints));
        let told = checkpoints(&host.directory, plan.checkpoints, eased);
        run(program, &told, None)?
    };
    Ok(ElevateRound {
        plan: CheckpointPlan {
            checkpoint_bytes: of_run(1),
            checkpoints: plan.checkpoints,
        },
        direct: direct(DIRECT_CHECKPOINTS, eased)?,
        direct_even: direct(DIRECT_CHECKPOINTS, even)?,
        in_weir,
        eased: elevated(plan.checkpoints, eased)?,
        even: elevated(plan.checkpoints, even)?,
        idle: elevated(1, 0)?,
    })
}

/// The work that takes so many seconds.
#[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)] // some seconds of it
fn work_of(per_second: f64, seconds: f64) -> u64 {
    (per_second * seconds) as u64
}
