//! Files of the PFS that are taken into an elevated tree before programs ask for them.

use rustix::io::Errno;

use super::super::paths::NameInParent;
use super::Tree;
use crate::kernel::AT_FDCWD;
use crate::operation;

impl Tree {
    /// Takes the file at a path of the PFS into the elevated tree that stands over it, with its bytes, mode and times.
    /// False: the tree has the name already, or has removed it.
    pub fn take_up(self, path: &[u8]) -> Result<bool, Errno> {
        let _call = operation::begin();
        match self.parts.paths.resolve_parent(AT_FDCWD, path, false) {
            Some(Ok(NameInParent::Below {
                parent, name, path, ..
            })) => {
                self.parts.take_up.take_up_file(parent, &name, &path)?;
                Ok(true)
            }
            Some(Err(error)) => Err(error),
            Some(Ok(_)) | None => Ok(false),
        }
    }
}
