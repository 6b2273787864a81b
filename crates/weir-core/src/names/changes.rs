//! The changes of entries and inodes for the journal.
//!
//! Entries are noted at once, because their memory may be used again within the same operation. An
//! inode is noted once, with its state at the time when the changes are taken. Changes are taken
//! between operations, so that each operation is noted whole.

use super::dentry::Dentry;
use super::layout::InodeRecord;
use super::shard::Shard;
use super::{FileType, NAME_MAX, ROOT_INDEX};
use crate::journal::{encode, InodeImage, Item};
use crate::types::Ino;
use std::sync::atomic::Ordering::Relaxed;

/// Changes that were not taken yet.
#[derive(Debug, Default)]
pub(super) struct PendingChanges {
    items: Vec<u8>,
    touched: Vec<Ino>,
}

/// The position of a visit of the tables in steps.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct TableCursor {
    /// Slots that were visited.
    slot: u32,
    /// The sequence of the last visited entry of the directory in the next slot; 0: the directory
    /// itself is not visited yet.
    entry: u64,
}

impl Shard<'_> {
    /// Notes changes from now on.
    pub fn note_changes(&mut self) {
        self.changes = Some(Box::default());
    }

    /// Appends the changes to `out`, as items.
    pub fn take_changes(&mut self, out: &mut Vec<u8>) {
        let Some(mut changes) = self.changes.take() else {
            return;
        };
        out.append(&mut changes.items);
        for ino in changes.touched.drain(..) {
            // An entry that is gone again was noted as such.
            if let Ok(record) = self.live(ino) {
                encode(&Item::Inode(self.image(ino, record)), out);
            }
        }
        self.changes = Some(changes);
    }

    /// Visits the whole tables, as items.
    pub fn for_each_item(&self, visit: &mut dyn FnMut(&Item<'_>)) {
        let mut at = Some(TableCursor::default());
        while let Some(from) = at {
            at = self.visit_items_from(from, usize::MAX, visit);
        }
    }

    /// Visits about `most` inodes and entries from a position on; returns the next position, if there
    /// is more. A change between two such calls may not be visited, so it must be in the journal.
    pub fn visit_items_from(
        &self,
        from: TableCursor,
        most: usize,
        visit: &mut dyn FnMut(&Item<'_>),
    ) -> Option<TableCursor> {
        // A directory and one entry of it, so that each call gets on.
        let (mut at, mut left) = (from, most.max(2));
        while at.slot < self.inodes.slots_used() {
            if left == 0 {
                return Some(at);
            }
            left -= 1;
            let index = at.slot + ROOT_INDEX;
            let record = &self.tables.inodes[index as usize];
            if at.entry == 0 {
                self.visit_inode(index, record, visit);
            }
            if record.file_type() == Some(FileType::Dir) {
                for (sequence, entry) in self.order(record).after(at.entry) {
                    if left == 0 {
                        return Some(at);
                    }
                    left -= 1;
                    visit_entry(self.dentry(entry), visit);
                    at.entry = sequence;
                }
            }
            at = TableCursor {
                slot: at.slot + 1,
                entry: 0,
            };
        }
        None
    }

    fn visit_inode(&self, index: u32, record: &InodeRecord, visit: &mut dyn FnMut(&Item<'_>)) {
        let ino = self.ino_at(index);
        let Some(kind) = record.file_type() else {
            return visit(&Item::InodeGone(self.ended_ino(index)));
        };
        let home = self.stand_in_dirs.get(&index).copied().unwrap_or(ino);
        visit(&Item::Inode(self.image(home, record)));
        if kind == FileType::Symlink {
            if let Ok(target) = self.symlink_target(ino) {
                visit(&Item::Target(ino, &target));
            }
        }
    }

    /// Returns the number of the last inode of a free slot.
    fn ended_ino(&self, index: u32) -> Ino {
        let next = self.ino_at(index);
        Ino::new(next.rank(), next.generation().wrapping_sub(1), index)
    }

    /// Notes that an inode's attributes or links changed.
    pub(super) fn note_inode(&mut self, ino: Ino) {
        if let Some(changes) = &mut self.changes {
            if !changes.touched.contains(&ino) {
                changes.touched.push(ino);
            }
        }
    }

    /// Notes that an entry was made, or names another inode.
    pub(super) fn note_entry(&mut self, at: u32) {
        let entry = self.dentry(at);
        if let Some(changes) = &mut self.changes {
            visit_entry(entry, &mut |item| encode(item, &mut changes.items));
        }
    }

    /// Notes that an entry is about to be removed.
    pub(super) fn note_entry_gone(&mut self, at: u32) {
        let entry = self.dentry(at);
        if let Some(changes) = &mut self.changes {
            let mut name = [0; NAME_MAX];
            if let Some(len) = entry.name(&mut name) {
                let (dir, name) = (entry.parent(), &name[..len]);
                encode(&Item::EntryGone { dir, name }, &mut changes.items);
            }
        }
    }

    /// Notes that the life of an inode or of a stand-in is over.
    pub(super) fn note_inode_gone(&mut self, ino: Ino) {
        self.note(&Item::InodeGone(ino));
    }

    pub(super) fn note(&mut self, item: &Item<'_>) {
        if let Some(changes) = &mut self.changes {
            encode(item, &mut changes.items);
        }
    }

    /// Returns the image of the inode that is known as `ino`, from its record.
    fn image(&self, ino: Ino, record: &InodeRecord) -> InodeImage {
        let own = if self.is_own(ino) {
            ino
        } else {
            self.ino_at(self.stand_in_slots.get(&ino).copied().unwrap_or(0))
        };
        let attr = record.load_attr(own);
        InodeImage {
            ino: own,
            home: if own == ino { attr.home } else { ino },
            mode: record.mode.load(Relaxed),
            nlink: attr.nlink,
            uid: attr.uid,
            gid: attr.gid,
            size: attr.size,
            atime_ns: attr.atime_ns,
            mtime_ns: attr.mtime_ns,
            ctime_ns: attr.ctime_ns,
            btime_ns: attr.btime_ns,
            parent: attr.parent,
        }
    }
}

fn visit_entry(entry: Dentry<'_>, visit: &mut dyn FnMut(&Item<'_>)) {
    let mut name = [0; NAME_MAX];
    if let (Some(len), Some(kind)) = (entry.name(&mut name), entry.kind()) {
        visit(&Item::Entry {
            dir: entry.parent(),
            name: &name[..len],
            child: entry.child(),
            kind,
            sequence: entry.sequence(),
        });
    }
}
