//! Rebuilding a namespace from a journal.
//!
//! The numbers of inodes, their order in directories and the lives of free slots stay the same, so
//! that the numbers that peers and scans of directories have are still valid.

use super::arena::Arena;
use super::hash::EntryKey;
use super::inodes::NewInode;
use super::policy::{Lamination, Policy, SharingBits};
use super::shard::{Shard, TablesPrefix};
use super::{FileType, NamesError, Tables, MIN_BUCKETS, ROOT_INDEX};
use crate::journal::{EntryImage, InodeImage, State};
use crate::types::Ino;
use std::sync::atomic::Ordering::Relaxed;

/// The reasons for which a namespace cannot be rebuilt.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum RestoreError {
    /// It has an inode in a slot that these tables do not have.
    #[error("inode {ino:?} does not fit tables of {max_inodes} inodes")]
    TooMany {
        /// The inode.
        ino: Ino,
        /// The maximum that the tables were made for.
        max_inodes: u32,
    },
    /// An impossible inode: of another server, of no type, or a second one in its slot.
    #[error("inode {0:?} cannot be")]
    Inode(Ino),
    /// There is no root directory.
    #[error("there is no root directory")]
    NoRoot,
    /// An impossible entry.
    #[error("entry {name:?} of {dir:?}: {error}")]
    Entry {
        /// Its directory.
        dir: Ino,
        /// Its name.
        name: Vec<u8>,
        /// The error.
        error: NamesError,
    },
    /// There is no room for a symbolic link's target.
    #[error("the target of {0:?} is missing, or too long")]
    Target(Ino),
}

impl<'a> Shard<'a> {
    /// Returns a bound of the part of the tables that [`Shard::restore`] touches.
    pub fn prefix_of_state(state: &State) -> TablesPrefix {
        let slots = state.inodes.keys().map(|ino| ino.index());
        let slots = slots.chain(state.ended.keys().copied()).max().unwrap_or(0);
        let entries = state.entries.keys().map(|(_, name)| name.len() as u64 + 64);
        let targets = state
            .targets
            .values()
            .map(|target| target.len() as u64 + 64);
        let bytes: u64 = entries.chain(targets).sum();
        TablesPrefix {
            inodes: slots.saturating_add(2),
            // Blocks are of classes, each with pages of its own, of which a part is not used.
            arena_words: bytes / 8 * 3 / 2 + Arena::least_words(),
            buckets: u32::try_from(state.entries.len())
                .unwrap_or(u32::MAX)
                .max(MIN_BUCKETS)
                + 1,
        }
    }

    /// Rebuilds the namespace of `state` in freshly formatted tables.
    pub fn restore(tables: Tables<'a>, state: &State) -> Result<Self, RestoreError> {
        let mut shard = Shard::empty(tables);
        let mut images: Vec<&InodeImage> = state.inodes.values().collect();
        images.sort_unstable_by_key(|image| image.ino.index());
        let mut last = 0;
        for image in images {
            if image.ino.index() <= last {
                return Err(RestoreError::Inode(image.ino));
            }
            last = image.ino.index();
            shard.restore_inode(image, state)?;
        }
        if shard.live(shard.root()).is_err() {
            return Err(RestoreError::NoRoot);
        }
        let lives = |index: u32| state.ended.get(&index).copied();
        shard.inodes.restore(&tables, lives);
        let mut entries: Vec<(&(Ino, Vec<u8>), &EntryImage)> = state.entries.iter().collect();
        entries.sort_unstable_by_key(|((dir, _), entry)| (*dir, entry.sequence));
        for ((dir, name), entry) in entries {
            shard
                .restore_entry(*dir, name, entry)
                .map_err(|error| RestoreError::Entry {
                    dir: *dir,
                    name: name.clone(),
                    error,
                })?;
        }
        shard.publish_counters();
        Ok(shard)
    }

    fn restore_inode(&mut self, image: &InodeImage, state: &State) -> Result<(), RestoreError> {
        let ino = image.ino;
        let bad = RestoreError::Inode(ino);
        let kind = FileType::from_mode(image.mode).ok_or(bad.clone())?;
        if !self.is_own(ino) {
            return Err(bad);
        }
        let max_inodes = u32::try_from(self.tables.inodes.len() - 1).unwrap_or(u32::MAX);
        let room = (ROOT_INDEX..=max_inodes).contains(&ino.index());
        if !room {
            return Err(RestoreError::TooMany { ino, max_inodes });
        }
        let stands_in = image.home != ino;
        let aux = match kind {
            FileType::Dir => self.orders.add(),
            FileType::Symlink => {
                let target = state.targets.get(&ino).ok_or(RestoreError::Target(ino))?;
                let stored = self.store_target(target);
                stored.map_err(|_| RestoreError::Target(ino))?
            }
            FileType::File if stands_in => super::attr::STALE,
            FileType::File | FileType::Fifo | FileType::Socket => 0,
        };
        let new = NewInode {
            kind,
            mode: image.mode,
            uid: image.uid,
            gid: image.gid,
            nlink: image.nlink,
            size: image.size,
            aux,
            policy: Policy::default(),
            now_ns: image.ctime_ns,
        };
        self.inodes.make_at(&self.tables, ino, &new);
        let record = &self.tables.inodes[ino.index() as usize];
        record.mode.store(restored_mode(image.mode), Relaxed);
        record.atime.store(image.atime_ns, Relaxed);
        record.mtime.store(image.mtime_ns, Relaxed);
        record.btime.store(image.btime_ns, Relaxed);
        let parent = match kind {
            FileType::File if stands_in => image.home,
            _ => image.parent,
        };
        record.parent.store(parent.0, Relaxed);
        if stands_in && kind == FileType::Dir {
            self.set_stand_in(image.home, ino.index());
        }
        self.count_inode(kind);
        Ok(())
    }

    fn restore_entry(
        &mut self,
        dir: Ino,
        name: &[u8],
        entry: &EntryImage,
    ) -> Result<(), NamesError> {
        if self.is_own(entry.child) && self.live(entry.child).is_err() {
            // The directory was being removed: if several servers hold a directory, its inode goes
            // first.
            return Ok(());
        }
        let (record, key): (_, EntryKey<'_>) = self.entry_key(dir, name)?;
        self.order_mut(record).skip_to(entry.sequence)?;
        let at = self.prepare_entry(record, &key, entry.child, entry.kind)?;
        self.publish_entry(at);
        if let Ok(child) = self.live(entry.child) {
            let of_here = Ino(child.parent.load(Relaxed)) == dir;
            if self.is_own(entry.child) && of_here && child.entry.load(Relaxed) == 0 {
                child.entry.store(at, Relaxed);
            }
        }
        Ok(())
    }
}

/// Returns the `mode` word of a restored inode: a lamination under way becomes due.
fn restored_mode(mode: u32) -> u32 {
    let mut bits = SharingBits::from_mode(mode);
    bits.ask = false;
    bits.mapped = false;
    if bits.lamination == Lamination::Sealing {
        bits.lamination = Lamination::Due;
    }
    bits.to_mode(mode)
}

impl Shard<'_> {
    /// Condemns the server's tables: see [`Tables::condemn`].
    pub fn condemn(&mut self) {
        self.tables.condemn();
    }
}

impl Tables<'_> {
    /// Makes all answers from these tables, which are no longer kept up to date, unsettled: names,
    /// attributes and the positions of bytes. Readers then ask their server, which is another one by
    /// now, or has ended.
    pub fn condemn(&self) {
        let make_odd = |seq: &std::sync::atomic::AtomicU64| {
            seq.fetch_or(1, std::sync::atomic::Ordering::SeqCst);
        };
        self.header.stripes.iter().for_each(make_odd);
        make_odd(&self.header.moves.0);
        let high = self.header.counters.0.inode_high.load(Relaxed);
        let high = usize::try_from(high).unwrap_or(usize::MAX);
        // One more than was published: the writer may have been killed before it published that.
        for record in self.inodes.iter().take(high.saturating_add(2)) {
            make_odd(&record.seq);
            record.index_generation.fetch_add(1, Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::names::memory::Memory;
    use crate::names::{Attr, NamesView, Owner, ViewError};
    use crate::types::Rank;

    #[test]
    fn nothing_of_condemned_tables_is_believed() {
        let memory = Memory::new(16);
        let owner = Owner { uid: 1, gid: 2 };
        let mut shard = Shard::new(memory.format(Rank(2)), 0o755, owner, 1).unwrap();
        let root = shard.attr(shard.root()).unwrap();
        // Stand-ins alone, as on a node whose files all live elsewhere.
        let files: Vec<Ino> = (4..9)
            .map(|index| {
                let home = Ino::new(Rank(9), 0, index);
                shard.adopt_file(&Attr { home, ..root }).unwrap()
            })
            .collect();
        let Memory {
            header,
            inodes,
            arena,
            buckets,
        } = &memory;
        let open = || Tables::open(header, inodes, arena, buckets).unwrap();
        let view = NamesView::new(open());
        assert!(files.iter().all(|ino| view.attr(*ino).unwrap().is_some()));
        open().condemn();
        for ino in files {
            assert_eq!(view.attr(ino), Err(ViewError::Unsettled));
        }
    }
}
