//! Attaching to a file for writing, and the end of that.
//!
//! An inode names its block as index + 1 (0: none), as the links of cells do.

use std::sync::atomic::Ordering;

use weir_core::extent::MAX_OFFSET;
use weir_core::journal::Item;
use weir_core::names::{Attr, SetAttr};
use weir_core::node::block::FileBlock;
use weir_core::proto::{Attached, FsError};
use weir_core::types::{ClientId, Ino};

use crate::cluster::extents::applied::Applied;
use crate::cluster::extents::writers::{OpenFile, Writer};
use crate::cluster::refusal::refusal;
use crate::cluster::storage::presence::grow;
use crate::node::{Node, Platform, Table};

impl<P: Platform> Node<'_, P> {
    /// The block of a file that is open for writing.
    pub(in crate::cluster) fn block_of(&self, ino: Ino) -> Option<u32> {
        let block = self.names.attr(ino).ok()?.block.checked_sub(1)?;
        (self.extents.blocks.get(block)?.ino == ino).then_some(block)
    }

    /// The block of a file that programs of this node have open for writing.
    pub(in crate::cluster) fn shared_block(&self, ino: Ino) -> Option<&FileBlock> {
        self.open.blocks.get(self.block_of(ino)? as usize)
    }

    /// Attaches a client to a file for writing.
    pub(in crate::cluster) fn attach_client(
        &mut self,
        id: ClientId,
        ino: Ino,
    ) -> Result<Attached, FsError> {
        let attr = self.names.writable(ino)?;
        self.watch(&attr);
        if self.clients.get(id).is_none() {
            return Err(FsError::NotPermitted);
        }
        // The journal must have the last content of a cell or block before it is lent again.
        self.commit();
        self.make_room_for_writers();
        if !(self.extents.cells.has_room() && self.extents.blocks.has_room()) {
            self.take_all_notes();
        }
        let block = match self.block_of(ino) {
            Some(block) => block,
            None => self.lend_block(&attr)?,
        };
        let writer = Writer {
            client: id,
            block,
            lent_at: 0,
            applied: Applied::default(),
            noted: Applied::default(),
        };
        let Some(cell) = self.extents.cells.insert(writer) else {
            self.free_block_if_unused(block);
            return Err(FsError::NoSpace);
        };
        if let Some(client) = self.clients.get_mut(id) {
            client.cells.insert(cell);
        }
        if let Some(writer) = self.extents.cells.get_mut(cell) {
            writer.lent_at = self.open.cells[cell as usize]
                .committed
                .load(Ordering::Acquire);
        }
        self.link_cell(block, cell, id);
        self.changes.note(&Item::CellAttached {
            cell,
            client: id,
            ino,
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
        let block = self.extents.blocks.insert(file).ok_or(FsError::NoSpace)?;
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
        let Some(file) = self.extents.blocks.get_mut(block) else {
            return;
        };
        let next = file.cells.last().map_or(0, |head| head + 1);
        file.cells.push(cell);
        self.open.cells[cell as usize].lend(block, id.0, next);
        self.open.blocks[block as usize]
            .head
            .store(cell + 1, Ordering::Release);
    }

    /// Takes a cell back: everything written through it is in the index, the size and the times.
    pub(in crate::cluster) fn detach_cell(&mut self, cell: u32) {
        let Some(writer) = self.extents.cells.get(cell).copied() else {
            return;
        };
        let Some(ino) = self.extents.blocks.get(writer.block).map(|file| file.ino) else {
            return;
        };
        self.harvest(ino);
        self.note_written(cell);
        self.changes.note(&Item::CellDetached(cell));
        self.unlink_cell(writer.block, cell);
        if let Some(client) = self.clients.get_mut(writer.client) {
            client.cells.remove(&cell);
        }
        self.extents.cells.remove(cell);
        self.names
            .fold_mtime(ino, self.open.cells[cell as usize].mtime(self.now_u64()));
        self.free_block_if_unused(writer.block);
    }

    /// Takes a cell out of its file's list. Readers that walk the list meanwhile retry
    /// (`size_version`), and writers' claims end: a writer may have checked for overlaps along a
    /// link that is about to change.
    fn unlink_cell(&mut self, block: u32, cell: u32) {
        let Some(file) = self.extents.blocks.get_mut(block) else {
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
        let Some(file) = self
            .extents
            .blocks
            .get(block)
            .filter(|file| file.cells.is_empty())
        else {
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
        if self
            .extents
            .indexes
            .get(ino)
            .is_some_and(|index| !index.is_empty())
        {
            // Stamps begin anew with the next writer: cached old stamps must not be compared with
            // new ones.
            self.change(ino, |index, _, _| index.settle());
            self.changes.note(&Item::IndexSettled(ino));
            self.announce_changes();
        }
        self.extents.blocks.remove(block);
    }

    /// The current size of a file.
    pub(in crate::cluster) fn size_of(&self, attr: &Attr) -> u64 {
        let Some(block) = self.block_of(attr.ino) else {
            return attr.size;
        };
        let shared = &self.open.blocks[block as usize];
        let trunc = shared.trunc_stamp.load(Ordering::Acquire);
        let cells = self
            .extents
            .blocks
            .get(block)
            .map_or(&[][..], |file| &file.cells);
        cells
            .iter()
            .map(|cell| self.open.cells[*cell as usize].end_after(trunc))
            .fold(shared.base_size.load(Ordering::Acquire), u64::max)
            .min(MAX_OFFSET)
    }

    /// The current modification time of a file.
    pub(in crate::cluster) fn mtime_of(&self, attr: &Attr) -> i64 {
        let cells = self
            .block_of(attr.ino)
            .and_then(|block| self.extents.blocks.get(block))
            .map_or(&[][..], |file| &file.cells);
        cells
            .iter()
            .map(|cell| self.open.cells[*cell as usize].mtime(self.now_u64()))
            .map(|ns| i64::try_from(ns).unwrap_or(i64::MAX).min(self.time()))
            .fold(attr.mtime_ns, i64::max)
    }

    /// Makes a time that was set count for more than earlier writes of the file's writers.
    pub(in crate::cluster) fn forget_cell_times(&self, ino: Ino) {
        let Some(file) = self
            .block_of(ino)
            .and_then(|block| self.extents.blocks.get(block))
        else {
            return;
        };
        for cell in file
            .cells
            .iter()
            .map(|cell| &self.open.cells[*cell as usize])
        {
            let committed = cell.committed.load(Ordering::Acquire);
            cell.mtime_ns.store(0, Ordering::Release);
            cell.seen_ns.store(0, Ordering::Release);
            cell.mtime_mark.store(committed, Ordering::Release);
            cell.seen_mark.store(committed, Ordering::Release);
        }
    }

    fn now_u64(&self) -> u64 {
        u64::try_from(self.time()).unwrap_or(0)
    }

    /// Returns true if no other program of this node has a file open for writing.
    pub(in crate::cluster) fn writes_alone(&self, local: Ino, client: ClientId) -> bool {
        let block = self.block_of(local);
        block.is_none_or(|block| self.extents.writers_of(block).all(|id| id == client))
    }

    /// The bytes that were written through cells that are still attached. A client counts them only
    /// when it detaches.
    pub(in crate::cluster) fn uncounted(&self, cells: impl Iterator<Item = u32>) -> u64 {
        cells
            .filter_map(|cell| {
                let committed = &self.open.cells[cell as usize].committed;
                let lent_at = self.extents.cells.get(cell)?.lent_at;
                Some(committed.load(Ordering::Acquire).wrapping_sub(lent_at))
            })
            .fold(0, u64::saturating_add)
    }

    /// Allocates memory for a block and a cell.
    fn make_room_for_writers(&mut self) {
        grow(&self.platform, Table::Blocks, &mut self.extents.blocks);
        grow(&self.platform, Table::Cells, &mut self.extents.cells);
    }
}
