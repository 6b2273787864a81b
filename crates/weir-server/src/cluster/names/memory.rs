//! Memory behind the tables of names. They grow ahead of use, whenever changes are committed: the operations in between
//! use far less than [`AHEAD`].

use weir_core::names::TablesPrefix;

use crate::cluster::node_names::NodeNames;
use crate::node::{Platform, Table};

/// The memory that the tables of names in shared memory have.
pub(in crate::cluster) struct NamesMemory {
    /// The part of the tables of inodes and entries that has memory.
    present: TablesPrefix,
    /// The time of the last try to get memory for the table of known names, ns since 1970.
    pub(super) known_tried_ns: i64,
}

impl Default for NamesMemory {
    fn default() -> NamesMemory {
        NamesMemory {
            present: TablesPrefix {
                inodes: 0,
                arena_words: 0,
                buckets: 0,
            },
            known_tried_ns: i64::MIN / 2,
        }
    }
}

/// The part of the tables of names that has memory and is not used yet is at least this large.
const AHEAD: TablesPrefix = TablesPrefix {
    inodes: 1024,
    arena_words: 64 << 10,
    buckets: 1024,
};

/// The number of slots as a count of entries.
fn count(slots: u32) -> usize {
    usize::try_from(slots).unwrap_or(usize::MAX)
}

impl NamesMemory {
    /// Allocates memory for more names, if there is any.
    pub(in crate::cluster) fn make_room(
        &mut self,
        names: &mut NodeNames<'_>,
        platform: &impl Platform,
    ) {
        let (high, now) = (names.used(), self.present);
        let wanted = TablesPrefix {
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
            let present = platform.present(table, count(wanted));
            u32::try_from(present).unwrap_or(u32::MAX).max(now)
        };
        let words = usize::try_from(wanted.arena_words).unwrap_or(usize::MAX);
        let words = platform.present(Table::Arena, words) as u64;
        let present = TablesPrefix {
            inodes: slots(Table::Inodes, wanted.inodes, now.inodes),
            arena_words: words.max(now.arena_words),
            buckets: slots(Table::Buckets, wanted.buckets, now.buckets),
        };
        if present != now {
            self.present = present;
            names.set_present(present);
        }
    }
}
