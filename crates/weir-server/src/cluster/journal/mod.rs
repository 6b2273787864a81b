//! The journal: each change is written to it before anybody is told of it.
//!
//! Keeps: the changes that are noted and not committed, and the progress of a new journal.
//!
//! Invariant: all that a server told anybody is in its journal.
//!
//! May call: all rooms, to show the state that they keep and to give it back to them.
//!
//! | file | subject |
//! | --- | --- |
//! | `commit` | noting, committing, snapshots |
//! | `recover` | this server's own tables after a server that was killed |
//! | `shared` | the same for the tables that servers share, and the message to the others |

pub(super) mod commit;
pub(super) mod recover;
pub(super) mod shared;
