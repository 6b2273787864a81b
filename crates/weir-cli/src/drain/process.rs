//! The process that drains.
//!
//! Its rounds run in a thread with low priority. While the command runs, a signal only starts a round: a batch system sends
//! signals to all processes of a job before its end. While the rest is moved, the first signal that ends a stage ends the
//! process in order, a later one at once.
//!
//! If a call of the target hangs, this process cannot end. It says so on its standard output ([`DrainWord`]), and its
//! parent ([`started`](super::started)) does not wait for its end: another process goes on, or the drain is given up.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use anyhow::{anyhow, Context, Result};
use nix::sys::signal::Signal;
use weir_instance::errln;
use weir_instance::size::bytes;
use weir_mover::drain::Drain;
use weir_mover::{
    CallWatch, DirectoryTree, InstanceTree, MoveSide, StageOptions, StageSummary, WatchedTree,
};

use super::analyzers::AnalyzerService;
use super::end_time::EndTime;
use super::hang_guard::HangGuard;
use super::hung_calls::HungCalls;
use super::last_analyses;
use super::orders::{begin_to_leave, leave, DrainWord, NextStep, OrderInput};
use super::rounds::{write_status, Rounds, SharedLimit, TargetDrain};
use super::server_watch::{is_served_again, watch_server};
use super::service::{DrainService, DrainedSource};
use super::succession::Succession;
use crate::args::{DrainProcessArgs, EarlierDrains};
use crate::exit::Failure;
use crate::stage::SignalThread;
use crate::{share, stage, supervise};

/// The interval between two checks for the calls of earlier processes.
const LOOK: Duration = Duration::from_millis(250);

/// Sent by batch systems some time before the end of a job.
const WARNING: Signal = Signal::SIGUSR1;

/// `weir drain-process`.
pub fn drain(args: &DrainProcessArgs) -> Result<(), Failure> {
    let drained = drain_all(args);
    // From now on no other process takes over.
    let leaving = begin_to_leave();
    if !args.is_successor {
        std::mem::forget(leaving);
        return drained;
    }
    let code = drained.as_ref().map_or_else(Failure::code, |()| 0);
    if let Err(failure) = drained {
        // Before the word: the process that waits for it may end at once.
        for line in failure.to_string().lines() {
            errln!("weir: {line}");
        }
    }
    leave(DrainWord::Ended(code))
}

fn drain_all(args: &DrainProcessArgs) -> Result<(), Failure> {
    let instance = args.instance()?;
    share::allow_open_files();
    let options = options_at_end(args);
    let target = std::path::absolute(&args.target).context("the target")?;
    let gate = args.mover_gate(&target);
    let mut tree = WatchedTree::new(DirectoryTree);
    tree.set_stripe(args.stripe_size());
    let watch = tree.watch();
    let hung = HungCalls::avoid(&args.run_dir, &target, tree.avoided(), args.is_successor)
        .context("the calls of earlier processes")?;
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
    let service = DrainService::new(source, &args.target, &tree, Arc::clone(&hung), analyzers);
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
    let _socket = service.listen(&args.run_dir)?;
    let relief = args.relief(&instance)?;
    let told = ToldParts {
        service: Arc::clone(&service),
        stop: Arc::default(),
        end_time: Arc::new(args.end_time()),
        orders: Arc::default(),
        hung,
    };
    let (stop, hung) = (&told.stop, &told.hung);
    let succession = told.watch_calls(args, watch)?;
    if let Some(relief) = relief.clone() {
        let service = Arc::clone(&service);
        std::thread::spawn(move || relief.report(&service));
    }
    let rounds = Rounds {
        service: &service,
        hook: hook.as_ref(),
        status_file: status_file.as_deref(),
        least: args.interval(),
        stop,
        gate: &gate,
        limit: &limit,
        hung,
        relief: relief.as_deref(),
        placed: placed.as_deref(),
    };
    std::thread::scope(|scope| {
        let made = scope.spawn(|| {
            share::give_way();
            rounds.make(&mut drain);
        });
        told.await_order(args, instance, &succession);
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

fn options_at_end(args: &DrainProcessArgs) -> StageOptions {
    StageOptions {
        threads: share::default_threads(),
        laminate: args.laminate,
        ..StageOptions::default()
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

/// The parts of a drain that act on signals, orders and calls that hang.
#[derive(Clone)]
struct ToldParts {
    service: Arc<DrainService>,
    stop: Arc<AtomicBool>,
    end_time: Arc<EndTime>,
    orders: Arc<OrderInput>,
    hung: Arc<HungCalls>,
}

impl ToldParts {
    /// Begins to watch the calls of the target, and to hear signals.
    fn watch_calls(
        &self,
        args: &DrainProcessArgs,
        watch: Arc<CallWatch>,
    ) -> Result<Arc<Succession>> {
        let succession = Arc::new(Succession::new(args, &watch, &self.hung, &self.orders));
        succession.set_signals(self.hear_signals(&succession)?);
        let hang_guard = HangGuard {
            service: Arc::clone(&self.service),
            watch,
            stop: Arc::clone(&self.stop),
            limit: args.stuck_limit(),
            end_time: Arc::clone(&self.end_time),
            succession: Arc::clone(&succession),
        };
        std::thread::spawn(move || hang_guard.guard_calls());
        Ok(succession)
    }

    /// Returns when the command has ended, and the drain is to move the rest. If weir is gone, or a new server has taken the
    /// place of the one that this process knew, the process ends.
    fn await_order(
        &self,
        args: &DrainProcessArgs,
        instance: InstanceTree,
        succession: &Succession,
    ) {
        let server_watch = watch_server(instance, &args.run_dir).ok();
        let order = match self.orders.await_step(server_watch.as_ref()) {
            Some(NextStep::Finish(order)) => order,
            Some(NextStep::BeginAnew) => succession.begin_anew(),
            // Without weir there is no instance. Do not wait for the round, which may hang.
            None => succession.give_up(),
        };
        if let Some(warned_at) = order.warned_at {
            self.end_time.warn(warned_at);
        }
        if order.is_at_once {
            self.service.analyses().close();
        } else {
            self.await_hung_calls(args.stuck_limit());
        }
        self.hung.end_rests();
        self.service.begin_to_finish();
    }

    /// Waits for calls that earlier processes have left behind: a path that is avoided in the end is not moved. The rounds go
    /// on meanwhile.
    fn await_hung_calls(&self, limit: Option<Duration>) {
        let began = Instant::now();
        while self.hung.hanging_processes() > 0
            && !self.stop.load(Ordering::Relaxed)
            && !self.end_time.is_near()
            && limit.is_none_or(|limit| began.elapsed() < limit)
        {
            std::thread::sleep(LOOK);
        }
    }

    /// While the command runs, each signal starts a round. Every signal but SIGUSR1 also ends the wait for analyses. While the
    /// rest is moved, a signal that neither warns nor ends such a wait stops the drain in order; a later one ends the process,
    /// since a process with a call that hangs would not end otherwise. The first SIGTERM is a warning if the user has set the
    /// time from it to the end.
    fn hear_signals(&self, succession: &Arc<Succession>) -> Result<SignalThread> {
        let (parts, succession) = (self.clone(), Arc::clone(succession));
        let ending = supervise::not_ignored(&stage::ENDING);
        let mut first: Option<Instant> = None;
        stage::on_signals(ending.chain([WARNING]), move |signal| {
            let is_warning = supervise::WARNINGS.contains(&signal);
            let warns = is_warning && parts.end_time.warn(SystemTime::now());
            if warns {
                parts.orders.note_warning(SystemTime::now());
            }
            let analyses = parts.service.analyses();
            let releases = signal != WARNING && !analyses.is_closed() && analyses.analyzers() > 0;
            if releases {
                analyses.close();
            }
            if !parts.orders.is_given() {
                parts.service.want_round();
            } else if signal != WARNING && !warns && !releases {
                parts.stop.store(true, Ordering::Relaxed);
                if first.get_or_insert_with(Instant::now).elapsed() > stage::SAME_SIGNAL {
                    succession.give_up();
                }
            }
            false
        })
    }
}
