//! The sizes and stored bytes of this server's files, as other nodes see them. State only.

use std::collections::{BTreeMap, HashMap};

use weir_core::extent::MAX_OFFSET;
use weir_core::journal::{self, Item};
use weir_core::types::{Ino, Rank};

use crate::cluster::snapshot::show_from;
use crate::node::{SnapshotPosition, Visit};

/// The published sizes of this server's files.
#[derive(Debug, Default)]
pub(super) struct PublishedSizes {
    sizes: BTreeMap<Ino, PublishedSize>,
    /// Truncations under way.
    cutting: HashMap<Ino, Cutting>,
    /// For each file and server, the last publish that is counted in `sizes`, kept as long as the
    /// server may repeat it.
    counted: BTreeMap<(Ino, Rank), u64>,
}

/// The amount of data of a file.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct PublishedSize {
    /// Its size, bytes.
    pub(super) size: u64,
    /// Bytes stored.
    pub(super) stored: u64,
}

/// A truncation under way.
#[derive(Clone, Copy, Debug)]
struct Cutting {
    /// The new end. A node that has cut the file must not see the size that another node publishes before it cuts.
    to: u64,
    /// The published size before. The journal has this size until everything beyond the new end is
    /// erased: after a restart, the server must not believe that nothing is there.
    old: u64,
    /// True once this node has given up its unpublished bytes: bytes behind the new end that the slices' homes still
    /// have are older.
    cut_here: bool,
}

impl PublishedSizes {
    /// Restores the sizes from the journal.
    pub(super) fn take_up(&mut self, state: &mut journal::Cluster) {
        for (ino, (size, stored)) in std::mem::take(&mut state.published) {
            self.sizes.insert(ino, PublishedSize { size, stored });
        }
        self.counted = std::mem::take(&mut state.counted);
    }

    /// Visits some of the sizes; returns the position to go on from.
    pub(super) fn show_sizes(
        &self,
        from: SnapshotPosition,
        most: usize,
        visit: Visit<'_>,
    ) -> Option<SnapshotPosition> {
        show_from(self.sizes.range(from.ino..), from, most, |ino, _| {
            self.item(*ino).iter().for_each(&mut *visit);
        })
    }

    /// Visits the last counted publish of each file and server.
    pub(super) fn show_counted(&self, visit: Visit<'_>) {
        for ((ino, from), publish) in &self.counted {
            visit(&Item::PublishCounted(*ino, *from, *publish));
        }
    }

    /// The journal's record of a file.
    pub(super) fn item(&self, ino: Ino) -> Option<Item<'static>> {
        let file = self.sizes.get(&ino)?;
        let old = self.cutting.get(&ino).map_or(0, |cutting| cutting.old);
        Some(Item::Published(ino, file.size.max(old), file.stored))
    }

    /// The size of a file and its stored bytes.
    pub(super) fn of_file(&self, ino: Ino) -> PublishedSize {
        self.sizes.get(&ino).copied().unwrap_or_default()
    }

    /// The same, as other nodes see it: not beyond the end to which the file is being cut.
    pub(super) fn seen(&self, ino: Ino) -> PublishedSize {
        let file = self.of_file(ino);
        let cut = self.cutting.get(&ino);
        let most = cut.map_or(MAX_OFFSET, |cut| cut.to);
        PublishedSize {
            size: file.size.min(most),
            ..file
        }
    }

    /// Sets the size of a file; returns the earlier one.
    pub(in crate::cluster) fn set_size(&mut self, ino: Ino, size: u64) -> u64 {
        let file = self.sizes.entry(ino).or_default();
        std::mem::replace(&mut file.size, size)
    }

    /// Raises the size of a file.
    pub(super) fn raise_size(&mut self, ino: Ino, size: u64) {
        let file = self.sizes.entry(ino).or_default();
        file.size = file.size.max(size);
    }

    /// Adds to the stored bytes of a file; returns the sum.
    pub(super) fn add_stored(&mut self, ino: Ino, stored: i64) -> u64 {
        let file = self.sizes.entry(ino).or_default();
        file.stored = file.stored.saturating_add_signed(stored);
        file.stored
    }

    /// Counts those of a server's publishes that were not counted before. A server repeats a publish if it does not
    /// know that it arrived, also after a restart of either server. Returns the bytes that the new ones stored, and the
    /// last of them.
    pub(super) fn count_anew(
        &mut self,
        from: Rank,
        ino: Ino,
        publishes: &[(u64, i64)],
    ) -> (i64, Option<u64>) {
        let known = self.counted.get(&(ino, from)).copied().unwrap_or(0);
        let new = publishes.iter().filter(|(publish, _)| *publish > known);
        let stored = new
            .clone()
            .fold(0, |sum, (_, stored)| stored.saturating_add(sum));
        let last = new.map(|(publish, _)| *publish).max();
        if let Some(last) = last {
            self.counted.insert((ino, from), last);
        }
        (stored, last)
    }

    /// Forgets the publishes of a server to a file, which it will not repeat. Returns true if there
    /// were any.
    pub(super) fn forget_counted(&mut self, from: Rank, ino: Ino) -> bool {
        self.counted.remove(&(ino, from)).is_some()
    }

    /// Forgets a file that is gone; returns its size and stored bytes.
    pub(super) fn remove_file(&mut self, ino: Ino) -> PublishedSize {
        let its = (ino, Rank(0))..=(ino, Rank(u16::MAX));
        let counted: Vec<_> = self.counted.range(its).map(|(key, _)| *key).collect();
        for key in counted {
            self.counted.remove(&key);
        }
        self.sizes.remove(&ino).unwrap_or_default()
    }

    /// Notes that a file is being cut from now on.
    pub(super) fn begin_cut(&mut self, ino: Ino, to: u64) {
        let cutting = Cutting {
            to,
            old: self.of_file(ino).size,
            cut_here: false,
        };
        self.cutting.insert(ino, cutting);
    }

    /// Notes that a truncation has ended. Returns the end up to which bytes may have been published
    /// before it.
    pub(super) fn end_cut(&mut self, ino: Ino) -> u64 {
        self.cutting.remove(&ino).map_or(0, |cutting| cutting.old)
    }

    pub(super) fn is_being_cut(&self, ino: Ino) -> bool {
        self.cutting.contains_key(&ino)
    }

    /// Notes that this node has given up its unpublished bytes behind the new end.
    pub(super) fn note_cut_here(&mut self, ino: Ino) {
        if let Some(cutting) = self.cutting.get_mut(&ino) {
            cutting.cut_here = true;
        }
    }

    /// Notes that bytes of a file that is being cut may be published up to `end`.
    pub(super) fn note_behind(&mut self, ino: Ino, end: u64) {
        if let Some(cutting) = self.cutting.get_mut(&ino) {
            cutting.old = cutting.old.max(end);
        }
    }

    /// The offset at which a file ends for readers here. Extents behind it may still be known, but
    /// are being erased.
    pub(super) fn erased_from(&self, ino: Ino) -> u64 {
        let cutting = self.cutting.get(&ino).filter(|cutting| cutting.cut_here);
        cutting.map_or(MAX_OFFSET, |cutting| cutting.to)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: Ino = Ino(7);

    #[test]
    fn a_repeated_publish_is_counted_once() {
        let mut sizes = PublishedSizes::default();
        let from = Rank(1);
        let first = sizes.count_anew(from, FILE, &[(5, 100), (6, 20)]);
        assert_eq!(first, (120, Some(6)));
        let again = sizes.count_anew(from, FILE, &[(6, 20), (7, 3)]);
        assert_eq!(again, (3, Some(7)));
        assert_eq!(sizes.count_anew(from, FILE, &[(7, 3)]), (0, None));
        let other = sizes.count_anew(Rank(2), FILE, &[(5, 1)]);
        assert_eq!(other, (1, Some(5)), "of another server");
        sizes.remove_file(FILE);
        assert!(!sizes.forget_counted(from, FILE));
    }

    #[test]
    fn a_file_that_is_being_cut_has_two_sizes() {
        let mut sizes = PublishedSizes::default();
        sizes.set_size(FILE, 100);
        sizes.begin_cut(FILE, 40);
        assert_eq!(sizes.seen(FILE).size, 40, "other nodes see the new end");
        assert_eq!(sizes.erased_from(FILE), MAX_OFFSET, "readers here do not");
        sizes.note_cut_here(FILE);
        assert_eq!(sizes.erased_from(FILE), 40);
        let old = sizes.set_size(FILE, 40);
        sizes.note_behind(FILE, old);
        sizes.note_behind(FILE, 70);
        let recorded = sizes.item(FILE);
        assert!(matches!(recorded, Some(Item::Published(FILE, 100, 0))));
        assert_eq!(sizes.end_cut(FILE), 100);
        assert!(matches!(
            sizes.item(FILE),
            Some(Item::Published(FILE, 40, 0))
        ));
    }
}
