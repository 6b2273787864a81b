//! Inode slots: the writer's allocator, and the first of the two steps of making a file.
//!
//! Slots are taken from the low end; freed ones are used again, the longest free first, and only
//! once [`QUARANTINE`] of them wait (or no fresh ones are left): the 16 bits of generation in an
//! [`Ino`] would otherwise come round within 65,536 creates and deletes of one file. So a stale
//! number can be mistaken for a live one after 67 million at the earliest. The queue runs through
//! the free slots' own `parent` words.

use super::layout::{InodeRecord, Tables};
use super::policy::{Policy, SharingBits};
use super::seq::SeqWrite;
use super::{FileType, NamesError, SetAttr, ROOT_INDEX};
use crate::types::Ino;
use std::sync::atomic::Ordering::Relaxed;

/// Free slots that are kept waiting while there are fresh ones: 96 KiB of records.
const QUARANTINE: u32 = 1024;

/// The initial attributes of a new inode.
pub(super) struct NewInode {
    pub(super) kind: FileType,
    /// Permission bits.
    pub(super) mode: u32,
    pub(super) uid: u32,
    pub(super) gid: u32,
    /// 1 for a file or link, 2 for a directory.
    pub(super) nlink: u32,
    pub(super) size: u64,
    pub(super) aux: u32,
    pub(super) policy: Policy,
    pub(super) now_ns: i64,
}

/// The allocator of one rank's slots.
#[derive(Default)]
pub(super) struct Inodes {
    /// Slots from here on may not be touched.
    present: u32,
    /// First slot never used.
    fresh: u32,
    /// First and last of the free slots' queue, and its length.
    first: u32,
    last: u32,
    free: u32,
}

impl Inodes {
    pub(super) fn new() -> Self {
        Inodes {
            present: u32::MAX,
            fresh: ROOT_INDEX,
            ..Inodes::default()
        }
    }

    /// Makes an inode that no entry names yet.
    pub(super) fn make(&mut self, tables: &Tables<'_>, new: &NewInode) -> Result<Ino, NamesError> {
        let index = self.take_slot(tables).ok_or(NamesError::NoSpace)?;
        let record = &tables.inodes[index as usize];
        let generation = (record.generation.load(Relaxed) & 0xFFFF) as u16;
        let ino = Ino::new(tables.rank(), generation, index);
        fill(record, new);
        Ok(ino)
    }

    /// Makes an inode of this number, whose slot was never used. The caller goes by rising slots, and
    /// then calls [`Inodes::restore`].
    pub(super) fn make_at(&mut self, tables: &Tables<'_>, ino: Ino, new: &NewInode) {
        let record = &tables.inodes[ino.index() as usize];
        record
            .generation
            .store(u32::from(ino.generation()), Relaxed);
        fill(record, new);
        self.fresh = ino.index() + 1;
    }

    /// Queues the free slots below the highest one ever used; `lives` returns the life that ended in a
    /// slot.
    pub(super) fn restore(&mut self, tables: &Tables<'_>, lives: impl Fn(u32) -> Option<u16>) {
        let slots = u32::try_from(tables.inodes.len()).unwrap_or(u32::MAX);
        let mut index = ROOT_INDEX;
        while index < slots {
            let record = &tables.inodes[index as usize];
            let ended = lives(index);
            if index >= self.fresh && ended.is_none() {
                break;
            }
            if record.file_type().is_none() {
                let last = ended.unwrap_or(0);
                record.generation.store(u32::from(last), Relaxed);
                self.fresh = self.fresh.max(index + 1);
                self.free_slot(tables, record, index);
            }
            index += 1;
        }
    }

    /// Ends the life of the inode in `record`, slot `index`.
    pub(super) fn free_slot(&mut self, tables: &Tables<'_>, record: &InodeRecord, index: u32) {
        let _change = SeqWrite::begin(&record.seq);
        record.mode.store(0, Relaxed);
        record.generation.fetch_add(1, Relaxed);
        record.index_generation.fetch_add(1, Relaxed);
        record.parent.store(0, Relaxed);
        if self.free == 0 {
            self.first = index;
        } else {
            let last = &tables.inodes[self.last as usize];
            last.parent.store(u64::from(index), Relaxed);
        }
        self.last = index;
        self.free += 1;
    }

    /// Sets the number of slots that there is memory for.
    pub(super) fn set_present(&mut self, slots: u32) {
        self.present = slots;
    }

    /// Returns the number of slots ever used: the high-water mark of the table.
    pub(super) fn slots_used(&self) -> u32 {
        self.fresh - 1
    }

    fn take_slot(&mut self, tables: &Tables<'_>) -> Option<u32> {
        let any_fresh = self.fresh < self.present && (self.fresh as usize) < tables.inodes.len();
        if any_fresh && self.free < QUARANTINE {
            self.fresh += 1;
            return Some(self.fresh - 1);
        }
        if self.free == 0 {
            return None;
        }
        let index = self.first;
        let next = tables.inodes[index as usize].parent.load(Relaxed) & 0xFFFF_FFFF;
        self.first = next as u32;
        self.free -= 1;
        Some(index)
    }
}

fn fill(record: &InodeRecord, new: &NewInode) {
    let _change = SeqWrite::begin(&record.seq);
    let bits = SharingBits {
        policy: new.policy,
        ..SharingBits::default()
    };
    record
        .mode
        .store(bits.to_mode(new.kind.mode_with(new.mode)), Relaxed);
    record.nlink.store(new.nlink, Relaxed);
    record.aux.store(new.aux, Relaxed);
    record.entry.store(0, Relaxed);
    record.parent.store(0, Relaxed);
    record.btime.store(new.now_ns, Relaxed);
    record.apply(&SetAttr {
        mode: None,
        uid: Some(new.uid),
        gid: Some(new.gid),
        size: Some(new.size),
        allocated: Some(0),
        atime_ns: Some(new.now_ns),
        mtime_ns: Some(new.now_ns),
        ctime_ns: Some(new.now_ns),
        block: Some(0),
        ..SetAttr::default()
    });
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::names::memory::Memory;
    use crate::types::Rank;
    use std::collections::HashSet;

    fn new_file() -> NewInode {
        NewInode {
            kind: FileType::File,
            mode: 0o644,
            uid: 1,
            gid: 2,
            nlink: 1,
            size: 0,
            aux: 0,
            policy: Policy::default(),
            now_ns: 5,
        }
    }

    #[test]
    fn numbers_do_not_come_back_soon_and_slots_do() {
        let memory = Memory::new(5000);
        let tables = memory.format(Rank(7));
        let mut inodes = Inodes::new();
        let mut seen = HashSet::new();
        for _ in 0..200_000 {
            let ino = inodes.make(&tables, &new_file()).unwrap();
            assert!(seen.insert(ino), "{ino:?} came back");
            let record = tables.record(ino).unwrap();
            assert_eq!(record.attr(ino).unwrap().unwrap().gid, 2);
            inodes.free_slot(&tables, record, ino.index());
            assert_eq!(record.attr(ino).unwrap(), None);
        }
        assert_eq!(inodes.slots_used(), QUARANTINE);
    }

    #[test]
    fn all_slots_can_be_used_and_then_there_are_no_more() {
        let memory = Memory::new(1500);
        let tables = memory.format(Rank(0));
        let mut inodes = Inodes::new();
        for _ in 0..3 {
            let all: Vec<Ino> = (0..1500)
                .map(|_| inodes.make(&tables, &new_file()).unwrap())
                .collect();
            let full = inodes.make(&tables, &new_file());
            assert_eq!(full, Err(NamesError::NoSpace));
            for ino in all {
                inodes.free_slot(&tables, tables.record(ino).unwrap(), ino.index());
            }
        }
    }
}
