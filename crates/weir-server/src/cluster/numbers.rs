//! The two numbers of an inode: the global one, which names its server, and the one in a node's table.

use weir_core::proto::FsError;
use weir_core::types::Ino;

use crate::cluster::peers::calls::ServerCalls;

/// The numbers of inodes. An inode of this server has one, an inode of another server that is known
/// here has two.
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
