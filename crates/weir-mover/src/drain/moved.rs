//! The nodes of the target in the versions that the drain knows of: those that it has moved, and those that it has found. A
//! table without I/O: rounds fill it, and each planned change of the target consults it.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::ops::Index;
use std::path::{Path, PathBuf};

use weir_client::types::{Stat, Time};

use super::order::WaitingFiles;
use super::relocation_table::{rebase, retired_path};
use super::renames::RenameHistory;
use super::snapshot::{at_and_below, FileVersion, SeenNode, TreeSnapshot};
use crate::content::ContentStamp;
use crate::publish::destination;
use crate::replaceable::NodeMark;
use crate::tree::{kind_of, NodeKind};

/// The walk of a node that an earlier drain has left, and that is removed in turn with files, or at the end: no walk of
/// this drain saw the tree before its removal.
pub(super) const IN_TURN_ONLY: u64 = u64::MAX;

/// A node of the target, with the version of its source.
#[derive(Debug)]
pub(super) struct MovedNode {
    /// The number of the last walk that saw its name; 0: none, an earlier drain has left it. Or [`IN_TURN_ONLY`].
    pub walk: u64,
    pub kind: NodeKind,
    pub version: FileVersion,
    /// The source had this version at this time, as far as walks know.
    pub unchanged_at: Time,
    /// The source may have been written again with the same times, or the name was not synced.
    pub is_doubtful: bool,
    /// True: this drain made it; false: it was there before.
    pub is_ours: bool,
    /// The target of a symbolic link; else empty.
    pub content: PathBuf,
    /// An event has reported that it is there.
    pub is_told: bool,
}

impl MovedNode {
    pub fn from_seen(node: &SeenNode, is_ours: bool) -> MovedNode {
        MovedNode {
            walk: node.walk,
            kind: node.kind,
            version: node.version,
            unchanged_at: node.version.ctime,
            is_doubtful: false,
            is_ours,
            content: node.content.clone(),
            is_told: false,
        }
    }

    /// A node that an earlier drain has made, with these attributes.
    pub fn from_earlier(walk: u64, there: &Stat) -> MovedNode {
        MovedNode {
            walk,
            kind: kind_of(there),
            version: FileVersion::from(there),
            unchanged_at: there.ctime,
            is_doubtful: true,
            is_ours: true,
            content: PathBuf::new(),
            is_told: true,
        }
    }

    /// True if an earlier drain has put it there, and the tree does not have it.
    pub fn is_leftover(&self) -> bool {
        self.walk == 0
    }

    /// True if the target has this version for certain.
    pub fn is_version(&self, version: FileVersion) -> bool {
        !self.is_doubtful && self.version == version
    }

    pub fn mark(&self) -> NodeMark {
        let size = match self.kind {
            NodeKind::Symlink => self.content.as_os_str().len() as u64,
            _ => self.version.size,
        };
        NodeMark::new(size, self.version.mtime, self.version.ino)
    }
}

/// The nodes, by the path below both directories.
#[derive(Debug, Default)]
pub(super) struct MovedNodes(BTreeMap<PathBuf, MovedNode>);

impl MovedNodes {
    pub fn get(&self, path: &Path) -> Option<&MovedNode> {
        self.0.get(path)
    }

    pub fn get_mut(&mut self, path: &Path) -> Option<&mut MovedNode> {
        self.0.get_mut(path)
    }

    pub fn contains(&self, path: &Path) -> bool {
        self.0.contains_key(path)
    }

    pub fn insert(&mut self, path: PathBuf, node: MovedNode) {
        self.0.insert(path, node);
    }

    pub fn remove(&mut self, path: &Path) -> Option<MovedNode> {
        self.0.remove(path)
    }

    pub fn iter(&self) -> impl Iterator<Item = (&PathBuf, &MovedNode)> {
        self.0.iter()
    }

    /// The node of this path, and all below it.
    pub fn at_and_below<'d>(
        &'d self,
        path: &'d Path,
    ) -> impl Iterator<Item = (&'d PathBuf, &'d MovedNode)> {
        at_and_below(&self.0, path)
    }

    /// The files and links at and below a path.
    pub fn leaves_below<'d>(
        &'d self,
        path: &'d Path,
    ) -> impl Iterator<Item = (&'d PathBuf, &'d MovedNode)> {
        let below = self.at_and_below(path);
        below.filter(|(_, node)| node.kind != NodeKind::Directory)
    }

    /// Takes out the nodes at and below a path, and gives them another path.
    pub fn take_below(&mut self, from: &Path, to: &Path) -> Vec<(PathBuf, MovedNode)> {
        let paths: Vec<PathBuf> = self
            .at_and_below(from)
            .map(|(path, _)| path.clone())
            .collect();
        let taken = paths.into_iter().filter_map(|path| {
            let node = self.0.remove(&path)?;
            Some((rebase(&path, from, to), node))
        });
        taken.collect()
    }

    /// Notes the nodes that a walk saw. `began`: the time at which it began.
    pub fn note_walk(&mut self, snapshot: &TreeSnapshot, began: Time) {
        let is_directory = |kind| kind == NodeKind::Directory;
        for (path, moved) in &mut self.0 {
            let seen = snapshot.get(path);
            // A directory that has become something else, or the other way around, does not count as seen.
            if seen.is_some_and(|seen| is_directory(seen.kind) == is_directory(moved.kind)) {
                moved.walk = snapshot.walk;
            }
            if seen.is_some_and(|seen| moved.is_version(seen.version)) {
                moved.unchanged_at = began;
            }
        }
    }

    /// Ends the turns of nodes that earlier drains have left: they are removed like all others.
    pub fn end_turns(&mut self) {
        let nodes = self.0.values_mut();
        for node in nodes.filter(|node| node.walk == IN_TURN_ONLY) {
            node.walk = 0;
        }
    }

    /// True if this drain has put a node there. A node that it found there may be that of an earlier drain.
    pub fn has_made(&self, path: &Path) -> bool {
        self.get(path).is_some_and(|moved| moved.is_ours)
    }

    /// True if the target had this node before: the file was prefetched, or an earlier drain moved it.
    pub fn has_found(&self, path: &Path) -> bool {
        self.get(path).is_some_and(|moved| !moved.is_ours)
    }

    /// True if the target has this version of a node.
    pub fn has_version(&self, path: &Path, node: &SeenNode) -> bool {
        let moved = self.get(path);
        moved.is_some_and(|moved| moved.kind == node.kind && moved.is_version(node.version))
    }

    /// True if the target lacks one of these files in this version or a later one, while the tree still has a file there.
    pub fn lacks_files(&self, files: &WaitingFiles, now: &TreeSnapshot) -> bool {
        files.iter().any(|(path, changed)| {
            let seen = now.get(path);
            let is_there = seen.is_some_and(|seen| seen.kind == NodeKind::File);
            is_there && !self.has_file_since(path, *changed)
        })
    }

    /// True if the target has a version of a file that changed at this time or later.
    pub fn has_file_since(&self, path: &Path, changed: Time) -> bool {
        let moved = self.get(path);
        moved.is_some_and(|moved| moved.kind == NodeKind::File && moved.version.ctime >= changed)
    }

    pub fn has_link(&self, path: &Path, node: &SeenNode) -> bool {
        let moved = self.get(path);
        moved.is_some_and(|moved| moved.kind == NodeKind::Symlink && moved.content == node.content)
    }

    pub fn has_directory(&self, path: &Path) -> bool {
        let moved = self.get(path);
        moved.is_some_and(|moved| moved.kind == NodeKind::Directory)
    }

    /// True if the target has a node of another kind in the place of a directory above.
    pub fn is_below_another_kind(&self, path: &Path) -> bool {
        let mut above = path.ancestors().skip(1);
        above.any(|dir| {
            let moved = self.get(dir);
            moved.is_some_and(|moved| moved.kind != NodeKind::Directory)
        })
    }

    /// True if a directory above was renamed.
    pub fn is_in_renamed(&self, path: &Path, renames: &RenameHistory) -> bool {
        let mut above = path.ancestors().skip(1);
        above.any(|dir| {
            let moved = self.get(dir);
            moved.is_some_and(|moved| {
                moved.kind == NodeKind::Directory
                    && renames.has_renamed(moved.version.ino, u64::MAX)
            })
        })
    }

    /// True if a file that was moved from one directory has the same name in another one now. The inode number of the
    /// directory is not enough: it may have been used again.
    pub fn has_same_files(&self, from: &Path, to: &Path, snapshot: &TreeSnapshot) -> bool {
        let mut files = snapshot.at_and_below(to);
        files.any(|(path, node)| {
            let was = self.get(&rebase(path, to, from));
            node.kind == NodeKind::File
                && was.is_some_and(|was| {
                    ContentStamp::from(&was.version) == ContentStamp::from(&node.version)
                })
        })
    }

    /// True if all nodes at and below a path are among these.
    pub fn are_all_below_in(&self, path: &Path, nodes: &BTreeSet<PathBuf>) -> bool {
        let mut below = self.at_and_below(path);
        below.all(|(below, _)| nodes.contains(below))
    }

    /// True if a directory has the names of all nodes of another one.
    pub fn has_names_of(&self, path: &Path, other: &Path) -> bool {
        let mut others = self.at_and_below(other);
        others.all(|(below, _)| self.contains(&rebase(below, other, path)))
    }

    /// A path for a node that retires. More than one may be needed: several directories may have had the same name.
    pub fn unused_retired_path(&self, path: &Path, ino: u64) -> PathBuf {
        let mut paths = (ino..).map(|number| retired_path(path, number));
        let is_unused = |path: &PathBuf| !self.contains(path);
        paths.find(is_unused).expect("one of 2^64 names")
    }

    /// The directories of a walk that the target does not have, since another node has been in their place.
    pub fn unmade_directories<'a>(
        &'a self,
        snapshot: &'a TreeSnapshot,
    ) -> impl Iterator<Item = &'a PathBuf> {
        let directories = snapshot.of_kind(NodeKind::Directory);
        let paths = directories.map(|(path, _)| path);
        paths.filter(|path| !self.has_directory(path))
    }

    /// The links of a walk that the target does not have with the same content.
    pub fn changed_links<'a>(
        &'a self,
        snapshot: &'a TreeSnapshot,
    ) -> impl Iterator<Item = (&'a PathBuf, &'a SeenNode)> {
        let links = snapshot.of_kind(NodeKind::Symlink);
        links.filter(|(path, node)| !self.has_link(path, node))
    }

    /// The links that a walk saw and that are not on the target, while the tree still has links of these names.
    pub fn unmade_links<'a>(
        &'a self,
        then: &'a TreeSnapshot,
        now: &'a TreeSnapshot,
    ) -> impl Iterator<Item = (&'a PathBuf, &'a SeenNode)> {
        let is_link = |path: &PathBuf| {
            let seen = now.get(path);
            seen.is_some_and(|seen| seen.kind == NodeKind::Symlink)
        };
        let links = self.changed_links(then);
        links.filter(move |(path, _)| is_link(path))
    }

    /// The nodes at and below a path that neither of two later walks saw. A directory that has become something else, or
    /// the other way around, counts as not seen.
    pub fn unseen_below<'a>(
        &'a self,
        path: &'a Path,
        then: &'a TreeSnapshot,
        now: &'a TreeSnapshot,
    ) -> impl Iterator<Item = &'a PathBuf> {
        let is_unseen = |path: &Path, moved: &MovedNode, walk: &TreeSnapshot| {
            let is_directory = moved.kind == NodeKind::Directory;
            let seen = walk.get(path);
            moved.walk <= walk.walk
                && seen.is_none_or(|seen| (seen.kind == NodeKind::Directory) != is_directory)
        };
        let unseen = self
            .at_and_below(path)
            .filter(move |(path, node)| is_unseen(path, node, then) && is_unseen(path, node, now));
        unseen.map(|(path, _)| path)
    }

    /// The destinations of those links of the target that differ from the links of the source, except links that are gone.
    pub fn destinations_of_old_links<'a>(
        &'a self,
        gone: &'a HashSet<&PathBuf>,
        now: &'a TreeSnapshot,
    ) -> impl Iterator<Item = PathBuf> + 'a {
        let is_old = |path: &Path, node: &MovedNode| {
            let seen = now.get(path);
            node.kind == NodeKind::Symlink && seen.is_none_or(|seen| seen.content != node.content)
        };
        let links = self.iter();
        let links = links.filter(move |(path, node)| !gone.contains(path) && is_old(path, node));
        links.map(|(path, node)| destination(path, &node.content))
    }
}

impl Index<&Path> for MovedNodes {
    type Output = MovedNode;

    fn index(&self, path: &Path) -> &MovedNode {
        &self.0[path]
    }
}

impl Extend<(PathBuf, MovedNode)> for MovedNodes {
    fn extend<I: IntoIterator<Item = (PathBuf, MovedNode)>>(&mut self, nodes: I) {
        self.0.extend(nodes);
    }
}

#[cfg(test)]
mod tests {
    use super::NodeKind::{Directory, File, Symlink};
    use super::*;
    use crate::drain::target_state::TargetState;

    fn moved_in(walk: &TreeSnapshot) -> MovedNodes {
        TargetState::after_walk(walk).moved
    }

    fn unseen(moved: &MovedNodes, then: &TreeSnapshot, now: &TreeSnapshot) -> Vec<PathBuf> {
        let unseen = moved.unseen_below(Path::new(""), then, now);
        unseen.cloned().collect()
    }

    #[test]
    fn a_name_is_unseen_if_two_walks_lack_it_or_its_kind_has_changed() {
        let first = [
            ("a", File, 1),
            ("d", Directory, 2),
            ("d/b", File, 3),
            ("l", Symlink, 4),
        ];
        let moved = moved_in(&TreeSnapshot::from_nodes(1, &first));
        let then = TreeSnapshot::from_nodes(2, &[("a", File, 1), ("d", File, 5)]);
        let now = TreeSnapshot::from_nodes(3, &[("d", File, 5), ("l", File, 6)]);
        // A link that has become a file is replaced by that.
        assert_eq!(unseen(&moved, &then, &now), ["d", "d/b"].map(PathBuf::from));
        assert_eq!(
            unseen(&moved, &then, &then),
            ["d", "d/b", "l"].map(PathBuf::from)
        );
        // A walk does not miss a node that was made after it.
        let before = TreeSnapshot::from_nodes(0, &[]);
        assert_eq!(unseen(&moved, &before, &now), [] as [PathBuf; 0]);
    }

    #[test]
    fn a_walk_is_noted_for_nodes_of_the_kind_and_version_that_it_saw() {
        let mut moved = moved_in(&TreeSnapshot::from_nodes(
            1,
            &[("a", File, 1), ("b", File, 2)],
        ));
        let now = TreeSnapshot::from_nodes(2, &[("a", Directory, 1), ("b", File, 3)]);
        moved.note_walk(&now, Time { sec: 9, nsec: 0 });
        assert_eq!(moved[Path::new("a")].walk, 1);
        assert_eq!(moved[Path::new("b")].walk, 2);
        assert_eq!(moved[Path::new("b")].unchanged_at.sec, 2);
        let now = TreeSnapshot::from_nodes(3, &[("b", File, 2)]);
        moved.note_walk(&now, Time { sec: 9, nsec: 0 });
        assert_eq!(moved[Path::new("b")].unchanged_at.sec, 9);
    }

    #[test]
    fn nodes_are_taken_with_those_below_and_no_others() {
        let nodes = [("d", Directory, 1), ("d/a", File, 2), ("d.old", File, 3)];
        let mut moved = moved_in(&TreeSnapshot::from_nodes(1, &nodes));
        let (from, to) = (Path::new("d"), Path::new("e"));
        let taken = moved.take_below(from, to);
        let paths: Vec<&PathBuf> = taken.iter().map(|(path, _)| path).collect();
        assert_eq!(paths, ["e", "e/a"].map(Path::new));
        assert!(moved.contains(Path::new("d.old")) && !moved.contains(from));
        moved.extend(taken);
        assert!(moved.has_names_of(to, from) && !moved.has_names_of(from, to));
    }
}
