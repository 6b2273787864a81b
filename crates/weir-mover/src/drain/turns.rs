//! Files that get their names in the order of their list, though several processes copy them.
//!
//! One thread gives the names, each as soon as its file and all files before it are copied. This process and the movers
//! copy the files in windows, which are cut into lists. A window is copied while the files of the previous one get their
//! names. So the files of at most two windows are open.
//!
//! If a file fails, the files after it get no names, unless none waits for it. If a call for a file hangs, the other files
//! get their names without it.

use std::io;
use std::ops::Range;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::{channel, Sender};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use rustix::process::{getrlimit, Resource};

use super::lists::{lists_of, share_lists, ListedFile, MovedList, OwnLists};
use super::team::DrainTeam;
use crate::copy::NamedCopy;
use crate::mover::{
    FileMover, FileToMove, MovedFile, MovedFiles, NameOutcome, PreparedList, LIST_BYTES, LIST_FILES,
};
use crate::prepared::PreparedFiles;
use crate::stage::StageProgress;
use crate::tree::FileTree;

/// The full lists of a window for each process.
const LISTS: usize = 4;

/// A list that a mover has copied.
struct RemoteList<'m> {
    mover: &'m dyn FileMover,
    list: u32,
}

impl PreparedList for RemoteList<'_> {
    fn name(&self, file: usize) -> io::Result<NameOutcome> {
        self.mover.name_file(self.list, file)
    }
    fn finish(&self) -> io::Result<MovedFiles> {
        self.mover.finish_files(self.list)
    }
}

/// A copy that has its name and must be checked: its list, and its number there.
struct UncheckedCopy<'t, S: FileTree, T: FileTree> {
    list: Arc<PreparedFiles<'t, S, T>>,
    file: usize,
    named: NamedCopy<'t, T>,
}

/// A list that this process copies.
struct OwnList<'r, 't, S: FileTree, T: FileTree> {
    files: Arc<PreparedFiles<'t, S, T>>,
    progress: &'r StageProgress,
    unchecked: Mutex<Sender<UncheckedCopy<'t, S, T>>>,
}

impl<S: FileTree, T: FileTree> PreparedList for OwnList<'_, '_, S, T> {
    fn name(&self, file: usize) -> io::Result<NameOutcome> {
        Ok(self.files.name(file, self.progress, |named| {
            let unchecked = self.unchecked.lock();
            let unchecked = unchecked.unwrap_or_else(PoisonError::into_inner);
            let sent = unchecked.send(UncheckedCopy {
                list: Arc::clone(&self.files),
                file,
                named,
            });
            sent.expect("it is checked as long as there are lists");
        }))
    }
    fn finish(&self) -> io::Result<MovedFiles> {
        Ok(self.files.finish())
    }
}

/// A list, and the numbers of its files.
struct BegunList<'l> {
    files: Vec<usize>,
    list: Arc<dyn PreparedList + 'l>,
    is_remote: bool,
}

/// A file's list, and its number there.
#[derive(Clone)]
struct FilePlace<'l> {
    list: Arc<dyn PreparedList + 'l>,
    /// Its number there.
    number: usize,
}

struct TurnsState<'l> {
    /// The place of each file, once its list was begun.
    places: Vec<Option<FilePlace<'l>>>,
    /// The lists of windows that have not ended.
    lists: Vec<BegunList<'l>>,
    /// The files before this number are copied, or will not be copied.
    copied: usize,
    /// The files before this number have had their turns, and the results of their lists are there.
    ended: usize,
    /// The files that have got their names.
    named: Vec<bool>,
    /// A file got no name, and those after it wait for it; or a mover is gone.
    is_held: bool,
    results: Vec<MovedList>,
}

/// The consequences of a file's turn, by its number.
pub(super) trait TurnRules: Sync {
    /// Called when it is a file's turn; false: it waits, and so do the files after it.
    fn begin(&self, file: usize) -> bool;
    /// Called when a file has got no name.
    fn note_unnamed(&self, file: usize);
    /// True if the files after a failed one wait for it.
    fn is_awaited(&self, file: usize) -> bool;
}

/// The turns of the files of a list.
struct FileTurns<'l> {
    state: Mutex<TurnsState<'l>>,
    changed: Condvar,
}

impl<'l> FileTurns<'l> {
    fn new(files: usize) -> FileTurns<'l> {
        let mut places = Vec::new();
        places.resize_with(files, || None);
        FileTurns {
            state: Mutex::new(TurnsState {
                places,
                lists: Vec::new(),
                copied: 0,
                ended: 0,
                named: vec![false; files],
                is_held: false,
                results: Vec::new(),
            }),
            changed: Condvar::new(),
        }
    }

    fn state(&self) -> MutexGuard<'_, TurnsState<'l>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until a condition holds.
    fn wait_until(
        &self,
        is_so: impl Fn(&TurnsState<'l>) -> bool,
    ) -> MutexGuard<'_, TurnsState<'l>> {
        let waited = self.changed.wait_while(self.state(), |state| !is_so(state));
        waited.unwrap_or_else(PoisonError::into_inner)
    }

    fn add_list(&self, list: BegunList<'l>) {
        let mut state = self.state();
        for (number, file) in list.files.iter().enumerate() {
            state.places[*file] = Some(FilePlace {
                list: Arc::clone(&list.list),
                number,
            });
        }
        state.lists.push(list);
        self.changed.notify_all();
    }

    /// Waits until all files before this number have had their turns; false: files are held up, and no more need to be
    /// copied.
    fn await_room(&self, ended: usize) -> bool {
        !self
            .wait_until(|state| state.ended >= ended || state.is_held)
            .is_held
    }

    fn note_copied(&self, copied: usize) {
        self.state().copied = copied;
        self.changed.notify_all();
    }

    /// Gives the files of windows their names.
    fn name_windows(&self, windows: &[Range<usize>], rules: &dyn TurnRules) {
        for window in windows {
            let is_hanging = |file: &usize| !self.name(*file, rules);
            let hanging: Vec<usize> = window.clone().filter(is_hanging).collect();
            let mut state = self.wait_until(|state| state.copied >= window.end);
            let lists = std::mem::take(&mut state.lists);
            // The other lists belong to the next window.
            let (ended, begun) = lists
                .into_iter()
                .partition(|list| window.contains(&list.files[0]));
            state.lists = begun;
            drop(state);
            for file in hanging {
                self.name(file, rules);
            }
            self.state().places[window.clone()].fill(None);
            let results = self.finish_lists(ended);
            let mut state = self.state();
            state.results.extend(results);
            state.ended = window.end;
            self.changed.notify_all();
        }
    }

    /// Gives a file its name, unless files before it hold it up; false: a call for it hangs, and it has another turn once
    /// its window is copied.
    fn name(&self, file: usize, rules: &dyn TurnRules) -> bool {
        let state = self.wait_until(|state| {
            state.is_held || state.places[file].is_some() || state.copied > file
        });
        if state.is_held {
            return true;
        }
        let place = state.places[file].clone();
        drop(state);
        let place = place.filter(|_| rules.begin(file));
        let outcome = place.map(|place| place.list.name(place.number));
        let goes_on = match outcome {
            Some(Ok(NameOutcome::Named)) => {
                self.state().named[file] = true;
                true
            }
            Some(Ok(outcome)) => {
                rules.note_unnamed(file);
                if outcome == NameOutcome::Hangs {
                    return false;
                }
                !rules.is_awaited(file)
            }
            // The drain was stopped before the file's list was begun, its mover is gone, or it waits for a removal.
            None | Some(Err(_)) => false,
        };
        if !goes_on {
            self.state().is_held = true;
            self.changed.notify_all();
        }
        true
    }

    /// The results of lists. If a mover is gone, only the names that it has given are known; the next round finds the rest.
    fn finish_lists(&self, lists: Vec<BegunList<'_>>) -> Vec<MovedList> {
        let finish = |list: BegunList<'_>| {
            let result_of = |file: &usize| MovedFile {
                is_named: self.state().named[*file],
                failure: Some("its mover is lost".to_owned()),
                ..MovedFile::default()
            };
            let lost = || MovedFiles {
                stopped: true,
                files: list.files.iter().map(result_of).collect(),
                ..MovedFiles::default()
            };
            let moved = list.list.finish().unwrap_or_else(|_| lost());
            MovedList {
                moved,
                files: list.files,
                is_remote: list.is_remote,
            }
        };
        lists.into_iter().map(finish).collect()
    }
}

/// Moves files, which get their names one after the other.
pub(super) fn share_in_order<S: FileTree, T: FileTree>(
    files: &[ListedFile],
    team: &DrainTeam,
    own: &OwnLists<'_, '_, S, T>,
    rules: &dyn TurnRules,
) -> Vec<MovedList> {
    let windows = windows_of(files, team);
    let turns = FileTurns::new(files.len());
    let next_list = AtomicU32::new(0);
    let (unchecked, copies) = channel::<UncheckedCopy<'_, S, T>>();
    std::thread::scope(|scope| {
        // The check of a file takes two calls of the target: another thread makes them while the next files get their
        // names.
        scope.spawn(|| {
            for copy in copies {
                copy.list.check(copy.file, copy.named);
            }
        });
        scope.spawn(|| turns.name_windows(&windows, rules));
        for (number, window) in windows.iter().enumerate() {
            let before = number
                .checked_sub(2)
                .map_or(0, |before| windows[before].end);
            let is_stopped = own.progress.begins_no_more();
            if turns.await_room(before) && !is_stopped {
                copy_window(
                    files,
                    window.clone(),
                    team,
                    own,
                    &turns,
                    &next_list,
                    &unchecked,
                );
            }
            turns.note_copied(window.end);
        }
        drop(unchecked);
    });
    let state = turns.state.into_inner();
    state.unwrap_or_else(PoisonError::into_inner).results
}

/// Cuts files into windows: each has some full lists for each process. All names of one inode are in the same window.
fn windows_of(files: &[ListedFile], team: &DrainTeam) -> Vec<Range<usize>> {
    let processes = team.movers.len() + 1;
    // A part of the limit: files that are being copied need descriptors, too.
    let open_files = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX) / 8;
    let most_open = usize::try_from(open_files).unwrap_or(usize::MAX);
    let most_files = (LISTS * LIST_FILES * processes).clamp(1, most_open.max(1));
    let most_bytes = LIST_BYTES * (LISTS * processes) as u64;
    let mut windows = Vec::new();
    let (mut begin, mut bytes) = (0, 0);
    for (number, file) in files.iter().enumerate() {
        let is_link = number > begin && files[number - 1].inode == file.inode;
        let is_full = number - begin >= most_files || bytes >= most_bytes;
        if is_full && !is_link {
            windows.push(begin..number);
            (begin, bytes) = (number, 0);
        }
        bytes += file.size;
    }
    windows.extend(Some(begin..files.len()).filter(|window| !window.is_empty()));
    windows
}

/// Copies the files of a window.
fn copy_window<'l, S: FileTree, T: FileTree>(
    files: &[ListedFile],
    window: Range<usize>,
    team: &'l DrainTeam,
    own: &OwnLists<'l, 'l, S, T>,
    turns: &FileTurns<'l>,
    next_list: &AtomicU32,
    unchecked: &Sender<UncheckedCopy<'l, S, T>>,
) {
    let begin = window.start;
    let files = &files[window];
    let begin_list = |numbers: &[usize], list: Arc<dyn PreparedList + 'l>, is_remote| {
        turns.add_list(BegunList {
            files: numbers.iter().map(|number| begin + number).collect(),
            list,
            is_remote,
        });
    };
    let here = |numbers: &[usize], list: Vec<FileToMove>| {
        let list = Arc::new(OwnList {
            files: Arc::new(PreparedFiles::new(own.from, own.to, list, own.options)),
            progress: own.progress,
            unchecked: Mutex::new(unchecked.clone()),
        });
        begin_list(numbers, Arc::clone(&list) as Arc<_>, false);
        list.files.copy(own.progress);
    };
    let elsewhere = |mover: &'l dyn FileMover, numbers: &[usize], files: &[FileToMove]| {
        let list = next_list.fetch_add(1, Ordering::Relaxed);
        mover.prepare_files(list, files)?;
        begin_list(numbers, Arc::new(RemoteList { mover, list }), true);
        Ok(())
    };
    share_lists(files, lists_of(files), team, own.progress, here, elsewhere);
}
