//! Attributes: looking at them, setting them.
//!
//! | file | subject |
//! | --- | --- |
//! | `stat` | stat, access, statfs |
//! | `attr` | modes, owners, times |
//! | `xattr`, `own_xattr` | extended attributes; those that are weir's own |

mod attr;
mod own_xattr;
mod stat;
mod xattr;

use rustix::io::Errno;

use super::descriptors::Descriptors;
use super::inodes::InodeOperations;
use super::paths::PathLookup;
use super::user::ProcessUser;
use super::{Outcome, ProcessState};
use crate::kernel::Fd;
pub(super) use attr::nanoseconds;

/// AT_SYMLINK_NOFOLLOW, AT_EMPTY_PATH.
const NOFOLLOW: i32 = 0x100;
pub(super) const EMPTY_PATH: i32 = 0x1000;

/// The calls on attributes, by path and by descriptor. They may touch the look-up of paths, descriptors, the user,
/// and inodes.
#[derive(Debug)]
pub struct AttributeCalls {
    paths: PathLookup,
    descriptors: Descriptors,
    user: &'static ProcessUser,
    inodes: InodeOperations,
}

impl AttributeCalls {
    pub(super) const fn over(state: &'static ProcessState) -> AttributeCalls {
        AttributeCalls {
            paths: PathLookup::over(state),
            descriptors: Descriptors::over(state),
            user: &state.user,
            inodes: InodeOperations::over(state),
        }
    }

    /// Fails with EINVAL if a call has flags that it does not know; `None` if its path is not
    /// weir's.
    fn check_flags(&self, dirfd: Fd, path: &[u8], flags: i32, known: i32) -> Outcome<()> {
        if flags & !known == 0 {
            return Some(Ok(()));
        }
        let is_ours = self.descriptors.handle(dirfd).is_some() && path.is_empty();
        (is_ours || self.paths.is_our_path(dirfd, path)).then_some(Err(Errno::INVAL))
    }
}
