//! The state of the target, as a drain knows it: four tables, and the questions that need several of them. No I/O, except
//! on the file of marks.
//!
//! | table | subject |
//! | --- | --- |
//! | `moved` | the nodes that have known versions of their sources |
//! | `relocated` | directories that have other names than in the tree |
//! | `ownership` | the nodes that may be replaced or removed |
//! | `copies` | the copies of evicted files |

use std::path::{Path, PathBuf};

use weir_client::types::{Stat, Time};

use super::copies::EvictedCopies;
use super::moved::{MovedNode, MovedNodes};
use super::ownership::NodeOwnership;
use super::relocation_table::{rebase, RelocatedDirectories, RelocatedDirectory};
use super::snapshot::{FileVersion, SeenNode, TreeSnapshot};
use crate::copy::LikenessBy;
use crate::replaceable::{NodeMark, Replaceable};
use crate::tree::NodeKind;

/// The state of the target. `F` is an open file of it.
#[derive(Debug)]
pub(super) struct TargetState<F> {
    pub moved: MovedNodes,
    pub relocated: RelocatedDirectories<F>,
    pub ownership: NodeOwnership,
    pub copies: EvictedCopies<F>,
}

/// The nodes at and below a path, taken out of the tables, with other paths.
pub(super) struct DetachedNodes<F> {
    pub moved: Vec<(PathBuf, MovedNode)>,
    pub relocated: Vec<(PathBuf, RelocatedDirectory<F>)>,
}

impl<F> TargetState<F> {
    pub fn new() -> TargetState<F> {
        TargetState {
            moved: MovedNodes::default(),
            relocated: RelocatedDirectories::new(),
            ownership: NodeOwnership::new(),
            copies: EvictedCopies::new(),
        }
    }

    /// True if the target has this version of a file, under its name.
    pub fn is_safe(&self, path: &Path, node: &SeenNode) -> bool {
        self.moved.has_version(path, node) && !self.relocated.is_relocated(path)
    }

    /// True if the target has a file or link under its own name.
    pub fn has_name(&self, path: &Path, node: &SeenNode) -> bool {
        let is_there = match node.kind {
            NodeKind::Symlink => self.moved.has_link(path, node),
            _ => self.moved.has_version(path, node),
        };
        is_there && !self.relocated.is_relocated(path)
    }

    /// True if the target has a node of another kind in the place of a file, or of a directory above it.
    pub fn is_in_the_way(&self, path: &Path) -> bool {
        self.moved.has_directory(path)
            || self.relocated.has_in_place_of(path)
            || self.moved.is_below_another_kind(path)
    }

    /// The nearest directory above a path that the tree has, too: a copy may be in a directory that is about to be removed.
    pub fn lasting_directory<'p>(&self, path: &'p Path, snapshot: &TreeSnapshot) -> &'p Path {
        let is_directory = |dir: &&Path| {
            let seen = snapshot.get(dir);
            seen.is_some_and(|seen| seen.kind == NodeKind::Directory)
                && !self.relocated.is_relocated(dir)
        };
        let above = path.ancestors().skip(1).find(is_directory);
        above.unwrap_or(Path::new(""))
    }

    /// The names of the target that differ from those that a walk saw.
    pub fn changed_names<'a>(
        &'a self,
        snapshot: &'a TreeSnapshot,
    ) -> impl Iterator<Item = &'a PathBuf> {
        let links = self.moved.changed_links(snapshot).map(|(path, _)| path);
        let gone = self.gone(snapshot, snapshot);
        let unnamed = self.relocated.unnamed();
        let hidden = self.whited_out(snapshot, snapshot);
        let unmade = self.moved.unmade_directories(snapshot);
        links.chain(gone).chain(unnamed).chain(hidden).chain(unmade)
    }

    /// The nodes that two later walks did not see, except copies of evicted files. A directory that has become something
    /// else, or the other way around, counts as not seen.
    pub fn gone<'a>(
        &'a self,
        then: &'a TreeSnapshot,
        now: &'a TreeSnapshot,
    ) -> impl Iterator<Item = &'a PathBuf> {
        self.gone_below(Path::new(""), then, now)
    }

    /// Those of these nodes that are at and below a path.
    pub fn gone_below<'a>(
        &'a self,
        path: &'a Path,
        then: &'a TreeSnapshot,
        now: &'a TreeSnapshot,
    ) -> impl Iterator<Item = &'a PathBuf> {
        let gone = self.moved.unseen_below(path, then, now);
        gone.filter(|path| !self.copies.has_around(&self.relocated.find_place(path)))
            .filter(|path| !self.relocated.awaits_successor(path))
    }

    /// The names that had been removed from an elevated tree at both walks, and that are not in `moved`. The tree may have
    /// them again.
    pub fn whited_out<'a>(
        &'a self,
        then: &'a TreeSnapshot,
        now: &'a TreeSnapshot,
    ) -> impl Iterator<Item = &'a PathBuf> {
        let paths = then.whiteouts.keys();
        paths.filter(|path| {
            now.whiteouts.contains_key(*path)
                && !self.moved.contains(path)
                && !self.copies.has_around(path)
                && !self.relocated.has_around(path)
        })
    }

    /// The nodes that a file of the tree may replace.
    pub fn replaceable(&self, path: &Path) -> Replaceable {
        let relocated = self.relocated.find_above(path);
        let is_hidden = relocated.is_some_and(|(_, relocated)| relocated.is_hidden());
        match self.ownership.replaces_all || is_hidden {
            true => Replaceable::Any,
            false => self.ownership.known_nodes(&self.relocated.find_place(path)),
        }
    }

    /// True if a node may be replaced by one of the tree.
    pub fn may_replace(&self, path: &Path, there: &Stat) -> bool {
        let is_allowed = || self.replaceable(path).allows(there);
        is_allowed() || {
            self.ownership.refresh();
            is_allowed()
        }
    }

    /// The way to check if the target has a file already. Programs may give a file the mtime of another version that the
    /// target has, as cp -p and tar do: then the mtime is older than the file.
    pub fn likeness_of(&self, path: &Path, mtime: Time, born: Option<Time>) -> LikenessBy {
        let had_version = self.moved.contains(path)
            || self.ownership.has_taken(path)
            || self.ownership.is_continued();
        let was_written_then = born.is_some_and(|born| born <= mtime);
        match had_version && !was_written_then {
            true => LikenessBy::Bytes,
            false => LikenessBy::Times,
        }
    }

    /// Notes nodes of the tree that are about to get their names on the target.
    pub fn note_placing<'p>(
        &self,
        nodes: impl Iterator<Item = (&'p (impl AsRef<Path> + ?Sized + 'p), &'p SeenNode)>,
    ) {
        let place_of = |path: &Path| self.relocated.find_place(path);
        let nodes = nodes.map(|(path, node)| (place_of(path.as_ref()), node.mark()));
        self.ownership.note_attempts(nodes);
    }

    /// Notes that a file has its name on the target, however it got it.
    pub fn note_placed(&self, path: &Path, version: &FileVersion) {
        let mark = NodeMark::new(version.size, version.mtime, version.ino);
        let nodes = std::iter::once_with(|| (self.relocated.find_place(path), mark));
        self.ownership.note_placed(nodes);
    }

    /// The paths in the marks of the files and links below a directory.
    pub fn marked_below(&self, path: &Path) -> Vec<PathBuf> {
        if !self.ownership.keeps_marks() {
            return Vec::new();
        }
        let below = self.moved.leaves_below(path);
        below
            .map(|(path, _)| self.relocated.find_place(path))
            .collect()
    }

    /// Marks the files and links below a directory that is about to get a path on the target, or has it.
    pub fn mark_nodes(&self, path: &Path, at: &Path, is_there: bool) {
        let below = self.moved.leaves_below(path);
        let marks = below.map(|(below, node)| (rebase(below, path, at), node.mark()));
        match is_there {
            true => self.ownership.note_placed(marks),
            false => self.ownership.note_attempts(marks),
        }
    }

    /// Takes the nodes at and below a path out of the tables, with other paths.
    pub fn detach_nodes(&mut self, from: &Path, to: &Path) -> DetachedNodes<F> {
        let relocated = self.relocated.remove_below(from).into_iter();
        let relocated = relocated.map(|(path, directory)| (rebase(&path, from, to), directory));
        DetachedNodes {
            moved: self.moved.take_below(from, to),
            relocated: relocated.collect(),
        }
    }

    pub fn attach_nodes(&mut self, nodes: DetachedNodes<F>) {
        self.moved.extend(nodes.moved);
        self.relocated.extend(nodes.relocated);
    }

    /// Notes the inodes of directories that have taken the place of others without a rename.
    pub fn note_inodes(&mut self, snapshot: &TreeSnapshot) {
        for (path, node) in snapshot.of_kind(NodeKind::Directory) {
            if let Some(moved) = self.moved.get_mut(path) {
                if moved.kind == NodeKind::Directory {
                    moved.version = node.version;
                    let relocated = self.relocated.get_mut(path);
                    if let Some(relocated) = relocated.filter(|one| !one.is_retired()) {
                        relocated.inode = Some(node.version.inode());
                    }
                }
            }
        }
    }

    /// Retires a relocated directory: its files are moved again, one by one.
    pub fn retire(&mut self, path: &Path, walk: u64) {
        let Some(inode) = self.relocated.get(path).and_then(|one| one.inode) else {
            return;
        };
        self.relocated.note_merged(inode);
        let retired = self.moved.unused_retired_path(path, inode.1);
        let mut nodes = self.detach_nodes(path, &retired);
        for (_, node) in &mut nodes.moved {
            node.walk = walk;
        }
        self.attach_nodes(nodes);
        if let Some(relocated) = self.relocated.get_mut(&retired) {
            relocated.inode = None;
            relocated.lock = None;
        }
    }

    /// To be called at the end: retires the directories that could not get their names, so that their files are moved one
    /// by one.
    pub fn retire_unnamed(&mut self, walk: u64) {
        let unnamed: Vec<PathBuf> = self.relocated.unnamed().cloned().collect();
        for path in unnamed {
            self.retire(&path, walk);
        }
    }
}

#[cfg(test)]
impl TargetState<()> {
    /// A target that has the nodes of a walk.
    pub fn after_walk(walk: &TreeSnapshot) -> TargetState<()> {
        let mut state = TargetState::new();
        for path in walk.paths() {
            let node = MovedNode::from_seen(walk.get(path).unwrap(), true);
            state.moved.insert(path.clone(), node);
        }
        state
    }
}

#[cfg(test)]
mod tests {
    use super::NodeKind::{Directory, File};
    use super::*;

    #[test]
    fn a_copy_that_is_held_is_not_gone() {
        let mut state = TargetState::after_walk(&TreeSnapshot::from_nodes(1, &[("a", File, 1)]));
        let (then, now) = [2, 3]
            .map(|walk| TreeSnapshot::from_nodes(walk, &[]))
            .into();
        let gone = |state: &TargetState<()>| state.gone(&then, &now).count();
        assert_eq!(gone(&state), 1);
        state.copies.hold(Path::new("a"));
        assert_eq!(gone(&state), 0);
        state.copies.release(Path::new("a"));
        assert_eq!(gone(&state), 1);
    }

    #[test]
    fn a_file_of_a_relocated_directory_is_there_but_not_safe() {
        let walk = TreeSnapshot::from_nodes(1, &[("d", Directory, 1), ("d/a", File, 2)]);
        let mut state = TargetState::after_walk(&walk);
        let (dir, file) = (Path::new("d"), Path::new("d/a"));
        let node = walk.get(file).unwrap();
        assert!(state.is_safe(file, node) && !state.is_in_the_way(file));
        let relocated = RelocatedDirectory::new("old".into(), Some((0, 1)), None);
        state.relocated.insert(dir.to_owned(), relocated);
        assert!(state.moved.has_version(file, node) && !state.is_safe(file, node));
        assert!(state.is_in_the_way(Path::new("old")));
    }

    #[test]
    fn a_directory_that_retires_takes_its_files_along() {
        let walk = TreeSnapshot::from_nodes(1, &[("d", Directory, 1), ("d/a", File, 2)]);
        let mut state = TargetState::after_walk(&walk);
        let relocated = RelocatedDirectory::new("old".into(), Some((0, 1)), None);
        state.relocated.insert("d".into(), relocated);
        state.retire_unnamed(7);
        assert!(!state.moved.contains(Path::new("d/a")) && state.relocated.is_merged((0, 1)));
        let (retired, one) = state.relocated.find_at(Path::new("old")).unwrap();
        assert!(one.is_retired());
        assert_eq!(state.moved[&*retired.join("a")].walk, 7);
    }
}
