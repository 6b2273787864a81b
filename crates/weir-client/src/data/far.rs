//! Bytes of other nodes: gathered from all that a call reads, then brought at once.
//!
//! What a call needs of one server goes into few reads of up to 1 MiB, whatever the order in
//! which the pieces lie in the file; all servers are asked at once ([`super::coming`]). As bytes
//! arrive they are copied to where they belong, while the rest is still on its way; what the node
//! has itself is copied meanwhile.

use std::ops::Range;

use rustix::io::Errno;
use weir_core::proto::peer::LogRange;
use weir_core::types::Ino;
use weir_store::slab::SlabId;

use super::ahead::{InUse, Reading};
use super::coming::{show, Coming};
use super::host::{release, Host};
use super::pieces::{batches, Batch, Target, Wanted};

/// Pieces that are gathered before they are brought: many, for a list of reads may begin with all
/// that one server has, and the others' links are to be used as well.
const MOST_PIECES: usize = 64 << 10;
/// Bytes that are gathered before they are brought.
const MOST_BYTES: u64 = 1 << 30;

/// A piece that this node has.
#[derive(Debug)]
pub struct Own {
    pub slab: SlabId,
    pub pos: u64,
    /// Which target.
    pub target: usize,
    /// Of the target's bytes.
    pub bytes: Range<usize>,
}

/// Pieces to be brought, and those to be copied while they come.
#[derive(Debug, Default)]
pub struct Far {
    pieces: Vec<Wanted>,
    bytes: u64,
    own: Vec<Own>,
}

impl Far {
    /// Adds a piece, which goes to `at` of the bytes of a target.
    pub fn add(&mut self, range: LogRange, target: usize, at: usize) {
        self.bytes += range.len;
        self.pieces.push(Wanted { range, target, at });
    }

    /// Adds a piece of this node.
    pub fn copy_meanwhile(&mut self, own: Own) {
        self.own.push(own);
    }

    /// Whether there is nothing to be brought.
    pub fn is_empty(&self) -> bool {
        self.pieces.is_empty() && self.own.is_empty()
    }

    /// Whether it is time to bring it.
    pub fn is_full(&self) -> bool {
        self.bytes >= MOST_BYTES || self.pieces.len() + self.own.len() >= MOST_PIECES
    }

    /// The reads that bring all of it.
    pub fn batches(self) -> Vec<Batch> {
        batches(&self.pieces)
    }

    /// Brings all of it: what was fetched ahead from the pool, the rest from the servers.
    /// `then` is done when that was asked for, while it comes.
    pub fn bring<H: Host>(
        &mut self,
        host: &H,
        ino: Ino,
        targets: &mut [Target<'_>],
        reading: Option<&mut Reading>,
        then: impl FnOnce(),
    ) -> Result<(), Errno> {
        let Far { pieces, own, .. } = std::mem::take(self);
        let (ahead, missing) = match reading {
            Some(reading) => reading.cover(host, pieces),
            None => (Vec::new(), pieces),
        };
        let mut coming = Coming::new(host, ino, batches(&missing));
        let begun = coming.begin();
        then();
        let copied = own.into_iter().try_for_each(|piece| {
            let to = &mut targets[piece.target].bytes[piece.bytes];
            host.slabs().read_at(piece.slab, piece.pos, to)
        });
        // What did not come ahead is asked for once more.
        let mut failed = Vec::new();
        for read in ahead {
            let InUse {
                landing,
                places,
                wanted,
            } = read;
            if show(host, landing, &places, targets).is_err() {
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
