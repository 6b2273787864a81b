//! `weir bench`: of directories by the crate `weir-bench`; with `--hosts`, `--hostfile`, `--job`
//! or `--servers`, of an instance of several nodes, which it starts for that and stops; with `--elevate`, of
//! checkpoints that instances take and move to the parallel file system; with `--connectors`, of programs with and without
//! connectors.
//!
//! Workers are started by the instance's agents, so by whatever starts `weir start`. What is
//! promised is judged beside plain TCP and plain servers in the same run, round by round.
//!
//! | file | subject |
//! | --- | --- |
//! | `gate` | lets workers in |
//! | `worker` | a worker beside a server: `calls` (weir's fabric), `pin` (processors) |
//! | `stage` | the instance, its workers, its counters |
//! | `elevate` | instances that elevate a directory |
//! | `connectors` | instances with and without connectors |
//!
//! The measurements, and how they are judged, are in `weir-bench` (`nodes`, `elevate`, `connectors`).

mod calls;
mod connectors;
mod elevate;
mod gate;
pub(crate) use gate::keep_alive;
mod pin;
mod stage;
pub mod worker;

use std::path::PathBuf;

use anyhow::{Context, Result};
use clap::{Args, ValueEnum};
use serde::Serialize;
use weir_bench::nodes::{
    self as bench, HostsPlan, HostsRun, Measurement, PromiseTable, RowVerdict,
};
use weir_bench::{write_report, WrongData, EXIT_NOT_MET, EXIT_WRONG_DATA};
use weir_config::{Environment, Loaded};
use weir_instance::errln;
use weir_launch::nodes::{self, NodeOptions, NodePlan};

use crate::exit::Failure;
use stage::BenchInstance;

const OF_DIRECTORIES: [&str; 15] = [
    "dirs",
    "calls",
    "targets",
    "processes",
    "transfers",
    "patterns",
    "ops",
    "segments",
    "baseline",
    "fsync",
    "verify",
    "no_limits",
    "device",
    "durable",
    "svg",
];

const OF_NODES: [&str; 5] = ["hosts", "hostfile", "job", "servers", "only"];

/// Of `weir bench`.
#[derive(Args, Debug)]
pub struct BenchCommand {
    /// Measure an instance of several nodes, such as a,b[1-8], with a server on each.
    ///
    /// It is started for that, as by weir start, and this node must be among them. All rows are
    /// judged: beside plain TCP between the same nodes, one server alone, and numbers. --block,
    /// --files, --repeat, --quick, --quiet, --json and --strict mean what they do for
    /// directories. Every byte that is read is compared with what was written.
    #[arg(long, value_name = "LIST", group = "judged", conflicts_with_all = OF_DIRECTORIES)]
    hosts: Option<String>,
    /// The same, of the nodes of a file, one a line.
    #[arg(long, value_name = "FILE", group = "judged", conflicts_with_all = OF_DIRECTORIES)]
    hostfile: Option<PathBuf>,
    /// The same, of the nodes of the batch job.
    #[arg(long, group = "judged", conflicts_with_all = OF_DIRECTORIES)]
    job: bool,
    /// The same, of this many servers on this machine.
    #[arg(long, value_name = "N", group = "judged", conflicts_with_all = OF_DIRECTORIES)]
    servers: Option<u16>,
    /// Of an instance of several nodes, measure only these rows.
    #[arg(
        long,
        value_name = "LIST",
        value_enum,
        value_delimiter = ',',
        requires = "judged"
    )]
    only: Vec<Measurement>,
    #[command(flatten)]
    elevate: elevate::ElevateArgs,
    #[command(flatten)]
    connectors: connectors::ConnectorsArgs,
    #[command(flatten)]
    bench: weir_bench::BenchArgs,
}

impl BenchCommand {
    fn of_nodes(&self) -> bool {
        self.job || self.hosts.is_some() || self.hostfile.is_some() || self.servers.is_some()
    }

    fn plan(&self) -> HostsPlan {
        let (bench, quick) = (&self.bench, self.bench.quick);
        let most = if quick { 16 << 20 } else { 256 << 20 };
        let measurements = match self.only.is_empty() {
            true => Measurement::value_variants().to_vec(),
            false => self.only.clone(),
        };
        HostsPlan {
            measurements,
            rounds: bench.rounds.unwrap_or(if quick { 1 } else { 5 }),
            // Of whole large reads, by four.
            bytes: bench.block.unwrap_or(most).next_multiple_of(16 << 20),
            pieces: 1_000_000,
            files: bench.files.unwrap_or(if quick { 200 } else { 5_000 }),
            trips: if quick { 200 } else { 2_000 },
            turns: if quick { 20 } else { 200 },
            quiet: bench.quiet,
        }
    }
}

/// `weir bench`; the exit code. `load` reads the settings, with more of them set.
pub fn run(
    args: &BenchCommand,
    load: impl Fn(&[&str]) -> Result<Loaded, Failure>,
    env: &Environment,
) -> Result<u8, Failure> {
    if let Some(directory) = args.elevate.directory() {
        return elevate::run(directory, args, load);
    }
    if args.connectors.is_asked() {
        return connectors::run(args, load);
    }
    if !args.of_nodes() {
        return Ok(weir_bench::run(&args.bench)?);
    }
    match of_nodes(args, load, env) {
        Err(Failure::Other(error)) if error.is::<WrongData>() => {
            errln!("weir: {error:#}");
            Ok(EXIT_WRONG_DATA)
        }
        other => other,
    }
}

/// The content of the JSON report.
#[derive(Serialize)]
struct Report<'a> {
    /// Nodes, by rank.
    nodes: &'a [String],
    /// True if all of them are one machine.
    one_machine: bool,
    /// /proc/loadavg of this node before and after.
    load: [String; 2],
    rounds: u32,
    verified_bytes: u64,
    rows: &'a [RowVerdict],
}

fn of_nodes(
    args: &BenchCommand,
    load: impl Fn(&[&str]) -> Result<Loaded, Failure>,
    env: &Environment,
) -> Result<u8, Failure> {
    let settings = load(&[])?;
    let wanted = NodeOptions {
        hosts: args.hosts.as_deref(),
        hostfile: args.hostfile.as_deref(),
        servers: args.servers,
        movers: None,
    };
    let found = nodes::find(&wanted, &settings.config.launch, env)?;
    let found = found.context("an instance of several nodes is measured; this is one")?;
    let plan = args.plan();
    let load_before = loadavg();
    let mut rows = PromiseTable::default();
    let mut done = measure(&found, &settings, env, &plan, &mut rows)?;
    done.verified += libfabric(&found, &load, env, &plan, &mut rows)?;
    let verdicts = rows.verdicts();
    let all_met = tell_verdicts(&verdicts);
    let mib = done.verified >> 20;
    outln!("Read back and compared: {mib} MiB, all as written.");
    let load = tell_load(load_before);
    if let Some(path) = &args.bench.json {
        let report = Report {
            nodes: &done.hosts,
            one_machine: done.one_machine,
            load,
            rounds: plan.rounds,
            verified_bytes: done.verified,
            rows: &verdicts,
        };
        write_report(path, "weir-bench-hosts", &report)?;
    }
    Ok(exit_code(&args.bench, all_met))
}

fn exit_code(args: &weir_bench::BenchArgs, all_met: bool) -> u8 {
    match args.strict && !all_met {
        true => EXIT_NOT_MET,
        false => 0,
    }
}

/// Prints the table; true if each promise is met.
fn tell_verdicts(verdicts: &[RowVerdict]) -> bool {
    outln!("{}", bench::table(verdicts));
    let judged = verdicts.iter().filter(|verdict| verdict.met.is_some());
    let met = judged.clone().filter(|verdict| verdict.met == Some(true));
    let (met, judged) = (met.count(), judged.count());
    outln!("{met} of {judged} promises met.");
    met == judged
}

/// Prints the load of this node before and after.
fn tell_load(before: String) -> [String; 2] {
    let load = [before, loadavg()];
    outln!(
        "Load of this node before and after: {}; {}",
        load[0],
        load[1]
    );
    load
}

/// The facts of a finished run, beside its rows.
struct RunFacts {
    hosts: Vec<String>,
    one_machine: bool,
    verified: u64,
}

fn measure(
    found: &NodePlan,
    settings: &Loaded,
    env: &Environment,
    plan: &HostsPlan,
    rows: &mut PromiseTable,
) -> Result<RunFacts, Failure> {
    let processes = 1 + 4.max(bench::LOOKERS.div_ceil(found.servers.len()));
    let mut stage = BenchInstance::set(found, settings, env, processes, true)?;
    let verified = HostsRun::rounds(&mut stage.instance, plan, rows, HostsRun::all)?;
    let hosts = stage.instance.nodes.iter().map(|node| node.host.clone());
    let finished = RunFacts {
        hosts: hosts.collect(),
        one_machine: stage.instance.one_machine,
        verified,
    };
    let turned_away = stage.gate.turned_away();
    if turned_away > 0 {
        errln!("weir: {turned_away} connections were refused that did not come from workers");
    }
    stage.strike()?;
    Ok(finished)
}

/// Some of the same over libfabric, where it is; bytes compared.
fn libfabric(
    found: &NodePlan,
    load: impl Fn(&[&str]) -> Result<Loaded, Failure>,
    env: &Environment,
    plan: &HostsPlan,
    rows: &mut PromiseTable,
) -> Result<u64, Failure> {
    let reads = [(1, 1), (1, 16), (4, 1), (4, 16)];
    let reads = reads.map(|(streams, mib)| bench::read(streams, mib << 20, true));
    let told = plan.over_libfabric().flat_map(|part| match part {
        Measurement::Reads => reads.to_vec(),
        _ => vec![bench::calls(true)],
    });
    let told: Vec<_> = told.collect();
    if told.is_empty() {
        return Ok(0);
    }
    let not =
        |rows: &mut PromiseTable, why: &str| told.iter().for_each(|row| rows.why_not(row, why));
    if let Err(why) = weir_fabric::ofi::find() {
        not(rows, &format!("libfabric: {why}"));
        return Ok(0);
    }
    let settings = load(&["fabric.transport=libfabric"])?;
    let mut stage = BenchInstance::set(found, &settings, env, 5, false)?;
    let mut verified = 0;
    if stage.libfabric {
        verified = HostsRun::rounds(&mut stage.instance, plan, rows, HostsRun::over_libfabric)?;
    } else {
        not(
            rows,
            "a node has no endpoint of libfabric; weir doctor says why",
        );
    }
    stage.strike()?;
    Ok(verified)
}

fn loadavg() -> String {
    let text = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    text.split(' ').take(3).collect::<Vec<_>>().join(" ")
}
