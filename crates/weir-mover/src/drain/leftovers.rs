//! Nodes that an earlier drain of the tree has put on the target, and that programs have removed since. In directories that
//! the job has made, and in a tree that is not elevated, only the drain that moved such a node knew of it.
//!
//! Left out: empty directories, and directories that are a file or a link in the tree now.

use std::path::{Path, PathBuf};

use weir_client::process::mounted::Cover;
use weir_client::types::Stat;

use super::moved::IN_TURN_ONLY;
use super::snapshot::{FileVersion, TreeSnapshot};
use super::{Drain, MovedNode};
use crate::publish::is_part;
use crate::tree::{kind_of, FileTree, NodeKind};

impl<S: FileTree, T: FileTree> Drain<'_, S, T> {
    /// Adopts the nodes that earlier drains have put into directories of the job, if the tree has nothing or a directory
    /// there now: they are removed as if this drain had moved them. Nodes that cannot be examined stay.
    pub(super) fn adopt_leftovers(&mut self, now: &TreeSnapshot) {
        let is_continued = self.target.ownership.is_continued();
        if !is_continued || self.target.ownership.keeps_all || !now.unread.is_empty() {
            return;
        }
        self.target.moved.end_turns();
        let root = PathBuf::new();
        let directories = now.of_kind(NodeKind::Directory).map(|(path, _)| path);
        let directories = directories.chain([&root]);
        // Removals from other directories have whiteouts.
        let is_of_job = |path: &&PathBuf| {
            let cover = self.from.tree.cover_of(&self.from.join(path));
            cover.is_ok_and(|cover| cover == Cover::Nothing)
        };
        let removed = now.whiteouts.keys().filter(|path| now.get(path).is_none());
        let mut open: Vec<PathBuf> = directories
            .filter(is_of_job)
            .chain(removed)
            .cloned()
            .collect();
        while let Some(dir) = open.pop() {
            for (path, there) in self.unknown_nodes(&dir, now) {
                match kind_of(&there) {
                    NodeKind::Directory => open.push(path),
                    _ if self.target.ownership.has_placed(&path, &there) => {
                        self.adopt(&path, &there, now);
                    }
                    _ => {}
                }
            }
        }
    }

    /// Adopts the nodes that earlier drains have put on the target under names that their files have lost since, if the
    /// servers know the time of the loss: so these names are removed in turn with the files of this drain. Nodes that
    /// cannot be examined are left for the end. Called only after the programs have ended: while they run, a walk may miss
    /// files from before a removal.
    ///
    /// `is_first`: no walk after the programs' end has done it, so losses that earlier walks of this drain were told count, too.
    pub(super) fn adopt_lost(&mut self, now: &TreeSnapshot, is_first: bool) {
        if !self.target.ownership.is_continued() || self.target.ownership.keeps_all {
            return;
        }
        if is_first {
            self.adopt_links(now);
        }
        let removals = &self.history.removals;
        let losses = removals.losses_of_others(&self.target.moved, now, is_first);
        for (path, losses) in losses {
            if !self.target.ownership.has_marks(&path) {
                continue;
            }
            let Ok(Some(there)) = self.to.find_node(&path) else {
                continue;
            };
            let ownership = &self.target.ownership;
            if kind_of(&there) == NodeKind::Directory || !ownership.has_placed(&path, &there) {
                continue;
            }
            let mut losses = losses.iter();
            let loss = losses.find(|loss| ownership.has_placed_source(&path, &there, loss.ino));
            if let Some(loss) = loss {
                self.adopt(&path, &there, now);
                // As if this drain had moved the file just before it lost the name.
                if let Some(moved) = self.target.moved.get_mut(&path) {
                    moved.version = FileVersion {
                        ino: loss.ino,
                        ctime: loss.at,
                        ..moved.version
                    };
                    moved.unchanged_at = loss.at;
                    moved.walk = IN_TURN_ONLY;
                }
            }
        }
    }

    /// Adopts the links that earlier drains have made and that are unchanged: nothing waits for these.
    fn adopt_links(&mut self, now: &TreeSnapshot) {
        let links = now.of_kind(NodeKind::Symlink);
        let links: Vec<_> = links
            .filter(|(path, node)| {
                let at_target = self.at_target(path);
                let content = || self.to.tree.read_link(&at_target);
                !self.target.moved.contains(path)
                    && self.target.ownership.has_marks(path)
                    && content().is_ok_and(|content| content == node.content)
            })
            .collect();
        for (path, node) in links {
            let moved = MovedNode::from_seen(node, false);
            self.target.moved.insert(path.clone(), moved);
        }
    }

    /// The nodes of a directory of the target that neither the tree nor this drain knows, and those for which the tree has
    /// a directory but which are none.
    fn unknown_nodes(&self, dir: &Path, now: &TreeSnapshot) -> Vec<(PathBuf, Stat)> {
        let whole = self.to.join(dir);
        let is_directory = |there: Stat| kind_of(&there) == NodeKind::Directory;
        let there = self.to.tree.look_up(&whole).ok().flatten();
        // A link leads elsewhere.
        if !there.is_some_and(is_directory) {
            return Vec::new();
        }
        let names = self.to.tree.list(&whole).unwrap_or_default().into_iter();
        let paths = names
            .filter(|name| !is_part(name))
            .map(|name| dir.join(name));
        let is_seen = |path: &Path| now.get(path).is_some();
        // The walk left out the paths that the filter does not choose: the tree may have them.
        let is_chosen = |path: &Path| self.choice.is_moved(path);
        let unknown = paths.filter(|path| {
            now.get(path)
                .is_none_or(|seen| seen.kind == NodeKind::Directory)
                && !self.target.moved.has_made(path)
                && is_chosen(path)
                && !now.whiteouts.contains_key(path)
        });
        let look = |path: PathBuf| {
            // A program has made it since the walk, and another drain has moved it.
            if !is_seen(&path) && self.from.find_node(&path).ok()?.is_some() {
                return None;
            }
            let there = self.to.find_node(&path).ok()??;
            let is_known = is_seen(&path) && is_directory(there);
            (!is_known).then_some((path, there))
        };
        unknown.filter_map(look).collect()
    }

    /// Adopts a node as one of this drain's, and the directories above it that the tree does not have.
    fn adopt(&mut self, path: &Path, there: &Stat, now: &TreeSnapshot) {
        let content = match kind_of(there) {
            NodeKind::Symlink => self.to.tree.read_link(&self.to.join(path)),
            _ => Ok(PathBuf::new()),
        };
        let Ok(content) = content else {
            return;
        };
        let node = MovedNode {
            content,
            ..MovedNode::from_earlier(0, there)
        };
        self.target.moved.insert(path.to_owned(), node);
        for dir in path.ancestors().skip(1) {
            if dir == Path::new("") || now.get(dir).is_some() || self.target.moved.has_made(dir) {
                break;
            }
            let Ok(Some(there)) = self.to.find_node(dir) else {
                break;
            };
            let node = MovedNode::from_earlier(0, &there);
            self.target.moved.insert(dir.to_owned(), node);
        }
    }
}
