//! The journal: each change is written to it before anybody is told of it.
//!
//! Keeps: the journal, and the progress of a new one. The changes that are noted and not committed are in
//! `NotedChanges`, in which all rooms note them.
//!
//! Invariant: everything that a server has reported to anybody is in its journal.
//!
//! May call: all rooms, to show the state that they keep and to give it back to them.
//!
//! Interface: `commit`, snapshots and `take_up`, which stay on `Node`, since they concern all rooms; `announced` (all
//! others know that this server is back).
//!
//! | file | subject |
//! | --- | --- |
//! | `commit` | noting, committing, snapshots |
//! | `recover` | this server's own tables after a server that was killed |
//! | `shared` | the same for the tables that servers share, and the message to the others |

use std::cell::Cell;

use crate::cluster::keyed::{Keyed, Token};

pub(super) mod commit;
pub(super) mod recover;
mod shared;
#[cfg(test)]
mod tests;

/// The state of this room that concerns several servers.
pub(in crate::cluster) struct JournalState {
    /// Entries or runs that a step of a snapshot shows.
    snapshot_step: Cell<usize>,
    /// Held until all others know that this server is back.
    announcing: Keyed<()>,
}

impl Default for JournalState {
    fn default() -> JournalState {
        JournalState {
            snapshot_step: Cell::new(commit::RUNS),
            announcing: Keyed::default(),
        }
    }
}

impl JournalState {
    /// Waits until all others know that this server is back. The token is the waiting task's.
    pub(in crate::cluster) async fn announced(&self, token: Token) {
        self.announcing.free((), token).await;
    }

    /// Returns true if all others know that this server is back.
    pub(in crate::cluster) fn has_announced(&self) -> bool {
        !self.announcing.is_held(&())
    }
}
