//! Locks of files: flock(2) and fcntl(2).
//!
//! Keeps: the locks of this server's files, and the owners of this node that have locks at other
//! servers.
//!
//! Invariant: a lock that a program was refused, or has given back, does not stay.
//!
//! May call: `files` (a locked file is raw), `peers`.
//!
//! Interface: `drop_dead_locks`, `drop_locks_of` (owners that are gone). All else is for `router`
//! and `handler`.
//!
//! | file | subject |
//! | --- | --- |
//! | `table` | the locks, by file |
//! | `requests` | requests of this node's owners, and their waiting |
//! | `homes` | locks of other servers' files, and for other nodes' owners |

use std::cell::RefCell;

use weir_core::proto::peer::LockOwner;
use weir_core::types::Ino;

use crate::cluster::keyed::Keyed;

pub(super) mod homes;
pub(super) mod requests;
pub(super) mod table;

/// The state of this room that concerns locks at several servers.
#[derive(Default)]
pub(in crate::cluster) struct LocksState {
    elsewhere: RefCell<homes::LocksElsewhere>,
    /// Locks of this node's owners that are being returned to other homes.
    giving_back: Keyed<(Ino, LockOwner)>,
}
