//! Permission by mode bits.
//!
//! An instance belongs to one user, so this is no barrier; it is the behaviour that programs expect
//! of mode bits: a file that was made read-only is not opened for writing by accident. Root passes,
//! except for executing a file that nobody may execute.

use rustix::io::Errno;
pub use weir_core::node::known::Guard;

/// R_OK of access(2).
pub const READ: u32 = 4;
/// W_OK.
pub const WRITE: u32 = 2;
/// X_OK.
pub const EXECUTE: u32 = 1;

/// The user and groups of a caller.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Credentials {
    /// User.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Further groups.
    pub groups: Vec<u32>,
}

impl Credentials {
    /// True for members of a group.
    pub fn is_in_group(&self, gid: u32) -> bool {
        gid == self.gid || self.groups.contains(&gid)
    }

    /// EACCES if the caller may not do all of `want`.
    pub fn check(&self, of: impl Into<Guard>, want: u32) -> Result<(), Errno> {
        if self.may(of, want) {
            Ok(())
        } else {
            Err(Errno::ACCESS)
        }
    }

    /// True if the caller may do all of `want` ([`READ`], [`WRITE`], [`EXECUTE`]).
    pub fn may(&self, of: impl Into<Guard>, want: u32) -> bool {
        let guard = of.into();
        if self.uid == 0 {
            let nobody = guard.mode & 0o111 == 0 && !guard.is_of_dir();
            return want & EXECUTE == 0 || !nobody;
        }
        let shift = if guard.uid == self.uid {
            6
        } else if self.is_in_group(guard.gid) {
            3
        } else {
            0
        };
        (guard.mode >> shift) & want == want
    }
}
