//! Cutting a file that may be evicted: [`View::update`](crate::view::View::update) prepares it.

use rustix::io::Errno;
use weir_core::proto::Truncate;
use weir_core::types::Ino;

use super::super::inodes::InodeOperations;

impl InodeOperations {
    /// Cuts a file that no descriptor of this process need have open.
    pub(in super::super) fn truncate_inode(self, ino: Ino, size: u64) -> Result<(), Errno> {
        let session = self.server.session()?;
        let view = self.view()?;
        view.update(ino, || session.call(Truncate { ino, size }))
    }
}
