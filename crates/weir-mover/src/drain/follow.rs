//! Files that programs have renamed: what was copied of them gets the new name by a link of the target's, and is not
//! copied again. The old name goes as any other that the tree does not have any more, so the file has a name at
//! every moment.
//!
//! Left out: targets without links between the two directories, and files with several names; both are copied.

use std::collections::{BTreeSet, HashMap};
use std::path::{Path, PathBuf};

use super::round::RoundState;
use super::snapshot::{SeenNode, TreeSnapshot};
use super::{Drain, MovedNode, PendingState};
use crate::content::ContentStamp;
use crate::copy::keep_xattrs;
use crate::error::MoveError;
use crate::publish::{make_hard_link, LinkOutcome};
use crate::tree::{FileTree, NodeKind};

impl<S: FileTree, T: FileTree> Drain<'_, S, T> {
    /// Gives renamed files their new names, unless others are to have theirs before; returns those that are to be copied.
    pub(super) fn follow_files<'s>(
        &mut self,
        round: &mut RoundState,
        snapshot: &'s TreeSnapshot,
        chosen: Vec<(&'s PathBuf, &'s SeenNode)>,
    ) -> Vec<(&'s PathBuf, &'s SeenNode)> {
        if chosen.is_empty() {
            return chosen;
        }
        let known = self.renamed_files(snapshot, &chosen);
        let mut linked = Vec::new();
        let mut directories = BTreeSet::new();
        let mut left = Vec::new();
        let mut is_behind = false;
        for (path, node) in chosen {
            let from = known.get(path);
            if from.is_some() && is_behind && self.is_ordered(path) {
                round.pend(path, node, PendingState::Waiting);
                continue;
            }
            // If this fails, the copy tries it again and reports the error.
            if !from.is_some_and(|from| self.link_renamed(from, path, node).is_ok_and(|made| made))
            {
                is_behind |= self.is_awaited(path, node);
                left.push((path, node));
                continue;
            }
            // A program may rename it again at once: then no copy follows, and this name is to go.
            let moved = MovedNode {
                is_doubtful: true,
                ..MovedNode::from_seen(node, true)
            };
            self.moved.insert(path.clone(), moved);
            directories.extend(self.at_target(path).parent().map(Path::to_owned));
            if self.keep_link_attributes(path, node).is_ok() {
                linked.push((path, node));
            } else {
                is_behind |= self.is_awaited(path, node);
                left.push((path, node));
            }
        }
        for dir in directories {
            if let Err(error) = self.to.sync_directory(&dir) {
                round.fail(
                    self.below_target(&dir),
                    &MoveError::io("syncing", &dir)(error),
                );
                linked.retain(|(path, _)| self.at_target(path).parent() != Some(&dir));
            }
        }
        for (path, node) in linked {
            self.moved
                .insert(path.clone(), MovedNode::from_seen(node, true));
            self.note_placed(path, &node.version);
            round.closed.remove(path, &node.version);
            if let Some(due) = &mut self.due {
                due.awaited.remove(path, &node.version);
            }
        }
        left
    }

    /// Of these files those that this drain has moved in the same version under other names, which they do not have any
    /// more; and these.
    fn renamed_files(
        &self,
        snapshot: &TreeSnapshot,
        chosen: &[(&PathBuf, &SeenNode)],
    ) -> HashMap<PathBuf, PathBuf> {
        let wanted = chosen.iter().filter(|(_, node)| !node.has_links);
        let wanted: HashMap<(u64, u64), (&PathBuf, &SeenNode)> = wanted
            .map(|(path, node)| (node.version.inode(), (*path, *node)))
            .collect();
        let renamed = self.moved.iter().filter_map(|(from, moved)| {
            let (path, node) = wanted.get(&moved.version.inode())?;
            let seen = snapshot.get(from);
            let is_renamed = moved.kind == NodeKind::File
                && moved.is_ours
                && !moved.is_doubtful
                && from != *path
                && ContentStamp::from(&moved.version) == ContentStamp::from(&node.version)
                && seen.is_none_or(|seen| seen.version.inode() != node.version.inode());
            is_renamed.then(|| ((*path).clone(), from.clone()))
        });
        renamed.collect()
    }

    /// Gives what was copied of a file its new name; false: it is not there, or the target makes no such link.
    fn link_renamed(&self, from: &Path, path: &Path, node: &SeenNode) -> Result<bool, MoveError> {
        let (existing, target) = (self.at_target(from), self.at_target(path));
        let there = self.to.look_up(&existing);
        let there = there.map_err(MoveError::io("looking for", &existing))?;
        let is_as_made = |there| self.is_as_made(&existing, &self.moved[from], there);
        if !there.as_ref().is_some_and(is_as_made) {
            return Ok(false);
        }
        let replaces = self.replaceable(path);
        self.note_placing(std::iter::once((path, node)));
        match make_hard_link(self.to, &existing, &target, &|there| replaces.allows(there))? {
            LinkOutcome::Refused | LinkOutcome::NoFile => Ok(false),
            LinkOutcome::Made | LinkOutcome::There => Ok(true),
        }
    }

    /// Gives a file that has got its new name the attributes that the source has.
    fn keep_link_attributes(&self, path: &Path, node: &SeenNode) -> Result<(), MoveError> {
        let target = self.at_target(path);
        keep_xattrs(self.from, self.to, &self.source.join(path), &target)?;
        let set = self.to.set_attributes(&target, NodeKind::File, &node.kept);
        set.map_err(MoveError::io("changing", &target))
    }
}
