//! Directories of an elevated tree, taken up by programs of all nodes as clients do it: made in the
//! nursery, given a cover, and renamed into the tree. From then on each look-up must find both.

use rustix::io::Errno;
use weir_core::elevated::{name_of_inode, root_of_tree, COVERS, NURSERY};
use weir_core::names::FileType;
use weir_core::proto;
use weir_core::types::Ino;
use weir_fabric::sim::rng::SeededRng;

use crate::program::Actor;

/// The root of the tree.
const ROOT: Ino = root_of_tree(0);

impl Actor<'_> {
    /// Takes up a directory under a name that nobody else uses.
    pub fn take_up(&self) {
        let name = format!("{}.{}", self.number, self.record.event()).into_bytes();
        let began = self.begin();
        let taken = self.try_take_up(&name);
        let what = ("take up", String::from_utf8_lossy(&name));
        self.record_result(began, &what, &taken, false);
        if let Ok(dir) = taken {
            self.record.taken_up.borrow_mut().push((name, dir));
        }
    }

    fn try_take_up(&self, name: &[u8]) -> Result<Ino, Errno> {
        let dir = self.process.call(proto::Mkdir {
            parent: NURSERY,
            name: name.to_vec(),
            mode: 0o755,
            uid: 0,
            gid: 0,
        })?;
        self.process.call(proto::Symlink {
            parent: COVERS,
            name: name_of_inode(dir).to_vec(),
            target: [b"/pfs/", name].concat(),
            uid: 0,
            gid: 0,
        })?;
        self.process.call(proto::Rename {
            parent: NURSERY,
            name: name.to_vec(),
            new_parent: ROOT,
            new_name: name.to_vec(),
            flags: 1,
        })?;
        Ok(dir)
    }

    /// Looks one of the directories and its cover up, or the cover of the tree.
    pub fn find_taken_up(&self, rng: &SeededRng) {
        let taken = self.record.taken_up.borrow();
        let drawn = taken.get(rng.pick(taken.len() + 1)).cloned();
        drop(taken);
        match drawn {
            Some((name, dir)) => self.must_find_with_cover(&name, dir),
            None => self.must_find(COVERS, &name_of_inode(ROOT), None),
        }
    }

    /// Looks each of them up.
    pub fn find_all_taken_up(&self) {
        let taken = self.record.taken_up.borrow().clone();
        for (name, dir) in &taken {
            self.must_find_with_cover(name, *dir);
        }
        self.must_find(COVERS, &name_of_inode(ROOT), None);
    }

    fn must_find_with_cover(&self, name: &[u8], dir: Ino) {
        self.must_find(ROOT, name, Some(dir));
        self.must_find(COVERS, &name_of_inode(dir), None);
    }

    /// Looks up a name that is there: `is`, or any symbolic link.
    fn must_find(&self, dir: Ino, name: &[u8], is: Option<Ino>) {
        let began = self.begin();
        let found = self.process.find(dir, name);
        let what = ("find", dir, String::from_utf8_lossy(name));
        self.record_result(began, &what, &found, false);
        let Ok(found) = found else { return };
        let is_right = match (found, is) {
            (Some((ino, FileType::Dir)), Some(is)) => ino == is,
            (Some((_, FileType::Symlink)), None) => true,
            _ => false,
        };
        if !is_right {
            self.record
                .fault(format!("{what:?} should be {is:?} and is {found:?}"));
        }
    }
}
