//! Reads of other nodes' bytes: the pool in which they arrive, and the bytes that are kept there.
//!
//! Keeps: the node's pool, the places that clients were lent in it, bytes of laminated files.
//!
//! Invariant: a place of the pool is lent again only after nothing arrives in it any more.
//!
//! May use: [`ReadsNeeds`].
//!
//! Interface: [`RemoteReads`]; its `miss_file`, `note_name` and `tell_of_publishing` are messages about files that
//! cannot be read or published.
//!
//! | file | subject |
//! | --- | --- |
//! | `fetch` | bytes that clients ask for |
//! | `pool` | the places of the pool |
//! | `arrival` | the memory of one client that receives bytes |
//! | `kept` | bytes of laminated files, for other clients of the node |
//! | `missing` | messages about files that a lost server keeps |

use std::cell::RefCell;
use std::sync::atomic::AtomicBool;
use std::sync::Arc;

use weir_core::proto::Landing;
use weir_core::types::{ClientId, Ino};
use weir_fabric::bulk;

use crate::cluster::abilities::FindsPaths;
use crate::node::{ClientMemory, Platform, Table};

pub mod arrival;
mod fetch;
mod kept;
mod missing;
mod pool;
#[cfg(test)]
mod tests;

/// The parts of the server that reads of other nodes' bytes need.
pub(in crate::cluster) trait ReadsNeeds: FindsPaths {
    /// The shared memory of a client.
    type Memory: ClientMemory + 'static;

    /// The state of this room.
    fn reads_state(&self) -> &ReadsState<Self::Memory>;
    /// The memory of a client, if there is one of that number.
    fn memory_of(&self, id: ClientId) -> Option<Arc<Self::Memory>>;
    /// Allocates memory for `wanted` bytes of the pool; returns the number of bytes that have memory.
    fn pool_memory(&self, wanted: usize) -> usize;
    /// See [`Platform::landing`].
    fn landing(
        &self,
        client: &Arc<Self::Memory>,
        landing: Landing,
        len: u32,
        over: &Arc<AtomicBool>,
    ) -> Option<Box<dyn bulk::Landing>>;
    /// The global number of a file, if this server knows that it is laminated.
    fn laminated_here(&self, ino: Ino) -> Option<Ino>;
    /// The path of a file, for messages.
    async fn path_of_file(&self, ino: Ino) -> String;
}

/// Reads of bytes that are at other nodes.
#[derive(Clone)]
pub(in crate::cluster) struct RemoteReads<S> {
    server: S,
}

impl<S: ReadsNeeds> RemoteReads<S> {
    pub(in crate::cluster) fn new(server: &S) -> RemoteReads<S> {
        RemoteReads {
            server: server.clone(),
        }
    }

    fn state(&self) -> &ReadsState<S::Memory> {
        self.server.reads_state()
    }
}

/// The state of this room.
pub(in crate::cluster) struct ReadsState<M> {
    fetches: RefCell<fetch::Fetches<M>>,
    missing: RefCell<missing::UnreachableFiles>,
}

impl<M> ReadsState<M> {
    /// A server without others receives no bytes.
    pub(in crate::cluster) fn new(platform: &impl Platform, has_others: bool) -> ReadsState<M> {
        let first = if has_others { fetch::POOL_FIRST } else { 0 };
        let present = platform.present(Table::Pool, first);
        let fetches = fetch::Fetches::new(platform.pool_bytes(), present);
        ReadsState {
            fetches: RefCell::new(fetches),
            missing: RefCell::default(),
        }
    }
}
