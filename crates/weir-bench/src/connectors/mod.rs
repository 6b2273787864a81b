//! `weir bench --connectors`: programs of MPI-IO, parallel HDF5 and PnetCDF with and without weir's connectors, in the
//! same run, round by round.
//!
//! | file | subject |
//! | --- | --- |
//! | `programs` | the programs, in C, compiled for the user's MPI |
//! | `comparisons` | what is run, and the rows: one place for each promise |
//! | `launcher` | one run of a program |
//!
//! It leaves out the requests that reach a target, which only the target knows.

mod comparisons;
mod launcher;
mod programs;

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Result;
use clap::ValueEnum;
use serde::Serialize;

use crate::own_directory::OwnDirectory;
use crate::rows::{PromiseTable, RowVerdict};
use comparisons::{comparisons_of, Comparison, RunMode};
use launcher::Launcher;
use programs::CompiledPrograms;

/// A subject of the measurement.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum Subject {
    /// MPI-IO on files in weir.
    Mpiio,
    /// Parallel HDF5 on files in weir.
    Hdf5,
    /// PnetCDF on files in weir.
    Pnetcdf,
    /// PnetCDF on files of the parallel file system.
    Pfs,
    /// Programs and files that are not weir's.
    Overhead,
}

/// Starts instances for the programs.
pub struct ConnectorsHost<'a> {
    /// A command that runs the words that are added to it in a new instance with these connectors, which
    /// elevates a directory if one is given.
    pub in_instance: &'a dyn Fn(&str, Option<&Path>) -> Command,
    /// The directory of an instance.
    pub directory: PathBuf,
}

/// How much is measured.
#[derive(Clone, Debug)]
pub struct ConnectorsPlan {
    /// The subjects; none: all that can be measured.
    pub subjects: Vec<Subject>,
    /// The compiler of the user's MPI, with options.
    pub compiler: Vec<String>,
    /// The command that starts MPI programs, with options but the number of processes.
    pub launcher: Vec<String>,
    /// Processes of a program.
    pub processes: u32,
    /// Servers of an instance; a process uses the one of its rank.
    pub servers: u16,
    /// A directory of the parallel file system; a new one is made in it.
    pub pfs: Option<PathBuf>,
    /// Rounds; each measures everything.
    pub rounds: u32,
    /// One shape for each program.
    pub quick: bool,
    /// No progress.
    pub quiet: bool,
}

/// Measures; returns the rows, judged.
///
/// # Errors
/// A program that fails, an instance that cannot be started. A program that cannot be compiled is no error: its
/// rows say why they are not measured.
pub fn measure(plan: &ConnectorsPlan, host: &ConnectorsHost<'_>) -> Result<Vec<RowVerdict>> {
    let work = OwnDirectory::make(&std::env::temp_dir(), "weir-bench-connectors")?;
    let elsewhere = OwnDirectory::make(Path::new("/dev/shm"), "weir-bench-connectors")?;
    let pfs = plan.pfs.as_deref();
    let pfs = pfs.map(|within| OwnDirectory::make(within, "weir-bench-connectors"));
    let pfs = pfs.transpose()?;
    let programs = CompiledPrograms::new(&plan.compiler, &work.0);
    let launcher = Launcher {
        plan,
        host,
        elsewhere: &elsewhere.0,
        pfs: pfs.as_ref().map(|own| own.0.as_path()),
    };
    let mut rows = PromiseTable::default();
    let is_wanted = |subject: Subject| plan.subjects.is_empty() || plan.subjects.contains(&subject);
    let wanted = comparisons_of(plan.quick).filter(|comparison| is_wanted(comparison.subject));
    let wanted: Vec<Comparison> = wanted.collect();
    for number in 1..=plan.rounds {
        for comparison in &wanted {
            if !plan.quiet {
                eprintln!("round {number}/{}  {}", plan.rounds, comparison.what);
            }
            compare(comparison, &programs, &launcher, &mut rows)?;
        }
    }
    Ok(rows.verdicts())
}

/// Runs a program in all ways, and adds the values to the rows.
fn compare(
    comparison: &Comparison,
    programs: &CompiledPrograms<'_>,
    launcher: &Launcher<'_>,
    rows: &mut PromiseTable,
) -> Result<()> {
    let program = match launcher.has(comparison.subject) {
        true => programs.path_of(comparison.program),
        false => Err("no directory: give --pfs".to_owned()),
    };
    let program = match program {
        Ok(program) => program,
        Err(why) => {
            comparison.tell_why_not(rows, &why);
            return Ok(());
        }
    };
    let run = |run: &RunMode| launcher.run(comparison, run, &program);
    let done: Vec<_> = comparison.runs.iter().map(run).collect::<Result<_>>()?;
    comparison.add_to(rows, &done)
}
