//! Analysis in transit: files that are held back on the source until programs have analysed them.
//!
//! An *analyzer* names the files that it wants, and takes them one after the other. A file that a round would copy now
//! (state B of Data Elevator, HiPC 2016) is queued for each analyzer that wants it, and is copied once all of them are done
//! with it (M), even if an analysis failed, or an analyzer has left. Only the content that they saw is copied. A file that
//! is written again counts as a new one.
//!
//! Nothing is held back while the table *yields*, since a write waits for room. A file that was moved before its analysis
//! is queued all the same. It is evicted only while the table yields, after all others.
//!
//! Left out: files that are on the target when an analyzer joins, and the programs themselves.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::snapshot::TreeSnapshot;
use crate::content::ContentStamp;
use crate::filter::PathFilter;
use crate::tree::NodeKind;

/// The number of an analyzer, which it has drawn at random.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub struct AnalyzerId(pub u64);

/// A file that an analyzer has taken.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct AnalysisTask {
    /// Its path below the source.
    pub path: PathBuf,
    /// The content that is to be analysed.
    pub content: ContentStamp,
}

/// The result of a task.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum TaskResult {
    /// It succeeded.
    Analysed,
    /// It failed, and is not tried again.
    Failed,
    /// The file has another content, or is gone.
    Outdated,
}

/// The results so far.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct AnalysisCounts {
    /// Analyses that succeeded.
    pub analysed: u64,
    /// Those that failed.
    pub failed: u64,
}

/// The analyzers of a drain, and the files that wait for them.
#[derive(Debug, Default)]
pub struct AnalysisTable {
    state: Mutex<TableState>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct TableState {
    analyzers: BTreeMap<AnalyzerId, JoinedAnalyzer>,
    /// The last content of each file that was queued, as long as walks see it.
    files: BTreeMap<PathBuf, QueuedFile>,
    /// Tasks under way, also for contents that were replaced: an analyzer has one task for a path at a time.
    taken: BTreeSet<(AnalyzerId, PathBuf)>,
    /// The number of files that were queued.
    queued: u64,
    /// The number of changes, for [`AnalysisTable::wait_for_change`].
    changes: u64,
    counts: AnalysisCounts,
    yields: bool,
    is_closed: bool,
}

#[derive(Debug)]
struct JoinedAnalyzer {
    wanted: PathFilter,
    /// The number of times that it has joined and not left.
    joined: u32,
    /// Files in the order in which they were queued.
    queue: BTreeMap<u64, PathBuf>,
}

#[derive(Debug)]
struct QueuedFile {
    content: ContentStamp,
    /// Its place in the queues.
    number: u64,
    states: BTreeMap<AnalyzerId, AnalysisState>,
}

/// The state of a file for one analyzer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum AnalysisState {
    /// It is queued, or under analysis.
    Awaited,
    /// The analyzer met another content. If the file has this one again, it must be queued again.
    Outdated,
    Done,
}

/// The answer to a round that would copy a file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum AnalysisHold {
    /// No analyzer wants it, or nothing is held back.
    Free,
    /// It may change again soon.
    Unsettled,
    Held,
    Analysed,
}

impl TableState {
    /// The analyzers that want a file.
    fn wanting(&self, path: &Path) -> Vec<AnalyzerId> {
        if self.is_closed || self.analyzers.is_empty() {
            return Vec::new();
        }
        let path = Path::new("/").join(path);
        let analyzers = self.analyzers.iter();
        let wanting = analyzers.filter(|(_, analyzer)| analyzer.wanted.takes(&path));
        wanting.map(|(id, _)| *id).collect()
    }

    fn queue(&mut self, path: &Path, content: ContentStamp) -> AnalysisHold {
        let wanting = self.wanting(path);
        if self.files.get(path).is_some_and(|f| f.content != content) {
            self.forget(path);
        }
        let file = self.files.entry(path.to_owned()).or_insert_with(|| {
            self.queued += 1;
            QueuedFile {
                content,
                number: self.queued,
                states: BTreeMap::new(),
            }
        });
        let mut is_analysed = true;
        for id in wanting {
            let state = file.states.entry(id).or_insert(AnalysisState::Outdated);
            if *state == AnalysisState::Outdated {
                *state = AnalysisState::Awaited;
                self.changes += 1;
                if let Some(analyzer) = self.analyzers.get_mut(&id) {
                    analyzer.queue.insert(file.number, path.to_owned());
                }
            }
            is_analysed &= *state == AnalysisState::Done;
        }
        match is_analysed {
            true => AnalysisHold::Analysed,
            false => AnalysisHold::Held,
        }
    }

    fn forget(&mut self, path: &Path) {
        if let Some(file) = self.files.remove(path) {
            for analyzer in self.analyzers.values_mut() {
                analyzer.queue.remove(&file.number);
            }
        }
    }
}

impl AnalysisTable {
    fn state(&self) -> MutexGuard<'_, TableState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn change(&self, change: impl FnOnce(&mut TableState)) {
        let mut state = self.state();
        change(&mut state);
        state.changes += 1;
        self.changed.notify_all();
    }

    /// Holds files back for an analyzer until it has left as often as it joined. `wanted`: paths below the source, which
    /// begin with a slash.
    pub fn join(&self, id: AnalyzerId, wanted: &PathFilter) {
        self.change(|state| {
            let analyzer = state.analyzers.entry(id).or_insert_with(|| JoinedAnalyzer {
                wanted: wanted.clone(),
                joined: 0,
                queue: BTreeMap::new(),
            });
            analyzer.joined += 1;
        });
    }

    /// Ends one join of an analyzer. After the last one, nothing is held back for it any more.
    pub fn leave(&self, id: AnalyzerId) {
        self.change(|state| {
            let Some(analyzer) = state.analyzers.get_mut(&id) else {
                return;
            };
            analyzer.joined -= 1;
            if analyzer.joined == 0 {
                state.analyzers.remove(&id);
                state.taken.retain(|(by, _)| *by != id);
                for file in state.files.values_mut() {
                    file.states.remove(&id);
                }
            }
        });
    }

    /// The next file for an analyzer.
    pub fn take_task(&self, id: AnalyzerId) -> Option<AnalysisTask> {
        let state = &mut *self.state();
        let analyzer = state.analyzers.get_mut(&id)?;
        let taken = &state.taken;
        let is_free = |(_, path): &(&u64, &PathBuf)| !taken.contains(&(id, (*path).clone()));
        let number = *analyzer.queue.iter().find(is_free)?.0;
        let path = analyzer.queue.remove(&number)?;
        let content = state.files.get(&path)?.content;
        state.taken.insert((id, path.clone()));
        Some(AnalysisTask { path, content })
    }

    /// The number of files that wait for an analyzer, or that it has taken.
    pub fn unfinished_of(&self, id: AnalyzerId) -> u64 {
        let state = self.state();
        let analyzer = state.analyzers.get(&id);
        let queued = analyzer.map_or(0, |analyzer| analyzer.queue.len());
        let taken = state.taken.iter().filter(|(by, _)| *by == id);
        (queued + taken.count()) as u64
    }

    /// The number of analyses that are queued or under way, of all analyzers.
    pub fn unfinished(&self) -> u64 {
        let state = self.state();
        let queued = state.analyzers.values().map(|one| one.queue.len());
        (queued.sum::<usize>() + state.taken.len()) as u64
    }

    /// Notes the result of a task that an analyzer took.
    pub fn end_task(&self, id: AnalyzerId, task: &AnalysisTask, result: TaskResult) {
        self.change(|state| {
            state.taken.remove(&(id, task.path.clone()));
            let file = state.files.get_mut(&task.path);
            let file = file.filter(|file| file.content == task.content);
            if let Some(file) = file {
                let state = match result {
                    // The next round finds the new content.
                    TaskResult::Outdated => AnalysisState::Outdated,
                    TaskResult::Analysed | TaskResult::Failed => AnalysisState::Done,
                };
                file.states.insert(id, state);
            }
            match result {
                TaskResult::Analysed => state.counts.analysed += 1,
                TaskResult::Failed => state.counts.failed += 1,
                TaskResult::Outdated => {}
            }
        });
    }

    /// Begins to copy files before their analyses are done, or ends that.
    pub fn set_yielding(&self, yields: bool) {
        self.state().yields = yields;
    }

    pub(super) fn is_yielding(&self) -> bool {
        self.state().yields
    }

    /// Holds nothing back any more.
    pub fn close(&self) {
        self.change(|state| state.is_closed = true);
    }

    /// True if nothing is held back any more.
    pub fn is_closed(&self) -> bool {
        self.state().is_closed
    }

    /// The number of analyzers.
    pub fn analyzers(&self) -> usize {
        self.state().analyzers.len()
    }

    /// The results so far.
    pub fn counts(&self) -> AnalysisCounts {
        self.state().counts
    }

    /// The number of changes so far, for [`AnalysisTable::wait_for_change`].
    pub fn changes(&self) -> u64 {
        self.state().changes
    }

    /// Waits until there are more changes than these, or for this time.
    pub fn wait_for_change(&self, changes: u64, time: Duration) {
        let is_same = |state: &mut TableState| state.changes == changes;
        drop(self.changed.wait_timeout_while(self.state(), time, is_same));
    }

    pub(super) fn wants(&self, path: &Path) -> bool {
        !self.state().wanting(path).is_empty()
    }

    /// Queues a file that a round would copy.
    pub(super) fn queue(
        &self,
        path: &Path,
        content: ContentStamp,
        is_settled: bool,
    ) -> AnalysisHold {
        let mut state = self.state();
        if state.wanting(path).is_empty() {
            return AnalysisHold::Free;
        }
        if !is_settled {
            return match state.yields {
                true => AnalysisHold::Free,
                false => AnalysisHold::Unsettled,
            };
        }
        let before = state.changes;
        let hold = state.queue(path, content);
        if state.changes != before {
            self.changed.notify_all();
        }
        match hold {
            AnalysisHold::Held if state.yields => AnalysisHold::Free,
            hold => hold,
        }
    }

    /// The only content of a file that may be copied.
    pub(super) fn content(&self, path: &Path) -> Option<ContentStamp> {
        let state = self.state();
        if state.yields || state.wanting(path).is_empty() {
            return None;
        }
        state.files.get(path).map(|file| file.content)
    }

    /// True if an analysis of this content is not done.
    pub(super) fn is_awaited(&self, path: &Path, content: ContentStamp) -> bool {
        let state = self.state();
        let file = state.files.get(path);
        file.filter(|file| file.content == content)
            .is_some_and(|file| file.states.values().any(|one| *one != AnalysisState::Done))
    }

    /// The files in which an analyzer has met another content.
    pub(super) fn outdated(&self) -> Vec<(PathBuf, ContentStamp)> {
        let state = self.state();
        let is_outdated = |file: &QueuedFile| {
            let mut states = file.states.values();
            states.any(|one| *one == AnalysisState::Outdated)
        };
        let files = state.files.iter().filter(|(_, file)| is_outdated(file));
        files
            .map(|(path, file)| (path.clone(), file.content))
            .collect()
    }

    /// Forgets files that a walk did not see, or saw with another content.
    pub(super) fn forget_outdated(&self, walk: &TreeSnapshot) {
        let mut state = self.state();
        let is_there = |path: &Path, file: &QueuedFile| {
            let node = walk.get(path).filter(|node| node.kind == NodeKind::File);
            node.is_some_and(|node| ContentStamp::from(&node.version) == file.content)
        };
        let files = state.files.iter();
        let outdated = files.filter(|(path, file)| !is_there(path, file));
        let outdated: Vec<PathBuf> = outdated.map(|(path, _)| path.clone()).collect();
        for path in outdated {
            state.forget(&path);
        }
    }
}
