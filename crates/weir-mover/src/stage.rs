//! Trees of files on their way: one thread walks the sources, several copy.
//!
//! A large file is cut into pieces, which several threads copy. Small files are copied in batches: a
//! thread writes all of a batch before it waits for the first to be on storage, so that a journaling
//! file system commits many at once. Directories get their attributes when all that is in them is
//! there; then they are synced, and only then the stage is complete.

use std::collections::{BTreeSet, HashMap};
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use weir_client::types::Stat;

use crate::copy::{
    check_kind, compare, is_part, keep_xattrs, looks_moved, part_of, publish_name, FileCopy,
    MoveError,
};
use crate::queue::TaskQueue;
use crate::sources::StagePair;
use crate::summary::StageSummary;
use crate::tree::{identity, kind_of, unless, FileTree, KeptAttributes, NodeKind};

/// The bytes of a large file that one thread copies at a time.
const PIECE_BYTES: u64 = 64 << 20;
/// The size up to which a file is small, bytes.
const SMALL_BYTES: u64 = 1 << 20;
/// The most files of a batch; all are open at once.
const BATCH_FILES: usize = 32;
/// The tasks that may wait.
const WAITING_TASKS: usize = 256;
/// The number of times that a file is copied which is written meanwhile.
const TRIES: u32 = 3;

/// The parameters of a stage.
#[derive(Clone, Copy, Debug)]
pub struct StageOptions {
    /// The number of threads that copy.
    pub threads: usize,
    /// Read everything back and compare.
    pub verify: bool,
}

/// The state of a stage, for the thread that shows it.
#[derive(Debug, Default)]
pub struct StageProgress {
    /// Files found so far.
    pub files_found: AtomicU64,
    /// Bytes of them.
    pub bytes_found: AtomicU64,
    /// Files done, copied or not.
    pub files_done: AtomicU64,
    /// Bytes of them, and of those under way.
    pub bytes_done: AtomicU64,
    /// True once all files were found.
    pub is_walked: AtomicBool,
    /// Set by anyone: ends the stage soon.
    pub stop: Arc<AtomicBool>,
}

/// Moves trees of files. All that could be moved was, whatever failed.
pub fn stage<S: FileTree, T: FileTree>(
    from: &S,
    to: &T,
    pairs: &[StagePair],
    options: StageOptions,
    progress: &StageProgress,
) -> StageSummary {
    let begun = Instant::now();
    let run = StageRun {
        from,
        to,
        options,
        progress,
        queue: TaskQueue::new(WAITING_TASKS),
        summary: Mutex::default(),
    };
    let walked = std::thread::scope(|scope| {
        for _ in 0..options.threads.max(1) {
            scope.spawn(|| {
                let mut buffer = Vec::new();
                run.queue.work(|task| run.act(task, &mut buffer));
            });
        }
        let mut walk = Walked::default();
        for pair in pairs {
            run.walk(pair, &mut walk);
        }
        run.add_batch(&mut walk.small);
        progress.is_walked.store(true, Ordering::Relaxed);
        run.queue.close();
        walk
    });
    run.finish(&walked);
    let mut summary = run
        .summary
        .into_inner()
        .unwrap_or_else(PoisonError::into_inner);
    summary.stopped = progress.stop.load(Ordering::Relaxed);
    summary.seconds = begun.elapsed().as_secs_f64();
    summary
}

/// The nodes that are finished after all files.
#[derive(Debug, Default)]
struct Walked {
    /// The first target of each file that has several names, by device and inode.
    linked: HashMap<(u64, u64), PathBuf>,
    links: Vec<FurtherName>,
    /// Small files that wait for their batch to be full.
    small: Vec<FoundFile>,
    directories: Vec<FoundDirectory>,
    /// Directories of the target whose names change.
    changed: BTreeSet<PathBuf>,
}

#[derive(Debug)]
struct FurtherName {
    source: PathBuf,
    first: PathBuf,
    target: PathBuf,
}

#[derive(Debug)]
struct FoundDirectory {
    source: PathBuf,
    target: PathBuf,
    stat: Stat,
}

/// A file that is to be copied.
#[derive(Debug)]
struct FoundFile {
    source: PathBuf,
    target: PathBuf,
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
}

impl<S: FileTree, T: FileTree> PiecewiseCopy<'_, S, T> {
    fn failed(&self) -> MutexGuard<'_, Option<MoveError>> {
        self.failed.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

struct StageRun<'t, S: FileTree, T: FileTree> {
    from: &'t S,
    to: &'t T,
    options: StageOptions,
    progress: &'t StageProgress,
    queue: TaskQueue<StageTask<'t, S, T>>,
    summary: Mutex<StageSummary>,
}

impl<'t, S: FileTree, T: FileTree> StageRun<'t, S, T> {
    fn summary(&self) -> MutexGuard<'_, StageSummary> {
        self.summary.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn is_stopped(&self) -> bool {
        self.progress.stop.load(Ordering::Relaxed)
    }

    /// Finds what is at and below a source.
    fn walk(&self, pair: &StagePair, walked: &mut Walked) {
        let mut open = vec![(pair.source.clone(), pair.target.clone())];
        while let Some((source, target)) = open.pop() {
            if self.is_stopped() {
                return;
            }
            let is_top = target == pair.target;
            if let Err(error) = self.visit(&source, &target, is_top, walked, &mut open) {
                self.summary().fail(&source, &target, &error);
            }
        }
    }

    fn visit(
        &self,
        source: &Path,
        target: &Path,
        is_top: bool,
        walked: &mut Walked,
        open: &mut Vec<(PathBuf, PathBuf)>,
    ) -> Result<(), MoveError> {
        let found = self.from.look_up(source);
        let found = found.map_err(MoveError::io("looking for", source))?;
        let Some(stat) = found else {
            return match is_top {
                true => Err(MoveError::io("looking for", source)(
                    ErrorKind::NotFound.into(),
                )),
                false => Ok(()), // removed since its directory was listed
            };
        };
        // The directory above the first one may have been created for it.
        let above = target.ancestors().skip(1).take(if is_top { 2 } else { 1 });
        walked.changed.extend(above.map(Path::to_owned));
        match kind_of(&stat) {
            NodeKind::Directory => {
                if self.enter(target, is_top, &stat)? {
                    walked.directories.push(FoundDirectory {
                        source: source.to_owned(),
                        target: target.to_owned(),
                        stat,
                    });
                }
                walked.changed.insert(target.to_owned());
                let names = self.from.list(source);
                for name in names.map_err(MoveError::io("listing", source))? {
                    if !is_part(&name) {
                        open.push((source.join(&name), target.join(&name)));
                    }
                }
                self.summary().directories += 1;
            }
            NodeKind::File => self.found_file(source, target, &stat, walked),
            NodeKind::Symlink => {
                self.copy_symlink(source, target, &stat)?;
                self.summary().symlinks += 1;
            }
            NodeKind::Special => self.summary().skipped.push(source.to_owned()),
        }
        Ok(())
    }

    /// Makes a directory; true if it gets the attributes of its source: one that was there, and that
    /// the user named, does not. It has the mode of its source at once, in case this process dies, and
    /// until the end all rights for its owner, so that files can be created in it.
    fn enter(&self, target: &Path, is_top: bool, source: &Stat) -> Result<bool, MoveError> {
        let found = self.to.look_up(target);
        let found = found.map_err(MoveError::io("looking for", target))?;
        check_kind(target, found.as_ref(), NodeKind::Directory)?;
        if found.is_some() {
            return Ok(!is_top);
        }
        let mode = source.mode & 0o777 | 0o700;
        let made = self.to.make_directory(target, mode);
        unless(made, ErrorKind::AlreadyExists).map_err(MoveError::io("creating", target))?;
        Ok(true)
    }

    fn found_file(&self, source: &Path, target: &Path, stat: &Stat, walked: &mut Walked) {
        if stat.nlink > 1 {
            let first = walked.linked.entry(identity(stat));
            let first = first.or_insert_with(|| target.to_owned());
            if *first != target {
                walked.links.push(FurtherName {
                    source: source.to_owned(),
                    first: first.clone(),
                    target: target.to_owned(),
                });
                return;
            }
        }
        self.progress.files_found.fetch_add(1, Ordering::Relaxed);
        self.progress
            .bytes_found
            .fetch_add(stat.size, Ordering::Relaxed);
        let file = FoundFile {
            source: source.to_owned(),
            target: target.to_owned(),
            tries: 1,
        };
        if stat.size > SMALL_BYTES {
            self.queue.add(StageTask::Files(vec![file]));
            return;
        }
        walked.small.push(file);
        if walked.small.len() == BATCH_FILES {
            self.add_batch(&mut walked.small);
        }
    }

    fn add_batch(&self, small: &mut Vec<FoundFile>) {
        if !small.is_empty() {
            self.queue.add(StageTask::Files(std::mem::take(small)));
        }
    }

    fn copy_symlink(&self, source: &Path, target: &Path, stat: &Stat) -> Result<(), MoveError> {
        let content = self.from.read_link(source);
        let content = content.map_err(MoveError::io("reading", source))?;
        let replaced = self.to.look_up(target);
        let replaced = replaced.map_err(MoveError::io("looking for", target))?;
        check_kind(target, replaced.as_ref(), NodeKind::Symlink)?;
        let is_there = replaced.is_some_and(|found| kind_of(&found) == NodeKind::Symlink)
            && self
                .to
                .read_link(target)
                .is_ok_and(|there| there == content);
        if is_there {
            return Ok(());
        }
        let kept = KeptAttributes::from(stat);
        self.make_named(target, replaced.as_ref(), |part| {
            self.to.make_symlink(&content, part)?;
            self.to.set_attributes(part, NodeKind::Symlink, &kept)
        })
    }

    /// Makes a node that needs no copying: as a part, which then gets the target's name.
    fn make_named(
        &self,
        target: &Path,
        replaced: Option<&Stat>,
        make: impl FnOnce(&Path) -> io::Result<()>,
    ) -> Result<(), MoveError> {
        let part = part_of(target);
        // An interrupted move may have left it.
        unless(self.to.remove(&part), ErrorKind::NotFound)
            .map_err(MoveError::io("removing", &part))?;
        make(&part)
            .map_err(MoveError::io("creating", &part))
            .and_then(|()| publish_name(self.to, &part, target, replaced))
            .inspect_err(|_| drop(self.to.remove(&part)))
    }

    fn act(&self, task: StageTask<'t, S, T>, buffer: &mut Vec<u8>) {
        match task {
            StageTask::Files(files) => self.copy_files(files, buffer),
            StageTask::Piece(whole, at) => self.copy_piece(whole, at, buffer),
        }
    }

    /// Copies a batch, then publishes it.
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
            self.publish(file, copy, buffer);
        }
    }

    fn copy_whole(&self, copy: &FileCopy<'t, S, T>, buffer: &mut Vec<u8>) -> Result<(), MoveError> {
        copy.copy(0..copy.size(), buffer, &|bytes| self.moved(bytes))?;
        copy.begin_sync();
        Ok(())
    }

    /// Begins to copy a file; `None`: it is there already.
    fn begin_file(&self, file: &FoundFile) -> Result<Option<FileCopy<'t, S, T>>, MoveError> {
        let (source, target) = (&file.source, &file.target);
        if self.is_stopped() {
            return Err(MoveError::Stopped);
        }
        let looking = |path| MoveError::io("looking for", path);
        let stat = self.from.look_up(source).map_err(looking(source))?;
        let there = self.to.look_up(target).map_err(looking(target))?;
        match (&stat, &there) {
            (Some(stat), Some(there)) if self.is_moved(file, stat, there) => {
                self.moved(stat.size);
                self.progress.files_done.fetch_add(1, Ordering::Relaxed);
                self.summary().unchanged += 1;
                Ok(None)
            }
            _ => FileCopy::begin(self.from, self.to, source, target, there).map(Some),
        }
    }

    /// True if a file is there already; with `verify`, with the same bytes.
    fn is_moved(&self, file: &FoundFile, stat: &Stat, there: &Stat) -> bool {
        let compared = || compare(self.from, self.to, &file.source, &file.target, stat.size);
        looks_moved(stat, there) && (!self.options.verify || compared().is_ok())
    }

    /// Cuts a large file into pieces.
    fn cut(&self, file: FoundFile, copy: FileCopy<'t, S, T>) {
        let pieces = copy.size().div_ceil(PIECE_BYTES);
        let whole = Arc::new(PiecewiseCopy {
            file,
            copy,
            failed: Mutex::default(),
        });
        let task = |piece| StageTask::Piece(Arc::clone(&whole), piece * PIECE_BYTES);
        let tasks: Vec<_> = (0..pieces).map(task).collect();
        // From here on the tasks alone hold it: the last one publishes it.
        drop(whole);
        self.queue.add_first(tasks.into_iter());
    }

    fn copy_piece(&self, whole: Arc<PiecewiseCopy<'t, S, T>>, at: u64, buffer: &mut Vec<u8>) {
        let end = (at + PIECE_BYTES).min(whole.copy.size());
        let goes_on = |bytes| self.moved(bytes) && whole.failed().is_none();
        if whole.failed().is_none() {
            if let Err(error) = whole.copy.copy(at..end, buffer, &goes_on) {
                whole.failed().get_or_insert(error);
            }
        }
        let Some(whole) = Arc::into_inner(whole) else {
            return;
        };
        let failed = whole.failed.into_inner();
        match failed.unwrap_or_else(PoisonError::into_inner) {
            Some(error) => {
                drop(whole.copy);
                self.failed(whole.file, &error);
            }
            None => self.publish(whole.file, whole.copy, buffer),
        }
    }

    fn publish(&self, file: FoundFile, copy: FileCopy<'t, S, T>, buffer: &mut Vec<u8>) {
        let size = copy.size();
        match copy.publish(self.options.verify, buffer) {
            Ok(lost) => {
                self.progress.files_done.fetch_add(1, Ordering::Relaxed);
                let mut summary = self.summary();
                summary.files += 1;
                summary.bytes += size;
                summary.xattrs_not_kept += lost;
            }
            Err(error) => self.failed(file, &error),
        }
    }

    /// Notes bytes that were moved; false: the stage is to end.
    fn moved(&self, bytes: u64) -> bool {
        self.progress.bytes_done.fetch_add(bytes, Ordering::Relaxed);
        !self.is_stopped()
    }

    fn failed(&self, mut file: FoundFile, error: &MoveError) {
        match error {
            MoveError::SourceChanged(_) if file.tries < TRIES => {
                file.tries += 1;
                let again = StageTask::Files(vec![file]);
                self.queue.add_first(std::iter::once(again));
            }
            // `StageSummary::stopped` says so once.
            MoveError::Stopped => {}
            error => {
                self.progress.files_done.fetch_add(1, Ordering::Relaxed);
                self.summary().fail(&file.source, &file.target, error);
            }
        }
    }

    /// Finishes links and directories, the deepest first.
    fn finish(&self, walked: &Walked) {
        if self.is_stopped() {
            return;
        }
        for link in &walked.links {
            match self.make_link(link) {
                Ok(()) => self.summary().hard_links += 1,
                Err(error) => self.summary().fail(&link.source, &link.target, &error),
            }
        }
        for directory in walked.directories.iter().rev() {
            let (source, target) = (&directory.source, &directory.target);
            let kept = KeptAttributes::from(&directory.stat);
            let done = keep_xattrs(self.from, self.to, source, target).and_then(|lost| {
                self.summary().xattrs_not_kept += lost;
                let set = self.to.set_attributes(target, NodeKind::Directory, &kept);
                set.map_err(MoveError::io("setting attributes of", target))
            });
            if let Err(error) = done {
                self.summary().fail(source, target, &error);
            }
        }
        let next = AtomicUsize::new(0);
        let changed: Vec<&PathBuf> = walked.changed.iter().collect();
        std::thread::scope(|scope| {
            for _ in 0..self.options.threads.clamp(1, changed.len().max(1)) {
                scope.spawn(|| {
                    while let Some(dir) = changed.get(next.fetch_add(1, Ordering::Relaxed)) {
                        if let Err(error) = self.to.sync_directory(dir) {
                            let error = MoveError::io("syncing", dir)(error);
                            self.summary().fail(dir, dir, &error);
                        }
                    }
                });
            }
        });
    }

    fn make_link(&self, link: &FurtherName) -> Result<(), MoveError> {
        let looking = |path| MoveError::io("looking for", path);
        let first = self.to.look_up(&link.first).map_err(looking(&link.first))?;
        let source = self.from.look_up(&link.source);
        let source = source.map_err(looking(&link.source))?;
        let first = source
            .zip(first)
            .filter(|(source, first)| looks_moved(source, first))
            .map(|(_, first)| first);
        let Some(first) = first else {
            return Err(MoveError::FirstNameNotMoved(link.first.clone()));
        };
        let there = self.to.look_up(&link.target);
        let there = there.map_err(looking(&link.target))?;
        if there.as_ref().map(identity) == Some(identity(&first)) {
            return Ok(());
        }
        check_kind(&link.target, there.as_ref(), NodeKind::File)?;
        self.make_named(&link.target, there.as_ref(), |part| {
            self.to.make_link(&link.first, part)
        })
    }
}
