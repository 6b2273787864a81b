//! Lists of files that are moved together: by this process, or by one on another node.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;
use std::sync::{Mutex, PoisonError};

use weir_client::types::Stat;

use super::lists::{lists_of, ListedFile, RankQueue};
use super::mover::{FileMover, FileToMove, MovedFile, MovedFiles, WireVersion};
use crate::content::refuse_other_content;
use crate::error::MoveError;
use crate::sources::StagePair;
use crate::stage::{stage_with, LikenessBy, StageCaller, StageOptions, StageProgress};
use crate::summary::StageSummary;
use crate::tree::FileTree;

/// Moves files by this process.
pub fn move_files<S: FileTree, T: FileTree>(
    from: &S,
    to: &T,
    files: &[FileToMove],
    threads: usize,
    progress: &StageProgress,
) -> MovedFiles {
    move_alike(from, to, files, (threads, LikenessBy::Times), progress)
}

/// The same by some threads; says how files that are on the target are known.
pub(super) fn move_alike<S: FileTree, T: FileTree>(
    from: &S,
    to: &T,
    files: &[FileToMove],
    (threads, likeness): (usize, LikenessBy),
    progress: &StageProgress,
) -> MovedFiles {
    let options = StageOptions {
        threads,
        likeness,
        written_files_only: true,
        ..StageOptions::default()
    };
    let caller = ListCaller {
        by_source: files
            .iter()
            .map(|file| (&*file.pair.source, file))
            .collect(),
        by_target: files
            .iter()
            .map(|file| (&*file.pair.target, file))
            .collect(),
        named: Mutex::default(),
    };
    let pairs: Vec<StagePair> = files.iter().map(|file| file.pair.clone()).collect();
    let summary = stage_with(from, to, &pairs, options, progress, &caller);
    let named = caller.named.into_inner();
    let mut named = named.unwrap_or_else(PoisonError::into_inner);
    let reasons = reasons_of(&summary);
    let result_of = |file: &FileToMove| {
        let target = &file.pair.target;
        let version = named.remove(target);
        // A directory that could not be synced may lose its names, also that of the directory of the file.
        let mut synced = target.ancestors().take(3);
        let failure = synced.find_map(|path| reasons.get(path));
        MovedFile {
            is_named: version.is_some(),
            version: version.flatten(),
            failure: failure.map(|reason| (*reason).clone()),
        }
    };
    MovedFiles {
        copied: summary.files,
        bytes: summary.bytes,
        stopped: summary.stopped,
        files: files.iter().map(result_of).collect(),
    }
}

fn reasons_of(summary: &StageSummary) -> HashMap<&Path, &String> {
    let failed = summary.failed.iter();
    failed
        .map(|failed| (failed.target.as_path(), &failed.reason))
        .collect()
}

/// The caller of the stage of a list.
struct ListCaller<'l> {
    by_source: HashMap<&'l Path, &'l FileToMove>,
    by_target: HashMap<&'l Path, &'l FileToMove>,
    /// The targets that got their names, with the versions that were copied.
    named: Mutex<HashMap<PathBuf, Option<WireVersion>>>,
}

impl StageCaller for ListCaller<'_> {
    fn check_content(&self, source: &Path, found: &Stat) -> Result<(), MoveError> {
        let file = self.by_source.get(source);
        refuse_other_content(file.and_then(|file| file.content), source, found)
    }
    fn may_replace(&self, target: &Path, there: &Stat) -> bool {
        let file = self.by_target.get(target);
        file.is_none_or(|file| file.replaces.allows(there))
    }
    fn note_named(&self, target: &Path, copied: Option<&Stat>) {
        let mut named = self.named.lock().unwrap_or_else(PoisonError::into_inner);
        named.insert(target.to_owned(), copied.map(WireVersion::from));
    }
}

/// Moves files by `here`, a process beside the server of `rank`, and by all movers. Each takes lists of files that
/// its node has, then those of others.
pub(super) fn share_files(
    files: &[ListedFile],
    movers: &[Box<dyn FileMover>],
    rank: u16,
    here: impl Fn(&[FileToMove]) -> MovedFiles + Sync,
    progress: &StageProgress,
) -> Vec<MovedList> {
    let lists = RankQueue::new(lists_of(files).into_iter(), rank, movers);
    let helpers = lists.choose_helpers(movers);
    let next = |rank| lists.take_next(rank);
    let done = Mutex::new(Vec::new());
    let keep = |files: Vec<usize>, moved: MovedFiles, is_remote| {
        let mut done = done.lock().unwrap_or_else(PoisonError::into_inner);
        done.push(MovedList {
            files,
            moved,
            is_remote,
        });
    };
    let files_of = |list: &[usize]| -> Vec<FileToMove> {
        list.iter().map(|file| files[*file].file.clone()).collect()
    };
    let is_stopped = || progress.stop.load(Ordering::Relaxed);
    std::thread::scope(|scope| {
        for mover in helpers {
            let (next, keep, files_of, lists) = (&next, &keep, &files_of, &lists);
            scope.spawn(move || {
                while let Some(list) = next(mover.rank()).filter(|_| !is_stopped()) {
                    let Ok(moved) = mover.move_files(&files_of(&list)) else {
                        return lists.give_back(mover.rank(), list);
                    };
                    let size = list.iter().map(|file| files[*file].size).sum();
                    progress
                        .files_found
                        .fetch_add(list.len() as u64, Ordering::Relaxed);
                    progress.bytes_found.fetch_add(size, Ordering::Relaxed);
                    progress
                        .files_done
                        .fetch_add(list.len() as u64, Ordering::Relaxed);
                    progress.bytes_done.fetch_add(size, Ordering::Relaxed);
                    keep(list, moved, true);
                }
            });
        }
        while let Some(list) = next(rank).filter(|_| !is_stopped()) {
            let moved = here(&files_of(&list));
            keep(list, moved, false);
        }
    });
    // A mover may be lost when all others are done: this process moves its lists.
    while let Some(list) = lists.take_any().filter(|_| !is_stopped()) {
        let moved = here(&files_of(&list));
        keep(list, moved, false);
    }
    done.into_inner().unwrap_or_else(PoisonError::into_inner)
}

/// A list that was moved.
#[derive(Debug)]
pub(super) struct MovedList {
    /// The numbers of its files.
    pub files: Vec<usize>,
    pub moved: MovedFiles,
    /// By another process.
    pub is_remote: bool,
}
