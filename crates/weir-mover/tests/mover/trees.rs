//! The nodes of a directory, as tests compare them.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use weir_mover::publish::is_part;

/// A node of a tree.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum TreeNode {
    File(Vec<u8>),
    Link(PathBuf),
    Directory,
}

/// The nodes below a directory, parts aside.
pub fn contents(at: &Path) -> BTreeMap<PathBuf, TreeNode> {
    let mut found = BTreeMap::new();
    let mut open = vec![at.to_owned()];
    while let Some(dir) = open.pop() {
        for entry in fs::read_dir(&dir).unwrap() {
            let entry = entry.unwrap();
            let (path, kind) = (entry.path(), entry.file_type().unwrap());
            if is_part(&entry.file_name()) {
                continue;
            }
            let node = if kind.is_dir() {
                open.push(path.clone());
                TreeNode::Directory
            } else if kind.is_symlink() {
                TreeNode::Link(fs::read_link(&path).unwrap())
            } else {
                TreeNode::File(fs::read(&path).unwrap())
            };
            found.insert(path.strip_prefix(at).unwrap().to_owned(), node);
        }
    }
    found
}
