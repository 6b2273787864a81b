//! The rounds of a drain while its command works, and the reports of them.

use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use weir_instance::errln;
use weir_mover::drain::{AheadResult, Drain, DrainRound, PlacedNodes};
use weir_mover::{
    DirectoryTree, InstanceTree, MoverNews, RateLimit, StageOptions, StageProgress, WatchedTree,
};

use super::hook::EventHook;
use super::hung_calls::HungCalls;
use super::last_analyses::LastAnalyses;
use super::relief::ServerRelief;
use super::service::DrainService;
use crate::movers::MoverGate;
use crate::share;

/// A file is copied when it has not changed for this time. It is longer than a clock tick, so that a change after the copy
/// shows.
const SETTLED: Duration = Duration::from_secs(1);
/// The same while the server of an instance of one server has little room: file times come from the clock of this node.
const SOON_SETTLED: Duration = Duration::from_millis(100);
/// Walks take at most one part in this of a processor's time.
const LOOK_SHARE: u32 = 20;
/// The shortest time between two rounds after one that failed.
const SHORTEST_RETRY: Duration = Duration::from_secs(1);
/// The longest.
const LONGEST_INTERVAL: Duration = Duration::from_secs(60);

/// A drain of an instance to a directory.
pub type TargetDrain<'t> = Drain<'t, InstanceTree, WatchedTree<DirectoryTree>>;

/// The limit on the writes of all nodes to a target. Each node has an equal share.
#[derive(Debug)]
pub struct SharedLimit {
    /// 0: without limit.
    bytes_per_s: u64,
    here: Arc<RateLimit>,
    elsewhere: Arc<AtomicU64>,
}

impl SharedLimit {
    /// The whole limit is for this process until movers come.
    pub fn new(
        bytes_per_s: u64,
        target: &WatchedTree<DirectoryTree>,
        gate: &MoverGate,
    ) -> SharedLimit {
        let limit = SharedLimit {
            bytes_per_s,
            here: target.limit(),
            elsewhere: gate.limit_of_each(),
        };
        limit.share(1);
        limit
    }

    fn share(&self, processes: u64) {
        let each = self.bytes_per_s.div_ceil(processes);
        self.here.set_rate(each);
        self.elsewhere.store(each, Ordering::Relaxed);
    }
}

/// The rounds of a drain.
pub struct Rounds<'r> {
    pub service: &'r DrainService,
    pub hook: Option<&'r EventHook>,
    pub status_file: Option<&'r Path>,
    /// The least time between two rounds.
    pub least: Duration,
    pub stop: &'r Arc<AtomicBool>,
    pub gate: &'r MoverGate,
    pub limit: &'r SharedLimit,
    /// The calls of earlier processes that hang.
    pub hung: &'r HungCalls,
    /// For an elevated tree only.
    pub relief: Option<&'r ServerRelief>,
    /// The record of the nodes that drains have put on the target, if there is one.
    pub placed: Option<&'r PlacedNodes>,
}

impl Rounds<'_> {
    /// Adds the movers that have come.
    pub fn add_movers(&self, drain: &mut TargetDrain<'_>) {
        for news in self.gate.take_news() {
            let MoverNews::Arrived(mover) = news else {
                continue;
            };
            let movers = self.service.count_mover();
            self.limit.share(movers + 1);
            drain.add_mover(mover);
        }
    }

    /// The progress of a step, which ends if the drain is stopped.
    pub fn begin_progress(&self) -> Arc<StageProgress> {
        Arc::new(StageProgress {
            stop: Arc::clone(self.stop),
            ..StageProgress::default()
        })
    }

    /// Makes rounds until the command has ended.
    pub fn make(&self, drain: &mut TargetDrain<'_>) {
        let threads = share::threads_beside();
        let mut interval = self.least;
        let mut told: Option<String> = None;
        let mut last_walk_seconds = 0.0;
        loop {
            let progress = self.begin_progress();
            let due = Instant::now() + interval;
            if !self.service.begin_round(due, &progress) {
                return;
            }
            self.add_movers(drain);
            let analyses = self.service.analyses();
            let has_waiting_writes = self.service.has_waiting_writes();
            analyses.set_yielding(has_waiting_writes);
            drain.hurry(has_waiting_writes);
            self.evict(drain, None);
            if let Some(relief) = self.relief {
                drain.limit_rounds(relief.round_limit());
            }
            let mut round = drain.round(SystemTime::now() - self.settled(), threads, &progress);
            // Closed files come before ranges of open ones.
            let ahead = (!round.is_cut).then_some((threads, &*progress));
            round.note_failures(&self.evict(drain, ahead).failed);
            // A walk that waited for a server once says nothing about the next one.
            let walk_seconds = round.walk_seconds.min(last_walk_seconds);
            last_walk_seconds = round.walk_seconds;
            let look = Duration::from_secs_f64(walk_seconds) * LOOK_SHARE;
            // A call for a path that is avoided costs the target nothing.
            let has_failed = { round.failures() }.any(|(file, _)| !self.is_avoided(&file.path));
            interval = match has_failed {
                true => (interval * 2).clamp(SHORTEST_RETRY, LONGEST_INTERVAL),
                false if round.is_cut => Duration::ZERO,
                false => self.least,
            };
            if !round.is_cut {
                interval = interval.max(look);
            }
            tell_failure(&round, &mut told);
            self.tell_lost_marks();
            self.note(drain, round);
        }
    }

    /// Waits for the analyses of the files that programs wrote last.
    pub fn finish_analyses(&self, drain: &mut TargetDrain<'_>, options: StageOptions) {
        let analyses = LastAnalyses {
            table: self.service.analyses(),
            laminates: options.laminate,
            threads: options.threads,
        };
        let progress = self.begin_progress();
        self.service.show_finish(&progress);
        analyses.wait(drain, &progress, |drain, round| {
            self.note(drain, round);
            self.service.show_finish(&progress);
        });
    }

    /// Reports a round that was made.
    fn note(&self, drain: &mut TargetDrain<'_>, round: DrainRound) {
        self.service.end_round(round);
        if let Some(hook) = self.hook {
            hook.send_events(drain.take_events());
        }
        if let Some(file) = self.status_file {
            write_status(self.service, file);
        }
    }

    fn is_avoided(&self, path: &Path) -> bool {
        self.hung.avoids(&self.service.target().join(path))
    }

    fn tell_lost_marks(&self) {
        if let Some(error) = self.placed.and_then(PlacedNodes::take_failure) {
            errln!(
                "weir: drain: cannot record the files that it has moved: {error}; if this process is killed, the \
                 next one may take them for somebody else's"
            );
        }
    }

    /// A file is copied when it has not changed for this time.
    fn settled(&self) -> Duration {
        let relief = self.relief;
        match relief.is_some_and(|relief| relief.is_alone() && relief.is_pressed()) {
            true => SOON_SETTLED,
            false => SETTLED,
        }
    }

    fn evict(
        &self,
        drain: &mut TargetDrain<'_>,
        ahead: Option<(usize, &StageProgress)>,
    ) -> AheadResult {
        let evicted = self
            .relief
            .map(|relief| relief.evict(drain, self.service, ahead));
        evicted
            .unwrap_or(Ok(AheadResult::default()))
            .unwrap_or_else(|error| {
                errln!("weir: drain: {error}");
                AheadResult::default()
            })
    }
}

/// Reports the first failure of a round, unless the round before had the same.
fn tell_failure(round: &DrainRound, told: &mut Option<String>) {
    let first = round.failures().next().map(|(_, reason)| reason.clone());
    match &first {
        Some(reason) if told.as_ref() != Some(reason) => errln!(
            "weir: drain: {} files could not be moved, and are tried again: {reason}",
            round.failures().count()
        ),
        None if told.is_some() => errln!("weir: drain: the files that had failed are moved now"),
        _ => {}
    }
    *told = first;
}

/// Writes the state into a file by a rename, so that readers see a whole one. Reports the first failure only.
pub fn write_status(service: &DrainService, file: &Path) {
    static IS_TOLD: AtomicBool = AtomicBool::new(false);
    let mut part = file.as_os_str().to_owned();
    part.push(".part");
    let text = serde_json::to_string(&service.status_now()).unwrap_or_default() + "\n";
    let written = std::fs::write(&part, text).and_then(|()| std::fs::rename(&part, file));
    if let Err(error) = written {
        if !IS_TOLD.swap(true, Ordering::Relaxed) {
            errln!("weir: drain.status_file: {}: {error}", file.display());
        }
    }
}
