//! Extents of this node that refer to a file's copy on the parallel file system, and the end of the file's records
//! before such extents are laid. Their use is described in `files/evict_part.rs`.

use weir_core::extent::{Piece, PieceSource, Run};
use weir_core::node::block::FileBlock;
use weir_core::proto::{peer, ByteRange, CopyUse, FsError, SettledExtents, MOST_RANGES};
use weir_core::types::Ino;

use crate::cluster::extents::slices::{has_copy_runs, is_covered_by};
use crate::cluster::extents::{ExtentTables, NodeWriters, NodeWrites};
use crate::node::Platform;

impl ExtentTables {
    /// Returns true if all bytes of a range are in logs of this server, written before a stamp.
    fn are_settled(&self, ino: Ino, range: &ByteRange, stamp: u64, rank: u16) -> bool {
        let is_settled = |piece: &Piece| {
            let is_here = matches!(piece.source, PieceSource::Log { rank: of, .. } if of == rank);
            is_here && piece.stamp <= stamp
        };
        let index = self.indexes.get(ino);
        index.is_some_and(|index| is_covered_by(index, range.start, range.end, &is_settled))
    }
}

impl NodeWriters<'_, '_> {
    /// How a file uses its copy.
    pub(in crate::cluster) fn copy_use(self, ino: Ino) -> Result<CopyUse, FsError> {
        let attr = self.names.regular(ino)?;
        let index = self.tables.indexes.get(ino);
        Ok(match () {
            () if attr.evicted => CopyUse::Whole,
            () if index.is_some_and(has_copy_runs) => CopyUse::Part,
            () => CopyUse::None,
        })
    }
}

impl<P: Platform> NodeWrites<'_, '_, P> {
    /// Makes this node's writers of a raw file ask before they write, from now on. When this returns, the record of
    /// each write that did not ask is in the cells, or that write will still find that it must ask.
    pub(in crate::cluster) fn revoke_writes(&self, local: Ino) {
        if let Some(block) = self.writers().shared_block(local) {
            block.revoke();
            self.platform.barrier();
        }
    }

    /// Settles the extents of a file: later writes get greater stamps, and are no part of a copy made now.
    pub(in crate::cluster) fn settle_extents(
        &mut self,
        ino: Ino,
    ) -> Result<SettledExtents, FsError> {
        self.names.regular(ino)?;
        let stamp = self.end_records(ino);
        let block = self.writers().block_of(ino);
        if let Some(file) = block.and_then(|block| self.tables.blocks.get_mut(block)) {
            file.settled = stamp;
        }
        let generation = self.names.attr_of(ino)?.index_generation;
        Ok(SettledExtents { stamp, generation })
    }

    /// Ends all records of a file, and returns a stamp that separates them from later ones ([`FileBlock::settle`]);
    /// 0: the file has no writers.
    fn end_records(&mut self, ino: Ino) -> u64 {
        let stamp = self.writers().shared_block(ino).map(FileBlock::settle);
        if stamp.is_some() {
            self.platform.barrier();
        }
        self.harvest(ino);
        stamp.unwrap_or(0)
    }

    /// Makes ranges of a file refer only to its copy, if they are unchanged since the settling. Returns the number of
    /// bytes that become free.
    pub(in crate::cluster) fn evict_ranges(
        &mut self,
        op: &peer::EvictRanges,
    ) -> Result<u64, FsError> {
        let peer::EvictRanges { ino, settled, .. } = *op;
        let attr = self.names.regular(ino)?;
        let stamp = self.end_records(ino);
        let is_settled = match self.writers().file_of(ino) {
            Some((_, file)) => file.settled > 0 && file.settled == settled.stamp,
            // It had no writers then, and the same generation means that nobody has written it since.
            None => settled.stamp == 0 && attr.index_generation == settled.generation,
        };
        if !is_settled || attr.evicted {
            return Ok(0);
        }
        let mut freed = 0;
        for range in op.ranges.iter().take(MOST_RANGES) {
            let run = Run::of_copy(range.start, range.end, stamp.max(1));
            let tables = &self.tables;
            let is_due = tables.are_settled(ino, range, settled.stamp, self.rank);
            if let (true, Ok(run)) = (is_due, run) {
                self.lay_run(ino, run, stamp > 0);
                freed += run.length;
            }
        }
        Ok(freed)
    }

    /// Begins an update of an evicted file: an extent refers to its copy from now on, and programs can write over it.
    pub(in crate::cluster) fn begin_update(&mut self, ino: Ino) -> Result<(), FsError> {
        let attr = self.names.regular(ino)?;
        if !attr.evicted {
            return Ok(());
        }
        if let Ok(run) = Run::of_copy(0, attr.size, 1) {
            self.lay_run(ino, run, false);
        }
        self.names.set_evicted(ino, false)
    }
}
