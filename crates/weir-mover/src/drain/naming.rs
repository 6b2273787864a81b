//! Gives relocated directories their names.
//!
//! A directory gets its name when the drain makes the changes of names (`names`) of a walk that saw it with that name, and
//! when the target has all files that the walk saw in it, except those that a program had open for writing. If another
//! directory has this name, that one first gets a hidden name, and is removed afterwards: so a reader sees the old or the
//! new directory, each whole.
//!
//! If a conflict holds changes of names back for long, a whole directory gets its name all the same, if the name is free.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::io::Errno;
use weir_client::types::{Stat, Time};

use super::changed_names::ChangedNames;
use super::hold::HeldFiles;
use super::order::LONGEST_WAIT;
use super::relocated::copies_of_evicted;
use super::relocation_table::{rebase, Occupant, RelocatedDirectory};
use super::renames::RenameHistory;
use super::round_state::RoundState;
use super::snapshot::{SeenNode, TreeSnapshot};
use super::target_editor::TargetEditor;
use super::target_state::TargetState;
use super::target_view::TargetView;
use super::{Drain, PendingState};
use crate::error::MoveError;
use crate::publish::{destination, is_at_above_or_below, is_part, part_of, remove_part, FILLING};
use crate::tree::{failed_with_any, identity, kind_of, unless, FileTree, NodeKind, PART_MODE};

/// The rounds after which a directory does not wait any more for files that programs have removed meanwhile.
const PATIENT_ROUNDS: u32 = 4;

/// Errors by which a file system says that it cannot exchange two names.
const NO_EXCHANGE: [Errno; 4] = [Errno::INVAL, Errno::NOSYS, Errno::NOTSUP, Errno::OPNOTSUPP];

/// A link of the source that the target does not have yet.
struct UnmadeLink {
    leads_to: PathBuf,
    made: Time,
}

impl<F> TargetState<F> {
    /// Counts a round, and notes as pending the files that the target has in directories without their names.
    pub(super) fn pend_relocated(&mut self, round: &mut RoundState) {
        self.relocated.count_round();
        let snapshot = Arc::clone(&round.snapshot);
        for path in self.relocated.unnamed() {
            for (path, node) in snapshot.at_and_below(path) {
                if node.kind == NodeKind::File && self.moved.has_version(path, node) {
                    round.pend(path, node, PendingState::Waiting);
                }
            }
        }
    }

    /// True if a directory that two walks saw does not get its name by the changes of the first one: what had this name on the
    /// target was there still in that walk, since programs gave the name to the directory before, and again later.
    pub(super) fn awaits_later_walk(&self, then: &TreeSnapshot, now: &TreeSnapshot) -> bool {
        let mut seen = self.relocated.seen_unnamed(then, now);
        seen.any(|path| match self.relocated.find_occupant(path) {
            Occupant::Retired(old) => {
                let retired = self.moved.get(&old);
                retired.is_none_or(|node| node.walk > then.walk)
            }
            Occupant::None | Occupant::Relocated(_) => false,
        })
    }

    /// The directories that can get their names, except those whose old names are still destinations of links on the
    /// target.
    fn ready_directories(
        &self,
        then: &TreeSnapshot,
        round: &RoundState,
        is_ordered: bool,
        kept: &BTreeSet<PathBuf>,
        renames: &RenameHistory,
        held_files: &HeldFiles,
    ) -> Vec<PathBuf> {
        let mut ready: Vec<_> = self.relocated.iter().collect();
        ready.retain(|(path, one)| {
            let is_next = is_ordered && !self.relocated.changes_old_links(path, one, kept);
            (is_next || one.rounds > LONGEST_WAIT)
                && self.is_ready(path, one, then, round, held_files)
        });
        if ready.is_empty() {
            return Vec::new();
        }
        let now = &round.snapshot;
        let links = self.moved.unmade_links(then, now);
        let mut links: Vec<UnmadeLink> = links
            .map(|(path, node)| UnmadeLink {
                leads_to: destination(path, &node.content),
                made: node.version.ctime,
            })
            .collect();
        links.sort_unstable_by_key(|link| link.made);
        ready.retain(|(path, one)| {
            one.rounds > LONGEST_WAIT || !self.waits_for_links(path, &links, then, now)
        });
        let mut ready: Vec<PathBuf> = ready.into_iter().map(|(path, _)| path.clone()).collect();
        // In the order of their renames.
        ready.sort_by_key(|path| {
            let version = then.get(path).map(|seen| seen.version);
            version.map(|dir| {
                let order = renames.order_of(dir.ino);
                (dir.ctime.sec, dir.ctime.nsec, order)
            })
        });
        ready
    }

    /// True if the target has all files that a walk saw in a directory.
    fn is_ready(
        &self,
        path: &Path,
        relocated: &RelocatedDirectory<F>,
        then: &TreeSnapshot,
        round: &RoundState,
        held_files: &HeldFiles,
    ) -> bool {
        let now = &round.snapshot;
        let is_seen = |walk: &TreeSnapshot| {
            let seen = walk
                .get(path)
                .filter(|seen| seen.kind == NodeKind::Directory);
            seen.is_some_and(|seen| Some(seen.version.inode()) == relocated.inode)
        };
        let above = path.parent().unwrap_or(Path::new(""));
        if !is_seen(then) || self.relocated.is_relocated(above) {
            return false;
        }
        // Programs read the copies of evicted files by their paths.
        let is_taken = !matches!(self.relocated.find_occupant(path), Occupant::None);
        if self.copies.has_around(relocated.at()) || is_taken && self.copies.has_around(path) {
            return false;
        }
        if !is_seen(now) && (then.has_missed || !then.is_calm) {
            return false;
        }
        // A directory that is gone meanwhile may be the destination of links that the same walk saw: it stays patient.
        let is_patient = relocated.rounds < PATIENT_ROUNDS || !is_seen(now);
        let mut nodes = then.at_and_below(path);
        nodes.all(|(path, node)| match node.kind {
            NodeKind::Symlink | NodeKind::Special => true,
            NodeKind::Directory => self.moved.contains(path) || !is_patient,
            NodeKind::File => match now.get(path).filter(|_| is_seen(now)) {
                None => {
                    !is_patient || !is_seen(now) && self.has_version_since(path, node, held_files)
                }
                Some(seen) => {
                    self.has_version_since(path, node, held_files)
                        || round.open.contains(&seen.version.inode())
                        || self.copies.is_evicted(node.version.ino)
                }
            },
        })
    }

    /// True if the target has this version of a file, or a later one, and it is certain enough for an analysis.
    fn has_version_since(&self, path: &Path, node: &SeenNode, held_files: &HeldFiles) -> bool {
        let is_doubtful = self.moved.get(path).is_some_and(|moved| moved.is_doubtful);
        self.moved.has_file_since(path, node.version.ctime)
            && !(is_doubtful && held_files.is_wanted(path))
    }

    /// True if the target lacks links that do not lead to a directory, and that programs may have made before they removed
    /// files from it: the directory has changed since the oldest of them, or it loses files with its name. `unmade` is
    /// sorted by time.
    fn waits_for_links(
        &self,
        path: &Path,
        unmade: &[UnmadeLink],
        then: &TreeSnapshot,
        now: &TreeSnapshot,
    ) -> bool {
        let mut unmade = unmade.iter();
        let oldest = unmade
            .find(|link| !link.leads_to.starts_with(path) && !path.starts_with(&link.leads_to));
        let Some(oldest) = oldest.map(|link| link.made) else {
            return false;
        };
        let seen = [then.get(path), now.get(path)].into_iter().flatten();
        let changed = seen.map(|dir| dir.version.mtime).max();
        changed.is_some_and(|changed| oldest < changed) || self.loses_files(path, then)
    }

    /// True if a directory lacks a file that a walk saw in it, or a name of the retired directory whose name it takes.
    fn loses_files(&self, path: &Path, then: &TreeSnapshot) -> bool {
        let mut seen = then.at_and_below(path);
        if seen.any(|(path, node)| node.kind == NodeKind::File && !self.moved.contains(path)) {
            return true;
        }
        let Occupant::Retired(old) = self.relocated.find_occupant(path) else {
            return false;
        };
        !self.moved.has_names_of(path, &old)
    }

    /// True for the topmost directory that is known to have been renamed, or that an earlier drain has left, and that is
    /// gone with all its nodes.
    fn is_gone_whole(
        &self,
        path: &Path,
        gone: &BTreeSet<PathBuf>,
        renames: &RenameHistory,
    ) -> bool {
        let is_renamed = |path: &Path| {
            self.moved.get(path).is_some_and(|moved| {
                moved.kind == NodeKind::Directory
                    && moved.is_ours
                    && (moved.is_leftover() || renames.has_renamed(moved.version.ino, u64::MAX))
            })
        };
        let mut above = path.ancestors().skip(1);
        is_renamed(path)
            && !self.relocated.is_relocated(path)
            && !self.relocated.has_around(path)
            && !above.any(|above| gone.contains(above) && is_renamed(above))
            && self.moved.are_all_below_in(path, gone)
    }
}

impl<T: FileTree> TargetView<'_, '_, T> {
    /// True if the target has the node that this drain has put there, unchanged.
    fn is_ours_still(&self, target: &Path, path: &Path) -> Result<bool, MoveError> {
        let there = self.to.find_node(target)?;
        let moved = self.state.moved.get(path).filter(|moved| moved.is_ours);
        let both = there.zip(moved);
        Ok(both.is_some_and(|(there, moved)| self.is_as_made(target, moved, &there)))
    }

    /// True if a directory of the target has only nodes that this drain has put there, unchanged.
    fn has_only_ours(&self, dir: &Path, path: &Path) -> Result<bool, MoveError> {
        let mut open = vec![(dir.to_owned(), path.to_owned())];
        while let Some((dir, path)) = open.pop() {
            let names = self
                .to
                .tree
                .list(&dir)
                .map_err(MoveError::io("listing", &dir))?;
            for name in names.iter().filter(|name| !is_part(name)) {
                let (target, path) = (dir.join(name), path.join(name));
                if self.state.relocated.has_at(self.to.strip(&target)) {
                    return Ok(false); // another directory, which must leave first
                }
                if !self.is_ours_still(&target, &path)? {
                    return Ok(false);
                }
                if self.state.moved[&*path].kind == NodeKind::Directory {
                    open.push((target, path));
                }
            }
        }
        Ok(true)
    }

    /// Removes hidden directories that killed processes have left beside those of the tree. Directories that cannot be read
    /// stay.
    pub(super) fn clear_hidden_directories(&self, now: &TreeSnapshot) {
        if self.state.ownership.keeps_all {
            return;
        }
        let borrowed = now.of_kind(NodeKind::Directory).map(|(path, _)| path);
        let found = borrowed.filter(|path| {
            self.state
                .moved
                .get(path)
                .is_none_or(|moved| !moved.is_ours)
        });
        let root = PathBuf::new();
        for dir in found.chain([&root]) {
            let dir = self.find_path(dir);
            for name in self.to.tree.list(&dir).unwrap_or_default() {
                let path = dir.join(&name);
                let is_directory = || {
                    let found = self.to.tree.look_up(&path).ok().flatten();
                    found.is_some_and(|found| kind_of(&found) == NodeKind::Directory)
                };
                if is_part(&name) && is_directory() {
                    // EBUSY: a living process fills it.
                    let _ = remove_part(self.to.tree, &path);
                }
            }
        }
    }
}

impl<T: FileTree> TargetEditor<'_, '_, T> {
    /// Gives names to whole directories that a walk saw with these names. `is_ordered`: all files that were closed before
    /// are on the target, so that other directories may lose these names. `read`: the copies of evicted files, which
    /// programs read.
    pub(super) fn name_directories(
        &mut self,
        then: &TreeSnapshot,
        round: &RoundState,
        is_ordered: bool,
        held_files: &HeldFiles,
        read: &BTreeSet<PathBuf>,
    ) -> ChangedNames {
        let mut changed = ChangedNames::default();
        let now = &round.snapshot;
        let kept = self.view().destinations_of_old_links(&[], now);
        loop {
            let ready = self.state.ready_directories(
                then,
                round,
                is_ordered,
                &kept,
                &self.history.renames,
                held_files,
            );
            let mut is_changed = false;
            for path in &ready {
                let target = self.to.join(path);
                let named = match self.state.relocated.find_occupant(path) {
                    Occupant::None => {
                        self.name_directory(path, None, then, now, read, &mut changed)
                    }
                    Occupant::Retired(old) => {
                        let retired = self.state.moved.get(&old);
                        let is_gone = retired.is_some_and(|node| node.walk <= then.walk);
                        if !is_ordered || !is_gone {
                            continue;
                        }
                        self.replace_retired(path, &old, then, now, read, &mut changed)
                    }
                    Occupant::Relocated(_) => continue,
                };
                is_changed |= match named {
                    Ok(true) => true,
                    // The node that had its name was retired: the next iteration gives the name to the directory.
                    Ok(false) => self.state.relocated.contains_key(path),
                    Err(_) => false,
                };
                changed.note(path, &target, named);
            }
            if !(is_changed || is_ordered && self.break_cycle(&ready, &mut changed)) {
                break;
            }
        }
        self.sync(&mut changed);
        changed
    }

    /// Gives a directory its name, which a retired one has; false: the retired one has nodes of somebody else, so the files
    /// are merged.
    fn replace_retired(
        &mut self,
        path: &Path,
        old: &Path,
        then: &TreeSnapshot,
        now: &TreeSnapshot,
        read: &BTreeSet<PathBuf>,
        changed: &mut ChangedNames,
    ) -> Result<bool, MoveError> {
        let there = self.find_path(old);
        let is_ours = match self.state.moved[old].kind {
            NodeKind::Directory => self.view().has_only_ours(&there, old)?,
            _ => self.view().is_ours_still(&there, old)?,
        };
        if !is_ours {
            self.state.retire(path, now.walk);
            changed.has_merged = true;
            return Ok(false);
        }
        self.name_directory(path, Some(old), then, now, read, changed)
    }

    /// Retires nodes that earlier drains of the tree have put in the place of a directory, and that this drain does not
    /// know yet: the directory was renamed to this path after the drain had begun it. False: the nodes are somebody else's,
    /// or programs read them.
    fn retire_in_the_way(
        &mut self,
        path: &Path,
        there: &Stat,
        then: &TreeSnapshot,
        read: &BTreeSet<PathBuf>,
    ) -> Result<bool, MoveError> {
        let is_read = self.state.copies.has_around(path) || is_at_above_or_below(path, read);
        if is_read || self.state.relocated.has_around(path) {
            return Ok(false);
        }
        self.retire_earlier(path, there, then)
    }

    /// Gives hidden names to directories that were renamed and are gone with all their nodes: programs may have renamed
    /// them again before they removed them, so a reader must not see a part of them under an old name. The same holds for
    /// directories that an earlier drain has left.
    pub(super) fn hide_gone(&mut self, gone: &mut [PathBuf], changed: &mut ChangedNames) {
        let all: BTreeSet<PathBuf> = gone.iter().cloned().collect();
        let tops: Vec<PathBuf> = all
            .iter()
            .filter(|path| self.state.is_gone_whole(path, &all, &self.history.renames))
            .cloned()
            .collect();
        let mut hidden_names: HashMap<PathBuf, PathBuf> = HashMap::new();
        for path in tops {
            let ino = self.state.moved[&*path].version.ino;
            let target = self.to.join(&path);
            let has_only_ours = self.view().has_only_ours(&target, &path);
            if !has_only_ours.is_ok_and(|has_only_ours| has_only_ours) {
                continue;
            }
            let marked = self.state.marked_below(&path);
            let retired = self.state.moved.unused_retired_path(&path, ino);
            let hidden = self.to.join(&retired);
            let renamed = self.to.tree.rename(&target, &hidden, false);
            let is_hidden = renamed.is_ok();
            // If this fails, the nodes are removed one by one.
            if !is_hidden {
                continue;
            }
            let has_only_ours = self.view().has_only_ours(&hidden, &path);
            if !has_only_ours.is_ok_and(|has_only_ours| has_only_ours) {
                // Somebody else has put a node there meanwhile.
                let _ = self.to.tree.rename(&hidden, &target, false);
                continue;
            }
            changed.note(&path, &target, Ok(true));
            let nodes = self.state.detach_nodes(&path, &retired);
            self.state.attach_nodes(nodes);
            let hidden = RelocatedDirectory::new_retired(&retired);
            self.state.relocated.insert(retired.clone(), hidden);
            self.state.ownership.note_removed(marked.iter());
            hidden_names.insert(path, retired);
        }
        for path in gone.iter_mut() {
            let above = path
                .ancestors()
                .find(|above| hidden_names.contains_key(*above));
            if let Some(above) = above {
                *path = rebase(path, above, &hidden_names[above]);
            }
        }
        self.hide_gone_retired(gone, changed);
    }

    /// The same for retired directories, which have names that programs know.
    fn hide_gone_retired(&mut self, gone: &[PathBuf], changed: &mut ChangedNames) {
        let all: BTreeSet<PathBuf> = gone.iter().cloned().collect();
        let is_retired = |path: &&PathBuf| {
            let one = self.state.relocated.get(path);
            one.is_some_and(|one| one.is_retired() && !one.is_hidden())
        };
        let retired: Vec<PathBuf> = all.iter().filter(is_retired).cloned().collect();
        for path in retired {
            let target = self.find_path(&path);
            let is_alone = !self.state.relocated.has_others_in(&path);
            let is_whole = self.state.moved[&*path].kind == NodeKind::Directory
                && is_alone
                && self.state.moved.are_all_below_in(&path, &all);
            if !is_whole
                || !self
                    .view()
                    .has_only_ours(&target, &path)
                    .is_ok_and(|ours| ours)
            {
                continue;
            }
            let marked = self.state.marked_below(&path);
            // If hiding fails, the nodes are removed one by one.
            if self.hide_directory(&path).is_ok() {
                changed.note(&path, &target, Ok(true));
                self.state.ownership.note_removed(marked.iter());
            }
        }
    }

    /// Exchanges the names of a relocated directory and of the retired one that has its name, in two steps if the target
    /// has no call for that.
    fn exchange_with_retired(&mut self, path: &Path, old: &Path) -> Result<(), MoveError> {
        let (from, target) = (self.find_path(path), self.to.join(path));
        let was = self.state.relocated[path].at().to_owned();
        let is_hidden = self.state.relocated[path].is_hidden();
        if !is_hidden {
            // For a moment, the retired directory has the old name of its successor.
            self.state.mark_nodes(old, &was, false);
        }
        match self.to.tree.exchange(&from, &target) {
            Ok(()) => {
                self.state.relocated.change_place(old, old);
                self.state.relocated.change_place(path, path);
                self.state.relocated.change_place(old, &was);
                match is_hidden {
                    true => Ok(()),
                    false => self.hide_directory(old),
                }
            }
            Err(error) if failed_with_any(&error, &NO_EXCHANGE) => {
                self.hide_directory(old)?;
                let renamed = self.to.tree.rename(&from, &target, false);
                renamed.map_err(MoveError::io("naming", &target))
            }
            Err(error) => Err(MoveError::io("naming", &target)(error)),
        }
    }

    /// Gives a directory a hidden name on the target.
    fn hide_directory(&mut self, path: &Path) -> Result<(), MoveError> {
        let relocated = &self.state.relocated[path];
        let hidden = match relocated.inode {
            None => path.to_owned(),
            Some((_, ino)) => part_of(&path.with_file_name(format!("aside-{ino:x}"))),
        };
        let (from, to) = (self.find_path(path), self.to.join(&hidden));
        let renamed = self.to.tree.rename(&from, &to, false);
        renamed.map_err(MoveError::io("renaming", &from))?;
        self.state.relocated.change_place(path, &hidden);
        Ok(())
    }

    /// Gives a directory its name; false: another node has the name. That node is retired, or the files are merged since it
    /// is somebody else's.
    fn name_directory(
        &mut self,
        path: &Path,
        retired: Option<&Path>,
        then: &TreeSnapshot,
        now: &TreeSnapshot,
        read: &BTreeSet<PathBuf>,
        changed: &mut ChangedNames,
    ) -> Result<bool, MoveError> {
        let target = self.to.join(path);
        let from = self.find_path(path);
        let there = self.to.find_node(&target)?;
        if let Some(there) = there.filter(|_| retired.is_none()) {
            if !self.retire_in_the_way(path, &there, then, read)? {
                self.state.retire(path, now.walk);
                changed.has_merged = true;
            }
            return Ok(false);
        }
        self.clear_directory(path, then, now, changed)?;
        let relocated = self.state.relocated.get_mut(path).expect("a relocated one");
        let is_hidden = relocated.is_hidden();
        if is_hidden {
            let part = from.join(FILLING);
            // An earlier try may have given the lock back.
            let lock = match relocated.lock.take() {
                Some(lock) => lock,
                None => match self.to.tree.create_part(&part, PART_MODE) {
                    Err(error) if error.kind() == ErrorKind::ResourceBusy => {
                        return Err(MoveError::Busy(target));
                    }
                    made => made.map_err(MoveError::io("creating", &part))?,
                },
            };
            let lock = &*relocated.lock.insert(lock);
            let locked = self.to.tree.stat(lock);
            if locked.map_err(MoveError::io("looking for", &part))?.nlink == 0 {
                // Another process has taken the directory for a dead process's.
                return Err(MoveError::Busy(target));
            }
            let removed = unless(self.to.tree.remove(&part), ErrorKind::NotFound);
            removed.map_err(MoveError::io("removing", &part))?;
            relocated.lock = None;
        }
        let was = self
            .to
            .tree
            .look_up(&from)
            .map_err(MoveError::io("looking for", &from))?;
        self.state.mark_nodes(path, path, false);
        let marked = self.state.marked_below(path);
        let renamed = match retired {
            None => {
                let renamed = self.to.tree.rename(&from, &target, false);
                renamed.map_err(MoveError::io("naming", &target))
            }
            Some(old) => self.exchange_with_retired(path, old),
        };
        if let Err(error) = renamed {
            // The rename may have succeeded although its reply was lost.
            let found = self.to.tree.look_up(&target).ok().flatten();
            if found.as_ref().map(identity) != was.as_ref().map(identity) || was.is_none() {
                return Err(error);
            }
        }
        changed
            .directories
            .extend(from.parent().map(Path::to_owned));
        self.state.relocated.change_place(path, path);
        self.state.relocated.remove(path);
        self.state.mark_nodes(path, path, true);
        // If the retired directory could not be hidden, it has the old name.
        let taken = retired.map(|old| self.state.marked_below(old));
        let taken: HashSet<PathBuf> = taken.into_iter().flatten().collect();
        self.state
            .ownership
            .note_removed(marked.iter().filter(|path| !taken.contains(*path)));
        Ok(true)
    }

    /// Removes from a relocated directory the nodes that two walks did not see in it, and from a hidden one also the nodes
    /// that a killed process has left.
    fn clear_directory(
        &mut self,
        path: &Path,
        then: &TreeSnapshot,
        now: &TreeSnapshot,
        changed: &mut ChangedNames,
    ) -> Result<(), MoveError> {
        let gone: Vec<PathBuf> = self.state.gone_below(path, then, now).cloned().collect();
        let removed = self.remove(gone, now);
        changed.failed.extend(removed.failed);
        if !self.state.relocated[path].is_hidden() {
            return Ok(());
        }
        let mut open = vec![path.to_owned()];
        while let Some(path) = open.pop() {
            let dir = self.find_path(&path);
            for name in self
                .to
                .tree
                .list(&dir)
                .map_err(MoveError::io("listing", &dir))?
            {
                let (path, target) = (path.join(&name), dir.join(&name));
                if name == FILLING || self.state.relocated.has_at(self.to.strip(&target)) {
                    continue;
                }
                let kind = self.state.moved.get(&path).map(|moved| moved.kind);
                match kind {
                    Some(NodeKind::Directory) => open.push(path),
                    Some(_) => {}
                    None => {
                        remove_part(self.to.tree, &target)
                            .map_err(MoveError::io("removing", &target))?;
                    }
                }
            }
        }
        Ok(())
    }

    /// Hides one of several directories that are to exchange their names; false: there are none.
    fn break_cycle(&mut self, ready: &[PathBuf], changed: &mut ChangedNames) -> bool {
        let occupants =
            ready
                .iter()
                .filter_map(|path| match self.state.relocated.find_occupant(path) {
                    Occupant::Relocated(other) if ready.contains(&other) => Some(other),
                    _ => None,
                });
        let Some(other) = occupants.into_iter().next() else {
            return false;
        };
        match self.hide_directory(&other) {
            Ok(()) => true,
            Err(error) => {
                changed.failed.push((other, error));
                false
            }
        }
    }
}

impl<S: FileTree, T: FileTree> Drain<'_, S, T> {
    /// Gives names to whole directories that a walk saw with these names.
    pub(super) fn name_walked(
        &mut self,
        then: &TreeSnapshot,
        round: &RoundState,
        is_ordered: bool,
    ) -> ChangedNames {
        if self.target.relocated.unnamed().next().is_none() {
            return ChangedNames::default();
        }
        let read = copies_of_evicted(self.from.tree, &round.snapshot);
        let held_files = self.held_files.clone();
        self.editor()
            .name_directories(then, round, is_ordered, &held_files, &read)
    }

    /// True if a renamed directory is not among those that this drain has moved.
    pub(super) fn has_unknown_directories(&mut self) -> bool {
        self.ask_for_history(self.walks + 1);
        let known = self.target.moved.iter().map(|(_, node)| node.version.ino);
        let known: HashSet<u64> = known.collect();
        let mut renamed = self.history.renames.directories();
        renamed.any(|ino| !known.contains(&ino))
    }
}
