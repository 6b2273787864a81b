//! A list of files that are copied in any order, up to their names, and get these when their turns come.

use std::collections::{BTreeSet, HashMap};
use std::fmt;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::copy::{FileCopy, NamedCopy, ReadyCopy};
use crate::error::MoveError;
use crate::list::copy_unnamed;
use crate::mover::{FileToMove, MovedFile, MovedFiles, MovedSource, NameOutcome};
use crate::publish::{check_replaceable, make_hard_link, part_of, LinkOutcome};
use crate::stage::{in_parallel, sync_directories, FurtherName, StageOptions, StageProgress};
use crate::tree::FileTree;

/// The time between two looks for a call that hangs.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);

/// A file of a list.
enum PreparedFile<'t, T: FileTree> {
    /// It is being copied, or it was stopped before that.
    Copying,
    Copied(Box<ReadyCopy<'t, T>>),
    /// Another name of a file that has come before it.
    Link(FurtherName),
    Named(Box<NamedCopy<'t, T>>, MovedFile),
    Done(MovedFile),
}

impl<T: FileTree> PreparedFile<'_, T> {
    /// True if the target has the file.
    fn is_there(&self) -> bool {
        matches!(self, PreparedFile::Named(_, moved) | PreparedFile::Done(moved) if moved.failure.is_none())
    }
}

struct ListState<'t, T: FileTree> {
    files: Vec<PreparedFile<'t, T>>,
    /// The directories of the target that have their names.
    changed: BTreeSet<PathBuf>,
    /// The result, without the files.
    moved: MovedFiles,
    is_copied: bool,
}

/// A list of files that this process copies.
pub struct PreparedFiles<'t, S: FileTree, T: FileTree> {
    trees: (&'t S, &'t T),
    files: Vec<FileToMove>,
    options: StageOptions,
    state: Mutex<ListState<'t, T>>,
    /// A file is copied, or all are.
    copied: Condvar,
}

impl<S: FileTree, T: FileTree> fmt::Debug for PreparedFiles<'_, S, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} files", self.files.len())
    }
}

impl<'t, S: FileTree, T: FileTree> PreparedFiles<'t, S, T> {
    /// A list of which nothing is copied yet.
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
                changed: BTreeSet::new(),
                moved: MovedFiles::default(),
                is_copied: false,
            }),
            trees: (from, to),
            files,
            options,
            copied: Condvar::new(),
        }
    }

    fn state(&self) -> MutexGuard<'_, ListState<'t, T>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Copies the files. Others may give names to those that are copied meanwhile.
    pub fn copy(&self, progress: &StageProgress) {
        let (from, to) = self.trees;
        let targets = self.files.iter().map(|file| &*file.pair.target);
        let numbers: HashMap<&Path, usize> = targets.zip(0..).collect();
        let set = |target: &Path, file| {
            self.state().files[numbers[target]] = file;
            self.copied.notify_all();
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
            // A stage that is stopped says nothing of files that it did not come to.
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
        self.copied.notify_all();
    }

    /// Gives a file its name once it is copied.
    pub fn name(&self, file: usize, progress: &StageProgress) -> NameOutcome {
        let Some(prepared) = self.await_copy(file) else {
            return NameOutcome::Hangs;
        };
        let prepared = match prepared {
            PreparedFile::Copying => return NameOutcome::Failed,
            PreparedFile::Copied(copy) => self.name_copy(*copy, progress),
            PreparedFile::Link(link) => PreparedFile::Done(self.name_link(file, &link)),
            done => done,
        };
        let outcome = match prepared.is_there() {
            true => NameOutcome::Named,
            false => NameOutcome::Failed,
        };
        let mut state = self.state();
        if outcome == NameOutcome::Named {
            // Also of a file that was there: its name may not be on storage.
            let dir = self.files[file].pair.target.parent();
            state.changed.extend(dir.map(Path::to_owned));
        }
        state.files[file] = prepared;
        outcome
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
            let target = &self.files[file].pair.target;
            if [target.clone(), part_of(target)]
                .iter()
                .any(|path| self.trees.1.hangs_at(path))
            {
                return None;
            }
            let waited = self.copied.wait_timeout(self.state(), LOOK_INTERVAL);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    fn name_copy(&self, copy: ReadyCopy<'t, T>, progress: &StageProgress) -> PreparedFile<'t, T> {
        let (copied, lost) = (*copy.copied(), copy.xattrs_not_kept());
        progress.files_done.fetch_add(1, Ordering::Relaxed);
        match copy.name() {
            Ok(named) => {
                self.count(copied.size, lost);
                let moved = MovedFile::new(Ok(MovedSource::Copied(copied)));
                PreparedFile::Named(Box::new(named), moved)
            }
            Err(error) => PreparedFile::Done(MovedFile::new(Err(error))),
        }
    }

    fn name_link(&self, file: usize, link: &FurtherName) -> MovedFile {
        let replaces = &self.files[file].replaces;
        let may_replace = |there: &_| replaces.allows(there);
        let linked = match self.has_first_name(link) {
            true => make_hard_link(self.trees.1, &link.first, &link.target, &may_replace),
            false => Ok(LinkOutcome::NoFile),
        };
        MovedFile::new(linked.and_then(|linked| match linked {
            LinkOutcome::Made => Ok(MovedSource::Copied(link.stat)),
            LinkOutcome::There => Ok(MovedSource::Found(link.stat)),
            // Or somebody has removed the first name.
            LinkOutcome::Refused | LinkOutcome::NoFile => self.copy_link(file, link),
        }))
    }

    /// True if the target has the file under its first name: else that may be the name of an old version.
    fn has_first_name(&self, link: &FurtherName) -> bool {
        let mut files = self.files.iter();
        let first = files.position(|file| file.pair.target == link.first);
        let state = self.state();
        first.is_some_and(|first| state.files[first].is_there())
    }

    /// Copies a file once more, since its other name cannot be linked.
    fn copy_link(&self, file: usize, link: &FurtherName) -> Result<MovedSource, MoveError> {
        let (from, to) = self.trees;
        let (source, target) = (&link.source, &link.target);
        let there = to.look_up(target);
        let there = there.map_err(MoveError::io("looking for", target))?;
        let replaces = &self.files[file].replaces;
        check_replaceable(target, there.as_ref(), |there| replaces.allows(there))?;
        let copy = FileCopy::begin(from, to, source, target, there)?;
        let mut buffer = Vec::new();
        copy.copy(0..copy.size(), &mut buffer, &|_| true)?;
        let copied = *copy.copied();
        let lost = copy.publish(self.options.verify, &mut buffer)?;
        self.count(copied.size, lost);
        Ok(MovedSource::Copied(copied))
    }

    fn count(&self, bytes: u64, xattrs_not_kept: u64) {
        let moved = &mut self.state().moved;
        moved.copied += 1;
        moved.bytes += bytes;
        moved.xattrs_not_kept += xattrs_not_kept;
    }

    /// Has the names on storage, and removes the copies that got none. Returns the results, once.
    pub fn finish(&self) -> MovedFiles {
        let (states, changed, moved) = {
            let mut state = self.state();
            let moved = std::mem::take(&mut state.moved);
            (
                std::mem::take(&mut state.files),
                std::mem::take(&mut state.changed),
                moved,
            )
        };
        let results: Vec<_> = states.into_iter().map(FinalState::new).collect();
        in_parallel(&results, self.options.threads, &FinalState::check);
        let failed: Mutex<HashMap<PathBuf, String>> = Mutex::default();
        let changed: Vec<&PathBuf> = changed.iter().collect();
        sync_directories(
            self.trees.1,
            &changed,
            self.options.threads,
            &|dir, error| {
                let mut failed = failed.lock().unwrap_or_else(PoisonError::into_inner);
                failed.insert(dir.to_owned(), error.to_string());
            },
        );
        let failed = failed.into_inner().unwrap_or_else(PoisonError::into_inner);
        let results = self.files.iter().zip(results).map(|(file, result)| {
            let mut result = result.into_result();
            if result.failure.is_none() && !result.awaits_turn {
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

/// A file of a list that ends: its result, and its copy if that is to be checked.
struct FinalState<'t, T: FileTree>(Mutex<(MovedFile, Option<NamedCopy<'t, T>>)>);

impl<'t, T: FileTree> FinalState<'t, T> {
    fn new(file: PreparedFile<'t, T>) -> FinalState<'t, T> {
        FinalState(Mutex::new(match file {
            PreparedFile::Done(moved) => (moved, None),
            PreparedFile::Named(copy, moved) => (moved, Some(*copy)),
            _ => {
                let unnamed = MovedFile {
                    awaits_turn: true,
                    ..MovedFile::default()
                };
                (unnamed, None)
            }
        }))
    }

    fn check(&self) {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(Err(error)) = state.1.take().map(NamedCopy::check) {
            state.0 = MovedFile::new(Err(error));
        }
    }

    fn into_result(self) -> MovedFile {
        self.0
            .into_inner()
            .unwrap_or_else(PoisonError::into_inner)
            .0
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

    /// As [`PreparedFiles::name`]; an error: there is no such file.
    pub fn name(
        &self,
        list: u32,
        file: usize,
        progress: &StageProgress,
    ) -> io::Result<NameOutcome> {
        let prepared = self.0.get(&list).ok_or(ErrorKind::NotFound)?;
        match file < prepared.files.len() {
            true => Ok(prepared.name(file, progress)),
            false => Err(ErrorKind::InvalidInput.into()),
        }
    }

    /// As [`PreparedFiles::finish`]; an error: there is no such list.
    pub fn finish(&mut self, list: u32) -> io::Result<MovedFiles> {
        let prepared = self.0.remove(&list).ok_or(ErrorKind::NotFound)?;
        Ok(prepared.finish())
    }
}
