//! The files that the kernel knows of a mirror, by the numbers that it has for them.
//!
//! A node has the directory and the name by which it was looked up last; its path is made of these. A descriptor for each
//! would follow a file whose name changes, but the kernel remembers as many nodes as it has memory for.
//!
//! Invariants:
//! - a file has one number as long as the kernel knows it, by whichever of its names;
//! - [`MirrorNodes::at`] acts on a path that was a node's at some time of the call: if a rename by way of the mirror
//!   came between, it acts on the new path.
//!
//! Left out: names that programs change past the mirror. The kernel looks up every name of a path again, and so finds the
//! new ones; but a current or open directory is where its path leads.

use std::collections::HashMap;
use std::ffi::{OsStr, OsString};
use std::fs::{File, FileType, Metadata};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use fuser::INodeNo;
use nix::errno::Errno;

/// The step to the next number, if a file of another file system has one (2^64 divided by the golden ratio).
const NUMBER_STEP: u64 = 0x9e37_79b9_7f4a_7c15;

/// The nodes of a mirror.
#[derive(Debug)]
pub struct MirrorNodes {
    root: PathBuf,
    table: Mutex<NodeTable>,
    /// Notified when the table has the names of a rename.
    renamed: Condvar,
}

/// A name in a directory.
#[derive(Clone, Copy, Debug)]
pub struct MirrorName<'a> {
    /// The directory.
    pub parent: INodeNo,
    /// The name.
    pub name: &'a OsStr,
}

impl MirrorName<'_> {
    fn key(self) -> (u64, OsString) {
        (self.parent.0, self.name.to_owned())
    }
}

#[derive(Debug, Default)]
struct NodeTable {
    nodes: HashMap<u64, MirrorNode>,
    /// The numbers of the nodes that have these names.
    named: HashMap<(u64, OsString), u64>,
    /// The numbers of files, by device and inode.
    numbers: HashMap<(u64, u64), u64>,
    /// The nodes that renames are moving.
    moving: Vec<u64>,
    /// The renames and removals so far.
    changes: u64,
    /// The device and the inode number of the root.
    root: (u64, u64),
}

#[derive(Debug, Default)]
struct MirrorNode {
    /// The device and the inode.
    file: (u64, u64),
    /// The directory and the name of the last look-up. Directory 0: that name is gone.
    parent: u64,
    name: OsString,
    /// A rename has given its name to another file.
    is_replaced: bool,
    /// Its type, as the kernel knows it.
    kind: Option<FileType>,
    /// The change that gave or took it a name last, among those of the table.
    changed: u64,
    /// The look-ups that the kernel has not forgotten.
    lookups: u64,
    /// Open files of the node: they are the file, whatever has its name.
    open: Vec<Arc<File>>,
}

impl NodeTable {
    /// The number of a file: the one that the kernel knows, else that of its inode, as a listing tells it, unless a file of
    /// another file system has it.
    fn number_of(&self, found: &Metadata) -> INodeNo {
        let file = (found.dev(), found.ino());
        if self.root == file {
            return INodeNo::ROOT;
        }
        if let Some(known) = self.numbers.get(&file) {
            return INodeNo(*known);
        }
        let mut number = found.ino();
        while number <= INodeNo::ROOT.0 || self.nodes.contains_key(&number) {
            number = number.wrapping_add(NUMBER_STEP);
        }
        INodeNo(number)
    }

    /// Takes a node's name out of the index, unless another node has it by now.
    fn take_name(&mut self, number: u64) {
        if let Some(node) = self.nodes.get(&number) {
            let key = (node.parent, node.name.clone());
            if self.named.get(&key) == Some(&number) {
                self.named.remove(&key);
            }
        }
    }

    /// A rename gives the name of a node to another file. It keeps its path: who has looked it up may act on either.
    fn replace(&mut self, name: MirrorName<'_>) {
        let number = self.named.remove(&name.key());
        if let Some(node) = number.and_then(|number| self.nodes.get_mut(&number)) {
            node.is_replaced = true;
            node.changed = self.changes;
        }
    }

    /// The node that had a name has it no more.
    fn drop_name(&mut self, name: MirrorName<'_>) {
        let number = self.named.remove(&name.key());
        if let Some(node) = number.and_then(|number| self.nodes.get_mut(&number)) {
            node.parent = 0;
            node.changed = self.changes;
        }
    }

    /// True if a rename is moving a node, or a directory above it.
    fn is_moving(&self, number: INodeNo) -> bool {
        let up = |at: &u64| self.nodes.get(at).map(|node| node.parent);
        let chain = std::iter::successors(Some(number.0), up).take(self.nodes.len() + 1);
        !self.moving.is_empty() && chain.into_iter().any(|at| self.moving.contains(&at))
    }

    fn give_name(&mut self, number: u64, name: MirrorName<'_>) {
        // The root keeps its own path.
        if number == INodeNo::ROOT.0 {
            return;
        }
        self.take_name(number);
        if let Some(node) = self.nodes.get_mut(&number) {
            node.parent = name.parent.0;
            node.is_replaced = false;
            name.name.clone_into(&mut node.name);
            self.named.insert(name.key(), number);
        }
    }

    fn path_of(&self, root: &Path, number: INodeNo) -> io::Result<PathBuf> {
        let mut names = Vec::new();
        let mut at = number.0;
        while at != INodeNo::ROOT.0 {
            let node = self.nodes.get(&at).ok_or(Errno::ESTALE)?;
            // A directory that another program moved into one of its own: the names are of different times.
            if names.len() > self.nodes.len() {
                return Err(Errno::ESTALE.into());
            }
            names.push(&node.name);
            at = node.parent;
        }
        let mut path = root.to_owned();
        path.extend(names.into_iter().rev());
        Ok(path)
    }
}

impl MirrorNodes {
    /// Creates the table of the directory `root`.
    pub fn new(root: &Path) -> io::Result<MirrorNodes> {
        let found = root.metadata()?;
        let table = NodeTable {
            root: (found.dev(), found.ino()),
            named: HashMap::new(),
            numbers: HashMap::new(),
            moving: Vec::new(),
            changes: 0,
            nodes: HashMap::from([(INodeNo::ROOT.0, MirrorNode::default())]),
        };
        Ok(MirrorNodes {
            root: root.to_owned(),
            table: Mutex::new(table),
            renamed: Condvar::new(),
        })
    }

    fn table(&self) -> MutexGuard<'_, NodeTable> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The path of a node. ESTALE: it is unknown.
    pub fn path_of(&self, number: INodeNo) -> io::Result<PathBuf> {
        self.table().path_of(&self.root, number)
    }

    /// Calls `act` with the path of a node, and once more if a rename has given it another one meanwhile.
    pub fn at<T>(&self, number: INodeNo, act: impl Fn(&Path) -> io::Result<T>) -> io::Result<T> {
        let path = self.path_of(number)?;
        let missing = match act(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => error,
            done => return done,
        };
        let is_moving = |table: &mut NodeTable| table.is_moving(number);
        let table = self.renamed.wait_while(self.table(), is_moving);
        let table = table.unwrap_or_else(PoisonError::into_inner);
        let now = table.path_of(&self.root, number)?;
        drop(table);
        if now == path {
            return Err(missing);
        }
        act(&now)
    }

    /// The same, of a call that concerns the node itself. ESTALE: its name is gone; the kernel looks it up again, and finds
    /// out by whose doing.
    pub fn at_node<T>(
        &self,
        number: INodeNo,
        act: impl Fn(&Path) -> io::Result<T>,
    ) -> io::Result<T> {
        self.at(number, act).map_err(|error| match error.kind() {
            io::ErrorKind::NotFound => Errno::ESTALE.into(),
            _ => error,
        })
    }

    /// Calls `act` with the path of a name.
    pub fn at_name<T>(
        &self,
        name: MirrorName<'_>,
        act: impl Fn(&Path) -> io::Result<T>,
    ) -> io::Result<T> {
        self.at(name.parent, |dir| act(&dir.join(name.name)))
    }

    /// Looks a name up by `find`. The kernel knows its node from now on.
    pub fn look_up(
        &self,
        name: MirrorName<'_>,
        find: impl Fn(&Path) -> io::Result<Metadata>,
    ) -> io::Result<(INodeNo, Metadata)> {
        loop {
            let before = self.table().changes;
            let found = self.at_name(name, &find)?;
            let table = self.table();
            // Else a rename may have taken the name from what was found.
            let known = table.nodes.get(&table.number_of(&found).0);
            if known.is_none_or(|node| node.changed <= before) {
                return Ok((Self::note(table, name, &found), found));
            }
        }
    }

    /// Notes that the kernel knows the node of a name from now on.
    pub fn note_look_up(&self, name: MirrorName<'_>, found: &Metadata) -> INodeNo {
        Self::note(self.table(), name, found)
    }

    fn note(
        mut table: MutexGuard<'_, NodeTable>,
        name: MirrorName<'_>,
        found: &Metadata,
    ) -> INodeNo {
        let number = table.number_of(found);
        let file = (found.dev(), found.ino());
        let node = table.nodes.entry(number.0).or_default();
        node.lookups += 1;
        node.file = file;
        node.kind = Some(found.file_type());
        table.numbers.insert(file, number.0);
        table.give_name(number.0, name);
        number
    }

    /// Checks that what has a node's path is of its type. ESTALE: it is not. Another file than the one that was looked up does as
    /// well: the look-up might have come later.
    pub fn check_kind(&self, number: INodeNo, found: &Metadata) -> io::Result<()> {
        let table = self.table();
        let known = table.nodes.get(&number.0).and_then(|node| node.kind);
        match known.is_none_or(|kind| kind == found.file_type()) {
            true => Ok(()),
            false => Err(Errno::ESTALE.into()),
        }
    }

    /// True if the path of a node is not its own any more.
    pub fn is_replaced(&self, number: INodeNo) -> bool {
        let table = self.table();
        let node = table.nodes.get(&number.0);
        node.is_some_and(|node| node.is_replaced || node.parent == 0 && number != INodeNo::ROOT)
    }

    /// Forgets look-ups, and the node with the last of them.
    pub fn forget(&self, number: INodeNo, lookups: u64) {
        let mut table = self.table();
        let Some(node) = table.nodes.get_mut(&number.0) else {
            return;
        };
        node.lookups = node.lookups.saturating_sub(lookups);
        if node.lookups == 0 && number != INodeNo::ROOT {
            table.take_name(number.0);
            if let Some(node) = table.nodes.remove(&number.0) {
                table.numbers.remove(&node.file);
            }
        }
    }

    /// Calls `rename` with the two paths, and gives the nodes their new names. `is_exchange`: they change places. Copying a
    /// file of the PFS into the instance, a rename may take long: meanwhile only calls that do not find what it moves wait.
    pub fn rename(
        &self,
        old: MirrorName<'_>,
        new: MirrorName<'_>,
        is_exchange: bool,
        rename: impl Fn(&Path, &Path) -> io::Result<()>,
    ) -> io::Result<()> {
        let paths = |table: &NodeTable| {
            let path = |at: MirrorName<'_>| {
                Ok::<_, io::Error>(table.path_of(&self.root, at.parent)?.join(at.name))
            };
            Ok::<_, io::Error>((path(old)?, path(new)?))
        };
        let (moved, (from, to)) = {
            let mut table = self.table();
            let paths = paths(&table)?;
            let moved = [Some(old), is_exchange.then_some(new)].map(|name| {
                let number = name.and_then(|name| table.named.get(&name.key()));
                number.copied()
            });
            table.moving.extend(moved.iter().flatten());
            (moved, paths)
        };
        let mut renamed = rename(&from, &to);
        if matches!(&renamed, Err(error) if error.kind() == io::ErrorKind::NotFound) {
            // Another rename may have moved a directory above.
            let is_moving =
                |table: &mut NodeTable| table.is_moving(old.parent) || table.is_moving(new.parent);
            let table = self.renamed.wait_while(self.table(), is_moving);
            let now = paths(&table.unwrap_or_else(PoisonError::into_inner));
            match now {
                Ok(now) if now != (from, to) => renamed = rename(&now.0, &now.1),
                _ => {}
            }
        }
        let mut table = self.table();
        for number in moved.into_iter().flatten() {
            if let Some(at) = table.moving.iter().position(|moving| *moving == number) {
                table.moving.swap_remove(at);
            }
        }
        if renamed.is_ok() {
            table.changes += 1;
            let [first, second] = moved;
            // A hard link to the same file keeps both names.
            if first.is_some() || !is_exchange {
                table.replace(new);
            }
            for (number, name) in [(first, new), (second, old)] {
                let Some(number) = number else {
                    continue;
                };
                table.give_name(number, name);
                let changed = table.changes;
                if let Some(node) = table.nodes.get_mut(&number) {
                    node.changed = changed;
                }
            }
        }
        drop(table);
        self.renamed.notify_all();
        renamed
    }

    /// Calls `remove` with the path of a name, which its node has no more then.
    pub fn remove(
        &self,
        name: MirrorName<'_>,
        remove: impl Fn(&Path) -> io::Result<()>,
    ) -> io::Result<()> {
        let before = self.table().named.get(&name.key()).copied();
        self.at_name(name, remove)?;
        let mut table = self.table();
        table.changes += 1;
        // Another file may have got the name meanwhile.
        if table.named.get(&name.key()).copied() == before {
            table.drop_name(name);
        }
        Ok(())
    }

    /// Notes an open file of a node.
    pub fn note_open(&self, number: INodeNo, file: &Arc<File>) {
        if let Some(node) = self.table().nodes.get_mut(&number.0) {
            node.open.push(Arc::clone(file));
        }
    }

    /// Forgets an open file of a node.
    pub fn note_closed(&self, number: INodeNo, file: &Arc<File>) {
        if let Some(node) = self.table().nodes.get_mut(&number.0) {
            node.open.retain(|open| !Arc::ptr_eq(open, file));
        }
    }

    /// An open file of a node.
    pub fn find_open(&self, number: INodeNo) -> Option<Arc<File>> {
        let table = self.table();
        table.nodes.get(&number.0)?.open.last().cloned()
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn look_up(nodes: &MirrorNodes, parent: INodeNo, name: &str) -> INodeNo {
        let name = MirrorName {
            parent,
            name: OsStr::new(name),
        };
        let found = nodes.at_name(name, |path| fs::symlink_metadata(path));
        nodes.note_look_up(name, &found.unwrap())
    }

    fn rename(nodes: &MirrorNodes, old: (INodeNo, &str), new: (INodeNo, &str)) {
        let name = |(parent, name)| MirrorName {
            parent,
            name: OsStr::new(name),
        };
        let rename = |old: &Path, new: &Path| fs::rename(old, new);
        nodes.rename(name(old), name(new), false, rename).unwrap();
    }

    #[test]
    fn paths_follow_renames_of_what_is_above() {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir_all(dir.path().join("a/b")).unwrap();
        fs::write(dir.path().join("a/b/f"), "").unwrap();
        let nodes = MirrorNodes::new(dir.path()).unwrap();
        let root = INodeNo::ROOT;
        let a = look_up(&nodes, root, "a");
        let b = look_up(&nodes, a, "b");
        let f = look_up(&nodes, b, "f");
        rename(&nodes, (root, "a"), (root, "c"));
        assert_eq!(nodes.path_of(f).unwrap(), dir.path().join("c/b/f"));
        rename(&nodes, (a, "b"), (root, "b"));
        assert_eq!(nodes.path_of(f).unwrap(), dir.path().join("b/f"));
        assert_eq!(nodes.path_of(b).unwrap(), dir.path().join("b"));
        // A call that was under way finds the new path.
        let mut calls = 0;
        let calls = std::cell::RefCell::new(&mut calls);
        let found = nodes.at(f, |path| {
            **calls.borrow_mut() += 1;
            if **calls.borrow() == 1 {
                rename(&nodes, (b, "f"), (a, "g"));
            }
            fs::symlink_metadata(path)
        });
        assert!(found.is_ok());
        assert_eq!(**calls.borrow(), 2);
    }

    #[test]
    fn a_look_up_that_a_rename_overtakes_does_not_give_the_old_name_back() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("a"), "").unwrap();
        fs::write(dir.path().join("other"), "").unwrap();
        let nodes = MirrorNodes::new(dir.path()).unwrap();
        let root = INodeNo::ROOT;
        let file = look_up(&nodes, root, "a");
        look_up(&nodes, root, "other");
        let a = MirrorName {
            parent: root,
            name: OsStr::new("a"),
        };
        let calls = std::cell::Cell::new(0);
        let found = nodes.look_up(a, |path| {
            calls.set(calls.get() + 1);
            let found = fs::symlink_metadata(path);
            // The second one does not concern what was found, and is no reason to look again.
            match calls.get() {
                1 => rename(&nodes, (root, "a"), (root, "b")),
                _ => rename(&nodes, (root, "other"), (root, "more")),
            }
            found
        });
        assert!(found.is_err());
        assert_eq!(
            (calls.get(), nodes.path_of(file).unwrap()),
            (2, dir.path().join("b"))
        );
    }

    #[test]
    fn a_name_that_is_another_files_is_not_taken_from_it() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("one"), "").unwrap();
        fs::write(dir.path().join("two"), "").unwrap();
        let nodes = MirrorNodes::new(dir.path()).unwrap();
        let root = INodeNo::ROOT;
        let (one, two) = (look_up(&nodes, root, "one"), look_up(&nodes, root, "two"));
        assert_ne!(one, two);
        rename(&nodes, (root, "one"), (root, "two"));
        nodes.forget(two, 1);
        rename(&nodes, (root, "two"), (root, "three"));
        assert_eq!(nodes.path_of(one).unwrap(), dir.path().join("three"));
        // Another name of the same file leads to the same number.
        fs::hard_link(dir.path().join("three"), dir.path().join("link")).unwrap();
        assert_eq!(look_up(&nodes, root, "link"), one);
        nodes.forget(one, 1);
        assert_eq!(nodes.path_of(one).unwrap(), dir.path().join("link"));
        nodes.forget(one, 1);
        assert!(nodes.path_of(one).is_err());
        nodes.forget(root, 1);
        assert_eq!(nodes.path_of(root).unwrap(), dir.path());
    }

    #[test]
    fn files_of_two_file_systems_have_different_numbers() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("one"), "").unwrap();
        let nodes = MirrorNodes::new(dir.path()).unwrap();
        let one = look_up(&nodes, INodeNo::ROOT, "one");
        let found = fs::symlink_metadata(dir.path().join("one")).unwrap();
        assert_eq!((one.0, nodes.table().number_of(&found)), (found.ino(), one));
        // As if that was a file of another one.
        let mut table = nodes.table();
        let file = std::mem::take(&mut table.numbers);
        assert_eq!(file.len(), 1);
        assert_ne!(table.number_of(&found), one);
    }
}
