//! The attributes by which a program sees and sets how a file is shared between nodes,
//! `user.weir.*`.
//!
//! | name | of | value |
//! | --- | --- | --- |
//! | `user.weir.visibility` | file, directory (for what is made in it) | `ras`, `raw`, `ral` |
//! | `user.weir.laminate` | file, directory | `chmod`, `close`, `request` |
//! | `user.weir.laminated` | file | `0`, `due`, `1`; setting `1` asks for it |
//!
//! Like those of other parallel file systems, they are not listed, so that a copy to another file
//! system does not fail because of them.

use rustix::io::Errno;
use weir_core::names::{Attr, FileType, LaminateOn, Lamination, Policy, Visibility};
use weir_core::proto::{Cause, Laminate, SetAttr};
use weir_core::types::Ino;

use super::super::inodes::InodeOperations;

/// The prefix of our names.
const OURS: &[u8] = b"user.weir.";

/// An attribute of ours.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum OwnName {
    Visibility,
    Laminate,
    Laminated,
}

impl OwnName {
    /// The attribute of a name that a call gives; `None`: it is not one of ours.
    pub(super) fn parse(name: &[u8]) -> Option<Result<OwnName, Errno>> {
        let name = name.strip_prefix(OURS)?;
        Some(match name {
            b"visibility" => Ok(OwnName::Visibility),
            b"laminate" => Ok(OwnName::Laminate),
            b"laminated" => Ok(OwnName::Laminated),
            _ => Err(Errno::NODATA),
        })
    }

    fn value(self, attr: &Attr) -> Result<&'static [u8], Errno> {
        match (self, attr.file_type()) {
            (_, FileType::Symlink | FileType::Fifo | FileType::Socket)
            | (OwnName::Laminated, FileType::Dir) => Err(Errno::NODATA),
            (OwnName::Visibility, _) => Ok(attr.policy.visibility.name().as_bytes()),
            (OwnName::Laminate, _) => Ok(attr.policy.laminate_on.name().as_bytes()),
            (OwnName::Laminated, _) => Ok(match attr.lamination {
                Lamination::No => b"0",
                Lamination::Due | Lamination::Sealing => b"due",
                Lamination::Done => b"1",
            }),
        }
    }
}

impl InodeOperations {
    /// ENOENT: the inode is gone.
    pub(super) fn own_xattr(self, ino: Ino, name: OwnName) -> Result<&'static [u8], Errno> {
        let attr = self.view()?.whole_attr(ino)?.ok_or(Errno::NOENT)?;
        name.value(&attr)
    }

    pub(super) fn set_own_xattr(
        self,
        ino: Ino,
        name: Result<OwnName, Errno>,
        value: &[u8],
    ) -> Result<(), Errno> {
        self.check_owner(ino)?;
        let attr = self.attr(ino)?;
        let name = name?;
        name.value(&attr)?; // of this kind of file
        let policy = match name {
            OwnName::Visibility => Policy {
                visibility: Visibility::from_name(value).ok_or(Errno::INVAL)?,
                ..attr.policy
            },
            OwnName::Laminate => Policy {
                laminate_on: LaminateOn::from_name(value).ok_or(Errno::INVAL)?,
                ..attr.policy
            },
            OwnName::Laminated if value == b"1" => return self.laminate(ino),
            OwnName::Laminated => return Err(Errno::INVAL),
        };
        if attr.lamination == Lamination::Done {
            return Err(Errno::ROFS);
        }
        self.server.session()?.call(SetAttr {
            policy: Some(policy),
            ..SetAttr::nothing(ino)
        })
    }

    /// Asks for the lamination of a file; EBUSY: it is due, but a process has it open for writing.
    pub(in super::super) fn laminate(self, ino: Ino) -> Result<(), Errno> {
        let cause = Cause::Request;
        let done = self.server.session()?.call(Laminate { ino, cause })?;
        done.then_some(()).ok_or(Errno::BUSY)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_names_of_ours_are_known() {
        let laminated = OwnName::parse(b"user.weir.laminated");
        assert_eq!(laminated, Some(Ok(OwnName::Laminated)));
        assert_eq!(OwnName::parse(b"user.weir.x"), Some(Err(Errno::NODATA)));
        assert_eq!(OwnName::parse(b"user.weirdo"), None);
        assert_eq!(OwnName::parse(b"security.selinux"), None);
    }
}
