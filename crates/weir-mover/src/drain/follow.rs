//! Files that programs have renamed: the copy gets the new name by a hard link on the target, so that the file is not
//! copied again. The old name is removed later, like any other that the tree does not have any more: so the file has a name
//! at every moment.
//!
//! Left out: targets that make no links between the two directories, and files with several names. These files are copied.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::path::{Path, PathBuf};

use super::in_order::TurnMaker;
use super::round_state::{RenamedFile, RoundState};
use super::snapshot::{SeenNode, TreeSnapshot};
use super::{Drain, MovedNode, MovedNodes, PendingState};
use crate::content::ContentStamp;
use crate::copy::match_xattrs;
use crate::error::MoveError;
use crate::publish::{make_hard_link, LinkOutcome};
use crate::tree::{FileTree, NodeKind};

/// The outcome of giving a renamed file its new name on the target.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum FollowOutcome {
    /// It has its name, and all attributes.
    Named,
    /// It has its name. A copy must set the attributes.
    Linked,
    /// It must be copied.
    NotLinked,
    /// The target makes no such links: all renamed files must be copied.
    Refused,
}

impl FollowOutcome {
    pub(super) fn has_name(self) -> bool {
        matches!(self, FollowOutcome::Named | FollowOutcome::Linked)
    }
}

impl MovedNodes {
    /// Those of the chosen files that were moved with the same content under other names, which they do not have any more.
    fn find_renamed(
        &self,
        snapshot: &TreeSnapshot,
        chosen: &[(&PathBuf, &SeenNode)],
    ) -> HashMap<PathBuf, RenamedFile> {
        let wanted = chosen.iter().filter(|(_, node)| !node.has_links);
        let wanted: HashMap<(u64, u64), (&PathBuf, &SeenNode)> = wanted
            .map(|(path, node)| (node.version.inode(), (*path, *node)))
            .collect();
        let renamed = self.iter().filter_map(|(from, moved)| {
            let (path, node) = wanted.get(&moved.version.inode())?;
            let seen = snapshot.get(from);
            // On the target the file's successor may have got the old name already, and would be taken for the file.
            let is_like_successor = seen.is_some_and(|seen| {
                seen.version.size == moved.version.size && seen.version.mtime == moved.version.mtime
            });
            let is_renamed = moved.kind == NodeKind::File
                && !is_like_successor
                && moved.is_ours
                && !moved.is_doubtful
                && from != *path
                && ContentStamp::from(&moved.version) == ContentStamp::from(&node.version)
                && seen.is_none_or(|seen| seen.version.inode() != node.version.inode());
            is_renamed.then(|| {
                let (from, path) = (from.clone(), (*path).clone());
                (path.clone(), RenamedFile { from, path })
            })
        });
        renamed.collect()
    }
}

impl<S: FileTree, T: FileTree> TurnMaker<'_, '_, S, T> {
    /// Gives a renamed file its new name. If this fails, the file is copied, and the copy reports the error.
    pub(super) fn follow(&self, file: &RenamedFile, node: &SeenNode) -> FollowOutcome {
        match self.link_renamed(&file.from, &file.path, node) {
            Ok(LinkOutcome::Made | LinkOutcome::There) => {
                match self.keep_link_attributes(&file.path, node) {
                    Ok(()) => FollowOutcome::Named,
                    Err(_) => FollowOutcome::Linked,
                }
            }
            Ok(LinkOutcome::Refused) => FollowOutcome::Refused,
            Ok(LinkOutcome::NoFile) | Err(_) => FollowOutcome::NotLinked,
        }
    }

    /// Gives the copy of a file its new name.
    fn link_renamed(
        &self,
        from: &Path,
        path: &Path,
        node: &SeenNode,
    ) -> Result<LinkOutcome, MoveError> {
        let (existing, target) = (self.view.find_path(from), self.view.find_path(path));
        let there = self.view.to.find_node(&existing)?;
        // The old name may belong to another file by now.
        let moved = self.view.state.moved.get(from);
        let moved = moved.filter(|moved| moved.version.inode() == node.version.inode());
        let is_as_made =
            |there| moved.is_some_and(|moved| self.view.is_as_made(&existing, moved, there));
        if !there.as_ref().is_some_and(is_as_made) {
            return Ok(LinkOutcome::NoFile);
        }
        let replaces = self.view.state.replaceable(path);
        self.view.state.note_placing(std::iter::once((path, node)));
        make_hard_link(self.view.to.tree, &existing, &target, &|there| {
            replaces.allows(there)
        })
    }

    /// Gives a file with a new name the attributes of the source.
    fn keep_link_attributes(&self, path: &Path, node: &SeenNode) -> Result<(), MoveError> {
        let target = self.view.find_path(path);
        match_xattrs(
            self.from.tree,
            self.view.to.tree,
            &self.from.join(path),
            &target,
        )?;
        let set = self
            .view
            .to
            .tree
            .set_attributes(&target, NodeKind::File, &node.kept);
        set.map_err(MoveError::io("changing", &target))
    }
}

impl<S: FileTree, T: FileTree> Drain<'_, S, T> {
    /// Gives renamed files their new names. If other files must get theirs before, the renamed files come in turn with
    /// them. Returns the files that must be copied.
    pub(super) fn follow_files<'s>(
        &mut self,
        round: &mut RoundState,
        snapshot: &'s TreeSnapshot,
        chosen: Vec<(&'s PathBuf, &'s SeenNode)>,
    ) -> Vec<(&'s PathBuf, &'s SeenNode)> {
        if chosen.is_empty() {
            return chosen;
        }
        let mut known = self.target.moved.find_renamed(snapshot, &chosen);
        let mut followed = Vec::new();
        let mut directories = BTreeSet::new();
        let mut left = Vec::new();
        // One entry for the files that are moved first, one for the others.
        let mut is_behind = [false; 2];
        for (path, node) in chosen {
            let is_behind = &mut is_behind[usize::from(self.choice.is_first(path))];
            // Removals may come before it.
            let has_others = *is_behind || self.history.removals.has_some();
            let comes_in_turn = has_others && self.turns().is_ordered(path);
            let renamed = known.remove(path);
            // If the target makes no links, each renamed file would hold up those behind it.
            let outcome = match renamed.filter(|_| !(comes_in_turn && self.has_refused_links)) {
                Some(file) if comes_in_turn => {
                    round.renamed.push(file);
                    continue;
                }
                Some(file) => self.turns().follow(&file, node),
                None => FollowOutcome::NotLinked,
            };
            if outcome.has_name() {
                directories.extend(path.parent().map(Path::to_owned));
                followed.push((path, node, outcome));
            }
            if outcome != FollowOutcome::Named {
                *is_behind |= self.turns().is_awaited(path, node);
                left.push((path, node));
            }
        }
        let mut unsynced = HashSet::new();
        for dir in directories {
            let target = self.at_target(&dir);
            if let Err(error) = self.to.tree.sync_directory(&target) {
                round.fail(&dir, &MoveError::io("syncing", &target)(error));
                unsynced.insert(dir);
            }
        }
        for (path, node, outcome) in followed {
            let is_synced = path.parent().is_some_and(|dir| !unsynced.contains(dir));
            self.note_followed(round, path, node, outcome, is_synced);
        }
        left
    }

    /// Notes the turn of a renamed file. `is_synced`: its name is on storage.
    pub(super) fn note_followed(
        &mut self,
        round: &mut RoundState,
        path: &Path,
        node: &SeenNode,
        outcome: FollowOutcome,
        is_synced: bool,
    ) {
        self.has_refused_links |= outcome == FollowOutcome::Refused;
        if !outcome.has_name() {
            return round.pend(path, node, PendingState::Waiting);
        }
        let is_whole = outcome == FollowOutcome::Named && is_synced;
        // Noted also if doubtful: a program may rename the file again at once; then no copy follows, and this name must be
        // removed.
        let moved = MovedNode {
            is_doubtful: !is_whole,
            ..MovedNode::from_seen(node, true)
        };
        self.target.moved.insert(path.to_owned(), moved);
        if is_whole {
            self.note_placed(path, &node.version);
            round.closed.remove(path, &node.version);
            self.due.note_there(path, &node.version);
        }
    }
}
