//! The process that drains, and its parent's side.
//!
//! Its rounds run in a thread with low priority, and signals only make it look at once: a batch system
//! sends them to all processes of a job before its end. Once it finishes, the first of the signals that
//! end a stage ends it in order, a later one at once.
//!
//! A call of the target may hang. Then this process cannot end, and nobody can wait for its end: it writes the
//! letter [`GIVE_UP`] to its standard output, and the parent goes on.

use std::ffi::OsString;
use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result};
use nix::sys::signal::Signal;
use weir_core::elevated::ALIAS_LINK;
use weir_instance::size::bytes;
use weir_mover::drain::{Drain, DrainRound, PendingState, PlacedNodes};
use weir_mover::{
    CallWatch, DirectoryTree, InstanceTree, PathFilter, StageOptions, StageProgress, StageSummary,
    WatchedTree,
};

use super::command::in_words_slow;
use super::end_time::EndTime;
use super::hook::EventHook;
use super::movers::MoverGate;
use super::relief::ServerRelief;
use super::service::DrainService;
use super::share;
use crate::args::DrainProcessArgs;
use crate::exit::{Failure, NOT_MOVED};
use crate::{stage, supervise};

/// Written to the standard input of the process when the command has ended, and after it the time at which the
/// batch system has warned of the end of the job: milliseconds since 1970, 8 bytes, little-endian; 0: it has not.
/// If that is closed without it, weir is gone, and the instance with it.
const FINISH: u8 = b'F';
/// Written to the standard output of the process when it ends though a call may hang.
const GIVE_UP: u8 = b'G';
/// The time for which a file has not changed before it is copied. Longer than a tick of a clock, so that
/// a change after the copy shows.
const SETTLED: Duration = Duration::from_secs(1);
/// The same while a server has little room, in an instance of one: the clock of its times is that of this
/// process.
const SOON_SETTLED: Duration = Duration::from_millis(100);
/// The part of a processor that looks take is one of this.
const LOOK_SHARE: u32 = 20;
/// The shortest time between two rounds after one that failed.
const SHORTEST_RETRY: Duration = Duration::from_secs(1);
/// The longest.
const LONGEST_INTERVAL: Duration = Duration::from_secs(60);
/// The time for which calls may hang once a signal has ended the drain.
const STOP_TIME: Duration = Duration::from_secs(10);
/// The time between two looks at calls that hang.
const WATCH_INTERVAL: Duration = Duration::from_millis(250);
/// In the run directory, followed by the number of an elevated tree: the files that its drains have moved.
const MARKS_FILE: &str = "moved";
/// Sent by batch systems some time before the end of a job.
const WARNING: Signal = Signal::SIGUSR1;

/// The process that drains beside a command, seen by its parent.
#[derive(Debug)]
pub struct DrainProcess {
    child: Child,
    /// Closed when the parent ends or gives up.
    input: Option<ChildStdin>,
    output: ChildStdout,
    is_finishing: bool,
}

impl DrainProcess {
    /// Starts it. From the main thread, as [`supervise::run`].
    pub fn start(
        args: &DrainProcessArgs,
        deaf_to: &'static [Signal],
    ) -> std::io::Result<DrainProcess> {
        let mut start = Command::new(std::env::current_exe()?);
        start
            .arg("drain-process")
            .args(args.words())
            .env("LD_PRELOAD", "")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        let mut child = supervise::spawn(&mut start, deaf_to)?;
        let input = child.stdin.take();
        let output = child.stdout.take().expect("it is a pipe");
        Ok(DrainProcess {
            child,
            input,
            output,
            is_finishing: false,
        })
    }

    /// Has it move the rest.
    pub fn begin_to_finish(&mut self) {
        if std::mem::replace(&mut self.is_finishing, true) {
            return;
        }
        let since_1970 = |time: SystemTime| time.duration_since(UNIX_EPOCH).unwrap_or_default();
        let warned_ms = supervise::warned_at().map_or(0, |time| since_1970(time).as_millis());
        let warned_ms = u64::try_from(warned_ms).unwrap_or(0).to_le_bytes();
        let message = [&[FINISH], &warned_ms[..]].concat();
        // A process that is dead shows in its status.
        let _ = self.input.as_mut().map(|input| input.write_all(&message));
    }

    /// The same, and waits for its end: `Some(true)` if everything is safe, `None` if it died.
    pub fn finish(mut self) -> Result<Option<bool>> {
        self.begin_to_finish();
        let status = supervise::wait_for_end_or_word(&self.child, self.output.as_fd())?;
        self.input = None;
        // Without a status it has said what hangs.
        Ok(status.map_or(Some(false), is_safe))
    }
}

fn is_safe(status: ExitStatus) -> Option<bool> {
    match status.code() {
        Some(0) => Some(true),
        Some(code) if code == i32::from(NOT_MOVED) => Some(false),
        _ => {
            eprintln!(
                "weir: the process that drained ended with {status}; moving everything again"
            );
            None
        }
    }
}

impl Drop for DrainProcess {
    fn drop(&mut self) {
        // Without a command to wait for there is nothing to finish.
        if self.input.take().is_some() {
            // It says that it ends, or ends.
            let _ = self.output.read(&mut [0]);
            let _ = self.child.try_wait();
        }
    }
}

/// `weir drain-process`.
pub fn drain(args: &DrainProcessArgs) -> Result<(), Failure> {
    let instance = InstanceTree::attach(&args.run_dir)
        .with_context(|| format!("cannot reach the server of {}", args.run_dir.display()))?;
    let instance = match args.tree {
        None => instance,
        Some(number) => instance.elevated(number).context("no such elevated tree")?,
    };
    stage::allow_open_files();
    let options = StageOptions {
        threads: stage::default_threads(),
        laminate: args.laminate,
        ..StageOptions::default()
    };
    let target = std::path::absolute(&args.target).context("the target")?;
    let gate = args.mover_gate(&target);
    let tree = WatchedTree::new(DirectoryTree);
    let watch = tree.watch();
    let target = (&tree, &*target);
    let filter = stage::filter(&args.choice, str::to_owned)?;
    let mut drain = Drain::new((&instance, Path::new("/")), target, filter);
    drain.set_rank(instance.rank().context("asking for the server")?);
    let roots = args.roots(instance.prefix());
    let hook = args.hook(&roots, target.1);
    let service = DrainService::new(roots, &args.target, Arc::clone(&watch));
    let status_file = args.status_file();
    if hook.is_some() {
        drain.note_events();
    }
    if let Some(first) = args.first_files()? {
        drain.move_first(first);
    }
    let placed = args.placed_nodes()?;
    if let Some(placed) = placed.clone() {
        drain.keep_marks(placed, args.replace_foreign);
    }
    let socket = service.listen(&args.run_dir)?;
    let relief = args.relief(&instance)?;
    let stop = Arc::new(AtomicBool::new(false));
    let end_time = Arc::new(args.end_time());
    hear_signals(&service, &stop, &end_time)?;
    if let Some(relief) = relief.clone() {
        let service = Arc::clone(&service);
        std::thread::spawn(move || relief.report(&service));
    }
    std::thread::scope(|scope| {
        let rounds = scope.spawn(|| {
            share::give_way();
            let rounds = Rounds {
                service: &service,
                hook: hook.as_ref(),
                status_file: status_file.as_deref(),
                least: args.interval(),
                stop: &stop,
                gate: &gate,
                relief: relief.as_deref(),
                placed: placed.as_deref(),
            };
            rounds.make(&mut drain);
        });
        let Some(order) = await_finish() else {
            // Without weir there is no instance; a round that hangs is not waited for.
            socket.remove();
            give_up(0);
        };
        if let Some(warned_at) = order.warned_at {
            end_time.warn(warned_at);
        }
        service.begin_to_finish();
        let hang_guard = HangGuard {
            service: Arc::clone(&service),
            watch,
            stop: Arc::clone(&stop),
            limit: args.stuck_limit(),
            end_time,
        };
        std::thread::spawn(move || hang_guard.guard_end());
        // A panic has ended the process.
        let _ = rounds.join();
    });
    add_movers(&mut drain, &gate, &service);
    let progress = Arc::new(StageProgress {
        stop,
        ..StageProgress::default()
    });
    service.show_finish(&progress);
    let mut summary = stage::show_while(&progress, || drain.finish(options, &progress));
    for path in &mut summary.not_reached {
        *path = service.name_of(path);
    }
    if summary.is_complete() && args.tree.is_some() && !args.laminate {
        hand_over(&mut drain);
    }
    tell_summary(&service, &summary);
    service.show_end(&summary);
    if let Some(file) = &status_file {
        write_status(&service, file);
    }
    if let Some(hook) = hook {
        hook.send_events(drain.take_events());
        hook.finish(summary.is_complete());
    }
    stage::complain(&summary)
}

fn hand_over(drain: &mut TargetDrain<'_>) {
    if let Err(error) = drain.hand_over() {
        eprintln!("weir: drain: names that are removed later may stay: {error}");
    }
}

/// Ends this process, though a call may hang.
fn give_up(code: u8) -> ! {
    // If nobody reads it, weir is gone.
    let _ = std::io::stdout().write_all(&[GIVE_UP]);
    let _ = std::io::stdout().flush();
    // A thread in a call that hangs keeps what this process has open: also the output of weir, to whose end
    // another program of a pipeline may listen.
    if let Ok(nothing) = File::options().read(true).write(true).open("/dev/null") {
        let _ = nix::unistd::dup2_stdout(&nothing);
        let _ = nix::unistd::dup2_stderr(&nothing);
    }
    std::process::exit(code.into())
}

/// Ends the process if its target hangs after the command has ended.
struct HangGuard {
    service: Arc<DrainService>,
    watch: Arc<CallWatch>,
    stop: Arc<AtomicBool>,
    /// `None`: it waits as long as it takes.
    limit: Option<Duration>,
    end_time: Arc<EndTime>,
}

impl HangGuard {
    fn guard_end(&self) -> ! {
        let began = Instant::now();
        let mut stopped: Option<Instant> = None;
        loop {
            std::thread::sleep(WATCH_INTERVAL);
            // Since the command ended: what hung before may come back.
            let hung = self.watch.time_without_return().min(began.elapsed());
            if self.end_time.is_near() && !self.stop.swap(true, Ordering::Relaxed) {
                eprintln!(
                    "weir: drain: the job ends soon: no more is moved to {}",
                    self.service.target().display()
                );
            }
            if self.stop.load(Ordering::Relaxed) {
                stopped.get_or_insert_with(Instant::now);
            }
            let is_stuck = self.limit.is_some_and(|limit| hung >= limit);
            let is_stopped =
                stopped.is_some_and(|stopped| hung.min(stopped.elapsed()) >= STOP_TIME);
            if is_stuck || is_stopped {
                self.name_hanging_calls(hung);
                give_up(NOT_MOVED);
            }
        }
    }

    fn name_hanging_calls(&self, hung: Duration) {
        eprintln!(
            "weir: drain: no call of {} has returned for {} s; at least {} files are not safe, and the \
             names that changed after them",
            self.service.target().display(),
            hung.as_secs(),
            self.service.unsafe_files()
        );
        let calls = self.watch.slow_calls(WATCH_INTERVAL);
        for call in calls.iter().take(stage::SHOWN_FAILURES) {
            eprintln!("weir: drain: {}", in_words_slow(call));
        }
    }
}

/// The order to move the rest.
struct FinishOrder {
    /// The time of the batch system's warning, if there was one.
    warned_at: Option<SystemTime>,
}

/// Returns when the command has ended; `None` if weir is gone.
fn await_finish() -> Option<FinishOrder> {
    let mut message = [0; 9];
    std::io::stdin().read_exact(&mut message).ok()?;
    let [FINISH, warned_ms @ ..] = message else {
        return None;
    };
    let warned_ms = u64::from_le_bytes(warned_ms);
    let warned_at = UNIX_EPOCH + Duration::from_millis(warned_ms);
    Some(FinishOrder {
        warned_at: (warned_ms > 0).then_some(warned_at),
    })
}

/// A drain of an instance to a directory.
type TargetDrain<'t> = Drain<'t, InstanceTree, WatchedTree<DirectoryTree>>;

/// Adds the movers that have come.
fn add_movers(drain: &mut TargetDrain<'_>, gate: &MoverGate, service: &DrainService) {
    for mover in gate.take_arrived() {
        service.count_mover();
        drain.add_mover(Box::new(mover));
    }
}

/// The rounds of a drain.
struct Rounds<'r> {
    service: &'r DrainService,
    hook: Option<&'r EventHook>,
    status_file: Option<&'r Path>,
    /// The least time between two.
    least: Duration,
    stop: &'r Arc<AtomicBool>,
    gate: &'r MoverGate,
    /// Of an elevated tree.
    relief: Option<&'r ServerRelief>,
    /// Of an elevated tree.
    placed: Option<&'r PlacedNodes>,
}

impl Rounds<'_> {
    fn make(&self, drain: &mut TargetDrain<'_>) {
        let threads = share::threads();
        let mut interval = self.least;
        let mut told: Option<String> = None;
        loop {
            let progress = Arc::new(StageProgress {
                stop: Arc::clone(self.stop),
                ..StageProgress::default()
            });
            let due = Instant::now() + interval;
            if !self.service.begin_round(due, &progress) {
                return;
            }
            add_movers(drain, self.gate, self.service);
            self.evict(drain);
            if let Some(relief) = self.relief {
                drain.limit_rounds(relief.round_limit());
            }
            let round = drain.round(SystemTime::now() - self.settled(), threads, &progress);
            self.evict(drain);
            let look = Duration::from_secs_f64(round.walk_seconds) * LOOK_SHARE;
            interval = match round.has_failed() {
                true => (interval * 2).clamp(SHORTEST_RETRY, LONGEST_INTERVAL),
                false if round.is_cut => Duration::ZERO,
                false => self.least,
            };
            if !round.is_cut {
                interval = interval.max(look);
            }
            tell_failure(&round, &mut told);
            self.tell_lost_marks();
            self.service.end_round(round);
            if let Some(hook) = self.hook {
                hook.send_events(drain.take_events());
            }
            if let Some(file) = self.status_file {
                write_status(self.service, file);
            }
        }
    }

    fn tell_lost_marks(&self) {
        if let Some(error) = self.placed.and_then(PlacedNodes::take_failure) {
            eprintln!(
                "weir: drain: cannot keep which files it has moved: {error}; if this process is killed, the \
                 next one may take them for somebody else's"
            );
        }
    }

    /// The time for which a file that is copied has not changed.
    fn settled(&self) -> Duration {
        let relief = self.relief;
        match relief.is_some_and(|relief| relief.is_alone() && relief.is_pressed()) {
            true => SOON_SETTLED,
            false => SETTLED,
        }
    }

    fn evict(&self, drain: &mut TargetDrain<'_>) {
        if let Some(relief) = self.relief {
            if let Err(error) = relief.evict(drain, self.service) {
                eprintln!("weir: drain: {error}");
            }
        }
    }
}

/// Says why files are not moved, once for each reason.
fn tell_failure(round: &DrainRound, told: &mut Option<String>) {
    let failures = || {
        let pending = round.pending.iter();
        pending.filter_map(|file| match &file.state {
            PendingState::Failed { reason } => Some(reason),
            _ => None,
        })
    };
    let first = failures().next().cloned();
    match &first {
        Some(reason) if told.as_ref() != Some(reason) => eprintln!(
            "weir: drain: {} files could not be moved, and are tried again: {reason}",
            failures().count()
        ),
        None if told.is_some() => eprintln!("weir: drain: what could not be moved is moved"),
        _ => {}
    }
    *told = first;
}

fn tell_summary(service: &DrainService, summary: &StageSummary) {
    let (files, moved) = service.moved();
    if files > 0 {
        eprintln!(
            "weir: {files} files ({}) moved while the command ran",
            bytes(moved)
        );
    }
    let evicted = service.evicted();
    if evicted.files > 0 {
        eprintln!(
            "weir: {} files ({}) evicted from the instance to make room",
            evicted.files,
            bytes(evicted.bytes)
        );
    }
    eprintln!("weir: {}", stage::in_words(summary));
}

/// Writes the state into a file, which always has a whole one. What fails is told once.
fn write_status(service: &DrainService, file: &Path) {
    static IS_TOLD: AtomicBool = AtomicBool::new(false);
    let mut part = file.as_os_str().to_owned();
    part.push(".part");
    let text = serde_json::to_string(&service.status_now()).unwrap_or_default() + "\n";
    let written = std::fs::write(&part, text).and_then(|()| std::fs::rename(&part, file));
    if let Err(error) = written {
        if !IS_TOLD.swap(true, Ordering::Relaxed) {
            eprintln!("weir: drain.status_file: {}: {error}", file.display());
        }
    }
}

/// A signal begins a round. Unless it is a warning it ends the finish in order, and a later one does at once:
/// not as a signal would, since the process may then not end. The first SIGTERM warns, if the user has said how
/// long before the end it comes.
fn hear_signals(
    service: &Arc<DrainService>,
    stop: &Arc<AtomicBool>,
    end_time: &Arc<EndTime>,
) -> Result<()> {
    let (service, stop) = (Arc::clone(service), Arc::clone(stop));
    let end_time = Arc::clone(end_time);
    let ending = supervise::not_ignored(&stage::ENDING);
    let mut first: Option<Instant> = None;
    stage::on_signals(ending.chain([WARNING]), move |signal| {
        let warns = supervise::WARNINGS.contains(&signal) && end_time.warn(SystemTime::now());
        if !service.is_finishing() {
            service.want_round();
        } else if signal != WARNING && !warns {
            stop.store(true, Ordering::Relaxed);
            if first.get_or_insert_with(Instant::now).elapsed() > stage::SAME_SIGNAL {
                give_up(NOT_MOVED);
            }
        }
        false
    })
}

impl DrainProcessArgs {
    /// The paths by which programs name the root of the tree, of which this is one.
    fn roots(&self, prefix: &Path) -> Vec<PathBuf> {
        let link = self
            .tree
            .map(|number| self.run_dir.join(format!("{ALIAS_LINK}{number}")));
        let alias = link.and_then(|link| std::fs::read_link(link).ok());
        [Some(prefix.to_owned()), alias]
            .into_iter()
            .flatten()
            .collect()
    }

    /// The relief of the servers, of an elevated tree.
    fn relief(&self, instance: &InstanceTree) -> Result<Option<Arc<ServerRelief>>> {
        let relief = self.tree.map(|tree| {
            let patience = self.stuck_limit().unwrap_or(Duration::MAX);
            ServerRelief::new(*instance, tree, self.evict_percent, patience).map(Arc::new)
        });
        relief.transpose().context("asking for the servers")
    }

    /// The nodes that drains of this elevated tree have put on its target. They are kept beside the journal of
    /// this node's server, and go with it.
    fn placed_nodes(&self) -> Result<Option<Arc<PlacedNodes>>> {
        let Some(tree) = self.tree else {
            return Ok(None);
        };
        let path = self.run_dir.join(format!("{MARKS_FILE}{tree}"));
        let opened = PlacedNodes::open(&path).with_context(|| path.display().to_string());
        Ok(Some(Arc::new(opened?)))
    }

    /// The user's program that hears of events. Without it everything is moved all the same.
    fn hook(&self, roots: &[PathBuf], target: &Path) -> Option<EventHook> {
        let started = EventHook::start(self.hook.as_deref()?, &roots[0], target);
        let told = |error: &anyhow::Error| eprintln!("weir: {error:#}; it hears nothing");
        started.inspect_err(told).ok()
    }

    /// The file that has the state of this drain.
    fn status_file(&self) -> Option<PathBuf> {
        let mut name = self.status_file.clone()?.into_os_string();
        if let Some(tree) = self.tree {
            name.push(format!(".{tree}"));
        }
        Some(name.into())
    }

    /// The movers of other nodes; without them this node can do it all.
    fn mover_gate(&self, target: &Path) -> Arc<MoverGate> {
        MoverGate::open(&self.run_dir, target, self.tree).unwrap_or_else(|error| {
            eprintln!("weir: drain: this node moves everything: {error:#}");
            Arc::default()
        })
    }

    /// The files that are moved before all others.
    fn first_files(&self) -> Result<Option<PathFilter>, Failure> {
        let filter = || PathFilter::new(&self.first, &[]);
        let filter = (!self.first.is_empty()).then(filter).transpose();
        filter.map_err(|error| Failure::Refused(format!("--first: {error}")))
    }

    /// The end of the job, as far as it is known.
    fn end_time(&self) -> EndTime {
        let warning = (self.warning_s > 0).then(|| Duration::from_secs(self.warning_s.into()));
        EndTime::new(warning, std::env::var("SLURM_JOB_END_TIME").ok().as_deref())
    }

    fn interval(&self) -> Duration {
        Duration::from_secs(self.interval_s.into())
    }

    fn stuck_limit(&self) -> Option<Duration> {
        (self.stuck_s > 0).then(|| Duration::from_secs(self.stuck_s.into()))
    }

    fn words(&self) -> Vec<OsString> {
        let mut words = self.choice.words();
        words.extend(["--interval-s".into(), self.interval_s.to_string().into()]);
        words.extend(["--stuck-s".into(), self.stuck_s.to_string().into()]);
        words.extend([
            "--evict-percent".into(),
            self.evict_percent.to_string().into(),
        ]);
        for (option, path) in [("--hook", &self.hook), ("--status-file", &self.status_file)] {
            words.extend(path.iter().flat_map(|path| [option.into(), path.into()]));
        }
        words.extend(["--warning-s".into(), self.warning_s.to_string().into()]);
        let first = self.first.iter();
        words.extend(first.map(|pattern| format!("--first={pattern}").into()));
        words.extend(self.laminate.then(|| "--laminate".into()));
        words.extend(self.replace_foreign.then(|| "--replace-foreign".into()));
        if let Some(tree) = self.tree {
            words.extend(["--tree".into(), tree.to_string().into()]);
        }
        words.extend([
            "--".into(),
            self.run_dir.clone().into(),
            self.target.clone().into(),
        ]);
        words
    }
}
