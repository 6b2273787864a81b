//! Locks of files: flock(2) and fcntl(2).
//!
//! Keeps: the locks of this server's files, and the owners of this node that have locks at other
//! servers.
//!
//! Invariant: a lock that a program was refused, or has given back, does not stay.
//!
//! May use: [`LocksNeeds`], [`LockOwners`].
//!
//! Interface: [`InstanceLocks`], the locks of all servers as this one knows them, for `router`, `handler` and `sessions`;
//! [`NodeLocks`], the locks of its own files, from which it also drops those of owners that are gone.
//!
//! | file | subject |
//! | --- | --- |
//! | `table` | the locks, by file |
//! | `requests` | requests of this node's owners, and their waiting |
//! | `homes` | locks of other servers' files, and for other nodes' owners |

use std::cell::RefCell;

use weir_core::proto::peer::LockOwner;
use weir_core::proto::FsError;
use weir_core::types::Ino;

use crate::cluster::abilities::InodeNumbers;
use crate::cluster::keyed::Keyed;
pub(super) use requests::{LockOwners, NodeLocks};

mod homes;
mod requests;
pub(super) mod table;
#[cfg(test)]
mod tests;

/// The parts of the server that locks need.
pub(in crate::cluster) trait LocksNeeds: InodeNumbers {
    /// The state of this room.
    fn locks_state(&self) -> &LocksState;
    /// Runs `act` on the locks of this server's files.
    fn on_node_locks<R>(&self, act: impl FnOnce(&mut NodeLocks<'_>) -> R) -> R;
    /// Makes a file of this server raw, because a program takes a lock of it. No lock is granted
    /// before all nodes that have the file open know that.
    async fn share_by_locks(&self, ino: Ino) -> Result<(), FsError>;
}

/// The locks of all servers' files, as this server knows them.
#[derive(Clone)]
pub(in crate::cluster) struct InstanceLocks<S> {
    server: S,
}

impl<S: LocksNeeds> InstanceLocks<S> {
    pub(in crate::cluster) fn new(server: &S) -> InstanceLocks<S> {
        InstanceLocks {
            server: server.clone(),
        }
    }

    fn state(&self) -> &LocksState {
        self.server.locks_state()
    }

    fn on_node<R>(&self, act: impl FnOnce(&mut NodeLocks<'_>) -> R) -> R {
        self.server.on_node_locks(act)
    }
}

/// The state of this room that concerns locks at several servers.
#[derive(Default)]
pub(in crate::cluster) struct LocksState {
    elsewhere: RefCell<homes::LocksElsewhere>,
    /// Locks of this node's owners that are being returned to other homes.
    giving_back: Keyed<(Ino, LockOwner)>,
}
