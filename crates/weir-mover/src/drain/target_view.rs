//! The target, and a drain's state of it: checks and removals that need both, but not the source. They change no table: the
//! caller notes their effects.

use std::collections::{BTreeSet, HashSet};
use std::path::{Path, PathBuf};

use rustix::io::Errno;
use weir_client::types::Stat;

use super::copies::{is_copy, DisplacedFile};
use super::moved::MovedNode;
use super::round_state::RoundState;
use super::snapshot::{FileVersion, TreeSnapshot};
use super::target_state::TargetState;
use crate::copy::is_kept_time;
use crate::error::MoveError;
use crate::publish::{
    check_gone, destination, is_at_above_or_below, is_symlink_to, remove_directory, unless_gone,
};
use crate::side::MoveSide;
use crate::tree::{failed_with_any, kind_of, FileTree, NodeKind};

/// The target, and a drain's state of it.
#[derive(Clone, Copy)]
pub(super) struct TargetView<'d, 't, T: FileTree> {
    pub to: &'d MoveSide<'t, T>,
    pub state: &'d TargetState<T::File>,
}

impl<T: FileTree> TargetView<'_, '_, T> {
    /// The path of a node on the target.
    pub fn find_path(&self, path: &Path) -> PathBuf {
        self.to.join(self.state.relocated.find_place(path))
    }

    /// True if the target has a node of another kind in the place of a node, which is about to be removed.
    pub fn awaits_removal(&self, snapshot: &TreeSnapshot, path: &Path, kind: NodeKind) -> bool {
        if !snapshot.whiteouts.contains_key(path) || self.state.moved.contains(path) {
            return false;
        }
        let there = self.to.find_node(self.find_path(path));
        let is_directory = |kind| kind == NodeKind::Directory;
        let other = |there| is_directory(kind_of(&there)) != is_directory(kind);
        there.is_ok_and(|there| there.is_some_and(other))
    }

    /// True if the target has a node in the place of a file, which changes of names must remove first.
    pub fn waits_for_names(&self, round: &RoundState, path: &Path) -> bool {
        self.state.is_in_the_way(path)
            || self.state.copies.is_held(path)
            || round.is_blocked(path)
            || self.awaits_removal(&round.snapshot, path, NodeKind::File)
    }

    /// A name of an evicted file that its copy can get now.
    pub fn find_free_name<'f>(
        &self,
        round: &RoundState,
        file: &'f DisplacedFile,
        snapshot: &TreeSnapshot,
    ) -> Option<&'f Path> {
        let is_free = |path: &&PathBuf| {
            !self.state.is_in_the_way(path)
                && !round.is_blocked(path)
                && !self.state.relocated.is_relocated(path)
                && !is_at_above_or_below(path, self.state.copies.held())
                && !self.awaits_removal(snapshot, path, NodeKind::File)
        };
        file.names.iter().find(is_free).map(PathBuf::as_path)
    }

    /// False if the file is evicted, its copy had its name, and somebody else has removed or changed the copy: then its
    /// bytes are lost.
    pub fn has_kept_copy(&self, path: &Path, stat: &Stat) -> bool {
        let is_evicted = self.state.copies.is_copy_at(stat.ino, path);
        let version = FileVersion::from(stat);
        let there = || self.to.find_node(path);
        !is_evicted
            || there().is_ok_and(|there| there.is_some_and(|there| is_copy(&version, &there)))
    }

    /// The destinations of those links of the target that differ from the links of the source, except links that are gone.
    /// They are kept even if the link of the source leads to nothing.
    pub fn destinations_of_old_links(
        &self,
        gone: &[PathBuf],
        now: &TreeSnapshot,
    ) -> BTreeSet<PathBuf> {
        let gone: HashSet<&PathBuf> = gone.iter().collect();
        let made_by_us = self.state.moved.destinations_of_old_links(&gone, now);
        // In the place of a link that is to be made, the target may have one of an earlier run.
        let unmade = self
            .state
            .moved
            .changed_links(now)
            .filter_map(|(path, node)| {
                let moved = self.state.moved.get(path);
                let is_ours = moved.is_some_and(|moved| moved.kind == NodeKind::Symlink);
                let content = self.to.tree.read_link(&self.find_path(path)).ok();
                let is_old = |content: &PathBuf| !is_ours && *content != node.content;
                Some(destination(path, &content.filter(is_old)?))
            });
        made_by_us.chain(unmade).collect()
    }

    /// True if nobody has changed the node that this drain made.
    pub fn is_as_made(&self, target: &Path, moved: &MovedNode, there: &Stat) -> bool {
        kind_of(there) == moved.kind
            && match moved.kind {
                NodeKind::Symlink => {
                    is_symlink_to(self.to.tree, target, Some(there), &moved.content)
                }
                NodeKind::File => {
                    there.size == moved.version.size
                        && is_kept_time(moved.version.mtime, there.mtime)
                }
                NodeKind::Directory | NodeKind::Special => true,
            }
    }

    /// Removes the node that has a name, if this drain or an earlier one made it; false: it did not. `marked`: the path in
    /// its mark.
    pub fn remove_ours(
        &self,
        target: &Path,
        marked: &Path,
        moved: &MovedNode,
        is_whited_out: bool,
    ) -> Result<bool, MoveError> {
        let ownership = &self.state.ownership;
        let is_ours = moved.is_ours || is_whited_out;
        if !is_ours && !ownership.is_continued() {
            return Ok(false);
        }
        let Some(there) = self.to.find_node(target)? else {
            check_gone(self.to.tree, target).map_err(MoveError::io("removing", target))?;
            return Ok(false);
        };
        let is_ours = is_ours || ownership.has_placed(marked, &there);
        if !is_ours || !self.is_as_made(target, moved, &there) {
            return Ok(false);
        }
        let removed = match moved.kind {
            NodeKind::Directory => remove_directory(self.to.tree, target),
            _ => self.to.tree.remove(target),
        };
        match removed {
            // Somebody has put a node there.
            Err(error) if failed_with_any(&error, &[Errno::NOTEMPTY, Errno::EXIST]) => Ok(false),
            removed => {
                unless_gone(self.to.tree, target, removed)
                    .map_err(MoveError::io("removing", target))?;
                Ok(true)
            }
        }
    }
}
