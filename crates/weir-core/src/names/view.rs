//! The reader: names and attributes straight from shared memory.
//!
//! Nothing here allocates, waits or calls the kernel. A name costs one bucket, its
//! entries (1.5 on the average) and a counter; attributes cost one record.
//!
//! Invariant: a view only loads, and does not hand out its tables: clients map them for reading, and
//! `weir_store::readonly` makes views of such memory.
//!
//! Left out: listing a directory (its order is private to the writer, see [`super::Shard::readdir`])
//! and walking whole paths (links and the root of it are the caller's).

use super::dentry::{copy_bytes, find, stripe, Dentry};
use super::hash::EntryKey;
use super::layout::Tables;
use super::seq;
use super::{Attr, FileType, InodeLife, NAME_MAX, SYMLINK_MAX};
use crate::elevated;
use crate::types::Ino;
use std::sync::atomic::Ordering::{Acquire, Relaxed};

/// The reasons for which the tables give no answer, not even "no".
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum ViewError {
    /// A change of the writer took too long: ask the server.
    #[error("the tables were being changed")]
    Unsettled,
    /// A rename between servers may be about to take the name away: ask the server, which knows
    /// when that is settled.
    #[error("the name is being renamed")]
    Renaming,
    /// The path is longer than the caller's buffer (ERANGE, ENAMETOOLONG).
    #[error("the path does not fit")]
    BufferTooSmall,
}

/// A reader of the tables. Copy it freely.
#[derive(Clone, Copy)]
pub struct NamesView<'a> {
    tables: Tables<'a>,
}

impl<'a> NamesView<'a> {
    /// A reader of checked tables.
    pub fn new(tables: Tables<'a>) -> Self {
        NamesView { tables }
    }

    /// The root directory.
    pub fn root(&self) -> Ino {
        self.tables.root()
    }

    /// Returns the inode that `name` names in the directory `parent`. Also `None` if `parent` is no
    /// directory, is gone, or if `name` is `.` or `..`, which are not entries.
    #[inline]
    pub fn lookup(&self, parent: Ino, name: &[u8]) -> Result<Option<(Ino, FileType)>, ViewError> {
        let Some(key) = EntryKey::for_lookup(parent, name) else {
            return Ok(None);
        };
        let found = seq::read(stripe(&self.tables, key.hash), || find(&self.tables, &key))?;
        match found {
            Some(found) if found.is_renaming => Err(ViewError::Renaming),
            found => Ok(found.map(|found| (found.child, found.kind))),
        }
    }

    /// Returns the attributes of `ino`, all of one moment; `None` if it is gone.
    #[inline]
    pub fn attr(&self, ino: Ino) -> Result<Option<Attr>, ViewError> {
        match self.tables.record(ino) {
            Some(record) => record.attr(ino),
            None => Ok(None),
        }
    }

    /// Returns the part of the attributes of `ino` that opening and closing need; `None` if it is gone.
    #[inline]
    pub fn life(&self, ino: Ino) -> Result<Option<InodeLife>, ViewError> {
        match self.tables.record(ino) {
            Some(record) => record.life(ino),
            None => Ok(None),
        }
    }

    /// Returns [`Attr::index_generation`] alone, by one load: the value differs from an earlier one
    /// if the extents of the file changed or the file is gone. 0 for a number that never was an
    /// inode.
    #[inline]
    pub fn index_generation(&self, ino: Ino) -> u64 {
        match self.tables.record(ino) {
            Some(record) => record.index_generation.load(Acquire),
            None => 0,
        }
    }

    /// Returns [`Attr::mapped`] of a file that is open, by one load; false if it is gone.
    #[inline]
    pub fn is_mapped(&self, ino: Ino) -> bool {
        let record = self.tables.record(ino);
        record.is_some_and(|record| record.is_mapped(ino))
    }

    /// Copies the target of the symbolic link `ino`; returns its length. `None` if it is gone, is
    /// no link, or `out` is too small ([`SYMLINK_MAX`] always suffices).
    pub fn symlink_target(&self, ino: Ino, out: &mut [u8]) -> Result<Option<usize>, ViewError> {
        let Some(record) = self.tables.record(ino) else {
            return Ok(None);
        };
        seq::read(&record.seq, || {
            if !record.holds(ino) || record.file_type() != Some(FileType::Symlink) {
                return None;
            }
            let len = usize::try_from(record.size.load(Relaxed)).ok()?;
            let at = record.aux.load(Relaxed);
            let target = super::arena::block(self.tables.arena, at)?;
            if len > SYMLINK_MAX {
                return None;
            }
            copy_bytes(target, out.get_mut(..len)?)?;
            Some(len)
        })
    }

    /// Returns the directory that `ino` is in and its name there, both of one moment. For a file of
    /// several names, one of them. `None` for the root, for an inode that is gone or was removed,
    /// and for a file whose known name was removed while others remain.
    pub fn parent_and_name(
        &self,
        ino: Ino,
        out: &mut [u8; NAME_MAX],
    ) -> Result<Option<(Ino, usize)>, ViewError> {
        let Some(record) = self.tables.record(ino) else {
            return Ok(None);
        };
        // A rename or removal holds the record's counter odd before it touches the entry.
        seq::read(&record.seq, || {
            if !record.holds(ino) {
                return None;
            }
            let entry = Dentry::at(self.tables.arena, record.entry.load(Relaxed))?;
            let parent = Ino(record.parent.load(Relaxed));
            (entry.child() == ino && entry.parent() == parent)
                .then(|| Some((parent, entry.name(out)?)))?
        })
    }

    /// Writes the path of `ino` from its root, `/` for a root itself, at the end of `out`; returns that
    /// root as well, which is the instance's or that of an elevated tree. Safe against renames above:
    /// the path was one of `ino` at one moment. `None` as in [`NamesView::parent_and_name`].
    pub fn path_of<'b>(
        &self,
        ino: Ino,
        out: &'b mut [u8],
    ) -> Result<Option<(Ino, &'b [u8])>, ViewError> {
        let moves = &self.tables.header.moves.0;
        let found = seq::read(moves, || self.write_path(ino, out))??;
        Ok(found.map(|(root, start)| (root, &out[start..])))
    }

    /// Returns the root, and the position in `out` at which the path begins.
    fn write_path(&self, ino: Ino, out: &mut [u8]) -> Result<Option<(Ino, usize)>, ViewError> {
        let (mut here, mut start) = (ino, out.len());
        let mut name = [0; NAME_MAX];
        // Each step writes at least two bytes, so this ends on any tables.
        while here != self.root() {
            let Some((parent, len)) = self.parent_and_name(here, &mut name)? else {
                return Ok(None);
            };
            if parent == elevated::PARENT && self.is_own_parent(parent)? {
                break;
            }
            let Some(begin) = start.checked_sub(len + 1) else {
                return Err(ViewError::BufferTooSmall);
            };
            out[begin] = b'/';
            out[begin + 1..start].copy_from_slice(&name[..len]);
            (here, start) = (parent, begin);
        }
        if start == out.len() {
            start = start.checked_sub(1).ok_or(ViewError::BufferTooSmall)?;
            out[start] = b'/';
        }
        Ok(Some((here, start)))
    }

    /// Returns true if `dir` is its own parent, as that of elevated trees is. An instance without such
    /// trees uses its number for another inode.
    fn is_own_parent(&self, dir: Ino) -> Result<bool, ViewError> {
        Ok(self.attr(dir)?.is_some_and(|attr| attr.parent == dir))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::names::memory::Memory;
    use crate::names::{Owner, Shard};
    use crate::types::Rank;

    #[test]
    fn a_name_that_a_rename_may_take_away_is_not_believed() {
        let memory = Memory::new(16);
        let owner = Owner { uid: 1, gid: 2 };
        let mut shard = Shard::new(memory.format(Rank(0)), 0o755, owner, 1).unwrap();
        let root = shard.root();
        let mut make = |name: &[u8]| shard.create(root, name, 0o644, owner, 1).unwrap();
        let (a, b) = (make(b"a"), make(b"b"));
        let view = shard.view();
        let found = |ino| Ok(Some((ino, FileType::File)));
        shard.set_renaming(root, b"a", true);
        shard.set_renaming(root, b"none", true);
        assert_eq!(view.lookup(root, b"a"), Err(ViewError::Renaming));
        assert_eq!(view.lookup(root, b"b"), found(b));
        assert_eq!(
            shard.lookup(root, b"a"),
            Ok((a, FileType::File)),
            "the writer sees it"
        );
        shard.set_renaming(root, b"a", false);
        assert_eq!(view.lookup(root, b"a"), found(a));
        // The second step of an exchange settles the name.
        shard.set_renaming(root, b"a", true);
        shard
            .replace_entry(root, b"a", b, FileType::File, 2)
            .unwrap();
        assert_eq!(view.lookup(root, b"a"), found(b));
    }
}
