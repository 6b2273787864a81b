//! Files that have a part of their bytes on the parallel file system (PFS), while programs write them.
//!
//! Extents say which bytes those are: runs of the file's copy ([`Run::of_copy`]), with stamps like any other. So
//! a write lies over them, and a truncation cuts them. There are two ways to them:
//!
//! - ranges of a file that is open are evicted once the mover has copied them. It first *settles* the extents:
//!   claims end, and what is written from then on has greater stamps. A range that has such bytes when
//!   it is to be evicted has changed since, and stays;
//! - a file that was evicted as a whole is opened for writing: all its bytes become those of the copy.
//!
//! Only where one server has all extents of all files. With several, the homes of slices would have to do it.

use weir_core::extent::Run;
use weir_core::node::block::FileBlock;
use weir_core::proto::{CopyUse, EvictRanges, FsError, SettledExtents, MOST_RANGES};
use weir_core::types::Ino;

use crate::cluster::Cluster;
use crate::node::{Node, Platform};

impl<P: Platform> Cluster<P> {
    /// See [`weir_core::proto::SettleExtents`].
    pub(in crate::cluster) fn settle_extents_for_client(
        &self,
        ino: Ino,
    ) -> Result<Option<SettledExtents>, FsError> {
        match self.has_all_extents() {
            true => self.node(|node| node.settle_extents(ino).map(Some)),
            false => Ok(None),
        }
    }

    /// See [`weir_core::proto::EvictRanges`].
    pub(in crate::cluster) fn evict_ranges_for_client(
        &self,
        op: &EvictRanges,
    ) -> Result<u64, FsError> {
        match self.has_all_extents() {
            true => self.node(|node| node.evict_ranges(op)),
            false => Ok(0),
        }
    }
}

impl<P: Platform> Node<'_, P> {
    fn settle_extents(&mut self, ino: Ino) -> Result<SettledExtents, FsError> {
        self.regular(ino)?;
        let stamp = self.end_records(ino);
        self.extents.note_settled(self.block_of(ino), stamp);
        let generation = self.attr_now(ino)?.index_generation;
        Ok(SettledExtents { stamp, generation })
    }

    /// Ends all records of a file, and returns a stamp that separates them from later ones ([`FileBlock::settle`]);
    /// 0: the file has no writers.
    fn end_records(&mut self, ino: Ino) -> u64 {
        let stamp = self.shared_block(ino).map(FileBlock::settle);
        if stamp.is_some() {
            self.platform.barrier();
        }
        self.harvest(ino);
        stamp.unwrap_or(0)
    }

    fn evict_ranges(&mut self, op: &EvictRanges) -> Result<u64, FsError> {
        let EvictRanges { ino, settled, .. } = *op;
        let attr = self.regular(ino)?;
        let stamp = self.end_records(ino);
        let is_settled = match self.block_of(ino) {
            Some(block) => self.extents.settled_at(block) == Some(settled.stamp),
            // Nobody has written it since, if it had no writers then.
            None => settled.stamp == 0 && attr.index_generation == settled.generation,
        };
        if !is_settled || attr.evicted {
            return Ok(0);
        }
        let rank = self.identity.rank.0;
        let mut freed = 0;
        for range in op.ranges.iter().take(MOST_RANGES) {
            let run = Run::of_copy(range.start, range.end, stamp.max(1));
            let is_due = self.extents.are_settled(ino, range, settled.stamp, rank);
            if let (true, Ok(run)) = (is_due, run) {
                self.lay_run(ino, run, stamp > 0);
                freed += run.length;
            }
        }
        Ok(freed)
    }

    /// Has all bytes of an evicted file be those of its copy by extents, so that programs may write it.
    pub(in crate::cluster) fn begin_update_of_copy(&mut self, ino: Ino) -> Result<(), FsError> {
        let attr = self.regular(ino)?;
        if !attr.evicted {
            return Ok(());
        }
        if let Ok(run) = Run::of_copy(0, attr.size, 1) {
            self.lay_run(ino, run, false);
        }
        self.set_evicted(ino, false)
    }

    /// The part of a file that is on the PFS alone.
    pub(in crate::cluster) fn copy_use(&self, ino: Ino) -> Result<CopyUse, FsError> {
        let attr = self.regular(ino)?;
        Ok(match () {
            () if attr.evicted => CopyUse::Whole,
            () if self.extents.has_copy_runs(ino) => CopyUse::Part,
            () => CopyUse::None,
        })
    }
}
