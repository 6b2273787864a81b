//! The stages of `weir run`, and the last one of `weir stop`: `weir stage` in processes of their own.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::ExitStatus;

use anyhow::{anyhow, Context, Result};
use nix::sys::signal::Signal;
use weir_config::Drain;

use crate::args::{ChoiceArgs, DrainProcessArgs};
use crate::drain::process::DrainProcess;
use crate::exit::Failure;
use crate::{show, supervise};

/// The signals for a command by which it would end, if it had no handler, and that mean nothing to a
/// stage: a batch system sends them to all processes of a job.
const FOR_COMMANDS: [Signal; 4] = [
    Signal::SIGUSR1,
    Signal::SIGUSR2,
    Signal::SIGALRM,
    Signal::SIGXCPU,
];

/// The stages of a `weir run`.
#[derive(Debug)]
pub struct RunStages<'a> {
    /// `--stage-in`.
    pub stage_in: &'a [OsString],
    /// `--drain-to`.
    pub drain_to: Option<&'a Path>,
    /// The mount prefix.
    pub prefix: PathBuf,
    /// True if the instance ends with the stages: files may be laminated.
    pub ends_instance: bool,
    /// How files are drained.
    pub settings: &'a Drain,
}

impl RunStages<'_> {
    /// The same for an instance that runs, which has a prefix of its own; asks it only if there is
    /// something to stage.
    pub fn of_running(self, run_dir: &Path) -> Result<Self, Failure> {
        if self.stage_in.is_empty() && self.drain_to.is_none() {
            return Ok(self);
        }
        let prefix = show::prefix(run_dir)?.into();
        Ok(Self { prefix, ..self })
    }

    /// Refuses what could only fail, before anything is started.
    pub fn check(&self) -> Result<(), Failure> {
        for argument in self.stage_in {
            let (source, target) = self.split(argument);
            if let Err(error) = source.symlink_metadata() {
                let source = source.display();
                return Err(Failure::Refused(format!("--stage-in {source}: {error}")));
            }
            if !target.starts_with(&self.prefix) {
                return Err(Failure::Refused(format!(
                    "--stage-in {}: the destination is not below {}",
                    argument.display(),
                    self.prefix.display()
                )));
            }
        }
        let Some(dir) = self.drain_to else {
            return Ok(());
        };
        if dir.starts_with(&self.prefix) {
            return Err(Failure::Refused(format!(
                "--drain-to {}: that is in the instance",
                dir.display()
            )));
        }
        prepare_target(dir)
            .map_err(|error| Failure::Refused(format!("--drain-to {}: {error}", dir.display())))
    }

    fn split(&self, argument: &OsStr) -> (PathBuf, PathBuf) {
        let whole = Path::new(argument);
        let bytes = argument.as_bytes();
        let colon = bytes.iter().rposition(|byte| *byte == b':');
        match colon.filter(|_| whole.symlink_metadata().is_err()) {
            Some(colon) => (
                OsStr::from_bytes(&bytes[..colon]).into(),
                OsStr::from_bytes(&bytes[colon + 1..]).into(),
            ),
            None => (whole.to_owned(), self.prefix.join("")),
        }
    }

    /// Stages in; the command may not run without what it is to read.
    pub fn bring_in(&self, run_dir: &Path) -> Result<(), Failure> {
        for argument in self.stage_in {
            let (source, target) = self.split(argument);
            // A destination that was given is the directory's new name.
            let is_renamed = source.is_dir() && target != self.prefix.join("");
            let source = if is_renamed { source.join(".") } else { source };
            let status = stage_by_command("in", &[], run_dir, &source, &target)?;
            if !status.success() {
                return Err(anyhow!(
                    "--stage-in {}: not everything was moved, so the command was not started",
                    argument.display()
                )
                .into());
            }
        }
        Ok(())
    }

    fn choice(&self) -> ChoiceArgs {
        ChoiceArgs::of_drains(self.settings, &self.prefix.to_string_lossy())
    }

    /// Starts to move files while the command runs, if that is asked for.
    pub fn begin_drain(&self, run_dir: &Path) -> Option<DrainProcess> {
        let target = self.drain_to.filter(|_| self.settings.while_running)?;
        let args = DrainProcessArgs {
            choice: self.choice(),
            interval_s: self.settings.interval_s,
            laminate: self.ends_instance,
            run_dir: run_dir.to_owned(),
            target: target.to_owned(),
        };
        let started = DrainProcess::start(&args, &FOR_COMMANDS);
        let started = started.inspect_err(|error| {
            eprintln!("weir: cannot drain while the command runs: {error}; it is done at the end");
        });
        started.ok()
    }

    /// Moves everything out; true if it is safe.
    pub fn take_out(&self, run_dir: &Path, drain: Option<DrainProcess>) -> bool {
        let Some(dir) = self.drain_to else {
            return true;
        };
        let finished = drain.map_or(Ok(None), DrainProcess::finish);
        let staged = match finished {
            Ok(Some(is_safe)) => return is_safe,
            Ok(None) => {
                let mut options = self.choice().words();
                options.extend(self.ends_instance.then(|| "--laminate".into()));
                stage_by_command("out", &options, run_dir, &self.prefix, dir)
            }
            Err(error) => Err(error.into()),
        };
        match staged {
            Ok(status) => status.success(),
            Err(failure) => {
                eprintln!("weir: {failure}");
                false
            }
        }
    }
}

/// Creates the directory that takes everything, and tries to write there.
fn prepare_target(dir: &Path) -> std::io::Result<()> {
    match std::fs::create_dir(dir) {
        Err(error) if error.kind() != std::io::ErrorKind::AlreadyExists => return Err(error),
        _ => {}
    }
    let probe = dir.join(format!(".weir-probe-{}", std::process::id()));
    std::fs::write(&probe, b"").and_then(|()| std::fs::remove_file(&probe))
}

/// A stage as a process of its own: signals reach it as they reach a command, and a file system that
/// does not answer holds up no one else.
fn stage_by_command(
    direction: &str,
    options: &[OsString],
    run_dir: &Path,
    source: &Path,
    target: &Path,
) -> Result<ExitStatus, Failure> {
    let program = std::env::current_exe().context("finding the weir program")?;
    let before: [&OsStr; 5] = [
        program.as_os_str(),
        "stage".as_ref(),
        direction.as_ref(),
        "-i".as_ref(),
        run_dir.as_os_str(),
    ];
    let after: [&OsStr; 3] = ["--".as_ref(), source.as_os_str(), target.as_os_str()];
    let words = before
        .into_iter()
        .chain(options.iter().map(OsString::as_os_str))
        .chain(after);
    let words: Vec<OsString> = words.map(OsStr::to_owned).collect();
    supervise::run(&words, &[("LD_PRELOAD", OsString::new())], &FOR_COMMANDS)
}
