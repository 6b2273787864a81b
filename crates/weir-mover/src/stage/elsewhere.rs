//! The part of a stage that movers on other nodes do: they move lists of files, and copy pieces of large ones.
//!
//! If a mover could not move a file, this process tries it, and reports its own error. The tasks of a lost mover wait in
//! the queue again; the work of a mover is counted when its answer arrives.

use std::collections::VecDeque;
use std::sync::Arc;
use std::thread::Scope;
use std::time::Duration;

use super::team::{FilePlacement, StageTeam, TeamChange};
use super::{FoundFile, PiecewiseCopy, StageRun, StageTask};
use crate::content::ContentStamp;
use crate::copy::LikenessBy;
use crate::mover::{
    FileMover, FileToMove, MovedFile, MovedFiles, LARGE_BYTES, LIST_BYTES, LIST_FILES,
};
use crate::piece::FilePiece;
use crate::queue::KeptTasks;
use crate::replaceable::Replaceable;
use crate::sources::StagePair;
use crate::tree::{holder_of_file, FileTree};

/// The interval between two checks for new movers.
const LOOK: Duration = Duration::from_millis(20);
/// The most returns of a file, for which this node has no room, beyond one for each other node without room.
const MOST_RETURNS: usize = 8;
/// A mover that could move none of this many files gets no more.
const USELESS_FILES: usize = 16;

/// The results of a mover so far.
#[derive(Default)]
struct MoverRecord {
    moved: usize,
    failed: usize,
}

impl MoverRecord {
    fn is_useless(&self) -> bool {
        self.moved == 0 && self.failed >= USELESS_FILES
    }
}

impl<'t, S: FileTree, T: FileTree> StageRun<'_, 't, S, T> {
    /// Invites other nodes once there is enough to move.
    pub(super) fn invite_team(&self, files: u64, bytes: u64) {
        if let Some(team) = self.team {
            team.invite(files, bytes, |rank| self.expect(team, rank));
        }
    }

    /// Keeps tasks for an expected mover: all of its tasks, if each node gets its share of the files.
    fn expect(&self, team: &StageTeam<'_>, rank: u16) {
        let kept = match team.placement() {
            FilePlacement::Held => KeptTasks::Last,
            FilePlacement::Spread => KeptTasks::All,
        };
        self.queue.expect(rank, kept);
    }

    /// True if another node may have room for a file for which this one has none.
    pub(super) fn has_other_node(&self, file: &mut FoundFile) -> bool {
        let Some(team) = self
            .team
            .filter(|team| team.placement() == FilePlacement::Spread)
        else {
            return false;
        };
        self.queue.keep_to_own(self.rank);
        file.refusals += 1;
        let others = team.note_full(self.rank);
        // A node without room is not counted the next time; a lost one returns the file.
        others > 0 && file.refusals <= others + MOST_RETURNS
    }

    /// Gives a file to another node.
    pub(super) fn pass_on(&self, file: FoundFile) {
        let rank = self.place(self.rank, file.stat.size);
        let task = StageTask::Files(vec![file]);
        self.queue.add_first(std::iter::once((rank, task)));
    }

    /// Notes that a node has no room: it gets no more files of other nodes.
    fn note_full(&self, rank: u16) {
        if let Some(team) = self.team {
            team.note_full(rank);
        }
        self.queue.keep_to_own(rank);
    }

    /// The rank of the server that has a file.
    pub(super) fn holder_of(&self, file: &FoundFile) -> u16 {
        match self.team {
            Some(team) if team.placement() == FilePlacement::Held => {
                let (ino, size) = (file.stat.ino, file.stat.size);
                holder_of_file(self.from, &file.source, ino, size, team.has_members())
            }
            _ => self.rank,
        }
    }

    /// The rank whose node does a task of this number of bytes.
    pub(super) fn place(&self, holder: u16, bytes: u64) -> u16 {
        self.team
            .map_or(self.rank, |team| team.place(holder, bytes))
    }

    /// The same for a piece.
    pub(super) fn rank_of_piece(&self, whole: &PiecewiseCopy<'t, S, T>, at: u64) -> u16 {
        let Some(team) = self.team.filter(|team| team.has_members()) else {
            return self.rank;
        };
        let piece = whole.piece(at);
        let bytes = piece.end - piece.start;
        let holder = match team.placement() {
            FilePlacement::Held => self.from.holder_of(&whole.file.source, piece),
            FilePlacement::Spread => Ok(None),
        };
        team.place(holder.ok().flatten().unwrap_or(self.rank), bytes)
    }

    /// Employs the movers of a team until all tasks are done.
    pub(super) fn work_elsewhere<'s>(&'s self, scope: &'s Scope<'s, '_>, team: &'s StageTeam<'_>) {
        let begin = |mover: Arc<dyn FileMover>| {
            self.queue.expect(mover.rank(), KeptTasks::Last);
            scope.spawn(move || self.employ(team, &*mover));
        };
        let (movers, awaited) = team.members();
        movers.into_iter().for_each(begin);
        for rank in awaited {
            self.expect(team, rank);
        }
        let mut is_told = false;
        while !self.queue.wait_for_end(LOOK) {
            for change in team.take_changes() {
                match change {
                    TeamChange::Arrived(mover) => begin(mover),
                    TeamChange::NotThere(rank) => self.queue.leave(rank),
                }
            }
            if self.is_stopped() && !std::mem::replace(&mut is_told, true) {
                team.stop()
                    .into_iter()
                    .for_each(|rank| self.queue.leave(rank));
            }
        }
    }

    /// Gives a mover tasks until all are done, or it is lost.
    fn employ(&self, team: &StageTeam<'_>, mover: &dyn FileMover) {
        let mut buffer = Vec::new();
        let mut record = MoverRecord::default();
        self.queue
            .work_lists(mover.rank(), list_length, |mut tasks| {
                let left = match tasks.pop() {
                    Some(StageTask::Piece(whole, at)) if tasks.is_empty() => {
                        self.copy_piece_elsewhere(mover, whole, at, &mut buffer)
                    }
                    Some(StageTask::Files(file)) if tasks.is_empty() && is_large(&file) => {
                        // This process begins the file, and cuts it.
                        self.copy_files(file, &mut buffer);
                        return Ok(());
                    }
                    last => {
                        let tasks = tasks.into_iter().chain(last);
                        let files = tasks.flat_map(files_of).collect();
                        self.move_list_elsewhere(mover, files, &mut record, &mut buffer)
                    }
                };
                let reason = match left.is_err() {
                    true if self.is_stopped() => "the stage was stopped",
                    true => "it was lost, and others do its work",
                    false if record.is_useless() => "it could not move files that others can move",
                    false => return Ok(()),
                };
                team.dismiss(mover.rank(), reason);
                Err(left.err().unwrap_or_default())
            });
    }

    /// Gives a piece to a mover. An error has the piece: the mover is lost.
    fn copy_piece_elsewhere(
        &self,
        mover: &dyn FileMover,
        whole: Arc<PiecewiseCopy<'t, S, T>>,
        at: u64,
        buffer: &mut Vec<u8>,
    ) -> Result<(), Vec<StageTask<'t, S, T>>> {
        let range = whole.piece(at);
        let piece = FilePiece::new(
            &whole.file.source,
            whole.copy.copied(),
            whole.copy.part(),
            range.clone(),
        );
        let is_given_up = self.is_stopped() || whole.failed().is_some();
        let copied = match is_given_up {
            true => Ok(None),
            false => mover
                .move_piece(&piece)
                .map(|copied| Some(copied.map_err(|failure| failure.is_target_full))),
        };
        match copied {
            Ok(Some(Ok(()))) => {
                let bytes = range.end - range.start;
                self.moved(bytes);
                *whole.elsewhere().entry(mover.rank()).or_default() += bytes;
                self.end_piece(whole, buffer);
            }
            Ok(failed) => {
                if failed == Some(Err(true)) {
                    self.note_full(mover.rank());
                }
                self.copy_piece(whole, at, buffer);
            }
            Err(_) => return Err(vec![StageTask::Piece(whole, at)]),
        }
        Ok(())
    }

    /// Gives files to a mover. An error has the files: the mover is lost.
    fn move_list_elsewhere(
        &self,
        mover: &dyn FileMover,
        files: Vec<FoundFile>,
        record: &mut MoverRecord,
        buffer: &mut Vec<u8>,
    ) -> Result<(), Vec<StageTask<'t, S, T>>> {
        if self.is_stopped() {
            return Ok(());
        }
        let is_known = |file: &FoundFile| self.caller.is_known(&file.source, &file.stat);
        let (known, files): (Vec<_>, Vec<_>) = files.into_iter().partition(is_known);
        for file in &known {
            self.is_unchanged(file, file.stat.size);
        }
        if files.is_empty() {
            return Ok(());
        }
        let list: Vec<_> = files.iter().map(|file| self.file_to_move(file)).collect();
        let moved = match mover.move_files(&list) {
            Ok(moved) if moved.files.len() == files.len() => moved,
            _ => return Err(self.batches(files).map(StageTask::Files).collect()),
        };
        let number = files.len();
        let is_full = moved.is_target_full;
        if is_full {
            self.note_full(mover.rank());
        }
        let left = self.note_moved_elsewhere(mover.rank(), files, &moved);
        record.moved += number - left.len();
        record.failed += if is_full { 0 } else { left.len() };
        for batch in self.batches(left) {
            self.copy_files(batch, buffer);
        }
        Ok(())
    }

    /// Notes the files that a mover has moved. Returns those that it has not.
    fn note_moved_elsewhere(
        &self,
        rank: u16,
        files: Vec<FoundFile>,
        moved: &MovedFiles,
    ) -> Vec<FoundFile> {
        let mut left = Vec::new();
        for (file, result) in files.into_iter().zip(&moved.files) {
            let is_unknown = moved.stopped && !result.is_named;
            if is_unknown || result.failure.is_some() || !self.is_seen(&file) {
                // With this number of tries it is not counted again as open.
                left.push(FoundFile {
                    tries: file.tries.max(2),
                    ..file
                });
                continue;
            }
            match copied_bytes(result) {
                None => self.is_unchanged(&file, file.stat.size),
                Some(bytes) => {
                    self.moved(bytes);
                    self.is_there(&file, None);
                    self.summary().add_share(rank, 1, bytes);
                }
            }
        }
        let mut summary = self.summary();
        summary.open += moved.open;
        summary.xattrs_not_kept += moved.xattrs_not_kept;
        drop(summary);
        left
    }

    /// True if this node sees the target of a file that another node has moved. All nodes see the same instance.
    fn is_seen(&self, file: &FoundFile) -> bool {
        let is_instance = self
            .team
            .is_some_and(|team| team.placement() == FilePlacement::Spread);
        is_instance || matches!(self.to.look_up(&file.target), Ok(Some(_)))
    }

    fn file_to_move(&self, file: &FoundFile) -> FileToMove {
        let is_outside = self
            .team
            .is_some_and(|team| team.placement() == FilePlacement::Spread);
        FileToMove {
            pair: StagePair {
                source: file.source.clone(),
                target: file.target.clone(),
            },
            replaces: Replaceable::Any,
            // On the mover's node another file may have this path.
            content: is_outside.then(|| ContentStamp::from(&file.stat)),
            likeness: LikenessBy::Times,
            is_ours: false,
        }
    }

    /// Cuts files into batches.
    fn batches(&self, files: Vec<FoundFile>) -> impl Iterator<Item = Vec<FoundFile>> {
        let mut files = files.into_iter();
        let each = self.batch_files;
        std::iter::from_fn(move || {
            let batch: Vec<_> = files.by_ref().take(each).collect();
            (!batch.is_empty()).then_some(batch)
        })
    }
}

/// The number of tasks, from the first one on, for one list of a mover. A piece or a large file ends the list; 0: the first
/// task is one.
fn list_length<S: FileTree, T: FileTree>(tasks: &VecDeque<StageTask<'_, S, T>>) -> usize {
    let (mut files, mut bytes) = (0, 0);
    for (number, task) in tasks.iter().enumerate() {
        let StageTask::Files(batch) = task else {
            return number;
        };
        if is_large(batch) {
            return number;
        }
        files += batch.len();
        bytes += batch.iter().map(|file| file.stat.size).sum::<u64>();
        if files >= LIST_FILES || bytes >= LIST_BYTES {
            return number + 1;
        }
    }
    tasks.len()
}

/// True for a single file that all nodes copy.
fn is_large(files: &[FoundFile]) -> bool {
    matches!(files, [file] if file.stat.size > LARGE_BYTES)
}

fn files_of<S: FileTree, T: FileTree>(task: StageTask<'_, S, T>) -> Vec<FoundFile> {
    match task {
        StageTask::Files(files) => files,
        StageTask::Piece(..) => unreachable!("a list has files only"),
    }
}

/// The bytes of a file that was copied; `None`: it was there.
fn copied_bytes(moved: &MovedFile) -> Option<u64> {
    let copied = moved.version.as_ref().filter(|_| moved.is_named);
    copied.map(|version| version.size)
}
