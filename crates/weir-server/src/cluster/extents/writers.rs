//! The server's own tables of lent blocks and cells, and the state of files that their writers change.
//!
//! The links in shared memory are for the clients; the server relies on these tables. An inode names
//! its block as index + 1 (0: none), as the links of cells do.

use std::sync::atomic::Ordering;

use weir_core::extent::{ExtentIndex, MAX_OFFSET};
use weir_core::names::{Attr, FileType};
use weir_core::node::block::FileBlock;
use weir_core::proto::FsError;
use weir_core::types::{ClientId, Ino};

use crate::cluster::extents::applied::Applied;
use crate::cluster::extents::NodeWriters;

/// A lent cell.
#[derive(Clone, Copy, Debug)]
pub struct Writer {
    /// The client that has it.
    pub client: ClientId,
    /// The block of its file.
    pub block: u32,
    /// The value of its `committed` when it was lent.
    pub lent_at: u64,
    /// The part of its record that the index holds.
    pub applied: Applied,
    /// The part of its record that was noted for the journal.
    pub noted: Applied,
}

/// A lent block: a file that is open for writing.
#[derive(Clone, Debug)]
pub struct OpenFile {
    /// The file.
    pub ino: Ino,
    /// Its cells, in no order.
    pub cells: Vec<u32>,
    /// The stamp at which its extents were settled last; 0: never.
    pub settled: u64,
}

impl<'a, 'm> NodeWriters<'a, 'm> {
    /// A file that is open for writing, with its block.
    pub(super) fn file_of(self, ino: Ino) -> Option<(u32, &'a OpenFile)> {
        let block = self.names.attr(ino).ok()?.block.checked_sub(1)?;
        let file = self.tables.blocks.get(block)?;
        (file.ino == ino).then_some((block, file))
    }

    /// The block of a file that is open for writing.
    pub(super) fn block_of(self, ino: Ino) -> Option<u32> {
        Some(self.file_of(ino)?.0)
    }

    /// The cells of a file; none if it is not open for writing.
    pub(super) fn cells_of(self, ino: Ino) -> &'a [u32] {
        self.file_of(ino).map_or(&[], |(_, file)| &file.cells)
    }

    /// The block of a file that programs of this node have open for writing.
    pub(in crate::cluster) fn shared_block(self, ino: Ino) -> Option<&'m FileBlock> {
        self.open.blocks.get(self.block_of(ino)? as usize)
    }

    /// Returns true if a program of this node writes a file.
    pub(in crate::cluster) fn has_writers_of(self, ino: Ino) -> bool {
        self.block_of(ino).is_some()
    }

    /// Returns true if a process of this node writes a file, or if the file has unpublished
    /// extents.
    pub(in crate::cluster) fn is_written(self, local: Ino) -> bool {
        self.tables.has_extents(local) || self.has_writers_of(local)
    }

    /// The clients that write a file; one that has several cells appears several times.
    pub(in crate::cluster) fn clients_of(self, ino: Ino) -> impl Iterator<Item = ClientId> + 'a {
        let (cells, writers) = (self.cells_of(ino), &self.tables.cells);
        let writers = cells.iter().filter_map(|cell| writers.get(*cell));
        writers.map(|writer| writer.client)
    }

    /// Returns true if no other program of this node has a file open for writing.
    pub(in crate::cluster) fn writes_alone(self, local: Ino, client: ClientId) -> bool {
        self.clients_of(local).all(|id| id == client)
    }

    /// The attributes, including the writes of this node's writers.
    pub(in crate::cluster) fn attr_now(self, ino: Ino) -> Result<Attr, FsError> {
        let mut attr = self.names.attr_of(ino)?;
        if attr.file_type() == FileType::File {
            attr.size = self.size_of(&attr);
            attr.mtime_ns = self.mtime_of(&attr);
        }
        Ok(attr)
    }

    /// The current size of a file.
    pub(in crate::cluster) fn size_of(self, attr: &Attr) -> u64 {
        let Some((block, file)) = self.file_of(attr.ino) else {
            return attr.size;
        };
        let shared = &self.open.blocks[block as usize];
        let trunc = shared.trunc_stamp.load(Ordering::Acquire);
        file.cells
            .iter()
            .map(|cell| self.open.cells[*cell as usize].end_after(trunc))
            .fold(shared.base_size.load(Ordering::Acquire), u64::max)
            .min(MAX_OFFSET)
    }

    /// The current modification time of a file.
    pub(in crate::cluster) fn mtime_of(self, attr: &Attr) -> i64 {
        let cells = self.cells_of(attr.ino).iter();
        cells
            .filter_map(|cell| self.mtime_of_cell(*cell))
            .fold(attr.mtime_ns, i64::max)
    }

    /// The time of the last write through a cell: not later than now, even if the cell says so. `None`: there was none,
    /// so that a time before 1970 stays.
    pub(super) fn mtime_of_cell(self, cell: u32) -> Option<i64> {
        let now_ns = self.names.now_ns();
        let mtime_ns = self.open.cells[cell as usize].mtime(u64::try_from(now_ns).unwrap_or(0));
        (mtime_ns != 0).then(|| i64::try_from(mtime_ns).unwrap_or(i64::MAX).min(now_ns))
    }

    /// Makes a time that was set override the times of earlier writes.
    pub(in crate::cluster) fn forget_cell_times(self, ino: Ino) {
        for cell in self.cells_of(ino) {
            let cell = &self.open.cells[*cell as usize];
            let committed = cell.committed.load(Ordering::Acquire);
            cell.mtime_ns.store(0, Ordering::Release);
            cell.seen_ns.store(0, Ordering::Release);
            cell.mtime_mark.store(committed, Ordering::Release);
            cell.seen_mark.store(committed, Ordering::Release);
        }
    }

    /// The bytes that were written through cells that are still attached. A client counts them only
    /// when it detaches.
    pub(in crate::cluster) fn uncounted(self, cells: impl Iterator<Item = u32>) -> u64 {
        cells
            .filter_map(|cell| {
                let committed = &self.open.cells[cell as usize].committed;
                let lent_at = self.tables.cells.get(cell)?.lent_at;
                Some(committed.load(Ordering::Acquire).wrapping_sub(lent_at))
            })
            .fold(0, u64::saturating_add)
    }

    /// The number of unpublished runs of a file.
    pub(in crate::cluster) fn pending_count(self, local: Ino) -> usize {
        let index = self.tables.indexes.get(local);
        index.map_or(0, ExtentIndex::run_count)
    }

    /// Makes writers ask for the position of each append. Returns the file's end, with the
    /// positions that appends have reserved.
    pub(in crate::cluster) fn share_appends(self, local: Ino) -> u64 {
        let block = self.shared_block(local);
        let reserved = block.map_or(0, FileBlock::share_appends);
        let size = self.attr_now(local).map_or(0, |attr| attr.size);
        size.max(reserved)
    }

    /// Sets the tokens of a file, which tell this node's writers if they must ask before they begin
    /// a record: see [`weir_core::node::block`].
    pub(in crate::cluster) fn set_tokens(self, local: Ino, tokens: u64) {
        if let Some(block) = self.shared_block(local) {
            block.tokens.store(tokens, Ordering::SeqCst);
        }
    }
}
