//! One side of a move: a tree, and a path in it.

use std::path::{Path, PathBuf};

use weir_client::types::Stat;

use crate::error::MoveError;
use crate::tree::FileTree;

/// A tree, and a path in it: that of the node that is moved, or the one that the node gets.
#[derive(Debug)]
pub struct MoveSide<'t, T: FileTree> {
    /// The tree.
    pub tree: &'t T,
    /// The path, as the tree knows it.
    pub path: PathBuf,
}

impl<'t, T: FileTree> MoveSide<'t, T> {
    /// The side with this path of a tree.
    pub fn new(tree: &'t T, path: impl Into<PathBuf>) -> MoveSide<'t, T> {
        let path = path.into();
        MoveSide { tree, path }
    }

    /// The path in the tree of the node with this path below the directory of the side.
    pub(crate) fn join(&self, below: impl AsRef<Path>) -> PathBuf {
        self.path.join(below)
    }

    /// The path below the directory of the side of the node with this path in the tree.
    pub(crate) fn strip<'p>(&self, whole: &'p Path) -> &'p Path {
        whole.strip_prefix(&self.path).unwrap_or(whole)
    }

    /// The attributes of the node with this path in the tree, or below the directory of the side; `None`: there is none.
    pub(crate) fn find_node(&self, below: impl AsRef<Path>) -> Result<Option<Stat>, MoveError> {
        let path = self.join(below);
        let found = self.tree.look_up(&path);
        found.map_err(MoveError::io("looking for", &path))
    }
}
