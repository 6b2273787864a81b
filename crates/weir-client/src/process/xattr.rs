//! Extended attributes: those by which a program sees and sets how a file is shared between
//! nodes, `user.weir.*`. There are no others: they are refused, and counted.
//!
//! | name | of | value |
//! | --- | --- | --- |
//! | `user.weir.visibility` | file, directory (for what is made in it) | `ras`, `raw`, `ral` |
//! | `user.weir.laminate` | file, directory | `chmod`, `close`, `request` |
//! | `user.weir.laminated` | file | `0`, `due`, `1`; setting `1` asks for it |
//!
//! As those of other parallel file systems, they are not listed: a copy to another file
//! system need not fail by them.

use rustix::io::Errno;
use weir_core::names::{Attr, FileType, LaminateOn, Lamination, Policy, Visibility};
use weir_core::proto::{Cause, Laminate, SetAttr};
use weir_core::types::Ino;

use super::place::{ours, Found};
use super::{Outcome, Process};
use crate::errno::of_open;
use crate::kernel::{Fd, AT_FDCWD};
use crate::operation;

/// What begins the names of ours.
const OURS: &[u8] = b"user.weir.";

/// An attribute of ours.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Name {
    Visibility,
    Laminate,
    Laminated,
}

impl Name {
    /// Of the name that a call gives; `None`: it is not one of ours.
    fn of(name: &[u8]) -> Option<Result<Name, Errno>> {
        let name = name.strip_prefix(OURS)?;
        Some(match name {
            b"visibility" => Ok(Name::Visibility),
            b"laminate" => Ok(Name::Laminate),
            b"laminated" => Ok(Name::Laminated),
            _ => Err(Errno::NODATA),
        })
    }

    fn value(self, attr: &Attr) -> Result<&'static [u8], Errno> {
        match (self, attr.file_type()) {
            (_, FileType::Symlink) | (Name::Laminated, FileType::Dir) => Err(Errno::NODATA),
            (Name::Visibility, _) => Ok(attr.policy.visibility.name().as_bytes()),
            (Name::Laminate, _) => Ok(attr.policy.laminate_on.name().as_bytes()),
            (Name::Laminated, _) => Ok(match attr.lamination {
                Lamination::No => b"0",
                Lamination::Due | Lamination::Sealing => b"due",
                Lamination::Done => b"1",
            }),
        }
    }
}

impl Process {
    /// getxattr(2) and lgetxattr(2): the value's length, and the value unless `out` is empty.
    pub fn getxattr(
        &'static self,
        path: &[u8],
        follow: bool,
        name: &[u8],
        out: &mut [u8],
    ) -> Outcome<usize> {
        let _call = operation::begin();
        self.with_existing(AT_FDCWD, path, follow, false, |found| match found {
            Found::Outside(path) if follow => rustix::fs::getxattr(&path, name, &mut *out),
            Found::Outside(path) => rustix::fs::lgetxattr(&path, name, &mut *out),
            Found::Inode(ino, _) => self.xattr_of(ino, name, out),
        })
    }

    /// fgetxattr(2).
    pub fn fgetxattr(&'static self, fd: Fd, name: &[u8], out: &mut [u8]) -> Outcome<usize> {
        let ino = self.sure_handle(fd)?.ino();
        Some(of_open(self.xattr_of(ino, name, out)))
    }

    /// ENOENT: the inode is gone.
    pub(super) fn xattr_of(
        &'static self,
        ino: Ino,
        name: &[u8],
        out: &mut [u8],
    ) -> Result<usize, Errno> {
        let Some(name) = Name::of(name) else {
            return self.refuse("xattr");
        };
        let attr = self.view()?.whole_attr(ino)?.ok_or(Errno::NOENT)?;
        let value = name?.value(&attr)?;
        if !out.is_empty() {
            let room = out.get_mut(..value.len()).ok_or(Errno::RANGE)?;
            room.copy_from_slice(value);
        }
        Ok(value.len())
    }

    /// setxattr(2) and lsetxattr(2).
    pub fn setxattr(
        &'static self,
        path: &[u8],
        follow: bool,
        name: &[u8],
        value: &[u8],
        flags: u32,
    ) -> Outcome<()> {
        let _call = operation::begin();
        let kernels = rustix::fs::XattrFlags::from_bits_retain(flags);
        self.with_existing(AT_FDCWD, path, follow, false, |found| match found {
            Found::Outside(path) if follow => rustix::fs::setxattr(&path, name, value, kernels),
            Found::Outside(path) => rustix::fs::lsetxattr(&path, name, value, kernels),
            Found::Inode(ino, _) => self.set_xattr_of(ino, name, value),
        })
    }

    /// fsetxattr(2).
    pub fn fsetxattr(&'static self, fd: Fd, name: &[u8], value: &[u8]) -> Outcome<()> {
        let _call = operation::begin();
        let ino = self.sure_handle(fd)?.ino();
        Some(self.set_xattr_of(ino, name, value))
    }

    pub(super) fn set_xattr_of(
        &'static self,
        ino: Ino,
        name: &[u8],
        value: &[u8],
    ) -> Result<(), Errno> {
        let Some(name) = Name::of(name) else {
            return self.refuse("xattr");
        };
        self.check_owner(ino)?;
        let attr = self.attr(ino)?;
        let name = name?;
        name.value(&attr)?; // of this kind of file
        let policy = match name {
            Name::Visibility => Policy {
                visibility: Visibility::of_name(value).ok_or(Errno::INVAL)?,
                ..attr.policy
            },
            Name::Laminate => Policy {
                laminate_on: LaminateOn::of_name(value).ok_or(Errno::INVAL)?,
                ..attr.policy
            },
            Name::Laminated if value == b"1" => return self.laminate(ino),
            Name::Laminated => return Err(Errno::INVAL),
        };
        if attr.lamination == Lamination::Done {
            return Err(Errno::ROFS);
        }
        self.session()?.call(SetAttr {
            policy: Some(policy),
            ..SetAttr::nothing(ino)
        })
    }

    /// Asks for the lamination of a file; EBUSY: it is due, but somebody has it open for
    /// writing.
    pub(super) fn laminate(&'static self, ino: Ino) -> Result<(), Errno> {
        let cause = Cause::Request;
        let done = self.session()?.call(Laminate { ino, cause })?;
        done.then_some(()).ok_or(Errno::BUSY)
    }

    /// removexattr(2) and lremovexattr(2): ours cannot be removed.
    pub fn removexattr(&'static self, path: &[u8], follow: bool, name: &[u8]) -> Outcome<()> {
        let _call = operation::begin();
        self.with_existing(AT_FDCWD, path, follow, false, |found| match found {
            Found::Outside(path) if follow => rustix::fs::removexattr(&path, name),
            Found::Outside(path) => rustix::fs::lremovexattr(&path, name),
            Found::Inode(..) => self.refuse_removal(name),
        })
    }

    /// fremovexattr(2).
    pub fn fremovexattr(&'static self, fd: Fd, name: &[u8]) -> Outcome<()> {
        self.sure_handle(fd)?;
        Some(self.refuse_removal(name))
    }

    fn refuse_removal(&'static self, name: &[u8]) -> Result<(), Errno> {
        match Name::of(name) {
            Some(Ok(_)) => Err(Errno::PERM),
            Some(Err(error)) => Err(error),
            None => self.refuse("xattr"),
        }
    }

    /// listxattr and llistxattr: none are shown.
    pub fn listxattr(&'static self, path: &[u8], follow: bool, out: &mut [u8]) -> Outcome<usize> {
        let _call = operation::begin();
        Some(match ours!(self.existing(AT_FDCWD, path, follow, false)) {
            Found::Outside(path) if follow => rustix::fs::listxattr(&path, out),
            Found::Outside(path) => rustix::fs::llistxattr(&path, out),
            Found::Inode(..) => Ok(0),
        })
    }

    /// flistxattr: none are shown.
    pub fn flistxattr(&'static self, fd: Fd) -> Outcome<usize> {
        self.sure_handle(fd)?;
        Some(Ok(0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_names_of_ours_are_known() {
        assert_eq!(Name::of(b"user.weir.laminated"), Some(Ok(Name::Laminated)));
        assert_eq!(Name::of(b"user.weir.x"), Some(Err(Errno::NODATA)));
        assert_eq!(Name::of(b"user.weirdo"), None);
        assert_eq!(Name::of(b"security.selinux"), None);
    }
}
