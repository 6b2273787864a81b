//! Extents: where the bytes of files are.
//!
//! Keeps: the blocks and cells of files that are open for writing, the index of what this node's clients wrote and did not publish, the published extents of
//! the slices that live here, and the answers of other slices' homes.
//!
//! Invariants: a byte of a log counts as living exactly while an index refers to it. The newest
//! publish wins. Every holder of cached extents sees the inode's generation change before the freed
//! bytes are used again.
//!
//! May call: `files` (sizes and leases), `storage`, `peers`, `journal`.
//!
//! | file | subject |
//! | --- | --- |
//! | `harvest`, `applied` | reading cells and rings into the index |
//! | `attach`, `writers` | files that are open for writing, and their writers' cells |
//! | `table`, `ranges` | the index of each file, and operations on its ranges |
//! | `pending` | what is not published |
//! | `publish` | telling the homes of slices |
//! | `publishes`, `slices` | what is on its way to them, and what they have |
//! | `locate` | finding extents, of any server |

use std::cell::RefCell;
use std::collections::BTreeMap;

use weir_core::journal;
use weir_core::types::Ino;

use crate::cluster::keyed::Keyed;
use crate::node::{SharedPlace, Visit};

pub(super) mod applied;
mod attach;
pub(super) mod harvest;
pub(super) mod locate;
mod pending;
pub(super) mod publish;
mod publishes;
pub(super) mod ranges;
mod slices;
pub(super) mod table;
pub(super) mod writers;

/// The state of this room that concerns several servers.
#[derive(Default)]
pub(in crate::cluster) struct ExtentsState {
    publishes: RefCell<publishes::Publishes>,
    /// Files that are being published from here.
    publishing: Keyed<Ino>,
    slices: RefCell<slices::SliceExtents>,
    /// The known published extents of files that programs of this node read.
    maps: RefCell<BTreeMap<Ino, locate::Map>>,
}

impl ExtentsState {
    /// Restores the state from the journal.
    pub(in crate::cluster) fn take_up(&self, state: &mut journal::Cluster) {
        let in_flight = std::mem::take(&mut state.in_flight);
        self.publishes.borrow_mut().take_up(in_flight);
        let indexes = std::mem::take(&mut state.kept);
        let answered = std::mem::take(&mut state.answered);
        let mut slices = self.slices.borrow_mut();
        slices.take_up(indexes, state.kept_stamp, answered);
    }

    /// Visits some of the published extents of this server's slices; returns the position to go on
    /// from.
    pub(in crate::cluster) fn show_slices(
        &self,
        from: SharedPlace,
        most: usize,
        visit: Visit<'_>,
    ) -> Option<SharedPlace> {
        self.slices.borrow().show_extents(from, most, visit)
    }

    /// Visits the publishes under way, and the answers to those of other servers.
    pub(in crate::cluster) fn show_publishes(&self, visit: Visit<'_>) {
        self.publishes.borrow().show_batches(visit);
        self.slices.borrow().show_answers(visit);
    }

    /// Returns true if a task of this node is publishing a file.
    pub(in crate::cluster) fn is_publishing(&self, ino: Ino) -> bool {
        self.publishing.is_held(&ino)
    }
}
