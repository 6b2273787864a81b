//! Decides if a node of the target may be replaced or removed: this instance must have put it there, or its job must have
//! taken it.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use weir_client::process::mounted::elevated::LowerFile;
use weir_client::process::mounted::Whiteout;
use weir_client::types::Stat;

use super::marks::PlacedNodes;
use crate::replaceable::{NodeMark, Replaceable, TakenNode};
use crate::tree::{kind_of, NodeKind};

/// The inode number in a mark whose source is not known.
const NO_SOURCE: u64 = 0;

/// The nodes of the target that a drain may replace or remove, by the path below the target.
#[derive(Debug)]
pub(super) struct NodeOwnership {
    /// The nodes that drains have put there. `None`: no marks are kept.
    placed: Option<Arc<PlacedNodes>>,
    /// Nodes that somebody else has put there are replaced, too.
    pub replaces_all: bool,
    /// Servers of the instance are lost, and nodes of the target may be theirs: nothing is removed from it.
    pub keeps_all: bool,
    /// The nodes that the job has removed or replaced.
    taken: HashMap<PathBuf, LowerFile>,
    /// Inodes from which this drain has removed one of several names: this changed their ctimes.
    unlinked: HashSet<u64>,
}

impl NodeOwnership {
    /// The ownership for a drain that keeps no marks.
    pub fn new() -> NodeOwnership {
        NodeOwnership {
            placed: None,
            replaces_all: true,
            keeps_all: false,
            taken: HashMap::new(),
            unlinked: HashSet::new(),
        }
    }

    pub fn keep_marks(&mut self, placed: Arc<PlacedNodes>, replaces_all: bool) {
        self.placed = Some(placed);
        self.replaces_all = replaces_all;
    }

    pub fn keeps_marks(&self) -> bool {
        self.placed.is_some()
    }

    /// True if the target may have nodes of earlier drains, which this one does not know.
    pub fn is_continued(&self) -> bool {
        let placed = self.placed.as_ref();
        placed.is_some_and(|placed| placed.is_continued())
    }

    /// Notes the nodes that the job has removed or replaced.
    pub fn note_taken(&mut self, whiteouts: &BTreeMap<PathBuf, Whiteout>) {
        self.taken = whiteouts
            .iter()
            .filter_map(|(path, whiteout)| Some((path.clone(), whiteout.file()?)))
            .collect();
        // Other drains of the tree may have put nodes there.
        self.refresh();
    }

    /// Reads the marks of other drains of the tree.
    pub fn refresh(&self) {
        if let Some(placed) = &self.placed {
            placed.refresh();
        }
    }

    /// True if the job has removed or replaced the node that the target had under a name.
    pub fn has_taken(&self, path: &Path) -> bool {
        self.taken.contains_key(path)
    }

    fn find_taken(&self, path: &Path) -> Option<TakenNode> {
        let file = *self.taken.get(path)?;
        Some(TakenNode::new(file, self.unlinked.contains(&file.ino)))
    }

    /// The nodes that a drain has put under a name, and the one that the job has taken.
    pub fn known_nodes(&self, path: &Path) -> Replaceable {
        let placed = self.placed.as_ref().map(|placed| placed.of_name(path));
        Replaceable::Only {
            placed: placed.unwrap_or_default(),
            taken: self.find_taken(path),
        }
    }

    /// True if a node is the one that the job has removed.
    pub fn is_taken(&self, path: &Path, there: &Stat) -> bool {
        let taken = self.find_taken(path);
        taken.is_some_and(|taken| taken.fits(there))
    }

    /// True if a node is one that the job has removed, or that a drain has put there.
    pub fn is_taken_or_placed(&self, path: &Path, there: &Stat) -> bool {
        self.known_nodes(path).allows(there)
    }

    /// True if drains have put nodes there that they have not removed again.
    pub fn has_marks(&self, path: &Path) -> bool {
        let placed = self.placed.as_ref();
        placed.is_some_and(|placed| !placed.of_name(path).is_empty())
    }

    /// True if a drain has put this node there, as a copy of this inode of the source.
    pub fn has_placed_source(&self, path: &Path, there: &Stat, source: u64) -> bool {
        self.placed.as_ref().is_some_and(|placed| {
            let marks = placed.of_name(path);
            let is_it = |mark: &NodeMark| mark.source == source && mark.fits(there);
            marks.iter().any(is_it)
        })
    }

    /// True if a drain has put a node there, and has not just found it.
    pub fn has_placed(&self, path: &Path, there: &Stat) -> bool {
        self.placed.as_ref().is_some_and(|placed| {
            placed.may_have_made(there) && placed.of_name(path).iter().any(|mark| mark.fits(there))
        })
    }

    /// Notes nodes that are about to get these names.
    pub fn note_attempts(&self, nodes: impl Iterator<Item = (PathBuf, NodeMark)>) {
        if let Some(placed) = &self.placed {
            let nodes: Vec<_> = nodes.collect();
            placed.note_attempts(nodes.iter().map(|(path, mark)| (&**path, *mark)));
        }
    }

    /// Notes that a node with these attributes is about to get a name.
    pub fn note_placing_copy(&self, path: &Path, copied: Option<&Stat>) {
        if let (Some(placed), Some(copied)) = (&self.placed, copied) {
            let mark = NodeMark::new(copied.size, copied.mtime, NO_SOURCE);
            placed.note_attempts(std::iter::once((path, mark)));
        }
    }

    /// Notes that nodes have these names, however they got them.
    pub fn note_placed(&self, nodes: impl Iterator<Item = (PathBuf, NodeMark)>) {
        if let Some(placed) = &self.placed {
            nodes.for_each(|(path, mark)| placed.note_placed(&path, mark));
        }
    }

    /// Notes that names are gone from the target.
    pub fn note_removed<'p>(&self, paths: impl Iterator<Item = &'p PathBuf>) {
        if let Some(placed) = &self.placed {
            placed.note_removed(paths.map(PathBuf::as_path));
        }
    }

    /// Notes that a node of the target has one name less.
    pub fn note_unlinked(&mut self, node: Option<&Stat>) {
        let linked = node.filter(|node| node.nlink > 1 && kind_of(node) != NodeKind::Directory);
        self.unlinked.extend(linked.map(|node| node.ino));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(size: u64) -> Stat {
        Stat {
            mode: 0o100_644,
            size,
            ..Stat::default()
        }
    }

    #[test]
    fn a_node_is_ours_by_its_mark_until_it_is_removed() {
        let dir = tempfile::tempdir().unwrap();
        let mut ownership = NodeOwnership::new();
        let (path, there) = (Path::new("a"), file(5));
        let mark = || std::iter::once((path.to_owned(), NodeMark::new(5, there.mtime, NO_SOURCE)));
        // Without marks nothing is known.
        ownership.note_placed(mark());
        assert!(!ownership.is_taken_or_placed(path, &there));
        let placed = PlacedNodes::open(&dir.path().join("marks")).unwrap();
        ownership.keep_marks(Arc::new(placed), false);
        ownership.note_attempts(mark());
        assert!(ownership.is_taken_or_placed(path, &there));
        assert!(!ownership.is_taken_or_placed(path, &file(6)));
        assert!(!ownership.is_taken(path, &there));
        ownership.note_removed(std::iter::once(&path.to_owned()));
        assert!(!ownership.is_taken_or_placed(path, &there));
    }
}
