//! `weir bench`: bandwidth and metadata rates of any directories, in the manner of IOR and mdtest, beside the
//! machine's own limits.
//!
//! It starts no servers and knows no library of weir: a [`WorkerBackend`] and a [`nodes::TestInstance`] do that for it. Processes are real ones (this program, executed again), and files are reached by the
//! C library's calls, so that a preloaded file system, tmpfs and a disk are measured by the same code in the same run.
//!
//! - `args`, `plan`: what is asked for, as cases that yield metrics; `suite`: the promises of weir as a table.
//! - `runner`, `group`: rounds over the targets; a group of processes of this node for each case.
//! - `wire`, `workers`, `worker`: what workers are told and say; all workers; one worker's part.
//! - `layout`, `pieces`, `content`, `data`, `names`, `copy`, `calls`, `links`, `mixed`, `compute`: offsets, bytes, and the loops
//!   that are measured.
//! - `nodes`: an instance of several nodes; `elevate`: checkpoints through an instance; `connectors`: programs of MPI-IO, HDF5 and
//!   PnetCDF with and without connectors; `rows`: what these promise, judged.
//! - `results`, `table`, `report`, `plot`: medians and ratios, for people, programs and eyes.
//!
//! It leaves out dropping the page cache before reads of a disk.

mod args;
mod calls;
mod compute;
pub mod connectors;
mod content;
mod copy;
mod copy_limit;
mod data;
mod directories;
pub mod elevate;
mod error;
mod group;
mod layout;
mod links;
mod machine;
mod memory;
mod mixed;
mod names;
pub mod nodes;
mod own_directory;
mod pieces;
mod plan;
mod plot;
mod random;
mod report;
mod results;
mod rows;
mod runner;
mod size;
mod space;
mod suite;
mod table;
mod timing;
mod wire;
mod worker;
mod workers;

use std::io::Write;

use anyhow::{ensure, Context};

pub use args::{BenchArgs, Target};
pub use error::WrongData;
pub use layout::Pattern;
pub use links::{listen, SMALL};
use plan::Cases;
pub use plan::Operation;
pub use report::write_report;
use runner::TargetsPlan;
pub use timing::{now_ns, timed, timing_since, Prepared, Timing};
pub use wire::{FabricCalls, WorkerEndpoint};
pub use worker::{serve, WorkerBackend};
pub use workers::{WorkerId, Workers};

/// Exit code: data was not what was written.
pub const EXIT_WRONG_DATA: u8 = 3;
/// Exit code: a promise of `--suite --strict` was not met.
pub const EXIT_NOT_MET: u8 = 4;
/// Exit code: the user interrupted the run.
pub const EXIT_INTERRUPTED: u8 = 130;

/// Runs the benchmark; in a process that it started itself, that process's part.
///
/// The program that calls this must do nothing on its standard output before, and must come here again when
/// executed with the same arguments.
///
/// # Returns
/// The exit code: 0 or one of the constants above.
///
/// # Errors
/// Bad input, or a call that failed. Wrong data and interruption are told on standard error and give exit codes
/// of their own.
pub fn run(args: &BenchArgs) -> anyhow::Result<u8> {
    if let Some(code) = run_part()? {
        return Ok(code);
    }
    match measure_and_report(args) {
        Err(error) if error.is::<WrongData>() => {
            eprintln!("weir bench: {error:#}");
            Ok(EXIT_WRONG_DATA)
        }
        Err(error) if error.is::<error::Interrupted>() => {
            eprintln!("weir bench: interrupted; its files are removed");
            Ok(EXIT_INTERRUPTED)
        }
        other => other,
    }
}

/// The part of a process that a benchmark started itself; `None`: this is none. To be called before anything else is done
/// with the command line.
///
/// # Errors
/// A call that failed.
pub fn run_part() -> anyhow::Result<Option<u8>> {
    if worker::is_worker() {
        return worker::run().map(Some);
    }
    if elevate::is_program() {
        return elevate::run_program().map(Some);
    }
    Ok(None)
}

fn measure_and_report(args: &BenchArgs) -> anyhow::Result<u8> {
    let targets = args.all_targets()?;
    let baseline = args.baseline_of(&targets)?;
    let subject = &targets[0].name;
    ensure!(
        !args.suite || *subject != baseline,
        "--suite judges the first target against the baseline; `{subject}` cannot be both"
    );
    let plan = plan_of(args, targets.clone())?;
    let outcome = runner::run(&plan)?;
    let mut out = std::io::stdout().lock();
    let results = &outcome.results;
    let names = targets.iter().chain(&args.durable);
    let names: Vec<_> = names.map(|t| t.name.as_str()).collect();
    if plan.cases.calls.is_empty() {
        writeln!(out, "{}", table::targets(results, &names, &baseline))?;
    } else {
        writeln!(out, "{}", table::calls(results, &names, &baseline))?;
    }
    if plan.limits || plan.device.is_some() {
        writeln!(out, "\n{}", table::limits(results))?;
    }
    if plan.limits {
        writeln!(
            out,
            "* what `of copy limit` refers to: the fastest way to copy, by its median"
        )?;
    }
    let verdicts = args
        .suite
        .then(|| suite::judge(results, args, subject, &baseline, &args.durable));
    if let Some(verdicts) = &verdicts {
        writeln!(out, "\n{}", table::verdicts(verdicts))?;
        let met = verdicts.iter().filter(|v| v.met).count();
        writeln!(out, "{met} of {} promises met.", verdicts.len())?;
    }
    if plan.verify {
        let mib = outcome.verified_bytes >> 20;
        writeln!(out, "Read back and compared: {mib} MiB, all as written.")?;
    }
    if let Some(path) = &args.json {
        let report = report::Report {
            targets: targets.iter().chain(&args.durable).collect(),
            baseline: &baseline,
            rounds: args.rounds(),
            verified: outcome.verified_bytes > 0,
            verified_bytes: outcome.verified_bytes,
            results: report::metrics(results, &baseline),
            suite: verdicts.as_deref(),
        };
        report::write_report(path, "weir-bench", &report)?;
    }
    if let Some(path) = &args.svg {
        plot::draw(results, &names, path).with_context(|| format!("drawing {}", path.display()))?;
    }
    let failed = verdicts.is_some_and(|v| v.iter().any(|v| !v.met));
    Ok(if args.strict && failed {
        EXIT_NOT_MET
    } else {
        0
    })
}

fn plan_of(args: &BenchArgs, targets: Vec<Target>) -> anyhow::Result<TargetsPlan> {
    let calls = args.calls();
    let mut cases = match (args.suite, calls.is_empty()) {
        (true, _) => suite::cases(args)?,
        (false, true) => Cases {
            data: args.data_cases()?,
            meta: args.meta_cases(),
            ..Cases::default()
        },
        (false, false) => Cases {
            calls,
            ..Cases::default()
        },
    };
    if args.device.is_some() {
        cases.device = Some(suite::device_case(args)?);
    }
    Ok(TargetsPlan {
        durable: args.durable.clone(),
        device: args.device.clone(),
        cases,
        baseline: args.baseline_of(&targets)?,
        targets,
        rounds: args.rounds(),
        verify: args.verify || args.suite,
        limits: !args.no_limits && args.calls.is_none(),
        quiet: args.quiet,
    })
}
