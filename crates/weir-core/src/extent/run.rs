//! A run: an arithmetic progression of pieces of a file.

use serde::{Deserialize, Serialize};

/// Where the bytes of a run lie.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Source {
    /// Byte k of piece i is at `pos + i * pos_stride + k` of slab `slab` of server `rank`.
    Log {
        /// The server.
        rank: u16,
        /// The slab.
        slab: u32,
        /// Where the first piece begins.
        pos: u64,
        /// From one piece to the next, in the slab.
        pos_stride: u64,
    },
    /// A hole: zeros.
    Hole,
}

/// Pieces of a file: piece i covers `[offset + i * stride, + length)`, i < `count`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Run {
    /// The first piece's offset.
    pub offset: u64,
    /// Bytes a piece.
    pub length: u64,
    /// From one piece to the next; 0 if there is one.
    pub stride: u64,
    /// How many pieces.
    pub count: u64,
    /// The order of the write among those of the file.
    pub stamp: u64,
    /// Where the bytes are.
    pub source: Source,
}
