//! Lists of files that are moved together: by this process, or by one on another node.

use std::collections::HashMap;
use std::fmt::Debug;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;
use std::sync::{Mutex, PoisonError};

use serde::{Deserialize, Serialize};
use weir_client::types::{Stat, Time};

use super::lists::{lists_of, ListedFile, RankQueue};
use super::marks::Replaceable;
use super::snapshot::FileVersion;
use crate::error::MoveError;
use crate::piece::FilePiece;
use crate::sources::StagePair;
use crate::stage::{stage_with, StageCaller, StageOptions, StageProgress};
use crate::summary::StageSummary;
use crate::tree::FileTree;

/// A file that is to be moved.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct FileOrder {
    /// Where it is, and where it is to be.
    pub pair: StagePair,
    /// The nodes that it may replace there.
    pub replaces: Replaceable,
}

/// Something that moves lists of files: a process on another node.
pub trait FileMover: Send + Sync + Debug {
    /// The rank of its node's server.
    fn rank(&self) -> u16;
    /// Moves files, none that a program has open for writing. An error: it is gone, and another mover
    /// moves them again.
    fn move_files(&self, files: &[FileOrder]) -> io::Result<MovedFiles>;
    /// Copies a piece of a large file; the reason if it cannot.
    fn move_piece(&self, piece: &FilePiece) -> io::Result<Result<(), String>>;
}

/// The result of moving a list of files.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct MovedFiles {
    /// Files that were copied.
    pub copied: u64,
    /// Bytes of them.
    pub bytes: u64,
    /// True if it was stopped before its end.
    pub stopped: bool,
    /// In the order of the list.
    pub files: Vec<MovedFile>,
}

/// The result of moving a file.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct MovedFile {
    /// True if its target has its name from this move.
    pub is_named: bool,
    /// The source, when it was copied.
    version: Option<WireVersion>,
    /// The reason why it is not safe.
    pub failure: Option<String>,
}

impl MovedFile {
    /// The version that was copied, as this node sees it.
    pub(super) fn version(&self, dev: u64) -> Option<FileVersion> {
        let version = self.version?;
        Some(FileVersion {
            dev,
            ino: version.ino,
            size: version.size,
            mtime: Time {
                sec: version.mtime.0,
                nsec: version.mtime.1,
            },
            ctime: Time {
                sec: version.ctime.0,
                nsec: version.ctime.1,
            },
        })
    }
}

/// A version on its way between nodes, which may give the instance different devices.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
struct WireVersion {
    ino: u64,
    size: u64,
    mtime: (i64, i64),
    ctime: (i64, i64),
}

impl From<&Stat> for WireVersion {
    fn from(stat: &Stat) -> WireVersion {
        WireVersion {
            ino: stat.ino,
            size: stat.size,
            mtime: (stat.mtime.sec, stat.mtime.nsec),
            ctime: (stat.ctime.sec, stat.ctime.nsec),
        }
    }
}

impl MovedFile {
    /// Of a file that this process moved; `None`: it was there.
    pub(super) fn new(moved: Result<Option<Stat>, MoveError>) -> MovedFile {
        let (version, failure) = match moved {
            Ok(copied) => (copied.as_ref().map(WireVersion::from), None),
            Err(error) => (None, Some(error.to_string())),
        };
        MovedFile {
            is_named: version.is_some(),
            version,
            failure,
        }
    }
}

/// Moves files by this process.
pub fn move_files<S: FileTree, T: FileTree>(
    from: &S,
    to: &T,
    files: &[FileOrder],
    threads: usize,
    progress: &StageProgress,
) -> MovedFiles {
    let options = StageOptions {
        threads,
        written_files_only: true,
        ..StageOptions::default()
    };
    let caller = ListCaller::new(files);
    let pairs: Vec<StagePair> = files.iter().map(|file| file.pair.clone()).collect();
    let summary = stage_with(from, to, &pairs, options, progress, &caller);
    let named = caller.named.into_inner();
    let mut named = named.unwrap_or_else(PoisonError::into_inner);
    let reasons = reasons_of(&summary);
    let result_of = |file: &FileOrder| {
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
    replaces: HashMap<&'l Path, &'l Replaceable>,
    /// The targets that got their names, with the versions that were copied.
    named: Mutex<HashMap<PathBuf, Option<WireVersion>>>,
}

impl<'l> ListCaller<'l> {
    fn new(files: &'l [FileOrder]) -> ListCaller<'l> {
        let replaces = files
            .iter()
            .map(|file| (&*file.pair.target, &file.replaces));
        ListCaller {
            replaces: replaces.collect(),
            named: Mutex::default(),
        }
    }
}

impl StageCaller for ListCaller<'_> {
    fn may_replace(&self, target: &Path, there: &Stat) -> bool {
        let replaces = self.replaces.get(target);
        replaces.is_none_or(|replaces| replaces.allows(there))
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
    here: impl Fn(&[FileOrder]) -> MovedFiles + Sync,
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
    let orders = |list: &[usize]| -> Vec<FileOrder> {
        list.iter().map(|file| files[*file].order.clone()).collect()
    };
    let is_stopped = || progress.stop.load(Ordering::Relaxed);
    std::thread::scope(|scope| {
        for mover in helpers {
            let (next, keep, orders, lists) = (&next, &keep, &orders, &lists);
            scope.spawn(move || {
                while let Some(list) = next(mover.rank()).filter(|_| !is_stopped()) {
                    let Ok(moved) = mover.move_files(&orders(&list)) else {
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
            let moved = here(&orders(&list));
            keep(list, moved, false);
        }
    });
    // A mover may be lost when all others are done: this process moves its lists.
    while let Some(list) = lists.take_any().filter(|_| !is_stopped()) {
        let moved = here(&orders(&list));
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
