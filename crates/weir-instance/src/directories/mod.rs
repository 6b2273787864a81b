//! Where an instance lives: its name, run directory, data directories, and the locks that say
//! whether it lives.
//!
//! ```text
//! $XDG_RUNTIME_DIR/weir-NAME/            or, without XDG_RUNTIME_DIR,
//! $TMPDIR/weir-UID/NAME/                 the run directory: lock, label.json, server.sock, server.log
//! launch.directory/weir-UID/NAME/                    the same of an instance of several servers, and
//!                                        secret, roster.json, agent.sock, agent.log
//! MEMORY/weir-UID-memory/NAME/           the memory tier: lock, label.json, journal, regions, slabs, and
//!                                        roster.json again, for the recovery of several servers
//! STORAGE/weir-UID-files-HOST/NAME/      the file tier: lock, label.json, slabs
//! ```
//!
//! Invariants:
//! - every directory holds a file `lock`, which the server keeps locked for its life
//!   (see [`crate::lock`]). The kernel drops the lock with the process, so "does it live" never rests on a pid;
//! - directories are claimed and judged dead only under the `guard` lock of their parent, so
//!   that one being set up is not taken for one left behind;
//! - what a killed server left of an instance goes with `weir stop`, with a start of the same name
//!   that goes on with it, or with a start after its job is over; no other start touches it
//!   (`remains`);
//! - of several servers, the agent that would start a killed one again keeps its directories for
//!   that (`keep`, locked by the agent): nobody else clears them away or claims them;
//! - a directory in a place where others can write is hostile until it was opened without
//!   following links and found to be ours and private.
//!
//! Left out: what is inside (the server's business).

mod claim;
mod job;
mod label;
mod life;
mod names;
mod parent;
mod private;
mod remains;
mod removal;

pub use claim::{claim, Claim, Claimant, Claimed};
pub use job::Job;
pub use label::{Label, ServerPart};
pub use life::{is_kept, keep, lives, wait_until_gone};
pub use names::{check_name, default_name, uid, SOCKET};
pub use parent::Parent;
pub use remains::{all, clear_dirs, living, Remains};
pub use removal::Burial;
