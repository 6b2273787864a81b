//! The journal: a server's record of all its changes, so that it can be killed at any instruction
//! and started again.
//!
//! A server's tables, some of which lie in memory that outlives it, may be half changed when it is
//! killed; so they are discarded and rebuilt from the journal. Memory that clients write (cells,
//! rings) is consistent at every instant, and is used: it holds the writes that the server has not
//! harvested yet. docs/design/0003-recovery.md gives the reasons.
//!
//! A journal is a head and frames ([`frame`]); a frame holds the [`Item`]s of one change, all
//! or nothing. It begins with a *snapshot*, the state as items, which ends with [`Item::SnapshotEnd`].
//! [`replay`] rebuilds the [`State`] from the items.
//!
//! A snapshot may be taken in steps, with the changes made meanwhile between them, in their order.
//! Each step records some objects in their state at that time. A change may come before the step
//! that records its object; the step then records the object with that change. So in the end each
//! object is as its step recorded it, with all changes since. Items that change
//! objects relative to an earlier state (lending, publishing) are recorded in the last step, which
//! begins with [`Item::SnapshotReset`].
//!
//! Invariants:
//! - replaying a journal whose writer was killed at any byte gives the state after all changes
//!   that it had appended, or an error if not even the snapshot is whole;
//! - a journal that ends before the number of frames in its head gives an error;
//! - bytes that are no journal give an error, never a panic, and no more memory than a small
//!   multiple of their own;
//! - items record states, not actions (an inode's attributes, an entry), so that an item may
//!   be applied twice.
//!
//! | file | subject |
//! | --- | --- |
//! | `item` | the items |
//! | `frame` | bytes: head, frames, checksums |
//! | `state` | the state that the items describe |
//! | `published` | the published bytes of a log |
//!
//! Formats are drawn in docs/FORMAT.md. Left out: the file (weir-store), and the moment at which an
//! item is noted (weir-server).

pub mod frame;
mod item;
mod published;
mod state;
#[cfg(test)]
mod tests;

pub use frame::{frames, Head, TornFrame, HEAD_BYTES, VERSION};
pub use item::{encode, CellMark, InodeImage, Item, LockedName, NameChange};
pub use published::PublishedBytes;
pub use state::{
    AttachedCell, Cluster, EntryImage, LentSegment, LostNameImage, PublishAnswers, State,
    MOST_LOST_NAMES,
};

use crate::types::Ino;

/// The reasons for which a journal cannot be used.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum JournalError {
    /// It is too short for a head, or its head is not that of a journal.
    #[error("not a journal: its head ({found_bytes} bytes) is not one of ours")]
    NotAJournal {
        /// Its length.
        found_bytes: usize,
    },
    /// Another release wrote it.
    #[error("a journal of version {found}, this program reads {VERSION}")]
    Version {
        /// The version in its head.
        found: u32,
    },
    /// There is a good frame behind a bad one.
    #[error("bad bytes at {at}, and a good record behind them at {good_at}")]
    Corrupt {
        /// The position of the first bad byte.
        at: usize,
        /// The position of the next good frame.
        good_at: usize,
    },
    /// Its count of records cannot be read.
    #[error("its end is not known: what says how many records there are is damaged")]
    NoEnd,
    /// The last records are missing.
    #[error(
        "it ends at byte {at} after {found} records, and {written} were written: the last {} are \
         missing, and with them all that they changed (names, sizes, where bytes are)",
        written - found
    )]
    Cut {
        /// The position of its end.
        at: usize,
        /// The records that are there.
        found: u64,
        /// The records that there were.
        written: u64,
    },
    /// It ends before its snapshot does.
    #[error("its snapshot is not whole: it ends at byte {at}")]
    NoSnapshot {
        /// The position of its end.
        at: usize,
    },
    /// A frame with a right checksum holds bytes that are no item.
    #[error("the record at {at} cannot be understood")]
    Malformed {
        /// The position of the frame.
        at: usize,
    },
    /// An item does not fit those before it.
    #[error("the record at {at} does not fit those before it: {why}")]
    Inconsistent {
        /// The position of the frame.
        at: usize,
        /// The reason.
        why: ItemError,
    },
}

/// The reasons for which an item does not fit those before it.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum ItemError {
    /// An item removes an entry that is not there.
    #[error("no entry {name:?} in {dir:?}")]
    NoEntry {
        /// The directory.
        dir: Ino,
        /// The name.
        name: Vec<u8>,
    },
    /// An item detaches or names a cell that is not attached.
    #[error("cell {0} is not attached")]
    NotAttached(u32),
    /// An item lends something to a client that is not there.
    #[error("no client {0}")]
    NoClient(u32),
    /// An invalid run.
    #[error("a run of {ino:?}: {error}")]
    Run {
        /// The file.
        ino: Ino,
        /// The error.
        error: crate::extent::RunError,
    },
}

/// The contents of a journal.
#[derive(Debug)]
pub struct Replayed {
    /// Its head.
    pub head: Head,
    /// The state at its end.
    pub state: State,
    /// Bytes at its end that belong to no whole frame: a record that was being written.
    pub torn: Option<TornFrame>,
    /// Frames.
    pub frames: u64,
}

/// Reads a journal.
pub fn replay(bytes: &[u8]) -> Result<Replayed, JournalError> {
    let head = Head::decode(bytes)?;
    let mut state = State::new(head.rank);
    let mut reader = frames(bytes);
    let mut count = 0;
    while let Some(frame) = reader.next()? {
        count += 1;
        let mut rest = frame.payload;
        while !rest.is_empty() {
            let taken = postcard::take_from_bytes::<Item<'_>>(rest);
            let (item, left) = taken.map_err(|_| JournalError::Malformed { at: frame.at })?;
            rest = left;
            state
                .apply(&item)
                .map_err(|why| JournalError::Inconsistent { at: frame.at, why })?;
        }
    }
    let written = frame::recorded_frames(bytes)?;
    // There may be one more than recorded: the writer was killed before it recorded that one.
    if count < written {
        return Err(JournalError::Cut {
            at: reader.end(),
            found: count,
            written,
        });
    }
    if !state.whole {
        return Err(JournalError::NoSnapshot { at: reader.end() });
    }
    Ok(Replayed {
        head,
        state,
        torn: reader.torn(),
        frames: count,
    })
}
