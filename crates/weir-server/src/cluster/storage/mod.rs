//! Storage: segments that clients are lent, and memory behind shared tables.
//!
//! Keeps: the space that segments are cut from; `Platform` keeps the rest.
//!
//! Invariant: no process touches a page of shared memory that is not known to have memory.
//!
//! May use: [`relief::ReliefNeeds`]; `space` publishes by `extents`.
//!
//! Interface: `lend_segment`, `end_lease`, which stay on `Node`, since they harvest the writes of clients;
//! `SegmentTables` counts the living bytes of slabs for `extents`; `grow` gets memory for a table.
//!
//! | file | subject |
//! | --- | --- |
//! | `space` | lending and taking back segments |
//! | `relief` | writes that wait for room |
//! | `presence` | memory behind tables, before they are touched |

use weir_core::names::Counts;
use weir_core::proto::{FsStat, TierStatus};
use weir_core::types::SegmentId;

use crate::node::{Accounts, RecoverError, Space};

pub(super) mod presence;
pub(super) mod relief;
mod space;

/// The segments of this server.
pub(in crate::cluster) struct SegmentTables<S> {
    space: S,
    /// The number of gaps lent since the server last did everything that may make room.
    gaps_lent: u32,
    /// The length of the longest segment to lend, bytes: a power of two.
    largest_segment: u64,
}

impl<S: Space> SegmentTables<S> {
    pub(in crate::cluster) fn new(space: S) -> SegmentTables<S> {
        let capacity_bytes = space.usage().iter().map(|tier| tier.budget_bytes).sum();
        SegmentTables {
            largest_segment: space::largest_segment_of(capacity_bytes),
            space,
            gaps_lent: space::LOOK_EVERY,
        }
    }

    /// See [`Space::add_live`].
    pub(in crate::cluster) fn add_live(&mut self, slab: u32, pos: u64, len: u64) {
        self.space.add_live(slab, pos, len);
    }

    /// See [`Space::freed`].
    pub(in crate::cluster) fn freed(&mut self, slab: u32, pos: u64, len: u64) {
        self.space.freed(slab, pos, len);
    }

    /// See [`Space::release`].
    pub(in crate::cluster) fn release(&mut self, segment: SegmentId) {
        self.space.release(segment);
    }

    /// See [`Space::is_file`].
    pub(in crate::cluster) fn is_file(&self, slab: u32) -> bool {
        self.space.is_file(slab)
    }

    /// The room for statvfs, in a file system with these names.
    pub(in crate::cluster) fn room(&self, names: &Counts) -> FsStat {
        let tiers = self.space.usage();
        let used = names.files + names.dirs + names.symlinks;
        let free = |tier: &TierStatus| tier.budget_bytes.saturating_sub(tier.lent_bytes);
        FsStat {
            capacity_bytes: tiers.iter().map(|tier| tier.budget_bytes).sum(),
            free_bytes: tiers.iter().map(free).sum(),
            inodes: names.max_inodes,
            free_inodes: names.max_inodes.saturating_sub(used),
        }
    }

    /// See [`Space::usage`].
    pub(in crate::cluster) fn usage(&self) -> Vec<TierStatus> {
        self.space.usage()
    }

    /// See [`Space::resume`].
    pub(in crate::cluster) fn resume(&mut self, accounts: &Accounts) -> Result<(), RecoverError> {
        self.space.resume(accounts)
    }
}
