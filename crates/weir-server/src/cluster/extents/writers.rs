//! Who writes what: the server's own tables of lent blocks and cells.
//!
//! The links in shared memory are for the clients; the server goes by these.

use weir_core::types::{ClientId, Ino};

use crate::cluster::extents::applied::Applied;

/// A lent cell.
#[derive(Clone, Copy, Debug)]
pub struct Writer {
    /// Whose it is.
    pub client: ClientId,
    /// The block of its file.
    pub block: u32,
    /// What its `committed` was when it was lent.
    pub lent_at: u64,
    /// What the index has of its record.
    pub applied: Applied,
    /// What of it was written down.
    pub noted: Applied,
}

/// A lent block: a file that is open for writing.
#[derive(Clone, Debug)]
pub struct OpenFile {
    /// The file.
    pub ino: Ino,
    /// Its cells, in no order.
    pub cells: Vec<u32>,
}
