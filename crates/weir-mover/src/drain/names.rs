//! The changes of names of a drain: symbolic links, and removals.
//!
//! They are *due* when a walk has seen them. They are made once the target has all files that this walk, or the next one,
//! found without a writer. While changes are due, files are copied at once. Also:
//! - a link is not made before its destination is complete;
//! - the destination of a link of the target is not removed before the link is changed.
//!
//! The drain removes only nodes that drains of the tree made, and only if nobody else has changed them.

use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::changed_names::{sort_removals, ChangedNames};
use super::due_names::{Awaited, DueNames, WalkedNames};
use super::relocation_table::RelocatedDirectory;
use super::removals::NameLoss;
use super::round_state::RoundState;
use super::snapshot::{SeenNode, TreeSnapshot};
use super::target_editor::TargetEditor;
use super::target_state::TargetState;
use super::{Drain, MovedNode};
use crate::error::MoveError;
use crate::publish::{
    check_kind, check_replaceable, destination, is_at_above_or_below, is_symlink_to, make_symlink,
};
use crate::tree::{FileTree, NodeKind};

impl RoundState {
    /// Notes the names that could not be changed; returns the number of those that were.
    fn note_changes(&mut self, changes: &[ChangedNames]) -> u64 {
        for (path, error) in changes.iter().flat_map(|changed| &changed.failed) {
            self.fail(path, error);
        }
        changes.iter().map(|changed| changed.count).sum()
    }
}

impl<F> TargetState<F> {
    /// The links that lead only to each other and to nodes that are on the target.
    fn links_to_each_other<'a>(
        &self,
        links: &[(&'a PathBuf, &'a SeenNode)],
        then: &WalkedNames,
        now: &TreeSnapshot,
    ) -> HashSet<&'a Path> {
        let mut links = links.to_vec();
        loop {
            let together: HashSet<&Path> = links.iter().map(|(path, _)| path.as_path()).collect();
            links.retain(|(path, node)| self.is_whole(path, node, then, now, &together));
            if links.len() == together.len() {
                return together;
            }
        }
    }

    /// True if each node at and below a link's destination is on the target in some version, or is made together with the
    /// link; also if the link leads to nothing.
    fn is_whole(
        &self,
        link: &Path,
        node: &SeenNode,
        then: &WalkedNames,
        now: &TreeSnapshot,
        together: &HashSet<&Path>,
    ) -> bool {
        let leads_to = destination(link, &node.content);
        let Some(there) = then.snapshot.get(&leads_to) else {
            // The walk may have missed a destination that has been removed since.
            let is_unchanged = now.get(link).is_some_and(|now| now.content == node.content);
            return is_unchanged && now.get(&leads_to).is_none();
        };
        let is_steady = there.kind != NodeKind::Directory || then.steady.contains(link);
        let dir_of = |path| self.relocated.find_above(path).map(|(dir, _)| dir);
        let mut nodes = then.snapshot.at_and_below(&leads_to);
        is_steady
            && nodes.all(|(path, node)| {
                let dir = dir_of(path);
                (dir.is_none() || dir == dir_of(link))
                    && (node.kind == NodeKind::Directory
                        || self.moved.contains(path)
                        || together.contains(path.as_path()))
            })
    }
}

impl<T: FileTree> TargetEditor<'_, '_, T> {
    /// Makes the links that a walk saw, except those that the target has as a later walk saw them. `is_inside`: true: those
    /// in directories that do not have their names yet; false: all others.
    fn make_links(
        &mut self,
        then: &WalkedNames,
        later: Option<&TreeSnapshot>,
        now: &TreeSnapshot,
        is_inside: bool,
    ) -> ChangedNames {
        let is_made = |path: &PathBuf, node: &SeenNode| {
            let later = later.and_then(|later| later.get(path));
            self.state.moved.has_link(path, node)
                || later.is_some_and(|node| self.state.moved.has_link(path, node))
        };
        let mut changed = ChangedNames::default();
        let links = then.snapshot.of_kind(NodeKind::Symlink);
        let mut links: Vec<_> = links
            .filter(|(path, node)| {
                let is_there = now
                    .get(path)
                    .is_some_and(|now| now.kind == NodeKind::Symlink);
                is_there
                    && self.state.relocated.is_relocated(path) == is_inside
                    && !is_made(path, node)
                    && !self.state.is_in_the_way(path)
                    && !self.view().awaits_removal(now, path, NodeKind::Symlink)
                    && !self.state.copies.is_held(path)
            })
            .collect();
        // A link to a link is made after the other one. Links in a cycle are made together, once their other destinations
        // are there.
        let mut together = HashSet::new();
        while !links.is_empty() {
            let before = links.len();
            links.retain(|(path, node)| {
                if !self.state.is_whole(path, node, then, now, &together) {
                    return true;
                }
                let target = self.find_path(path);
                let made = self.make_link(path, &target, node);
                let is_ours = made.as_ref().is_ok_and(|made| *made);
                if changed.note(path, &target, made) {
                    self.state
                        .moved
                        .insert((*path).clone(), MovedNode::from_seen(node, is_ours));
                }
                false
            });
            if links.len() < before {
                continue;
            }
            if !together.is_empty() {
                break;
            }
            together = self.state.links_to_each_other(&links, then, now);
            if together.is_empty() {
                break;
            }
        }
        self.sync(&mut changed);
        changed
    }

    fn make_link(&self, path: &Path, target: &Path, node: &SeenNode) -> Result<bool, MoveError> {
        let there = self.to.find_node(target)?;
        check_kind(target, there.as_ref(), NodeKind::Symlink)?;
        if is_symlink_to(self.to.tree, target, there.as_ref(), &node.content) {
            return Ok(false);
        }
        check_replaceable(target, there.as_ref(), |there| {
            self.state.may_replace(path, there)
        })?;
        self.state.note_placing(std::iter::once((path, node)));
        make_symlink(
            self.to.tree,
            &node.content,
            target,
            there.as_ref(),
            &node.kept,
        )?;
        Ok(true)
    }

    /// Removes nodes that this drain made.
    pub(super) fn remove(&mut self, mut gone: Vec<PathBuf>, now: &TreeSnapshot) -> ChangedNames {
        let mut changed = ChangedNames::default();
        if self.state.ownership.keeps_all {
            return changed;
        }
        let mut removed_names = Vec::new();
        self.hide_gone(&mut gone, &mut changed);
        let losses = self.history.removals.told_losses(&self.state.moved, now);
        sort_removals(&mut gone, |path| losses.get(path).map(NameLoss::gone_at));
        let mut not_empty: HashSet<PathBuf> = HashSet::new();
        for path in gone {
            if not_empty.contains(&path) {
                continue;
            }
            let target = self.find_path(&path);
            let marked = self.state.relocated.find_place(&path);
            // A program of the job has removed the name: then the drain may remove the node, even if somebody else made it.
            let is_whited_out = now.whiteouts.contains_key(&path);
            let relocated = self.state.relocated.get(&path);
            let is_hidden = relocated.is_some_and(RelocatedDirectory::is_hidden);
            let removed = match is_hidden && self.state.moved[&*path].kind == NodeKind::Directory {
                true => self.remove_relocated(&path),
                false => self.view().remove_ours(
                    &target,
                    &marked,
                    &self.state.moved[&*path],
                    is_whited_out,
                ),
            };
            let is_removed = matches!(removed, Ok(true));
            if changed.note(&path, &target, removed) {
                self.history.removals.forget_failures(&path);
                self.state.moved.remove(&path);
                self.state.relocated.remove(&path);
                removed_names.extend(is_removed.then_some(marked));
            } else {
                not_empty.extend(path.ancestors().skip(1).map(Path::to_owned));
            }
        }
        self.sync(&mut changed);
        self.state.ownership.note_removed(removed_names.iter());
        changed
    }

    /// Removes the nodes that two walks did not see, unless an old link of the target leads to them.
    fn remove_gone(
        &mut self,
        then: &TreeSnapshot,
        last: &TreeSnapshot,
        now: &TreeSnapshot,
    ) -> ChangedNames {
        // The walk in between has missed nothing.
        let unseen: HashSet<&PathBuf> = self.state.gone(then, last).collect();
        let gone = self
            .state
            .gone(then, now)
            .filter(|path| unseen.contains(path));
        let mut gone: Vec<PathBuf> = gone.cloned().collect();
        let kept = self.view().destinations_of_old_links(&gone, now);
        gone.retain(|path| !is_at_above_or_below(&self.state.relocated.find_place(path), &kept));
        self.remove(gone, now)
    }

    /// Removes all nodes that are gone. To be called once the links are those of the source.
    pub(super) fn remove_all_gone(&mut self, now: &TreeSnapshot) -> ChangedNames {
        self.remove(self.state.gone(now, now).cloned().collect(), now)
    }

    /// Removes directories in the place of files, and files in the place of directories.
    pub(super) fn clear_the_way(&mut self, now: &TreeSnapshot) -> ChangedNames {
        let is_taken = |path: &Path| {
            let relocated = self
                .state
                .relocated
                .get(path)
                .filter(|one| one.is_retired());
            now.get(relocated.map_or(path, RelocatedDirectory::at))
                .is_some()
        };
        let in_the_way = self.state.gone(now, now).filter(|path| is_taken(path));
        let in_the_way: HashSet<&Path> = in_the_way.map(PathBuf::as_path).collect();
        let is_below = |path: &&PathBuf| path.ancestors().any(|above| in_the_way.contains(above));
        let gone = self
            .state
            .gone(now, now)
            .filter(is_below)
            .cloned()
            .collect();
        self.remove(gone, now)
    }
}

impl<S: FileTree, T: FileTree> Drain<'_, S, T> {
    /// Makes the changes of names that are possible now; returns their number.
    pub(super) fn change_names(&mut self, round: &mut RoundState) -> u64 {
        let snapshot = Arc::clone(&round.snapshot);
        // A name that the walk could not read may be there.
        if !snapshot.unread.is_empty() {
            return 0;
        }
        let mut count = 0;
        if let Some(due) = self.due.take_names() {
            match self.await_files(due, round) {
                Awaited::There(due, last) => {
                    let then = Arc::clone(&due.seen.snapshot);
                    let later = &last.snapshot;
                    let mut changes = vec![
                        self.editor()
                            .make_links(&due.seen, Some(later), &snapshot, true),
                        self.name_walked(&then, round, true),
                        self.name_walked(later, round, true),
                        self.editor()
                            .make_links(&due.seen, Some(later), &snapshot, false),
                        // Again, for directories whose old names were destinations of links.
                        self.name_walked(later, round, true),
                        self.editor().make_links(&last, None, &snapshot, true),
                        self.editor().make_links(&last, None, &snapshot, false),
                        self.name_walked(later, round, true),
                    ];
                    let has_merged = changes.iter().any(|changed| changed.has_merged);
                    let target = &self.target;
                    if self
                        .due
                        .begins_removals(due, &last, has_merged, target, &snapshot)
                    {
                        changes.extend(self.remove_unseen(&then, later, &snapshot));
                    }
                    count = round.note_changes(&changes);
                }
                Awaited::Missing(due) => {
                    let named = self.name_walked(&snapshot, round, false);
                    // The due changes do not wait for the files of a directory that is merged.
                    if !named.has_merged {
                        self.due.keep_names(due);
                    }
                    count = round.note_changes(&[named]);
                }
                Awaited::Gone => {}
            }
        }
        if let Some(late) = self.due.take_late(&self.target.moved, &snapshot) {
            let changes = self.remove_unseen(&late.then, &late.last, &snapshot);
            count += round.note_changes(&changes);
        }
        if !self.due.has_names() && self.target.changed_names(&snapshot).next().is_some() {
            self.due.add_names(self.walked_names(snapshot), round);
        }
        count
    }

    /// Removes the names that two walks did not see, and those that programs had removed before the first one.
    fn remove_unseen(
        &mut self,
        then: &TreeSnapshot,
        last: &TreeSnapshot,
        now: &TreeSnapshot,
    ) -> [ChangedNames; 2] {
        [
            self.editor().remove_gone(then, last, now),
            self.remove_whited_out(then, now),
        ]
    }

    fn await_files(&self, mut due: DueNames, round: &RoundState) -> Awaited {
        due.note_walk(round, || self.walked_names(Arc::clone(&round.snapshot)));
        due.forget_files(round, &self.target.moved);
        due.find_awaited(&round.snapshot, |path| {
            !self.view().waits_for_names(round, path)
        })
    }

    fn walked_names(&self, snapshot: Arc<TreeSnapshot>) -> WalkedNames {
        WalkedNames {
            steady: self.steady_links(&snapshot),
            snapshot,
        }
    }

    /// The changed links to directories in which a second walk finds the same names, and that still lead there.
    fn steady_links(&self, snapshot: &TreeSnapshot) -> HashSet<PathBuf> {
        let links = self.target.moved.changed_links(snapshot);
        let is_steady = |(path, node): &(&PathBuf, &SeenNode)| {
            let leads_to = destination(path, &node.content);
            let directory = snapshot.get(&leads_to);
            if directory.is_none_or(|node| node.kind != NodeKind::Directory) {
                return false;
            }
            let again = self.source_tree().walk_below(&leads_to, snapshot.walk);
            let seen = snapshot.at_and_below(&leads_to).skip(1);
            let is_same = again.unread.is_empty() && seen.map(|(path, _)| path).eq(again.paths());
            // If not, the walk may have seen a directory that is being removed.
            let leads_there = || self.from.tree.read_link(&self.from.join(path));
            is_same && leads_there().is_ok_and(|content| content == node.content)
        };
        links
            .filter(is_steady)
            .map(|(path, _)| path.clone())
            .collect()
    }
}
