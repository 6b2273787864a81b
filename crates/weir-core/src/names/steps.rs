//! The steps of the operations on the namespace.
//!
//! Each leaves the tables such that a reader can make sense of them: an inode exists before the
//! entry that names it, and after.
//!
//! Left out: the operations themselves ([`super::shard`]).

use super::dentry::{find, FoundEntry};
use super::hash::EntryKey;
use super::inodes::NewInode;
use super::layout::InodeRecord;
use super::order::EntryOrder;
use super::policy::{Policy, SharingBits};
use super::seq::SeqWrite;
use super::shard::{Owner, Shard, UnlinkOutcome};
use super::{Attr, FileType, NamesError, LINK_MAX};
use crate::types::Ino;
use std::sync::atomic::Ordering::Relaxed;

/// Set-group-id: a file made in such a directory inherits its group.
const SETGID: u32 = 0o2000;

impl<'a> Shard<'a> {
    /// Makes an inode that no entry names yet: the first step of making a file.
    pub(super) fn make_inode(&mut self, new: &NewInode) -> Result<Ino, NamesError> {
        let ino = self.inodes.make(&self.tables, new)?;
        self.live[kind_index(new.kind)] += 1;
        Ok(ino)
    }

    /// Makes an inode, then the entry that names it.
    pub(super) fn make(
        &mut self,
        parent: Ino,
        name: &[u8],
        mut new: NewInode,
    ) -> Result<Ino, NamesError> {
        let (dir, key) = self.free_entry_key(parent, name)?;
        let is_dir = new.kind == FileType::Dir;
        if is_dir && dir.nlink.load(Relaxed) >= LINK_MAX {
            return Err(NamesError::TooManyLinks);
        }
        new.inherit_from_record(dir);
        let (kind, now_ns) = (new.kind, new.now_ns);
        let ino = self.make_inode(&new)?;
        let record = self.live(ino)?;
        let at = match self.prepare_entry(dir, &key, ino, kind) {
            Ok(at) => at,
            Err(error) => {
                // The caller frees what the new inode owns (link target, order).
                self.inodes.free_slot(&self.tables, record, ino.index());
                self.live[kind_index(kind)] -= 1;
                return Err(error);
            }
        };
        {
            let _change = SeqWrite::begin(&record.seq);
            record.parent.store(parent.0, Relaxed);
            record.entry.store(at, Relaxed);
        }
        self.publish_entry(at);
        touch_dir(dir, i32::from(is_dir), now_ns);
        self.note_inode(ino);
        self.note_inode(parent);
        self.publish_counters();
        Ok(ino)
    }

    /// Removes the link of `found` from its inode; the entry itself stays.
    pub(super) fn drop_link(
        &mut self,
        found: &FoundEntry,
        now_ns: i64,
    ) -> Result<UnlinkOutcome, NamesError> {
        let record = self.live(found.child)?;
        let _change = SeqWrite::begin(&record.seq);
        let nlink = match found.kind {
            FileType::Dir => 0,
            _ => record.nlink.load(Relaxed).saturating_sub(1),
        };
        record.nlink.store(nlink, Relaxed);
        record.ctime.store(now_ns, Relaxed);
        Self::forget_entry(record, found.at);
        Ok(UnlinkOutcome {
            ino: found.child,
            nlink,
        })
    }

    /// Ends an inode's life, with everything that it owns.
    pub(super) fn drop_inode(&mut self, ino: Ino, record: &InodeRecord) {
        let kind = record.file_type().expect("a live inode has a type");
        let aux = record.aux.load(Relaxed);
        self.linkable.remove(&ino);
        self.inodes.free_slot(&self.tables, record, ino.index());
        match kind {
            FileType::File | FileType::Fifo | FileType::Socket => {}
            FileType::Dir => self.orders.remove(aux),
            // After the record says it is gone: readers of the target check that.
            FileType::Symlink => self.arena.free(aux),
        }
        self.live[kind_index(kind)] -= 1;
        self.note_inode_gone(ino);
    }

    /// Counts one more inode.
    pub(super) fn count_inode(&mut self, kind: FileType) {
        self.live[kind_index(kind)] += 1;
    }

    /// Returns the record of a live inode of this rank, or of a directory that stands in for
    /// another rank's.
    pub(super) fn live(&self, ino: Ino) -> Result<&'a InodeRecord, NamesError> {
        let record = match self.tables.record(ino) {
            Some(record) => record.holds(ino).then_some(record),
            None => self.stand_in_record(ino),
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

    /// Returns the directory and key of a name that may exist or not.
    pub(super) fn entry_key<'n>(
        &self,
        parent: Ino,
        name: &'n [u8],
    ) -> Result<(&'a InodeRecord, EntryKey<'n>), NamesError> {
        let dir = self.dir(parent)?;
        Ok((dir, EntryKey::for_new_entry(parent, name)?))
    }

    /// Returns the directory and key of a name that does not exist, and can be made.
    pub(super) fn free_entry_key<'n>(
        &self,
        parent: Ino,
        name: &'n [u8],
    ) -> Result<(&'a InodeRecord, EntryKey<'n>), NamesError> {
        let (dir, key) = self.entry_key(parent, name)?;
        if dir.nlink.load(Relaxed) == 0 {
            return Err(NamesError::NotFound);
        }
        match self.find(&key) {
            Ok(_) => Err(NamesError::Exists),
            Err(_) => Ok((dir, key)),
        }
    }

    pub(super) fn find(&self, key: &EntryKey<'_>) -> Result<FoundEntry, NamesError> {
        find(&self.tables, key).ok_or(NamesError::NotFound)
    }

    pub(super) fn order(&self, dir: &InodeRecord) -> &EntryOrder {
        self.orders.get(dir.aux.load(Relaxed))
    }

    pub(super) fn order_mut(&mut self, dir: &InodeRecord) -> &mut EntryOrder {
        self.orders.get_mut(dir.aux.load(Relaxed))
    }

    /// Publishes the counters.
    pub(super) fn publish_counters(&self) {
        let counters = &self.tables.header.counters.0;
        let [files, dirs, symlinks] = self.live;
        for (word, value) in [
            (&counters.files, files),
            (&counters.dirs, dirs),
            (&counters.symlinks, symlinks),
            (&counters.entries, self.entries),
            (&counters.inode_high, u64::from(self.inodes.slots_used())),
            (&counters.arena_high_words, self.arena.high_words()),
        ] {
            word.store(value, Relaxed);
        }
    }
}

impl NewInode {
    pub(super) fn new(kind: FileType, mode: u32, owner: Owner, now_ns: i64) -> Self {
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

    /// As [`NewInode::inherit_from_record`], for a file in a directory that may be another server's.
    pub(super) fn inherit_from_attr(&mut self, dir: &Attr) {
        self.policy = dir.policy;
        if dir.mode & SETGID != 0 {
            self.gid = dir.gid;
        }
    }

    /// Inherits the directory's policy, and the group of a set-group-id directory, as Linux does.
    pub(super) fn inherit_from_record(&mut self, dir: &InodeRecord) {
        self.policy = SharingBits::from_mode(dir.mode.load(Relaxed)).policy;
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
        // Their bytes are not in weir.
        FileType::Symlink | FileType::Fifo | FileType::Socket => 2,
    }
}

/// Updates a directory whose entries changed, and the number of its child directories by
/// `children`.
pub(super) fn touch_dir(dir: &InodeRecord, children: i32, now_ns: i64) {
    let _change = SeqWrite::begin(&dir.seq);
    dir.mtime.store(now_ns, Relaxed);
    dir.ctime.store(now_ns, Relaxed);
    add_children(dir, children);
}

/// Changes the number of the child directories of a directory by `children`, and no time.
pub(super) fn count_children(dir: &InodeRecord, children: i32) {
    let _change = SeqWrite::begin(&dir.seq);
    add_children(dir, children);
}

fn add_children(dir: &InodeRecord, children: i32) {
    let nlink = dir.nlink.load(Relaxed);
    dir.nlink
        .store(nlink.saturating_add_signed(children), Relaxed);
}
