//! Cutting a file that may be evicted: [`View::update`](crate::view::View::update) prepares it.

use rustix::io::Errno;
use weir_core::proto::Truncate;
use weir_core::types::Ino;

use super::super::Process;

impl Process {
    /// Cuts a file that no descriptor of this process need have open.
    pub(in super::super) fn truncate_inode(
        &'static self,
        ino: Ino,
        size: u64,
    ) -> Result<(), Errno> {
        let session = self.session()?;
        let view = self.inodes.view()?;
        view.update(ino, || session.call(Truncate { ino, size }))
    }
}
