//! Lending segments, and making room.
//!
//! The server looks for room in this order: free units; space that was deleted, overwritten or closed and not
//! harvested yet; the unused ends of other clients' segments; dead bytes between living ones (gaps). If all
//! of these fail, there is no room. After each such look the server lends up to [`LOOK_EVERY`] gaps, if there
//! are no free units, before it looks through all of it again.

use std::sync::atomic::Ordering;

use weir_core::journal::Item;
use weir_core::proto::{self, FsError, Lent, Served, Tier};
use weir_core::types::{ClientId, SegmentId};

use crate::cluster::abilities::Waits;
use crate::cluster::clients::table::{Clients, Lease};
use crate::cluster::peers::calls::ServerCalls;
use crate::cluster::storage::SegmentTables;
use crate::cluster::Cluster;
use crate::node::{ClientMemory, Node, Platform, Space};

/// The number of gaps lent before the server looks for whole units again.
pub(super) const LOOK_EVERY: u32 = 256;
/// Segments are lent and taken back in multiples of this many bytes.
const UNIT_BYTES: u64 = 1 << 20;
/// No segment takes more than one part in so many of the node's capacity, unless that is less than [`UNIT_BYTES`], or a
/// client needs more at once. A file reserves bytes of its writer's segment which the server cannot take back; in a
/// small instance a few writers of several files each would hold all of it.
const SEGMENTS_AT_LEAST: u64 = 32;

impl<P: Platform> Cluster<P> {
    /// Lends a segment. If there is no room, publishes first: that frees the bytes that unpublished
    /// bytes overwrite.
    pub(in crate::cluster) fn lend_segment(
        &self,
        to: ClientId,
        op: &proto::Segment,
    ) -> Served<Result<Lent, FsError>> {
        let proto::Segment {
            min_bytes,
            want_bytes,
        } = *op;
        match self.node(|node| node.lend_segment(to, min_bytes, want_bytes)) {
            Err(FsError::NoSpace) if !self.has_all_extents() => {}
            lent => return Served::Now(lent),
        }
        self.later(|this| async move {
            for ino in this.extents().dirty() {
                // A server that is not reached frees nothing.
                let _ = this.extents().publish(ino).await;
            }
            this.node(|node| node.lend_segment(to, min_bytes, want_bytes))
        })
    }
}

impl<S: Space> SegmentTables<S> {
    /// Notes that a client could not write into a segment; other clients could not either. Returns
    /// false if the segment is not lent to this client.
    pub(in crate::cluster) fn refused<M>(
        &mut self,
        clients: &Clients<M>,
        id: ClientId,
        segment: SegmentId,
    ) -> bool {
        let client = clients.get(id);
        let held = client.is_some_and(|client| client.find_lease(segment).is_some());
        if held {
            self.space.refused(segment);
        }
        held
    }
}

impl<P: Platform> Node<'_, P> {
    /// Lends a client a segment. Deleted and overwritten bytes make room at once.
    pub(in crate::cluster) fn lend_segment(
        &mut self,
        id: ClientId,
        min: u64,
        want: u64,
    ) -> Result<Lent, FsError> {
        if min == 0 || self.clients.get(id).is_none() {
            return Err(FsError::Invalid);
        }
        let want = want.min(self.segments.largest_segment).max(min);
        let free = self.segments.space.grant(id, min, want);
        let lent = free.or_else(|| self.lend_in_need(id, min, want));
        let lent = lent.ok_or(FsError::NoSpace)?;
        if lent.tier == Tier::File {
            // This comes before any client can write there, so that a client that syncs sees it.
            self.open.hub.uses_files.store(1, Ordering::Release);
        }
        if let Some(client) = self.clients.get_mut(id) {
            client.memory.header().tail.forget_taken();
            let lease = client.lease(&lent);
            self.changes.note(&lease.item(id));
        }
        Ok(lent)
    }

    fn lend_in_need(&mut self, id: ClientId, min: u64, want: u64) -> Option<Lent> {
        if self.segments.gaps_lent < LOOK_EVERY {
            if let Some(gap) = self.segments.space.grant_gap(id) {
                self.segments.gaps_lent += 1;
                return Some(gap);
            }
        }
        self.segments.gaps_lent = 0;
        self.take_in_all();
        let free = self.segments.space.grant(id, min, want);
        free.or_else(|| {
            self.take_tails(id);
            self.segments.space.grant(id, min, want)
        })
        .or_else(|| self.segments.space.grant_gap(id))
    }

    /// Takes back the unused ends of other clients' segments.
    fn take_tails(&mut self, asks: ClientId) {
        for id in self.clients.ids() {
            let Some(client) = self.clients.get(id).filter(|_| id != asks) else {
                continue;
            };
            let Some((segment, tail)) = client.memory.header().tail.current() else {
                continue;
            };
            let segment = SegmentId(segment);
            let lease = client.find_lease(segment);
            let within = |lease: &&Lease| lease.pos <= tail.pos && tail.end <= lease.end;
            let Some(lease) = lease
                .copied()
                .filter(|_| !client.ghost)
                .filter(|l| within(&l))
            else {
                continue;
            };
            let words = &client.memory.header().tail;
            if !tail.in_use {
                if words.take(&tail, tail.pos, true) {
                    self.end_lease(id, segment);
                }
                continue;
            }
            let used = (tail.pos - lease.pos).max(1);
            let keep = used.next_multiple_of(UNIT_BYTES);
            let end = lease.pos + keep;
            if end < tail.end
                && words.take(&tail, end, false)
                && self.segments.space.trim(segment, keep)
            {
                let client = self.clients.get_mut(id);
                if let Some(lease) = client.and_then(|client| client.shorten_lease(segment, end)) {
                    self.changes.note(&lease.item(id));
                }
            }
        }
    }

    /// Ends the lease of a segment that a client no longer writes into.
    pub(in crate::cluster) fn end_lease(&mut self, id: ClientId, segment: SegmentId) -> bool {
        // A record in the segment may be in a cell only.
        self.writes().harvest_client(id);
        let held = self
            .clients
            .get_mut(id)
            .is_some_and(|client| client.end_lease(segment));
        if held {
            self.changes.note(&Item::SegmentReturned(segment));
            self.segments.space.release(segment);
        }
        held
    }
}

/// The length of the longest segment to lend on a node of this capacity.
pub(super) fn largest_segment_of(capacity_bytes: u64) -> u64 {
    let share = capacity_bytes / SEGMENTS_AT_LEAST;
    share
        .checked_ilog2()
        .map_or(0, |log| 1 << log)
        .max(UNIT_BYTES)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_nodes_lend_small_segments() {
        const MIB: u64 = 1 << 20;
        for (capacity, largest) in [
            (0, MIB),
            (1, MIB),
            (48 * MIB, MIB),
            (64 * MIB, 2 * MIB),
            (127 * MIB, 2 * MIB),
            (2048 * MIB, 64 * MIB),
            (u64::MAX, 1 << 58),
        ] {
            assert_eq!(largest_segment_of(capacity), largest, "of {capacity}");
        }
    }
}
