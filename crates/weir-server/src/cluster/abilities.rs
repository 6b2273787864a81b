//! The abilities of a server that several rooms need.

use std::future::Future;

use weir_core::journal::Item;
use weir_core::proto::{FsError, PathInTree, Served};
use weir_core::types::Ino;

use crate::cluster::peers::calls::ServerCalls;

/// A server that knows the numbers of inodes: the global number, which names the server of the inode,
/// and the number in the table of a node. They are one for an inode of this server, and two for a
/// foreign one that is known here.
pub(in crate::cluster) trait InodeNumbers: ServerCalls {
    /// The global number of an inode that has a number in this node's table.
    fn global(&self, ino: Ino) -> Ino;

    /// The number of a file in this node's table, if it is known here.
    fn local(&self, ino: Ino) -> Option<Ino>;

    /// The global number of an inode that a client named. ESTALE if its server does not exist, so
    /// that no request is ever sent there.
    fn resolve(&self, ino: Ino) -> Result<Ino, FsError> {
        match ino.rank().0 < self.peers().servers() {
            true => Ok(self.global(ino)),
            false => Err(FsError::Stale),
        }
    }
}

/// A server that finds paths.
pub(in crate::cluster) trait FindsPaths: InodeNumbers {
    /// The path of a directory, from the homes of its names.
    async fn path_by_homes(&self, dir: Ino) -> Result<PathInTree, FsError>;
}

/// A server that has a journal.
pub(in crate::cluster) trait Journals: ServerCalls {
    /// Adds a change to the journal.
    fn note(&self, item: &Item<'_>);
    /// Waits until all others know that this server is back.
    async fn announced(&self);
}

/// A part of a server whose operations may have to wait. Each has a clone of it.
pub(in crate::cluster) trait Waits: Clone {
    /// An operation that may have to wait.
    fn later<T: 'static, F: Future<Output = T> + 'static>(
        &self,
        act: impl FnOnce(Self) -> F,
    ) -> Served<T> {
        Served::later(act(self.clone()))
    }
}

impl<S: Clone> Waits for S {}
