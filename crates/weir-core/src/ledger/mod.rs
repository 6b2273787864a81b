//! The ledger of one elevated tree: which files are where on their way to the parallel file system
//! (PFS), and which names may be published there now.
//!
//! A *row* is a file that was written, or a change of names. Its number is its place in the job's
//! history. Bytes are copied in any order, beside the target; names are published in the order of
//! the rows, so that the target is always a prefix of the job's history. See
//! docs/design/0009-elevator.md; the states are those of Data Elevator (Dong et al., HiPC 2016,
//! section III), and one more: a copy that waits for its turn.
//!
//! Pure: no I/O and no clock. Invariants:
//! - a number is used once, and numbers grow;
//! - a row is published only when all rows before it are, or together with them as a group;
//! - a file that is lost holds back all that follows it: a checkpoint is not removed because a newer
//!   one, which is gone, was to replace it;
//! - an event of an older generation of a file changes nothing.

mod order;
mod state;

pub use order::{Ledger, LedgerRefused, LedgerRow, Work};
pub use state::{DrainEvent, DrainRefused, DrainState, Generation, MoveFailure};
