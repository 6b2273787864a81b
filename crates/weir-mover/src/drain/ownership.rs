//! The question if a node of the target may be replaced or removed: it is what this instance has put there, or
//! what its job has taken.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use weir_client::process::mounted::Whiteout;
use weir_client::types::Stat;

use super::snapshot::{FileVersion, SeenNode};
use super::Drain;
use crate::replaceable::{NodeMark, Replaceable, TakenNode};
use crate::tree::FileTree;

impl<S: FileTree, T: FileTree> Drain<'_, S, T> {
    /// Notes what the job has removed or replaced.
    pub(super) fn note_taken(&mut self, whiteouts: &BTreeMap<PathBuf, Whiteout>) {
        self.taken = whiteouts
            .iter()
            .filter_map(|(path, whiteout)| Some((path.clone(), whiteout.file()?)))
            .collect();
        // Other drains of the tree may have put something there.
        if let Some(placed) = &self.placed {
            placed.refresh();
        }
    }

    pub(super) fn taken(&self, path: &Path) -> Option<TakenNode> {
        let file = *self.taken.get(path)?;
        Some(TakenNode::new(file, self.unlinked.contains(&file.ino)))
    }

    /// The nodes that a drain has put under a name, and the one that the job has taken.
    fn known_nodes(&self, path: &Path) -> Replaceable {
        let placed = self.placed.as_ref().map(|placed| placed.of_name(path));
        Replaceable::Only {
            placed: placed.unwrap_or_default(),
            taken: self.taken(path),
        }
    }

    /// The nodes that a file of the tree may replace.
    pub(super) fn replaceable(&self, path: &Path) -> Replaceable {
        let relocated = self.relocated.find_above(path);
        match self.replaces_all || relocated.is_some_and(|(_, relocated)| relocated.is_hidden()) {
            true => Replaceable::Any,
            false => self.known_nodes(&self.relocated.find_place(path)),
        }
    }

    /// True if a node may be replaced by one of the tree.
    pub(super) fn may_replace(&self, path: &Path, there: &Stat) -> bool {
        let is_allowed = || self.replaceable(path).allows(there);
        is_allowed() || {
            if let Some(placed) = &self.placed {
                placed.refresh();
            }
            is_allowed()
        }
    }

    /// True if a node is what the job has removed, or what a drain has put there.
    pub(super) fn is_taken_or_placed(&self, path: &Path, there: &Stat) -> bool {
        self.known_nodes(path).allows(there)
    }

    /// True if a drain has put a node there, and has not just found it.
    pub(super) fn has_placed(&self, path: &Path, there: &Stat) -> bool {
        self.placed.as_ref().is_some_and(|placed| {
            placed.may_have_made(there) && placed.of_name(path).iter().any(|mark| mark.fits(there))
        })
    }

    /// Notes nodes of the tree that are about to get their names on the target.
    pub(super) fn note_placing<'p>(
        &self,
        nodes: impl Iterator<Item = (&'p (impl AsRef<Path> + ?Sized + 'p), &'p SeenNode)>,
    ) {
        if let Some(placed) = &self.placed {
            let nodes =
                nodes.map(|(path, node)| (self.relocated.find_place(path.as_ref()), mark_of(node)));
            let nodes: Vec<_> = nodes.collect();
            placed.note_attempts(nodes.iter().map(|(path, mark)| (&**path, *mark)));
        }
    }

    /// The same of what has these attributes.
    pub(super) fn note_placing_copy(&self, path: &Path, copied: Option<&Stat>) {
        if let (Some(placed), Some(copied)) = (&self.placed, copied) {
            let mark = NodeMark::new(copied.size, copied.mtime);
            placed.note_attempts(std::iter::once((path, mark)));
        }
    }

    /// Notes that a file has its name on the target, by whatever way it got there.
    pub(super) fn note_placed(&self, path: &Path, version: &FileVersion) {
        if let Some(placed) = &self.placed {
            let mark = NodeMark::new(version.size, version.mtime);
            placed.note_placed(&self.relocated.find_place(path), mark);
        }
        self.queue_moved(path, version);
    }

    /// Notes that names are gone from the target.
    pub(super) fn note_removed<'p>(&self, paths: impl Iterator<Item = &'p PathBuf>) {
        if let Some(placed) = &self.placed {
            placed.note_removed(paths.map(PathBuf::as_path));
        }
    }
}

pub(super) fn mark_of(node: &SeenNode) -> NodeMark {
    let size = match node.content.as_os_str().len() {
        0 => node.version.size,
        text => text as u64,
    };
    NodeMark::new(size, node.version.mtime)
}
