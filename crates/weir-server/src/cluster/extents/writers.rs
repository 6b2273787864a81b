//! The server's own tables of lent blocks and cells.
//!
//! The links in shared memory are for the clients; the server relies on these tables.

use weir_core::types::{ClientId, Ino};

use crate::cluster::extents::applied::Applied;

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
