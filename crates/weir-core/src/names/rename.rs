//! Renaming: replacing, refusing to replace, and exchanging, with the checks of POSIX in
//! the order in which Linux makes them.
//!
//! To a reader a rename is one event, because the counters of both names are odd meanwhile: a
//! replaced name is never missing, and of a moved file the old or the new name is always there.

use super::dentry::{stripe, FoundEntry};
use super::hash::EntryKey;
use super::layout::InodeRecord;
use super::seq::SeqWrite;
use super::shard::{Shard, UnlinkOutcome};
use super::steps::{count_children, touch_dir};
use super::{FileType, NamesError, LINK_MAX};
use crate::elevated::NURSERY;
use crate::types::Ino;
use serde::{Deserialize, Serialize};
use std::sync::atomic::Ordering::Relaxed;

/// The treatment of a new name that exists already.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum RenameMode {
    /// It is replaced.
    Replace,
    /// The rename is refused (`RENAME_NOREPLACE`).
    NoReplace,
    /// The two names change places (`RENAME_EXCHANGE`).
    Exchange,
}

/// The outcome of a rename.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct RenameOutcome {
    /// The inode that has the new name.
    pub moved: Ino,
    /// The inode that lost its name to it.
    pub replaced: Option<UnlinkOutcome>,
}

/// A name in a directory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct EntryName<'n> {
    /// The directory.
    pub parent: Ino,
    /// The name.
    pub name: &'n [u8],
}

/// One of the two names of a rename.
struct RenameName<'a, 'n> {
    ino: Ino,
    dir: &'a InodeRecord,
    key: EntryKey<'n>,
}

/// An existing entry with one of the two names.
struct NamedEntry<'p, 'a, 'n> {
    name: &'p RenameName<'a, 'n>,
    found: FoundEntry,
    record: &'a InodeRecord,
}

impl<'a> Shard<'a> {
    /// Renames the entry `from` to `to`. If both name one inode, both stay (POSIX).
    pub fn rename(
        &mut self,
        from: EntryName<'_>,
        to: EntryName<'_>,
        mode: RenameMode,
        now_ns: i64,
    ) -> Result<RenameOutcome, NamesError> {
        let from = self.resolve_name(from)?;
        let to = self.resolve_name(to)?;
        let source = self.entry_at(&from)?.ok_or(NamesError::NotFound)?;
        let target = self.entry_at(&to)?;
        if to.dir.nlink.load(Relaxed) == 0 {
            return Err(NamesError::NotFound);
        }
        let moved = source.found.child;
        let mut done = RenameOutcome {
            moved,
            replaced: None,
        };
        match (&target, mode) {
            (Some(_), RenameMode::NoReplace) => return Err(NamesError::Exists),
            (None, RenameMode::Exchange) => return Err(NamesError::NotFound),
            _ => {}
        }
        if self.is_within(to.ino, moved) {
            return Err(NamesError::WouldLoop);
        }
        if let Some(target) = &target {
            self.check_target(&source, target, mode)?;
            if target.found.child == moved {
                return Ok(done);
            }
        }
        check_links(&source, target.as_ref(), &to, mode)?;
        let other = target.as_ref().map(|target| target.found.child);
        match target {
            Some(target) if mode == RenameMode::Exchange => {
                self.exchange(&source, &target, now_ns);
            }
            Some(target) => done.replaced = Some(self.replace(&source, &target, now_ns)?),
            None => self.move_entry(&source, &to, now_ns)?,
        }
        for ino in [Some(moved), other, Some(from.ino), Some(to.ino)]
            .into_iter()
            .flatten()
        {
            self.note_inode(ino);
        }
        self.publish_counters();
        Ok(done)
    }

    fn resolve_name<'n>(&self, entry: EntryName<'n>) -> Result<RenameName<'a, 'n>, NamesError> {
        let (dir, key) = self.entry_key(entry.parent, entry.name)?;
        Ok(RenameName {
            ino: entry.parent,
            dir,
            key,
        })
    }

    fn entry_at<'p, 'n>(
        &self,
        name: &'p RenameName<'a, 'n>,
    ) -> Result<Option<NamedEntry<'p, 'a, 'n>>, NamesError> {
        let Ok(found) = self.find(&name.key) else {
            return Ok(None);
        };
        let record = self.live(found.child)?;
        Ok(Some(NamedEntry {
            name,
            found,
            record,
        }))
    }

    /// Returns true if `ino` is `ancestor` or below it.
    fn is_within(&self, mut ino: Ino, ancestor: Ino) -> bool {
        while ino != ancestor {
            if ino == self.root() {
                return false;
            }
            let above = match self.live(ino) {
                Ok(record) => Ino(record.parent.load(Relaxed)),
                // A removed directory is below nothing.
                Err(_) => return false,
            };
            // Like the root, the parent of elevated trees is its own.
            if above == ino {
                return false;
            }
            ino = above;
        }
        true
    }

    fn check_target(
        &self,
        source: &NamedEntry<'_, '_, '_>,
        target: &NamedEntry<'_, '_, '_>,
        mode: RenameMode,
    ) -> Result<(), NamesError> {
        let exchange = mode == RenameMode::Exchange;
        if self.is_within(source.name.ino, target.found.child) {
            let error = if exchange {
                NamesError::WouldLoop
            } else {
                NamesError::NotEmpty
            };
            return Err(error);
        }
        if exchange || source.found.child == target.found.child {
            return Ok(());
        }
        match (source.found.kind, target.found.kind) {
            (FileType::Dir, FileType::Dir) if self.order(target.record).len() > 0 => {
                Err(NamesError::NotEmpty)
            }
            (FileType::Dir, FileType::Dir) => Ok(()),
            (FileType::Dir, _) => Err(NamesError::NotADirectory),
            (_, FileType::Dir) => Err(NamesError::IsADirectory),
            _ => Ok(()),
        }
    }

    /// Moves to a name that is free.
    fn move_entry(
        &mut self,
        source: &NamedEntry<'_, '_, '_>,
        to: &RenameName<'_, '_>,
        now_ns: i64,
    ) -> Result<(), NamesError> {
        let FoundEntry { child, kind, .. } = source.found;
        let at = self.prepare_entry(to.dir, &to.key, child, kind)?;
        {
            let _changes = self.begin_changes(source, &to.key);
            let _change = SeqWrite::begin(&source.record.seq);
            Self::set_entry(source, at, to.ino, now_ns);
            self.publish_entry(at);
            self.remove_entry(source.name.dir, source.found.at);
        }
        Self::touch_dirs(source, to, 0, now_ns);
        Ok(())
    }

    /// Makes the target's entry name the source, and removes the source's entry.
    fn replace(
        &mut self,
        source: &NamedEntry<'_, '_, '_>,
        target: &NamedEntry<'_, '_, '_>,
        now_ns: i64,
    ) -> Result<UnlinkOutcome, NamesError> {
        let FoundEntry { child, kind, .. } = source.found;
        let replaced;
        {
            let _changes = self.begin_changes(source, &target.name.key);
            let _change = SeqWrite::begin(&source.record.seq);
            let _change = SeqWrite::begin(&target.record.seq);
            replaced = self.drop_link(&target.found, now_ns)?;
            Self::set_entry(source, target.found.at, target.name.ino, now_ns);
            self.dentry(target.found.at).set_child(child, kind);
            self.note_entry(target.found.at);
            self.remove_entry(source.name.dir, source.found.at);
        }
        let lost_dirs = i32::from(target.found.kind == FileType::Dir);
        Self::touch_dirs(source, target.name, lost_dirs, now_ns);
        Ok(replaced)
    }

    /// Exchanges the inodes that the two entries name.
    fn exchange(
        &mut self,
        source: &NamedEntry<'_, '_, '_>,
        target: &NamedEntry<'_, '_, '_>,
        now_ns: i64,
    ) {
        {
            let _changes = self.begin_changes(source, &target.name.key);
            let _target_moves = self.begin_move(target);
            let _change = SeqWrite::begin(&source.record.seq);
            let _change = SeqWrite::begin(&target.record.seq);
            let (a, b) = (&source.found, &target.found);
            Self::set_entry(source, b.at, target.name.ino, now_ns);
            Self::set_entry(target, a.at, source.name.ino, now_ns);
            self.dentry(a.at).set_child(b.child, b.kind);
            self.dentry(b.at).set_child(a.child, a.kind);
            self.note_entry(a.at);
            self.note_entry(b.at);
        }
        Self::touch_dirs(source, target.name, 0, now_ns);
        if target.found.kind == FileType::Dir && source.name.ino != target.name.ino {
            touch_dir(target.name.dir, -1, now_ns);
            touch_dir(source.name.dir, 1, now_ns);
        }
    }

    /// Records in the renamed inode the entry that names it, if that was the old one.
    fn set_entry(entry: &NamedEntry<'_, '_, '_>, at: u32, parent: Ino, now_ns: i64) {
        let record = entry.record;
        if [0, entry.found.at].contains(&record.entry.load(Relaxed)) {
            record.entry.store(at, Relaxed);
            record.parent.store(parent.0, Relaxed);
        }
        record.ctime.store(now_ns, Relaxed);
    }

    /// Updates both directories: times, and links from `..` of the moved inodes, less the
    /// `lost_dirs` that were replaced.
    fn touch_dirs(
        source: &NamedEntry<'_, '_, '_>,
        to: &RenameName<'_, '_>,
        lost_dirs: i32,
        now_ns: i64,
    ) {
        let elsewhere = source.name.ino != to.ino;
        let moved_dirs = i32::from(elsewhere && source.found.kind == FileType::Dir);
        touch_dir(source.name.dir, -moved_dirs, now_ns);
        match source.name.ino {
            // A program that only looks has a directory taken up: that changes no time which it sees.
            NURSERY => count_children(to.dir, moved_dirs - lost_dirs),
            _ => touch_dir(to.dir, moved_dirs - lost_dirs, now_ns),
        }
    }

    /// Begins changes under the counters of the two names, and of paths through the source.
    fn begin_changes(
        &self,
        source: &NamedEntry<'_, '_, '_>,
        to: &EntryKey<'_>,
    ) -> [Option<SeqWrite<'a>>; 3] {
        let names = [source.name.key.hash, to.hash];
        let [from, to] = names.map(|hash| Some(SeqWrite::begin(stripe(&self.tables, hash))));
        // Dropped in order: an inner change of the same counter must not be the outer one.
        [to, from, self.begin_move(source)]
    }

    fn begin_move(&self, entry: &NamedEntry<'_, '_, '_>) -> Option<SeqWrite<'a>> {
        let is_dir = entry.found.kind == FileType::Dir;
        is_dir.then(|| SeqWrite::begin(&self.tables.header.moves.0))
    }
}

/// Checks that the directory that gains a child directory can have another link.
fn check_links(
    source: &NamedEntry<'_, '_, '_>,
    target: Option<&NamedEntry<'_, '_, '_>>,
    to: &RenameName<'_, '_>,
    mode: RenameMode,
) -> Result<(), NamesError> {
    let is_dir = |entry: &NamedEntry<'_, '_, '_>| entry.found.kind == FileType::Dir;
    let source_dir = is_dir(source);
    let target_dir = target.is_some_and(is_dir);
    let full = |dir: &InodeRecord| dir.nlink.load(Relaxed) >= LINK_MAX;
    let elsewhere = source.name.ino != to.ino;
    let to_gains = source_dir && !target_dir;
    let from_gains = mode == RenameMode::Exchange && target_dir && !source_dir;
    if elsewhere && (to_gains && full(to.dir) || from_gains && full(source.name.dir)) {
        return Err(NamesError::TooManyLinks);
    }
    Ok(())
}
