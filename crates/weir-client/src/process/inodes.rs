//! The operations on an inode, whatever the way that led to it: a path, a descriptor, or the number
//! that a kernel mount gives.
//!
//! The type has neither the table of descriptors nor the current directory: it asks the server or the
//! shared tables, and knows the user that the process acts as. Its methods are in the files of their
//! subjects.

use rustix::io::Errno;
use weir_core::names::Attr;
use weir_core::proto::{PathInTree, PathOf};
use weir_core::types::Ino;

use super::server_link::{LazyClient, ServerLink};
use super::user::ProcessUser;
use super::ProcessState;
use crate::path::walk::Names;
use crate::view::View;

/// The longest path, with its NUL, bytes.
const PATH_MAX: usize = 4096;
/// The longest path that getcwd(2) and its kin give, in bytes.
const LONGEST_PATH: usize = 64 << 10;

/// The operations on inodes, by the user of this process.
#[derive(Clone, Copy, Debug)]
pub(super) struct InodeOperations {
    pub(super) server: &'static ServerLink,
    pub(super) user: &'static ProcessUser,
}

impl InodeOperations {
    pub(super) const fn over(state: &'static ProcessState) -> InodeOperations {
        InodeOperations {
            server: &state.server,
            user: &state.user,
        }
    }

    /// The namespace.
    #[inline]
    pub(super) fn view(self) -> Result<View<LazyClient>, Errno> {
        self.server.view()
    }

    /// The attributes of an inode; ENOENT: it is gone.
    pub(super) fn attr(self, ino: Ino) -> Result<Attr, Errno> {
        check_not_gone(ino)?;
        self.server.view()?.attr(ino)?.ok_or(Errno::NOENT)
    }

    /// The path of a directory of weir's, with the prefix; ENOENT: it is gone.
    pub(super) fn path_of(self, ino: Ino) -> Result<Vec<u8>, Errno> {
        let instance = self.server.instance().ok_or(Errno::NOENT)?;
        let found = self.path_in_tree(ino)?;
        let prefix = instance.roots.prefix_of(found.root);
        Ok([prefix.bytes(), below_root(&found)].concat())
    }

    /// The path of a directory of weir's from the root of its tree; ENOENT: it is gone.
    pub(super) fn path_in_tree(self, ino: Ino) -> Result<PathInTree, Errno> {
        let view = self.server.view()?;
        if view.is_of_several() {
            return self.server.session()?.call(PathOf { ino });
        }
        // Nearly every path fits; clearing a buffer for the longest one takes longer than
        // finding the path.
        match self.path_within(ino, &mut [0; PATH_MAX]) {
            Err(Errno::NAMETOOLONG) => self.path_within(ino, &mut vec![0; LONGEST_PATH]),
            path => path,
        }
    }

    /// The same, found in the own tables. NAMETOOLONG: the buffer is too small.
    fn path_within(self, ino: Ino, buffer: &mut [u8]) -> Result<PathInTree, Errno> {
        let view = self.server.view()?;
        let found = view.settled(|names| {
            let found = names.path_of(ino, buffer)?;
            Ok(found.map(|(root, path)| PathInTree {
                root,
                path: path.to_vec(),
            }))
        })?;
        found.ok_or(Errno::NOENT)
    }

    /// The path of a directory of the kernel's that is one of weir's: in the kernel mount at `mount`, or
    /// on the PFS, where an elevated one covers it. ENOTCONN: there is none.
    pub(super) fn path_of_real_dir(self, mount: Option<&[u8]>, ino: Ino) -> Result<Vec<u8>, Errno> {
        let instance = self.server.instance().ok_or(Errno::SHUTDOWN)?;
        let found = self.path_in_tree(ino)?;
        if instance.roots.is_elevated_root(found.root) {
            // By its own path the PFS may have something else, or nothing yet.
            return self.covered_by(ino)?.ok_or(Errno::NOTCONN);
        }
        let mount = mount.ok_or(Errno::NOTCONN)?;
        Ok([mount, below_root(&found)].concat())
    }
}

/// The path without the slash of a root.
fn below_root(found: &PathInTree) -> &[u8] {
    match &found.path[..] {
        b"/" => b"",
        path => path,
    }
}

/// EIO: the inode is that of an inherited descriptor that cannot be used.
pub(super) fn check_not_gone(ino: Ino) -> Result<(), Errno> {
    match ino {
        Ino::NONE => Err(Errno::IO),
        _ => Ok(()),
    }
}
