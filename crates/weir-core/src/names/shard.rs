//! The operations on the namespace, by the one writer of the tables.
//!
//! Each either does all of its work or, with an error, nothing. An inode whose last name is gone
//! stays until [`Shard::release`], for the programs that have it open.
//!
//! Left out: `.` and `..` (paths are the client's), permission checks.

use super::arena::Arena;
use super::changes::PendingChanges;
use super::dentry::{copy_bytes, GRANULE_WORDS};
use super::hash::{words, EntryKey};
use super::inodes::{Inodes, NewInode};
use super::layout::{InodeRecord, Tables};
use super::order::EntryOrders;
use super::seq::SeqWrite;
use super::steps::touch_dir;
use super::{
    Attr, FileType, NamesError, NamesView, SetAttr, LINK_MAX, NAME_MAX, ROOT_INDEX, SYMLINK_MAX,
};
use crate::journal::Item;
use crate::types::Ino;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeSet, HashMap};
use std::ops::ControlFlow;
use std::sync::atomic::Ordering::Relaxed;

/// The first cookie an entry can have: 0 is a directory's start, and the client gives
/// `.` and `..` the cookies 1 and 2.
pub const FIRST_COOKIE: u64 = 3;

/// The owner of a new inode.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Owner {
    /// User.
    pub uid: u32,
    /// Group, unless the directory is set-group-id.
    pub gid: u32,
}

/// The result of removing a name from an inode.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct UnlinkOutcome {
    /// The inode.
    pub ino: Ino,
    /// Links left; at 0 it waits for [`Shard::release`].
    pub nlink: u32,
}

/// An entry in a scan of its directory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DirEntry<'n> {
    /// Its name.
    pub name: &'n [u8],
    /// The inode that it names.
    pub ino: Ino,
    /// The type of that inode.
    pub file_type: FileType,
    /// The cookie after which a scan goes on.
    pub cookie: u64,
}

/// The contents of the tables, in numbers.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
pub struct Counts {
    /// Regular files, including those without a name that are still open.
    pub files: u64,
    /// Directories, with the root.
    pub dirs: u64,
    /// Symbolic links.
    pub symlinks: u64,
    /// Directory entries.
    pub entries: u64,
    /// Inodes that the tables were made for.
    pub max_inodes: u64,
    /// Bytes of the shared tables that were ever touched.
    pub table_bytes: u64,
    /// Bytes of the writer's private memory.
    pub private_bytes: u64,
}

/// The first part of each table.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TablesPrefix {
    /// Slots of inodes, with the first one, which is never used.
    pub inodes: u32,
    /// Words of the arena of names.
    pub arena_words: u64,
    /// Buckets of the hash table. If no more fit, chains grow longer.
    pub buckets: u32,
}

/// The one writer of a rank's tables. The caller guarantees that there is only one; readers'
/// answers depend on it.
pub struct Shard<'a> {
    pub(super) tables: Tables<'a>,
    pub(super) arena: Arena<'a>,
    pub(super) inodes: Inodes,
    pub(super) orders: EntryOrders,
    pub(super) entries: u64,
    /// Inodes of each type: files, directories, symbolic links.
    pub(super) live: [u64; 3],
    /// The slots of directories of other servers that have entries here.
    pub(super) stand_in_slots: HashMap<Ino, u32>,
    /// The same, by slot.
    pub(super) stand_in_dirs: HashMap<u32, Ino>,
    /// Buckets from here on may not be touched.
    pub(super) buckets_present: u32,
    /// Files that were made without a name, and may get one.
    pub(super) linkable: BTreeSet<Ino>,
    /// The changes that the journal still needs, if there is one.
    pub(super) changes: Option<Box<PendingChanges>>,
}

impl<'a> Shard<'a> {
    /// Makes the root directory in freshly formatted tables.
    pub fn new(
        tables: Tables<'a>,
        mode: u32,
        owner: Owner,
        now_ns: i64,
    ) -> Result<Self, NamesError> {
        let mut shard = Shard::empty(tables);
        let aux = shard.orders.add();
        let new = NewInode::new(FileType::Dir, mode, owner, now_ns);
        let root = shard.make_inode(&NewInode { aux, ..new })?;
        let record = shard.live(root)?;
        let _change = SeqWrite::begin(&record.seq);
        record.parent.store(root.0, Relaxed);
        Ok(shard)
    }

    /// Makes a shard of tables that contain nothing.
    pub(super) fn empty(tables: Tables<'a>) -> Self {
        Shard {
            tables,
            arena: Arena::new(tables.arena),
            inodes: Inodes::new(),
            orders: EntryOrders::default(),
            entries: 0,
            live: [0; 3],
            stand_in_slots: HashMap::new(),
            stand_in_dirs: HashMap::new(),
            buckets_present: u32::MAX,
            linkable: BTreeSet::new(),
            changes: None,
        }
    }

    /// Sets the part of the tables that there is memory for: nothing beyond it is touched. An
    /// operation that does not fit is refused with [`NamesError::NoSpace`]. At first all of the
    /// tables count as present.
    pub fn set_present(&mut self, present: TablesPrefix) {
        self.inodes.set_present(present.inodes);
        self.arena.set_present(present.arena_words);
        self.buckets_present = present.buckets;
    }

    /// Returns the part of the tables that was ever used.
    pub fn used(&self) -> TablesPrefix {
        TablesPrefix {
            inodes: self.inodes.slots_used() + 1,
            arena_words: self.arena.high_words(),
            buckets: self.tables.header.bucket_count.0.load(Relaxed),
        }
    }

    /// Returns a reader of the same tables.
    pub fn view(&self) -> NamesView<'a> {
        NamesView::new(self.tables)
    }

    /// The root directory.
    pub fn root(&self) -> Ino {
        self.tables.root()
    }

    /// Returns the inode that `name` names in the directory `parent`.
    pub fn lookup(&self, parent: Ino, name: &[u8]) -> Result<(Ino, FileType), NamesError> {
        self.dir(parent)?;
        let key = EntryKey::for_lookup(parent, name).ok_or(NamesError::NotFound)?;
        let found = self.find(&key)?;
        Ok((found.child, found.kind))
    }

    /// The attributes of `ino`.
    pub fn attr(&self, ino: Ino) -> Result<Attr, NamesError> {
        Ok(self.live(ino)?.load_attr(ino))
    }

    /// Makes a regular file.
    pub fn create(
        &mut self,
        parent: Ino,
        name: &[u8],
        mode: u32,
        owner: Owner,
        now_ns: i64,
    ) -> Result<Ino, NamesError> {
        let new = NewInode::new(FileType::File, mode, owner, now_ns);
        self.make(parent, name, new)
    }

    /// Makes a regular file without a name, in a directory with these attributes. If it is
    /// `linkable`, [`Shard::link`] or [`Shard::change_links`] may name it, once.
    pub fn create_unnamed(
        &mut self,
        dir: &Attr,
        mode: u32,
        owner: Owner,
        linkable: bool,
        now_ns: i64,
    ) -> Result<Ino, NamesError> {
        let mut new = NewInode::new(FileType::File, mode, owner, now_ns);
        new.nlink = 0;
        new.inherit_from_attr(dir);
        let ino = self.make_inode(&new)?;
        if linkable {
            self.linkable.insert(ino);
        }
        self.note_inode(ino);
        self.publish_counters();
        Ok(ino)
    }

    /// Makes a directory.
    pub fn mkdir(
        &mut self,
        parent: Ino,
        name: &[u8],
        mode: u32,
        owner: Owner,
        now_ns: i64,
    ) -> Result<Ino, NamesError> {
        let aux = self.orders.add();
        let new = NewInode::new(FileType::Dir, mode, owner, now_ns);
        let made = self.make(parent, name, NewInode { aux, ..new });
        if made.is_err() {
            self.orders.remove(aux);
        }
        made
    }

    /// Makes a fifo or a socket: its name and attributes.
    pub fn make_special(
        &mut self,
        parent: Ino,
        name: &[u8],
        kind: FileType,
        mode: u32,
        owner: Owner,
        now_ns: i64,
    ) -> Result<Ino, NamesError> {
        if !matches!(kind, FileType::Fifo | FileType::Socket) {
            return Err(NamesError::WrongType);
        }
        self.make(parent, name, NewInode::new(kind, mode, owner, now_ns))
    }

    /// Makes a symbolic link to `target` (1 to [`SYMLINK_MAX`] bytes without NUL).
    pub fn symlink(
        &mut self,
        parent: Ino,
        name: &[u8],
        target: &[u8],
        owner: Owner,
        now_ns: i64,
    ) -> Result<Ino, NamesError> {
        if target.len() > SYMLINK_MAX {
            return Err(NamesError::NameTooLong);
        }
        if target.is_empty() || target.contains(&0) {
            return Err(NamesError::InvalidName);
        }
        let aux = self.store_target(target)?;
        let size = target.len() as u64;
        let new = NewInode::new(FileType::Symlink, 0o777, owner, now_ns);
        let made = self.make(parent, name, NewInode { size, aux, ..new });
        match made {
            Ok(ino) => self.note(&Item::Target(ino, target)),
            Err(_) => self.arena.free(aux),
        }
        made
    }

    /// Puts a symbolic link's target into the arena; returns its granule.
    pub(super) fn store_target(&mut self, target: &[u8]) -> Result<u32, NamesError> {
        let size_granules = target.len().div_ceil(8 * GRANULE_WORDS);
        let aux = self.arena.alloc(size_granules).ok_or(NamesError::NoSpace)?;
        let block = &self.tables.arena[aux as usize * GRANULE_WORDS..];
        for (word, value) in block.iter().zip(words(target)) {
            word.store(value, Relaxed);
        }
        Ok(aux)
    }

    /// Gives `ino` another name.
    pub fn link(
        &mut self,
        ino: Ino,
        parent: Ino,
        name: &[u8],
        now_ns: i64,
    ) -> Result<(), NamesError> {
        let record = self.live(ino)?;
        let kind = record.file_type().ok_or(NamesError::Stale(ino))?;
        if kind == FileType::Dir {
            return Err(NamesError::LinkToDirectory);
        }
        let (dir, key) = self.free_entry_key(parent, name)?;
        match record.nlink.load(Relaxed) {
            0 if !self.linkable.contains(&ino) => return Err(NamesError::NotFound),
            LINK_MAX => return Err(NamesError::TooManyLinks),
            _ => {}
        }
        let at = self.prepare_entry(dir, &key, ino, kind)?;
        self.linkable.remove(&ino);
        {
            let _change = SeqWrite::begin(&record.seq);
            record.nlink.fetch_add(1, Relaxed);
            record.ctime.store(now_ns, Relaxed);
            if record.entry.load(Relaxed) == 0 {
                record.entry.store(at, Relaxed);
                record.parent.store(parent.0, Relaxed);
            }
        }
        self.publish_entry(at);
        touch_dir(dir, 0, now_ns);
        self.note_inode(ino);
        self.note_inode(parent);
        self.publish_counters();
        Ok(())
    }

    /// Removes a name from a file or symbolic link.
    pub fn unlink(
        &mut self,
        parent: Ino,
        name: &[u8],
        now_ns: i64,
    ) -> Result<UnlinkOutcome, NamesError> {
        let (dir, key) = self.entry_key(parent, name)?;
        let found = self.find(&key)?;
        if found.kind == FileType::Dir {
            return Err(NamesError::IsADirectory);
        }
        let gone = self.drop_link(&found, now_ns)?;
        self.remove_entry(dir, found.at);
        touch_dir(dir, 0, now_ns);
        self.note_inode(gone.ino);
        self.note_inode(parent);
        self.publish_counters();
        Ok(gone)
    }

    /// Removes an empty directory's name. The directory itself stays until
    /// [`Shard::release`], but nothing can be made in it.
    pub fn rmdir(
        &mut self,
        parent: Ino,
        name: &[u8],
        now_ns: i64,
    ) -> Result<UnlinkOutcome, NamesError> {
        let (dir, key) = self.entry_key(parent, name)?;
        let found = self.find(&key)?;
        if found.kind != FileType::Dir {
            return Err(NamesError::NotADirectory);
        }
        if self.order(self.dir(found.child)?).len() > 0 {
            return Err(NamesError::NotEmpty);
        }
        let gone = self.drop_link(&found, now_ns)?;
        self.remove_entry(dir, found.at);
        touch_dir(dir, -1, now_ns);
        self.note_inode(gone.ino);
        self.note_inode(parent);
        self.publish_counters();
        Ok(gone)
    }

    /// Frees an inode that has no name left and that no program has open any more.
    pub fn release(&mut self, ino: Ino) -> Result<(), NamesError> {
        let record = self.live(ino)?;
        if ino.index() == ROOT_INDEX || record.nlink.load(Relaxed) > 0 {
            return Err(NamesError::Busy(ino));
        }
        self.drop_inode(ino, record);
        self.publish_counters();
        Ok(())
    }

    /// Sets attributes; returns the resulting ones.
    pub fn setattr(&mut self, ino: Ino, set: &SetAttr) -> Result<Attr, NamesError> {
        let record = self.live(ino)?;
        if set.size.is_some() {
            match record.file_type() {
                Some(FileType::File) => {}
                Some(FileType::Dir) => return Err(NamesError::IsADirectory),
                _ => return Err(NamesError::WrongType),
            }
        }
        {
            let _change = SeqWrite::begin(&record.seq);
            record.apply(set);
        }
        if set.is_journaled() {
            self.note_inode(ino);
        }
        Ok(record.load_attr(ino))
    }

    /// Makes readers of `ino` ask first, because its numbers may be out of date; or not.
    pub fn set_ask(&mut self, ino: Ino, ask: bool) -> Result<(), NamesError> {
        let record = self.live(ino)?;
        let _change = SeqWrite::begin(&record.seq);
        record.set_ask(ask);
        Ok(())
    }

    /// Records that the kernel of this node keeps pages of `ino`, which programs have mapped; or none.
    pub fn set_mapped(&mut self, ino: Ino, mapped: bool) -> Result<(), NamesError> {
        let record = self.live(ino)?;
        let _change = SeqWrite::begin(&record.seq);
        record.set_mapped(mapped);
        Ok(())
    }

    /// Records that the extents of `ino` changed; returns its new index generation.
    pub fn bump_index_generation(&mut self, ino: Ino) -> Result<u64, NamesError> {
        let record = self.live(ino)?;
        let _change = SeqWrite::begin(&record.seq);
        Ok(record.index_generation.fetch_add(1, Relaxed) + 1)
    }

    /// Returns a cookie that is not less than that of any entry of `dir`.
    pub fn last_cookie(&self, dir: Ino) -> Result<u64, NamesError> {
        Ok(self.order(self.dir(dir)?).last_cookie())
    }

    /// Visits the entries of `dir` after `cookie` (below [`FIRST_COOKIE`]: from the start), at most
    /// `budget` of them, until `visit` breaks; returns the number of entries visited. `.` and `..`
    /// are not entries.
    pub fn readdir(
        &self,
        dir: Ino,
        cookie: u64,
        budget: usize,
        mut visit: impl FnMut(DirEntry<'_>) -> ControlFlow<()>,
    ) -> Result<usize, NamesError> {
        let record = self.dir(dir)?;
        let mut name = [0; NAME_MAX];
        let mut shown = 0;
        for (cookie, at) in self.order(record).after(cookie).take(budget) {
            let entry = self.dentry(at);
            let (Some(len), Some(file_type)) = (entry.name(&mut name), entry.kind()) else {
                continue;
            };
            let ino = entry.child();
            shown += 1;
            let name = &name[..len];
            let seen = visit(DirEntry {
                name,
                ino,
                file_type,
                cookie,
            });
            if seen.is_break() {
                break;
            }
        }
        Ok(shown)
    }

    /// The target of a symbolic link.
    pub fn symlink_target(&self, ino: Ino) -> Result<Vec<u8>, NamesError> {
        let record = self.live(ino)?;
        if record.file_type() != Some(FileType::Symlink) {
            return Err(NamesError::WrongType);
        }
        let len = usize::try_from(record.size.load(Relaxed)).unwrap_or(0);
        let at = record.aux.load(Relaxed) as usize * GRANULE_WORDS;
        let mut target = vec![0; len];
        copy_bytes(&self.tables.arena[at..], &mut target).expect("a target is in the arena");
        Ok(target)
    }

    /// Returns the contents of the tables, in numbers.
    pub fn counts(&self) -> Counts {
        let [files, dirs, symlinks] = self.live;
        let records = u64::from(self.inodes.slots_used()) * size_of::<InodeRecord>() as u64;
        let buckets = u64::from(self.tables.header.bucket_count.0.load(Relaxed)) * 4;
        let private = self.arena.private_bytes() + self.orders.private_bytes();
        Counts {
            files,
            dirs,
            symlinks,
            entries: self.entries,
            max_inodes: self.tables.inodes.len() as u64 - 1,
            table_bytes: records + buckets + self.arena.high_words() * 8,
            private_bytes: private as u64,
        }
    }
}
