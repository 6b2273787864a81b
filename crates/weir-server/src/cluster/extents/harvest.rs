//! Harvesting: reading the clients' cells and rings into the index.
//!
//! The server reads a cell *before* it empties the ring of the cell's client. The client pushes a
//! record to the ring before its cell moves on, so a record that the cell no longer showed is in
//! the ring. Stamps rise within one cell, so the server takes the ring's records first and then the
//! record that the cell showed.

use std::collections::BTreeSet;
use std::sync::Arc;

use weir_core::extent::{ExtentIndex, FreedRange};
use weir_core::names::SetAttr;
use weir_core::node::ring::Record;
use weir_core::types::{ClientId, Ino};

use crate::cluster::extents::applied::{Applied, InvalidRecord};
use crate::cluster::extents::writers::Writer;
use crate::cluster::extents::NodeWrites;
use crate::node::{ClientMemory, Platform};

impl<P: Platform> NodeWrites<'_, '_, P> {
    /// Harvests all that was written to `ino` before this call.
    pub(in crate::cluster) fn harvest(&mut self, ino: Ino) {
        let cells = self.writers().cells_of(ino);
        if !cells.is_empty() {
            let shown = self.read_cells(cells.iter().copied());
            self.take_shown(&shown);
        }
    }

    /// Harvests all that a client wrote before this call.
    pub(in crate::cluster) fn harvest_client(&mut self, id: ClientId) {
        let Some(client) = self.clients.get(id) else {
            return;
        };
        let shown = self.read_cells(client.cells.iter().copied());
        self.take_shown(&shown);
        self.harvest_ring(id);
    }

    /// Harvests the records in a client's ring, for all files.
    pub(in crate::cluster) fn harvest_ring(&mut self, id: ClientId) {
        self.drain(id);
        self.announce_changes();
    }

    /// Harvests all that any client wrote before this call.
    pub(in crate::cluster) fn harvest_all(&mut self) {
        for id in self.clients.ids() {
            self.harvest_client(id);
        }
    }

    fn read_cells(&self, cells: impl Iterator<Item = u32>) -> Vec<(u32, Applied)> {
        cells
            .filter_map(|cell| {
                let (state, live) = self.open.cells.get(cell as usize)?.state();
                Some((cell, Applied::of_state(&state, live)))
            })
            .collect()
    }

    fn take_shown(&mut self, shown: &[(u32, Applied)]) {
        let owners: BTreeSet<ClientId> = shown
            .iter()
            .filter_map(|(cell, _)| Some(self.tables.cells.get(*cell)?.client))
            .collect();
        for id in owners {
            self.drain(id);
        }
        for (cell, record) in shown {
            if self.take_record(*cell, record, true).is_err() {
                self.stats
                    .reject("cell", || format!("cell {cell}: {record:?}"));
            }
        }
        self.announce_changes();
    }

    /// Empties a client's ring of records, for all files.
    fn drain(&mut self, id: ClientId) {
        let Some(client) = self.clients.get(id) else {
            return;
        };
        let memory = Arc::clone(&client.memory);
        let ring = memory.records();
        let (first, end) = (client.taken, ring.ends.waiting(ring.slots.len()));
        for place in first..end {
            let Some(record) = ring.peek(place) else {
                break;
            };
            if self.take_closed(id, &record).is_err() {
                self.stats
                    .reject("record", || format!("client {}: {record:?}", id.0));
            }
        }
        if let Some(client) = self.clients.get_mut(id).filter(|_| first < end) {
            client.taken = end;
            self.changes.hold_ring(id);
        }
    }

    fn take_closed(&mut self, id: ClientId, record: &Record) -> Result<(), InvalidRecord> {
        let writer = self.tables.cells.get(record.cell).ok_or(InvalidRecord)?;
        if writer.client != id {
            return Err(InvalidRecord);
        }
        let record_so_far = writer.applied.extended_by(record)?;
        self.take_record(record.cell, &record_so_far, false)?;
        self.note_written(record.cell);
        Ok(())
    }

    /// Puts the new part of a cell's record into the index of its file. An earlier state is no
    /// error if the cell was read before the ring (`early`), or if it belongs to the current
    /// record.
    fn take_record(&mut self, cell: u32, new: &Applied, early: bool) -> Result<(), InvalidRecord> {
        let writer = *self.tables.cells.get(cell).ok_or(InvalidRecord)?;
        let old = writer.applied;
        if new.stamp < old.stamp || new.stamp == 0 {
            return early.then_some(()).ok_or(InvalidRecord);
        }
        let mut had = 0;
        if new.stamp == old.stamp {
            if old.covers(new) {
                return Ok(());
            }
            had = old.bytes()?;
        }
        let bytes = self.check(&writer, new, had)?;
        if bytes == had {
            return Ok(());
        }
        let file = self.tables.blocks.get(writer.block);
        let ino = file.ok_or(InvalidRecord)?.ino;
        self.segments.add_live(new.slab, new.pos + had, bytes - had);
        self.change(ino, |index, freed, rank| old.apply(new, index, freed, rank))
            .map_err(|_| InvalidRecord)?;
        if let Some(writer) = self.tables.cells.get_mut(cell) {
            writer.applied = *new;
        }
        Ok(())
    }

    /// Checks a record that differs from the part that the index holds. Returns its bytes.
    fn check(&self, writer: &Writer, new: &Applied, had: u64) -> Result<u64, InvalidRecord> {
        let block = self
            .open
            .blocks
            .get(writer.block as usize)
            .ok_or(InvalidRecord)?;
        if new.stamp >= block.next_stamp.load(std::sync::atomic::Ordering::Acquire) {
            return Err(InvalidRecord);
        }
        if new.stamp == writer.applied.stamp && !writer.applied.grows_to(new) {
            return Err(InvalidRecord);
        }
        let bytes = new.bytes()?;
        let client = self.clients.get(writer.client).ok_or(InvalidRecord)?;
        let held = bytes >= had && client.holds(new.slab, new.pos + had, new.pos + bytes);
        held.then_some(bytes).ok_or(InvalidRecord)
    }

    /// Changes the index of `ino`, and frees the log bytes to which it no longer refers.
    pub(super) fn change<R>(
        &mut self,
        ino: Ino,
        change: impl FnOnce(&mut ExtentIndex, &mut dyn FnMut(FreedRange), u16) -> R,
    ) -> R {
        let rank = self.rank;
        let space = &mut *self.segments;
        let mut freed = |range: FreedRange| {
            if range.rank == rank {
                space.freed(range.slab, range.pos, range.len);
            }
        };
        let done = change(self.tables.indexes.get_mut(ino), &mut freed, rank);
        if !self.tables.changed.contains(&ino) {
            self.tables.changed.push(ino);
        }
        done
    }

    /// Tells all readers that cached extents of the changed files. No freed byte is lent again
    /// before this returns.
    pub(super) fn announce_changes(&mut self) {
        for ino in std::mem::take(&mut self.tables.changed) {
            let stored = self.tables.stored.get(&ino).copied().unwrap_or(0);
            let index = self.tables.indexes.get(ino);
            let allocated = index.map_or(0, ExtentIndex::allocated_bytes) + stored;
            let set = SetAttr {
                allocated: Some(allocated),
                ..SetAttr::default()
            };
            // An inode that no longer exists has no readers.
            let _ = self.names.setattr(ino, &set);
            let _ = self.names.bump_index_generation(ino);
        }
    }
}
