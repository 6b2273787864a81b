//! Files that get their names in the order of their list, whichever process copies them.
//!
//! One thread gives the names, each as soon as its file and all before it are copied. The files are copied in windows, by this
//! process and by movers, in lists as others are; those of a window while the ones before are named. So the files of two
//! windows at most are open.
//!
//! A file that fails ends this, unless nobody waits for it. One of which a call hangs is not waited for: the others get
//! their names.

use std::io;
use std::ops::Range;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use rustix::process::{getrlimit, Resource};

use super::lists::{lists_of, share_lists, ListedFile, MovedList, OwnLists};
use super::team::DrainTeam;
use crate::mover::{
    FileMover, FileToMove, MovedFiles, NameOutcome, PreparedList, LIST_BYTES, LIST_FILES,
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

/// A list that this process copies.
struct OwnList<'r, 't, S: FileTree, T: FileTree> {
    files: PreparedFiles<'t, S, T>,
    progress: &'r StageProgress,
}

impl<S: FileTree, T: FileTree> PreparedList for OwnList<'_, '_, S, T> {
    fn name(&self, file: usize) -> io::Result<NameOutcome> {
        Ok(self.files.name(file, self.progress))
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

/// The outcome of the turn of a file.
#[derive(Clone, Copy, PartialEq, Eq)]
enum TurnOutcome {
    Ended,
    /// It has another one once its window is copied.
    Hangs,
}

/// The place of a file: its list, and its number there.
type FilePlace<'l> = (Arc<dyn PreparedList + 'l>, usize);

struct TurnsState<'l> {
    /// Of each file, once its list was begun.
    places: Vec<Option<FilePlace<'l>>>,
    /// The lists of the windows that have not ended.
    lists: Vec<BegunList<'l>>,
    /// The files before this are copied, or nobody copies them.
    copied: usize,
    /// The files before this have had their turns, and the results of their lists are there.
    ended: usize,
    /// The files behind one wait for it, or its mover is gone.
    is_held: bool,
    results: Vec<MovedList>,
}

/// The files of a round, and whose turn it is.
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
                is_held: false,
                results: Vec::new(),
            }),
            changed: Condvar::new(),
        }
    }

    fn state(&self) -> MutexGuard<'_, TurnsState<'l>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until the state is so.
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
            state.places[*file] = Some((Arc::clone(&list.list), number));
        }
        state.lists.push(list);
        self.changed.notify_all();
    }

    /// Waits until the file with this number may be copied; false: it is not to be.
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
    fn name_windows(&self, windows: &[Range<usize>], is_awaited: &dyn Fn(usize) -> bool) {
        for window in windows {
            let is_hanging = |file: &usize| self.name(*file, is_awaited) == TurnOutcome::Hangs;
            let hanging: Vec<usize> = window.clone().filter(is_hanging).collect();
            let mut state = self.wait_until(|state| state.copied >= window.end);
            let lists = std::mem::take(&mut state.lists);
            // Others are of the next window.
            let (ended, begun) = lists
                .into_iter()
                .partition(|list| window.contains(&list.files[0]));
            state.lists = begun;
            drop(state);
            for file in hanging {
                self.name(file, is_awaited);
            }
            self.state().places[window.clone()].fill(None);
            let results = finish_lists(ended);
            let mut state = self.state();
            state.results.extend(results);
            state.ended = window.end;
            self.changed.notify_all();
        }
    }

    /// Gives a file its name, unless those before it hold it up.
    fn name(&self, file: usize, is_awaited: &dyn Fn(usize) -> bool) -> TurnOutcome {
        let state = self.wait_until(|state| {
            state.is_held || state.places[file].is_some() || state.copied > file
        });
        if state.is_held {
            return TurnOutcome::Ended;
        }
        let place = state.places[file].clone();
        drop(state);
        let goes_on = match place.map(|(list, number)| list.name(number)) {
            Some(Ok(NameOutcome::Hangs)) => return TurnOutcome::Hangs,
            Some(Ok(NameOutcome::Named)) => true,
            Some(Ok(NameOutcome::Failed)) => !is_awaited(file),
            // It was stopped before its list was begun, or its mover is gone.
            None | Some(Err(_)) => false,
        };
        if !goes_on {
            self.state().is_held = true;
            self.changed.notify_all();
        }
        TurnOutcome::Ended
    }
}

/// The results of lists; of a mover that is gone the next round looks for them.
fn finish_lists(lists: Vec<BegunList<'_>>) -> Vec<MovedList> {
    let finished = lists.into_iter().filter_map(|list| {
        let moved = list.list.finish().ok()?;
        Some(MovedList {
            files: list.files,
            moved,
            is_remote: list.is_remote,
        })
    });
    finished.collect()
}

/// Moves files, which get their names one after the other. `is_awaited`: true if those behind a file that has failed wait
/// for it, by its number.
pub(super) fn share_in_order<S: FileTree, T: FileTree>(
    files: &[ListedFile],
    team: &DrainTeam,
    own: &OwnLists<'_, '_, S, T>,
    is_awaited: &(dyn Fn(usize) -> bool + Sync),
) -> Vec<MovedList> {
    let windows = windows_of(files, team);
    let turns = FileTurns::new(files.len());
    let next_list = AtomicU32::new(0);
    std::thread::scope(|scope| {
        scope.spawn(|| turns.name_windows(&windows, is_awaited));
        for (number, window) in windows.iter().enumerate() {
            let before = number
                .checked_sub(2)
                .map_or(0, |before| windows[before].end);
            let is_stopped = own.progress.stop.load(Ordering::Relaxed);
            if turns.await_room(before) && !is_stopped {
                copy_window(files, window.clone(), team, own, &turns, &next_list);
            }
            turns.note_copied(window.end);
        }
    });
    let state = turns.state.into_inner();
    state.unwrap_or_else(PoisonError::into_inner).results
}

/// Cuts files into windows: each has some full lists for each process. The names of one file are in one.
fn windows_of(files: &[ListedFile], team: &DrainTeam) -> Vec<Range<usize>> {
    let processes = team.movers.len() + 1;
    // Beside those that are being copied.
    let open_files = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX) / 8;
    let most_open = usize::try_from(open_files).unwrap_or(usize::MAX);
    let most_files = (LISTS * LIST_FILES).min(most_open).max(1) * processes;
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
            files: PreparedFiles::new(own.from, own.to, list, own.options),
            progress: own.progress,
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
