//! `weir bench --connectors`: the instances that its programs run in.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Context;
use clap::Args;
use serde::Serialize;
use weir_bench::connectors::{self as bench, ConnectorsHost, ConnectorsPlan, Subject};
use weir_bench::nodes::RowVerdict;
use weir_bench::write_report;
use weir_config::Loaded;

use super::{exit_code, loadavg, tell_load, tell_verdicts, BenchCommand, OF_DIRECTORIES, OF_NODES};
use crate::exit::Failure;

/// Memory of an instance: the programs write up to 256 MiB, and logs of it.
const MEMORY: &str = "2G";

/// The options that are about something else.
fn of_others() -> impl Iterator<Item = &'static str> {
    let of_directories = OF_DIRECTORIES
        .into_iter()
        .filter(|name| *name != "processes");
    of_directories.chain(["files", "block"]).chain(OF_NODES)
}

/// Of `weir bench --connectors`.
#[derive(Args, Debug)]
pub struct ConnectorsArgs {
    /// Measure programs of MPI-IO, parallel HDF5 and PnetCDF with and without weir's connectors: all, or a list.
    ///
    /// The programs are compiled with --mpicc. --processes, --repeat, --quick (one shape of each), --quiet, --json and
    /// --strict mean what they do for directories.
    #[arg(long, value_name = "LIST", value_enum, value_delimiter = ',', num_args = 0.., require_equals = true,
        group = "judged", conflicts_with_all = of_others())]
    connectors: Option<Vec<Subject>>,
    /// With --connectors: a directory of the parallel file system, for the rows that write to it
    #[arg(long, value_name = "DIR", requires = "connectors", conflicts_with_all = of_others())]
    pfs: Option<PathBuf>,
    /// With --connectors: the compiler of your MPI, with options that find HDF5 and PnetCDF
    #[arg(
        long,
        value_name = "COMMAND",
        requires = "connectors",
        conflicts_with_all = of_others(),
        default_value = "mpicc"
    )]
    mpicc: String,
    /// With --connectors: the command that starts MPI programs; `-n` and the number of processes are added
    #[arg(
        long,
        value_name = "COMMAND",
        requires = "connectors",
        conflicts_with_all = of_others(),
        default_value = "mpiexec"
    )]
    mpiexec: String,
    /// With --connectors: servers of the instance, on this machine; each process uses the one of its rank
    #[arg(long, value_name = "N", requires = "connectors", conflicts_with_all = of_others(), default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=64))]
    own_servers: u16,
}

impl ConnectorsArgs {
    pub fn is_asked(&self) -> bool {
        self.connectors.is_some()
    }
}

/// The content of the JSON report.
#[derive(Serialize)]
struct ConnectorsReport<'a> {
    mpicc: &'a str,
    mpiexec: &'a str,
    processes: u32,
    servers: u16,
    pfs: Option<String>,
    rounds: u32,
    /// /proc/loadavg of this node before and after.
    load: [String; 2],
    rows: &'a [RowVerdict],
}

/// Measures; the exit code.
pub fn run(
    args: &BenchCommand,
    load: impl Fn(&[&str]) -> Result<Loaded, Failure>,
) -> Result<u8, Failure> {
    let settings = load(&[])?;
    let (args, bench_args) = (&args.connectors, &args.bench);
    let words = |command: &str| command.split_whitespace().map(str::to_owned).collect();
    let plan = ConnectorsPlan {
        subjects: args.connectors.clone().unwrap_or_default(),
        compiler: words(&args.mpicc),
        launcher: words(&args.mpiexec),
        processes: bench_args.processes,
        servers: args.own_servers,
        pfs: args.pfs.clone(),
        rounds: bench_args
            .rounds
            .unwrap_or(if bench_args.quick { 1 } else { 3 }),
        quick: bench_args.quick,
        quiet: bench_args.quiet,
    };
    let weir = std::env::current_exe().context("finding the weir program")?;
    let in_instance = |connectors: &str, elevated: Option<&Path>| {
        let mut command = Command::new(&weir);
        command.args(["run", "--report", "none", "--memory", MEMORY]);
        command.args(["--connectors", connectors]);
        if plan.servers > 1 {
            command.arg("--servers").arg(plan.servers.to_string());
        }
        if let Some(elevated) = elevated {
            command.arg("--elevate").arg(elevated);
        }
        command.arg("--");
        command
    };
    let host = ConnectorsHost {
        in_instance: &in_instance,
        directory: settings.config.mount.prefix.as_path().to_owned(),
    };
    let load_before = loadavg();
    let verdicts = bench::measure(&plan, &host)?;
    let all_met = tell_verdicts(&verdicts);
    let load = tell_load(load_before);
    if let Some(path) = &bench_args.json {
        let report = ConnectorsReport {
            mpicc: &args.mpicc,
            mpiexec: &args.mpiexec,
            processes: plan.processes,
            servers: plan.servers,
            pfs: plan.pfs.as_ref().map(|pfs| pfs.display().to_string()),
            rounds: plan.rounds,
            load,
            rows: &verdicts,
        };
        write_report(path, "weir-bench-connectors", &report)?;
    }
    Ok(exit_code(bench_args, all_met))
}
