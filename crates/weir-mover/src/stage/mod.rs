//! Moves trees of files: one thread walks the sources, several copy, on all nodes of an instance.
//!
//! A large file is cut into pieces, which several threads copy. Small files are copied in batches: a thread writes all
//! files of a batch before it syncs the first, so that a journaling file system commits many at once. A file gets further
//! names after its first one, and symbolic links are made after all files: `latest` never leads to a missing file.
//! Directories are synced when their content is complete, and then get their attributes.
//!
//! The command's process finds all files, and makes all names except those of files. It gives lists of files to movers on
//! other nodes, and pieces of files that are large enough for several nodes ([`team`], `elsewhere`).

mod elsewhere;
mod finish;
pub mod follow;
pub mod team;
mod walk;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use serde::{Deserialize, Serialize};
use weir_client::process::mounted::WriteState;
use weir_client::types::Stat;

use crate::copy::{
    compare, keep_xattrs, likeness, match_xattrs, FileCopy, Likeness, LikenessBy, ReadyCopy,
};
use crate::error::MoveError;
use crate::filter::PathFilter;
pub use crate::progress::StageProgress;
use crate::publish::check_replaceable;
use crate::queue::TaskQueue;
use crate::replaceable::Replaceable;
use crate::sources::StagePair;
use crate::summary::StageSummary;
use crate::tree::{FileTree, KeptAttributes, NodeKind};
use crate::unreadable::UnreadableSearch;
pub(crate) use finish::sync_directories;
use team::StageTeam;

/// The bytes of a large file that one thread copies at a time.
const PIECE_BYTES: u64 = 64 << 20;
/// The size up to which a file is small, bytes.
const SMALL_BYTES: u64 = 1 << 20;
/// The most files of a batch; all are open at once.
const BATCH_FILES: usize = 32;
/// The tasks that may wait.
const WAITING_TASKS: usize = 256;
/// The number of tries to copy a file that programs write meanwhile.
const TRIES: u32 = 3;

/// The parameters of a stage.
// Options of a command line, each by itself.
#[allow(clippy::struct_excessive_bools)]
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub struct StageOptions {
    /// The number of threads that copy in this process; 0 is one.
    pub threads: usize,
    /// Read everything back and compare.
    pub verify: bool,
    /// Laminate files whose bytes other nodes see only after the lamination; if false, these are not moved.
    pub laminate: bool,
    /// Move nothing but files.
    pub files_only: bool,
    /// Move no file that a program has open for writing.
    pub closed_only: bool,
}

/// Moves trees of files. A failure does not stop the move of the other nodes.
pub fn stage<S: FileTree, T: FileTree>(
    from: &S,
    to: &T,
    pairs: &[StagePair],
    options: StageOptions,
    progress: &StageProgress,
) -> StageSummary {
    stage_with(from, to, pairs, options, progress, &(), None)
}

/// The same for the paths that a filter takes, which are those of the source's tree. `team`: movers on other nodes that
/// help.
pub fn stage_chosen<S: FileTree, T: FileTree>(
    from: &S,
    to: &T,
    pairs: &[StagePair],
    options: StageOptions,
    progress: &StageProgress,
    filter: &PathFilter,
    team: Option<&StageTeam<'_>>,
) -> StageSummary {
    stage_with(from, to, pairs, options, progress, filter, team)
}

/// The caller of a stage: the choice of paths, and the memory of earlier stages.
pub(crate) trait StageCaller: Sync {
    /// True if a node is to be moved, or if this directory may have such nodes.
    fn takes(&self, _source: &Path, _kind: NodeKind) -> bool {
        true
    }
    /// True if a source with these attributes is known to be on the target: then the target is not examined.
    fn is_known(&self, _source: &Path, _stat: &Stat) -> bool {
        false
    }
    /// Notes that a file is at its target.
    fn note_there(&self, _target: &Path) {}
    /// True if the node that has the name of a target may be replaced.
    fn may_replace(&self, _target: &Path, there: &Stat) -> bool {
        Replaceable::Any.allows(there)
    }
    /// Notes that a target is about to get its name, with the size and the time of its source.
    fn note_attempt(&self, _target: &Path, _source: &Stat) {}
    /// Fails if a source with these attributes must not be copied, nor be taken for the target's node.
    fn check_content(&self, _source: &Path, _found: &Stat) -> Result<(), MoveError> {
        Ok(())
    }
    /// The way to check if the target has a source already, unless everything is verified.
    fn likeness(&self, _source: &Path, _stat: &Stat) -> LikenessBy {
        LikenessBy::Times
    }
    /// True if the caller has put the target's node there.
    fn has_made(&self, _source: &Path) -> bool {
        false
    }
    /// Notes that a target was equal to its source already.
    fn note_found(&self, _target: &Path, _source: &Stat) {}
    /// Notes that this stage gave a target its name. `copied`: the source, as it was when it was copied.
    fn note_named(&self, _target: &Path, _copied: Option<&Stat>) {}
}

impl StageCaller for () {}

impl StageCaller for PathFilter {
    fn takes(&self, source: &Path, kind: NodeKind) -> bool {
        // Without the dot that stands for the contents of a source.
        let source: PathBuf = source.components().collect();
        self.takes_kind(&source, kind)
    }
}

/// A stage for a caller inside this crate. For files that a team moves, the caller's `may_replace`, `likeness`, `has_made`
/// and `check_content` do not count, and it is not told of attempts and names.
pub(crate) fn stage_with<S: FileTree, T: FileTree>(
    from: &S,
    to: &T,
    pairs: &[StagePair],
    options: StageOptions,
    progress: &StageProgress,
    caller: &dyn StageCaller,
    team: Option<&StageTeam<'_>>,
) -> StageSummary {
    let begun = Instant::now();
    let run = StageRun {
        team,
        rank: team.map_or(0, StageTeam::rank),
        queue: TaskQueue::new(team.map_or(0, StageTeam::rank), WAITING_TASKS),
        ..StageRun::new(from, to, options, progress, caller)
    };
    let walked = run.copy_pairs(pairs);
    run.finish(walked);
    run.into_summary(begun)
}

/// A function that gets the target and the copy of each file that only lacks its name.
pub(crate) type ReadySink<'r, 't, T> = dyn Fn(&Path, ReadyCopy<'t, T>) + Sync + 'r;

/// A stage of files only that names none of them, and syncs no directory. Also returns their further names.
pub(crate) fn stage_unnamed<'t, S: FileTree, T: FileTree>(
    from: &'t S,
    to: &'t T,
    pairs: &[StagePair],
    options: StageOptions,
    progress: &StageProgress,
    caller: &dyn StageCaller,
    ready: &ReadySink<'_, 't, T>,
) -> (StageSummary, Vec<FurtherName>) {
    let begun = Instant::now();
    let run = StageRun {
        ready: Some(ready),
        ..StageRun::new(from, to, options, progress, caller)
    };
    let links = run.copy_pairs(pairs).links;
    (run.into_summary(begun), links)
}

/// The most files of a batch: in each thread the sources and targets of one batch are open at the same time.
fn batch_files(threads: usize) -> usize {
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
    let spared = limit.map_or(u64::MAX, |limit| limit / 2);
    let each = usize::try_from(spared).unwrap_or(usize::MAX) / (2 * threads.max(1));
    each.clamp(1, BATCH_FILES)
}

/// Small files that wait for their batch to be full, by the rank of the server that has them.
type SmallFiles = BTreeMap<u16, Vec<FoundFile>>;

/// The nodes that are finished after all files.
#[derive(Debug, Default)]
struct Walked {
    /// The first target of each file that has several names, by device and inode.
    linked: HashMap<(u64, u64), PathBuf>,
    links: Vec<FurtherName>,
    symlinks: Vec<FoundSymlink>,
    small: SmallFiles,
    directories: Vec<FoundDirectory>,
    /// Directories of the target whose names change.
    changed: BTreeSet<PathBuf>,
}

#[derive(Debug)]
pub(crate) struct FurtherName {
    pub source: PathBuf,
    pub first: PathBuf,
    pub target: PathBuf,
    pub stat: Stat,
}

#[derive(Debug)]
struct FoundSymlink {
    source: PathBuf,
    target: PathBuf,
    content: PathBuf,
    stat: Stat,
}

#[derive(Debug)]
struct FoundDirectory {
    source: PathBuf,
    target: PathBuf,
    stat: Stat,
    /// It covers a directory of the target.
    covers_target: bool,
}

/// A file that is to be copied.
#[derive(Debug)]
struct FoundFile {
    source: PathBuf,
    target: PathBuf,
    /// As the walk has found it.
    stat: Stat,
    /// It has further names.
    is_linked: bool,
    /// No node had the target's name so far.
    is_new: bool,
    /// The number of times that a node had no room for it.
    refusals: usize,
    /// The number of this try, from 1.
    tries: u32,
}

#[derive(Debug)]
enum StageTask<'t, S: FileTree, T: FileTree> {
    Files(Vec<FoundFile>),
    Piece(Arc<PiecewiseCopy<'t, S, T>>, u64),
}

/// A large file, copied by several threads.
#[derive(Debug)]
struct PiecewiseCopy<'t, S: FileTree, T: FileTree> {
    file: FoundFile,
    copy: FileCopy<'t, S, T>,
    failed: Mutex<Option<MoveError>>,
    /// The bytes that movers on other nodes have copied, by rank.
    elsewhere: Mutex<BTreeMap<u16, u64>>,
}

impl<S: FileTree, T: FileTree> PiecewiseCopy<'_, S, T> {
    fn failed(&self) -> MutexGuard<'_, Option<MoveError>> {
        self.failed.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn elsewhere(&self) -> MutexGuard<'_, BTreeMap<u16, u64>> {
        let elsewhere = self.elsewhere.lock();
        elsewhere.unwrap_or_else(PoisonError::into_inner)
    }

    /// The bytes of a piece: whole stripes.
    fn piece_bytes(&self) -> u64 {
        self.copy.stripe().round_up(PIECE_BYTES)
    }

    /// The range of the piece that begins at this offset.
    fn piece(&self, at: u64) -> Range<u64> {
        at..(at + self.piece_bytes()).min(self.copy.size())
    }
}

struct StageRun<'r, 't, S: FileTree, T: FileTree> {
    from: &'t S,
    to: &'t T,
    options: StageOptions,
    caller: &'r dyn StageCaller,
    progress: &'r StageProgress,
    team: Option<&'r StageTeam<'r>>,
    /// Takes the copies without names; `None`: files get their names when they are copied.
    ready: Option<&'r ReadySink<'r, 't, T>>,
    /// The rank of the server beside this process.
    rank: u16,
    /// The most files of a batch.
    batch_files: usize,
    unreadable: UnreadableSearch,
    queue: TaskQueue<StageTask<'t, S, T>>,
    /// The targets that have their names and will get further ones.
    first_names: Mutex<HashMap<PathBuf, Option<Stat>>>,
    summary: Mutex<StageSummary>,
}

impl<'r, 't, S: FileTree, T: FileTree> StageRun<'r, 't, S, T> {
    fn new(
        from: &'t S,
        to: &'t T,
        options: StageOptions,
        progress: &'r StageProgress,
        caller: &'r dyn StageCaller,
    ) -> StageRun<'r, 't, S, T> {
        StageRun {
            from,
            to,
            options,
            caller,
            progress,
            team: None,
            ready: None,
            rank: 0,
            batch_files: batch_files(options.threads),
            unreadable: UnreadableSearch::default(),
            queue: TaskQueue::new(0, WAITING_TASKS),
            first_names: Mutex::default(),
            summary: Mutex::default(),
        }
    }

    /// Copies the files at and below the sources.
    fn copy_pairs(&self, pairs: &[StagePair]) -> Walked {
        let mut walked = Walked::default();
        self.copy_all(|| {
            for pair in pairs {
                self.walk(pair, &mut walked);
            }
            self.add_batches(&mut walked.small);
            self.progress.is_walked.store(true, Ordering::Relaxed);
        });
        walked
    }

    fn into_summary(self, begun: Instant) -> StageSummary {
        let summary = self.summary.into_inner();
        let mut summary = summary.unwrap_or_else(PoisonError::into_inner);
        summary.nodes.sort_by_key(|node| node.server);
        summary.stopped = self.progress.begins_no_more();
        summary.seconds = begun.elapsed().as_secs_f64();
        summary
    }

    /// Copies all files that `find` adds to the queue.
    fn copy_all(&self, find: impl FnOnce()) {
        self.queue.open();
        std::thread::scope(|scope| {
            for _ in 0..self.options.threads.max(1) {
                scope.spawn(|| {
                    let mut buffer = Vec::new();
                    self.queue.work(self.rank, |task| {
                        self.act(task, &mut buffer);
                        Ok(())
                    });
                });
            }
            if let Some(team) = self.team {
                scope.spawn(|| self.work_elsewhere(scope, team));
            }
            find();
            self.queue.close();
        });
    }

    fn first_names(&self) -> MutexGuard<'_, HashMap<PathBuf, Option<Stat>>> {
        let names = self.first_names.lock();
        names.unwrap_or_else(PoisonError::into_inner)
    }

    fn summary(&self) -> MutexGuard<'_, StageSummary> {
        self.summary.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn is_stopped(&self) -> bool {
        self.progress.stop.load(Ordering::Relaxed)
    }

    fn act(&self, task: StageTask<'t, S, T>, buffer: &mut Vec<u8>) {
        match task {
            StageTask::Files(files) => self.copy_files(files, buffer),
            StageTask::Piece(whole, at) => self.copy_piece(whole, at, buffer),
        }
    }

    /// Copies the files of a batch, then publishes them.
    fn copy_files(&self, files: Vec<FoundFile>, buffer: &mut Vec<u8>) {
        let mut copied = Vec::with_capacity(files.len());
        for file in files {
            let copy = match self.begin_file(&file) {
                Ok(Some(copy)) => copy,
                Ok(None) => continue,
                Err(error) => {
                    self.failed(file, &error);
                    continue;
                }
            };
            if copy.size() > PIECE_BYTES {
                self.cut(file, copy);
            } else if let Err(error) = self.copy_whole(&copy, buffer) {
                drop(copy);
                self.failed(file, &error);
            } else {
                copied.push((file, copy));
            }
        }
        for (file, copy) in copied {
            self.publish(file, copy, &BTreeMap::new(), buffer);
        }
    }

    fn copy_whole(&self, copy: &FileCopy<'t, S, T>, buffer: &mut Vec<u8>) -> Result<(), MoveError> {
        copy.copy(0..copy.size(), buffer, &|bytes| self.moved(bytes))?;
        copy.begin_sync();
        Ok(())
    }

    /// Begins to copy a file; `None`: the target has it already.
    fn begin_file(&self, file: &FoundFile) -> Result<Option<FileCopy<'t, S, T>>, MoveError> {
        let (source, target) = (&file.source, &file.target);
        if self.progress.begins_no_more() {
            return Err(MoveError::Stopped);
        }
        let looking = |path| MoveError::io("looking for", path);
        let stat = self.from.look_up(source).map_err(looking(source))?;
        let there = |stat: &Stat| {
            self.is_unchanged(file, stat.size);
            Ok(None)
        };
        if let Some(stat) = stat
            .as_ref()
            .filter(|stat| self.caller.is_known(source, stat))
        {
            return there(stat);
        }
        let found = match file.is_new {
            true => None,
            false => self.to.look_up(target).map_err(looking(target))?,
        };
        match (&stat, &found) {
            (Some(stat), Some(found)) if self.is_moved(file, stat, found) => {
                self.caller.check_content(source, stat)?;
                self.keep_attributes(source, target, stat, found)?;
                self.caller.note_found(target, stat);
                there(stat)
            }
            _ => {
                self.check_written(file)?;
                self.check_replaceable(target, found.as_ref())?;
                if let Some(stat) = &stat {
                    self.caller.note_attempt(target, stat);
                }
                let copy = FileCopy::begin(self.from, self.to, source, target, found)?;
                self.caller.check_content(source, copy.copied())?;
                Ok(Some(copy))
            }
        }
    }

    /// Refuses to replace a node that somebody else has put there.
    fn check_replaceable(&self, target: &Path, there: Option<&Stat>) -> Result<(), MoveError> {
        let may_replace = |there: &Stat| self.caller.may_replace(target, there);
        check_replaceable(target, there, may_replace)
    }

    /// Laminates or refuses a file whose bytes cannot all be read from here, and refuses or counts one that
    /// a program still writes.
    fn check_written(&self, file: &FoundFile) -> Result<(), MoveError> {
        match self.from.write_state(&file.source) {
            Ok(WriteState::Hidden) if self.options.laminate => {
                let laminated = self.from.laminate(&file.source);
                laminated.map_err(MoveError::io("laminating", &file.source))
            }
            Ok(WriteState::Hidden) => Err(MoveError::NotLaminated(file.source.clone())),
            Ok(WriteState::Open) if self.options.closed_only => {
                Err(MoveError::Open(file.source.clone()))
            }
            Ok(WriteState::Open) if file.tries == 1 => {
                self.summary().open += 1;
                Ok(())
            }
            // If the node of a writer does not answer, it may be lost: move the bytes that can be read.
            Ok(_) | Err(_) => Ok(()),
        }
    }

    /// True if the target has a file already. Compares bytes if that is wanted, or if times leave a doubt.
    fn is_moved(&self, file: &FoundFile, stat: &Stat, there: &Stat) -> bool {
        let is_equal =
            || compare(self.from, self.to, &file.source, &file.target, stat.size).is_ok();
        let is_by_times =
            !self.options.verify && self.caller.likeness(&file.source, stat) == LikenessBy::Times;
        match likeness(stat, there) {
            Likeness::Different => false,
            Likeness::Same if is_by_times => true,
            Likeness::Same | Likeness::Perhaps => is_equal(),
        }
    }

    /// Gives a file that the target has already the present attributes of its source.
    fn keep_attributes(
        &self,
        source: &Path,
        target: &Path,
        stat: &Stat,
        there: &Stat,
    ) -> Result<(), MoveError> {
        let is_own = || there.uid == rustix::process::geteuid().as_raw();
        let lost = match self.caller.has_made(source) {
            true => match_xattrs(self.from, self.to, source, target)?,
            // Users may have given the target's node other attributes.
            false if is_own() => keep_xattrs(self.from, self.to, source, target)?,
            false => 0,
        };
        self.summary().xattrs_not_kept += lost;
        let kept = KeptAttributes::from(stat);
        if kept.mode == there.mode & 0o7777 && !KeptAttributes::changes_group(kept.gid, there.gid) {
            return Ok(());
        }
        let changed = self.to.set_attributes(target, NodeKind::File, &kept);
        changed.map_err(MoveError::io("changing", target))
    }

    /// Notes that the target had a file of this size before.
    fn is_unchanged(&self, file: &FoundFile, size: u64) {
        self.moved(size);
        self.is_there(file, None);
        self.summary().unchanged += 1;
    }

    /// Notes that the target has a file. `copied`: the source, if it was copied now.
    fn is_there(&self, file: &FoundFile, copied: Option<Stat>) {
        self.progress.files_done.fetch_add(1, Ordering::Relaxed);
        self.caller.note_there(&file.target);
        if file.is_linked {
            self.first_names().insert(file.target.clone(), copied);
        }
    }

    /// Cuts a large file into pieces.
    fn cut(&self, file: FoundFile, copy: FileCopy<'t, S, T>) {
        let whole = Arc::new(PiecewiseCopy {
            file,
            copy,
            failed: Mutex::default(),
            elsewhere: Mutex::default(),
        });
        let piece_bytes = whole.piece_bytes();
        let pieces = whole.copy.size().div_ceil(piece_bytes);
        let task = |piece| {
            let at = piece * piece_bytes;
            let rank = self.rank_of_piece(&whole, at);
            (rank, StageTask::Piece(Arc::clone(&whole), at))
        };
        let tasks: Vec<_> = (0..pieces).map(task).collect();
        // From here on only the tasks hold it: the last one publishes it.
        drop(whole);
        self.queue.add_first(tasks.into_iter());
    }

    fn copy_piece(&self, whole: Arc<PiecewiseCopy<'t, S, T>>, at: u64, buffer: &mut Vec<u8>) {
        let piece = whole.piece(at);
        let goes_on = |bytes| self.moved(bytes) && whole.failed().is_none();
        if whole.failed().is_none() {
            if let Err(error) = whole.copy.copy(piece, buffer, &goes_on) {
                whole.failed().get_or_insert(error);
            }
        }
        self.end_piece(whole, buffer);
    }

    /// Publishes a large file after its last piece.
    fn end_piece(&self, whole: Arc<PiecewiseCopy<'t, S, T>>, buffer: &mut Vec<u8>) {
        let Some(whole) = Arc::into_inner(whole) else {
            return;
        };
        let elsewhere = std::mem::take(&mut *whole.elsewhere());
        let failed = whole.failed.into_inner();
        match failed.unwrap_or_else(PoisonError::into_inner) {
            Some(error) => {
                drop(whole.copy);
                self.failed(whole.file, &error);
            }
            None => self.publish(whole.file, whole.copy, &elsewhere, buffer),
        }
    }

    /// Gives a copy its name. `elsewhere`: the bytes that movers of other nodes have copied.
    fn publish(
        &self,
        file: FoundFile,
        copy: FileCopy<'t, S, T>,
        elsewhere: &BTreeMap<u16, u64>,
        buffer: &mut Vec<u8>,
    ) {
        let (size, copied) = (copy.size(), *copy.copied());
        // A program may have opened the file before the copy began: then the copy may have a part of a version.
        let checked = match self.options.closed_only {
            true => self.check_written(&file),
            false => Ok(()),
        };
        let ready = checked.and_then(|()| copy.make_ready(self.options.verify, buffer));
        let named = match (ready, self.ready) {
            (Ok(ready), Some(sink)) => return sink(&file.target, ready),
            (Ok(ready), None) => ready.publish(),
            (Err(error), _) => Err(error),
        };
        match named {
            Ok(lost) => {
                self.caller.note_named(&file.target, Some(&copied));
                self.is_there(&file, Some(copied));
                let mut summary = self.summary();
                for (rank, bytes) in elsewhere {
                    summary.add_share(*rank, 0, *bytes);
                }
                let here = size - elsewhere.values().sum::<u64>();
                summary.add_share(self.rank, 1, here);
                summary.xattrs_not_kept += lost;
            }
            Err(error) => self.failed(file, &error),
        }
    }

    /// Notes bytes that were moved; false: the stage must end.
    fn moved(&self, bytes: u64) -> bool {
        self.progress.bytes_done.fetch_add(bytes, Ordering::Relaxed);
        !self.is_stopped()
    }

    fn try_again(&self, mut file: FoundFile) {
        file.tries += 1;
        let again = StageTask::Files(vec![file]);
        self.queue.add_first(std::iter::once((self.rank, again)));
    }

    fn failed(&self, mut file: FoundFile, error: &MoveError) {
        match error {
            MoveError::SourceChanged(_) if file.tries < TRIES => {
                self.try_again(file);
            }
            // Somebody else has put a node there since this stage made the directory.
            MoveError::TargetChanged(_) if file.is_new => {
                file.is_new = false;
                self.try_again(file);
            }
            // `StageSummary::stopped` reports it once.
            MoveError::Stopped => {}
            error if error.is_out_of_room() && self.has_other_node(&mut file) => {
                self.pass_on(file);
            }
            error => {
                self.progress.files_done.fetch_add(1, Ordering::Relaxed);
                let reason = self.unreadable.describe(self.from, &file.source, error);
                let mut summary = self.summary();
                summary.is_target_full |= error.is_out_of_room();
                summary.fail(&file.source, &file.target, &reason);
            }
        }
    }
}
