//! Bytes of other nodes: a call gathers all that it needs, then fetches them at once.
//!
//! The pieces that a call needs of one server go into few reads of up to 1 MiB, in whatever order
//! they lie in the file; all servers are asked at once ([`super::under_way`]). Bytes are copied as
//! they arrive. Meanwhile the node's own bytes are copied.

use std::ops::Range;

use rustix::io::Errno;
use weir_core::proto::peer::LogRange;
use weir_core::types::Ino;
use weir_store::slab::SlabId;

use super::ahead::{InUse, Reading};
use super::host::{release, Host};
use super::pieces::{batches, Batch, Target, WantedPiece};
use super::under_way::{copy_arrived, ReadsUnderWay};

/// The number of pieces gathered before a fetch. It is large because a list of reads may begin with
/// all pieces of one server, and the links of the others are to be used as well.
const MOST_PIECES: usize = 64 << 10;
/// The number of bytes gathered before a fetch.
const MOST_BYTES: u64 = 1 << 30;

/// A piece that this node has.
#[derive(Debug)]
pub struct Own {
    pub slab: SlabId,
    pub pos: u64,
    /// The index of the target.
    pub target: usize,
    /// The range in the target's bytes.
    pub bytes: Range<usize>,
}

/// Pieces to fetch, and pieces to copy meanwhile.
#[derive(Debug, Default)]
pub struct RemotePieces {
    pieces: Vec<WantedPiece>,
    bytes: u64,
    own: Vec<Own>,
}

impl RemotePieces {
    /// Adds a piece, which goes to offset `at` of a target's bytes.
    pub fn add(&mut self, range: LogRange, target: usize, at: usize) {
        self.bytes += range.len;
        self.pieces.push(WantedPiece { range, target, at });
    }

    /// Adds a piece of this node.
    pub fn copy_meanwhile(&mut self, own: Own) {
        self.own.push(own);
    }

    /// True if there is nothing to fetch.
    pub fn is_empty(&self) -> bool {
        self.pieces.is_empty() && self.own.is_empty()
    }

    /// True if it is time to fetch.
    pub fn is_full(&self) -> bool {
        self.bytes >= MOST_BYTES || self.pieces.len() + self.own.len() >= MOST_PIECES
    }

    /// The reads that fetch all of it.
    pub fn batches(self) -> Vec<Batch> {
        batches(&self.pieces)
    }

    /// Fetches all of it: from the pool if it was fetched ahead, the rest from the servers. Calls
    /// `then` once the rest is requested, while it is under way.
    pub fn bring<H: Host>(
        &mut self,
        host: &H,
        ino: Ino,
        targets: &mut [Target<'_>],
        reading: Option<&mut Reading>,
        then: impl FnOnce(),
    ) -> Result<(), Errno> {
        let RemotePieces { pieces, own, .. } = std::mem::take(self);
        let (ahead, missing) = match reading {
            Some(reading) => reading.cover(host, pieces),
            None => (Vec::new(), pieces),
        };
        let mut coming = ReadsUnderWay::new(host, ino, batches(&missing));
        let begun = coming.begin();
        then();
        let copied = own.into_iter().try_for_each(|piece| {
            let to = &mut targets[piece.target].bytes[piece.bytes];
            host.slabs().read_at(piece.slab, piece.pos, to)
        });
        // A piece that did not arrive ahead is requested once more.
        let mut failed = Vec::new();
        for read in ahead {
            let InUse {
                landing,
                positions,
                wanted,
            } = read;
            if copy_arrived(host, landing, &positions, targets).is_err() {
                failed.extend(wanted);
                release(host, landing);
            } else if let Some(slot) = host.slot(landing) {
                slot.put_back(landing.serial);
            }
        }
        copied?;
        begun?;
        coming.add(batches(&failed));
        coming.finish(targets)
    }
}
