//! The operations on an inode, whatever the way that led to it: a path, a descriptor, or the number
//! that a kernel mount gives.
//!
//! The type has neither the table of descriptors nor the current directory: it asks the server or the
//! shared tables, and knows the user that the process acts as. Its methods are in the files of their
//! subjects.

use rustix::io::Errno;
use weir_core::names::Attr;
use weir_core::proto::PathOf;
use weir_core::types::Ino;

use super::server_link::{LazyClient, ServerLink};
use super::user::ProcessUser;
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
        Ok([instance.prefix.bytes(), &self.path_below(ino)?].concat())
    }

    /// The same without the prefix: empty for the root.
    pub(super) fn path_below(self, ino: Ino) -> Result<Vec<u8>, Errno> {
        let view = self.server.view()?;
        let path = if view.is_of_several() {
            self.server.session()?.call(PathOf { ino })?
        } else {
            // Nearly every path fits; clearing a buffer for the longest one takes longer than
            // finding the path.
            match self.path_within(ino, &mut [0; PATH_MAX]) {
                Err(Errno::NAMETOOLONG) => self.path_within(ino, &mut vec![0; LONGEST_PATH])?,
                path => path?,
            }
        };
        Ok(if path == b"/" { Vec::new() } else { path })
    }

    /// The path of an inode from the root, found in the own tables. NAMETOOLONG: the buffer is too small.
    fn path_within(self, ino: Ino, buffer: &mut [u8]) -> Result<Vec<u8>, Errno> {
        let view = self.server.view()?;
        let path = view.settled(|names| Ok(names.path_of(ino, buffer)?.map(<[u8]>::to_vec)))?;
        path.ok_or(Errno::NOENT)
    }
}

/// EIO: the inode is that of an inherited descriptor that cannot be used.
pub(super) fn check_not_gone(ino: Ino) -> Result<(), Errno> {
    match ino {
        Ino::NONE => Err(Errno::IO),
        _ => Ok(()),
    }
}
