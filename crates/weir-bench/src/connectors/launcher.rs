//! One run of a program: in an instance with some connectors, or outside.

use std::ffi::OsString;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{ensure, Context, Result};

use super::comparisons::{Comparison, RunMode};
use super::programs::{numbers_in, ArrayProgram, ProgramNumbers};
use super::{ConnectorsHost, ConnectorsPlan, Subject};

/// Runs what follows at the server of the process's rank.
const AT_OWN_SERVER: &str = r#"server=$((${PMI_RANK:-${OMPI_COMM_WORLD_RANK:-${SLURM_PROCID:?no rank}}} % $0))
[ $server = 0 ] || export WEIR_INSTANCE=$WEIR_INSTANCE.$server
exec "$@""#;

/// Runs programs.
pub struct Launcher<'a> {
    pub plan: &'a ConnectorsPlan,
    pub host: &'a ConnectorsHost<'a>,
    /// A directory of the kernel's.
    pub elsewhere: &'a Path,
    /// A directory of the parallel file system.
    pub pfs: Option<&'a Path>,
}

impl Launcher<'_> {
    /// True if the subject can be measured.
    pub fn has(&self, subject: Subject) -> bool {
        subject != Subject::Pfs || self.pfs.is_some()
    }

    /// Runs a program; returns its numbers.
    pub fn run(
        &self,
        comparison: &Comparison,
        run: &RunMode,
        program: &Path,
    ) -> Result<ProgramNumbers> {
        let file = self.file_of(comparison);
        let mut command = self.command(comparison, run);
        command.arg(program);
        if comparison.program == ArrayProgram::Start {
            command.arg("/bin/true");
        } else {
            command.arg(&file).args(comparison.arguments);
        }
        if *run == RunMode::OwnDriver {
            let mut log = OsString::from("nc_burst_buf_dirname=");
            log.push(self.elsewhere);
            command.arg("nc_burst_buf=enable").arg(log);
        }
        let output = command.stdin(Stdio::null()).output();
        let output = output.with_context(|| command.get_program().display().to_string())?;
        let errors = String::from_utf8_lossy(&output.stderr);
        ensure!(
            output.status.success(),
            "{}, {}: {}: {}",
            comparison.what,
            run.name(),
            output.status,
            errors.trim_end()
        );
        if comparison.subject == Subject::Pfs {
            match fs::remove_file(&file) {
                // A program that lacks PnetCDF's driver makes none.
                Err(error) if error.kind() != io::ErrorKind::NotFound => {
                    return Err(error).with_context(|| file.display().to_string());
                }
                _ => {}
            }
        }
        Ok(numbers_in(&String::from_utf8_lossy(&output.stdout)))
    }

    /// The file of a program.
    fn file_of(&self, comparison: &Comparison) -> PathBuf {
        let directory = match comparison.subject {
            Subject::Pfs => self.pfs.unwrap_or(self.elsewhere),
            Subject::Overhead => self.elsewhere,
            Subject::Mpiio | Subject::Hdf5 | Subject::Pnetcdf => &self.host.directory,
        };
        directory.join("weir-bench-file")
    }

    /// The words before those of the program.
    fn command(&self, comparison: &Comparison, run: &RunMode) -> Command {
        let mut words: Vec<String> = Vec::new();
        if comparison.is_parallel() {
            words.extend(self.plan.launcher.iter().cloned());
            words.extend(["-n".to_owned(), self.plan.processes.to_string()]);
        }
        let is_apart = comparison.is_parallel() && self.plan.servers > 1;
        let is_outside = matches!(run, RunMode::Outside | RunMode::OwnDriver);
        if is_apart && !is_outside {
            words.extend(["sh", "-c", AT_OWN_SERVER].map(str::to_owned));
            words.push(self.plan.servers.to_string());
        }
        let mut command = match run {
            RunMode::Outside | RunMode::OwnDriver => Command::new("env"),
            RunMode::With(connectors) => (self.host.in_instance)(connectors, None),
            RunMode::Elevated => (self.host.in_instance)("mpiio,pnetcdf", self.pfs),
        };
        if comparison.subject == Subject::Pfs && matches!(run, RunMode::With(_)) {
            // A log for a file of the parallel file system that is not elevated.
            command.env("WEIR_PNETCDF_FILES", "all");
        }
        command.args(words);
        command
    }
}
