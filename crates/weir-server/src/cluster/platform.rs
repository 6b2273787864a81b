//! The interfaces of the logic to the kernel and to storage, implemented by the runtime and by tests.

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

/// The services of the kernel for the logic.
pub trait Platform {
    /// A client's region.
    type Memory: ClientMemory;
    /// The storage of bytes.
    type Space: Space;
    /// Wakes all threads that sleep on a word of shared memory.
    fn wake(&self, word: &AtomicU32);
    /// Makes every processor that runs a client pass a memory barrier (membarrier(2)). If a client
    /// saw a word as it was before this thread changed it, then this thread sees all that the
    /// client stored before it looked at the word.
    fn barrier(&self) {}
    /// Returns true if any process still has open file description `index`, which was marked as
    /// shared.
    fn ofd_alive(&self, index: u32) -> bool;
    /// Returns true if a process lives, or if that cannot be known.
    fn lives(&self, _pid: u32) -> bool {
        true
    }

    /// Allocates memory for all channels of a client's region. Returns true if they have it.
    fn lay_channels(&self, _client: ClientId) -> bool {
        true
    }

    /// Allocates memory for the first `count` entries of a table that is shared with clients.
    /// Returns the number of entries that have memory, which may be lower: the file system may be
    /// full. No process may touch the entries beyond.
    fn present(&self, _table: Table, _count: usize) -> usize {
        usize::MAX
    }

    /// The landing for `len` bytes of another node for a client, if this platform can receive them. `over` is set when
    /// nothing arrives any more. See [`crate::arrival::Arrival`].
    fn landing(
        &self,
        _client: &Arc<Self::Memory>,
        _landing: proto::Landing,
        _len: u32,
        _over: &Arc<AtomicBool>,
    ) -> Option<Box<dyn bulk::Landing>> {
        None
    }

    /// The input that was refused before it came to the logic: the kinds that occurred, with their counts.
    fn refused(&self) -> Vec<(String, u64)> {
        Vec::new()
    }

    /// Removes the kernel's fifo or socket behind an inode that is gone.
    fn remove_special(&self, _ino: Ino) {}

    /// Admits programs of another user as clients.
    fn admit(&self, _uid: u32) -> Result<(), FsError> {
        Err(FsError::NotSupported)
    }

    /// The size of the pool for bytes of other nodes.
    fn pool_bytes(&self) -> usize {
        POOL_BYTES
    }

    /// The name of a process's program, for messages; empty if the process has ended.
    fn program(&self, pid: u32) -> String;
}

/// Storage that is lent to clients; `weir-store` implements it.
pub trait Space {
    /// Lends a segment; `None`: no room.
    fn grant(&mut self, client: ClientId, min_bytes: u64, want_bytes: u64) -> Option<Lent>;
    /// Counts `len` bytes at `pos` of a slab as living: a file refers to them.
    fn add_live(&mut self, slab: u32, pos: u64, len: u64);
    /// Counts them as dead.
    fn freed(&mut self, slab: u32, pos: u64, len: u64);
    /// Ends the lease of a segment: the client no longer writes into it. Its dead bytes may be lent
    /// again.
    fn release(&mut self, segment: SegmentId);
    /// Lends dead bytes between living ones, when nothing else is left: a segment within one MiB,
    /// of any length.
    fn grant_gap(&mut self, _: ClientId) -> Option<Lent> {
        None
    }
    /// Allows all of the segment after its first `keep_bytes` to be lent again, in whole MiB.
    /// Returns false if there was nothing to take.
    fn trim(&mut self, _: SegmentId, _keep_bytes: u64) -> bool {
        false
    }
    /// Notes that a client met a tmpfs that others have filled.
    fn refused(&mut self, _: SegmentId) {}
    /// Returns true if a slab is a file of a storage directory.
    fn is_file(&self, slab: u32) -> bool;
    /// Space by tier.
    fn usage(&self) -> Vec<TierStatus>;
    /// Starts to count with the accounts of the recovered server. Nothing was counted before.
    fn resume(&mut self, _: &Accounts) -> Result<(), RecoverError> {
        Ok(())
    }
}

/// The identity of a server.
#[derive(Clone, Copy, Debug)]
pub struct Identity {
    /// Its rank.
    pub rank: Rank,
    /// The number of servers.
    pub servers: u16,
    /// Its process.
    pub pid: u32,
    /// The time of its start, ns since 1970.
    pub started_ns: i64,
}

impl Identity {
    /// True if there are other servers, even before this one has joined them. Then the cluster
    /// handles everything that concerns them.
    pub(crate) fn is_of_several(&self) -> bool {
        self.servers > 1
    }
}

/// The accounts from which a space starts when its server has recovered.
#[derive(Clone, Debug, Default)]
pub struct Accounts {
    /// Ranges of slabs that files refer to: slab, position, bytes.
    pub live: Vec<(u32, u64, u64)>,
    /// Bytes of which only the amount is known: slab, beginning of the MiB, number of bytes.
    pub amounts: Vec<(u32, u64, u64)>,
    /// Segments that a client may still write into: client, segment, bytes.
    pub held: Vec<(ClientId, SegmentId, u64)>,
}

/// The reason why a node cannot recover from a journal.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum RecoverError {
    /// A block or a cell does not exist in the tables of shared memory, or is taken twice.
    #[error("cell {cell} or block {block} cannot be that of {ino:?}")]
    Attached {
        /// The cell.
        cell: u32,
        /// The block.
        block: u32,
        /// The file.
        ino: Ino,
    },
    /// A client's number is too high.
    #[error("client {0:?} is one too many")]
    Client(ClientId),
    /// The bytes of a file are in no existing slab.
    #[error("bytes {pos}+{len} of slab {slab} are missing")]
    Missing {
        /// The slab.
        slab: u32,
        /// The position of the bytes in the slab.
        pos: u64,
        /// The number of bytes.
        len: u64,
    },
}
