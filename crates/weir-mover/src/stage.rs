//! Trees of files on their way: one thread walks the sources, several copy.
//!
//! A large file is cut into pieces, which several threads copy. Small files are copied in batches: a
//! thread writes all of a batch before it waits for the first to be on storage, so that a journaling
//! file system commits many at once. Directories get their attributes when
//! all that is in them is there; then they are synced, and only then the stage is complete.

use std::collections::{BTreeSet, HashMap};
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
use crate::tree::{kind_of, FileTree, KeptAttributes, NodeKind};

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
    copy: FileCopy<'t, S, T>,
    tries: u32,
    /// Pieces that are not done.
    left: AtomicUsize,
    failed: Mutex<Option<MoveError>>,
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
                    std::io::ErrorKind::NotFound.into(),
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
    /// the user named, does not. Its mode is that of the source at once, so that it is right if this
    /// process dies, but for the owner, who has to create files in it.
    fn enter(&self, target: &Path, is_top: bool, source: &Stat) -> Result<bool, MoveError> {
        let found = self.to.look_up(target);
        let found = found.map_err(MoveError::io("looking for", target))?;
        check_kind(target, found.as_ref(), NodeKind::Directory)?;
        if found.is_some() {
            return Ok(!is_top);
        }
        let mode = source.mode & 0o777 | 0o700;
        match self.to.make_directory(target, mode) {
            Err(error) if error.kind() != std::io::ErrorKind::AlreadyExists => {
                Err(MoveError::io("creating", target)(error))
            }
            _ => Ok(true),
        }
    }

    fn found_file(&self, source: &Path, target: &Path, stat: &Stat, walked: &mut Walked) {
        if stat.nlink > 1 {
            let first = walked.linked.entry((stat.dev, stat.ino));
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
        let part = part_of(target);
        let writing = || MoveError::io("creating", &part);
        self.remove_part(&part)?;
        self.to.make_symlink(&content, &part).map_err(writing())?;
        let kept = KeptAttributes::from(stat);
        self.to
            .set_attributes(&part, NodeKind::Symlink, &kept)
            .map_err(writing())
            .and_then(|()| publish_name(self.to, &part, target, replaced.as_ref()))
            .inspect_err(|_| drop(self.to.remove(&part)))
    }

    /// Removes a part that an interrupted move left.
    fn remove_part(&self, part: &Path) -> Result<(), MoveError> {
        match self.to.remove(part) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                Err(MoveError::io("removing", part)(error))
            }
            _ => Ok(()),
        }
    }

    fn act(&self, task: StageTask<'t, S, T>, buffer: &mut Vec<u8>) {
        match task {
            StageTask::Files(files) => self.copy_files(&files, buffer),
            StageTask::Piece(whole, at) => self.copy_piece(whole, at, buffer),
        }
    }

    /// Copies a batch, then publishes it.
    fn copy_files(&self, files: &[FoundFile], buffer: &mut Vec<u8>) {
        let mut copied = Vec::with_capacity(files.len());
        for file in files {
            match self.begin_file(file, buffer) {
                Ok(copy) => copied.extend(copy.map(|copy| (file, copy))),
                Err(error) => self.failed(file, &error),
            }
        }
        for (file, copy) in copied {
            if let Err(error) = self.publish(copy, buffer) {
                self.failed(file, &error);
            }
        }
    }

    /// Copies a file, or cuts it into pieces; `None`: nothing is left to do here.
    fn begin_file(
        &self,
        file: &FoundFile,
        buffer: &mut Vec<u8>,
    ) -> Result<Option<FileCopy<'t, S, T>>, MoveError> {
        let (source, target) = (&file.source, &file.target);
        if self.is_stopped() {
            return Err(MoveError::Stopped);
        }
        if self.is_moved(source, target)? {
            return Ok(None);
        }
        let copy = FileCopy::begin(self.from, self.to, source, target)?;
        let size = copy.size();
        let pieces = size.div_ceil(PIECE_BYTES);
        if pieces <= 1 {
            copy.copy(0..size, buffer, &|bytes| self.moved(bytes))?;
            copy.begin_sync();
            return Ok(Some(copy));
        }
        let whole = Arc::new(PiecewiseCopy {
            copy,
            tries: file.tries,
            left: AtomicUsize::new(usize::try_from(pieces).expect("pieces of a file")),
            failed: Mutex::default(),
        });
        let pieces = 0..pieces;
        self.queue.add_first(
            pieces.map(|piece| StageTask::Piece(Arc::clone(&whole), piece * PIECE_BYTES)),
        );
        Ok(None)
    }

    /// True if a file is there already; with `verify`, with the same bytes.
    fn is_moved(&self, source: &Path, target: &Path) -> Result<bool, MoveError> {
        let looking = |path| MoveError::io("looking for", path);
        let stat = self.from.look_up(source).map_err(looking(source))?;
        let there = self.to.look_up(target).map_err(looking(target))?;
        let (Some(stat), Some(there)) = (stat, there) else {
            return Ok(false);
        };
        if !looks_moved(&stat, &there) {
            return Ok(false);
        }
        let differs = || compare(self.from, self.to, source, target, stat.size).is_err();
        if self.options.verify && differs() {
            return Ok(false);
        }
        self.moved(stat.size);
        self.progress.files_done.fetch_add(1, Ordering::Relaxed);
        self.summary().unchanged += 1;
        Ok(true)
    }

    fn copy_piece(&self, whole: Arc<PiecewiseCopy<'t, S, T>>, at: u64, buffer: &mut Vec<u8>) {
        let end = (at + PIECE_BYTES).min(whole.copy.size());
        let has_failed = || {
            let failed = whole.failed.lock();
            failed.unwrap_or_else(PoisonError::into_inner).is_some()
        };
        if !has_failed() {
            let done = whole
                .copy
                .copy(at..end, buffer, &|bytes| self.moved(bytes) && !has_failed());
            if let Err(error) = done {
                let mut failed = whole.failed.lock().unwrap_or_else(PoisonError::into_inner);
                failed.get_or_insert(error);
            }
        }
        if whole.left.fetch_sub(1, Ordering::AcqRel) > 1 {
            return;
        }
        // The other pieces are done: their threads let go of the file now.
        let mut whole = whole;
        let whole = loop {
            match Arc::try_unwrap(whole) {
                Ok(whole) => break whole,
                Err(shared) => whole = shared,
            }
            std::thread::yield_now();
        };
        let file = FoundFile {
            source: whole.copy.source().to_owned(),
            target: whole.copy.target().to_owned(),
            tries: whole.tries,
        };
        let failed = whole
            .failed
            .into_inner()
            .unwrap_or_else(PoisonError::into_inner);
        let done = match failed {
            Some(error) => {
                drop(whole.copy);
                Err(error)
            }
            None => self.publish(whole.copy, buffer),
        };
        if let Err(error) = done {
            self.failed(&file, &error);
        }
    }

    fn publish(&self, copy: FileCopy<'t, S, T>, buffer: &mut Vec<u8>) -> Result<(), MoveError> {
        let size = copy.size();
        let lost = copy.publish(self.options.verify, buffer)?;
        self.progress.files_done.fetch_add(1, Ordering::Relaxed);
        let mut summary = self.summary();
        summary.files += 1;
        summary.bytes += size;
        summary.xattrs_not_kept += lost;
        Ok(())
    }

    /// Notes bytes that were moved; false: the stage is to end.
    fn moved(&self, bytes: u64) -> bool {
        self.progress.bytes_done.fetch_add(bytes, Ordering::Relaxed);
        !self.is_stopped()
    }

    fn failed(&self, file: &FoundFile, error: &MoveError) {
        match error {
            MoveError::SourceChanged(_) if file.tries < TRIES => {
                let again = FoundFile {
                    source: file.source.clone(),
                    target: file.target.clone(),
                    tries: file.tries + 1,
                };
                let again = StageTask::Files(vec![again]);
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
        let is_moved = source
            .zip(first)
            .is_some_and(|(source, first)| looks_moved(&source, &first));
        if !is_moved {
            return Err(MoveError::FirstNameNotMoved(link.first.clone()));
        }
        let there = self.to.look_up(&link.target);
        let there = there.map_err(looking(&link.target))?;
        let identity = |stat: &Stat| (stat.dev, stat.ino);
        if first.is_some() && first.as_ref().map(identity) == there.as_ref().map(identity) {
            return Ok(());
        }
        check_kind(&link.target, there.as_ref(), NodeKind::File)?;
        let part = part_of(&link.target);
        self.remove_part(&part)?;
        self.to
            .make_link(&link.first, &part)
            .map_err(MoveError::io("creating", &part))?;
        publish_name(self.to, &part, &link.target, there.as_ref())
            .inspect_err(|_| drop(self.to.remove(&part)))
    }
}
