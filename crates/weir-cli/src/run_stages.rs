//! The stages of `weir run`, and the last one of `weir stop`: `weir stage` in processes of their own.

use std::ffi::{OsStr, OsString};
use std::io::ErrorKind;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus};

use anyhow::{anyhow, Context, Result};
use nix::sys::signal::Signal;
use weir_config::Drain;
use weir_core::elevate_rule::{ElevateRule, RULE_FILE};
use weir_core::elevated::ALIAS_LINK;
use weir_instance::errln;

use crate::args::{ChoiceArgs, DrainProcessArgs, EarlierDrains};
use crate::array_log;
use crate::drain::started::DrainProcess;
use crate::exit::Failure;
use crate::locate::elevated_directories;
use crate::{show, supervise};

/// The signals for a command by which it would end, if it had no handler, and that mean nothing to a
/// stage: a batch system sends them to all processes of a job.
const FOR_COMMANDS: [Signal; 4] = [
    Signal::SIGUSR1,
    Signal::SIGUSR2,
    Signal::SIGALRM,
    Signal::SIGXCPU,
];

/// A tree of an instance that is moved out of it.
#[derive(Debug)]
struct DrainedTree {
    /// The number of an elevated tree; else it is that of the mount prefix.
    elevated: Option<usize>,
    target: PathBuf,
    /// That of an elevated tree, with which the instance was started.
    rule: ElevateRule,
}

/// The trees that are moved out of an instance, and the processes that do so while a command runs.
#[derive(Debug)]
pub struct Drains(Vec<(DrainedTree, Option<DrainProcess>)>);

/// The stages of a `weir run`.
#[derive(Debug)]
pub struct RunStages<'a> {
    /// `--stage-in`.
    pub stage_in: &'a [OsString],
    /// `--drain-to`.
    pub drain_to: Option<&'a Path>,
    /// The elevated directories of the instance that is to be started.
    pub elevate: &'a [PathBuf],
    /// The mount prefix.
    pub prefix: PathBuf,
    /// True if the instance ends with the stages: files may be laminated.
    pub ends_instance: bool,
    /// The drains before these.
    pub before: EarlierDrains,
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
        let drain_to = self.drain_to.map(|dir| ("--drain-to", dir));
        let elevated = self.elevate.iter().map(|dir| ("--elevate", dir.as_path()));
        for (option, dir) in drain_to.into_iter().chain(elevated) {
            let refuse = |why: &str| Failure::Refused(format!("{option} {}: {why}", dir.display()));
            if dir.starts_with(&self.prefix) {
                return Err(refuse("that is in the instance"));
            }
            if self.prefix.starts_with(dir) && option == "--elevate" {
                return Err(refuse("the instance is in it"));
            }
            if is_of_weir(dir) {
                return Err(refuse("a mount of weir, whose files end with its instance"));
            }
            prepare_target(dir).map_err(|error| match error.kind() {
                ErrorKind::NotFound => {
                    refuse(&format!("{error}: create the directory above it first"))
                }
                _ => refuse(&error.to_string()),
            })?;
        }
        check_distinct(self.elevate)
    }

    /// The trees that are moved out of the instance.
    fn drained_trees(&self, run_dir: &Path) -> Vec<DrainedTree> {
        let main = self.drain_to.map(|target| DrainedTree {
            elevated: None,
            target: target.to_owned(),
            rule: ElevateRule::default(),
        });
        let elevated = elevated_directories(run_dir).into_iter().enumerate();
        let elevated = elevated.map(|(number, target)| DrainedTree {
            elevated: Some(number),
            target,
            rule: rule_of(run_dir, number),
        });
        main.into_iter().chain(elevated).collect()
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
    pub fn begin_drains(&self, run_dir: &Path) -> Drains {
        let begin =
            |tree: &DrainedTree| {
                let started = self.start_process(run_dir, tree, self.before).inspect_err(|error| {
                errln!("weir: cannot drain while the command runs: {error}; it is done at the end");
            });
                started.ok()
            };
        let trees = self.drained_trees(run_dir).into_iter();
        Drains(
            trees
                .map(|tree| {
                    let process = self.settings.while_running.then(|| begin(&tree));
                    (tree, process.flatten())
                })
                .collect(),
        )
    }

    fn start_process(
        &self,
        run_dir: &Path,
        tree: &DrainedTree,
        before: EarlierDrains,
    ) -> std::io::Result<DrainProcess> {
        let args = DrainProcessArgs {
            choice: match tree.elevated {
                None => self.choice(),
                Some(_) => ChoiceArgs::default(),
            },
            interval_s: self.settings.interval_s,
            stuck_s: self.settings.stuck_s,
            order: self.settings.order,
            // An eviction is noted in a directory that a lost server may have.
            evict_percent: match before == EarlierDrains::LostServers {
                true => 0,
                false => self.settings.evict_percent.0,
            },
            first: self
                .settings
                .first
                .below(&self.tree_root(run_dir, tree))
                .chain(tree.rule.first.iter().cloned())
                .collect(),
            keep: tree.rule.keep.clone(),
            warning_s: self.settings.warning_s,
            limit: self.settings.limit.0,
            stripe: self.settings.stripe.bytes(),
            // The copy of an evicted file may have a name of which only a lost server knows.
            replace_foreign: self.settings.replace_foreign && before != EarlierDrains::LostServers,
            hook: self.settings.hook.clone(),
            status_file: self.settings.status_file.clone(),
            laminate: self.ends_instance,
            before,
            generation: 0,
            is_successor: false,
            tree: tree.elevated,
            run_dir: run_dir.to_owned(),
            target: tree.target.clone(),
        };
        DrainProcess::start(&args, &FOR_COMMANDS)
    }

    /// Moves everything out of an instance that no command uses; true if it is safe.
    pub fn take_all_out(&self, run_dir: &Path) -> bool {
        let trees = self.drained_trees(run_dir).into_iter();
        self.take_out(run_dir, Drains(trees.map(|tree| (tree, None)).collect()))
    }

    /// The path by which programs name the root of a tree.
    fn tree_root(&self, run_dir: &Path, tree: &DrainedTree) -> String {
        let root = match tree.elevated {
            None => self.prefix.clone(),
            Some(number) => {
                let alias = std::fs::read_link(run_dir.join(format!("{ALIAS_LINK}{number}")));
                alias.unwrap_or_else(|_| tree.target.clone())
            }
        };
        root.to_string_lossy().into_owned()
    }

    /// Moves the rest out; true if it is safe.
    pub fn take_out(&self, run_dir: &Path, mut drains: Drains) -> bool {
        let mut is_safe = drains.0.is_empty() || array_log::replay_left(run_dir);
        // All at once: the end of the job may be near.
        let running = drains
            .0
            .iter_mut()
            .filter_map(|(_, process)| process.as_mut());
        running.for_each(DrainProcess::begin_to_finish);
        for (tree, process) in drains.0 {
            is_safe &= self
                .take_tree_out(run_dir, &tree, process)
                .unwrap_or_else(|failure| {
                    errln!("weir: {}: {failure}", tree.target.display());
                    false
                });
        }
        is_safe
    }

    fn take_tree_out(
        &self,
        run_dir: &Path,
        tree: &DrainedTree,
        process: Option<DrainProcess>,
    ) -> Result<bool, Failure> {
        let before = match process.is_some() && self.before == EarlierDrains::Ended {
            true => EarlierDrains::Killed,
            false => self.before,
        };
        let finished = process.map_or(Ok(None), DrainProcess::finish)?;
        if let Some(is_safe) = finished {
            return Ok(is_safe);
        }
        let again = self
            .start_process(run_dir, tree, before)
            .context("starting a drain")?;
        Ok(again.finish()? == Some(true))
    }
}

/// True if a directory is in a mount of weir: that of an instance, or a mirror.
fn is_of_weir(dir: &Path) -> bool {
    let path = std::path::absolute(dir).unwrap_or_else(|_| dir.to_owned());
    let mounts = weir_fuse::mounts().unwrap_or_default();
    // The target itself need not be there yet.
    let found = path.ancestors().find_map(|above| above.canonicalize().ok());
    found.is_some_and(|found| mounts.iter().any(|mount| found.starts_with(mount)))
}

/// Refuses directories of which one is another one, or in it, by other names: programs would see two trees that do not
/// know of each other.
fn check_distinct(elevated: &[PathBuf]) -> Result<(), Failure> {
    let id_of = |dir: &Path| {
        let stat = dir.metadata().ok()?;
        Some((stat.dev(), stat.ino()))
    };
    let at_and_above = |dir: &PathBuf| {
        let path = dir.canonicalize().unwrap_or_else(|_| dir.clone());
        path.ancestors().filter_map(id_of).collect::<Vec<_>>()
    };
    let above: Vec<_> = elevated.iter().map(at_and_above).collect();
    for (one, ids) in elevated.iter().zip(&above) {
        let Some(own) = ids.first() else {
            continue;
        };
        for (other, others) in elevated.iter().zip(&above) {
            if one == other || !others.contains(own) {
                continue;
            }
            let (one, other) = (one.display(), other.display());
            let how = match others.first() == Some(own) {
                true => "the same directory",
                false => "one is within the other",
            };
            return Err(Failure::Refused(format!(
                "--elevate {one} and {other}: {how}"
            )));
        }
    }
    Ok(())
}

/// The rule of an elevated tree of the instance with this run directory.
pub fn rule_of(run_dir: &Path, number: usize) -> ElevateRule {
    let rule = std::fs::read(run_dir.join(format!("{RULE_FILE}{number}")));
    rule.map_or_else(
        |_| ElevateRule::default(),
        |rule| ElevateRule::from_bytes(&rule),
    )
}

/// Creates the directory that takes everything, and tries to write there.
fn prepare_target(dir: &Path) -> std::io::Result<()> {
    match std::fs::create_dir(dir) {
        Err(error) if error.kind() != ErrorKind::AlreadyExists => return Err(error),
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
    let mut stage = Command::new(program);
    stage
        .args(["stage", direction, "-i"])
        .arg(run_dir)
        .args(options)
        .arg("--")
        .args([source, target])
        .env("LD_PRELOAD", "");
    supervise::run(stage, &FOR_COMMANDS)
}
