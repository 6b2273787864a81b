//! The expected namespace: plain maps, with each operation as one step.
//!
//! An operation with an unknown result (its caller got EIO, or was killed) may have been done or
//! not. The number of an inode that it made is learned when a later operation sees it.

use std::collections::BTreeMap;

use weir_core::names::FileType;
use weir_core::types::Ino;

/// An inode: its number, or the operation that made it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Id {
    /// A known inode number.
    Known(Ino),
    /// The operation that made the inode, while its number is unknown.
    Made(usize),
}

/// The inode and type that a name refers to.
pub type Named = (Id, FileType);

/// A name in a directory.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct DirName {
    /// The directory.
    pub dir: Ino,
    /// The name.
    pub name: u8,
}

/// An operation on names.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum NameOp {
    /// Makes a file or directory.
    Make {
        /// The name.
        at: DirName,
        /// The type.
        kind: FileType,
        /// Refuse if the name is taken.
        exclusive: bool,
    },
    /// Gives a file another name.
    Link {
        /// The file.
        ino: Ino,
        /// The name.
        at: DirName,
    },
    /// Takes a name from a file.
    Unlink(DirName),
    /// Removes a directory.
    Rmdir(DirName),
    /// renameat2(2) with its flags: 0, RENAME_NOREPLACE, RENAME_EXCHANGE.
    Rename {
        /// The old name.
        from: DirName,
        /// The new one.
        to: DirName,
        /// See above.
        flags: u32,
    },
    /// Looks a name up.
    Find(DirName),
}

impl NameOp {
    /// Returns true if the operation may depend on a name.
    fn looks_at(&self, name: &DirName) -> bool {
        match self {
            NameOp::Make { at, .. } | NameOp::Find(at) | NameOp::Unlink(at) => at == name,
            // These depend on all names: a directory must be empty, a file must have a name.
            NameOp::Rmdir(_) | NameOp::Rename { .. } | NameOp::Link { .. } => true,
        }
    }
}

/// The result of an operation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Outcome {
    /// It was done; the inode that was made or found, if any.
    Done(Option<(Ino, FileType)>),
    /// The namespace refused it.
    Refused,
    /// The result is unknown.
    Unknown,
}

/// A directory.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
struct Dir {
    parent: Id,
    entries: BTreeMap<u8, Named>,
}

/// All directories.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Model {
    root: Ino,
    dirs: BTreeMap<Id, Dir>,
    /// A file's home may learn later that a name was removed.
    loses_calls: bool,
    /// Names left by renames with an unknown result: each disappears at some time, unless it refers
    /// to another inode by then.
    leaving: Vec<(DirName, Named)>,
}

const NOREPLACE: u32 = 1;
const EXCHANGE: u32 = 2;

impl Model {
    /// Creates a model with only the root; `true` if servers may lose contact.
    pub fn new(root: Ino, loses_calls: bool) -> Model {
        let dir = Dir {
            parent: Id::Known(root),
            entries: BTreeMap::new(),
        };
        Model {
            root,
            dirs: BTreeMap::from([(Id::Known(root), dir)]),
            loses_calls,
            leaving: Vec::new(),
        }
    }

    /// The states in which operation `number` can have had `outcome`; none if it cannot.
    pub fn after(&self, number: usize, op: &NameOp, outcome: Outcome) -> Vec<Model> {
        let mut after = Vec::new();
        // Names may disappear before it, in any order. Names that do not matter to it may as well
        // disappear later.
        let mut before = self.clone();
        before
            .leaving
            .retain(|(name, named)| self.get(name) == Some(*named));
        let goes = |at: &usize| op.looks_at(&before.leaving[*at].0);
        let going: Vec<usize> = (0..before.leaving.len()).filter(goes).collect();
        for some in (1..1_u32 << going.len().min(8)).rev() {
            let mut left = before.clone();
            // From the last one on, so that the indices of the others stay valid.
            for (bit, at) in going.iter().enumerate().rev() {
                if some >> bit & 1 == 1 {
                    let (name, _) = left.leaving.remove(*at);
                    left.remove_name(&name);
                }
            }
            after.extend(left.after_at_once(number, op, outcome));
        }
        after.extend(before.after_at_once(number, op, outcome));
        after
    }

    /// The same as [`Model::after`], without disappearing names.
    fn after_at_once(&self, number: usize, op: &NameOp, outcome: Outcome) -> Vec<Model> {
        let mut after = Vec::new();
        let mut next = self.clone();
        match outcome {
            Outcome::Done(seen) => {
                if next.act(number, op, seen) || next.link_again(op) {
                    after.push(next);
                }
            }
            Outcome::Refused => {
                // Only entries that the model knows can prevent it.
                if !next.act(number, op, None) {
                    after.push(self.clone());
                }
            }
            Outcome::Unknown => {
                if next.act(number, op, None) || next.link_again(op) {
                    after.push(next);
                }
                // A rename interrupted between its two steps leaves both names; the old one may
                // disappear later.
                if let NameOp::Rename {
                    from,
                    to,
                    flags: 0 | NOREPLACE,
                } = op
                {
                    let mut both = self.clone();
                    let source = self.get(from);
                    if source.is_some_and(|(_, kind)| kind == FileType::File)
                        && both.act(number, op, None)
                    {
                        if let (Some(dir), Some(source)) =
                            (both.dirs.get_mut(&Id::Known(from.dir)), source)
                        {
                            dir.entries.insert(from.name, source);
                            both.leaving.push((from.clone(), source));
                            let same = self.get(to) == Some(source);
                            if !same {
                                after.push(both);
                            }
                        }
                    }
                }
            }
        }
        after
    }

    fn get(&self, at: &DirName) -> Option<Named> {
        let dir = self.dirs.get(&Id::Known(at.dir))?;
        dir.entries.get(&at.name).copied()
    }

    fn put(&mut self, at: &DirName, what: Named) -> bool {
        let Some(dir) = self.dirs.get_mut(&Id::Known(at.dir)) else {
            return false;
        };
        dir.entries.insert(at.name, what);
        if let Some(moved) = self.dirs.get_mut(&what.0) {
            moved.parent = Id::Known(at.dir);
        }
        true
    }

    fn remove_name(&mut self, at: &DirName) {
        if let Some(dir) = self.dirs.get_mut(&Id::Known(at.dir)) {
            dir.entries.remove(&at.name);
        }
    }

    /// Gives an inode that an operation made the number that was seen.
    fn learn(&mut self, at: &DirName, seen: (Ino, FileType)) -> bool {
        match self.get(at) {
            Some((Id::Known(ino), kind)) => (ino, kind) == seen,
            Some((made, kind)) if kind == seen.1 => {
                let known = Id::Known(seen.0);
                if self.dirs.contains_key(&known) || self.knows(known) {
                    return false;
                }
                if let Some(dir) = self.dirs.remove(&made) {
                    self.dirs.insert(known, dir);
                }
                for dir in self.dirs.values_mut() {
                    if dir.parent == made {
                        dir.parent = known;
                    }
                    for named in dir.entries.values_mut().filter(|named| named.0 == made) {
                        named.0 = known;
                    }
                }
                true
            }
            _ => false,
        }
    }

    fn knows(&self, id: Id) -> bool {
        let mut named = self.dirs.values().flat_map(|dir| dir.entries.values());
        named.any(|named| named.0 == id)
    }

    /// Applies an operation; returns false if it would be refused or have another result. An
    /// unknown number matches any.
    fn act(&mut self, number: usize, op: &NameOp, seen: Option<(Ino, FileType)>) -> bool {
        match op {
            NameOp::Make {
                at,
                kind,
                exclusive,
            } => {
                if let Some(found) = self.get(at) {
                    // An existing file is as good as a new one.
                    return !exclusive
                        && *kind == FileType::File
                        && seen.is_none_or(|seen| seen.1 == found.1 && self.learn(at, seen));
                }
                let id = seen.map_or(Id::Made(number), |(ino, _)| Id::Known(ino));
                if self.knows(id) || seen.is_some_and(|(_, seen)| seen != *kind) {
                    return false;
                }
                if !self.put(at, (id, *kind)) {
                    return false;
                }
                if *kind == FileType::Dir {
                    let dir = Dir {
                        parent: Id::Known(at.dir),
                        entries: BTreeMap::new(),
                    };
                    self.dirs.insert(id, dir);
                }
                true
            }
            NameOp::Link { ino, at } => {
                let id = Id::Known(*ino);
                // Only a process that has a file open knows if a file without a name still exists.
                self.get(at).is_none() && self.knows(id) && self.put(at, (id, FileType::File))
            }
            NameOp::Unlink(at) => match self.get(at) {
                Some((_, FileType::Dir)) | None => false,
                Some(_) => {
                    self.remove_name(at);
                    true
                }
            },
            NameOp::Rmdir(at) => match self.get(at) {
                Some((id, FileType::Dir)) if self.is_empty(id) => {
                    self.dirs.remove(&id);
                    self.remove_name(at);
                    true
                }
                _ => false,
            },
            NameOp::Rename { from, to, flags } => self.rename(from, to, *flags),
            NameOp::Find(at) => match (self.get(at), seen) {
                (Some(_), Some(seen)) => self.learn(at, seen),
                (found, seen) => found.is_none() && seen.is_none(),
            },
        }
    }

    /// A file without names gets one. Its home may count a removed link, so the call may succeed or
    /// fail. In the end the file has as many names as links, which is checked.
    fn link_again(&mut self, op: &NameOp) -> bool {
        let NameOp::Link { ino, at } = op else {
            return false;
        };
        let named = (Id::Known(*ino), FileType::File);
        self.loses_calls && self.get(at).is_none() && self.put(at, named)
    }

    fn is_empty(&self, dir: Id) -> bool {
        self.dirs
            .get(&dir)
            .is_some_and(|dir| dir.entries.is_empty())
    }

    fn rename(&mut self, from: &DirName, to: &DirName, flags: u32) -> bool {
        let Some(source) = self.get(from) else {
            return false;
        };
        if !self.dirs.contains_key(&Id::Known(to.dir)) {
            return false;
        }
        let target = self.get(to);
        match target {
            Some(_) if flags == NOREPLACE => return false,
            None if flags == EXCHANGE => return false,
            _ => {}
        }
        let is_dir = |named: Named| named.1 == FileType::Dir;
        if is_dir(source) && self.is_within(Id::Known(to.dir), source.0) {
            return false;
        }
        if target
            .is_some_and(|target| is_dir(target) && self.is_within(Id::Known(from.dir), target.0))
        {
            return from == to;
        }
        if from == to || target.is_some_and(|target| target.0 == source.0) {
            return true;
        }
        if flags == EXCHANGE {
            let target = target.expect("checked above");
            return self.put(to, source) && self.put(from, target);
        }
        if let Some(target) = target {
            if is_dir(source) != is_dir(target) {
                return false;
            }
            if is_dir(target) {
                if !self.is_empty(target.0) {
                    return false;
                }
                self.dirs.remove(&target.0);
            }
        }
        self.remove_name(from);
        self.put(to, source)
    }

    fn is_within(&self, mut at: Id, ancestor: Id) -> bool {
        let root = Id::Known(self.root);
        loop {
            if at == ancestor {
                return true;
            }
            match self.dirs.get(&at) {
                Some(dir) if at != root => at = dir.parent,
                _ => return false,
            }
        }
    }
}
