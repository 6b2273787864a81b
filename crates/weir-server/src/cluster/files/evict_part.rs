//! Files that have a part of their bytes on the parallel file system (PFS), while programs write them.
//!
//! Extents name those bytes: runs of the file's copy ([`weir_core::extent::Run::of_copy`]), with stamps like any other.
//! So a write lies over them, and a truncation cuts them. They are laid in two cases:
//!
//! - ranges of an open file are evicted once the mover has copied them. The mover first *settles* the
//!   extents: records end, and later writes have greater stamps. A range with such bytes has changed since
//!   the copy, and is not evicted;
//! - a file that was evicted as a whole is opened for writing: extents over all its bytes then refer to the copy.
//!
//! With several servers, settling a file makes all nodes publish, and each home of slices notes its last stamp. Later
//! publishes lie over the copy. Bytes are given back when no node believes any more that they belong to the file, as in
//! the eviction of a whole file. `extents` lays this server's own extents (`copies.rs`).

use std::collections::BTreeSet;

use weir_core::names::{Lamination, Visibility};
use weir_core::proto::peer::{self, LogRange};
use weir_core::proto::{ByteRange, CopyUse, FsError, SettledExtents, MOST_RANGES};
use weir_core::types::{Ino, Rank};

use crate::cluster::abilities::NameTables;
use crate::cluster::extents::publish::bytes_of;
use crate::cluster::extents::WriteTables;
use crate::cluster::files::{Eviction, FileParts, FilesNeeds};

impl<S: FilesNeeds> Eviction<S> {
    /// Settles the extents of a file of this server; see [`weir_core::proto::SettleExtents`].
    pub(in crate::cluster) async fn settle_extents_at_home(
        &self,
        ino: Ino,
    ) -> Result<Option<SettledExtents>, FsError> {
        if self.server.has_all_extents() {
            return self
                .server
                .node(|node| node.writes().settle_extents(ino).map(Some));
        }
        let _alone = self.server.hold_for_change(ino).await?;
        if !self.is_known_everywhere(ino)? {
            return Ok(None);
        }
        let others = self.server.stand_ins().holders_of(ino);
        self.server
            .sharing()
            .publish_everywhere(ino, &others)
            .await?;
        let number = self.server.peers().token().number;
        let size = self.server.stand_ins().attr_at_home(ino).await?.size;
        for rank in self.server.extents().homes_of(ino, 0, size) {
            self.server
                .call(rank, peer::SettleSlices { ino, number })
                .await?;
        }
        Ok(Some(SettledExtents {
            stamp: number,
            generation: 0,
        }))
    }

    /// Returns true if all nodes that may have a file of this server open can be asked and publish their writes, and no
    /// node keeps its extents for good.
    fn is_known_everywhere(&self, ino: Ino) -> Result<bool, FsError> {
        let attr = self.server.node(|node| node.names().regular(ino))?;
        let is_laminated = attr.lamination != Lamination::No;
        let is_published = attr.policy.visibility != Visibility::ReadAfterLaminate;
        Ok(is_published
            && !is_laminated
            && !self.server.stand_ins().awaits_writer(ino)
            && self.server.appends().silent_servers().is_empty())
    }

    /// Evicts ranges of a file of this server; see [`weir_core::proto::EvictRanges`].
    pub(in crate::cluster) async fn evict_ranges_at_home(
        &self,
        op: peer::EvictRanges,
    ) -> Result<u64, FsError> {
        if self.server.has_all_extents() {
            return self.server.node(|node| node.writes().evict_ranges(&op));
        }
        let ino = op.ino;
        let _alone = self.server.hold_for_change(ino).await?;
        let is_evicted = self.server.node(|node| node.names().regular(ino))?.evicted;
        if is_evicted || !self.is_known_everywhere(ino)? {
            return Ok(0);
        }
        let settled = Some(op.settled.stamp);
        let freed = self.lay_copy_everywhere(ino, settled, op.ranges).await?;
        let bytes = freed.iter().map(|range| range.len).sum();
        self.server.extents().give_back(freed).await;
        Ok(bytes)
    }

    /// Makes ranges of a file of this server refer to its copy, and all nodes forget its earlier extents. Returns the
    /// bytes of logs that become free.
    async fn lay_copy_everywhere(
        &self,
        ino: Ino,
        settled: Option<u64>,
        mut ranges: Vec<ByteRange>,
    ) -> Result<Vec<LogRange>, FsError> {
        ranges.truncate(MOST_RANGES);
        let homes = |range: &ByteRange| self.server.extents().homes_of(ino, range.start, range.end);
        let homes: BTreeSet<Rank> = ranges.iter().flat_map(homes).collect();
        let lay = peer::LayCopy {
            ino,
            settled,
            ranges,
        };
        let laid = self.server.extents().free_in_slices(ino, homes, lay).await;
        self.server.stand_ins().recall_here(ino);
        self.server.stand_ins().recall_leases(ino, None).await;
        laid
    }

    /// Prepares an evicted file of this server for writes; see [`weir_core::proto::BeginUpdate`].
    pub(in crate::cluster) async fn begin_update_at_home(&self, ino: Ino) -> Result<(), FsError> {
        if self.server.has_all_extents() {
            return self.server.node(|node| node.writes().begin_update(ino));
        }
        let _alone = self.server.hold_for_change(ino).await?;
        let attr = self.server.node(|node| node.names().regular(ino))?;
        if !attr.evicted {
            return Ok(());
        }
        let (start, end) = (0, attr.size);
        // All nodes know these runs before they hear that gaps are holes again.
        let freed = self
            .lay_copy_everywhere(ino, None, vec![ByteRange { start, end }])
            .await?;
        let size = i64::try_from(attr.size).unwrap_or(i64::MAX);
        self.server
            .stand_ins()
            .add_stored(ino, size - bytes_of(&freed));
        self.server.extents().give_back(freed).await;
        self.mark_evicted(ino, false).await
    }

    /// The part of a file of this server that is only on the PFS.
    pub(in crate::cluster) async fn copy_use_at_home(&self, ino: Ino) -> Result<CopyUse, FsError> {
        let used = self.server.node(|node| node.writers().copy_use(ino))?;
        if self.server.has_all_extents() || used != CopyUse::None {
            return Ok(used);
        }
        let size = self.server.stand_ins().attr_at_home(ino).await?.size;
        for rank in self.server.extents().homes_of(ino, 0, size) {
            if self.server.call(rank, peer::HasCopyRuns { ino }).await? {
                return Ok(CopyUse::Part);
            }
        }
        Ok(CopyUse::None)
    }
}
