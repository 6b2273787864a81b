//! The abilities of a server, and of its tables, that several rooms need.

use std::future::Future;

use weir_core::journal::Item;
use weir_core::node::known::KnownNames;
use weir_core::proto::{FsError, PathInTree, Served};
use weir_core::types::Ino;

use crate::cluster::node_names::NodeNames;
use crate::cluster::peers::calls::ServerCalls;

/// A server that knows the numbers of inodes: the global number, which names the server of the inode, and the number in
/// the table of a node. The two are equal for an inode of this server, and differ for a foreign one that is known here.
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

/// A server with tables of its own.
pub(in crate::cluster) trait OwnTables {
    /// The tables.
    type Node;

    /// Runs `act` on the tables of this server.
    fn node<R>(&self, act: impl FnOnce(&mut Self::Node) -> R) -> R;
}

/// Tables with the names and inodes of this server, and those of other servers that its programs know.
pub(in crate::cluster) trait NameTables {
    /// The names and inodes.
    fn names(&mut self) -> &mut NodeNames<'static>;
    /// The table in shared memory of names of other servers, to look up and to remove names.
    fn known(&self) -> KnownNames<'static>;
    /// The same table, to add a name. The first call allocates memory for the table, if there is any.
    fn known_to_keep(&mut self) -> KnownNames<'static>;
}

/// A server that finds paths.
pub(in crate::cluster) trait FindsPaths: InodeNumbers {
    /// The path of a directory, from the homes of its names.
    async fn path_by_homes(&self, dir: Ino) -> Result<PathInTree, FsError>;
}

/// A server that has a journal.
pub(in crate::cluster) trait Journals: ServerCalls {
    /// Notes a change for the journal.
    fn note(&self, item: &Item<'_>);
    /// Waits until all others know that this server is back.
    async fn announced(&self);
    /// Returns true if all others know that this server is back.
    fn has_announced(&self) -> bool;
}

/// A part of a server whose operations may have to wait. Each operation has its own clone of the part.
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
