//! The files of a drain that are held back for their analysis: the questions of rounds, copies and evictions to the table
//! of `analysis`.

use std::path::Path;
use std::sync::Arc;
use std::time::SystemTime;

use weir_client::process::mounted::WriteState;

use super::analysis::{AnalysisHold, AnalysisTable, AnalysisTask};
use super::snapshot::{FileVersion, SeenNode, TreeSnapshot};
use super::{Drain, DrainRound, PendingFile, PendingState, LONG};
use crate::content::ContentStamp;
use crate::side::MoveSide;
use crate::stage::StageProgress;
use crate::tree::FileTree;

/// The files that a round has left for analyzers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum AnalysesLeft {
    /// There are none.
    None,
    /// Some are queued, or under analysis.
    Queued,
    /// A later round queues some, once other nodes with their names are removed from the target.
    Blocked,
}

/// The files that are held back. `None`: there are none.
#[derive(Clone, Debug, Default)]
pub(super) struct HeldFiles(Option<Arc<AnalysisTable>>);

impl HeldFiles {
    /// The state of a closed file that is not copied before its analysis.
    pub fn hold_if_awaited(
        &self,
        path: &Path,
        version: &FileVersion,
        is_settled: bool,
    ) -> Option<PendingState> {
        let table = self.0.as_ref()?;
        match table.queue(path, version.into(), is_settled) {
            AnalysisHold::Free | AnalysisHold::Analysed => None,
            AnalysisHold::Unsettled => Some(PendingState::Waiting),
            AnalysisHold::Held => Some(PendingState::Analysis),
        }
    }

    /// True if a file is to be analysed, with any content.
    pub fn is_wanted(&self, path: &Path) -> bool {
        self.0.as_ref().is_some_and(|table| table.wants(path))
    }

    /// The only content of a file that may be copied.
    pub fn only_content(&self, path: &Path) -> Option<ContentStamp> {
        self.0.as_ref()?.content(path)
    }

    /// Forgets the analyses of files that a walk did not see any more, and queues outdated analyses again if the file is
    /// closed with the same content.
    pub fn review<S: FileTree>(&self, walk: &TreeSnapshot, from: &MoveSide<'_, S>) {
        let Some(table) = &self.0 else {
            return;
        };
        table.forget_outdated(walk);
        for (path, content) in table.outdated() {
            // If a program writes the file, it will have another content.
            let state = from.tree.write_state(&from.join(&path));
            if matches!(state, Ok(WriteState::Written)) {
                table.queue(&path, content, true);
            }
        }
    }

    /// Queues a file that has been moved without its analysis, because a write waited for room.
    pub fn queue_moved(&self, path: &Path, version: &FileVersion) {
        if let Some(table) = &self.0 {
            table.queue(path, version.into(), true);
        }
    }

    /// True if the analysis of a file is not done.
    pub fn is_awaited(&self, path: &Path, node: &SeenNode) -> bool {
        let table = self.0.as_ref();
        table.is_some_and(|table| table.is_awaited(path, (&node.version).into()))
    }

    /// True if files are kept for their analysis.
    pub fn keeps_files(&self) -> bool {
        self.0.as_ref().is_some_and(|table| !table.is_yielding())
    }
}

impl<S: FileTree, T: FileTree> Drain<'_, S, T> {
    /// Holds files back for the analyzers of a table from now on.
    pub fn hold_for_analysis(&mut self, table: Arc<AnalysisTable>) {
        self.held_files = HeldFiles(Some(table));
    }

    /// A round after the last write of the programs, for which all files count as settled. Files that would be laminated at
    /// the end are laminated now if they are to be analysed.
    pub fn round_at_end(
        &mut self,
        laminates: bool,
        threads: usize,
        progress: &StageProgress,
    ) -> DrainRound {
        let settled = SystemTime::now() + LONG;
        self.hurry(false);
        let round = self.round(settled, threads, progress);
        let Some(table) = self.held_files.0.clone().filter(|_| laminates) else {
            return round;
        };
        let is_hidden = |file: &&PendingFile| file.state == PendingState::Unlaminated;
        let hidden = round.pending.iter().filter(is_hidden);
        let wanted = hidden.filter(|file| table.wants(&file.path));
        // If a file cannot be laminated, the final stage tries it again, and reports it.
        let laminated = wanted
            .filter(|file| self.from.tree.laminate(&self.from.join(&file.path)).is_ok())
            .count();
        match laminated {
            0 => round,
            _ => self.round(settled, threads, progress),
        }
    }

    /// The analyses that a round has left.
    pub fn left_for_analysis(&self, round: &DrainRound) -> AnalysesLeft {
        let table = self.held_files.0.as_ref();
        let is_held = |file: &PendingFile| file.state == PendingState::Analysis;
        let is_blocked = |file: &PendingFile| {
            file.state == PendingState::Waiting && self.held_files.is_wanted(&file.path)
        };
        // This includes files that were moved while a write waited.
        if table.is_some_and(|table| table.unfinished() > 0) || round.pending.iter().any(is_held) {
            AnalysesLeft::Queued
        } else if round.pending.iter().any(is_blocked) {
            AnalysesLeft::Blocked
        } else {
            AnalysesLeft::None
        }
    }

    /// Notes that a file has its name on the target, however it got it.
    pub(super) fn note_placed(&self, path: &Path, version: &FileVersion) {
        self.target.note_placed(path, version);
        self.held_files.queue_moved(path, version);
    }
}

/// True if a file below `source` has the content of a task, and no program has it open for writing.
pub fn is_current<F: FileTree>(from: &F, source: &Path, task: &AnalysisTask) -> bool {
    let path = source.join(&task.path);
    let found = from.look_up(&path).ok().flatten();
    found.is_some_and(|stat| ContentStamp::from(&stat) == task.content)
        && matches!(from.write_state(&path), Ok(WriteState::Written))
}
