//! Unpublished extents, which this node's programs wrote.

use weir_core::extent::{Run, Source};
use weir_core::journal::Item;
use weir_core::proto::peer::LogRange;
use weir_core::proto::FsError;
use weir_core::types::Ino;

use crate::cluster::extents::{ExtentTables, NodeWrites};
use crate::node::Platform;

/// The unpublished writes of a node to a file.
#[derive(Clone, Debug, Default)]
pub struct Pending {
    /// The runs, no two of which overlap.
    pub runs: Vec<Run>,
    /// The file's size according to this node.
    pub size: u64,
    /// The time of the last write, ns since 1970.
    pub mtime_ns: i64,
}

impl ExtentTables {
    /// Returns true if a process of this node writes, or if this node has unpublished extents.
    pub(in crate::cluster) fn has_writers(&self) -> bool {
        self.blocks.iter().next().is_some() || self.indexes.not_empty().next().is_some()
    }
}

impl<P: Platform> NodeWrites<'_, '_, P> {
    /// The files that have unpublished extents.
    pub(super) fn unpublished(&mut self) -> Vec<Ino> {
        self.harvest_all();
        let (files, names) = (&self.tables.indexes, &*self.names);
        files.not_empty().map(|index| names.ino_at(index)).collect()
    }

    /// Takes the unpublished extents of a file. Later writes go to new records, and so are not
    /// published by accident. The taken bytes stay alive.
    pub(super) fn take_pending(&mut self, local: Ino) -> Result<Pending, FsError> {
        let attr = self.names.regular(local)?;
        if let Some(block) = self.writers().shared_block(local) {
            block.end_claims();
        }
        self.harvest(local);
        let mut pending = Pending {
            size: self.writers().size_of(&attr),
            mtime_ns: self.writers().mtime_of(&attr),
            runs: Vec::new(),
        };
        if self.tables.has_extents(local) {
            self.note_taken(local, attr.home);
        }
        let index = std::mem::take(self.tables.indexes.get_mut(local));
        // Holes are not published: the slices' homes have erased those ranges themselves.
        index.for_each_run(&mut |run| {
            if run.source != Source::Hole {
                pending.runs.push(run);
            }
        });
        for run in &pending.runs {
            run.for_each_log_range(&mut |range| {
                self.tables
                    .published_log
                    .add(range.slab, range.pos, range.len);
            });
        }
        Ok(pending)
    }

    /// Appends the unpublished runs of `[from, to)`, at most `max`, to `out`. Returns the offset up
    /// to which `out` has all of them.
    pub(in crate::cluster) fn pending_runs(
        &mut self,
        local: Ino,
        from: u64,
        to: u64,
        max: usize,
        out: &mut Vec<Run>,
    ) -> u64 {
        self.harvest(local);
        match self.tables.indexes.get(local) {
            Some(index) => index.runs_in(from, to, max, out).hi,
            None => to,
        }
    }

    /// Frees bytes of this server's log.
    pub(super) fn free_bytes(&mut self, range: &LogRange) {
        self.tables
            .published_log
            .remove(range.slab, range.pos, range.len);
        self.changes.note(&Item::LogFreed(*range));
        self.segments.freed(range.slab, range.pos, range.len);
    }

    /// The slabs of storage directories that have bytes of these runs.
    pub(super) fn file_slabs_of(&self, runs: &[Run]) -> Vec<u32> {
        let slabs = runs.iter().filter_map(|run| match run.source {
            Source::Log { slab, .. } if self.segments.is_file(slab) => Some(slab),
            _ => None,
        });
        slabs.collect()
    }

    /// Sets the number of a file's bytes that are stored beside those in its index here.
    pub(in crate::cluster) fn set_stored(&mut self, ino: Ino, bytes: u64) {
        self.tables.keep_stored(ino, bytes);
        self.tables.changed.push(ino);
        self.announce_changes();
    }

    /// Notes the part of a cell's record that is in the index and was not noted yet.
    pub(super) fn note_written(&mut self, cell: u32) {
        let rank = self.rank;
        let Some(writer) = self.tables.cells.get_mut(cell) else {
            return;
        };
        let runs = writer.noted.beyond(&writer.applied, rank);
        writer.noted = writer.applied;
        let block = writer.block;
        let Some(ino) = self.tables.blocks.get(block).map(|file| file.ino) else {
            return;
        };
        if !runs.is_empty() {
            self.changes.note(&Item::IndexRuns(ino, runs));
        }
    }

    /// Notes that all extents in a file's index are taken out of it to be published. `home` is the
    /// file's global number.
    fn note_taken(&mut self, local: Ino, home: Ino) {
        for cell in self.writers().cells_of(local).to_vec() {
            self.note_written(cell);
            if let Some(noted) = self.tables.cells.get(cell).map(|writer| writer.noted) {
                if noted.stamp != 0 {
                    self.changes.note(&Item::CellMarked(cell, noted.mark()));
                }
            }
        }
        self.changes.note(&Item::PublishBegun(local, home));
    }

    /// Clears the index of a file that is gone.
    pub(in crate::cluster) fn clear_extents(&mut self, ino: Ino) {
        if self.tables.has_extents(ino) {
            self.change(ino, |index, freed, _| index.clear(freed));
            self.changes.note(&Item::IndexCleared(ino));
            self.announce_changes();
        }
    }
}
