//! The journal: each change is written down before anybody is told of it.
//!
//! Keeps: what was noted and is not committed, and how far a new journal is.
//!
//! Invariant: what a server told anybody is in its journal.
//!
//! May call: all rooms, to show what they keep and to give it back to them.
//!
//! | file | subject |
//! | --- | --- |
//! | `commit` | noting, committing, snapshots |
//! | `recover` | this server's own tables after a server that was killed |
//! | `shared` | the same of what several servers share, and the word to the others |

pub(super) mod commit;
pub(super) mod recover;
pub(super) mod shared;
