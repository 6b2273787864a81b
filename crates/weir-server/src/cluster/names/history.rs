//! The history of the names of this server, for a drain that walks a tree beside programs. It shows the drain that a
//! walk may have missed a file that moved to another directory, and which directories were renamed. By it the drain
//! removes a name from the target before it places a file there that was written after the removal.
//!
//! A rename is counted before any of its names changes, a removal when it is made. The counts are those of the server's
//! process: a new process counts from its start, and a drain that compares positions takes that for a change. The lost names are
//! kept once a drain has asked for them, since a drain asks before it moves anything. They are in the journal, too, so that a
//! drain after a kill (`weir recover`) makes removals in their order. An instance that is never drained pays nothing for them,
//! until a server of it was killed and came back.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;

use weir_core::journal::{self, Item, MOST_LOST_NAMES};
use weir_core::proto::{HistoryPosition, NameHistory, NameRemoval};
use weir_core::types::Ino;

use crate::cluster::names::{InstanceNames, NamesNeeds};
use crate::cluster::snapshot::{SnapshotPosition, Visit};

/// The most directories that are kept.
const MOST_DIRECTORIES: usize = 4096;
/// The most bytes of removals in an answer, which must fit into the channel of a client.
const REMOVAL_BYTES: usize = 16 << 10;
/// The bytes of a removal beside its name, at most.
const NUMBER_BYTES: usize = 40;

/// The last of some counted changes.
struct LastChanges<T> {
    /// The newest last.
    kept: VecDeque<T>,
    /// The number of changes noted so far.
    count: u64,
    most: usize,
}

impl<T: Clone> LastChanges<T> {
    fn keeping(most: usize) -> LastChanges<T> {
        LastChanges {
            kept: VecDeque::new(),
            count: 0,
            most,
        }
    }

    fn note(&mut self, change: T) {
        if self.kept.len() == self.most {
            self.kept.pop_front();
        }
        self.kept.push_back(change);
        self.count += 1;
    }

    /// The kept changes that are not among the first `known`, and true if there were others.
    fn since(&self, known: u64) -> (impl ExactSizeIterator<Item = T> + '_, bool) {
        // A greater position is from an earlier process of the server.
        let new = self.count.checked_sub(known).unwrap_or(self.count);
        let new = usize::try_from(new).unwrap_or(usize::MAX);
        let is_cut = new > self.kept.len() || known > self.count;
        let skipped = self.kept.len().saturating_sub(new);
        (self.kept.iter().skip(skipped).cloned(), is_cut)
    }

    /// The kept changes from this number on, with their numbers.
    fn numbered_from(&self, number: u64) -> impl Iterator<Item = (u64, &T)> {
        let first = self.count - self.kept.len() as u64;
        let skipped = usize::try_from(number.saturating_sub(first)).unwrap_or(usize::MAX);
        (first..).zip(&self.kept).skip(skipped)
    }
}

pub(in crate::cluster) struct HistoryLog {
    begun: Cell<u64>,
    ended: Cell<u64>,
    /// The directories that were renamed.
    directories: RefCell<LastChanges<Ino>>,
    removals: RefCell<LastChanges<NameRemoval>>,
    /// True once a drain has asked for the removals: from then on they are kept, here and in the journal.
    is_followed: Cell<bool>,
}

impl Default for HistoryLog {
    fn default() -> HistoryLog {
        HistoryLog {
            begun: Cell::new(0),
            ended: Cell::new(0),
            directories: RefCell::new(LastChanges::keeping(MOST_DIRECTORIES)),
            removals: RefCell::new(LastChanges::keeping(MOST_LOST_NAMES)),
            is_followed: Cell::new(false),
        }
    }
}

/// A rename that has begun; it has ended when this is dropped.
pub(super) struct RenameUnderWay<'l>(&'l HistoryLog);

impl Drop for RenameUnderWay<'_> {
    fn drop(&mut self) {
        self.0.ended.set(self.0.ended.get() + 1);
    }
}

impl HistoryLog {
    /// Counts a rename that is about to change names.
    pub(super) fn begin(&self) -> RenameUnderWay<'_> {
        self.begun.set(self.begun.get() + 1);
        RenameUnderWay(self)
    }

    /// Notes a directory that is about to get another name.
    pub(super) fn note_directory(&self, dir: Ino) {
        self.directories.borrow_mut().note(dir);
    }

    /// Notes that a file or link has lost a name.
    fn note_removal(&self, removal: NameRemoval) {
        self.removals.borrow_mut().note(removal);
    }

    /// See [`NamesState::take_up_history`](super::NamesState::take_up_history).
    pub(super) fn take_up(&self, state: &mut journal::Cluster) {
        // A drain may have asked the process that was killed.
        self.is_followed.set(true);
        for lost in std::mem::take(&mut state.lost) {
            self.note_removal(NameRemoval {
                dir: lost.dir,
                name: lost.name,
                ino: lost.ino,
                removed_ns: lost.at_ns,
                is_replaced: lost.is_replaced,
            });
        }
    }

    /// See [`NamesState::show_lost_names`](super::NamesState::show_lost_names).
    pub(super) fn show_lost_names(
        &self,
        from: SnapshotPosition,
        most: usize,
        visit: Visit<'_>,
    ) -> Option<SnapshotPosition> {
        let removals = self.removals.borrow();
        let mut left = removals.numbered_from(from.offset);
        for (_, removal) in left.by_ref().take(most) {
            visit(&lost_name(removal));
        }
        let next = left.next();
        next.map(|(offset, _)| SnapshotPosition { offset, ..from })
    }

    fn since(&self, known: HistoryPosition) -> NameHistory {
        let (directories, removals) = (self.directories.borrow(), self.removals.borrow());
        let (new_directories, is_cut) = directories.since(known.renames);
        let (new_removals, _) = removals.since(known.removals);
        let new = new_removals.len();
        let mut bytes = 0;
        let told: Vec<NameRemoval> = new_removals
            .take_while(|removal| {
                bytes += removal.name.len() + NUMBER_BYTES;
                bytes <= REMOVAL_BYTES
            })
            .collect();
        let left = new - told.len();
        NameHistory {
            begun: self.begun.get(),
            ended: self.ended.get(),
            position: HistoryPosition {
                renames: directories.count,
                removals: removals.count - left as u64,
            },
            directories: new_directories.collect(),
            removals: told,
            is_cut,
            has_more: left > 0,
        }
    }
}

/// The journal item of a removal.
fn lost_name(removal: &NameRemoval) -> Item<'_> {
    Item::NameLost {
        at_ns: removal.removed_ns,
        dir: removal.dir,
        name: &removal.name,
        ino: removal.ino,
        is_replaced: removal.is_replaced,
    }
}

impl<S: NamesNeeds> InstanceNames<S> {
    /// See [`weir_core::proto::GetNameHistory`].
    pub(in crate::cluster) fn history_since(&self, known: HistoryPosition) -> NameHistory {
        let history = &self.state().history;
        history.is_followed.set(true);
        history.since(known)
    }

    /// Notes that a file or link has lost a name, now.
    pub(super) fn note_removal(&self, dir: Ino, name: &[u8], ino: Ino) {
        self.note_loss(dir, name, ino, false);
    }

    /// Notes that a file or link has lost a name to another one, now.
    pub(super) fn note_replaced(&self, dir: Ino, name: &[u8], ino: Ino) {
        self.note_loss(dir, name, ino, true);
    }

    fn note_loss(&self, dir: Ino, name: &[u8], ino: Ino, is_replaced: bool) {
        let history = &self.state().history;
        if !history.is_followed.get() {
            return;
        }
        let removal = NameRemoval {
            dir,
            name: name.to_vec(),
            ino,
            removed_ns: self.server.peers().now_ns(),
            is_replaced,
        };
        self.server.note(&lost_name(&removal));
        history.note_removal(removal);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(renames: u64, removals: u64) -> HistoryPosition {
        HistoryPosition { renames, removals }
    }

    #[test]
    fn a_caller_gets_the_directories_that_it_does_not_know() {
        let log = HistoryLog::default();
        let under_way = log.begin();
        log.note_directory(Ino(7));
        let history = log.since(at(0, 0));
        assert_eq!((history.begun, history.ended), (1, 0));
        assert_eq!(history.position, at(1, 0));
        drop(under_way);
        log.note_directory(Ino(8));
        let history = log.since(at(1, 0));
        assert_eq!((history.ended, history.directories), (1, vec![Ino(8)]));
        let history = log.since(at(2, 0));
        assert_eq!((history.directories, history.is_cut), (vec![], false));
        for ino in 0..2 * MOST_DIRECTORIES as u64 {
            log.note_directory(Ino(ino));
        }
        let history = log.since(at(2, 0));
        assert_eq!(history.position.renames, 2 + 2 * MOST_DIRECTORIES as u64);
        assert_eq!(history.directories.len(), MOST_DIRECTORIES);
        assert!(history.is_cut);
    }

    #[test]
    fn a_process_that_was_started_anew_has_another_history() {
        let log = HistoryLog::default();
        log.note_directory(Ino(7));
        let history = log.since(at(5, 5));
        assert_eq!((history.directories, history.is_cut), (vec![Ino(7)], true));
        assert_eq!(history.position, at(1, 0));
    }

    #[test]
    fn removals_are_answered_one_part_at_a_time() {
        let log = HistoryLog::default();
        let count = 2000;
        let removal = |number: u64| NameRemoval {
            dir: Ino(1),
            name: vec![b'x'; usize::try_from(number % 256).unwrap()],
            ino: Ino(number),
            removed_ns: i64::try_from(number).unwrap(),
            is_replaced: false,
        };
        (0..count).for_each(|number| log.note_removal(removal(number)));
        let (mut known, mut removed) = (at(0, 3), Vec::new());
        loop {
            let history = log.since(known);
            removed.extend(history.removals);
            known = history.position;
            if !history.has_more {
                break;
            }
        }
        assert_eq!(removed, (3..count).map(removal).collect::<Vec<_>>());
        assert_eq!(log.since(known).removals, []);
        (0..MOST_LOST_NAMES as u64).for_each(|number| log.note_removal(removal(number)));
        let history = log.since(known);
        assert_eq!(history.removals[0], removal(0));
        log.note_removal(removal(0));
        assert_eq!(log.since(known).removals[0], removal(1));
    }
}
