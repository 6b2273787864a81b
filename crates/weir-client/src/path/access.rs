//! Permission by mode bits.
//!
//! An instance belongs to one user, so this is not a wall but what programs expect of
//! mode bits: a file that was made read-only is not opened for writing by accident.
//! Root passes, but for executing a file that nobody may execute.

use rustix::io::Errno;
use weir_core::names::{Attr, FileType};

/// R_OK of access(2).
pub const READ: u32 = 4;
/// W_OK.
pub const WRITE: u32 = 2;
/// X_OK.
pub const EXECUTE: u32 = 1;

/// Who asks.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Credentials {
    /// User.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Further groups.
    pub groups: Vec<u32>,
}

/// What permission depends on, of an inode.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Guard {
    /// Type and permissions.
    pub mode: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
}

impl From<&Attr> for Guard {
    fn from(attr: &Attr) -> Guard {
        Guard {
            mode: attr.mode,
            uid: attr.uid,
            gid: attr.gid,
        }
    }
}

impl Guard {
    /// Whether it is a directory's.
    pub fn is_of_dir(&self) -> bool {
        FileType::of_mode(self.mode) == Some(FileType::Dir)
    }
}

impl Credentials {
    /// EACCES if they may not do all of `want`.
    pub fn check(&self, of: impl Into<Guard>, want: u32) -> Result<(), Errno> {
        if self.may(of, want) {
            Ok(())
        } else {
            Err(Errno::ACCESS)
        }
    }

    /// Whether they may do all of `want` ([`READ`], [`WRITE`], [`EXECUTE`]).
    pub fn may(&self, of: impl Into<Guard>, want: u32) -> bool {
        let guard = of.into();
        if self.uid == 0 {
            let nobody = guard.mode & 0o111 == 0 && !guard.is_of_dir();
            return want & EXECUTE == 0 || !nobody;
        }
        let shift = if guard.uid == self.uid {
            6
        } else if guard.gid == self.gid || self.groups.contains(&guard.gid) {
            3
        } else {
            0
        };
        (guard.mode >> shift) & want == want
    }
}
