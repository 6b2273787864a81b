//! Files that programs write again and again: a round copies them before its walk.
//!
//! A program writes `data.8`, then 8 into `progress`, and so on, each step in less time than a round takes. A copy that
//! begins after the walk finds a later version of `progress`, which may refer to files that the walk has not seen. So if
//! the copy of a small file has failed, because a program wrote the file meanwhile, the next round copies it before its
//! walk, without naming it. This walk sees every file that was closed before the copy. For this round the file then counts
//! as having the copied version ([`Drain::set_back`]), and it gets its name in turn ([`order`](super::order)).
//!
//! If the walk finds a later version,
//! - files that changed after the copy wait for the later version, and so do removals and links that the walk has found;
//! - the drain gives the copy up if it may refer to files that the walk could not find any more: if programs have since
//!   removed, renamed or rewritten a file that the target does not have, or renamed a directory. After [`LONGEST_WAIT`]
//!   rounds the file gets its name all the same, unless a directory was renamed.
//!
//! Left out: files in directories that programs have made and removed since the previous walk. Large files, files with
//! several names, those that wait for an analysis, and evicted ones are copied after the walk, in the version that they
//! have then.

use std::cell::OnceCell;
use std::collections::{BTreeSet, HashMap};
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use weir_client::process::mounted::WriteState;
use weir_client::types::{Stat, Time};

use super::order::LONGEST_WAIT;
use super::renames::is_calm;
use super::round::options_of_round;
use super::round_state::{since_1970, time_since_1970};
use super::snapshot::{FileVersion, SeenNode, TreeSnapshot};
use super::Drain;
use crate::copy::{LikenessBy, ReadyCopy};
use crate::error::MoveError;
use crate::list::copy_unnamed;
use crate::mover::{FileToMove, MovedSource};
use crate::side::MoveSide;
use crate::sources::StagePair;
use crate::stage::StageProgress;
use crate::stripe::IO_BYTES;
use crate::tree::{FileTree, NodeKind, TreeHistory};

/// The most files that a round copies before its walk.
const MOST_FILES: usize = 64;

/// The state of a file that was copied before the walk, once the walk has seen it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum EarlyState {
    /// It has the version of its copy.
    Current,
    /// It has a later version, or is gone.
    Outdated,
    /// It gets no name in this round, since its copy was given up.
    GivenUp,
}

/// A file that was copied before the walk of this round.
#[derive(Debug)]
struct EarlyFile<C> {
    /// The copy, until it has its name or is given up.
    copy: Option<C>,
    /// The version of the copy.
    version: FileVersion,
    /// The source had this version at this time.
    unchanged_at: Time,
    state: EarlyState,
}

impl<C> EarlyFile<C> {
    fn is_outdated(&self) -> bool {
        self.state == EarlyState::Outdated
    }
}

/// The files that are copied before walks, and those of this round.
#[derive(Debug)]
pub(super) struct EarlyCopies<C> {
    /// By the path below both directories.
    wanted: BTreeSet<PathBuf>,
    files: HashMap<PathBuf, EarlyFile<C>>,
    /// The history of names before the copies were begun, if all servers have sent it.
    history: Option<TreeHistory>,
    /// From then on until the walk ended, no rename was under way that could hide a name.
    is_calm: bool,
}

impl<C> EarlyCopies<C> {
    pub(super) fn new() -> Self {
        EarlyCopies {
            wanted: BTreeSet::new(),
            files: HashMap::new(),
            history: None,
            is_calm: false,
        }
    }

    /// Requests a copy of a file before the next walk; false: there are too many.
    fn request_copy(&mut self, path: &Path) -> bool {
        let has_room = self.wanted.len() < MOST_FILES || self.wanted.contains(path);
        if has_room {
            self.wanted.insert(path.to_owned());
        }
        has_room
    }

    /// Adds the copy of a file that was made before the walk.
    fn add_copy(&mut self, path: PathBuf, copy: C, version: FileVersion, unchanged_at: Time) {
        let file = EarlyFile {
            copy: Some(copy),
            version,
            unchanged_at,
            state: EarlyState::Current,
        };
        self.files.insert(path, file);
    }

    /// Takes out a copy that is about to get its name.
    fn take_copy(&mut self, path: &Path) -> Option<C> {
        self.files.get_mut(path)?.copy.take()
    }

    /// Gives up the copy of a file.
    fn give_up(&mut self, path: &Path) {
        if let Some(file) = self.files.get_mut(path) {
            file.copy = None;
            file.state = EarlyState::GivenUp;
        }
    }

    /// True if there is a copy that lacks its name.
    pub(super) fn has_copy(&self, path: &Path) -> bool {
        self.files.get(path).is_some_and(|file| file.copy.is_some())
    }

    /// True if there is a copy of a version that is not later than this time.
    fn has_copy_until(&self, path: &Path, changed: Time) -> bool {
        let file = self.files.get(path);
        file.is_some_and(|file| file.copy.is_some() && file.version.ctime <= changed)
    }

    /// True if a copy was given up, so that the file gets no name in this round.
    pub(super) fn is_given_up(&self, path: &Path) -> bool {
        let file = self.files.get(path);
        file.is_some_and(|file| file.state == EarlyState::GivenUp)
    }

    fn outdated(&self) -> impl Iterator<Item = (&PathBuf, &EarlyFile<C>)> {
        self.files.iter().filter(|(_, file)| file.is_outdated())
    }

    /// The last time at which a file is known to have had the version of its copy; `None`: it still has it.
    pub(super) fn outdated_since(&self, path: &Path) -> Option<Time> {
        let file = self.files.get(path);
        let file = file.filter(|file| file.is_outdated());
        file.map(|file| file.unchanged_at)
    }

    /// The files that the walk found in a later version.
    pub(super) fn outdated_paths(&self) -> impl Iterator<Item = &PathBuf> {
        self.outdated().map(|(path, _)| path)
    }

    /// The first of these times.
    pub(super) fn first_outdated(&self) -> Option<Time> {
        self.outdated().map(|(_, file)| file.unchanged_at).min()
    }

    /// Notes the history of names after the walk.
    pub(super) fn note_walk(&mut self, after: Option<&TreeHistory>) {
        self.is_calm = is_calm(self.history.as_ref(), after);
    }

    /// Drops the copies that got no names; this removes their parts.
    pub(super) fn remove_copies(&mut self) {
        for file in self.files.values_mut() {
            file.copy = None;
        }
    }

    /// Forgets the last round.
    fn clear(&mut self) {
        self.files.clear();
        self.history = None;
    }
}

/// A file to which a copy may refer, and which the walk cannot have found as it was then: programs have written it again,
/// or it has lost a name that the target does not have.
#[derive(Debug)]
struct MissedFile {
    path: PathBuf,
    /// The time of its last change.
    changed: Time,
    /// The time of its creation; `None`: not known.
    born: Option<Time>,
    /// If it was written: its inode.
    written: Option<(u64, u64)>,
    /// True if a program has it open and no walk has found it closed; asked once.
    is_open: OnceCell<bool>,
}

/// The version that a file has now.
fn version_at<S: FileTree>(from: &MoveSide<'_, S>, path: &Path) -> Option<FileVersion> {
    let found = from.find_node(path).ok()?;
    found.map(|found| FileVersion::from(&found))
}

impl<'t, S: FileTree, T: FileTree> Drain<'t, S, T> {
    /// Copies the files that programs write again and again, without naming them.
    pub(super) fn copy_early(
        &mut self,
        settled: Duration,
        threads: usize,
        progress: &StageProgress,
    ) {
        self.early.clear();
        let files = self.files_to_copy_early(settled);
        if files.is_empty() {
            return;
        }
        self.early.history = self.ask_for_history(self.walks + 1);
        let (paths, files): (Vec<PathBuf>, Vec<FileToMove>) = files.into_iter().unzip();
        let copies: Mutex<HashMap<PathBuf, ReadyCopy<'t, T>>> = Mutex::default();
        let ready = |target: &Path, copy| {
            let mut copies = copies.lock().unwrap_or_else(PoisonError::into_inner);
            copies.insert(target.to_owned(), copy);
        };
        // If a file fails here, the round copies it again after the walk, and reports its error.
        let (from, to) = (self.from.tree, self.to.tree);
        copy_unnamed(
            from,
            to,
            &files,
            options_of_round(threads),
            progress,
            &ready,
        );
        let mut copies = copies.into_inner().unwrap_or_else(PoisonError::into_inner);
        for (path, file) in paths.into_iter().zip(files) {
            if let Some(copy) = copies.remove(&file.pair.target) {
                let version = FileVersion::from(copy.copied());
                let now = time_since_1970(self.from.tree.now());
                let is_unchanged = version_at(&self.from, &path) == Some(version);
                let unchanged_at = if is_unchanged { now } else { version.ctime };
                self.early.add_copy(path, copy, version, unchanged_at);
            }
        }
    }

    /// The requested files that changed since they were moved, and could get their names now. Forgets the requests for
    /// files that did not change.
    fn files_to_copy_early(&mut self, settled: Duration) -> Vec<(PathBuf, FileToMove)> {
        let wanted = std::mem::take(&mut self.early.wanted);
        if !self.order.is_in_force() {
            return Vec::new();
        }
        let mut files = Vec::new();
        for path in wanted {
            let found = self.from.find_node(&path).ok().flatten();
            let version = found.as_ref().map(FileVersion::from);
            let moved = self.target.moved.get(&path);
            if moved.is_some_and(|moved| version == Some(moved.version)) {
                continue;
            }
            if found.is_some_and(|found| self.is_due_early(&path, &found, settled)) {
                files.push((path.clone(), self.file_to_copy_early(&path)));
            }
            self.early.wanted.insert(path);
        }
        files
    }

    fn file_to_copy_early(&self, path: &Path) -> FileToMove {
        FileToMove {
            pair: StagePair {
                source: self.from.join(path),
                target: self.at_target(path),
            },
            replaces: self.target.replaceable(path),
            content: None,
            likeness: LikenessBy::Bytes,
            is_ours: false,
        }
    }

    /// True if a file can be copied before the walk, and could get its name now.
    fn is_due_early(&self, path: &Path, found: &Stat, settled: Duration) -> bool {
        let is_settled = since_1970(found.ctime) <= settled;
        (self.due.has_names() || is_settled)
            && !self.to.tree.hangs_at(&self.at_target(path))
            && found.nlink == 1
            && self.can_be_early(path, found.ino, found.size)
    }

    fn can_be_early(&self, path: &Path, ino: u64, size: u64) -> bool {
        size <= IO_BYTES
            && self.turns().is_ordered(path)
            && !self.held_files.is_wanted(path)
            && !self.target.is_in_the_way(path)
            && !self.target.copies.is_held(path)
            && !self.target.copies.has_base(ino)
            && !self.target.copies.is_evicted(ino)
    }

    /// Notes that a program had written a file before its copy ended.
    pub(super) fn note_overtaken(&mut self, path: &Path, node: &SeenNode) {
        let version = &node.version;
        let can_be_early = !node.has_links && self.can_be_early(path, version.ino, version.size);
        if !(can_be_early && self.early.request_copy(path)) {
            self.order.note_overtaken(version.inode());
        }
    }

    /// Replaces, for this round, the versions of files that were copied early by those that were copied.
    pub(super) fn set_back(&mut self, snapshot: &mut TreeSnapshot) {
        let is_file = |path: &Path| {
            let seen = snapshot.get(path);
            seen.is_some_and(|seen| seen.kind == NodeKind::File && !seen.has_links)
        };
        // If not, the copy is in another directory.
        let is_known = |dir: &Path| {
            let inode = |version: FileVersion| version.inode();
            let moved = self.target.moved.get(dir).map(|moved| inode(moved.version));
            moved == snapshot.get(dir).map(|seen| inode(seen.version))
        };
        let (early, root) = (&mut self.early, Path::new(""));
        early.wanted.retain(|path| is_file(path));
        early.files.retain(|path, _| {
            let mut above = path.ancestors().skip(1).filter(|dir| *dir != root);
            is_file(path) && above.all(is_known)
        });
        if self.early.files.is_empty() {
            return;
        }
        let is_outdated = |path: &Path, version: FileVersion| {
            let seen = snapshot.get(path).map(|node| node.version);
            // During the walk programs may have removed the files to which it refers, and then have changed it.
            seen != Some(version) || version_at(&self.from, path) != Some(version)
        };
        for (path, file) in &mut self.early.files {
            if is_outdated(path, file.version) {
                file.state = EarlyState::Outdated;
            }
        }
        let missed = self.missed_files(snapshot);
        let is_calm = self.early.is_calm && snapshot.unread.is_empty();
        let outdated: Vec<PathBuf> = self.early.outdated_paths().cloned().collect();
        for path in outdated {
            let is_patient = self.order.rounds_of(&path) >= LONGEST_WAIT;
            let file = &self.early.files[&path];
            let mut missed = missed.iter();
            if is_calm && (is_patient || !missed.any(|missed| self.may_speak_of(file, missed))) {
                snapshot.set_back(&path, file.version);
            } else {
                self.early.give_up(&path);
            }
        }
    }

    /// The files to which outdated copies may refer, and which the walk cannot have found as they were.
    fn missed_files(&self, snapshot: &TreeSnapshot) -> Vec<MissedFile> {
        let Some(since) = self.early.first_outdated() else {
            return Vec::new();
        };
        let moved = &self.target.moved;
        let lost = self
            .history
            .removals
            .lost_unmoved(since, moved, &self.choice, snapshot);
        let lost = lost.into_iter().map(|lost| MissedFile {
            path: lost.path,
            changed: lost.at,
            born: lost.born,
            written: None,
            is_open: OnceCell::new(),
        });
        let files = snapshot.of_kind(NodeKind::File);
        let written = files.filter(|(path, node)| {
            node.version.ctime > since && !self.target.moved.has_version(path, node)
        });
        let written = written.map(|(path, node)| MissedFile {
            path: path.clone(),
            changed: node.version.ctime,
            born: node.born,
            written: Some(node.version.inode()),
            is_open: OnceCell::new(),
        });
        lost.chain(written).collect()
    }

    /// True if a copy may refer to a file that was missed.
    fn may_speak_of(&self, early: &EarlyFile<ReadyCopy<'t, T>>, missed: &MissedFile) -> bool {
        let is_older = missed.born.is_none_or(|born| born <= early.version.ctime);
        // The file itself, or another one that was copied in the version of that time.
        let is_copied = self.early.has_copy_until(&missed.path, early.version.ctime);
        let is_open = || self.was_always_open(missed);
        is_older && missed.changed > early.unchanged_at && !is_copied && !is_open()
    }

    /// True if a program has a file open for writing that no walk has found closed: other files do not wait for it.
    fn was_always_open(&self, missed: &MissedFile) -> bool {
        let Some(inode) = missed.written else {
            return false;
        };
        let state = || self.from.tree.write_state(&self.from.join(&missed.path));
        *missed.is_open.get_or_init(|| {
            self.order.awaited_from(inode).is_none() && matches!(state(), Ok(WriteState::Open))
        })
    }

    /// Gives its name to a file that was copied before the walk.
    pub(super) fn name_early(
        &mut self,
        path: &Path,
        progress: &StageProgress,
    ) -> Result<MovedSource, MoveError> {
        let copy = self.early.take_copy(path).expect("it was copied");
        let copied = *copy.copied();
        let target = self.at_target(path);
        progress.files_done.fetch_add(1, Ordering::Relaxed);
        self.xattrs_not_kept += copy.publish()?;
        if let Some(dir) = target.parent() {
            let synced = self.to.tree.sync_directory(dir);
            synced.map_err(MoveError::io("syncing", dir))?;
        }
        Ok(MovedSource::Copied(copied))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn copies_of(files: &[(&str, i64)]) -> EarlyCopies<()> {
        let mut early = EarlyCopies::new();
        for (path, sec) in files {
            let changed = Time { sec: *sec, nsec: 0 };
            let stat = Stat {
                ctime: changed,
                ..Stat::default()
            };
            early.add_copy(path.into(), (), FileVersion::from(&stat), changed);
        }
        early
    }

    #[test]
    fn an_outdated_file_stays_so_when_its_copy_has_its_name() {
        let mut early = copies_of(&[("a", 3), ("b", 1)]);
        let (a, since) = (Path::new("a"), Time { sec: 3, nsec: 0 });
        assert_eq!(early.first_outdated(), None);
        early.files.get_mut(a).unwrap().state = EarlyState::Outdated;
        assert!(early.has_copy_until(a, since) && early.has_copy(a));
        assert_eq!(early.take_copy(a), Some(()));
        assert!(!early.has_copy_until(a, since) && !early.has_copy(a));
        early.remove_copies();
        assert_eq!(early.outdated_since(a), Some(since));
        assert_eq!(early.first_outdated(), Some(since));
        early.clear();
        assert_eq!(early.outdated_since(a), None);
    }

    #[test]
    fn a_copy_that_is_given_up_is_neither_there_nor_outdated() {
        let mut early = copies_of(&[("a", 3)]);
        let a = Path::new("a");
        early.files.get_mut(a).unwrap().state = EarlyState::Outdated;
        early.give_up(a);
        assert!(early.is_given_up(a) && !early.has_copy(a));
        assert_eq!(early.outdated_since(a), None);
    }

    #[test]
    fn no_more_files_are_requested_than_are_copied_at_once() {
        let mut early = copies_of(&[]);
        let path = |number: usize| PathBuf::from(number.to_string());
        assert!((0..MOST_FILES).all(|number| early.request_copy(&path(number))));
        assert!(!early.request_copy(&path(MOST_FILES)) && early.request_copy(&path(0)));
    }
}
