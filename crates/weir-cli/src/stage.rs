//! `weir stage`: moving files into an instance and out of it, by [`weir_mover`] on all nodes.

mod follow;
mod helpers;
mod paths;

use std::io::IsTerminal;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use nix::sys::signal::Signal;
use weir_config::{Config, Environment};
use weir_instance::errln;
use weir_instance::size::bytes;
use weir_mover::sources::{check_parent, make_parents, pair, SourcesRefused};
use weir_mover::tree::FileTree;
use weir_mover::{
    manifest, stage_chosen, DirectoryTree, InstanceTree, PathFilter, StageOptions, StagePair,
    StageProgress, StageSummary,
};

use crate::args::{ChoiceArgs, StageArgs, StageDirection, StageFiles};
use crate::exit::Failure;
use crate::locate::live_run_dir;
use crate::{share, supervise};
use follow::follow;
use helpers::StageHelpers;
use paths::{ArgumentPaths, ElevatedSources};

/// The failures that are printed; the summary has all of them.
pub const SHOWN_FAILURES: usize = 20;
/// How often the progress bar is drawn.
const DRAW: Duration = Duration::from_millis(100);
/// The signals that end a stage.
pub const ENDING: [Signal; 3] = [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP];
/// How long the copies of one signal may arrive: a batch system sends it to all processes of a job, and
/// `weir run` passes on its own.
pub const SAME_SIGNAL: Duration = Duration::from_secs(1);
/// The longest time for which the end of a thread that hears signals is waited for.
const END_TIME: Duration = Duration::from_millis(200);

/// `weir stage`.
pub fn stage(args: &StageArgs, config: &Config, env: &Environment) -> Result<(), Failure> {
    let (files, is_in, follows) = match &args.direction {
        StageDirection::In(args) => (&args.files, true, args.follow),
        StageDirection::Out(files) => (files, false, false),
    };
    let run_dir = live_run_dir(files.instance.as_deref(), config, env)?;
    let instance = InstanceTree::attach(&run_dir)
        .with_context(|| format!("cannot reach the server of {}", run_dir.display()))?;
    let threads = files.threads.map(usize::from);
    let helpers = StageHelpers::new(&run_dir, &instance, is_in, options(files), threads)?;
    let helpers = helpers.as_ref();
    let paths = ArgumentPaths::new(instance.prefix(), &run_dir)?;
    let below = |pattern: &str| match paths.below(Path::new(pattern)) {
        Some(path) => path.to_string_lossy().into_owned(),
        None => format!("/{}", pattern.trim_start_matches('/')),
    };
    let outside_pattern = |pattern: &str| {
        let path = paths.here.join(pattern);
        path.to_string_lossy().into_owned()
    };
    let (outside, inside) = (
        |path: &Path| paths.outside(path),
        |path: &Path| paths.inside(path),
    );
    let mut summary = if is_in {
        paths.check_patterns(&files.choice)?;
        let elevated = ElevatedSources::find(&run_dir, &instance)?;
        let elevated = elevated.pairs();
        let rules = PathRules {
            source: &outside,
            check: &|source, filter| elevated.check(source, filter),
            target: &inside,
            pattern: &outside_pattern,
            make_parents: true,
        };
        match follows {
            true => follow(files, &DirectoryTree, &instance, &rules, helpers)?,
            false => run(files, &DirectoryTree, &instance, &rules, helpers)?,
        }
    } else {
        let rules = PathRules {
            source: &inside,
            check: &|_, _| Ok(()),
            target: &outside,
            pattern: &below,
            make_parents: false,
        };
        run(files, &instance, &DirectoryTree, &rules, helpers)?
    };
    if let Some(helpers) = helpers {
        helpers.name_nodes(&mut summary);
    }
    let json = serde_json::to_string(&summary).context("the summary")?;
    if let Some(file) = &files.summary {
        std::fs::write(file, &json).with_context(|| file.display().to_string())?;
    }
    match files.json {
        true => outln!("{json}"),
        false => errln!("weir: {}", in_words(&summary)),
    }
    complain(&summary)
}

/// How the paths of a direction are read.
struct PathRules<'a> {
    source: &'a dyn Fn(&Path) -> Result<PathBuf, Failure>,
    /// Refuses a source of which the filter chooses files that are not to be moved.
    check: &'a dyn Fn(&Path, &PathFilter) -> Result<(), Failure>,
    target: &'a dyn Fn(&Path) -> Result<PathBuf, Failure>,
    /// The pattern of paths of the source's tree that a pattern of the command line is.
    pattern: &'a dyn Fn(&str) -> String,
    /// Directories above a target are created.
    make_parents: bool,
}

/// The pairs that are to be moved; everything that is wrong is said before anything moves.
fn pairs<S: FileTree, T: FileTree>(
    args: &StageFiles,
    from: &S,
    to: &T,
    rules: &PathRules<'_>,
    filter: &PathFilter,
) -> Result<Vec<StagePair>, Failure> {
    let pairs = if let Some(file) = &args.manifest {
        from_manifest(file, from, to, rules, filter)?
    } else {
        let (sources, target) = sources_and_target(args, rules, filter)?;
        if !rules.make_parents {
            check_parent(to, &target)?;
        }
        pair(from, &sources, to, &target)?
    };
    make_parents(to, &pairs)?;
    Ok(pairs)
}

/// The paths of the command line, as those of the trees.
fn sources_and_target(
    args: &StageFiles,
    rules: &PathRules<'_>,
    filter: &PathFilter,
) -> Result<(Vec<PathBuf>, PathBuf), Failure> {
    let (target, sources) = args.paths.split_last().expect("at least two");
    let sources = sources.iter().map(|path| {
        let source = (rules.source)(path)?;
        (rules.check)(&source, filter)?;
        Ok::<_, Failure>(source)
    });
    let sources = sources.collect::<Result<Vec<_>, _>>()?;
    Ok((sources, (rules.target)(target)?))
}

/// The pairs of a manifest; all bad lines are named.
fn from_manifest<S: FileTree, T: FileTree>(
    file: &Path,
    from: &S,
    to: &T,
    rules: &PathRules<'_>,
    filter: &PathFilter,
) -> Result<Vec<StagePair>, Failure> {
    let text = std::fs::read(file).with_context(|| file.display().to_string())?;
    let mut bad = Vec::new();
    let mut pairs = Vec::new();
    let read_lines = manifest::parse(&text);
    bad.extend(read_lines.bad.into_iter().map(|bad| (bad.line, bad.reason)));
    for (line, words) in read_lines.pairs {
        let checked = (rules.source)(&words.source).and_then(|source| {
            (rules.check)(&source, filter)?;
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
            Ok(pair) => pairs.push((line, pair)),
            Err(why) => bad.push((line, why.to_string())),
        }
    }
    let clashes = manifest::find_clashes(from, &pairs).into_iter();
    bad.extend(clashes.map(|bad| (bad.line, bad.reason)));
    if bad.is_empty() {
        return Ok(pairs.into_iter().map(|(_, pair)| pair).collect());
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
    helpers: Option<&StageHelpers>,
) -> Result<StageSummary, Failure> {
    let filter = filter(&args.choice, rules.pattern)?;
    let pairs = pairs(args, from, to, rules, &filter)?;
    if let Some(helpers) = helpers {
        helpers.set_pairs(&pairs);
    }
    let team = helpers.map(StageHelpers::team);
    let options = options(args);
    let progress = StageProgress::default();
    stop_on_signals(&progress.stop)?;
    share::allow_open_files();
    Ok(show_while(&progress, || {
        stage_chosen(from, to, &pairs, options, &progress, &filter, team.as_ref())
    }))
}

fn options(args: &StageFiles) -> StageOptions {
    StageOptions {
        threads: args
            .threads
            .map_or_else(share::default_threads, usize::from),
        verify: args.verify,
        laminate: args.laminate,
        ..StageOptions::default()
    }
}

/// The choice of paths of a source's tree.
pub fn filter(
    choice: &ChoiceArgs,
    pattern: impl Fn(&str) -> String,
) -> Result<PathFilter, Failure> {
    let patterns = |given: &[String]| given.iter().map(|one| pattern(one)).collect::<Vec<_>>();
    PathFilter::new(&patterns(&choice.only), &patterns(&choice.skip))
        .map_err(|error| Failure::Refused(format!("--only, --skip: {error}")))
}

/// Shows the progress of a stage on a terminal.
pub fn show_while(progress: &StageProgress, stage: impl FnOnce() -> StageSummary) -> StageSummary {
    let is_done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        if std::io::stderr().is_terminal() {
            scope.spawn(|| draw(progress, &is_done));
        }
        let summary = stage();
        is_done.store(true, Ordering::Relaxed);
        summary
    })
}

/// The first signal ends the stage in order, a later one at once. Those that were ignored when this
/// process began (nohup) stay so.
fn stop_on_signals(stop: &Arc<AtomicBool>) -> Result<()> {
    let stop = Arc::clone(stop);
    on_signals(supervise::not_ignored(&ENDING), move |_| {
        stop.store(true, Ordering::Relaxed);
        true
    })?;
    Ok(())
}

/// The thread that hears signals.
#[derive(Debug)]
pub struct SignalThread {
    handle: signal_hook::iterator::Handle,
    thread: JoinHandle<()>,
}

impl SignalThread {
    /// Ends the thread, unless it does not end within `END_TIME`.
    pub fn stop_hearing(&self) {
        self.handle.close();
        let until = Instant::now() + END_TIME;
        while !self.thread.is_finished() && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

/// Calls `act` at each signal. It returns true if the process is about to end for it: then a later one
/// ends it at once.
pub fn on_signals(
    heard: impl Iterator<Item = Signal>,
    mut act: impl FnMut(Signal) -> bool + Send + 'static,
) -> Result<SignalThread> {
    let heard = heard.map(|signal| signal as i32);
    let mut signals = signal_hook::iterator::Signals::new(heard).context("signals")?;
    let handle = signals.handle();
    let thread = std::thread::spawn(move || {
        let mut first: Option<Instant> = None;
        for number in signals.forever() {
            let Ok(signal) = Signal::try_from(number) else {
                continue;
            };
            if act(signal) && first.get_or_insert_with(Instant::now).elapsed() > SAME_SIGNAL {
                let _ = signal_hook::low_level::emulate_default_handler(number);
            }
        }
    });
    Ok(SignalThread { handle, thread })
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
pub fn in_words(summary: &StageSummary) -> String {
    let by = match summary.nodes.len() {
        0 | 1 => String::new(),
        nodes => format!(" by {nodes} nodes"),
    };
    let mut parts = vec![format!(
        "{} files ({}) moved{by}",
        summary.files,
        bytes(summary.bytes)
    )];
    let mut count = |number: u64, what: &str| {
        if number > 0 {
            parts.push(format!("{number} {what}"));
        }
    };
    count(summary.unchanged, "there already");
    count(
        summary.open,
        "of them still open for writing, moved as they were",
    );
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
        summary.not_emptied.len() as u64,
        "directories stay on the target, which were removed and are not empty there",
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

pub fn complain(summary: &StageSummary) -> Result<(), Failure> {
    if summary.is_complete() {
        return Ok(());
    }
    let shown = summary.failed.iter().take(SHOWN_FAILURES);
    let mut lines: Vec<String> = shown.map(|failed| failed.reason.clone()).collect();
    let more = summary.failed.len().saturating_sub(SHOWN_FAILURES);
    if more > 0 {
        lines.push(format!("and {more} more; --json names all"));
    }
    let left = summary.not_reached.iter().take(SHOWN_FAILURES);
    lines.extend(left.map(|path| format!("{}: not safe", path.display())));
    let more = summary.not_reached.len().saturating_sub(SHOWN_FAILURES);
    if more > 0 {
        lines.push(format!("and {more} more are not safe"));
    }
    let end = match summary.stopped {
        true => "stopped before the end",
        false => "not all was moved",
    };
    lines.push(format!(
        "{end}; what was moved is whole, and the same command goes on"
    ));
    Err(Failure::NotMoved(lines.join("\n")))
}
