//! A list of files that are copied in any order without being named, and get their names when their turns come.

use std::collections::{BTreeSet, HashMap};
use std::fmt;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::copy::{NamedCopy, ReadyCopy};
use crate::error::MoveError;
use crate::list::{copy_unnamed, move_files};
use crate::mover::{FileToMove, MovedFile, MovedFiles, MovedSource, NameOutcome};
use crate::publish::{make_hard_link, part_of, LinkOutcome};
use crate::stage::{sync_directories, FurtherName, StageOptions, StageProgress};
use crate::tree::FileTree;

/// The interval between two checks for a call that hangs.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);

/// A file of a list.
enum PreparedFile<'t, T: FileTree> {
    /// It is being copied, or the copy was stopped before its end.
    Copying,
    Copied(Box<ReadyCopy<'t, T>>),
    /// Another name of an earlier file of the list.
    Link(FurtherName),
    Done(MovedFile),
}

struct ListState<'t, T: FileTree> {
    files: Vec<PreparedFile<'t, T>>,
    /// The directories of the target that have the names given so far.
    named_in: BTreeSet<PathBuf>,
    /// The result, without the files.
    moved: MovedFiles,
    is_copied: bool,
    /// The number of files that have their names, and are not checked yet.
    unchecked: usize,
    /// The files that have lost their names, with the reasons.
    lost: Vec<(usize, String)>,
}

impl<T: FileTree> Default for ListState<'_, T> {
    fn default() -> Self {
        ListState {
            files: Vec::new(),
            named_in: BTreeSet::new(),
            moved: MovedFiles::default(),
            is_copied: false,
            unchecked: 0,
            lost: Vec::new(),
        }
    }
}

/// A list of files that this process copies.
pub struct PreparedFiles<'t, S: FileTree, T: FileTree> {
    trees: (&'t S, &'t T),
    files: Vec<FileToMove>,
    options: StageOptions,
    state: Mutex<ListState<'t, T>>,
    /// A file is copied or checked, or all are copied.
    changed: Condvar,
}

impl<S: FileTree, T: FileTree> fmt::Debug for PreparedFiles<'_, S, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} files", self.files.len())
    }
}

impl<'t, S: FileTree, T: FileTree> PreparedFiles<'t, S, T> {
    /// A list whose files are not copied yet.
    pub fn new(
        from: &'t S,
        to: &'t T,
        files: Vec<FileToMove>,
        options: StageOptions,
    ) -> PreparedFiles<'t, S, T> {
        let states = files.iter().map(|_| PreparedFile::Copying);
        PreparedFiles {
            state: Mutex::new(ListState {
                files: states.collect(),
                ..ListState::default()
            }),
            trees: (from, to),
            files,
            options,
            changed: Condvar::new(),
        }
    }

    fn state(&self) -> MutexGuard<'_, ListState<'t, T>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Copies the files. Meanwhile other threads may name those that are copied.
    pub fn copy(&self, progress: &StageProgress) {
        let (from, to) = self.trees;
        let targets = self.files.iter().map(|file| &*file.pair.target);
        let numbers: HashMap<&Path, usize> = targets.zip(0..).collect();
        let set = |target: &Path, file| {
            self.state().files[numbers[target]] = file;
            self.changed.notify_all();
        };
        let ready = |target: &Path, copy| set(target, PreparedFile::Copied(Box::new(copy)));
        let copied = copy_unnamed(from, to, &self.files, self.options, progress, &ready);
        let (mut moved, links) = copied;
        for link in links {
            let target = link.target.clone();
            set(&target, PreparedFile::Link(link));
        }
        let mut state = self.state();
        for (file, result) in state.files.iter_mut().zip(std::mem::take(&mut moved.files)) {
            // A stage that was stopped has no results for files that it did not reach.
            let is_known = result.version.is_some() || result.failure.is_some();
            if matches!(file, PreparedFile::Copying) && is_known {
                *file = PreparedFile::Done(result);
            }
        }
        // Names may have been counted already.
        moved.copied += state.moved.copied;
        moved.bytes += state.moved.bytes;
        moved.xattrs_not_kept += state.moved.xattrs_not_kept;
        state.moved = moved;
        state.is_copied = true;
        self.changed.notify_all();
    }

    /// Gives a file its name once it is copied. Calls `check` with the named copy, which must be passed to
    /// [`PreparedFiles::check`]: as long as it is open, others may not be able to use the file.
    pub fn name(
        &self,
        file: usize,
        progress: &StageProgress,
        check: impl FnOnce(NamedCopy<'t, T>),
    ) -> NameOutcome {
        let Some(prepared) = self.await_copy(file) else {
            return NameOutcome::Hangs;
        };
        let moved = match prepared {
            PreparedFile::Copying => return NameOutcome::Failed,
            PreparedFile::Done(moved) => moved,
            PreparedFile::Link(link) => self.name_link(file, &link, progress),
            PreparedFile::Copied(copy) => {
                progress.files_done.fetch_add(1, Ordering::Relaxed);
                self.name_copy(*copy, check)
            }
        };
        let is_there = moved.failure.is_none();
        let mut state = self.state();
        if is_there {
            // This includes files that were there before: their names may not be on storage.
            let dir = self.files[file].pair.target.parent();
            state.named_in.extend(dir.map(Path::to_owned));
        }
        state.files[file] = PreparedFile::Done(moved);
        match is_there {
            true => NameOutcome::Named,
            false => NameOutcome::Failed,
        }
    }

    /// Checks a file that has its name, and closes it.
    pub fn check(&self, file: usize, named: NamedCopy<'t, T>) {
        let checked = named.check();
        let mut state = self.state();
        state.unchecked -= 1;
        if let Err(error) = checked {
            state.lost.push((file, error.to_string()));
        }
        self.changed.notify_all();
    }

    /// A file whose copy has ended; `None`: a call of the target hangs.
    fn await_copy(&self, file: usize) -> Option<PreparedFile<'t, T>> {
        let mut state = self.state();
        loop {
            let is_copying = matches!(state.files[file], PreparedFile::Copying);
            if !is_copying || state.is_copied {
                let prepared = &mut state.files[file];
                return Some(std::mem::replace(prepared, PreparedFile::Copying));
            }
            drop(state);
            if self.hangs() {
                return None;
            }
            let waited = self.changed.wait_timeout(self.state(), LOOK_INTERVAL);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// True if a call for one of the files hangs: other files may wait for the thread that made it.
    fn hangs(&self) -> bool {
        let to = self.trees.1;
        let mut targets = self.files.iter().map(|file| &file.pair.target);
        targets.any(|target| to.hangs_at(target) || to.hangs_at(&part_of(target)))
    }

    fn name_copy(&self, copy: ReadyCopy<'t, T>, check: impl FnOnce(NamedCopy<'t, T>)) -> MovedFile {
        let (copied, lost) = (*copy.copied(), copy.xattrs_not_kept());
        let named = copy.name().map(|named| {
            let mut state = self.state();
            state.moved.copied += 1;
            state.moved.bytes += copied.size;
            state.moved.xattrs_not_kept += lost;
            state.unchecked += 1;
            drop(state);
            check(named);
        });
        MovedFile::new(named.map(|()| MovedSource::Copied(copied)))
    }

    /// Makes a further name. If the target makes no such link, or lacks the first name, the file is copied again.
    fn name_link(&self, file: usize, link: &FurtherName, progress: &StageProgress) -> MovedFile {
        let replaces = &self.files[file].replaces;
        let may_replace = |there: &_| replaces.allows(there);
        let linked = match self.has_first_name(link) {
            true => make_hard_link(self.trees.1, &link.first, &link.target, &may_replace),
            false => Ok(LinkOutcome::NoFile),
        };
        MovedFile::new(match linked {
            Ok(LinkOutcome::Made) => Ok(MovedSource::Copied(link.stat)),
            Ok(LinkOutcome::There) => Ok(MovedSource::Found(link.stat)),
            Ok(LinkOutcome::Refused | LinkOutcome::NoFile) => {
                return self.copy_link(file, progress)
            }
            Err(error) => Err(error),
        })
    }

    /// True if the target has this version of the file under its first name.
    fn has_first_name(&self, link: &FurtherName) -> bool {
        let mut files = self.files.iter();
        let first = files.position(|file| file.pair.target == link.first);
        let state = self.state();
        let first = first.map(|first| &state.files[first]);
        matches!(first, Some(PreparedFile::Done(moved)) if moved.failure.is_none())
    }

    fn copy_link(&self, file: usize, progress: &StageProgress) -> MovedFile {
        let (from, to) = self.trees;
        let files = &self.files[file..=file];
        let mut copied = move_files(from, to, files, self.options, progress);
        let mut state = self.state();
        state.moved.copied += copied.copied;
        state.moved.bytes += copied.bytes;
        state.moved.xattrs_not_kept += copied.xattrs_not_kept;
        let moved = copied.files.pop().expect("it has one");
        match moved.version.is_some() || moved.failure.is_some() {
            true => moved,
            false => MovedFile::new(Err(MoveError::Stopped)),
        }
    }

    /// Syncs the names, and removes the copies that got none. Returns the results; only the first call has them.
    pub fn finish(&self) -> MovedFiles {
        let state = self
            .changed
            .wait_while(self.state(), |state| state.unchecked > 0);
        let mut state = state.unwrap_or_else(PoisonError::into_inner);
        let ListState {
            mut files,
            named_in,
            moved,
            lost,
            ..
        } = std::mem::take(&mut *state);
        drop(state);
        for (file, reason) in lost {
            files[file] = PreparedFile::Done(MovedFile {
                failure: Some(reason),
                ..MovedFile::default()
            });
        }
        let failed: Mutex<HashMap<PathBuf, String>> = Mutex::default();
        let named_in: Vec<&PathBuf> = named_in.iter().collect();
        sync_directories(
            self.trees.1,
            &named_in,
            self.options.threads,
            &|dir, error| {
                let mut failed = failed.lock().unwrap_or_else(PoisonError::into_inner);
                failed.insert(dir.to_owned(), error.to_string());
            },
        );
        let failed = failed.into_inner().unwrap_or_else(PoisonError::into_inner);
        let results = self.files.iter().zip(files).map(|(file, state)| {
            let PreparedFile::Done(mut result) = state else {
                return MovedFile {
                    awaits_turn: true,
                    ..MovedFile::default()
                };
            };
            if result.failure.is_none() {
                let dir = file.pair.target.parent();
                result.failure = dir.and_then(|dir| failed.get(dir)).cloned();
            }
            result
        });
        MovedFiles {
            files: results.collect(),
            ..moved
        }
    }
}

/// The lists of a mover that have not ended, by the numbers that the drain has given them.
#[derive(Debug)]
pub struct PreparedLists<'t, S: FileTree, T: FileTree>(HashMap<u32, PreparedFiles<'t, S, T>>);

impl<S: FileTree, T: FileTree> Default for PreparedLists<'_, S, T> {
    fn default() -> Self {
        PreparedLists(HashMap::new())
    }
}

impl<'t, S: FileTree, T: FileTree> PreparedLists<'t, S, T> {
    /// Keeps a list that is copied.
    pub fn add(&mut self, list: u32, files: PreparedFiles<'t, S, T>) {
        self.0.insert(list, files);
    }

    /// The same as [`PreparedFiles::name`]. An error: there is no such list or file.
    pub fn name(
        &self,
        list: u32,
        file: usize,
        progress: &StageProgress,
    ) -> io::Result<NameOutcome> {
        let prepared = self.0.get(&list).ok_or(ErrorKind::NotFound)?;
        match file < prepared.files.len() {
            true => Ok(prepared.name(file, progress, |named| prepared.check(file, named))),
            false => Err(ErrorKind::InvalidInput.into()),
        }
    }

    /// The same as [`PreparedFiles::finish`]. An error: there is no such list.
    pub fn finish(&mut self, list: u32) -> io::Result<MovedFiles> {
        let prepared = self.0.remove(&list).ok_or(ErrorKind::NotFound)?;
        Ok(prepared.finish())
    }
}
