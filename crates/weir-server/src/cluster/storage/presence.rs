//! Memory behind the tables that are shared with clients, before they are touched.
//!
//! The tables are sparse files. When a process first touches a page for which the file system has
//! no room, the kernel kills it. So a table is used only as far as [`Platform::present`] says that
//! there is memory; an operation that needs more gets `NoSpace`.
//!
//! The tables of names grow ahead, whenever changes are committed: an operation in between takes
//! far less than [`AHEAD`]. The others grow when an entry is to be lent.

use weir_core::names::Reach;

use crate::cluster::slots::Slots;
use crate::node::{Node, Platform, Table};

/// The part of the tables of names that has memory and is not used yet is at least this large.
const AHEAD: Reach = Reach {
    inodes: 1024,
    arena_words: 64 << 10,
    buckets: 1024,
};

/// The number of slots as a count of entries.
fn count(slots: u32) -> usize {
    usize::try_from(slots).unwrap_or(usize::MAX)
}

impl<P: Platform> Node<'_, P> {
    /// Allocates memory for more names, if there is any.
    pub(in crate::cluster) fn make_room_for_names(&mut self) {
        let (high, now) = (self.names.high(), self.names_present);
        let wanted = Reach {
            inodes: high.inodes.saturating_add(AHEAD.inodes),
            arena_words: high.arena_words.saturating_add(AHEAD.arena_words),
            buckets: high.buckets.saturating_add(AHEAD.buckets),
        };
        let enough = wanted.inodes <= now.inodes
            && wanted.arena_words <= now.arena_words
            && wanted.buckets <= now.buckets;
        if enough {
            return;
        }
        let slots = |table, wanted: u32, now: u32| {
            let present = self.platform.present(table, count(wanted));
            u32::try_from(present).unwrap_or(u32::MAX).max(now)
        };
        let words = usize::try_from(wanted.arena_words).unwrap_or(usize::MAX);
        let words = self.platform.present(Table::Arena, words) as u64;
        let present = Reach {
            inodes: slots(Table::Inodes, wanted.inodes, now.inodes),
            arena_words: words.max(now.arena_words),
            buckets: slots(Table::Buckets, wanted.buckets, now.buckets),
        };
        if present != now {
            self.names_present = present;
            self.names.set_present(present);
        }
    }
}

/// Allocates memory for another slot of a table, if none is free.
pub(in crate::cluster) fn grow<P: Platform, T>(platform: &P, table: Table, slots: &mut Slots<T>) {
    if let Some(wanted) = slots.wants() {
        slots.allow(platform.present(table, wanted));
    }
}
