//! Attaching to a file for writing, and the end of that.

use std::sync::atomic::Ordering;

use weir_core::extent::MAX_OFFSET;
use weir_core::journal::Item;
use weir_core::names::{Attr, SetAttr};
use weir_core::proto::{Attached, FsError};
use weir_core::types::{ClientId, Ino};

use crate::cluster::extents::applied::Applied;
use crate::cluster::extents::writers::{OpenFile, Writer};
use crate::cluster::extents::{ExtentSteps, NodeWrites};
use crate::cluster::refusal::refusal;
use crate::cluster::storage::presence::grow;
use crate::node::{Node, Platform, Table};

impl<P: Platform> ExtentSteps for Node<'static, P> {
    fn attach_client(&mut self, id: ClientId, ino: Ino) -> Result<Attached, FsError> {
        let attr = self.names.writable(ino)?;
        self.files.watch(&attr);
        if self.clients.get(id).is_none() {
            return Err(FsError::NotPermitted);
        }
        // The journal must have the last content of a cell or block before it is lent again.
        self.commit();
        if !self.writes().make_room_for_writer() {
            self.take_all_notes();
        }
        self.writes().lend_cell(id, &attr)
    }
}

impl<P: Platform> NodeWrites<'_, '_, P> {
    /// Allocates memory for a block and a cell. Returns true if one of each is free.
    pub(super) fn make_room_for_writer(&mut self) -> bool {
        grow(self.platform, Table::Blocks, &mut self.tables.blocks);
        grow(self.platform, Table::Cells, &mut self.tables.cells);
        self.tables.cells.has_room() && self.tables.blocks.has_room()
    }

    /// Lends a client a cell of a file, and a block to the file if it has none.
    pub(super) fn lend_cell(&mut self, id: ClientId, attr: &Attr) -> Result<Attached, FsError> {
        let block = match self.writers().block_of(attr.ino) {
            Some(block) => block,
            None => self.lend_block(attr)?,
        };
        let writer = Writer {
            client: id,
            block,
            lent_at: 0,
            applied: Applied::default(),
            noted: Applied::default(),
        };
        let Some(cell) = self.tables.cells.insert(writer) else {
            self.free_block_if_unused(block);
            return Err(FsError::NoSpace);
        };
        if let Some(client) = self.clients.get_mut(id) {
            client.cells.insert(cell);
        }
        if let Some(writer) = self.tables.cells.get_mut(cell) {
            writer.lent_at = self.open.cells[cell as usize]
                .committed
                .load(Ordering::Acquire);
        }
        self.link_cell(block, cell, id);
        self.changes.note(&Item::CellAttached {
            cell,
            client: id,
            ino: attr.ino,
            block,
        });
        Ok(Attached { block, cell })
    }

    fn lend_block(&mut self, attr: &Attr) -> Result<u32, FsError> {
        let file = OpenFile {
            ino: attr.ino,
            cells: Vec::new(),
            settled: 0,
        };
        let block = self.tables.blocks.insert(file).ok_or(FsError::NoSpace)?;
        // The index was settled when the last writer left: all its stamps are 0.
        self.open.blocks[block as usize].lend(attr.ino.0, attr.size, 1);
        let set = SetAttr {
            block: Some(block + 1),
            ..SetAttr::default()
        };
        self.names.setattr(attr.ino, &set).map_err(refusal)?;
        Ok(block)
    }

    /// Puts a cell at the head of its file's list.
    fn link_cell(&mut self, block: u32, cell: u32, id: ClientId) {
        let Some(file) = self.tables.blocks.get_mut(block) else {
            return;
        };
        let next = file.cells.last().map_or(0, |head| head + 1);
        file.cells.push(cell);
        self.open.cells[cell as usize].lend(block, id.0, next);
        self.open.blocks[block as usize]
            .head
            .store(cell + 1, Ordering::Release);
    }

    /// Takes back all cells of a client.
    pub(in crate::cluster) fn detach_cells_of(&mut self, id: ClientId) {
        let cells = self.clients.get(id).map(|client| client.cells.clone());
        for cell in cells.unwrap_or_default() {
            self.detach_cell(cell);
        }
    }

    /// Takes a cell back: everything written through it is in the index, the size and the times.
    pub(in crate::cluster) fn detach_cell(&mut self, cell: u32) {
        let Some(writer) = self.tables.cells.get(cell).copied() else {
            return;
        };
        let Some(ino) = self.tables.blocks.get(writer.block).map(|file| file.ino) else {
            return;
        };
        self.harvest(ino);
        self.note_written(cell);
        self.changes.note(&Item::CellDetached(cell));
        self.unlink_cell(writer.block, cell);
        if let Some(client) = self.clients.get_mut(writer.client) {
            client.cells.remove(&cell);
        }
        self.tables.cells.remove(cell);
        if let Some(mtime_ns) = self.writers().mtime_of_cell(cell) {
            self.names.fold_mtime(ino, mtime_ns);
        }
        self.free_block_if_unused(writer.block);
    }

    /// Takes a cell out of its file's list. Readers that walk the list meanwhile retry
    /// (`size_version`), and writers' claims end: a writer may have checked for overlaps along a
    /// link that is about to change.
    fn unlink_cell(&mut self, block: u32, cell: u32) {
        let Some(file) = self.tables.blocks.get_mut(block) else {
            return;
        };
        let (shared, cells) = (&self.open.blocks[block as usize], self.open.cells);
        let trunc = shared.trunc_stamp.load(Ordering::Acquire);
        shared.size_version.fetch_add(1, Ordering::AcqRel);
        shared.raise(cells[cell as usize].end_after(trunc).min(MAX_OFFSET));
        file.cells.retain(|other| *other != cell);
        let mut next = 0;
        for other in &file.cells {
            cells[*other as usize].next.store(next, Ordering::Release);
            next = other + 1;
        }
        shared.head.store(next, Ordering::Release);
        shared.size_version.fetch_add(1, Ordering::AcqRel);
        cells[cell as usize].withdraw_claim();
        if !file.cells.is_empty() {
            shared.end_claims();
        }
    }

    /// Handles the end of the last writer: the inode has its size itself again, and the order of
    /// the writes is settled.
    fn free_block_if_unused(&mut self, block: u32) {
        let file = self.tables.blocks.get(block);
        let Some(file) = file.filter(|file| file.cells.is_empty()) else {
            return;
        };
        let ino = file.ino;
        let shared = &self.open.blocks[block as usize];
        let set = SetAttr {
            size: Some(shared.base_size.load(Ordering::Acquire).min(MAX_OFFSET)),
            block: Some(0),
            ..SetAttr::default()
        };
        let _ = self.names.setattr(ino, &set);
        shared.ino.store(0, Ordering::Release);
        if self.tables.has_extents(ino) {
            // Stamps begin anew with the next writer: cached old stamps must not be compared with
            // new ones.
            self.change(ino, |index, _, _| index.settle());
            self.changes.note(&Item::IndexSettled(ino));
            self.announce_changes();
        }
        self.tables.blocks.remove(block);
    }
}
