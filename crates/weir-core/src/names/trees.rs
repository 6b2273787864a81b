//! Making the directories of elevated trees, which [`crate::elevated`] describes.

use super::foreign::owner_of;
use super::inodes::NewInode;
use super::seq::SeqWrite;
use super::shard::Shard;
use super::{FileType, NamesError, Owner, Policy, SetAttr};
use crate::elevated::{
    name_of_inode, root_of_tree, COVERS, EVICTED, MOST_TREES, NURSERY, PARENT, WHITEOUTS,
};
use crate::types::Ino;
use std::sync::atomic::Ordering::Relaxed;

/// An elevated tree to be made.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NewTree {
    /// The path of its target, canonical.
    pub target: Vec<u8>,
    /// The permission bits of the root.
    pub mode: u32,
    /// The owner of the root.
    pub owner: Owner,
    /// Access and modification time of the root, in ns since 1970.
    pub times_ns: [i64; 2],
}

impl Shard<'_> {
    /// Makes the directories of `trees` in tables that have only the root, if there are any. Files that
    /// are made in the trees get this policy. Returns the new directories that have entries. `Exists`: the
    /// tables have more than the root.
    pub fn make_trees(
        &mut self,
        trees: &[NewTree],
        policy: Policy,
        now_ns: i64,
    ) -> Result<Vec<Ino>, NamesError> {
        if trees.is_empty() {
            return Ok(Vec::new());
        }
        if trees.len() > MOST_TREES {
            return Err(NamesError::NoSpace);
        }
        let policy = SetAttr {
            policy: Some(policy),
            ..SetAttr::default()
        };
        let owner = owner_of(&self.attr(self.root())?);
        let parent = self.make_own_parent()?;
        let mut made = vec![(parent, PARENT)];
        for (name, ino) in [
            (&b"covers"[..], COVERS),
            (b"whiteouts", WHITEOUTS),
            (b"nursery", NURSERY),
            (b"evicted", EVICTED),
        ] {
            made.push((self.mkdir(parent, name, 0o700, owner, now_ns)?, ino));
        }
        for (number, tree) in trees.iter().enumerate() {
            let name = format!("tree{number}");
            let root = self.mkdir(parent, name.as_bytes(), tree.mode, tree.owner, now_ns)?;
            let [atime_ns, mtime_ns] = tree.times_ns.map(Some);
            self.setattr(
                root,
                &SetAttr {
                    atime_ns,
                    mtime_ns,
                    ..policy
                },
            )?;
            made.push((root, root_of_tree(number)));
        }
        if made.iter().any(|(made, fixed)| made != fixed) {
            return Err(NamesError::Exists);
        }
        self.setattr(NURSERY, &policy)?;
        for (number, tree) in trees.iter().enumerate() {
            let name = name_of_inode(root_of_tree(number));
            let link = self.symlink(COVERS, &name, &tree.target, owner, now_ns)?;
            let mode = SetAttr {
                mode: Some(tree.mode),
                ..SetAttr::default()
            };
            self.setattr(link, &mode)?;
        }
        Ok(vec![PARENT, COVERS])
    }

    /// Makes a directory that no entry names, and that is its own parent.
    fn make_own_parent(&mut self) -> Result<Ino, NamesError> {
        let root = self.attr(self.root())?;
        let aux = self.orders.add();
        let new = NewInode::new(FileType::Dir, 0o700, owner_of(&root), root.btime_ns);
        let ino = self.make_inode(&NewInode { aux, ..new })?;
        let record = self.live(ino)?;
        {
            let _change = SeqWrite::begin(&record.seq);
            record.parent.store(ino.0, Relaxed);
        }
        self.note_inode(ino);
        self.publish_counters();
        Ok(ino)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::names::memory::Memory;
    use crate::names::{EntryName, RenameMode};
    use crate::types::Rank;

    const OWNER: Owner = Owner { uid: 1, gid: 2 };

    fn trees() -> Vec<NewTree> {
        let tree = |target: &str| NewTree {
            target: target.into(),
            mode: 0o750,
            owner: OWNER,
            times_ns: [-1, 5],
        };
        vec![tree("/pfs/a"), tree("/pfs/b")]
    }

    #[test]
    fn trees_have_fixed_roots_and_paths_of_their_own() {
        let memory = Memory::new(64);
        let mut shard = Shard::new(memory.format(Rank(0)), 0o755, OWNER, 1).unwrap();
        let filled = shard.make_trees(&trees(), Policy::default(), 5).unwrap();
        for (dir, has_entries) in [
            (PARENT, true),
            (COVERS, true),
            (WHITEOUTS, false),
            (NURSERY, false),
            (root_of_tree(0), false),
        ] {
            assert_eq!(shard.dir_part(dir).unwrap().entries > 0, has_entries);
            assert_eq!(filled.contains(&dir), has_entries);
        }
        let root = root_of_tree(1);
        let attr = shard.attr(root).unwrap();
        assert_eq!((attr.atime_ns, attr.mtime_ns), (-1, 5));
        let dir = shard.mkdir(root, b"d", 0o755, OWNER, 6).unwrap();
        let file = shard.create(dir, b"f", 0o644, OWNER, 7).unwrap();
        let view = shard.view();
        let mut buffer = [0; 64];
        assert_eq!(
            view.path_of(file, &mut buffer).unwrap(),
            Some((root, &b"/d/f"[..]))
        );
        assert_eq!(
            view.path_of(root, &mut buffer).unwrap(),
            Some((root, &b"/"[..]))
        );
        let in_weir = shard.mkdir(shard.root(), b"w", 0o755, OWNER, 8).unwrap();
        let path = view.path_of(in_weir, &mut buffer).unwrap();
        assert_eq!(path, Some((shard.root(), &b"/w"[..])));
        let (link, _) = shard.lookup(COVERS, &name_of_inode(root)).unwrap();
        assert_eq!(shard.symlink_target(link).unwrap(), b"/pfs/b");
        // A directory of the target that is taken up is no change of the one that it is in.
        shard.mkdir(NURSERY, b"n", 0o755, OWNER, 8).unwrap();
        let before = shard.attr(root).unwrap();
        let entry = |parent, name| EntryName { parent, name };
        let (from, to) = (entry(NURSERY, b"n"), entry(root, b"n"));
        let done = shard.rename(from, to, RenameMode::NoReplace, 9);
        assert!(done.is_ok());
        let after = shard.attr(root).unwrap();
        assert_eq!(after.nlink, before.nlink + 1);
        assert_eq!(
            (after.mtime_ns, after.ctime_ns),
            (before.mtime_ns, before.ctime_ns)
        );
        // A rename looks for loops up to the parent of all trees.
        let (from, to) = (entry(root, b"d"), entry(root_of_tree(0), b"e"));
        let done = shard.rename(from, to, RenameMode::Replace, 9);
        assert_eq!(done.unwrap().moved, dir);
        let path = view.path_of(file, &mut buffer).unwrap();
        assert_eq!(path, Some((root_of_tree(0), &b"/e/f"[..])));
    }

    #[test]
    fn trees_are_made_first() {
        let memory = Memory::new(64);
        let mut shard = Shard::new(memory.format(Rank(0)), 0o755, OWNER, 1).unwrap();
        let root = shard.root();
        shard.create(root, b"f", 0o644, OWNER, 2).unwrap();
        let made = shard.make_trees(&trees(), Policy::default(), 5);
        assert_eq!(made, Err(NamesError::Exists));
    }
}
