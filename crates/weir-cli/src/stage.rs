//! `weir stage`: moving files into an instance and out of it, by [`weir_mover`]; and the stages of
//! `weir run`, which starts this command for them.

use std::ffi::{OsStr, OsString};
use std::io::IsTerminal;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::ExitStatus;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{anyhow, Context, Result};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use weir_config::{Config, Environment};
use weir_instance::connection::Connection;
use weir_instance::size::bytes;
use weir_mover::sources::{check_parent, check_targets, make_parents, pair, SourcesRefused};
use weir_mover::tree::FileTree;
use weir_mover::{
    manifest, DirectoryTree, InstanceTree, StageOptions, StagePair, StageProgress, StageSummary,
};

use crate::args::{StageArgs, StageDirection, StageFiles};
use crate::exit::Failure;
use crate::locate::live_run_dir;
use crate::supervise;

/// The failures that are printed; the summary has all of them.
const SHOWN_FAILURES: usize = 20;
/// How often the progress bar is drawn.
const DRAW: Duration = Duration::from_millis(100);

/// `weir stage`.
pub fn stage(args: &StageArgs, config: &Config, env: &Environment) -> Result<(), Failure> {
    let (files, is_in) = match &args.direction {
        StageDirection::In(files) => (files, true),
        StageDirection::Out(files) => (files, false),
    };
    let run_dir = live_run_dir(files.instance.as_deref(), config, env)?;
    let instance = InstanceTree::attach(&run_dir)
        .with_context(|| format!("cannot reach the server of {}", run_dir.display()))?;
    let paths = ArgumentPaths::new(instance.prefix())?;
    let (outside, inside) = (
        |path: &Path| paths.outside(path),
        |path: &Path| paths.inside(path),
    );
    let summary = if is_in {
        let rules = PathRules {
            source: &outside,
            target: &inside,
            make_parents: true,
        };
        run(files, &DirectoryTree, &instance, &rules)?
    } else {
        let rules = PathRules {
            source: &inside,
            target: &outside,
            make_parents: false,
        };
        run(files, &instance, &DirectoryTree, &rules)?
    };
    let json = serde_json::to_string(&summary).context("the summary")?;
    if let Some(file) = &files.summary {
        std::fs::write(file, &json).with_context(|| file.display().to_string())?;
    }
    match files.json {
        true => outln!("{json}"),
        false => eprintln!("weir: {}", in_words(&summary)),
    }
    complain(&summary)
}

/// The meaning of the paths on the command line.
struct ArgumentPaths {
    /// Of the instance.
    prefix: PathBuf,
    here: PathBuf,
}

/// How the paths of a direction are read.
struct PathRules<'a> {
    source: &'a dyn Fn(&Path) -> Result<PathBuf, Failure>,
    target: &'a dyn Fn(&Path) -> Result<PathBuf, Failure>,
    /// Directories above a target are created.
    make_parents: bool,
}

impl ArgumentPaths {
    fn new(prefix: &Path) -> Result<ArgumentPaths> {
        Ok(ArgumentPaths {
            prefix: prefix.to_owned(),
            here: std::env::current_dir().context("the current directory")?,
        })
    }

    /// The path behind the prefix, with a slash before it.
    fn below(&self, path: &Path) -> Option<PathBuf> {
        let path = path.as_os_str().as_bytes();
        let rest = path.strip_prefix(self.prefix.as_os_str().as_bytes())?;
        match rest {
            [] => Some(PathBuf::from("/")),
            [b'/', ..] => Some(PathBuf::from(OsStr::from_bytes(rest))),
            _ => None,
        }
    }

    fn inside(&self, path: &Path) -> Result<PathBuf, Failure> {
        self.below(path).ok_or_else(|| {
            Failure::Refused(format!(
                "{} is not in the instance, whose paths begin with {}",
                path.display(),
                self.prefix.display()
            ))
        })
    }

    fn outside(&self, path: &Path) -> Result<PathBuf, Failure> {
        match self.below(path) {
            None => Ok(self.here.join(path)),
            Some(_) => Err(Failure::Refused(format!(
                "{} is in the instance, and so is the other end: cp does that in weir run",
                path.display()
            ))),
        }
    }
}

/// The pairs that are to be moved; everything that is wrong is said before anything moves.
fn pairs<S: FileTree, T: FileTree>(
    args: &StageFiles,
    from: &S,
    to: &T,
    rules: &PathRules<'_>,
) -> Result<Vec<StagePair>, Failure> {
    let pairs = if let Some(file) = &args.manifest {
        from_manifest(file, from, to, rules)?
    } else {
        let (target, sources) = args.paths.split_last().expect("at least two");
        let sources = sources.iter().map(|path| (rules.source)(path));
        let sources = sources.collect::<Result<Vec<_>, _>>()?;
        let target = (rules.target)(target)?;
        if !rules.make_parents {
            check_parent(to, &target)?;
        }
        pair(from, &sources, to, &target)?
    };
    make_parents(to, &pairs)?;
    Ok(pairs)
}

/// The pairs of a manifest; all bad lines are named.
fn from_manifest<S: FileTree, T: FileTree>(
    file: &Path,
    from: &S,
    to: &T,
    rules: &PathRules<'_>,
) -> Result<Vec<StagePair>, Failure> {
    let text = std::fs::read_to_string(file).with_context(|| file.display().to_string())?;
    let mut bad = Vec::new();
    let mut pairs = Vec::new();
    let read_lines = manifest::parse(&text);
    bad.extend(read_lines.bad.into_iter().map(|bad| (bad.line, bad.reason)));
    for (line, words) in read_lines.pairs {
        let checked = (rules.source)(&words.source).and_then(|source| {
            let target = (rules.target)(&words.target)?;
            let found = from
                .look_up(&source)
                .with_context(|| source.display().to_string())?;
            if found.is_none() {
                return Err(SourcesRefused::NoSource(words.source).into());
            }
            if !rules.make_parents {
                check_parent(to, &target)?;
            }
            Ok(StagePair { source, target })
        });
        match checked {
            Ok(pair) => pairs.push(pair),
            Err(why) => bad.push((line, why.to_string())),
        }
    }
    if let Err(error) = check_targets(&pairs) {
        bad.push((text.lines().count(), error.to_string()));
    }
    if bad.is_empty() {
        return Ok(pairs);
    }
    bad.sort();
    let lines = bad
        .iter()
        .map(|(line, why)| format!("{}:{line}: {why}", file.display()));
    let mut lines: Vec<String> = lines.collect();
    lines.push("nothing was moved".to_owned());
    Err(Failure::Refused(lines.join("\n")))
}

fn run<S: FileTree, T: FileTree>(
    args: &StageFiles,
    from: &S,
    to: &T,
    rules: &PathRules<'_>,
) -> Result<StageSummary, Failure> {
    let pairs = pairs(args, from, to, rules)?;
    let threads = args.threads.map_or_else(default_threads, usize::from);
    let options = StageOptions {
        threads,
        verify: args.verify,
    };
    let progress = StageProgress::default();
    stop_on_signals(&progress.stop)?;
    let is_done = AtomicBool::new(false);
    let summary = std::thread::scope(|scope| {
        if std::io::stderr().is_terminal() {
            scope.spawn(|| draw(&progress, &is_done));
        }
        let summary = weir_mover::stage(from, to, &pairs, options, &progress);
        is_done.store(true, Ordering::Relaxed);
        summary
    });
    Ok(summary)
}

/// Copying waits for storage more than it computes.
fn default_threads() -> usize {
    let processors = std::thread::available_parallelism().map_or(2, usize::from);
    (2 * processors).clamp(4, 16)
}

/// The first signal ends the stage in order, the second one at once.
fn stop_on_signals(stop: &Arc<AtomicBool>) -> Result<()> {
    for signal in [SIGINT, SIGTERM, SIGHUP] {
        let by_default = Arc::clone(stop);
        signal_hook::flag::register_conditional_default(signal, by_default)
            .and_then(|_| signal_hook::flag::register(signal, Arc::clone(stop)))
            .context("signals")?;
    }
    Ok(())
}

fn draw(progress: &StageProgress, is_done: &AtomicBool) {
    let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr());
    let style =
        ProgressStyle::with_template("{wide_bar} {binary_bytes} of {binary_total_bytes}, {binary_bytes_per_sec}, {msg}, {eta} left");
    bar.set_style(style.expect("a template of ours"));
    while !is_done.load(Ordering::Relaxed) {
        let found = progress.files_found.load(Ordering::Relaxed);
        let done = progress.files_done.load(Ordering::Relaxed);
        let more = match progress.is_walked.load(Ordering::Relaxed) {
            true => "",
            false => "+",
        };
        bar.set_length(progress.bytes_found.load(Ordering::Relaxed));
        bar.set_position(progress.bytes_done.load(Ordering::Relaxed));
        bar.set_message(format!("{done} of {found}{more} files"));
        std::thread::sleep(DRAW);
    }
    bar.finish_and_clear();
}

/// The summary for people, in a line.
fn in_words(summary: &StageSummary) -> String {
    let mut parts = vec![format!(
        "{} files ({}) moved",
        summary.files,
        bytes(summary.bytes)
    )];
    let mut count = |number: u64, what: &str| {
        if number > 0 {
            parts.push(format!("{number} {what}"));
        }
    };
    count(summary.unchanged, "there already");
    count(summary.directories, "directories");
    count(summary.symlinks, "symbolic links");
    count(summary.hard_links, "hard links");
    count(
        summary.hard_links_not_kept,
        "hard links became files of their own",
    );
    count(
        summary.skipped.len() as u64,
        "skipped (devices, fifos, sockets, parts of interrupted moves)",
    );
    count(
        summary.xattrs_not_kept,
        "extended attributes not taken by the target",
    );
    let rate = match summary.seconds > 0.0 {
        // A rate for people.
        #[allow(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            clippy::cast_precision_loss
        )]
        true => bytes((summary.bytes as f64 / summary.seconds) as u64),
        false => bytes(0),
    };
    format!(
        "{} in {:.2} s ({rate}/s)",
        parts.join(", "),
        summary.seconds
    )
}

fn complain(summary: &StageSummary) -> Result<(), Failure> {
    if summary.is_complete() {
        return Ok(());
    }
    let shown = summary.failed.iter().take(SHOWN_FAILURES);
    let mut lines: Vec<String> = shown.map(|failed| failed.reason.clone()).collect();
    let more = summary.failed.len().saturating_sub(SHOWN_FAILURES);
    if more > 0 {
        lines.push(format!("and {more} more; --json names all"));
    }
    let end = match summary.stopped {
        true => "stopped by a signal",
        false => "not all was moved",
    };
    lines.push(format!(
        "{end}; what was moved is whole, and the same command goes on"
    ));
    Err(Failure::NotMoved(lines.join("\n")))
}

/// The stages of a `weir run`.
#[derive(Debug)]
pub struct RunStages<'a> {
    /// `--stage-in`.
    pub stage_in: &'a [OsString],
    /// `--drain-to`.
    pub drain_to: Option<&'a Path>,
    /// The mount prefix.
    pub prefix: PathBuf,
}

impl RunStages<'_> {
    /// The same for an instance that runs, which has a prefix of its own; asks it only if there is
    /// something to stage.
    pub fn of_running(self, run_dir: &Path) -> Result<Self, Failure> {
        if self.stage_in.is_empty() && self.drain_to.is_none() {
            return Ok(self);
        }
        let prefix = Connection::to(run_dir)?.welcome().prefix.clone().into();
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
            let status = stage_by_command("in", run_dir, &source, &target)?;
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

    /// Moves everything out; true if it is safe.
    pub fn take_out(&self, run_dir: &Path) -> bool {
        let Some(dir) = self.drain_to else {
            return true;
        };
        match stage_by_command("out", run_dir, &self.prefix, dir) {
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
    run_dir: &Path,
    source: &Path,
    target: &Path,
) -> Result<ExitStatus, Failure> {
    let program = std::env::current_exe().context("finding the weir program")?;
    let words: [&OsStr; 8] = [
        program.as_os_str(),
        "stage".as_ref(),
        direction.as_ref(),
        "-i".as_ref(),
        run_dir.as_os_str(),
        "--".as_ref(),
        source.as_os_str(),
        target.as_os_str(),
    ];
    let words: Vec<OsString> = words.iter().map(|&word| word.to_owned()).collect();
    supervise::run(&words, &[("LD_PRELOAD", OsString::new())])
}
