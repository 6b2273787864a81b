//! The hash table of entries: the writer's side, and the second of the two steps of
//! making a file.
//!
//! Linear hashing (Litwin, VLDB 1980): whenever there are more entries than buckets, one
//! bucket is split in two, so that no insertion ever waits for the table to grow. The table does not
//! shrink; its size follows the most entries there ever were.
//!
//! An entry's stripe (`hash % STRIPES`) is that of its bucket at every size, since there
//! are never fewer buckets than stripes: a split changes the buckets of one stripe only.

use super::dentry::{bucket_of, granules, stripe, Dentry};
use super::hash::EntryKey;
use super::layout::{InodeRecord, Tables};
use super::seq::SeqWrite;
use super::shard::Shard;
use super::{FileType, NamesError};
use crate::types::Ino;
use std::sync::atomic::Ordering::{Relaxed, Release};

impl Shard<'_> {
    /// Makes an entry that cannot be found yet: memory, position in the directory's order, words.
    /// Returns its granule.
    pub(super) fn prepare_entry(
        &mut self,
        dir: &InodeRecord,
        key: &EntryKey<'_>,
        child: Ino,
        kind: FileType,
    ) -> Result<u32, NamesError> {
        let at = self
            .arena
            .alloc(granules(key.name.len()))
            .ok_or(NamesError::NoSpace)?;
        let sequence = self.order_mut(dir).push(at);
        self.dentry(at).fill(key, child, kind, sequence);
        Ok(at)
    }

    /// Links a prepared entry into its bucket: from here on readers find it.
    pub(super) fn publish_entry(&mut self, at: u32) {
        let entry = self.dentry(at);
        let count = self.tables.header.bucket_count.0.load(Relaxed);
        let bucket = &self.tables.buckets[bucket_of(entry.hash(), count) as usize];
        entry.set_next(bucket.load(Relaxed));
        // Release: a reader that finds the entry finds its words and its inode.
        bucket.store(at, Release);
        self.note_entry(at);
        self.entries += 1;
        if self.entries > u64::from(count) {
            self.split_bucket();
        }
    }

    /// Takes an entry out of its bucket, its directory's order and the arena. The caller
    /// has first made sure that no inode refers to it (see [`Shard::forget_entry`]).
    pub(super) fn remove_entry(&mut self, dir: &InodeRecord, at: u32) {
        self.note_entry_gone(at);
        let entry = self.dentry(at);
        let sequence = entry.sequence();
        {
            let _change = SeqWrite::begin(stripe(&self.tables, entry.hash()));
            self.remove_from_bucket(at, entry);
        }
        self.order_mut(dir).remove(sequence);
        self.arena.free(at);
        self.entries -= 1;
    }

    /// Clears the reference of `record` to the entry at `at`, if it has it. Under a change.
    pub(super) fn forget_entry(record: &InodeRecord, at: u32) {
        if record.entry.load(Relaxed) == at {
            record.entry.store(0, Relaxed);
            record.parent.store(0, Relaxed);
        }
    }

    fn remove_from_bucket(&self, at: u32, entry: Dentry<'_>) {
        let count = self.tables.header.bucket_count.0.load(Relaxed);
        let bucket = &self.tables.buckets[bucket_of(entry.hash(), count) as usize];
        let mut here = bucket.load(Relaxed);
        if here == at {
            bucket.store(entry.next(), Release);
            return;
        }
        loop {
            let before = self.dentry(here);
            here = before.next();
            if here == at {
                before.set_next(entry.next());
                return;
            }
        }
    }

    /// Splits the next bucket in turn: moves the entries that belong to a new one.
    fn split_bucket(&mut self) {
        let Tables {
            header, buckets, ..
        } = self.tables;
        let count = header.bucket_count.0.load(Relaxed);
        if count >= self.buckets_present {
            return;
        }
        let Some(new) = buckets.get(count as usize) else {
            return;
        };
        // The highest bit of the new bucket's number tells it from the one it comes out of.
        let old = &buckets[(count & !(1 << count.ilog2())) as usize];
        let _change = SeqWrite::begin(stripe(&self.tables, count));
        let mut here = old.load(Relaxed);
        let (mut stay, mut go) = (0, 0);
        while here != 0 {
            let entry = self.dentry(here);
            let next = entry.next();
            let list = if bucket_of(entry.hash(), count + 1) == count {
                &mut go
            } else {
                &mut stay
            };
            entry.set_next(std::mem::replace(list, here));
            here = next;
        }
        old.store(stay, Release);
        new.store(go, Release);
        header.bucket_count.0.store(count + 1, Release);
    }
}

#[allow(clippy::needless_lifetimes)] // 'a is the tables', not the shard's borrow
impl<'a> Shard<'a> {
    /// Returns an entry that the writer knows to be there.
    pub(super) fn dentry(&self, at: u32) -> Dentry<'a> {
        Dentry::at(self.tables.arena, at).expect("the writer's own references hold")
    }
}
