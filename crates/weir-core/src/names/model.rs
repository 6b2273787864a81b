//! The reference: a namespace as a plain tree of maps, written to be easy to read. The property
//! tests compare the shard with it.
//!
//! Inode numbers are the shard's: the model is told the number of each new inode.

use super::{EntryName, FileType, NamesError, Owner, RenameMode, SetAttr, NAME_MAX};
use crate::types::Ino;
use std::collections::{BTreeMap, HashMap};

/// The state of an inode.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Node {
    pub(crate) kind: FileType,
    pub(crate) mode: u32,
    pub(crate) owner: Owner,
    pub(crate) nlink: u32,
    pub(crate) size: u64,
    pub(crate) mtime_ns: i64,
    pub(crate) ctime_ns: i64,
    pub(crate) target: Vec<u8>,
    pub(crate) parent: Ino,
    pub(crate) entries: BTreeMap<Vec<u8>, Ino>,
}

impl Node {
    pub(crate) fn new(kind: FileType, mode: u32, owner: Owner, now_ns: i64) -> Self {
        Node {
            kind,
            mode,
            owner,
            nlink: if kind == FileType::Dir { 2 } else { 1 },
            size: 0,
            mtime_ns: now_ns,
            ctime_ns: now_ns,
            target: Vec::new(),
            parent: Ino::NONE,
            entries: BTreeMap::new(),
        }
    }
}

type Done<T> = Result<T, NamesError>;

/// The tree.
pub(crate) struct Model {
    pub(crate) root: Ino,
    pub(crate) nodes: HashMap<Ino, Node>,
}

impl Model {
    pub(crate) fn new(root: Ino, mut node: Node) -> Self {
        node.parent = root;
        Model {
            root,
            nodes: HashMap::from([(root, node)]),
        }
    }

    pub(crate) fn node(&self, ino: Ino) -> Done<&Node> {
        self.nodes.get(&ino).ok_or(NamesError::Stale(ino))
    }

    fn node_mut(&mut self, ino: Ino) -> &mut Node {
        self.nodes.get_mut(&ino).expect("checked before")
    }

    fn dir(&self, ino: Ino) -> Done<&Node> {
        match self.node(ino)? {
            node if node.kind == FileType::Dir => Ok(node),
            _ => Err(NamesError::NotADirectory),
        }
    }

    fn checked(&self, dir: Ino, name: &[u8]) -> Done<&Node> {
        let node = self.dir(dir)?;
        let bad = name.is_empty() || name == b"." || name == b"..";
        if name.len() > NAME_MAX {
            Err(NamesError::NameTooLong)
        } else if bad || name.contains(&b'/') || name.contains(&0) {
            Err(NamesError::InvalidName)
        } else {
            Ok(node)
        }
    }

    fn free(&self, dir: Ino, name: &[u8]) -> Done<()> {
        let node = self.checked(dir, name)?;
        match (node.nlink, node.entries.get(name)) {
            (0, _) => Err(NamesError::NotFound),
            (_, Some(_)) => Err(NamesError::Exists),
            _ => Ok(()),
        }
    }

    fn entry(&self, dir: Ino, name: &[u8]) -> Done<Ino> {
        let node = self.checked(dir, name)?;
        node.entries.get(name).copied().ok_or(NamesError::NotFound)
    }

    pub(crate) fn lookup(&self, dir: Ino, name: &[u8]) -> Done<Ino> {
        let node = self.dir(dir)?;
        node.entries.get(name).copied().ok_or(NamesError::NotFound)
    }

    fn touch(&mut self, dir: Ino, now_ns: i64) {
        let node = self.node_mut(dir);
        (node.mtime_ns, node.ctime_ns) = (now_ns, now_ns);
    }

    /// Makes `node`; the shard called it `ino` if it made it.
    pub(crate) fn make(&mut self, dir: Ino, name: &[u8], mut node: Node, ino: Ino) -> Done<()> {
        self.free(dir, name)?;
        let now_ns = node.mtime_ns;
        let parent = self.node_mut(dir);
        if parent.mode & 0o2000 != 0 {
            node.owner.gid = parent.owner.gid;
            if node.kind == FileType::Dir {
                node.mode |= 0o2000;
            }
        }
        if node.kind == FileType::Dir {
            parent.nlink += 1;
        }
        parent.entries.insert(name.to_vec(), ino);
        self.touch(dir, now_ns);
        node.parent = dir;
        assert_eq!(
            self.nodes.insert(ino, node),
            None,
            "{ino:?} is still in use"
        );
        Ok(())
    }

    pub(crate) fn link(&mut self, ino: Ino, dir: Ino, name: &[u8], now_ns: i64) -> Done<()> {
        if self.node(ino)?.kind == FileType::Dir {
            return Err(NamesError::LinkToDirectory);
        }
        self.free(dir, name)?;
        if self.node(ino)?.nlink == 0 {
            return Err(NamesError::NotFound);
        }
        let node = self.node_mut(ino);
        node.nlink += 1;
        node.ctime_ns = now_ns;
        self.node_mut(dir).entries.insert(name.to_vec(), ino);
        self.touch(dir, now_ns);
        Ok(())
    }

    /// Removes an entry; returns the inode and its links left.
    fn take(&mut self, dir: Ino, name: &[u8], now_ns: i64) -> (Ino, u32) {
        let ino = self.node_mut(dir).entries.remove(name).expect("is there");
        self.touch(dir, now_ns);
        let node = self.node_mut(ino);
        node.ctime_ns = now_ns;
        if node.kind == FileType::Dir {
            node.nlink = 0;
            node.parent = Ino::NONE;
            self.node_mut(dir).nlink -= 1;
        } else {
            node.nlink -= 1;
        }
        (ino, self.nodes[&ino].nlink)
    }

    pub(crate) fn unlink(&mut self, dir: Ino, name: &[u8], now_ns: i64) -> Done<(Ino, u32)> {
        let ino = self.entry(dir, name)?;
        match self.node(ino)?.kind {
            FileType::Dir => Err(NamesError::IsADirectory),
            _ => Ok(self.take(dir, name, now_ns)),
        }
    }

    pub(crate) fn rmdir(&mut self, dir: Ino, name: &[u8], now_ns: i64) -> Done<(Ino, u32)> {
        let node = self.node(self.entry(dir, name)?)?;
        if node.kind != FileType::Dir {
            return Err(NamesError::NotADirectory);
        }
        if !node.entries.is_empty() {
            return Err(NamesError::NotEmpty);
        }
        Ok(self.take(dir, name, now_ns))
    }

    fn is_within(&self, mut ino: Ino, ancestor: Ino) -> bool {
        loop {
            if ino == ancestor {
                return true;
            }
            match self.nodes.get(&ino) {
                Some(node) if ino != self.root => ino = node.parent,
                _ => return false,
            }
        }
    }

    /// The inode that lost its name, with its links left.
    pub(crate) fn rename(
        &mut self,
        from: EntryName<'_>,
        to: EntryName<'_>,
        mode: RenameMode,
        now_ns: i64,
    ) -> Done<Option<(Ino, u32)>> {
        self.checked(from.parent, from.name)?;
        let to_node = self.checked(to.parent, to.name)?;
        let source = self.entry(from.parent, from.name)?;
        if to_node.nlink == 0 {
            return Err(NamesError::NotFound);
        }
        let target = to_node.entries.get(to.name).copied();
        match (target, mode) {
            (Some(_), RenameMode::NoReplace) => return Err(NamesError::Exists),
            (None, RenameMode::Exchange) => return Err(NamesError::NotFound),
            _ => {}
        }
        if self.is_within(to.parent, source) {
            return Err(NamesError::WouldLoop);
        }
        if let Some(target) = target {
            let above = self.is_within(from.parent, target);
            let (a, b) = (&self.nodes[&source], &self.nodes[&target]);
            match mode {
                RenameMode::Exchange if above => return Err(NamesError::WouldLoop),
                _ if above => return Err(NamesError::NotEmpty),
                _ if source == target => return Ok(None),
                RenameMode::Exchange => {
                    self.put(from.parent, to.parent, to.name, source, now_ns);
                    self.put(to.parent, from.parent, from.name, target, now_ns);
                    return Ok(None);
                }
                _ => match (a.kind == FileType::Dir, b.kind == FileType::Dir) {
                    (true, false) => return Err(NamesError::NotADirectory),
                    (false, true) => return Err(NamesError::IsADirectory),
                    (true, true) if !b.entries.is_empty() => return Err(NamesError::NotEmpty),
                    _ => {}
                },
            }
        }
        let replaced = target.map(|_| self.take(to.parent, to.name, now_ns));
        self.node_mut(from.parent).entries.remove(from.name);
        self.touch(from.parent, now_ns);
        self.put(from.parent, to.parent, to.name, source, now_ns);
        Ok(replaced)
    }

    /// Enters `ino`, which comes from the directory `from`.
    fn put(&mut self, from: Ino, to: Ino, name: &[u8], ino: Ino, now_ns: i64) {
        self.node_mut(to).entries.insert(name.to_vec(), ino);
        self.touch(to, now_ns);
        let node = self.node_mut(ino);
        node.ctime_ns = now_ns;
        node.parent = to;
        if node.kind == FileType::Dir {
            self.node_mut(from).nlink -= 1;
            self.node_mut(to).nlink += 1;
        }
    }

    pub(crate) fn release(&mut self, ino: Ino) -> Done<()> {
        if self.node(ino)?.nlink > 0 {
            return Err(NamesError::Busy(ino));
        }
        self.nodes.remove(&ino);
        Ok(())
    }

    pub(crate) fn setattr(&mut self, ino: Ino, set: &SetAttr) -> Done<()> {
        let kind = self.node(ino)?.kind;
        match (set.size, kind) {
            (Some(_), FileType::Dir) => return Err(NamesError::IsADirectory),
            (Some(_), FileType::Symlink | FileType::Fifo | FileType::Socket) => {
                return Err(NamesError::WrongType)
            }
            _ => {}
        }
        let node = self.node_mut(ino);
        node.mode = set.mode.unwrap_or(node.mode);
        node.owner.uid = set.uid.unwrap_or(node.owner.uid);
        node.owner.gid = set.gid.unwrap_or(node.owner.gid);
        node.size = set.size.unwrap_or(node.size);
        node.mtime_ns = set.mtime_ns.unwrap_or(node.mtime_ns);
        node.ctime_ns = set.ctime_ns.unwrap_or(node.ctime_ns);
        Ok(())
    }
}
