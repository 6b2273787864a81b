//! The journal: what a server writes down of all that it changes, so that it can be killed
//! at any instruction and started again.
//!
//! A server's tables, some of which lie in memory that outlives it, may be half changed when
//! it is killed; so they are not believed, and made anew from the journal. What is in memory
//! that clients write (cells, rings) is right at every instant, and is believed: it holds
//! what was written and not yet taken in. docs/design/0003-recovery.md says why.
//!
//! A journal is a head and frames ([`frame`]); a frame holds the [`Item`]s of one change, all
//! or nothing. It begins with a *snapshot*, the state as items, which ends with [`Item::Whole`].
//! [`replay`] puts the items together again into a [`State`].
//!
//! A snapshot may be taken in steps, with the changes made meanwhile between them, in their order.
//! Each step shows some things as they are at that time. Of a thing that was not shown yet a change
//! may come first, which then has little to change; the step that shows it says it whole. So at
//! the end each thing is as its last step said, with all changes since. What items change relative
//! to what was there (lending, publishing) is shown in the last step, which begins with
//! [`Item::Anew`].
//!
//! Invariants:
//! - replaying a journal whose writer was killed at any byte gives the state after all changes
//!   that it had appended, or an error if not even the snapshot is whole;
//! - a journal that has lost records at its end, of which its head tells, gives an error;
//! - bytes that are no journal give an error, never a panic, and no more memory than a small
//!   multiple of their own;
//! - items say what is, not what to do (an inode's attributes, an entry), so that an item may
//!   be applied twice.
//!
//! | file | subject |
//! | --- | --- |
//! | `item` | what is written down |
//! | `frame` | bytes: head, frames, checksums |
//! | `state` | items put together |
//! | `given` | how much of a log is published |
//!
//! Formats are drawn in docs/FORMAT.md. Left out: the file (weir-store), when what is noted
//! (weir-server).

pub mod frame;
mod given;
mod item;
mod state;
#[cfg(test)]
mod tests;

pub use frame::{frames, Head, Torn, HEAD_BYTES, VERSION};
pub use given::Given;
pub use item::{encode, CellMark, InodeImage, Item, LockedName, NameChange};
pub use state::{Answered, Attached, Cluster, Entry, State};

use crate::types::Ino;

/// Why a journal cannot be used.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum JournalError {
    /// It is too short for its head, or its head is no journal's.
    #[error("not a journal: its head ({found_bytes} bytes) is not one of ours")]
    NotAJournal {
        /// How long it is.
        found_bytes: usize,
    },
    /// Another release wrote it.
    #[error("a journal of version {found}, this program reads {VERSION}")]
    Version {
        /// What its head says.
        found: u32,
    },
    /// There is a good frame behind a bad one.
    #[error("bad bytes at {at}, and a good record behind them at {good_at}")]
    Corrupt {
        /// Where the bad bytes begin.
        at: usize,
        /// Where the next good frame is.
        good_at: usize,
    },
    /// It does not say how many records it has.
    #[error("its end is not known: what says how many records there are is damaged")]
    NoEnd,
    /// The last records are missing.
    #[error(
        "it ends at byte {at} after {found} records, and {written} were written: the last {} are \
         missing, and with them all that they changed (names, sizes, where bytes are)",
        written - found
    )]
    Cut {
        /// Where it ends.
        at: usize,
        /// Records that are there.
        found: u64,
        /// Records that there were.
        written: u64,
    },
    /// It ends before its snapshot does.
    #[error("its snapshot is not whole: it ends at byte {at}")]
    NoSnapshot {
        /// Where it ends.
        at: usize,
    },
    /// A frame with a right checksum holds what is no item.
    #[error("the record at {at} cannot be understood")]
    Malformed {
        /// Where the frame begins.
        at: usize,
    },
    /// An item does not fit those before it.
    #[error("the record at {at} does not fit those before it: {why}")]
    Inconsistent {
        /// Where the frame begins.
        at: usize,
        /// What does not fit.
        why: Misfit,
    },
}

/// An item that does not fit those before it.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Misfit {
    /// An entry that is not there is taken away.
    #[error("no entry {name:?} in {dir:?}")]
    NoEntry {
        /// The directory.
        dir: Ino,
        /// The name.
        name: Vec<u8>,
    },
    /// A cell that is not attached is detached or spoken of.
    #[error("cell {0} is not attached")]
    NotAttached(u32),
    /// A client that is not there has something.
    #[error("no client {0}")]
    NoClient(u32),
    /// A run that cannot be.
    #[error("a run of {ino:?}: {error}")]
    Run {
        /// The file.
        ino: Ino,
        /// What is wrong with it.
        error: crate::extent::RunError,
    },
}

/// What a journal says.
#[derive(Debug)]
pub struct Replayed {
    /// Its head.
    pub head: Head,
    /// The state at its end.
    pub state: State,
    /// Bytes at its end that belong to no whole frame: a record that was being written.
    pub torn: Option<Torn>,
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
    let written = frame::frames_told(bytes)?;
    // One more than told: the writer was killed before it told that.
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
