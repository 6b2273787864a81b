//! The steps of the operations on the namespace.
//!
//! Each leaves the tables such that a reader can make sense of them: an inode exists before the
//! entry that names it, and after.
//!
//! Left out: the operations themselves ([`super::shard`]).

use super::dentry::{find, FoundEntry};
use super::hash::Key;
use super::inodes::NewInode;
use super::layout::InodeRecord;
use super::order::Order;
use super::policy::{Bits, Policy};
use super::seq::Change;
use super::shard::{Owner, Shard, Unlinked};
use super::{Attr, FileType, NamesError, LINK_MAX};
use crate::types::Ino;
use std::sync::atomic::Ordering::Relaxed;

/// Set-group-id: a file made in such a directory inherits its group.
const SETGID: u32 = 0o2000;

impl<'a> Shard<'a> {
    /// The first step of making something: its inode, which no entry names yet.
    pub(super) fn make_inode(&mut self, new: &NewInode) -> Result<Ino, NamesError> {
        let ino = self.inodes.make(&self.tables, new)?;
        self.live[kind_index(new.kind)] += 1;
        Ok(ino)
    }

    /// Both steps: the inode, then the entry that names it.
    pub(super) fn make(
        &mut self,
        parent: Ino,
        name: &[u8],
        mut new: NewInode,
    ) -> Result<Ino, NamesError> {
        let (dir, key) = self.free_place(parent, name)?;
        let is_dir = new.kind == FileType::Dir;
        if is_dir && dir.nlink.load(Relaxed) >= LINK_MAX {
            return Err(NamesError::TooManyLinks);
        }
        new.inherit(dir);
        let (kind, now_ns) = (new.kind, new.now_ns);
        let ino = self.make_inode(&new)?;
        let record = self.live(ino)?;
        let at = match self.prepare_entry(dir, &key, ino, kind) {
            Ok(at) => at,
            Err(error) => {
                // The caller takes back the new inode's possessions (link target, order).
                self.inodes.drop(&self.tables, record, ino.index());
                self.live[kind_index(kind)] -= 1;
                return Err(error);
            }
        };
        {
            let _change = Change::begin(&record.seq);
            record.parent.store(parent.0, Relaxed);
            record.entry.store(at, Relaxed);
        }
        self.publish_entry(at);
        touch_dir(dir, i32::from(is_dir), now_ns);
        self.touch(ino);
        self.touch(parent);
        self.tell();
        Ok(ino)
    }

    /// Removes the link of `found` from its inode; the entry itself stays.
    pub(super) fn drop_link(
        &mut self,
        found: &FoundEntry,
        now_ns: i64,
    ) -> Result<Unlinked, NamesError> {
        let record = self.live(found.child)?;
        let _change = Change::begin(&record.seq);
        let nlink = match found.kind {
            FileType::Dir => 0,
            _ => record.nlink.load(Relaxed).saturating_sub(1),
        };
        record.nlink.store(nlink, Relaxed);
        record.ctime.store(now_ns, Relaxed);
        Self::forget_entry(record, found.at);
        Ok(Unlinked {
            ino: found.child,
            nlink,
        })
    }

    /// Ends an inode's life, with everything that it owns.
    pub(super) fn drop_inode(&mut self, ino: Ino, record: &InodeRecord) {
        let kind = record.file_type().expect("a live inode has a type");
        let aux = record.aux.load(Relaxed);
        self.linkable.remove(&ino);
        self.inodes.drop(&self.tables, record, ino.index());
        match kind {
            FileType::File | FileType::Fifo | FileType::Socket => {}
            FileType::Dir => self.orders.remove(aux),
            // After the record says it is gone: readers of the target check that.
            FileType::Symlink => self.arena.free(aux),
        }
        self.live[kind_index(kind)] -= 1;
        self.note_gone(ino);
    }

    /// Counts one more inode.
    pub(super) fn count_in(&mut self, kind: FileType) {
        self.live[kind_index(kind)] += 1;
    }

    /// Returns the record of a live inode of this rank, or of a directory that stands in for
    /// another rank's.
    pub(super) fn live(&self, ino: Ino) -> Result<&'a InodeRecord, NamesError> {
        let record = match self.tables.record(ino) {
            Some(record) => record.is(ino).then_some(record),
            None => self.stand_in(ino),
        };
        record.ok_or(NamesError::Stale(ino))
    }

    /// Returns the record of a directory, removed or not.
    pub(super) fn dir(&self, ino: Ino) -> Result<&'a InodeRecord, NamesError> {
        let record = self.live(ino)?;
        match record.file_type() {
            Some(FileType::Dir) => Ok(record),
            _ => Err(NamesError::NotADirectory),
        }
    }

    /// Returns the directory and key of a name, which may be there or not.
    pub(super) fn place<'n>(
        &self,
        parent: Ino,
        name: &'n [u8],
    ) -> Result<(&'a InodeRecord, Key<'n>), NamesError> {
        let dir = self.dir(parent)?;
        Ok((dir, Key::checked(parent, name)?))
    }

    /// Returns the directory and key of a name that can be made.
    pub(super) fn free_place<'n>(
        &self,
        parent: Ino,
        name: &'n [u8],
    ) -> Result<(&'a InodeRecord, Key<'n>), NamesError> {
        let (dir, key) = self.place(parent, name)?;
        if dir.nlink.load(Relaxed) == 0 {
            return Err(NamesError::NotFound);
        }
        match self.find(&key) {
            Ok(_) => Err(NamesError::Exists),
            Err(_) => Ok((dir, key)),
        }
    }

    pub(super) fn find(&self, key: &Key<'_>) -> Result<FoundEntry, NamesError> {
        find(&self.tables, key).ok_or(NamesError::NotFound)
    }

    pub(super) fn order(&self, dir: &InodeRecord) -> &Order {
        self.orders.get(dir.aux.load(Relaxed))
    }

    pub(super) fn order_mut(&mut self, dir: &InodeRecord) -> &mut Order {
        self.orders.get_mut(dir.aux.load(Relaxed))
    }

    /// Publishes the counts.
    pub(super) fn tell(&self) {
        let tally = &self.tables.header.tally.0;
        let [files, dirs, symlinks] = self.live;
        for (word, value) in [
            (&tally.files, files),
            (&tally.dirs, dirs),
            (&tally.symlinks, symlinks),
            (&tally.entries, self.entries),
            (&tally.inode_high, u64::from(self.inodes.high())),
            (&tally.arena_high_words, self.arena.high_words()),
        ] {
            word.store(value, Relaxed);
        }
    }
}

impl NewInode {
    pub(super) fn of(kind: FileType, mode: u32, owner: Owner, now_ns: i64) -> Self {
        NewInode {
            kind,
            mode,
            uid: owner.uid,
            gid: owner.gid,
            nlink: if kind == FileType::Dir { 2 } else { 1 },
            size: 0,
            aux: 0,
            policy: Policy::default(),
            now_ns,
        }
    }

    /// As [`NewInode::inherit`], of a file in a directory of which this server may have no record.
    pub(super) fn inherit_from(&mut self, dir: &Attr) {
        self.policy = dir.policy;
        if dir.mode & SETGID != 0 {
            self.gid = dir.gid;
        }
    }

    /// Inherits the directory's policy, and the group of a set-group-id directory, as Linux does.
    pub(super) fn inherit(&mut self, dir: &InodeRecord) {
        self.policy = Bits::of(dir.mode.load(Relaxed)).policy;
        if dir.mode.load(Relaxed) & SETGID != 0 {
            self.gid = dir.gid.load(Relaxed);
            if self.kind == FileType::Dir {
                self.mode |= SETGID;
            }
        }
    }
}

fn kind_index(kind: FileType) -> usize {
    match kind {
        FileType::File => 0,
        FileType::Dir => 1,
        // They count as names that are no files of weir's.
        FileType::Symlink | FileType::Fifo | FileType::Socket => 2,
    }
}

/// A directory's entries changed, and its child directories by `children`.
pub(super) fn touch_dir(dir: &InodeRecord, children: i32, now_ns: i64) {
    let _change = Change::begin(&dir.seq);
    dir.mtime.store(now_ns, Relaxed);
    dir.ctime.store(now_ns, Relaxed);
    let nlink = dir.nlink.load(Relaxed);
    dir.nlink
        .store(nlink.saturating_add_signed(children), Relaxed);
}
