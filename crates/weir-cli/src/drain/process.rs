//! The process that drains, and its parent's side.
//!
//! Its rounds run in a thread with low priority. While the command runs, a signal only starts a round: a batch system sends
//! signals to all processes of a job before its end. While the rest is moved, the first signal that ends a stage ends the
//! process in order, a later one at once.
//!
//! If a call of the target hangs, this process cannot end. It writes the letter `orders::GIVE_UP` to its standard output,
//! and the parent goes on without waiting for its end.

use std::io::{Read, Write};
use std::os::fd::AsFd;
use std::process::{Child, ChildStdin, ChildStdout, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;
use std::time::{Instant, SystemTime};

use anyhow::{anyhow, Context, Result};
use nix::sys::signal::Signal;
use weir_instance::errln;
use weir_instance::size::bytes;
use weir_mover::drain::Drain;
use weir_mover::{DirectoryTree, InstanceTree, MoveSide, StageOptions, StageSummary, WatchedTree};

use super::analyzers::AnalyzerService;
use super::end_time::EndTime;
use super::hang_guard::HangGuard;
use super::last_analyses;
use super::messages::starting_mark_of;
use super::orders::{await_finish, await_step, give_up, FinishOrder, NextStep};
use super::rounds::{write_status, Rounds, SharedLimit, TargetDrain};
use super::server_watch::{begin_anew, is_served_again, watch_server};
use super::service::{DrainService, DrainedSource, SocketGuard};
use crate::args::{DrainProcessArgs, EarlierDrains};
use crate::exit::{Failure, NOT_MOVED};
use crate::{share, stage, supervise};

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
    /// Starts the process. Must be called from the main thread, like [`supervise::run`].
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
        // Without this mark, commands that run very early do not find the drain.
        let _ = std::fs::write(starting_mark_of(&args.run_dir, child.id()), "");
        let input = child.stdin.take();
        let output = child.stdout.take().expect("it is a pipe");
        Ok(DrainProcess {
            child,
            input,
            output,
            is_finishing: false,
        })
    }

    /// Orders the process to move the rest.
    pub fn begin_to_finish(&mut self) {
        if std::mem::replace(&mut self.is_finishing, true) {
            return;
        }
        let order = FinishOrder {
            is_at_once: supervise::was_told_to_end(),
            warned_at: supervise::warned_at(),
        };
        // If the process is dead, its exit status says so.
        let _ = self
            .input
            .as_mut()
            .map(|input| input.write_all(&order.to_bytes()));
    }

    /// The same, and waits for the end of the process: `Some(true)` if everything is safe, `None` if the process died.
    pub fn finish(mut self) -> Result<Option<bool>> {
        self.begin_to_finish();
        let status = supervise::wait_for_end_or_word(&self.child, self.output.as_fd())?;
        self.input = None;
        // Without a status the process gave up, and has named the calls that hang.
        Ok(status.map_or(Some(false), is_safe))
    }
}

fn is_safe(status: ExitStatus) -> Option<bool> {
    match status.code() {
        Some(0) => Some(true),
        Some(code) if code == i32::from(NOT_MOVED) => Some(false),
        _ => {
            errln!("weir: the process that drained ended with {status}; moving everything again");
            None
        }
    }
}

impl Drop for DrainProcess {
    fn drop(&mut self) {
        // There is no command to wait for, so the process has nothing to finish.
        if self.input.take().is_some() {
            // Waits until the process gives up, or ends.
            let _ = self.output.read(&mut [0]);
            let _ = self.child.try_wait();
        }
    }
}

/// `weir drain-process`.
pub fn drain(args: &DrainProcessArgs) -> Result<(), Failure> {
    let instance = args.instance()?;
    share::allow_open_files();
    let options = StageOptions {
        threads: share::default_threads(),
        laminate: args.laminate,
        ..StageOptions::default()
    };
    let target = std::path::absolute(&args.target).context("the target")?;
    let gate = args.mover_gate(&target);
    let mut tree = WatchedTree::new(DirectoryTree);
    tree.set_stripe(args.stripe_size());
    let watch = tree.watch();
    let limit = SharedLimit::new(args.limit, &tree, &gate);
    let placed = args.placed_nodes(&target)?.map(Arc::new);
    let filter = stage::filter(&args.choice, str::to_owned)?;
    let from = MoveSide::new(&instance, "/");
    let mut drain = Drain::new(from, MoveSide::new(&tree, &*target), filter.clone());
    drain.set_rank(instance.rank().context("asking for the server")?);
    drain.set_share(gate.own_share());
    drain.set_order(args.name_order());
    let roots = args.roots(instance.prefix());
    let hook = args.hook(&roots, &target);
    let analyzers = AnalyzerService::new(instance, roots.clone());
    drain.hold_for_analysis(Arc::clone(&analyzers.table));
    let source = DrainedSource {
        instance,
        filter,
        urgent: drain.urgent_paths(),
        roots,
    };
    let service = DrainService::new(source, &args.target, &tree, analyzers);
    let status_file = args.status_file();
    if hook.is_some() {
        drain.note_events();
    }
    name_files(args, &mut drain)?;
    if let Some(placed) = placed.clone() {
        drain.keep_marks(placed, args.tree.is_none() || args.replace_foreign);
    }
    if args.before == EarlierDrains::LostServers {
        drain.remove_nothing();
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
    let rounds = Rounds {
        service: &service,
        hook: hook.as_ref(),
        status_file: status_file.as_deref(),
        least: args.interval(),
        stop: &stop,
        gate: &gate,
        limit: &limit,
        relief: relief.as_deref(),
        placed: placed.as_deref(),
    };
    std::thread::scope(|scope| {
        let made = scope.spawn(|| {
            share::give_way();
            rounds.make(&mut drain);
        });
        let Some(order) = await_order(args, instance, &socket) else {
            // Without weir there is no instance. Do not wait for the round, which may hang.
            socket.remove();
            give_up(0);
        };
        if order.is_at_once {
            service.analyses().close();
        }
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
        let _ = made.join();
    });
    rounds.add_movers(&mut drain);
    rounds.finish_analyses(&mut drain, options);
    let summary = move_rest(args, &mut drain, &rounds, options);
    if let Some(hook) = hook {
        hook.finish(summary.is_complete());
    }
    last_analyses::dismiss_analyzers(service.analyses());
    if !summary.is_complete() && is_served_again(&instance, &args.run_dir) {
        // Another process can move the rest.
        return Err(anyhow!("the server was started again meanwhile").into());
    }
    stage::complain(&summary)
}

/// Returns when the command has ended; `None` if weir is gone. If a new server replaces the old one before that, this
/// process begins anew.
fn await_order(
    args: &DrainProcessArgs,
    instance: InstanceTree,
    socket: &SocketGuard,
) -> Option<FinishOrder> {
    let server_watch = watch_server(instance, &args.run_dir).ok();
    match await_step(server_watch.as_ref())? {
        NextStep::Finish(order) => Some(order),
        NextStep::BeginAnew => {
            begin_anew(args, socket);
            await_finish()
        }
    }
}

/// Gives a drain the patterns and notes of files that it treats differently.
fn name_files(args: &DrainProcessArgs, drain: &mut TargetDrain<'_>) -> Result<(), Failure> {
    if let Some(first) = args.first_files()? {
        drain.move_first(first);
    }
    if let Some(kept) = args.kept_files()? {
        drain.keep_in_instance(kept);
    }
    if let Some(notes) = args.prefetched_files() {
        drain.follow_prefetched(notes);
    }
    Ok(())
}

/// Moves the rest, and reports the result.
fn move_rest(
    args: &DrainProcessArgs,
    drain: &mut TargetDrain<'_>,
    rounds: &Rounds<'_>,
    options: StageOptions,
) -> StageSummary {
    let (service, progress) = (rounds.service, rounds.begin_progress());
    service.show_finish(&progress);
    let mut summary = stage::show_while(&progress, || drain.finish(options, &progress));
    for path in &mut summary.not_reached {
        *path = service.name_of(path);
    }
    if summary.is_complete() && args.tree.is_some() && !args.laminate {
        hand_over(drain);
    }
    tell_summary(service, &summary);
    service.show_end(&summary);
    if let Some(file) = rounds.status_file {
        write_status(service, file);
    }
    if let Some(hook) = rounds.hook {
        hook.send_events(drain.take_events());
    }
    summary
}

fn hand_over(drain: &mut TargetDrain<'_>) {
    if let Err(error) = drain.hand_over() {
        errln!("weir: drain: names that are removed later may stay: {error}");
    }
}

fn tell_summary(service: &DrainService, summary: &StageSummary) {
    let (files, moved) = service.moved();
    if files > 0 {
        errln!(
            "weir: {files} files ({}) moved while the command ran",
            bytes(moved)
        );
    }
    let evicted = service.evicted();
    if evicted.files > 0 {
        errln!(
            "weir: {} files ({}) evicted from the instance to make room",
            evicted.files,
            bytes(evicted.bytes)
        );
    }
    let analyses = service.analyses().counts();
    if analyses.analysed + analyses.failed > 0 {
        errln!(
            "weir: {} files analysed before they were moved, {} analyses failed",
            analyses.analysed,
            analyses.failed
        );
    }
    errln!("weir: {}", stage::in_words(summary));
}

/// While the command runs, each signal starts a round. Every signal but SIGUSR1 also ends the wait for analyses. While the
/// rest is moved, a signal that neither warns nor ends such a wait stops the drain in order; a later one ends the process
/// by [`give_up`], since a process with a call that hangs would not end otherwise. The first SIGTERM is a warning if the
/// user has set the time from it to the end.
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
        let analyses = service.analyses();
        let releases = signal != WARNING && !analyses.is_closed() && analyses.analyzers() > 0;
        if releases {
            analyses.close();
        }
        if !service.is_finishing() {
            service.want_round();
        } else if signal != WARNING && !warns && !releases {
            stop.store(true, Ordering::Relaxed);
            if first.get_or_insert_with(Instant::now).elapsed() > stage::SAME_SIGNAL {
                give_up(NOT_MOVED);
            }
        }
        false
    })
}
