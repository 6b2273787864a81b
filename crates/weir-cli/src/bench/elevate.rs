//! `weir bench --elevate`: the instances that the program of the benchmark runs in.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Context;
use clap::Args;
use serde::Serialize;
use weir_bench::elevate::{self as bench, ElevateHost, ElevatePlan};
use weir_bench::nodes::RowVerdict;
use weir_bench::write_report;
use weir_config::Loaded;

use super::{exit_code, loadavg, tell_load, tell_verdicts, BenchCommand, OF_DIRECTORIES, OF_NODES};
use crate::exit::Failure;

/// Memory of an instance beside the bytes that are written to it.
const SPARE_BYTES: u64 = 256 << 20;

/// The options that are about something else.
fn of_others() -> impl Iterator<Item = &'static str> {
    let shared = |name: &&str| ["processes", "svg"].contains(name);
    let of_directories = OF_DIRECTORIES.into_iter().filter(move |name| !shared(name));
    of_directories.chain(["files"]).chain(OF_NODES)
}

/// Of `weir bench --elevate`.
#[derive(Args, Debug)]
pub struct ElevateArgs {
    /// Measure checkpoints to this directory of the parallel file system, through instances that elevate it.
    ///
    /// A program computes and writes checkpoints in turns: directly, through an instance, and to an instance that moves
    /// nothing. --processes, --block (bytes of each process to a checkpoint), --repeat, --quick, --quiet, --json, --svg
    /// (one run over time) and --strict mean what they do for directories. The buffer must hold all checkpoints of a run
    /// in memory.
    #[arg(long, value_name = "DIR", group = "judged", conflicts_with_all = of_others())]
    elevate: Option<PathBuf>,
    /// With --elevate: the checkpoints of a run [default: 10; 3 with --quick]
    #[arg(long, value_name = "COUNT", requires = "elevate", conflicts_with_all = of_others(), value_parser = clap::value_parser!(u32).range(2..=1000))]
    checkpoints: Option<u32>,
}

impl ElevateArgs {
    pub fn directory(&self) -> Option<&Path> {
        self.elevate.as_deref()
    }
}

/// The content of the JSON report.
#[derive(Serialize)]
struct CheckpointReport<'a> {
    directory: String,
    processes: u32,
    /// Bytes of each process to a checkpoint.
    bytes: u64,
    checkpoints: u32,
    rounds: u32,
    /// /proc/loadavg of this node before and after.
    load: [String; 2],
    rows: &'a [RowVerdict],
}

/// Measures, or does the part of a process that a measurement has started; the exit code.
pub fn run(
    directory: &Path,
    args: &BenchCommand,
    load: impl Fn(&[&str]) -> Result<Loaded, Failure>,
) -> Result<u8, Failure> {
    if let Some(code) = weir_bench::run_part()? {
        return Ok(code);
    }
    let settings = load(&[])?;
    let (args, bench_args) = (&args.elevate, &args.bench);
    let quick = bench_args.quick;
    let plan = ElevatePlan {
        directory: directory.to_owned(),
        processes: bench_args.processes,
        bytes: bench_args
            .block
            .unwrap_or(if quick { 16 << 20 } else { 256 << 20 }),
        checkpoints: args.checkpoints.unwrap_or(if quick { 3 } else { 10 }),
        rounds: bench_args.rounds.unwrap_or(if quick { 1 } else { 3 }),
        quiet: bench_args.quiet,
    };
    let weir = std::env::current_exe().context("finding the weir program")?;
    let in_instance = |elevated: Option<&Path>, bytes: u64| {
        let mut command = Command::new(&weir);
        command.args(["run", "--report", "none", "--memory"]);
        command.arg((bytes + bytes / 8 + SPARE_BYTES).to_string());
        if let Some(elevated) = elevated {
            command.arg("--elevate").arg(elevated);
        }
        command.arg("--").arg(&weir);
        command
    };
    let host = ElevateHost {
        in_instance: &in_instance,
        directory: settings.config.mount.prefix.as_path().to_owned(),
    };
    let load_before = loadavg();
    let done = bench::measure(&plan, &host)?;
    let all_met = tell_verdicts(&done.verdicts);
    let load = tell_load(load_before);
    if let Some(path) = &bench_args.json {
        let report = CheckpointReport {
            directory: directory.display().to_string(),
            processes: plan.processes,
            bytes: plan.bytes,
            checkpoints: plan.checkpoints,
            rounds: plan.rounds,
            load,
            rows: &done.verdicts,
        };
        write_report(path, "weir-bench-elevate", &report)?;
    }
    if let Some(path) = &bench_args.svg {
        let bytes = u64::from(plan.processes) * plan.bytes;
        bench::draw(&done.shown, bytes, path)
            .with_context(|| format!("drawing {}", path.display()))?;
    }
    Ok(exit_code(bench_args, all_met))
}
