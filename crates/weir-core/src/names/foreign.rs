//! Parts of the operations, for a namespace that several servers hold.
//!
//! An entry lives at one server ([`crate::placement::home_of_entry`]), and the inode that it names
//! may live at another. A directory of another server whose entries are here has a *stand-in*: a
//! record of this table that no entry names, found by the directory's own number. It has the order
//! of the entries here, the time of their last change and the number of directories among them. A
//! file of another server that a program of this node has open has a stand-in as well; its number
//! is of this table, and clients use it like that of any file.
//!
//! Left out: the rules for which files have stand-ins, with which attributes; these are the server's
//! (`weir-server`, `cluster/`).

use super::attr::{LEASED, STALE};
use super::dentry::stripe;
use super::hash::EntryKey;
use super::inodes::NewInode;
use super::layout::InodeRecord;
use super::seq::SeqWrite;
use super::shard::{Owner, Shard};
use super::steps::touch_dir;
use super::{Attr, FileType, NamesError, SetAttr, Visibility, LINK_MAX, ROOT_INDEX};
use crate::types::Ino;
use std::sync::atomic::Ordering::Relaxed;

/// This server's part of a directory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DirPart {
    /// Entries here that are directories.
    pub dirs: u32,
    /// Entries here.
    pub entries: u64,
    /// The time at which an entry here last came or went, ns since 1970; 0: never.
    pub changed_ns: i64,
}

impl<'a> Shard<'a> {
    /// Returns the record of the stand-in of another server's directory.
    pub(super) fn stand_in_record(&self, dir: Ino) -> Option<&'a InodeRecord> {
        let index = *self.stand_in_slots.get(&dir)?;
        self.tables.inodes.get(index as usize)
    }

    /// Returns true if `ino` is a number of this table.
    pub fn is_own(&self, ino: Ino) -> bool {
        ino.rank() == self.tables.rank()
    }

    /// Returns the number of the inode in a slot, in its life as of now.
    pub fn ino_at(&self, index: u32) -> Ino {
        let record = self.tables.inodes.get(index as usize);
        let life = record.map_or(0, |record| record.generation.load(Relaxed));
        let life = u16::try_from(life & 0xFFFF).unwrap_or(0);
        Ino::new(self.tables.rank(), life, index)
    }

    /// Returns true if `dir`, a directory of another server, has a stand-in here.
    pub fn has_stand_in(&self, dir: Ino) -> bool {
        self.stand_in_slots.contains_key(&dir)
    }

    /// Returns the attributes of a directory's stand-in here; its type, mode and owner are valid.
    pub fn passage(&self, dir: Ino) -> Option<Attr> {
        let index = *self.stand_in_slots.get(&dir)?;
        let attr = self.attr(self.ino_at(index)).ok()?;
        Some(Attr { ino: dir, ..attr })
    }

    /// Makes this table's own root the stand-in of the instance's root. At a rank other than 0 the
    /// table's root is otherwise unused.
    pub fn stand_in_for_root(&mut self, root: Ino) {
        if root != self.root() {
            self.set_stand_in(root, ROOT_INDEX);
        }
    }

    /// Records that a slot stands in for a directory of another server.
    pub(super) fn set_stand_in(&mut self, dir: Ino, slot: u32) {
        self.stand_in_slots.insert(dir, slot);
        self.stand_in_dirs.insert(slot, dir);
    }

    /// Makes the stand-in of a directory of another server. Files made in it inherit its policy,
    /// and its group if its mode says so. Nothing happens if there is one.
    pub fn adopt_dir(&mut self, dir: &Attr) -> Result<(), NamesError> {
        if dir.ino.rank() == self.tables.rank() || self.has_stand_in(dir.ino) {
            return Ok(());
        }
        let aux = self.orders.add();
        let new = NewInode {
            aux,
            policy: dir.policy,
            ..NewInode::new(FileType::Dir, dir.mode, owner_of(dir), 0)
        };
        match self.inodes.make(&self.tables, &new) {
            Ok(local) => {
                self.set_stand_in(dir.ino, local.index());
                self.note_inode(dir.ino);
                self.publish_counters();
                Ok(())
            }
            Err(error) => {
                self.orders.remove(aux);
                Err(error)
            }
        }
    }

    /// Removes a directory's stand-in. `NotEmpty`: there are entries here.
    pub fn disown_dir(&mut self, dir: Ino) -> Result<(), NamesError> {
        let Some(record) = self.stand_in_record(dir) else {
            return Ok(());
        };
        if self.order(record).len() > 0 {
            return Err(NamesError::NotEmpty);
        }
        if let Some(index) = self
            .stand_in_slots
            .remove(&dir)
            .filter(|i| *i != ROOT_INDEX)
        {
            self.stand_in_dirs.remove(&index);
            self.note_inode_gone(self.ino_at(index));
            let aux = record.aux.load(Relaxed);
            self.inodes.free_slot(&self.tables, record, index);
            self.orders.remove(aux);
        }
        Ok(())
    }

    /// Returns this server's part of a directory, at home or not.
    pub fn dir_part(&self, dir: Ino) -> Result<DirPart, NamesError> {
        let record = self.dir(dir)?;
        Ok(DirPart {
            dirs: record.nlink.load(Relaxed).saturating_sub(2),
            entries: self.order(record).len(),
            changed_ns: record.mtime.load(Relaxed),
        })
    }

    /// Makes the stand-in of a file of another server; returns its number in this table. Its
    /// attributes are stale until [`Shard::refresh_stand_in`].
    pub fn adopt_file(&mut self, attr: &Attr) -> Result<Ino, NamesError> {
        let new = NewInode {
            aux: STALE,
            ..NewInode::new(FileType::File, attr.mode, owner_of(attr), attr.ctime_ns)
        };
        let local = self.inodes.make(&self.tables, &new)?;
        let record = self.live(local)?;
        let _change = SeqWrite::begin(&record.seq);
        record.parent.store(attr.home.0, Relaxed);
        self.note_inode(local);
        self.publish_counters();
        Ok(local)
    }

    /// Removes the stand-in of a file.
    pub fn disown_file(&mut self, local: Ino) -> Result<(), NamesError> {
        let record = self.file_stand_in(local)?;
        self.inodes.free_slot(&self.tables, record, local.index());
        self.note_inode_gone(local);
        Ok(())
    }

    /// Writes the home's attributes into a stand-in. With `leased` they hold until
    /// [`Shard::recall_stand_in`], and readers need not ask.
    pub fn refresh_stand_in(
        &mut self,
        local: Ino,
        attr: &Attr,
        leased: bool,
    ) -> Result<(), NamesError> {
        let record = self.file_stand_in(local)?;
        let _change = SeqWrite::begin(&record.seq);
        record.apply(&SetAttr {
            mode: Some(attr.mode),
            uid: Some(attr.uid),
            gid: Some(attr.gid),
            size: Some(attr.size),
            allocated: Some(attr.allocated),
            atime_ns: Some(attr.atime_ns),
            mtime_ns: Some(attr.mtime_ns),
            ctime_ns: Some(attr.ctime_ns),
            block: None,
            policy: Some(attr.policy),
            lamination: Some(attr.lamination),
            evicted: Some(attr.evicted),
        });
        record.set_ask(attr.ask);
        record.nlink.store(attr.nlink, Relaxed);
        record.btime.store(attr.btime_ns, Relaxed);
        record
            .aux
            .store(if leased { LEASED } else { STALE }, Relaxed);
        Ok(())
    }

    /// Makes a stand-in's attributes stale; readers' caches of the file are void.
    pub fn recall_stand_in(&mut self, local: Ino) -> Result<(), NamesError> {
        let record = self.file_stand_in(local)?;
        let _change = SeqWrite::begin(&record.seq);
        record.aux.store(STALE, Relaxed);
        record.index_generation.fetch_add(1, Relaxed);
        Ok(())
    }

    /// As [`Shard::recall_stand_in`]; `named`: the file has a name. Programs open no stand-in without
    /// one. Only the home knows the number of names.
    pub fn recall_named_stand_in(&mut self, local: Ino, named: bool) -> Result<(), NamesError> {
        self.recall_stand_in(local)?;
        let record = self.file_stand_in(local)?;
        let _change = SeqWrite::begin(&record.seq);
        record.nlink.store(u32::from(named), Relaxed);
        Ok(())
    }

    /// Returns all stand-ins of files: the inode that each stands in for, and its number in this
    /// table.
    pub fn file_stand_ins(&self) -> Vec<(Ino, Ino)> {
        let numbers = (ROOT_INDEX..=self.inodes.slots_used()).map(|index| self.ino_at(index));
        numbers
            .filter(|local| self.file_stand_in(*local).is_ok())
            .filter_map(|local| Some((self.attr(local).ok()?.home, local)))
            .collect()
    }

    /// Returns the attributes of all files of this server.
    pub fn own_files(&self) -> impl Iterator<Item = Attr> + '_ {
        let numbers = (ROOT_INDEX..=self.inodes.slots_used()).map(|index| self.ino_at(index));
        numbers
            .filter_map(|ino| self.attr(ino).ok())
            .filter(|attr| attr.home == attr.ino && attr.file_type() == FileType::File)
    }

    /// Makes readers of this server's raw files ask first, from now on.
    pub fn ask_of_raw_files(&mut self) {
        let is_raw = |attr: &Attr| attr.policy.visibility == Visibility::ReadAfterWrite;
        let raw = self.own_files().filter(is_raw).map(|attr| attr.ino);
        for ino in raw.collect::<Vec<_>>() {
            let _ = self.set_ask(ino, true);
        }
    }

    fn file_stand_in(&self, local: Ino) -> Result<&'a InodeRecord, NamesError> {
        let record = self.live(local)?;
        let is_file = record.file_type() == Some(FileType::File);
        let stands_in = is_file && record.aux.load(Relaxed) != 0;
        stands_in.then_some(record).ok_or(NamesError::WrongType)
    }

    /// Inserts an entry for an inode of another server, or for one whose links the caller counts.
    pub fn insert_entry(
        &mut self,
        parent: Ino,
        name: &[u8],
        child: Ino,
        kind: FileType,
        now_ns: i64,
    ) -> Result<(), NamesError> {
        let (dir, key) = self.free_entry_key(parent, name)?;
        let at = self.prepare_entry(dir, &key, child, kind)?;
        self.publish_entry(at);
        self.name_child(child, at, parent);
        touch_dir(dir, i32::from(kind == FileType::Dir), now_ns);
        self.note_inode(parent);
        self.publish_counters();
        Ok(())
    }

    /// Removes an entry, and leaves the inode's links to the caller; returns the inode that it
    /// named.
    pub fn withdraw_entry(
        &mut self,
        parent: Ino,
        name: &[u8],
        now_ns: i64,
    ) -> Result<(Ino, FileType), NamesError> {
        let (dir, key) = self.entry_key(parent, name)?;
        let found = self.find(&key)?;
        self.forget_child_name(found.child, found.at);
        self.remove_entry(dir, found.at);
        touch_dir(dir, -i32::from(found.kind == FileType::Dir), now_ns);
        self.note_inode(parent);
        self.publish_counters();
        Ok((found.child, found.kind))
    }

    /// Makes an entry name another inode; returns the inode that it named before. To a reader the
    /// name is never missing.
    pub fn replace_entry(
        &mut self,
        parent: Ino,
        name: &[u8],
        child: Ino,
        kind: FileType,
        now_ns: i64,
    ) -> Result<(Ino, FileType), NamesError> {
        let (dir, key) = self.entry_key(parent, name)?;
        let found = self.find(&key)?;
        self.forget_child_name(found.child, found.at);
        {
            let _change = SeqWrite::begin(stripe(&self.tables, key.hash));
            self.dentry(found.at).set_child(child, kind);
        }
        self.note_entry(found.at);
        self.note_inode(parent);
        self.name_child(child, found.at, parent);
        let is_dir = |kind| i32::from(kind == FileType::Dir);
        touch_dir(dir, is_dir(kind) - is_dir(found.kind), now_ns);
        Ok((found.child, found.kind))
    }

    /// Notes that a rename between servers may be about to take a name away, or not any more. Until
    /// then readers do not believe the entry ([`ViewError::Renaming`]).
    ///
    /// [`ViewError::Renaming`]: super::ViewError::Renaming
    pub fn set_renaming(&mut self, parent: Ino, name: &[u8], is_renaming: bool) {
        let Some(key) = EntryKey::for_lookup(parent, name) else {
            return;
        };
        match self.find(&key) {
            Ok(found) if found.is_renaming != is_renaming => {
                let _change = SeqWrite::begin(stripe(&self.tables, key.hash));
                self.dentry(found.at).set_renaming(is_renaming);
            }
            _ => {}
        }
    }

    /// Adds a link to an inode of this server, or removes one; returns the links left. When a
    /// directory loses its last name, all its links end.
    pub fn change_links(&mut self, ino: Ino, add: bool, now_ns: i64) -> Result<u32, NamesError> {
        let record = self.live(ino)?;
        let nlink = record.nlink.load(Relaxed);
        let left = match (add, record.file_type()) {
            (true, Some(FileType::Dir)) => return Err(NamesError::LinkToDirectory),
            (true, _) if nlink == 0 && !self.linkable.remove(&ino) => {
                return Err(NamesError::NotFound)
            }
            (true, _) if nlink >= LINK_MAX => return Err(NamesError::TooManyLinks),
            (true, _) => nlink + 1,
            (false, Some(FileType::Dir)) => 0,
            (false, _) => nlink.saturating_sub(1),
        };
        let _change = SeqWrite::begin(&record.seq);
        record.nlink.store(left, Relaxed);
        record.ctime.store(now_ns, Relaxed);
        self.note_inode(ino);
        Ok(left)
    }

    /// Records `parent` as the directory of an inode of this server whose entry is at another server
    /// now.
    pub fn set_parent(&mut self, ino: Ino, parent: Ino, now_ns: i64) -> Result<(), NamesError> {
        let record = self.live(ino)?;
        let _moves = SeqWrite::begin(&self.tables.header.moves.0);
        let _change = SeqWrite::begin(&record.seq);
        record.parent.store(parent.0, Relaxed);
        record.ctime.store(now_ns, Relaxed);
        self.note_inode(ino);
        Ok(())
    }

    /// Records this entry as the name of an inode of this server, if it had none here.
    fn name_child(&mut self, child: Ino, at: u32, parent: Ino) {
        if child.rank() != self.tables.rank() {
            return;
        }
        self.note_inode(child);
        if let Ok(record) = self.live(child) {
            let _change = SeqWrite::begin(&record.seq);
            if record.entry.load(Relaxed) == 0 {
                record.entry.store(at, Relaxed);
                record.parent.store(parent.0, Relaxed);
            }
        }
    }

    fn forget_child_name(&mut self, child: Ino, at: u32) {
        if child.rank() != self.tables.rank() {
            return;
        }
        self.note_inode(child);
        if let Ok(record) = self.live(child) {
            let _change = SeqWrite::begin(&record.seq);
            Self::forget_entry(record, at);
        }
    }
}

pub(super) fn owner_of(attr: &Attr) -> Owner {
    Owner {
        uid: attr.uid,
        gid: attr.gid,
    }
}
