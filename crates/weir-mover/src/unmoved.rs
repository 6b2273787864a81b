//! The question if the target of an elevated tree has the nodes that programs of the instance see there. If not, a copy from
//! the target would take older files, or miss some, without a word.
//!
//! Files are compared as a repeated stage compares them: by size and time.

use std::cell::OnceCell;
use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use weir_client::process::mounted::{Cover, Whiteout, WriteState};
use weir_client::types::Stat;

use crate::copy::is_kept_time;
use crate::publish::is_part;
use crate::side::MoveSide;
use crate::tree::{kind_of, FileTree, NodeKind};

/// An elevated tree, and the directory over which it stands.
#[derive(Debug)]
pub struct ElevatedPair<'t, S: FileTree, T: FileTree> {
    from: MoveSide<'t, S>,
    to: MoveSide<'t, T>,
    /// The names that programs have removed, once they have been asked for.
    removed: OnceCell<Vec<PathBuf>>,
}

impl<'t, S: FileTree, T: FileTree> ElevatedPair<'t, S, T> {
    /// `from`: the tree; `to`: the directory.
    pub fn new(from: MoveSide<'t, S>, to: MoveSide<'t, T>) -> ElevatedPair<'t, S, T> {
        ElevatedPair {
            from,
            to,
            removed: OnceCell::new(),
        }
    }

    /// A node at or below a path that the target does not have as programs see it, if there is one. Paths are below both
    /// trees. `is_chosen`: the nodes that count; of a directory, those in it are looked at if it is chosen.
    pub fn find_unmoved(
        &self,
        path: &Path,
        is_chosen: impl Fn(&Path, NodeKind) -> bool,
    ) -> io::Result<Option<PathBuf>> {
        let is_removed = |removed: &&PathBuf| {
            let is_around = removed.starts_with(path) || path.starts_with(removed);
            is_around && is_chosen(removed, NodeKind::File)
        };
        for removed in self.removed()?.iter().filter(is_removed) {
            let is_there = look_up(&self.to, removed)?.is_some();
            if is_there && look_up(&self.from, removed)?.is_none() {
                return Ok(Some(removed.clone()));
            }
        }
        let mut open = vec![path.to_owned()];
        while let Some(path) = open.pop() {
            // Only the target has it, or a program has removed it meanwhile.
            let Some(node) = look_up(&self.from, &path)? else {
                continue;
            };
            let kind = kind_of(&node);
            if !is_chosen(&path, kind) {
                continue;
            }
            if !self.is_moved(&path, &node)? {
                return Ok(Some(path));
            }
            if kind == NodeKind::Directory {
                if let Some(removed) = self.find_removed_from(&path, &is_chosen)? {
                    return Ok(Some(removed));
                }
                let names = self.from.tree.list(&self.from.join(&path))?;
                open.extend(names.iter().map(|name| path.join(name)));
            }
        }
        let is_lost = self.is_removed_with(path)?;
        Ok(is_lost.then(|| path.to_owned()))
    }

    /// True if the target has a node that the tree does not have, in a directory that programs have made.
    fn is_removed_with(&self, path: &Path) -> io::Result<bool> {
        if look_up(&self.from, path)?.is_some() || look_up(&self.to, path)?.is_none() {
            return Ok(false);
        }
        for above in path.ancestors().skip(1) {
            if look_up(&self.from, above)?.is_some() {
                return Ok(self.from.tree.cover_of(&self.from.join(above))? == Cover::Nothing);
            }
        }
        Ok(false)
    }

    /// A name of the target that a directory which programs have made does not have any more. Such removals leave no
    /// whiteouts.
    fn find_removed_from(
        &self,
        dir: &Path,
        is_chosen: &dyn Fn(&Path, NodeKind) -> bool,
    ) -> io::Result<Option<PathBuf>> {
        let source = self.from.join(dir);
        if self.from.tree.cover_of(&source)? != Cover::Nothing {
            return Ok(None);
        }
        for name in self.to.tree.list(&self.to.join(dir))? {
            let path = dir.join(name);
            let is_part = path.file_name().is_some_and(is_part);
            if is_part || look_up(&self.from, &path)?.is_some() {
                continue;
            }
            let there = look_up(&self.to, &path)?;
            if there.is_some_and(|there| is_chosen(&path, kind_of(&there))) {
                return Ok(Some(path));
            }
        }
        Ok(None)
    }

    fn removed(&self) -> io::Result<&Vec<PathBuf>> {
        if let Some(removed) = self.removed.get() {
            return Ok(removed);
        }
        let whiteouts = self.from.tree.whiteouts()?.into_iter();
        let removed = whiteouts.filter(Whiteout::is_removed);
        let removed = removed.map(|whiteout| OsStr::from_bytes(whiteout.path()).into());
        Ok(self.removed.get_or_init(|| removed.collect()))
    }

    /// True if the target has a node as the tree has it.
    fn is_moved(&self, path: &Path, node: &Stat) -> io::Result<bool> {
        let there = look_up(&self.to, path)?;
        let Some(there) = there.filter(|there| kind_of(there) == kind_of(node)) else {
            return Ok(false);
        };
        let (source, target) = (self.from.join(path), self.to.join(path));
        Ok(match kind_of(node) {
            NodeKind::File => {
                there.size == node.size
                    && is_kept_time(node.mtime, there.mtime)
                    && self.from.tree.write_state(&source)? == WriteState::Written
            }
            NodeKind::Symlink => {
                self.from.tree.read_link(&source)? == self.to.tree.read_link(&target)?
            }
            // Devices, fifos and sockets are not moved.
            NodeKind::Directory | NodeKind::Special => true,
        })
    }
}

/// The attributes of a node; `None`: there is none, or something above it is no directory.
fn look_up<T: FileTree>(side: &MoveSide<'_, T>, path: &Path) -> io::Result<Option<Stat>> {
    match side.tree.look_up(&side.join(path)) {
        Err(error) if error.kind() == io::ErrorKind::NotADirectory => Ok(None),
        found => found,
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use super::*;
    use crate::DirectoryTree;

    #[test]
    fn names_that_the_target_does_not_have_so_are_found() {
        let dir = tempfile::tempdir().unwrap();
        let [tree, target] = ["tree", "target"].map(|name| dir.path().join(name));
        for top in [&tree, &target] {
            fs::create_dir_all(top.join("d")).unwrap();
            fs::write(top.join("d/a"), "a").unwrap();
            symlink("a", top.join("d/link")).unwrap();
        }
        let same_time = |name: &str| {
            let time = fs::metadata(tree.join(name)).unwrap().modified().unwrap();
            let copy = fs::File::options().write(true).open(target.join(name));
            copy.unwrap().set_modified(time).unwrap();
        };
        let find = |path: &str| {
            let from = MoveSide::new(&DirectoryTree, &*tree);
            let to = MoveSide::new(&DirectoryTree, &*target);
            let pair = ElevatedPair::new(from, to);
            let is_chosen = |path: &Path, _| !path.ends_with("left-out");
            pair.find_unmoved(Path::new(path), is_chosen).unwrap()
        };
        same_time("d/a");
        fs::write(target.join("d/other"), "of the target alone").unwrap();
        // Programs have made both directories, and have removed the name.
        for path in ["", "d", "d/other"] {
            assert_eq!(find(path), Some("d/other".into()), "{path}");
        }
        fs::remove_file(target.join("d/other")).unwrap();
        fs::write(tree.join("left-out"), "of the tree alone").unwrap();
        assert_eq!(find(""), None);
        fs::write(tree.join("d/a"), "ab").unwrap();
        assert_eq!(find("d"), Some("d/a".into()));
        assert_eq!(find("d/none"), None);
        fs::write(target.join("d/a"), "ab").unwrap();
        same_time("d/a");
        assert_eq!(find(""), None);
        fs::remove_file(target.join("d/link")).unwrap();
        assert_eq!(find(""), Some("d/link".into()));
        symlink("b", target.join("d/link")).unwrap();
        assert_eq!(find("d/link"), Some("d/link".into()));
        fs::create_dir(tree.join("new")).unwrap();
        assert_eq!(find("new"), Some("new".into()));
    }
}
