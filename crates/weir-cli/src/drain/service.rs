//! The state of a drain that several threads share, and the thread that answers `weir drain`.

use std::io::BufReader;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use rustix::io::Errno;
use weir_mover::drain::{
    AnalysisTable, DrainRound, EvictedBytes, FileDrainState, PendingFile, PendingState, UrgentPaths,
};
use weir_mover::tree::{kind_of, FileTree as _, NodeKind};
use weir_mover::{
    CallWatch, DirectoryTree, InstanceTree, PathFilter, RateLimit, StageProgress, StageSummary,
    WatchedTree,
};

use super::analyzers::AnalyzerService;
use super::command::in_words_slow;
use super::hung_calls::HungCalls;
use super::messages::{
    receive, send, socket_of, starting_mark_of, DrainReply, DrainRequest, DrainStatus, DrainStep,
    DrainVerdict, FileOnTheWay, LINE_BYTES,
};
use super::question::Question;

/// The pending files that a reply names.
const NAMED_FILES: usize = 100;
/// The least and the longest time for which a question waits for a round.
const LOOK_TIME: (Duration, Duration) = (Duration::from_secs(2), Duration::from_secs(20));
/// A round yields only after it has taken this many times the duration of a walk.
const YIELD_LOOKS: u32 = 10;
/// The time between two replies to one request.
const REPLY_INTERVAL: Duration = Duration::from_millis(250);
/// The least time between two rounds for one question: a file that was written a moment ago is not copied yet.
const ROUND_INTERVAL: Duration = Duration::from_millis(500);
/// The least time between two rounds for a server that has little room.
const RELIEF_INTERVAL: Duration = Duration::from_millis(100);
/// The same if the last one could not move everything.
const FAILED_RELIEF_INTERVAL: Duration = Duration::from_secs(5);
/// Walks for such a server take at most one part in this of the time.
const RELIEF_SHARE: u32 = 4;
/// The timeout of a read or a write on a connection.
const TALK_TIME: Duration = Duration::from_secs(10);

/// A call of the target that takes longer is reported.
const SLOW_CALL: Duration = Duration::from_secs(2);

/// The work of a drain, under way and done.
#[derive(Clone, Copy, Debug)]
pub struct DrainActivity {
    /// A number that grows as bytes are moved, and files evicted.
    pub amount: u64,
    /// A round is under way.
    pub is_moving: bool,
    /// The last round found files that are to be moved, or could not be moved.
    pub awaits_move: bool,
    /// The time at which the last round began.
    pub began: Option<Instant>,
}

/// The state of a drain.
#[derive(Debug)]
pub struct DrainService {
    analyzers: AnalyzerService,
    source: DrainedSource,
    target: PathBuf,
    /// Calls of the target.
    watch: Arc<CallWatch>,
    /// Those of earlier processes that hang.
    hung: Arc<HungCalls>,
    /// Writes to it.
    limit: Arc<RateLimit>,
    state: Mutex<ServiceState>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct ServiceState {
    /// The number of rounds that have begun.
    begun: u64,
    /// Rounds up to this number are wanted.
    wanted: u64,
    /// The number of rounds that are done.
    done: u64,
    step: DrainStep,
    movers: u64,
    last: Arc<DrainRound>,
    last_began: Option<Instant>,
    moved_files: u64,
    moved_bytes: u64,
    evicted: EvictedBytes,
    waiting_writes: u32,
    progress: Arc<StageProgress>,
    progress_began: Option<Instant>,
}

impl ServiceState {
    /// Ends the round under way after the files that it is copying.
    fn end_round_early(&self) {
        if self.step == DrainStep::Moving {
            self.progress.yields.store(true, Ordering::Relaxed);
        }
    }
}

/// The tree of the instance that is drained.
#[derive(Debug)]
pub struct DrainedSource {
    pub instance: InstanceTree,
    /// The files that are moved.
    pub filter: PathFilter,
    /// Paths of files that are moved before others.
    pub urgent: Arc<UrgentPaths>,
    /// The paths by which programs name the root of the tree.
    pub roots: Vec<PathBuf>,
}

impl DrainService {
    pub fn new(
        source: DrainedSource,
        target: &Path,
        target_tree: &WatchedTree<DirectoryTree>,
        hung: Arc<HungCalls>,
        analyzers: AnalyzerService,
    ) -> Arc<DrainService> {
        Arc::new(DrainService {
            analyzers,
            source,
            target: target.to_owned(),
            watch: target_tree.watch(),
            hung,
            limit: target_tree.limit(),
            state: Mutex::default(),
            changed: Condvar::new(),
        })
    }

    /// The path by which programs name a file of the tree.
    pub fn name_of(&self, path: &Path) -> PathBuf {
        self.source.roots[0].join(path.strip_prefix("/").unwrap_or(path))
    }

    /// The analyzers, and the files that they want.
    pub fn analyses(&self) -> &AnalysisTable {
        &self.analyzers.table
    }

    pub fn target(&self) -> &Path {
        &self.target
    }

    fn state(&self) -> MutexGuard<'_, ServiceState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Requests a round that begins after this call, and returns its number.
    pub fn want_round(&self) -> u64 {
        let mut state = self.state();
        let wanted = state.begun + 1;
        state.wanted = state.wanted.max(wanted);
        self.changed.notify_all();
        wanted
    }

    /// Requests a round, unless one began a moment ago: walks must take only a part of the time.
    pub fn want_relief(&self) {
        let mut state = self.state();
        let look = Duration::from_secs_f64(state.last.walk_seconds) * RELIEF_SHARE;
        let least = match state.last.has_failed() {
            true => FAILED_RELIEF_INTERVAL,
            false => RELIEF_INTERVAL,
        };
        let is_recent = |began: Instant| began.elapsed() < look.max(least);
        if state.wanted <= state.begun && !state.last_began.is_some_and(is_recent) {
            state.wanted = state.begun + 1;
            self.changed.notify_all();
        }
    }

    /// The work of the drain.
    pub fn activity(&self) -> DrainActivity {
        let state = self.state();
        let done = state.progress.bytes_done.load(Ordering::Relaxed);
        let is_moving = state.progress_began.is_some();
        let awaits = |file: &PendingFile| {
            matches!(
                file.state,
                // A file that awaits its analysis is moved while a write waits.
                PendingState::Waiting | PendingState::Analysis | PendingState::Failed { .. }
            )
        };
        DrainActivity {
            amount: state.moved_bytes + state.evicted.bytes + if is_moving { done } else { 0 },
            is_moving,
            awaits_move: state.last.pending.iter().any(awaits),
            began: state.last_began,
        }
    }

    /// Counts files that were evicted.
    pub fn count_evicted(&self, evicted: EvictedBytes) {
        self.state().evicted += evicted;
    }

    /// The files that were evicted.
    pub fn evicted(&self) -> EvictedBytes {
        self.state().evicted
    }

    /// Shows the number of writes that wait for room.
    pub fn show_waiting(&self, writes: u32) {
        self.state().waiting_writes = writes;
    }

    /// True if a write waits for room.
    pub fn has_waiting_writes(&self) -> bool {
        self.state().waiting_writes > 0
    }

    /// Waits for some time, or until the command has ended.
    pub fn await_end(&self, time: Duration) {
        let until = Instant::now() + time;
        let mut state = self.state();
        while !state.step.is_last() {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return;
            }
            let waited = self.changed.wait_timeout(state, left);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Ends the rounds, and a pause: the command has ended.
    pub fn begin_to_finish(&self) {
        let mut state = self.state();
        state.end_round_early();
        state.step = DrainStep::Finishing;
        self.limit.set_paused(false);
        drop(state);
        self.changed.notify_all();
    }

    /// Stops the current round after the files that it is copying, so that the next one can begin with urgent files. Does
    /// nothing if the round has just begun: each round walks the whole tree.
    fn yield_round(&self) {
        let state = self.state();
        let look = Duration::from_secs_f64(state.last.walk_seconds);
        let least = (look * YIELD_LOOKS).max(ROUND_INTERVAL);
        let is_late = state
            .progress_began
            .is_some_and(|began| began.elapsed() > least);
        if is_late {
            state.end_round_early();
        }
    }

    /// Counts a mover of another node; returns their number.
    pub fn count_mover(&self) -> u64 {
        let mut state = self.state();
        state.movers += 1;
        state.movers
    }

    /// Begins a pause, or ends it, while the command works.
    fn set_paused(&self, is_paused: bool) {
        let state = self.state();
        if !state.step.is_last() {
            self.limit.set_paused(is_paused);
        }
        drop(state);
        self.changed.notify_all();
    }

    pub fn is_paused(&self) -> bool {
        self.limit.is_paused()
    }

    pub fn is_finishing(&self) -> bool {
        self.state().step.is_last()
    }

    /// Waits until a round is due or wanted, and begins it; false: there are no more rounds.
    pub fn begin_round(&self, due: Instant, progress: &Arc<StageProgress>) -> bool {
        let mut state = self.state();
        while !state.step.is_last() {
            let left = due.saturating_duration_since(Instant::now());
            let is_due = left.is_zero() || state.wanted > state.begun;
            if is_due && self.limit.is_paused() {
                // The end of the pause wakes this thread.
                let waited = self.changed.wait(state);
                state = waited.unwrap_or_else(PoisonError::into_inner);
                continue;
            }
            if is_due {
                state.begun += 1;
                state.step = DrainStep::Moving;
                state.progress = Arc::clone(progress);
                state.progress_began = Some(Instant::now());
                return true;
            }
            let waited = self.changed.wait_timeout(state, left);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        false
    }

    pub fn end_round(&self, round: DrainRound) {
        let mut state = self.state();
        state.done = state.begun;
        if state.step == DrainStep::Moving {
            state.step = DrainStep::Idle;
        }
        state.moved_files += round.files;
        state.moved_bytes += round.bytes;
        state.last = Arc::new(round);
        state.last_began = state.progress_began.take();
        self.changed.notify_all();
    }

    /// Shows the progress of the end.
    pub fn show_finish(&self, progress: &Arc<StageProgress>) {
        let mut state = self.state();
        state.progress = Arc::clone(progress);
        state.progress_began = Some(Instant::now());
    }

    /// True if the tree is elevated and its target has a node at this path.
    fn has_on_target(&self, path: &Path) -> bool {
        self.is_elevated() && self.target.join(path).symlink_metadata().is_ok()
    }

    /// The state of the file at a path below the root.
    fn find_file(&self, path: &Path) -> FileOnTheWay {
        let root = Path::new("/");
        let last = Arc::clone(&self.state().last);
        // This asks servers: the lock must not be held.
        let found = last.find_file_state(&self.source.instance, root, path);
        let (state, size) = match found {
            Err(error) => return refused_file(&error),
            Ok(Some((_, size))) if !self.source.filter.takes(&root.join(path)) => {
                (FileDrainState::Unmoved, size)
            }
            Ok(Some(found)) => found,
            Ok(None) => match self.target.join(path).symlink_metadata() {
                Ok(there) if self.is_elevated() && there.is_file() => {
                    (FileDrainState::Safe, there.len())
                }
                Ok(there) if self.is_elevated() && there.is_dir() => {
                    return FileOnTheWay::Refused(Errno::ISDIR.raw_os_error())
                }
                Ok(_) if self.is_elevated() => {
                    return FileOnTheWay::Refused(Errno::INVAL.raw_os_error())
                }
                _ => return FileOnTheWay::Refused(Errno::NOENT.raw_os_error()),
            },
        };
        FileOnTheWay::Known { state, size }
    }

    fn is_elevated(&self) -> bool {
        self.source.roots.contains(&self.target)
    }

    /// The path below the root of the tree; `None`: it is not in the tree.
    fn below(&self, path: &Path) -> Option<PathBuf> {
        let mut roots = self.source.roots.iter();
        roots.find_map(|root| Some(path.strip_prefix(root).ok()?.to_owned()))
    }

    /// Describes the files that are not safe: those that the last round left, or those that the round under way has found
    /// and not moved, whichever are more.
    pub fn unsafe_in_words(&self) -> String {
        let state = self.state();
        let found = state.progress.files_found.load(Ordering::Relaxed);
        let done = state.progress.files_done.load(Ordering::Relaxed);
        let files = found
            .saturating_sub(done)
            .max(state.last.pending.len() as u64);
        let looked = state.last_began.map(|began| began.elapsed());
        unsafe_in_words(files, looked)
    }

    /// The number and the bytes of the files that the rounds have moved.
    pub fn moved(&self) -> (u64, u64) {
        let state = self.state();
        (state.moved_files, state.moved_bytes)
    }

    /// Shows the result at the end: the safe files, and those that could not be moved.
    pub fn show_end(&self, summary: &StageSummary) {
        let mut state = self.state();
        let failed = summary.failed.iter().map(|failure| PendingFile {
            path: failure.source.clone(),
            size: 0,
            state: PendingState::Failed {
                reason: failure.reason.clone(),
            },
        });
        let left = summary.not_reached.iter().map(|path| PendingFile {
            path: path.clone(),
            size: 0,
            state: PendingState::Waiting,
        });
        let mut last = DrainRound::default();
        last.safe_files = summary.files + summary.unchanged;
        last.safe_bytes = state.progress.bytes_done.load(Ordering::Relaxed);
        last.pending = failed.chain(left).collect();
        state.last = Arc::new(last);
        state.last_began = state.progress_began.take();
        state.moved_files += summary.files;
        state.moved_bytes += summary.bytes;
        state.step = DrainStep::Ended;
    }

    /// The state now.
    pub fn status_now(&self) -> DrainStatus {
        self.status(&self.state())
    }

    fn status(&self, state: &ServiceState) -> DrainStatus {
        let last = &state.last;
        let count = |is_counted: fn(&PendingState) -> bool| {
            let pending = last.pending.iter();
            pending.filter(|file| is_counted(&file.state)).count() as u64
        };
        let seconds =
            |since: Option<Instant>| since.map_or(0.0, |since| since.elapsed().as_secs_f64());
        let is_under_way = state.progress_began.is_some();
        let shown = |number: u64| if is_under_way { number } else { 0 };
        let progress = &state.progress;
        let analyses = self.analyses();
        let analysed = analyses.counts();
        DrainStatus {
            pid: std::process::id(),
            target: self.target.clone(),
            step: state.step,
            is_paused: self.limit.is_paused(),
            movers: state.movers,
            rounds: state.done,
            age_s: seconds(state.last_began),
            safe_files: last.safe_files,
            safe_bytes: last.safe_bytes,
            pending_files: last.pending.len() as u64,
            pending_bytes: last.pending.iter().map(|file| file.size).sum(),
            open_files: count(|state| {
                matches!(state, PendingState::Open | PendingState::Unlaminated)
            }),
            failed_files: count(|state| matches!(state, PendingState::Failed { .. })),
            analysis_files: count(|state| *state == PendingState::Analysis),
            analyzers: analyses.analyzers() as u64,
            analysed_files: analysed.analysed,
            failed_analyses: analysed.failed,
            names_due: last.names_due.len() as u64,
            moved_files: state.moved_files,
            moved_bytes: state.moved_bytes,
            evicted_files: state.evicted.files,
            evicted_bytes: state.evicted.bytes,
            waiting_writes: state.waiting_writes,
            round_files: shown(progress.files_found.load(Ordering::Relaxed)),
            round_bytes: shown(progress.bytes_found.load(Ordering::Relaxed)),
            round_bytes_done: shown(progress.bytes_done.load(Ordering::Relaxed)),
            round_seconds: seconds(state.progress_began),
            slow_calls: [self.hung.calls(), self.watch.slow_calls(SLOW_CALL)].concat(),
            pending: last.pending.iter().take(NAMED_FILES).cloned().collect(),
        }
    }

    /// Answers `weir drain` until this process ends. The returned guard removes the socket.
    pub fn listen(self: &Arc<Self>, run_dir: &Path) -> Result<SocketGuard> {
        let path = socket_of(run_dir, std::process::id());
        // It was left by an earlier process with this number.
        let _ = std::fs::remove_file(&path);
        let socket = UnixListener::bind(&path).with_context(|| path.display().to_string())?;
        let _ = std::fs::remove_file(starting_mark_of(run_dir, std::process::id()));
        let this = Arc::clone(self);
        std::thread::spawn(move || {
            for caller in socket.incoming().flatten() {
                let this = Arc::clone(&this);
                // A caller that goes away, or does not read, ends its thread.
                let answer = move || drop(this.answer(&caller));
                let _ = std::thread::Builder::new().spawn(answer);
            }
        });
        Ok(SocketGuard(path))
    }

    fn answer(&self, caller: &UnixStream) -> Result<()> {
        caller.set_read_timeout(Some(TALK_TIME))?;
        caller.set_write_timeout(Some(TALK_TIME))?;
        let mut reader = BufReader::new(caller);
        let request: DrainRequest = receive(&mut reader, LINE_BYTES)?;
        if let Some(arrival) = &request.analyzer {
            return Ok(self.analyzers.serve(caller, &mut reader, arrival)?);
        }
        if let Some(is_paused) = request.pause {
            self.set_paused(is_paused);
        }
        let given = request.paths();
        let paths: Vec<PathBuf> = given.iter().filter_map(|path| self.below(path)).collect();
        let is_foreign = |path: &&PathBuf| self.below(path).is_none();
        let foreign = given.iter().filter(is_foreign);
        let foreign: Vec<Vec<u8>> = foreign
            .map(|path| path.as_os_str().as_bytes().to_vec())
            .collect();
        let is_elsewhere = paths.is_empty() && !given.is_empty();
        if request.file_state {
            let reply = DrainReply {
                file: paths.first().map(|path| self.find_file(path)),
                status: Some(self.status_now()),
                foreign,
                ..DrainReply::default()
            };
            return Ok(send(caller, &reply)?);
        }
        let _moved_first = self.source.urgent.add(match request.wait {
            true => paths.clone(),
            false => Vec::new(),
        });
        if request.wait && !paths.is_empty() {
            self.yield_round();
        }
        let question = self.question(paths);
        let asked = Instant::now();
        let mut wanted = match request.begin || request.wait {
            true => {
                if request.wait {
                    self.hung.end_long_rests();
                }
                self.want_round()
            }
            // No round answers the question.
            false => u64::MAX,
        };
        let mut wanted_at = asked;
        loop {
            let (mut reply, is_answered) = {
                let state = self.state();
                let unknown = self.reason_not_to_know(&state, wanted);
                let is_known = unknown.is_none();
                let (verdict, reason) = match is_elsewhere {
                    true => (DrainVerdict::Elsewhere, None),
                    false => question.judge(&state.last, unknown.as_ref().map(|(why, _)| &**why)),
                };
                let is_answered = is_elsewhere
                    || match request.wait {
                        true => is_known && verdict != DrainVerdict::NotYet,
                        false => unknown.is_none_or(|(_, is_lasting)| {
                            is_lasting || asked.elapsed() >= look_time(&state.last)
                        }),
                    };
                let reply = DrainReply {
                    status: Some(self.status(&state)),
                    verdict: Some(verdict),
                    reason,
                    foreign: foreign.clone(),
                    file: None,
                };
                if is_known && !is_answered && wanted_at.elapsed() > ROUND_INTERVAL {
                    drop(state);
                    wanted = self.want_round();
                    wanted_at = Instant::now();
                }
                (reply, is_answered)
            };
            if !is_answered {
                reply.verdict = None;
            }
            send(caller, &reply)?;
            if is_answered {
                return Ok(());
            }
            let state = self.state();
            let _ = self.changed.wait_timeout(state, REPLY_INTERVAL);
        }
    }

    /// The question about some paths; none: about all.
    fn question(&self, mut paths: Vec<PathBuf>) -> Question {
        if paths.is_empty() {
            paths.push(PathBuf::new());
        }
        let last = Arc::clone(&self.state().last);
        // This asks servers, and the target, which may hang: the lock must not be held.
        let is_known = |path: &&PathBuf| last.has_seen(path) || self.has_on_target(path);
        let is_present = |path: &&PathBuf| {
            let path = Path::new("/").join(path);
            let found = self.source.instance.look_up(&path).ok().flatten();
            found.is_some_and(|stat| {
                kind_of(&stat) == NodeKind::Directory || self.source.filter.takes(&path)
            })
        };
        Question {
            known: paths.iter().filter(is_known).cloned().collect(),
            present: paths.iter().filter(is_present).cloned().collect(),
            paths,
        }
    }

    /// The reason why the wanted round has not ended, and true if it will not end soon; `None`: it has ended.
    fn reason_not_to_know(&self, state: &ServiceState, wanted: u64) -> Option<(String, bool)> {
        if state.step == DrainStep::Ended || state.done >= wanted {
            return None;
        }
        let slow = self.watch.slow_calls(SLOW_CALL);
        Some(match slow.first() {
            _ if state.step == DrainStep::Finishing => (
                "the command has ended, and the rest is being moved".to_owned(),
                true,
            ),
            _ if self.limit.is_paused() => ("the drain is paused".to_owned(), true),
            Some(slow) => (in_words_slow(slow), true),
            None if state.progress_began.is_some() => ("files are being moved".to_owned(), false),
            None => (
                "the drain has not looked since".to_owned(),
                wanted == u64::MAX,
            ),
        })
    }
}

/// The longest time for which a question without `wait` waits for a round.
fn look_time(last: &DrainRound) -> Duration {
    let look = Duration::from_secs_f64(last.walk_seconds) * 3;
    look.clamp(LOOK_TIME.0, LOOK_TIME.1)
}

/// The answer for a file whose state cannot be read.
fn refused_file(error: &std::io::Error) -> FileOnTheWay {
    let raw = Errno::from_io_error(error);
    FileOnTheWay::Refused(raw.unwrap_or(Errno::IO).raw_os_error())
}

/// `looked`: the time since the last look that has ended.
fn unsafe_in_words(files: u64, looked: Option<Duration>) -> String {
    match (files, looked) {
        (0, None) => "no look at the instance has ended, so no file is known to be safe".to_owned(),
        (0, Some(looked)) => format!(
            "the last look at the instance, {} s ago, found every file safe; no later change is known to be",
            looked.as_secs()
        ),
        (files, _) => format!(
            "{files} files or more are not safe, nor are the names that changed after them"
        ),
    }
}

/// A socket that is removed when this is dropped.
#[derive(Debug)]
pub struct SocketGuard(PathBuf);

impl Drop for SocketGuard {
    fn drop(&mut self) {
        // The run directory may be gone, with the instance.
        let _ = std::fs::remove_file(&self.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_end_of_a_hung_drain_says_what_is_known() {
        let words =
            |files, looked: Option<u64>| unsafe_in_words(files, looked.map(Duration::from_secs));
        assert!(words(3, None).starts_with("3 files or more are not safe"));
        assert!(words(0, None).contains("no look at the instance has ended"));
        assert!(words(0, Some(12)).contains("12 s ago"));
    }
}
