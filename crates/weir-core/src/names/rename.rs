//! Renaming: replacing, refusing to replace, and exchanging, with the checks of POSIX in
//! the order in which Linux makes them.
//!
//! To a reader a rename is one event: the counters of both names are odd meanwhile, so
//! that at no moment a replaced name is missing, and of a moved one at least one is there.

use super::dentry::{stripe, FoundEntry};
use super::hash::Key;
use super::layout::InodeRecord;
use super::seq::Change;
use super::shard::{Shard, Unlinked};
use super::steps::touch_dir;
use super::{FileType, NamesError, LINK_MAX};
use crate::types::Ino;
use serde::{Deserialize, Serialize};
use std::sync::atomic::Ordering::Relaxed;

/// The treatment of a name that exists already.
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
pub struct Renamed {
    /// The inode that has the new name.
    pub moved: Ino,
    /// The inode that lost its name to it.
    pub replaced: Option<Unlinked>,
}

/// One of the two names of a rename.
struct RenameEnd<'a, 'n> {
    ino: Ino,
    dir: &'a InodeRecord,
    key: Key<'n>,
}

/// An existing entry with one of the two names.
struct NamedEntry<'p, 'a, 'n> {
    place: &'p RenameEnd<'a, 'n>,
    found: FoundEntry,
    record: &'a InodeRecord,
}

impl<'a> Shard<'a> {
    /// Gives the entry `name` in `parent` the name `new_name` in `new_parent`. Two names of one
    /// inode are both left (POSIX).
    pub fn rename(
        &mut self,
        (parent, name): (Ino, &[u8]),
        (new_parent, new_name): (Ino, &[u8]),
        mode: RenameMode,
        now_ns: i64,
    ) -> Result<Renamed, NamesError> {
        let from = self.rename_place(parent, name)?;
        let to = self.rename_place(new_parent, new_name)?;
        let source = self.entry_at(&from)?.ok_or(NamesError::NotFound)?;
        let target = self.entry_at(&to)?;
        if to.dir.nlink.load(Relaxed) == 0 {
            return Err(NamesError::NotFound);
        }
        let moved = source.found.child;
        let mut done = Renamed {
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
        for ino in [Some(moved), other, Some(parent), Some(new_parent)]
            .into_iter()
            .flatten()
        {
            self.touch(ino);
        }
        self.tell();
        Ok(done)
    }

    fn rename_place<'n>(&self, ino: Ino, name: &'n [u8]) -> Result<RenameEnd<'a, 'n>, NamesError> {
        let (dir, key) = self.place(ino, name)?;
        Ok(RenameEnd { ino, dir, key })
    }

    fn entry_at<'p, 'n>(
        &self,
        place: &'p RenameEnd<'a, 'n>,
    ) -> Result<Option<NamedEntry<'p, 'a, 'n>>, NamesError> {
        let Ok(found) = self.find(&place.key) else {
            return Ok(None);
        };
        let record = self.live(found.child)?;
        Ok(Some(NamedEntry {
            place,
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
        if self.is_within(source.place.ino, target.found.child) {
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
        to: &RenameEnd<'_, '_>,
        now_ns: i64,
    ) -> Result<(), NamesError> {
        let FoundEntry { child, kind, .. } = source.found;
        let at = self.prepare_entry(to.dir, &to.key, child, kind)?;
        {
            let _events = self.events(source, &to.key);
            let _change = Change::begin(&source.record.seq);
            Self::name_by(source, at, to.ino, now_ns);
            self.publish_entry(at);
            self.remove_entry(source.place.dir, source.found.at);
        }
        Self::touch_both(source, to, 0, now_ns);
        Ok(())
    }

    /// Puts the source in the target's place.
    fn replace(
        &mut self,
        source: &NamedEntry<'_, '_, '_>,
        target: &NamedEntry<'_, '_, '_>,
        now_ns: i64,
    ) -> Result<Unlinked, NamesError> {
        let FoundEntry { child, kind, .. } = source.found;
        let replaced;
        {
            let _events = self.events(source, &target.place.key);
            let _change = Change::begin(&source.record.seq);
            let _change = Change::begin(&target.record.seq);
            replaced = self.drop_link(&target.found, now_ns)?;
            Self::name_by(source, target.found.at, target.place.ino, now_ns);
            self.dentry(target.found.at).set_child(child, kind);
            self.note_entry(target.found.at);
            self.remove_entry(source.place.dir, source.found.at);
        }
        let lost_dirs = i32::from(target.found.kind == FileType::Dir);
        Self::touch_both(source, target.place, lost_dirs, now_ns);
        Ok(replaced)
    }

    /// Lets the two change places.
    fn exchange(
        &mut self,
        source: &NamedEntry<'_, '_, '_>,
        target: &NamedEntry<'_, '_, '_>,
        now_ns: i64,
    ) {
        {
            let _events = self.events(source, &target.place.key);
            let _target_moves = self.moves(target);
            let _change = Change::begin(&source.record.seq);
            let _change = Change::begin(&target.record.seq);
            let (a, b) = (&source.found, &target.found);
            Self::name_by(source, b.at, target.place.ino, now_ns);
            Self::name_by(target, a.at, source.place.ino, now_ns);
            self.dentry(a.at).set_child(b.child, b.kind);
            self.dentry(b.at).set_child(a.child, a.kind);
            self.note_entry(a.at);
            self.note_entry(b.at);
        }
        Self::touch_both(source, target.place, 0, now_ns);
        if target.found.kind == FileType::Dir && source.place.ino != target.place.ino {
            touch_dir(target.place.dir, -1, now_ns);
            touch_dir(source.place.dir, 1, now_ns);
        }
    }

    /// Records in the renamed inode the entry that names it, if that was the old one.
    fn name_by(entry: &NamedEntry<'_, '_, '_>, at: u32, parent: Ino, now_ns: i64) {
        let record = entry.record;
        if [0, entry.found.at].contains(&record.entry.load(Relaxed)) {
            record.entry.store(at, Relaxed);
            record.parent.store(parent.0, Relaxed);
        }
        record.ctime.store(now_ns, Relaxed);
    }

    /// Updates both directories: times, and links from `..` of the moved inodes, less the
    /// `lost_dirs` that were replaced.
    fn touch_both(
        source: &NamedEntry<'_, '_, '_>,
        to: &RenameEnd<'_, '_>,
        lost_dirs: i32,
        now_ns: i64,
    ) {
        let elsewhere = source.place.ino != to.ino;
        let moved_dirs = i32::from(elsewhere && source.found.kind == FileType::Dir);
        touch_dir(source.place.dir, -moved_dirs, now_ns);
        touch_dir(to.dir, moved_dirs - lost_dirs, now_ns);
    }

    /// Makes the counters odd under which the two names, and paths through the source, are read.
    fn events(&self, source: &NamedEntry<'_, '_, '_>, to: &Key<'_>) -> [Option<Change<'a>>; 3] {
        let names = [source.place.key.hash, to.hash];
        let [from, to] = names.map(|hash| Some(Change::begin(stripe(&self.tables, hash))));
        // Dropped in order: an inner change of the same counter must not be the outer one.
        [to, from, self.moves(source)]
    }

    fn moves(&self, entry: &NamedEntry<'_, '_, '_>) -> Option<Change<'a>> {
        let is_dir = entry.found.kind == FileType::Dir;
        is_dir.then(|| Change::begin(&self.tables.header.moves.0))
    }
}

/// Refuses if the directory that gains a child directory has too many links.
fn check_links(
    source: &NamedEntry<'_, '_, '_>,
    target: Option<&NamedEntry<'_, '_, '_>>,
    to: &RenameEnd<'_, '_>,
    mode: RenameMode,
) -> Result<(), NamesError> {
    let is_dir = |entry: &NamedEntry<'_, '_, '_>| entry.found.kind == FileType::Dir;
    let source_dir = is_dir(source);
    let target_dir = target.is_some_and(is_dir);
    let full = |dir: &InodeRecord| dir.nlink.load(Relaxed) >= LINK_MAX;
    let elsewhere = source.place.ino != to.ino;
    let to_gains = source_dir && !target_dir;
    let from_gains = mode == RenameMode::Exchange && target_dir && !source_dir;
    if elsewhere && (to_gains && full(to.dir) || from_gains && full(source.place.dir)) {
        return Err(NamesError::TooManyLinks);
    }
    Ok(())
}
