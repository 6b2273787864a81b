//! What the logic asks of the kernel, and where bytes are stored: the runtime implements it, and tests
//! do.

use std::sync::atomic::{AtomicBool, AtomicU32};
use std::sync::Arc;

use weir_core::node::landing::POOL_BYTES;
use weir_core::proto::{self, FsError, Lent, TierStatus};
use weir_core::types::{ClientId, Ino, Rank, SegmentId};
use weir_fabric::bulk;

use super::memory::ClientMemory;

/// A table in memory that is shared with clients.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Table {
    /// Open file descriptions.
    Ofds,
    /// Blocks of files that are open for writing.
    Blocks,
    /// Writers' cells.
    Cells,
    /// Known names of other servers.
    Known,
    /// Inodes.
    Inodes,
    /// Words of the arena of names.
    Arena,
    /// Buckets of names.
    Buckets,
    /// Bytes of the pool for bytes of other nodes.
    Pool,
}

/// What the logic asks of the kernel.
pub trait Platform {
    /// A client's region.
    type Memory: ClientMemory;
    /// Where bytes are stored.
    type Space: Space;
    /// Wakes all that sleep on a word of shared memory.
    fn wake(&self, word: &AtomicU32);
    /// Has every processor that runs a client pass a memory barrier (membarrier(2)): what a client
    /// stored before it looked at a word is seen by this thread, if it saw that word as it was
    /// before this thread changed it.
    fn barrier(&self) {}
    /// Whether any process still has open file description `index`, which was marked
    /// as shared.
    fn ofd_alive(&self, index: u32) -> bool;
    /// Whether a process lives. One that cannot be asked after does.
    fn lives(&self, _pid: u32) -> bool {
        true
    }

    /// Sees to it that there is memory behind all channels of a client's region; whether there is.
    fn lay_channels(&self, _client: ClientId) -> bool {
        true
    }

    /// Sees to it that there is memory behind the first `count` entries of a table that is shared
    /// with clients; for how many there is, which may be fewer: the file system may be full. What
    /// is beyond must not be touched, by anybody.
    fn present(&self, _table: Table, _count: usize) -> usize {
        usize::MAX
    }

    /// Where `len` bytes of another node arrive for a client, if this one can receive such;
    /// `over` is set when nothing arrives any more. See [`crate::arrival::Arrival`].
    fn landing(
        &self,
        _client: &Arc<Self::Memory>,
        _landing: proto::Landing,
        _len: u32,
        _over: &Arc<AtomicBool>,
    ) -> Option<Box<dyn bulk::Landing>> {
        None
    }

    /// What was refused before it came to the logic: kind and count, of what there was.
    fn refused(&self) -> Vec<(String, u64)> {
        Vec::new()
    }

    /// A fifo or a socket is gone: so is what the kernel keeps of it.
    fn remove_special(&self, _ino: Ino) {}

    /// Lets programs of another user be clients.
    fn admit(&self, _uid: u32) -> Result<(), FsError> {
        Err(FsError::NotSupported)
    }

    /// How long the pool is in which they arrive.
    fn pool_bytes(&self) -> usize {
        POOL_BYTES
    }

    /// The name of a process's program, for people; empty if it has ended.
    fn program(&self, pid: u32) -> String;
}

/// Storage that is lent to clients; `weir-store` implements it.
pub trait Space {
    /// Lends a segment; `None`: no room.
    fn grant(&mut self, client: ClientId, min_bytes: u64, want_bytes: u64) -> Option<Lent>;
    /// `len` bytes at `pos` of a slab are referred to by a file.
    fn add_live(&mut self, slab: u32, pos: u64, len: u64);
    /// They no longer are.
    fn freed(&mut self, slab: u32, pos: u64, len: u64);
    /// The client no longer writes into the segment: what of it does not live may be
    /// lent again.
    fn release(&mut self, segment: SegmentId);
    /// Lends what is dead between living bytes, where nothing else is left: a segment within
    /// one MiB, of any length.
    fn grant_gap(&mut self, _: ClientId) -> Option<Lent> {
        None
    }
    /// All of the segment behind its first `keep_bytes` may be lent again, in whole MiB;
    /// false if there was nothing to take.
    fn trim(&mut self, _: SegmentId, _keep_bytes: u64) -> bool {
        false
    }
    /// A client met a tmpfs that others have filled.
    fn refused(&mut self, _: SegmentId) {}
    /// Whether a slab is a file of a storage directory.
    fn is_file(&self, slab: u32) -> bool;
    /// Space by tier.
    fn usage(&self) -> Vec<TierStatus>;
    /// What was there before is counted so from now on; until now nothing was counted.
    fn resume(&mut self, _: &Accounts) -> Result<(), RecoverError> {
        Ok(())
    }
}

/// What a server is told of itself.
#[derive(Clone, Copy, Debug)]
pub struct Identity {
    /// Its rank.
    pub rank: Rank,
    /// How many servers there are.
    pub servers: u16,
    /// Its process.
    pub pid: u32,
    /// When it started, ns since 1970.
    pub started_ns: i64,
}

impl Identity {
    /// True if there are other servers, also before this one has joined them: then what concerns
    /// them is the cluster's to do.
    pub(crate) fn is_of_several(&self) -> bool {
        self.servers > 1
    }
}

/// What a space is told when its server has recovered.
#[derive(Clone, Debug, Default)]
pub struct Accounts {
    /// Ranges of slabs that files refer to: slab, position, bytes.
    pub live: Vec<(u32, u64, u64)>,
    /// Bytes of which only the amount is known: slab, where the MiB begins, how many.
    pub amounts: Vec<(u32, u64, u64)>,
    /// Segments that somebody may still write into: whose, which, bytes.
    pub held: Vec<(ClientId, SegmentId, u64)>,
}

/// Why a node cannot come after the one of a journal.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum RecoverError {
    /// The tables of shared memory have no such place, or it is taken twice.
    #[error("cell {cell} or block {block} cannot be that of {ino:?}")]
    Attached {
        /// The cell.
        cell: u32,
        /// The block.
        block: u32,
        /// The file.
        ino: Ino,
    },
    /// A client's number is beyond what there can be.
    #[error("client {0:?} is one too many")]
    Client(ClientId),
    /// The bytes of a file are not of any slab that there is.
    #[error("bytes {pos}+{len} of slab {slab} are missing")]
    Missing {
        /// The slab.
        slab: u32,
        /// Where they would be.
        pos: u64,
        /// How many.
        len: u64,
    },
}
