//! Segments, and making room.

use weir_core::journal::Item;
use weir_core::proto::{FsError, FsStat, Lent};
use weir_core::types::{ClientId, SegmentId};

use super::{Node, Platform, Space};

impl<P: Platform> Node<'_, P> {
    /// Lends a client a segment. What was deleted or overwritten makes room at once.
    pub(crate) fn lend_segment(
        &mut self,
        id: ClientId,
        min: u64,
        want: u64,
    ) -> Result<Lent, FsError> {
        if min == 0 || self.clients.get(id).is_none() {
            return Err(FsError::Invalid);
        }
        let want = want.max(min);
        let mut lent = self.space.grant(id, min, want);
        if lent.is_none() {
            self.reclaim();
            lent = self.space.grant(id, min, want);
        }
        let lent = lent.ok_or(FsError::NoSpace)?;
        if let Some(client) = self.clients.get_mut(id) {
            let lease = client.lease(&lent);
            self.note(&lease.item(id));
        }
        Ok(lent)
    }

    /// Does all that may free space.
    pub(crate) fn reclaim(&mut self) {
        self.take_all_notes();
        self.harvest_all();
        self.sweep();
    }

    /// A client no longer writes into a segment.
    pub(crate) fn end_lease(&mut self, id: ClientId, segment: SegmentId) -> bool {
        // A record in it may be in a cell only.
        self.harvest_client(id);
        let held = self
            .clients
            .get_mut(id)
            .is_some_and(|client| client.end_lease(segment));
        if held {
            self.note(&Item::Returned(segment));
            self.space.release(segment);
        }
        held
    }

    /// Room for statvfs.
    pub(crate) fn room(&self) -> FsStat {
        let tiers = self.space.usage();
        let counts = self.names.counts();
        let capacity_bytes = tiers.iter().map(|tier| tier.budget_bytes).sum();
        let free_bytes = tiers
            .iter()
            .map(|tier| tier.budget_bytes.saturating_sub(tier.lent_bytes))
            .sum();
        let used = counts.files + counts.dirs + counts.symlinks;
        FsStat {
            capacity_bytes,
            free_bytes,
            inodes: counts.max_inodes,
            free_inodes: counts.max_inodes.saturating_sub(used),
        }
    }
}
