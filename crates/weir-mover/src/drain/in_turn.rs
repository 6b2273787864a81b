//! Changes of names that come in turn with the files that get their names.
//!
//! A program removes `DONE`, writes its data again, and then writes `DONE` anew. While the data is written again, the
//! target must not have the old `DONE`. So before a file gets its name, the drain removes the names that programs had
//! removed before the last change of the file ([`removals`](super::removals)), and gives new names to files that had been
//! renamed by then ([`follow`](super::follow)).
//!
//! The drain removes a name after all files that programs wrote before the removal have their names. A file that is new to
//! the target counts among these even if programs have changed its attributes or its name since the removal.
//! [`names`](super::names) makes a removal at the end of a round instead,
//! - if such a file is closed, and does not get its name in this round;
//! - if a symbolic link that may have changed before the removal is not on the target as the tree has it;
//! - if a directory that had been renamed before has not got its name;
//! - if a link of the target leads to the name, and the tree has changed or removed that link.
//!
//! If a name has a successor, this replaces it in one step, unless another file gets its name in between.
//! [`names`](super::names) also makes the removals ahead of files that are moved first.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use weir_client::process::mounted::Whiteout;
use weir_client::types::{Stat, Time};

use super::follow::FollowOutcome;
use super::in_order::TurnMaker;
use super::order::{OrderedNode, RoundOrder, MOST_ROUNDS};
use super::removals::{NameLoss, RemovedName};
use super::round_state::{since_1970, RenamedFile, RoundState};
use super::snapshot::{FileVersion, SeenNode, TreeSnapshot};
use super::turns::TurnRules;
use super::{Drain, PendingState};
use crate::error::MoveError;
use crate::publish::is_at_above_or_below;
use crate::tree::{FileTree, NodeKind};

/// A change of a name.
#[derive(Debug)]
enum TurnChange {
    /// A renamed file gets its new name.
    Follow(RenamedFile),
    Remove(RemovedName),
}

impl TurnChange {
    fn path(&self) -> &Path {
        match self {
            TurnChange::Follow(file) => &file.path,
            TurnChange::Remove(name) => &name.path,
        }
    }

    fn is_follow(&self) -> bool {
        matches!(self, TurnChange::Follow(_))
    }
}

#[derive(Debug, Default)]
struct TurnState {
    /// The changes before this number have had their turns.
    next: usize,
    /// The paths of removed names whose successors have had their turns.
    replaced: HashSet<PathBuf>,
    /// A file that changed then has got no name: names that programs removed later stay.
    unnamed_since: Option<Time>,
    /// The renamed files that have got their turns.
    followed: Vec<(PathBuf, FollowOutcome)>,
    /// The names that were removed, with the nodes that had them on the target.
    removed: Vec<(PathBuf, Option<Stat>)>,
    /// A change was not made: the files after it wait.
    is_held: bool,
    /// The changes that failed, by the path below the target.
    failed: Vec<(PathBuf, MoveError)>,
    /// Directories that could not be synced, by the path below the target: after a crash their old names may be back.
    unsynced: Vec<(PathBuf, MoveError)>,
}

impl TurnState {
    /// True if a directory, by the path below the target, could not be synced.
    fn is_unsynced(&self, dir: &Path) -> bool {
        self.unsynced.iter().any(|(unsynced, _)| unsynced == dir)
    }
}

/// The changes of names of a round that come in turn, in the order of their times.
#[derive(Debug, Default)]
pub(super) struct TurnChanges {
    changes: Vec<(Time, TurnChange)>,
    /// The names that are removed.
    removed: HashSet<PathBuf>,
    state: Mutex<TurnState>,
}

impl TurnChanges {
    fn state(&self) -> MutexGuard<'_, TurnState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes that a file has got no name: names that programs removed after its change stay.
    pub(super) fn note_unnamed(&self, changed: Time) {
        let mut state = self.state();
        let since = state.unnamed_since.unwrap_or(changed);
        state.unnamed_since = Some(since.min(changed));
    }

    /// Notes as pending the renamed files whose turns have not come: they wait for the next round.
    pub(super) fn pend(&self, round: &mut RoundState) {
        let snapshot = Arc::clone(&round.snapshot);
        let next = self.state().next;
        for (_, change) in &self.changes[next..] {
            if let TurnChange::Follow(file) = change {
                let node = snapshot.get(&file.path).expect("chosen from it");
                round.pend(&file.path, node, PendingState::Waiting);
            }
        }
    }
}

/// The files of a list that get their names in order, with the changes of names before them.
pub(super) struct OrderedList<'r, 't, S: FileTree, T: FileTree> {
    pub turns: TurnMaker<'r, 't, S, T>,
    pub snapshot: &'r TreeSnapshot,
    pub files: &'r [&'r PathBuf],
    pub changes: &'r TurnChanges,
}

impl<S: FileTree, T: FileTree> OrderedList<'_, '_, S, T> {
    fn node(&self, file: usize) -> &SeenNode {
        self.snapshot.get(self.files[file]).expect("chosen from it")
    }
}

impl<S: FileTree, T: FileTree> TurnRules for OrderedList<'_, '_, S, T> {
    fn begin(&self, file: usize) -> bool {
        let file = self.turns.ordered_node(self.files[file], self.node(file));
        self.turns.change_before(self.changes, self.snapshot, file)
    }
    fn note_unnamed(&self, file: usize) {
        self.changes.note_unnamed(self.node(file).version.ctime);
    }
    fn is_awaited(&self, file: usize) -> bool {
        // This includes a file that programs have removed: files that they wrote after it may refer to it.
        self.turns.is_awaited(self.files[file], self.node(file))
    }
}

/// The closed files of a walk that are not on the target as the walk saw them.
#[derive(Debug, Default)]
struct UnnamedFiles {
    /// The earliest change of a file that gets no name in this round.
    left_since: Option<Time>,
    /// For files of which the target has no version: the times from their last write to the last change of their
    /// attributes. The ranges do not overlap.
    unchanged: Vec<(Time, Time)>,
    /// For files of which the target has an old version: the times from their first possible change since then to their
    /// last change.
    changing: Vec<(Time, Time)>,
}

impl UnnamedFiles {
    /// The turn of a removal that programs made at `at`: after the names of files that already had their present content
    /// then, or that may have changed before. `None`: one of these files gets no name. `has_successor`: programs have made
    /// the name again, so files that the target has in an old version do not count.
    fn turn_of_removal(&self, at: Time, has_successor: bool) -> Option<Time> {
        let mut turn = end_of_range(&self.unchanged, at).unwrap_or(at);
        if !has_successor {
            turn = end_of_range(&self.changing, at).map_or(turn, |end| end.max(turn));
        }
        self.left_since
            .is_none_or(|since| since > turn)
            .then_some(turn)
    }
}

/// The end of the range that contains a point in time. The ranges do not overlap.
fn end_of_range(ranges: &[(Time, Time)], at: Time) -> Option<Time> {
    let begun = ranges.partition_point(|(begin, _)| *begin <= at);
    let (_, end) = ranges[begun.checked_sub(1)?];
    Some(end).filter(|end| at < *end)
}

/// Joins ranges that overlap.
fn joined(mut ranges: Vec<(Time, Time)>) -> Vec<(Time, Time)> {
    ranges.sort_unstable();
    ranges.dedup_by(|next, last| {
        let overlaps = next.0 <= last.1;
        if overlaps {
            last.1 = last.1.max(next.1);
        }
        overlaps
    });
    ranges
}

const LONG_AGO: Time = Time {
    sec: i64::MIN,
    nsec: 0,
};

impl<S: FileTree, T: FileTree> TurnMaker<'_, '_, S, T> {
    /// Makes the changes of names that come before a file; false: one of them failed, and the file waits for it.
    pub(super) fn change_before(
        &self,
        changes: &TurnChanges,
        now: &TreeSnapshot,
        file: OrderedNode<'_>,
    ) -> bool {
        let mut state = changes.state();
        // A file in a directory that has no name yet does not come in order.
        if !self.is_ordered(file.path) {
            return !state.is_held;
        }
        let left = &changes.changes[state.next..];
        let count = left.partition_point(|(at, _)| *at < file.version.ctime);
        let are_made = self.make_changes(changes, &mut state, count, Some(file.path), now);
        if changes.removed.contains(file.path) {
            state.replaced.insert(file.path.to_owned());
        }
        are_made
    }

    /// Makes the changes of names that come after the last file, up to the last renamed file.
    pub(super) fn follow_behind(&self, changes: &TurnChanges, now: &TreeSnapshot) {
        let mut state = changes.state();
        let left = &changes.changes[state.next..];
        let last = left.iter().rposition(|(_, change)| change.is_follow());
        let count = last.map_or(0, |last| last + 1);
        self.make_changes(changes, &mut state, count, None, now);
    }

    /// Makes changes of names. `file`: the path of the file that gets its name next.
    fn make_changes(
        &self,
        changes: &TurnChanges,
        state: &mut TurnState,
        count: usize,
        file: Option<&Path>,
        now: &TreeSnapshot,
    ) -> bool {
        let mut directories = BTreeSet::new();
        let mut has_failed = false;
        let due = &changes.changes[state.next..][..count];
        for (number, (at, change)) in due.iter().enumerate() {
            if state.is_held || has_failed && change.is_follow() {
                break;
            }
            state.next += 1;
            let (path, has_changed) = match change {
                TurnChange::Follow(file) => {
                    let node = now.get(&file.path).expect("chosen from it");
                    let outcome = self.follow(file, node);
                    state.followed.push((file.path.clone(), outcome));
                    // If it has no name or not all attributes, the next round copies it.
                    state.is_held = outcome != FollowOutcome::Named;
                    if outcome.has_name() && changes.removed.contains(&file.path) {
                        state.replaced.insert(file.path.clone());
                    }
                    (&file.path, outcome.has_name())
                }
                TurnChange::Remove(name) => {
                    let next = due.get(number + 1).map(|(_, next)| next.path());
                    let is_replaced = next.or(file) == Some(&name.path);
                    let is_behind = state.unnamed_since.is_some_and(|since| since <= *at);
                    if is_replaced || is_behind || state.replaced.contains(&name.path) {
                        continue;
                    }
                    let removed = self.view.remove_name(name, now);
                    let has_changed = matches!(removed, Ok(Some(_)));
                    match removed {
                        Ok(removed) => state.removed.push((name.path.clone(), removed)),
                        Err(error) => {
                            state.failed.push((name.path.clone(), error));
                            has_failed = true;
                        }
                    }
                    (&name.path, has_changed)
                }
            };
            let parent = path.parent().filter(|_| has_changed);
            directories.extend(parent.map(|dir| self.view.find_path(dir)));
        }
        state.is_held |= has_failed;
        for dir in directories {
            if let Err(error) = self.view.to.tree.sync_directory(&dir) {
                let error = MoveError::io("syncing", &dir)(error);
                let dir = self.view.to.strip(&dir).to_owned();
                state.unsynced.push((dir, error));
                state.is_held = true;
            }
        }
        !state.is_held
    }
}

impl<S: FileTree, T: FileTree> Drain<'_, S, T> {
    /// Plans the changes of names that come in turn with these files of a round. `is_first`: these are the files that are
    /// moved first.
    pub(super) fn plan_changes(
        &mut self,
        round: &mut RoundState,
        chosen: &[&PathBuf],
        is_first: bool,
    ) -> TurnChanges {
        let mut changes = TurnChanges::default();
        let now = Arc::clone(&round.snapshot);
        // Otherwise the walk may have missed files that were there before a removal.
        if self.order.is_in_force()
            && !is_first
            && !self.target.ownership.keeps_all
            && now.has_all_files()
        {
            for name in self.names_to_remove(round, chosen) {
                if changes.removed.insert(name.path.clone()) {
                    changes.changes.push((name.at, TurnChange::Remove(name)));
                }
            }
        }
        let renamed = std::mem::take(&mut round.renamed);
        let (renamed, others) = renamed
            .into_iter()
            .partition(|file: &RenamedFile| self.choice.is_first(&file.path) == is_first);
        round.renamed = others;
        for file in renamed {
            let changed = now.get(&file.path).expect("chosen from it").version.ctime;
            changes.changes.push((changed, TurnChange::Follow(file)));
        }
        // An old name is removed after the file has its new one.
        changes
            .changes
            .sort_by_key(|(at, change)| (*at, !change.is_follow()));
        changes
    }

    /// Makes files wait for the next round if names were removed before them, and this walk may have missed files from
    /// before the removal: then nothing is removed in turn.
    pub(super) fn await_removals(&mut self, now: &TreeSnapshot, order: &mut RoundOrder) {
        if !self.order.is_in_force() || self.target.ownership.keeps_all || now.has_all_files() {
            self.order.rounds_in_doubt = 0;
            return;
        }
        if self.order.rounds_in_doubt >= MOST_ROUNDS {
            return;
        }
        let losses = self.history.removals.told_losses(&self.target.moved, now);
        let removed = losses.values().filter(|loss| loss.is_removal());
        if let Some(first) = removed.map(|loss| loss.first).min() {
            self.order.rounds_in_doubt += 1;
            order.note_removal(first);
        }
    }

    /// The names that programs had removed when the walk began, except those for which a file is missing that was written
    /// before.
    fn names_to_remove(&mut self, round: &RoundState, chosen: &[&PathBuf]) -> Vec<RemovedName> {
        let followed: HashSet<&Path> = round.renamed.iter().map(|file| &*file.path).collect();
        let chosen = chosen.iter().map(|path| path.as_path());
        let named: &HashSet<&Path> = &chosen.chain(followed.iter().copied()).collect();
        if named.is_empty() {
            return Vec::new();
        }
        let now = &*round.snapshot;
        let losses = self.history.removals.told_losses(&self.target.moved, now);
        let removed_at = |whiteout: &Whiteout| self.from.tree.removed_at(whiteout).ok()?;
        let mut names =
            self.history
                .removals
                .removed_names(&losses, &self.target, now, named, removed_at);
        if names.is_empty() {
            return names;
        }
        let unnamed = self.unnamed_files(round, named, &followed, &losses);
        let kept = self.view().destinations_of_old_links(&[], now);
        // For later removals, the walk may have missed files that were there before.
        let is_in_time = |name: &RemovedName| since_1970(name.at) <= now.began;
        names.retain(|name| is_in_time(name) && !is_at_above_or_below(&name.path, &kept));
        names.retain_mut(|name| {
            let has_successor = now.get(&name.path).is_some();
            let turn = unnamed.turn_of_removal(name.at, has_successor);
            name.at = turn.unwrap_or(name.at);
            turn.is_some()
        });
        names
    }

    fn unnamed_files(
        &self,
        round: &RoundState,
        named: &HashSet<&Path>,
        followed: &HashSet<&Path>,
        losses: &HashMap<PathBuf, NameLoss>,
    ) -> UnnamedFiles {
        let now = &*round.snapshot;
        let mut left_since: Option<Time> = None;
        let mut leave = |at: Time| left_since = Some(left_since.map_or(at, |since| since.min(at)));
        let (mut unchanged, mut changing) = (Vec::new(), Vec::new());
        // If so, the target may have versions of files that this drain does not know.
        let is_continued = self.target.ownership.is_continued();
        for (path, node) in now.of_kind(NodeKind::File) {
            let inode = node.version.inode();
            let since = self.order.awaited_from(inode);
            let is_closed = since.is_some() || !round.open.contains(&inode);
            if !is_closed || self.target.moved.has_version(path, node) {
                continue;
            }
            let FileVersion { mtime, ctime, .. } = node.version;
            if !named.contains(&**path) {
                leave(since.unwrap_or(ctime));
            }
            let born = node.born.unwrap_or(LONG_AGO);
            if let Some(moved) = self.target.moved.get(path) {
                let lost = losses.get(path).map(|loss| loss.first);
                changing.push((lost.unwrap_or(moved.unchanged_at), ctime));
            } else if is_continued || self.target.ownership.has_taken(path) {
                changing.push((born, ctime));
            }
            let has_version =
                self.target.moved.contains(path) || self.target.ownership.has_taken(path);
            if !has_version && !followed.contains(&**path) {
                unchanged.push((born.max(mtime), ctime));
            }
        }
        // The later versions of these files get no names.
        if let Some(since) = self.early.first_outdated() {
            leave(since);
        }
        for (path, node) in self.target.moved.changed_links(now) {
            let old = self.target.moved.get(path).map(|moved| moved.unchanged_at);
            let lost = losses.get(path).map(|loss| loss.first);
            // An earlier drain may have made a link with this name, and programs may have changed it any number of times
            // since.
            let first = match is_continued && self.target.ownership.has_marks(path) {
                true => LONG_AGO,
                false => node.version.ctime,
            };
            leave(lost.or(old).unwrap_or(first));
        }
        for path in self.target.relocated.unnamed().chain(&round.unmade) {
            if let Some(node) = now.get(path) {
                let since = self.order.awaited_from(node.version.inode());
                leave(since.unwrap_or(node.version.ctime));
            }
        }
        UnnamedFiles {
            left_since,
            unchanged: joined(unchanged),
            changing: joined(changing),
        }
    }

    /// Notes the changes that were made since the last call.
    pub(super) fn note_changes(&mut self, round: &mut RoundState, changes: &TurnChanges) {
        let mut state = changes.state();
        let snapshot = Arc::clone(&round.snapshot);
        for (path, removed) in std::mem::take(&mut state.removed) {
            self.target.ownership.note_unlinked(removed.as_ref());
            if removed.is_some() {
                round.names += 1;
                self.target.ownership.note_removed(std::iter::once(&path));
            }
            self.target.moved.remove(&path);
            self.history.removals.forget_failures(&path);
        }
        // A followed name may be one that was removed before.
        for (path, outcome) in std::mem::take(&mut state.followed) {
            let node = snapshot.get(&path).expect("chosen from it");
            let is_synced = path.parent().is_some_and(|dir| !state.is_unsynced(dir));
            self.note_followed(round, &path, node, outcome, is_synced);
        }
        for (path, error) in std::mem::take(&mut state.failed) {
            round.fail(&path, &error);
            self.history.removals.count_failure(&path);
        }
        for (dir, error) in std::mem::take(&mut state.unsynced) {
            round.fail(&dir, &error);
            self.unsynced.insert(dir);
        }
    }
}
