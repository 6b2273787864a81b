//! Directories that the target has under another name than the tree: *relocated* ones.
//!
//! A program fills a directory and then renames it, so that its name stands for all its files. So a renamed directory gets
//! its name on the target only with all its files (`naming`). Until then the target has it
//! - under a hidden name beside its own, if the target did not have it before; or
//! - under its old name, if the drain has made it there.
//!
//! For the path of a node on the target, code must call [`Drain::at_target`]. If a renamed directory has replaced a
//! directory that is not in the tree any more, the old one is *retired*: in the tables it has a path that no tree has, so
//! that it counts as gone; on the target it keeps its name until its successor takes it. Files and links retire, too.
//!
//! Left out: directories that are merged into those that the target had, and directories with evicted files, whose copies
//! programs read by their paths. Their files are moved one by one.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::ffi::OsString;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use weir_client::types::Stat;

use super::relocation_table::{rebase, RelocatedDirectory};
use super::renames::RenameHistory;
use super::round_state::RoundState;
use super::snapshot::{SeenNode, TreeSnapshot};
use super::target_editor::TargetEditor;
use super::target_state::DetachedNodes;
use super::target_view::TargetView;
use super::{Drain, MovedNode};
use crate::copy::is_kept_time;
use crate::error::MoveError;
use crate::publish::{is_at_above_or_below, is_part, part_of, remove_hidden_tree, FILLING};
use crate::tree::{kind_of, FileTree, NodeKind, PART_MODE};

/// A change of a node's path in the tables.
struct PathChange {
    /// Its path below the target.
    at: PathBuf,
    from: PathBuf,
    to: PathBuf,
    /// The nodes at and below it that earlier drains have made, with their new paths.
    earlier: Vec<(PathBuf, MovedNode)>,
}

impl<T: FileTree> TargetView<'_, '_, T> {
    /// The directories that this drain made and that have other paths now: the old and the new path of each.
    fn renamed_directories(
        &self,
        snapshot: &TreeSnapshot,
        renames: &RenameHistory,
        read: &BTreeSet<PathBuf>,
    ) -> Vec<(PathBuf, PathBuf)> {
        let mut renamed = Vec::new();
        if renames.directories().next().is_none() {
            return renamed;
        }
        let directories = snapshot.of_kind(NodeKind::Directory);
        let paths: HashMap<(u64, u64), &PathBuf> = directories
            .map(|(path, node)| (node.version.inode(), path))
            .collect();
        let evicted: HashSet<u64> = snapshot.evicted.iter().map(|file| file.ino.0).collect();
        for (from, moved) in self.state.moved.iter() {
            let inode = moved.version.inode();
            let is_candidate = moved.kind == NodeKind::Directory
                && moved.is_ours
                && !self.state.relocated.is_merged(inode)
                && renames.has_renamed(inode.1, u64::MAX)
                && snapshot
                    .get(from)
                    .is_none_or(|seen| seen.version.inode() != inode);
            let Some(to) = paths.get(&inode).filter(|_| is_candidate) else {
                continue;
            };
            let mut below = snapshot.at_and_below(to);
            if below.any(|(_, node)| evicted.contains(&node.version.ino))
                || is_at_above_or_below(&self.state.relocated.find_place(from), read)
                || is_at_above_or_below(&self.state.relocated.find_place(to), read)
                || !self.state.moved.has_same_files(from, to, snapshot)
            {
                continue;
            }
            renamed.push((from.clone(), (*to).clone()));
        }
        renamed
    }

    /// The retirements of nodes that drains of the tree had made and that a renamed directory has replaced, except
    /// directories that were renamed themselves.
    fn replaced_nodes(
        &self,
        snapshot: &TreeSnapshot,
        renamed: &[(PathBuf, PathBuf)],
        renames: &RenameHistory,
        read: &BTreeSet<PathBuf>,
    ) -> Vec<PathChange> {
        let goes: HashSet<&PathBuf> = renamed.iter().map(|(from, _)| from).collect();
        let comes: HashSet<&PathBuf> = renamed.iter().map(|(_, to)| to).collect();
        let directories = snapshot.of_kind(NodeKind::Directory);
        let replaced = directories.filter_map(|(path, node)| {
            let moved = self.state.moved.get(path)?;
            // This includes a node that the drain made for the same directory before it was renamed away and back.
            let is_replaced = (comes.contains(path)
                || moved.kind == NodeKind::Directory
                    && moved.version.inode() != node.version.inode()
                    && renames.has_renamed(node.version.ino, snapshot.walk))
                && !goes.contains(path)
                && !is_at_above_or_below(&self.state.relocated.find_place(path), read);
            is_replaced.then(|| self.retirement_of(path, moved.version.ino, snapshot.walk))?
        });
        replaced.collect()
    }

    /// The retirements of relocated directories that are gone from the tree while it has another node under their names,
    /// old or new: they never become whole, and keep these names from others.
    fn stranded_directories(
        &self,
        snapshot: &TreeSnapshot,
        read: &BTreeSet<PathBuf>,
    ) -> Vec<PathChange> {
        if self.state.relocated.unnamed().next().is_none() {
            return Vec::new();
        }
        let directories = snapshot.of_kind(NodeKind::Directory);
        let living: HashSet<(u64, u64)> =
            directories.map(|(_, node)| node.version.inode()).collect();
        let stranded = self.state.relocated.iter().filter_map(|(path, one)| {
            let inode = one.inode.filter(|inode| !living.contains(inode))?;
            let seen = snapshot.get(path);
            let is_stranded = seen.is_none_or(|seen| seen.kind != NodeKind::Directory)
                && (seen.is_some() || snapshot.get(one.at()).is_some())
                && !is_at_above_or_below(one.at(), read);
            is_stranded.then(|| self.retirement_of(path, inode.1, snapshot.walk))?
        });
        stranded.collect()
    }

    /// The retirement of a node with this inode number; `None`: no drain of the tree has made it.
    fn retirement_of(&self, path: &Path, ino: u64, walk: u64) -> Option<PathChange> {
        let at = self.state.relocated.find_place(path);
        let to = self.state.moved.unused_retired_path(path, ino);
        let earlier = match self.state.moved.get(path)?.is_ours {
            true => Vec::new(),
            // This drain found it: earlier drains may have made it.
            false => self.earlier_nodes(walk, &at, &to).ok().flatten()?,
        };
        Some(PathChange {
            at,
            from: path.to_owned(),
            to,
            earlier,
        })
    }

    /// The nodes of the target at and below a path, rebased to another path, if drains of the tree have made all of them.
    /// `at`: the path below the target, even if another node has it in the tree.
    fn earlier_nodes(
        &self,
        walk: u64,
        at: &Path,
        to: &Path,
    ) -> Result<Option<Vec<(PathBuf, MovedNode)>>, MoveError> {
        if !self.state.ownership.keeps_marks() {
            return Ok(None);
        }
        let mut nodes = Vec::new();
        let mut open = vec![at.to_owned()];
        while let Some(path) = open.pop() {
            let target = self.to.join(&path);
            let there = self.to.find_node(&target)?;
            let Some(there) = there else { continue };
            let node = if kind_of(&there) == NodeKind::Directory {
                let names = self.to.tree.list(&target);
                let names = names.map_err(MoveError::io("listing", &target))?;
                let names = names.iter().filter(|name| !is_part(name));
                open.extend(names.map(|name| path.join(name)));
                MovedNode::from_earlier(walk, &there)
            } else if let Some(node) = self.earlier_leaf(walk, &path, &there)? {
                node
            } else {
                return Ok(None);
            };
            nodes.push((rebase(&path, at, to), node));
        }
        Ok(Some(nodes).filter(|nodes| !nodes.is_empty()))
    }

    /// The file or link that the target has at a path; `None`: no drain of the tree has put it there.
    pub(super) fn earlier_leaf(
        &self,
        walk: u64,
        at: &Path,
        there: &Stat,
    ) -> Result<Option<MovedNode>, MoveError> {
        if kind_of(there) == NodeKind::Directory || !self.state.ownership.has_placed(at, there) {
            return Ok(None);
        }
        let mut node = MovedNode::from_earlier(walk, there);
        if node.kind == NodeKind::Symlink {
            let target = self.to.join(at);
            let content = self.to.tree.read_link(&target);
            node.content = content.map_err(MoveError::io("reading", &target))?;
        }
        Ok(Some(node))
    }
}

impl<T: FileTree> TargetEditor<'_, '_, T> {
    /// Makes a directory under a hidden name, if it must get its own name only when it is whole; false: it must be made
    /// under its own name. `read`: the copies of evicted files.
    pub(super) fn begin_hidden(
        &mut self,
        round: &RoundState,
        path: &Path,
        node: &SeenNode,
        read: impl FnOnce() -> BTreeSet<PathBuf>,
    ) -> Result<bool, MoveError> {
        let is_taken = self.state.relocated.has_at(path);
        let is_renamed = self
            .history
            .renames
            .has_renamed(node.version.ino, round.snapshot.walk);
        let is_merged = self.state.relocated.is_merged(node.version.inode());
        if self.state.relocated.is_relocated(path) || is_merged || !(is_renamed || is_taken) {
            return Ok(false);
        }
        let target = self.to.join(path);
        let there = self.to.find_node(&target)?;
        if is_at_above_or_below(path, &read()) {
            // Programs read files in it by this path: it is merged.
            return Ok(false);
        }
        if let Some(there) = there.filter(|_| !is_taken) {
            // If the nodes there cannot retire, it is merged.
            if !self.retire_earlier(path, &there, &round.snapshot)? {
                return Ok(false);
            }
        }
        let mut at = part_of(path);
        if self.state.relocated.has_at(&at) {
            let mut name = OsString::from(format!("{:x}-", node.version.ino));
            name.push(path.file_name().unwrap_or_default());
            at = part_of(&path.with_file_name(name));
        }
        let hidden = self.to.join(&at);
        let creating = || MoveError::io("creating", &hidden);
        match self
            .to
            .tree
            .make_directory(&hidden, node.kept.mode & 0o777 | 0o700)
        {
            Err(error) if error.kind() == ErrorKind::AlreadyExists => {
                let found = self.to.tree.look_up(&hidden).map_err(creating())?;
                if found.is_some_and(|found| kind_of(&found) != NodeKind::Directory) {
                    return Err(creating()(error));
                }
            }
            made => made.map_err(creating())?,
        }
        // The drain goes on with a hidden directory that a killed process has left.
        let lock = self.to.tree.create_part(&hidden.join(FILLING), PART_MODE);
        let lock = lock.map_err(|error| match error.kind() {
            ErrorKind::ResourceBusy => MoveError::Busy(target),
            _ => creating()(error),
        })?;
        let relocated = RelocatedDirectory::new(at, Some(node.version.inode()), Some(lock));
        self.state.relocated.insert(path.to_owned(), relocated);
        Ok(true)
    }

    /// Retires the nodes that earlier drains of the tree have put in the place of a directory; false: these are the same as
    /// a walk saw, or somebody else has put them there.
    pub(super) fn retire_earlier(
        &mut self,
        path: &Path,
        there: &Stat,
        snapshot: &TreeSnapshot,
    ) -> Result<bool, MoveError> {
        let retired = self.state.moved.unused_retired_path(path, there.ino);
        let nodes = self.view().earlier_nodes(snapshot.walk, path, &retired)?;
        let is_other = |(at, node): &(PathBuf, MovedNode)| {
            let seen = snapshot.get(&rebase(at, &retired, path));
            seen.is_none_or(|seen| {
                seen.kind != node.kind
                    || seen.kind == NodeKind::File
                        && (seen.version.size != node.version.size
                            || !is_kept_time(seen.version.mtime, node.version.mtime))
            })
        };
        let Some(nodes) = nodes.filter(|nodes| nodes.iter().any(is_other)) else {
            return Ok(false);
        };
        self.state.moved.extend(nodes);
        let relocated = RelocatedDirectory::new_retired(path);
        self.state.relocated.insert(retired, relocated);
        Ok(true)
    }

    /// Removes a hidden directory that is gone from the tree.
    pub(super) fn remove_relocated(&mut self, path: &Path) -> Result<bool, MoveError> {
        let hidden = self.find_path(path);
        let relocated = self.state.relocated.get_mut(path);
        drop(relocated.and_then(|relocated| relocated.lock.take()));
        let removed = remove_hidden_tree(self.to.tree, &hidden);
        removed.map_err(MoveError::io("removing", &hidden))?;
        self.state.relocated.remove(path);
        Ok(true)
    }
}

/// The paths below the target of the copies of evicted files, which programs read.
pub(super) fn copies_of_evicted<S: FileTree>(
    from: &S,
    snapshot: &TreeSnapshot,
) -> BTreeSet<PathBuf> {
    let Some(table) = from.evictions() else {
        return BTreeSet::new();
    };
    let copies = snapshot.evicted.iter();
    copies
        .filter_map(|file| table.path_below(&file.copy))
        .collect()
}

impl<'t, S: FileTree, T: FileTree> Drain<'t, S, T> {
    /// A view of the target, and of this drain's state of it.
    pub(super) fn view(&self) -> TargetView<'_, 't, T> {
        TargetView {
            to: &self.to,
            state: &self.target,
        }
    }

    /// An editor of the target's names.
    pub(super) fn editor(&mut self) -> TargetEditor<'_, 't, T> {
        TargetEditor {
            to: &self.to,
            state: &mut self.target,
            history: &mut self.history,
            unsynced: &mut self.unsynced,
        }
    }

    /// The path of a node on the target.
    pub(super) fn at_target(&self, path: &Path) -> PathBuf {
        self.view().find_path(path)
    }

    /// Gives the nodes of directories that this drain made, and programs have renamed, their new paths in the tables.
    pub(super) fn follow_directories(&mut self, snapshot: &TreeSnapshot) {
        let moved = &self.target.moved;
        self.target.relocated.retain(|path| moved.contains(path));
        // Programs read these copies by their paths.
        let read = &copies_of_evicted(self.from.tree, snapshot);
        let (view, renames) = (self.view(), &self.history.renames);
        let renamed = view.renamed_directories(snapshot, renames, read);
        let mut taken = view.replaced_nodes(snapshot, &renamed, renames, read);
        taken.extend(view.stranded_directories(snapshot, read));
        taken.extend(renamed.into_iter().map(|(from, to)| PathChange {
            at: self.target.relocated.find_place(&from),
            from,
            to,
            earlier: Vec::new(),
        }));
        // Inner directories come before those that contained them.
        let mut nodes = Vec::new();
        taken.sort_by(|one, other| other.from.cmp(&one.from));
        for one in taken {
            nodes.push((self.target.detach_nodes(&one.from, &one.to), one));
        }
        nodes.reverse();
        for (
            DetachedNodes {
                mut moved,
                relocated,
            },
            one,
        ) in nodes
        {
            moved.extend(one.earlier);
            let (at, to) = (&one.at, &one.to);
            for (path, mut node) in moved {
                node.walk = snapshot.walk;
                node.is_told = false;
                // With its new name it may be a file that is to be analysed.
                node.is_doubtful |= node.kind == NodeKind::File && self.held_files.is_wanted(&path);
                self.target.moved.insert(path, node);
            }
            self.target.relocated.extend(relocated);
            let before = self.target.relocated.remove(to);
            if self.target.relocated.find_place(to) != *at {
                // A retired directory may be in the tree again: a walk had missed it.
                let inode = snapshot.get(to).map(|seen| seen.version.inode());
                let lock = before.and_then(|before| before.lock);
                let relocated = RelocatedDirectory::new(at.clone(), inode, lock);
                self.target.relocated.insert(to.clone(), relocated);
            }
        }
        self.target.note_inodes(snapshot);
    }
}
