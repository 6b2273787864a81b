//! What the data path needs of its process: shared tables, slabs and requests.

use core::ops::Range;
use core::sync::atomic::{fence, Ordering};

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
use crate::view::{NodeClient, PATIENCE};

/// What the namespace says of a file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FileState {
    /// Its size, if nobody has it open for writing on this node.
    pub size: u64,
    /// Bumped whenever its extents change.
    pub generation: u64,
    /// Its block, if somebody has.
    pub block: Option<u32>,
    /// The kernel keeps pages of it: it is read and written through the kernel mount.
    pub mapped: bool,
}

/// The process around the data path. [`crate::session::Session`] is the real one.
pub trait Host: SegmentSource {
    /// The node's cells.
    fn cells(&self) -> &'static [Cell];
    /// The node's file blocks.
    fn blocks(&self) -> &'static [FileBlock];
    /// What the namespace says of a file; `EIO`: it is gone.
    fn file(&self, ino: Ino) -> Result<FileState, Errno>;
    /// The process's log.
    fn log(&self) -> &Log;
    /// Attaches for writing.
    fn attach(&self, ino: Ino) -> Result<Attached, Errno>;
    /// True if the kernel keeps pages of a file, which programs of this node have mapped.
    fn is_mapped(&self, _ino: Ino) -> bool {
        false
    }
    /// Moves bytes of such a file through the kernel mount, by the descriptor that `slot` keeps, which
    /// is opened if need be; how many. `None`: there is no mount any more, and nothing to agree with.
    fn move_mapped(
        &self,
        _ino: Ino,
        _slot: &InternalSlot,
        _bytes: Transfer<'_>,
    ) -> Option<Result<usize, Errno>> {
        None
    }
    /// The greatest size to which the process may let a file grow (RLIMIT_FSIZE), bytes.
    fn size_limit(&self) -> u64 {
        u64::MAX
    }
    /// A write, of which nothing was written, went beyond that.
    fn exceed_size_limit(&self) {}
    /// The process is about to change the contents of a file: clears the set-id bits that a write
    /// clears.
    fn before_write(&self, _: Ino) -> Result<(), Errno> {
        Ok(())
    }
    /// Asks where bytes are.
    fn locate(&self, ino: Ino, offset: u64, length: u64) -> Result<Located, Errno>;
    /// This node's server.
    fn rank(&self) -> u16;
    /// Whether there are others, for which a call may wait.
    fn is_one_of_several(&self) -> bool {
        false
    }
    /// Asks for bytes of other servers' logs by reads, each of one server and of at most
    /// [`weir_core::proto::FETCH_BYTES`] in [`weir_core::proto::FETCH_PIECES`]: as many of them
    /// as there is room for, from the first one on. Nobody waits yet for those `ahead`, of
    /// which there may be room for none.
    fn ask(&self, ino: Ino, reads: &[Vec<LogRange>], ahead: bool) -> Result<Vec<Landing>, Errno>;
    /// Shows what has come of a part of the bytes of such a read: from which of its bytes on,
    /// and what. If nothing has and it may `wait`, it waits until something has. Returns how far
    /// they have come, the part's end at most.
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
    /// Whether the node's server was killed and another one has come after it, which takes
    /// nothing of this process any more. What was shown in a cell before this said no is
    /// taken.
    fn is_left_behind(&self) -> bool;
    /// Makes what was written to a file visible to other nodes.
    fn publish(&self, ino: Ino) -> Result<(), Errno>;
    /// Where the next `length` bytes of an append go, in a file that several nodes write;
    /// `reserved` is the place that was taken on this node, if one was.
    fn append(&self, ino: Ino, length: u64, reserved: Option<u64>) -> Result<u64, Errno>;
    /// Asks whether bytes of a raw file may be written; the claim that this node holds, which
    /// contains what is needed. See [`weir_core::proto::Token`].
    fn token(&self, ino: Ino, needed: &Claim, wished: &Claim) -> Result<Claim, Errno>;
    /// True if a writer of a raw file must execute a memory barrier after each write, because the
    /// server cannot have this process execute one.
    fn fences(&self) -> bool {
        false
    }
    /// Whether each read is to be audited ([`Host::audit`]).
    fn audits(&self) -> bool;
    /// Lets the server look whether bytes that are about to be read were written by other
    /// nodes and not made known.
    fn audit(&self, ino: Ino, offset: u64, length: u64) -> Result<(), Errno>;
    /// Hands a closed record to the server; if the ring is full, waits for the server
    /// to empty it.
    fn push(&self, record: &Record) -> Result<(), Errno>;
    /// Counts for the report.
    fn count(&self, counter: Counter, n: u64);
}

/// The state of a file that is open, as of a moment after the call began; [`Host::file`].
pub fn file_state<C: NodeClient>(client: &C, ino: Ino) -> Result<FileState, Errno> {
    let (names, hub) = (client.names(), client.hub());
    let doubts = |attr: &Attr| hub.doubts(attr, || client.now_ns());
    let mut asked = false;
    for _ in 0..PATIENCE {
        match names.attr(ino) {
            // Once is enough of what holds only for the moment: that is within this call.
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
                })
            }
            // Open, and gone.
            Ok(None) | Err(ViewError::BufferTooSmall) => return Err(Errno::IO),
            Err(ViewError::Unsettled) => client.call(Ping {})?,
        }
    }
    Err(Errno::IO)
}

/// The greatest file size: what `off_t` can say.
pub const MAX_FILE_BYTES: u64 = i64::MAX as u64;

/// What holds of a file at one moment: `ask` gets what the namespace says and the block,
/// if somebody has the file open for writing.
///
/// The server can take the block back, and lend it to another file, between the look at
/// the namespace and the look at the block: when the last writer leaves or is killed.
/// Then what the namespace said is older than that (its size may be 0 still), and both are
/// asked again. The namespace changes before the block does, so this ends.
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
