//! Descriptors: the handles behind them, and the calls that make, duplicate and close descriptors.
//!
//! | file | subject |
//! | --- | --- |
//! | this one | the handle of a descriptor |
//! | `fds` | close, dup, fcntl |
//! | `lost` | descriptors closed unseen |
//! | `sharing` | descriptions that several processes share; the process that the tables are of |
//!
//! The table itself is in `table`, the handles and files behind it in `open_files`.

mod fds;
mod lost;
mod sharing;

use rustix::io::Errno;

use super::first_call::FirstCall;
use super::open_files::OpenFileTable;
use super::server_link::ServerLink;
use super::table::{self, Handle};
use super::ProcessState;
use crate::kernel::Fd;

/// The descriptors of a process, and the calls on them. They may touch the open files and the way to the server, and
/// have inherited descriptors adopted by the first call; they know neither paths nor the user.
#[derive(Debug)]
pub struct Descriptors {
    first_call: FirstCall,
    server: &'static ServerLink,
    open_files: &'static OpenFileTable,
}

impl Descriptors {
    pub(super) const fn over(state: &'static ProcessState) -> Descriptors {
        Descriptors {
            first_call: FirstCall::over(state),
            server: &state.server,
            open_files: &state.open_files,
        }
    }

    /// The handle of the descriptor, if it is weir's.
    #[inline]
    pub(super) fn handle(&self, fd: Fd) -> Option<&'static Handle> {
        self.first_call.handle(fd)
    }

    /// True if the descriptor is a file of weir's.
    #[inline]
    pub fn is_ours(&self, fd: Fd) -> bool {
        self.handle(fd).is_some()
    }

    /// Gives up the file of a descriptor in this process, if it is one of weir's, because an
    /// assertion of ours failed in a call on it: later calls that move or sync its bytes fail with
    /// EIO.
    #[cold]
    #[allow(clippy::unused_self)] // the table is one for all
    pub fn break_file(&self, fd: Fd) {
        if let Some(file) = table::get(fd).and_then(|handle| handle.file.get()) {
            file.vnode.give_up();
        }
    }

    /// True if the descriptor is one that weir uses itself.
    #[inline]
    pub fn is_internal_fd(&self, fd: Fd) -> bool {
        crate::internal::is_internal(fd) || self.server.connection.is_slab_fd(fd)
    }

    /// Makes a descriptor, which the kernel has just made, refer to `handle`. Under the lock.
    pub(in super::super) fn install(&self, fd: Fd, handle: Option<&'static Handle>) {
        self.open_files
            .install(self.server.connection.session(), fd, handle);
    }

    /// Closes a handle to which no descriptor of this process refers any more. Under the lock.
    pub(in super::super) fn close_handle(
        &self,
        handle: &'static Handle,
        published: Result<(), Errno>,
    ) -> Result<(), Errno> {
        self.open_files
            .close(self.server.connection.session(), handle, published)
    }
}
