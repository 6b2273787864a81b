//! The question if the target of an elevated tree has what the job sees there: whoever copies files from the target, and not from
//! the instance, would else take older ones, or miss some, without a word.
//!
//! What the job has is compared as a repeated stage compares it: by size and time.

use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use weir_client::process::mounted::WriteState;
use weir_client::types::Stat;

use crate::copy::is_kept_time;
use crate::side::MoveSide;
use crate::tree::{kind_of, FileTree, NodeKind};

/// A name at or below a path that the target does not have as the job does, if there is one. `from`: the elevated tree, `to`: the
/// directory over which it stands; `path`: below both.
pub fn find_unmoved<S: FileTree, T: FileTree>(
    from: &MoveSide<'_, S>,
    to: &MoveSide<'_, T>,
    path: &Path,
) -> io::Result<Option<PathBuf>> {
    if let Some(removed) = find_removed(from, to, path)? {
        return Ok(Some(removed));
    }
    let mut open = vec![path.to_owned()];
    while let Some(path) = open.pop() {
        // Only the target has it, or a program has removed it meanwhile.
        let Some(node) = from.tree.look_up(&from.join(&path))? else {
            continue;
        };
        if !is_there(from, to, &path, &node)? {
            return Ok(Some(path));
        }
        if kind_of(&node) == NodeKind::Directory {
            let names = from.tree.list(&from.join(&path))?;
            open.extend(names.iter().map(|name| path.join(name)));
        }
    }
    Ok(None)
}

fn look_up<T: FileTree>(to: &MoveSide<'_, T>, path: &Path) -> io::Result<Option<Stat>> {
    match to.tree.look_up(&to.join(path)) {
        Err(error) if error.kind() == io::ErrorKind::NotADirectory => Ok(None),
        found => found,
    }
}

/// A name that the job has removed, and the target still has: at the path, below it or above it.
fn find_removed<S: FileTree, T: FileTree>(
    from: &MoveSide<'_, S>,
    to: &MoveSide<'_, T>,
    path: &Path,
) -> io::Result<Option<PathBuf>> {
    for whiteout in from.tree.whiteouts()? {
        let removed = Path::new(OsStr::from_bytes(whiteout.path()));
        let is_around = removed.starts_with(path) || path.starts_with(removed);
        if whiteout.is_removed()
            && is_around
            && from.tree.look_up(&from.join(removed))?.is_none()
            && look_up(to, removed)?.is_some()
        {
            return Ok(Some(removed.to_owned()));
        }
    }
    Ok(None)
}

/// True if the target has a node as the tree has it.
fn is_there<S: FileTree, T: FileTree>(
    from: &MoveSide<'_, S>,
    to: &MoveSide<'_, T>,
    path: &Path,
    node: &Stat,
) -> io::Result<bool> {
    let there = look_up(to, path)?;
    let Some(there) = there.filter(|there| kind_of(there) == kind_of(node)) else {
        return Ok(false);
    };
    let whole = from.join(path);
    Ok(match kind_of(node) {
        NodeKind::File => {
            there.size == node.size
                && is_kept_time(node.mtime, there.mtime)
                && from.tree.write_state(&whole)? == WriteState::Written
        }
        NodeKind::Symlink => from.tree.read_link(&whole)? == to.tree.read_link(&to.join(path))?,
        // Devices, fifos and sockets are not moved.
        NodeKind::Directory | NodeKind::Special => true,
    })
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
            find_unmoved(&from, &to, Path::new(path)).unwrap()
        };
        same_time("d/a");
        fs::write(target.join("d/other"), "of the target alone").unwrap();
        assert_eq!(find(""), None);
        fs::write(tree.join("d/a"), "ab").unwrap();
        assert_eq!(find("d"), Some("d/a".into()));
        assert_eq!(find("d/other"), None);
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
