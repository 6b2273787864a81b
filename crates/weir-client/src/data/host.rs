//! The interface of the data path to its process: shared tables, slabs and requests.

use core::ops::Range;
use core::sync::atomic::{fence, Ordering};
use core::time::Duration;

use rustix::io::Errno;
use weir_core::names::{Attr, ViewError};
use weir_core::node::block::FileBlock;
use weir_core::node::cell::Cell;
use weir_core::node::claim::Claim;
use weir_core::node::landing::LandingSlot;
use weir_core::node::region::Counter;
use weir_core::node::ring::Record;
use weir_core::proto::peer::LogRange;
use weir_core::proto::{Attached, Landing, Lease, Located, Ping};
use weir_core::types::Ino;
use weir_store::slabmap::ReadWindow;

use super::log::{Log, SegmentSource};
use crate::beneath::Transfer;
use crate::errno::of_open;
use crate::internal::InternalSlot;
use crate::kernel::Fd;
use crate::view::{NodeClient, PATIENCE};

/// The namespace's record of a file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FileState {
    /// Its size, if no process of this node has it open for writing.
    pub size: u64,
    /// Bumped whenever its extents change.
    pub generation: u64,
    /// Its block, if a process has.
    pub block: Option<u32>,
    /// The kernel keeps pages of it: it is read and written through the kernel mount.
    pub mapped: bool,
    /// The bytes that no extent covers are those of its copy on the parallel file system.
    pub evicted: bool,
}

/// The process around the data path. [`crate::session::Session`] is the real one.
pub trait Host: SegmentSource {
    /// The node's cells.
    fn cells(&self) -> &'static [Cell];
    /// The node's file blocks.
    fn blocks(&self) -> &'static [FileBlock];
    /// The namespace's record of a file; `EIO`: it is gone.
    fn file(&self, ino: Ino) -> Result<FileState, Errno>;
    /// The process's log.
    fn log(&self) -> &Log;
    /// Attaches for writing.
    fn attach(&self, ino: Ino) -> Result<Attached, Errno>;
    /// True if the kernel keeps pages of a file, which programs of this node have mapped.
    fn is_mapped(&self, _ino: Ino) -> bool {
        false
    }
    /// Moves bytes of such a file through the kernel mount, by the descriptor that `slot` keeps;
    /// opens that if need be. Returns how many. `None`: the mount is gone, and there are no pages
    /// to agree with.
    fn move_mapped(
        &self,
        _ino: Ino,
        _slot: &InternalSlot,
        _bytes: Transfer<'_>,
    ) -> Option<Result<usize, Errno>> {
        None
    }
    /// Opens the copy of an evicted file on the parallel file system.
    fn open_copy(&self, _ino: Ino) -> Result<Fd, Errno> {
        Err(Errno::IO)
    }
    /// Waits for room for a write to a file that found none; `waited` is the time for which this write has
    /// waited. ENOSPC: nothing makes room.
    fn await_room(&self, _ino: Ino, _waited: &mut Duration) -> Result<(), Errno> {
        Err(Errno::NOSPC)
    }
    /// The greatest size to which the process may let a file grow (RLIMIT_FSIZE), bytes.
    fn size_limit(&self) -> u64 {
        u64::MAX
    }
    /// Signals that a write, of which nothing was written, went beyond that.
    fn exceed_size_limit(&self) {}
    /// Clears the set-id bits that a write clears: the process is about to change the contents of a
    /// file.
    fn before_write(&self, _: Ino) -> Result<(), Errno> {
        Ok(())
    }
    /// Asks the server where bytes are.
    fn locate(&self, ino: Ino, offset: u64, length: u64) -> Result<Located, Errno>;
    /// The rank of this node's server.
    fn rank(&self) -> u16;
    /// True if the instance has other servers, for which a call may wait.
    fn is_one_of_several(&self) -> bool {
        false
    }
    /// Requests bytes of other servers' logs by reads, each of one server and of at most
    /// [`weir_core::proto::FETCH_BYTES`] in [`weir_core::proto::FETCH_PIECES`]: as many reads as
    /// there is room for, from the first one on. With `ahead` no caller waits for them yet, and
    /// there may be room for none.
    fn ask(&self, ino: Ino, reads: &[Vec<LogRange>], ahead: bool) -> Result<Vec<Landing>, Errno>;
    /// Shows the bytes that have arrived of a part of such a read: the offset of the first in the
    /// read, and the bytes. If none have, `wait` makes it wait for some. Returns the offset up to
    /// which they have arrived, at most the part's end.
    fn arrive(
        &self,
        landing: Landing,
        part: Range<usize>,
        wait: bool,
        show: &mut dyn FnMut(usize, ReadWindow),
    ) -> Result<usize, Errno>;
    /// The slot of such a read.
    fn slot(&self, landing: Landing) -> Option<&LandingSlot>;
    /// A clock that does not go back, in us.
    fn now_us(&self) -> u64;
    /// True if the node's server was killed and a new one has taken over, which takes nothing of
    /// this process any more. It takes everything that a cell showed before this returned false.
    /// A full barrier: stores of this process before it precede its look and all later ones.
    fn is_left_behind(&self) -> bool;
    /// Makes the bytes written to a file visible to other nodes.
    fn publish(&self, ino: Ino) -> Result<(), Errno>;
    /// Returns the offset of the next `length` bytes of an append, in a file that several nodes
    /// write; `reserved` is the offset that was reserved on this node, if one was.
    fn append(&self, ino: Ino, length: u64, reserved: Option<u64>) -> Result<u64, Errno>;
    /// Asks for the token to write bytes of a raw file. Returns the claim that this node holds,
    /// which contains `needed`. See [`weir_core::proto::Token`].
    fn token(&self, ino: Ino, needed: &Claim, wished: &Claim) -> Result<Claim, Errno>;
    /// True if a writer of a raw file must execute a memory barrier after each write, because the
    /// server cannot have this process execute one.
    fn fences(&self) -> bool {
        false
    }
    /// True if each read is to be audited ([`Host::audit`]).
    fn audits(&self) -> bool;
    /// Lets the server check if other nodes wrote bytes that are about to be read, and did not
    /// publish them.
    fn audit(&self, ino: Ino, offset: u64, length: u64) -> Result<(), Errno>;
    /// Hands a closed record to the server; if the ring is full, waits for the server
    /// to empty it.
    fn push(&self, record: &Record) -> Result<(), Errno>;
    /// Counts for the report.
    fn count(&self, counter: Counter, n: u64);
}

/// The state of an open file, as of a moment after the call began; see [`Host::file`].
pub fn file_state<C: NodeClient>(client: &C, ino: Ino) -> Result<FileState, Errno> {
    let (names, hub) = (client.names(), client.hub());
    let doubts = |attr: &Attr| hub.doubts(attr, || client.now_ns());
    let mut asked = false;
    for _ in 0..PATIENCE {
        match names.attr(ino) {
            // An answer that holds only for the moment need not be asked for twice: the moment is
            // within this call.
            Ok(Some(attr)) if !attr.fresh || (!asked && (attr.ask || doubts(&attr))) => {
                of_open(client.call(Lease { ino }))?;
                asked = true;
            }
            Ok(Some(attr)) => {
                return Ok(FileState {
                    size: attr.size,
                    generation: attr.index_generation,
                    block: attr.block.checked_sub(1),
                    mapped: attr.mapped,
                    evicted: attr.evicted,
                })
            }
            // The file is open, yet gone.
            Ok(None) | Err(ViewError::BufferTooSmall | ViewError::Renaming) => {
                return Err(Errno::IO);
            }
            Err(ViewError::Unsettled) => client.call(Ping {})?,
        }
    }
    Err(Errno::IO)
}

/// The greatest file size: the largest `off_t`.
pub const MAX_FILE_BYTES: u64 = i64::MAX as u64;

/// The state of a file at one moment: `ask` gets the namespace's record, and the block if a process
/// has the file open for writing.
///
/// Between the look at the namespace and the look at the block, the server can take the block back
/// and lend it to another file: when the last writer leaves or is killed. Then the namespace's
/// record is older than that (its size may still be 0), and both are read again. The namespace
/// changes before the block does, so this ends.
pub fn at_once<H: Host, T>(
    host: &H,
    ino: Ino,
    ask: impl Fn(&FileState, Option<&'static FileBlock>) -> T,
) -> Result<T, Errno> {
    loop {
        let state = host.file(ino)?;
        let block = state
            .block
            .and_then(|index| host.blocks().get(index as usize));
        let Some(block) = block else {
            return Ok(ask(&state, None));
        };
        if block.ino.load(Ordering::Acquire) == ino.0 {
            let answer = ask(&state, Some(block));
            fence(Ordering::Acquire);
            if block.ino.load(Ordering::Relaxed) == ino.0 {
                return Ok(answer);
            }
        }
        core::hint::spin_loop();
    }
}

/// Gives the slot of a landing back.
pub fn release<H: Host>(host: &H, landing: Landing) {
    if let Some(slot) = host.slot(landing) {
        slot.release(landing.serial);
    }
}
