//! Moves the files that programs write while they run, in rounds.
//!
//! A round walks the source and copies each file that has no writer and that was not moved in this version. Unchanged files
//! cost no call of the target.
//!
//! Changes of names, which are symbolic links and removals, come one round later (`names`): a walk sees no history, and may
//! have missed a file that was written before a link to it was made. So they wait for the files that the next walk finds
//! closed. A link never leads to a missing file, and no name is removed before the files that were written before the
//! removal are there.
//!
//! | file | subject |
//! | --- | --- |
//! | `round`, `round_state` | the files of a round |
//! | `team` | the processes that copy files |
//! | `lists`, `large` | copying them with other movers: lists of files, pieces of a large one |
//! | `choice`, `urgent` | the choice of files, and those that somebody waits for |
//! | `order`, `in_order`, `turns` | the order in which files get their names |
//! | `early` | files that programs write again and again |
//! | `file_state` | the state of one file |
//! | `follow` | files that programs have renamed |
//! | `names`, `due_names`, `changed_names` | links and removals |
//! | `relocated`, `relocation_table`, `naming` | directories that programs have renamed, which get their names when they are whole |
//! | `history`, `renames` | renames by programs while a walk is under way |
//! | `removals` | the names that programs have removed |
//! | `in_turn` | changes of names that come in turn with files |
//! | `snapshot` | the result of a walk |
//! | `target_state`, `target_view`, `target_editor`, `moved` | the state of the target |
//! | `marks`, `ownership` | the nodes of the target that may be replaced |
//! | `whiteouts` | removals by programs from an elevated tree |
//! | `leftovers` | removals by programs after the drain that moved the node was killed |
//! | `events` | the events of files, for callers that want them |
//! | `analysis`, `hold` | files that are held back until programs have analysed them |
//! | `evict`, `copies`, `copy_links`, `parts`, `ahead`, `ahead_ranges` | files of an elevated tree whose storage is freed, as a whole or by ranges |
//! | `prefetched` | files of an elevated tree that the target already has in this version |
//!
//! A drain consists of parts that own their state, and gives each part access only to the data that it may touch:
//!
//! | part | subject | it cannot reach |
//! | --- | --- | --- |
//! | `TargetState` | which nodes are safe, in the way, gone, whole, replaceable | I/O |
//! | `DueChanges`, `FileOrder`, `RoundOrder` | the waits of names and files for other files | I/O |
//! | `ProgramHistory`, `EarlyCopies`, `FileChoice` | which names were removed or renamed, which copies count, which files are moved | I/O |
//! | `HeldFiles`, `EventLog` | files that wait for an analysis, events | the target |
//! | `TargetView` | the same questions as `TargetState`, if they need a call of the target | the source; changes of any state |
//! | `TargetEditor` | changes of names of the target | the source |
//! | `TurnMaker` | the turns of files, and changes of names that come in turn with them | changes of any state |
//! | `CopyLinks`, `AheadMover` | the links of evicted files, ranges that go ahead | names of files |
//!
//! `Drain` itself calls them in the order of a round.
//!
//! Left out: the order of changes within two rounds, and versions that were replaced before a round saw
//! them.

mod ahead;
mod ahead_ranges;
mod analysis;
mod changed_names;
mod choice;
mod copies;
mod copy_links;
mod due_names;
mod early;
mod events;
mod evict;
mod file_state;
mod follow;
mod history;
mod hold;
mod in_order;
mod in_turn;
mod large;
mod leftovers;
mod lists;
mod marks;
mod moved;
mod names;
mod naming;
mod order;
mod ownership;
mod parts;
mod prefetched;
mod relocated;
mod relocation_table;
mod removals;
mod renames;
mod round;
mod round_state;
mod snapshot;
mod target_editor;
mod target_state;
mod target_view;
mod team;
mod turns;
mod urgent;
mod whiteouts;

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};
use weir_client::types::Stat;

use crate::copy::{LikenessBy, ReadyCopy};
use crate::error::MoveError;
use crate::filter::PathFilter;
use crate::mover::FileMover;
use crate::side::MoveSide;
use crate::sources::StagePair;
use crate::stage::{stage_with, StageCaller, StageOptions, StageProgress};
use crate::summary::StageSummary;
use crate::tree::{unless, EvictionTable, FileTree, NodeKind};
pub use ahead::AheadResult;
pub use analysis::{AnalysisCounts, AnalysisTable, AnalysisTask, AnalyzerId, TaskResult};
use choice::FileChoice;
use due_names::DueChanges;
use early::EarlyCopies;
use events::EventLog;
pub use events::{FileEvent, MoveEvent};
pub use evict::EvictedBytes;
pub use file_state::FileDrainState;
use history::ProgramHistory;
use hold::HeldFiles;
pub use hold::{is_current, AnalysesLeft};
pub use marks::PlacedNodes;
use moved::{MovedNode, MovedNodes};
use order::FileOrder;
pub use order::NameOrder;
use prefetched::NotedPrefetches;
pub use prefetched::{PrefetchNotes, PrefetchedFile};
use renames::is_calm;
use round_state::{time_since_1970, RoundState};
use snapshot::{FileSet, FileVersion, SeenNode, TreeSnapshot, WalkedTree};
use target_state::TargetState;
use team::DrainTeam;
pub use team::OwnShare;
pub use urgent::{UrgentGuard, UrgentPaths};

/// The most rounds at the end, before directories that programs have renamed are merged file by file.
const ROUNDS_AT_END: u32 = 6;
/// Longer than the error of any server's clock.
const LONG: Duration = Duration::from_secs(10 * 365 * 24 * 3600);

/// The reason why a file is not safe yet.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(tag = "state", rename_all = "lowercase")]
pub enum PendingState {
    /// It was written a moment ago, or during the round, or it waits for other files that must get their names first.
    Waiting,
    /// A program has it open for writing.
    Open,
    /// It is closed, and awaits its lamination.
    Unlaminated,
    /// It is not moved before its analysis.
    Analysis,
    /// It could not be moved; the next round tries again.
    Failed {
        /// The reason, in one line.
        reason: String,
    },
}

impl PendingState {
    fn failed(error: &MoveError) -> PendingState {
        PendingState::Failed {
            reason: error.to_string(),
        }
    }
}

/// A file that is not safe yet.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct PendingFile {
    /// Its path below the source.
    #[serde(flatten, with = "crate::json_path::path")]
    pub path: PathBuf,
    /// Bytes.
    pub size: u64,
    /// The reason.
    #[serde(flatten)]
    pub state: PendingState,
}

/// The result of a round.
#[derive(Clone, Debug, Default)]
pub struct DrainRound {
    /// Files that were copied.
    pub files: u64,
    /// Bytes of them.
    pub bytes: u64,
    /// Names that were changed or removed on the target.
    pub names: u64,
    /// Files that are on the target as they were when the round began.
    pub safe_files: u64,
    /// Bytes of them.
    pub safe_bytes: u64,
    /// Files that are not.
    pub pending: Vec<PendingFile>,
    /// Names that the next rounds change or remove, below the source.
    pub names_due: Vec<PathBuf>,
    /// Seconds that the walk took.
    pub walk_seconds: f64,
    /// It has copied as much as a round may, or has yielded to the next one, and has left files for that.
    pub is_cut: bool,
    names_seen: Arc<TreeSnapshot>,
}

impl DrainRound {
    /// True if a walk saw this path below the source.
    pub fn has_seen(&self, path: &Path) -> bool {
        path == Path::new("") || self.names_seen.get(path).is_some()
    }

    /// Notes files whose ranges could not go ahead, by the path below the source, with the reasons.
    pub fn note_failures(&mut self, failed: &HashMap<PathBuf, String>) {
        for file in &mut self.pending {
            if let Some(reason) = failed.get(&file.path) {
                let reason = reason.clone();
                file.state = PendingState::Failed { reason };
            }
        }
    }

    /// The files that could not be moved for a reason that programs did not cause, with the reasons.
    pub fn failures(&self) -> impl Iterator<Item = (&PendingFile, &String)> {
        let pending = self.pending.iter();
        pending.filter_map(|file| match &file.state {
            PendingState::Failed { reason } => Some((file, reason)),
            _ => None,
        })
    }

    /// True if there is such a file.
    pub fn has_failed(&self) -> bool {
        self.failures().next().is_some()
    }
}

/// The move of a directory of one tree into one of another, while programs write it.
#[derive(Debug)]
pub struct Drain<'t, S: FileTree, T: FileTree> {
    /// The directory that is moved.
    from: MoveSide<'t, S>,
    /// The directory into which it is moved.
    to: MoveSide<'t, T>,
    choice: FileChoice,
    prefetched: NotedPrefetches,
    team: DrainTeam,
    target: TargetState<T::File>,
    due: DueChanges,
    order: FileOrder,
    /// Files that programs write again and again.
    early: EarlyCopies<ReadyCopy<'t, T>>,
    /// The target has made no hard link for a renamed file.
    has_refused_links: bool,
    history: ProgramHistory,
    /// Directories, by the path below both, in which names were changed that are not on storage yet.
    unsynced: BTreeSet<PathBuf>,
    /// The number of walks so far.
    walks: u64,
    /// The last walk of a round.
    seen: Arc<TreeSnapshot>,
    /// The bytes of files after which a round copies no more.
    round_limit: u64,
    /// The extended attributes that the target did not take.
    xattrs_not_kept: u64,
    /// `None`: the caller wants no events.
    events: Option<EventLog>,
    held_files: HeldFiles,
    /// The programs have ended.
    is_finishing: bool,
    /// A walk since then has adopted what earlier drains have placed under lost names.
    has_adopted_lost: bool,
}

impl<'t, S: FileTree, T: FileTree> Drain<'t, S, T> {
    /// Both directories must exist. `filter` takes paths below the source, which begin with a slash.
    pub fn new(from: MoveSide<'t, S>, to: MoveSide<'t, T>, filter: PathFilter) -> Drain<'t, S, T> {
        Drain {
            from,
            to,
            choice: FileChoice::new(filter),
            prefetched: NotedPrefetches::default(),
            team: DrainTeam::default(),
            target: TargetState::new(),
            due: DueChanges::default(),
            order: FileOrder::default(),
            early: EarlyCopies::new(),
            has_refused_links: false,
            history: ProgramHistory::default(),
            unsynced: BTreeSet::new(),
            walks: 0,
            seen: Arc::default(),
            round_limit: u64::MAX,
            xattrs_not_kept: 0,
            events: None,
            held_files: HeldFiles::default(),
            is_finishing: false,
            has_adopted_lost: false,
        }
    }

    /// Sets the rank of this node's server: this process moves the files that were made there.
    pub fn set_rank(&mut self, rank: u16) {
        self.team.rank = rank;
    }

    /// Sets the part of the copying that this process does. By default it is that of any mover.
    pub fn set_share(&mut self, share: OwnShare) {
        self.team.share = share;
    }

    /// Adds a process that moves files, for later rounds.
    pub fn add_mover(&mut self, mover: Box<dyn FileMover>) {
        self.team.movers.push(mover);
    }

    /// Keeps marks of the nodes that this drain puts on the target. `replaces_all`: nodes that somebody else has put there
    /// are also replaced.
    pub fn keep_marks(&mut self, placed: Arc<PlacedNodes>, replaces_all: bool) {
        self.target.ownership.keep_marks(placed, replaces_all);
    }

    /// Disables removals on the target: the tree lacks the names that lost servers had.
    pub fn remove_nothing(&mut self) {
        self.target.ownership.keeps_all = true;
    }

    /// Makes the drain move the files that a filter takes before all others.
    pub fn move_first(&mut self, first: PathFilter) {
        self.choice.first = Some(first);
    }

    /// Paths whose files are moved before all others, as long as somebody waits for them.
    pub fn urgent_paths(&self) -> Arc<UrgentPaths> {
        Arc::clone(&self.choice.urgent)
    }

    /// Makes the drain never evict the files that a filter takes.
    pub fn keep_in_instance(&mut self, kept: PathFilter) {
        self.choice.kept = Some(kept);
    }

    /// Makes rounds end once they have copied this number of bytes, so that the files can be evicted.
    pub fn limit_rounds(&mut self, bytes: u64) {
        self.round_limit = bytes;
    }

    /// Copies the closed files that have not changed since `settled`: two changes of a file within a tick of the server's
    /// clock cannot be told apart, and temporary files are soon removed. `threads`: the number of threads that copy.
    pub fn round(
        &mut self,
        settled: SystemTime,
        threads: usize,
        progress: &StageProgress,
    ) -> DrainRound {
        self.prefetched.read_new();
        let settled = settled.duration_since(UNIX_EPOCH).unwrap_or_default();
        self.copy_early(settled, threads, progress);
        let walk_begun = Instant::now();
        let mut snapshot = self.walk();
        let walk_seconds = walk_begun.elapsed().as_secs_f64();
        self.set_back(&mut snapshot);
        let snapshot = Arc::new(snapshot);
        self.prefetched
            .adopt(&snapshot, &self.to, &mut self.target.moved);
        if self.is_finishing {
            let is_first = !std::mem::replace(&mut self.has_adopted_lost, true);
            self.adopt_lost(&snapshot, is_first);
        }
        let mut round = RoundState {
            settled,
            threads,
            snapshot: Arc::clone(&snapshot),
            closed: FileSet::default(),
            behind: BTreeMap::new(),
            open: HashSet::new(),
            pending: Vec::new(),
            blocked: HashSet::new(),
            unmade: Vec::new(),
            copied: 0,
            bytes: 0,
            is_cut: false,
            renamed: Vec::new(),
            names: 0,
        };
        for (path, error) in &snapshot.unread {
            round.fail(path, error);
        }
        self.follow_directories(&snapshot);
        self.make_directories(&mut round);
        self.relink_copies(&mut round, progress);
        let chosen = self.choose(&mut round);
        self.copy(&mut round, &chosen, progress);
        self.pend_outdated(&mut round);
        let changed = self.change_names(&mut round);
        round.names += changed;
        self.target.pend_relocated(&mut round);
        self.early.remove_copies();
        self.seen = Arc::clone(&snapshot);
        if let Some(log) = &mut self.events {
            log.note_round(&mut self.target, &snapshot, &round.pending);
        }
        let is_safe = |(path, node): &(&PathBuf, &SeenNode)| {
            self.target.is_safe(path, node) && self.early.outdated_since(path).is_none()
        };
        let files = snapshot.of_kind(NodeKind::File).filter(is_safe);
        let safe = files.fold((0, 0), |(files, bytes), (_, node)| {
            (files + 1, bytes + node.version.size)
        });
        DrainRound {
            files: round.copied,
            bytes: round.bytes,
            names: round.names,
            safe_files: safe.0,
            safe_bytes: safe.1,
            pending: round.pending,
            names_due: self.target.changed_names(&snapshot).cloned().collect(),
            walk_seconds,
            is_cut: round.is_cut || progress.yields.load(Ordering::Relaxed),
            names_seen: snapshot,
        }
    }

    /// Moves everything after the programs have ended.
    pub fn finish(&mut self, options: StageOptions, progress: &StageProgress) -> StageSummary {
        let begun = Instant::now();
        let (mut shared_files, mut shared_bytes) = (0, 0);
        self.xattrs_not_kept = 0;
        self.hurry(false);
        self.is_finishing = true;
        // Evicted files need rounds: their copies get names before the stage begins.
        let evicts = self
            .from
            .tree
            .evictions()
            .is_some_and(EvictionTable::has_evicted);
        let is_ordered = self.order.rule == NameOrder::Changes;
        let is_wanted =
            !self.team.is_alone() || evicts || self.choice.first.is_some() || is_ordered;
        let mut is_wanted = is_wanted || self.has_unknown_directories();
        for _ in 0..ROUNDS_AT_END {
            let is_stopped = progress.stop.load(Ordering::Relaxed);
            is_wanted |= self.target.relocated.unnamed().next().is_some();
            if is_stopped || !std::mem::take(&mut is_wanted) {
                break;
            }
            self.round_limit = u64::MAX;
            let settled = SystemTime::now() + LONG;
            let round = self.round(settled, options.threads, progress);
            shared_files += round.files;
            shared_bytes += round.bytes;
            // The final stage keeps no order.
            let is_waiting = |file: &PendingFile| file.state == PendingState::Waiting;
            is_wanted = is_ordered && round.pending.iter().any(is_waiting);
            // Some copies of evicted files do not have the files' names yet: programs may have renamed a directory just
            // now.
            is_wanted |= !self.target.copies.held().is_empty();
        }
        self.prefetched.read_new();
        let snapshot = self.walk();
        self.prefetched
            .adopt(&snapshot, &self.to, &mut self.target.moved);
        if !progress.stop.load(Ordering::Relaxed) {
            self.target.retire_unnamed(snapshot.walk);
        }
        self.adopt_leftovers(&snapshot);
        let is_stopped = progress.stop.load(Ordering::Relaxed);
        // Only a round finds the copies of evicted files.
        if snapshot.unread.is_empty() && !is_stopped {
            // The final stage reports each node that is still in the way.
            self.editor().clear_the_way(&snapshot);
            self.clear_whited_out(&snapshot);
        }
        let pair = StagePair {
            source: self.from.join("."),
            target: self.to.path.clone(),
        };
        let known = KnownSources {
            drain: self,
            there: Mutex::default(),
        };
        let (from, to) = (self.from.tree, self.to.tree);
        let mut summary = stage_with(from, to, &[pair], options, progress, &known, None);
        let there = known.there.into_inner();
        let there = there.unwrap_or_else(PoisonError::into_inner);
        if summary.stopped {
            let files = snapshot.of_kind(NodeKind::File);
            let is_left = |(path, node): &(&PathBuf, &SeenNode)| {
                !self.target.is_safe(path, node) && !there.contains(*path)
            };
            let left = files.filter(is_left).map(|(path, _)| self.from.join(path));
            summary.not_reached.extend(left);
        }
        summary.seconds = begun.elapsed().as_secs_f64();
        // The rounds before do not count by nodes.
        summary.nodes.clear();
        summary.files += shared_files;
        summary.bytes += shared_bytes;
        summary.xattrs_not_kept += std::mem::take(&mut self.xattrs_not_kept);
        summary.unchanged = summary.unchanged.saturating_sub(shared_files);
        if evicts {
            for (path, error) in self.replace_bases() {
                summary.fail(&self.from.join(&path), &self.to.join(&path), &error);
            }
        }
        for held in self.target.copies.held() {
            let target = self.to.join(held);
            let error = MoveError::Elsewhere(
                "the copy of an evicted file cannot get a name of the file yet".to_owned(),
            );
            summary.fail(&self.from.join(held), &target, &error);
        }
        if summary.is_complete() && snapshot.unread.is_empty() {
            let gone = self.editor().remove_all_gone(&snapshot);
            let hidden = self.remove_whited_out(&snapshot, &snapshot);
            let (filled, hidden): (Vec<_>, Vec<_>) =
                hidden.failed.into_iter().partition(|(path, error)| {
                    error.is_directory_not_empty() && snapshot.get(path).is_none()
                });
            let filled = filled.into_iter().map(|(path, _)| self.to.join(path));
            summary.not_emptied.extend(filled);
            for (path, error) in gone.failed.into_iter().chain(hidden) {
                summary.fail(&self.from.join(&path), &self.to.join(&path), &error);
            }
        }
        if !summary.stopped {
            self.view().clear_hidden_directories(&snapshot);
        }
        if let Some(log) = &mut self.events {
            log.note_finish(&self.target.moved, &self.from.path, &snapshot, &summary);
        }
        summary
    }

    /// To be called after everything was moved out of an elevated tree that stays. Makes its directories cover those of the
    /// target, so that later drains know that these are there.
    pub fn hand_over(&mut self) -> Result<(), MoveError> {
        let snapshot = self.walk();
        for (path, _) in snapshot.of_kind(NodeKind::Directory) {
            let (source, target) = (self.from.join(path), self.to.join(path));
            let there = self.to.tree.look_up(&target);
            let Some(there) = there.map_err(MoveError::io("looking for", &target))? else {
                continue; // somebody has removed it
            };
            let handed_over = self.from.tree.cover(&target, &source, there.mode & 0o7777);
            unless(handed_over, ErrorKind::NotFound).map_err(MoveError::io("noting", &source))?;
        }
        Ok(())
    }

    fn source_tree(&self) -> WalkedTree<'_, S> {
        WalkedTree {
            tree: self.from.tree,
            root: &self.from.path,
            filter: &self.choice.filter,
        }
    }

    fn walk(&mut self) -> TreeSnapshot {
        self.walks += 1;
        let began = self.from.tree.now();
        let before = self.ask_for_history(self.walks);
        let mut snapshot = self.source_tree().walk_below(Path::new(""), self.walks);
        let after = self.ask_for_history(self.walks);
        snapshot.began = began;
        snapshot.is_calm = is_calm(before.as_ref(), after.as_ref());
        self.early.note_walk(after.as_ref());
        let directories = snapshot.of_kind(NodeKind::Directory);
        let seen = directories.map(|(_, node)| node.version.ino);
        self.history.renames.forget_unseen(seen, snapshot.walk);
        match self.source_tree().whiteouts() {
            Ok(mut whiteouts) => {
                self.target.ownership.note_taken(&whiteouts);
                whiteouts.retain(|_, whiteout| whiteout.is_removed());
                snapshot.whiteouts = whiteouts;
            }
            Err(error) => snapshot.unread.push((PathBuf::new(), error)),
        }
        match self.source_tree().evicted_files() {
            Ok(evicted) => snapshot.evicted = evicted,
            Err(error) => snapshot.unread.push((PathBuf::new(), error)),
        }
        self.target
            .moved
            .note_walk(&snapshot, time_since_1970(began));
        snapshot
    }
}

/// The sources that earlier rounds moved.
struct KnownSources<'d, 't, S: FileTree, T: FileTree> {
    drain: &'d Drain<'t, S, T>,
    /// The files that are on the target, by the path below it.
    there: Mutex<HashSet<PathBuf>>,
}

impl<S: FileTree, T: FileTree> KnownSources<'_, '_, S, T> {
    fn below_source<'p>(&self, source: &'p Path) -> &'p Path {
        self.drain.from.strip(source)
    }
}

impl<S: FileTree, T: FileTree> StageCaller for KnownSources<'_, '_, S, T> {
    fn takes(&self, source: &Path, kind: NodeKind) -> bool {
        let path = self.below_source(source);
        !self.drain.target.copies.is_held(path)
            && StageCaller::takes(&self.drain.choice.filter, &Path::new("/").join(path), kind)
    }
    fn is_known(&self, source: &Path, stat: &Stat) -> bool {
        let path = self.below_source(source);
        let moved = self.drain.target.moved.get(path);
        moved.is_some_and(|moved| moved.is_version(FileVersion::from(stat)))
            && self.drain.view().has_kept_copy(path, stat)
    }
    fn may_replace(&self, target: &Path, there: &Stat) -> bool {
        let path = self.drain.to.strip(target);
        self.drain.target.may_replace(path, there)
    }
    fn likeness(&self, source: &Path, stat: &Stat) -> LikenessBy {
        let path = self.below_source(source);
        self.drain.target.likeness_of(path, stat.mtime, stat.btime)
    }
    fn has_made(&self, source: &Path) -> bool {
        self.drain.target.moved.has_made(self.below_source(source))
    }
    fn note_attempt(&self, target: &Path, source: &Stat) {
        let path = self.drain.to.strip(target);
        self.drain
            .target
            .ownership
            .note_placing_copy(path, Some(source));
    }
    fn note_there(&self, target: &Path) {
        let path = self.drain.to.strip(target).components().collect();
        let mut there = self.there.lock().unwrap_or_else(PoisonError::into_inner);
        there.insert(path);
    }
}
