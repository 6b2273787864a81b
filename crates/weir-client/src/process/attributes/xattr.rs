//! Extended attributes.
//!
//! | names | treatment |
//! | --- | --- |
//! | `user.weir.*` | weir's own, see [`super::own_xattr`] |
//! | `user.*` | kept with the inode, by the server of its home |
//! | all others | refused, and counted |
//!
//! As on Linux, `user.*` belongs to regular files and directories only; a process that may read or
//! write the file may read or write them.

use core::sync::atomic::{AtomicU64, Ordering};

use rustix::fs::XattrFlags;
use rustix::io::Errno;
use weir_core::names::{Attr, FileType};
use weir_core::proto::{GetXattr, ListXattrs, RemoveXattr, SetXattr, XATTR_PART_BYTES};
use weir_core::types::Ino;
use weir_core::xattr::{SetFlags, NAME_MAX, VALUE_MAX};

use super::super::inodes::InodeOperations;
use super::super::outcome::ours;
use super::super::paths::ResolvedFile;
use super::super::table::PATH;
use super::super::Outcome;
use super::own_xattr::OwnName;
use super::AttributeCalls;
use crate::errno::of_open;
use crate::kernel::{Fd, AT_FDCWD};
use crate::operation;
use crate::path::{access, Credentials};

/// The namespace whose attributes are kept.
const USER: &[u8] = b"user.";
const S_ISVTX: u32 = 0o1000;

/// Numbers of calls that set a value in parts.
static CALLS: AtomicU64 = AtomicU64::new(0);

/// The kind of an attribute's name.
enum Name {
    Own(Result<OwnName, Errno>),
    User,
}

impl AttributeCalls {
    /// getxattr(2) and lgetxattr(2): the value's length, and the value unless `out` is empty.
    pub fn getxattr(
        &self,
        path: &[u8],
        follow: bool,
        name: &[u8],
        out: &mut [u8],
    ) -> Outcome<usize> {
        let _call = operation::begin();
        self.paths
            .with_existing(AT_FDCWD, path, follow, false, |found| match found {
                ResolvedFile::Outside(path) => get_outside(&path, follow, name, &mut *out),
                ResolvedFile::Inode(ino, _) => {
                    self.inodes
                        .union_xattr_of(self.user.credentials(), ino, name, out)
                }
            })
    }

    /// fgetxattr(2).
    pub fn fgetxattr(&self, fd: Fd, name: &[u8], out: &mut [u8]) -> Outcome<usize> {
        let _call = operation::begin();
        let ino = ours!(self.xattrs_of_descriptor(fd));
        Some(of_open(self.inodes.union_xattr_of(
            self.user.credentials(),
            ino,
            name,
            out,
        )))
    }

    /// setxattr(2) and lsetxattr(2).
    pub fn setxattr(
        &self,
        path: &[u8],
        follow: bool,
        name: &[u8],
        value: &[u8],
        flags: u32,
    ) -> Outcome<()> {
        let _call = operation::begin();
        let kernels = XattrFlags::from_bits_retain(flags);
        self.paths
            .with_existing(AT_FDCWD, path, follow, false, |found| match found {
                ResolvedFile::Outside(path) if follow => {
                    rustix::fs::setxattr(&path, name, value, kernels)
                }
                ResolvedFile::Outside(path) => rustix::fs::lsetxattr(&path, name, value, kernels),
                ResolvedFile::Inode(ino, _) => {
                    self.inodes
                        .union_set_xattr_of(self.user.credentials(), ino, name, value, flags)
                }
            })
    }

    /// fsetxattr(2).
    pub fn fsetxattr(&self, fd: Fd, name: &[u8], value: &[u8], flags: u32) -> Outcome<()> {
        let _call = operation::begin();
        let ino = ours!(self.xattrs_of_descriptor(fd));
        Some(of_open(self.inodes.union_set_xattr_of(
            self.user.credentials(),
            ino,
            name,
            value,
            flags,
        )))
    }

    /// removexattr(2) and lremovexattr(2): weir's own cannot be removed.
    pub fn removexattr(&self, path: &[u8], follow: bool, name: &[u8]) -> Outcome<()> {
        let _call = operation::begin();
        self.paths
            .with_existing(AT_FDCWD, path, follow, false, |found| match found {
                ResolvedFile::Outside(path) if follow => rustix::fs::removexattr(&path, name),
                ResolvedFile::Outside(path) => rustix::fs::lremovexattr(&path, name),
                ResolvedFile::Inode(ino, _) => {
                    self.inodes
                        .union_remove_xattr_of(self.user.credentials(), ino, name)
                }
            })
    }

    /// fremovexattr(2).
    pub fn fremovexattr(&self, fd: Fd, name: &[u8]) -> Outcome<()> {
        let _call = operation::begin();
        let ino = ours!(self.xattrs_of_descriptor(fd));
        Some(of_open(self.inodes.union_remove_xattr_of(
            self.user.credentials(),
            ino,
            name,
        )))
    }

    /// listxattr(2) and llistxattr(2): the names' length, and the names unless `out` is empty.
    pub fn listxattr(&self, path: &[u8], follow: bool, out: &mut [u8]) -> Outcome<usize> {
        let _call = operation::begin();
        self.paths
            .with_existing(AT_FDCWD, path, follow, false, |found| match found {
                ResolvedFile::Outside(path) => match (follow, out.is_empty()) {
                    (true, true) => rustix::fs::listxattr_query(&path),
                    (true, false) => rustix::fs::listxattr(&path, &mut *out),
                    (false, true) => rustix::fs::llistxattr_query(&path),
                    (false, false) => rustix::fs::llistxattr(&path, &mut *out),
                },
                ResolvedFile::Inode(_, FileType::Symlink) => Ok(0),
                ResolvedFile::Inode(ino, _) => self.inodes.union_xattr_names_of(ino, out),
            })
    }

    /// flistxattr(2).
    pub fn flistxattr(&self, fd: Fd, out: &mut [u8]) -> Outcome<usize> {
        let _call = operation::begin();
        let ino = ours!(self.xattrs_of_descriptor(fd));
        Some(of_open(self.inodes.union_xattr_names_of(ino, out)))
    }

    /// The inode of a descriptor that is not O_PATH.
    fn xattrs_of_descriptor(&self, fd: Fd) -> Outcome<Ino> {
        let handle = self.descriptors.verified_handle(fd)?;
        Some(match handle.has(PATH) {
            true => Err(Errno::BADF),
            false => Ok(handle.ino()),
        })
    }
}

/// The attributes of directories that cover one of the PFS are that one's, but for weir's own.
impl InodeOperations {
    fn union_xattr_of(
        self,
        who: &Credentials,
        ino: Ino,
        name: &[u8],
        out: &mut [u8],
    ) -> Result<usize, Errno> {
        match self.user_xattrs_below(ino, name)? {
            Some(below) => {
                who.check(&self.attr(ino)?, access::READ)?;
                get_outside(&below, true, name, out)
            }
            None => self.xattr_of(who, ino, name, out),
        }
    }

    fn union_set_xattr_of(
        self,
        who: &Credentials,
        ino: Ino,
        name: &[u8],
        value: &[u8],
        flags: u32,
    ) -> Result<(), Errno> {
        match self.user_xattrs_below(ino, name)? {
            Some(below) => {
                check_change(who, &self.attr(ino)?)?;
                let flags = XattrFlags::from_bits_retain(flags);
                rustix::fs::setxattr(below, name, value, flags)
            }
            None => self.set_xattr_of(who, ino, name, value, flags),
        }
    }

    fn union_remove_xattr_of(self, who: &Credentials, ino: Ino, name: &[u8]) -> Result<(), Errno> {
        match self.user_xattrs_below(ino, name)? {
            Some(below) => {
                check_change(who, &self.attr(ino)?)?;
                rustix::fs::removexattr(below, name)
            }
            None => self.remove_xattr_of(who, ino, name),
        }
    }

    fn union_xattr_names_of(self, ino: Ino, out: &mut [u8]) -> Result<usize, Errno> {
        match self.directory_below(ino)? {
            Some(below) => give(&user_names_outside(&below)?, out),
            None => self.xattr_names_of(ino, out),
        }
    }

    /// The directory of the PFS that has an attribute of an inode; `None`: the instance has it.
    fn user_xattrs_below(self, ino: Ino, name: &[u8]) -> Result<Option<Vec<u8>>, Errno> {
        match self.kind_of_name(name)? {
            Name::User => self.directory_below(ino),
            Name::Own(_) => Ok(None),
        }
    }
}

impl InodeOperations {
    /// ENOENT: the inode is gone.
    pub(in super::super) fn xattr_of(
        self,
        who: &Credentials,
        ino: Ino,
        name: &[u8],
        out: &mut [u8],
    ) -> Result<usize, Errno> {
        match self.kind_of_name(name)? {
            Name::Own(name) => give(self.own_xattr(ino, name?)?, out),
            Name::User => {
                let attr = self.attr(ino)?;
                if !matches!(attr.file_type(), FileType::File | FileType::Dir) {
                    return Err(Errno::NODATA);
                }
                who.check(&attr, access::READ)?;
                let name = name.to_vec();
                give(&self.server.session()?.call(GetXattr { ino, name })?, out)
            }
        }
    }

    pub(in super::super) fn set_xattr_of(
        self,
        who: &Credentials,
        ino: Ino,
        name: &[u8],
        value: &[u8],
        flags: u32,
    ) -> Result<(), Errno> {
        let known = XattrFlags::CREATE | XattrFlags::REPLACE;
        if flags & !known.bits() != 0 {
            return Err(Errno::INVAL);
        }
        let kind = self.kind_of_name(name)?;
        if value.len() > VALUE_MAX {
            return Err(Errno::TOOBIG);
        }
        match kind {
            Name::Own(own) => self.set_own_xattr(ino, own, value),
            Name::User => {
                check_change(who, &self.attr(ino)?)?;
                let flags = SetFlags {
                    create: flags & XattrFlags::CREATE.bits() != 0,
                    replace: flags & XattrFlags::REPLACE.bits() != 0,
                };
                self.set_user_xattr(ino, name, value, flags)
            }
        }
    }

    pub(in super::super) fn set_user_xattr(
        self,
        ino: Ino,
        name: &[u8],
        value: &[u8],
        flags: SetFlags,
    ) -> Result<(), Errno> {
        let session = self.server.session()?;
        let call = CALLS.fetch_add(1, Ordering::Relaxed);
        let mut before = 0;
        loop {
            let rest = &value[before..];
            let part = &rest[..rest.len().min(XATTR_PART_BYTES)];
            let after = rest.len() - part.len();
            session.call(SetXattr {
                ino,
                name: name.to_vec(),
                part: part.to_vec(),
                before: u32::try_from(before).map_err(|_| Errno::TOOBIG)?,
                after: u32::try_from(after).map_err(|_| Errno::TOOBIG)?,
                call,
                flags,
            })?;
            before += part.len();
            if after == 0 {
                return Ok(());
            }
        }
    }

    pub(in super::super) fn remove_xattr_of(
        self,
        who: &Credentials,
        ino: Ino,
        name: &[u8],
    ) -> Result<(), Errno> {
        match self.kind_of_name(name)? {
            Name::Own(own) => own.and(Err(Errno::PERM)),
            Name::User => {
                check_change(who, &self.attr(ino)?)?;
                let name = name.to_vec();
                self.server.session()?.call(RemoveXattr { ino, name })
            }
        }
    }

    pub(in super::super) fn xattr_names_of(self, ino: Ino, out: &mut [u8]) -> Result<usize, Errno> {
        give(&self.server.session()?.call(ListXattrs { ino })?, out)
    }

    /// ERANGE: the name is too long. EINVAL: it has a namespace only.
    fn kind_of_name(self, name: &[u8]) -> Result<Name, Errno> {
        if name.is_empty() || name.len() > NAME_MAX {
            return Err(Errno::RANGE);
        }
        if let Some(own) = OwnName::parse(name) {
            return Ok(Name::Own(own));
        }
        match name.strip_prefix(USER) {
            Some(b"") => Err(Errno::INVAL),
            Some(_) => Ok(Name::User),
            None => self.server.refuse("xattr"),
        }
    }
}

/// Fails unless a process may change the attributes of an inode. In a sticky directory, which many
/// may write, only the owner may change those of the directory itself.
fn check_change(who: &Credentials, attr: &Attr) -> Result<(), Errno> {
    let others = who.uid != 0 && who.uid != attr.uid;
    match attr.file_type() {
        FileType::Symlink | FileType::Fifo | FileType::Socket => Err(Errno::PERM),
        FileType::Dir if others && attr.mode & S_ISVTX != 0 => Err(Errno::PERM),
        FileType::Dir | FileType::File => who.check(attr, access::WRITE),
    }
}

/// getxattr(2) and lgetxattr(2) of a file of the kernel's.
fn get_outside(path: &[u8], follow: bool, name: &[u8], out: &mut [u8]) -> Result<usize, Errno> {
    // Asked for a length, rustix answers by another function.
    match (follow, out.is_empty()) {
        (true, true) => rustix::fs::getxattr_query(path, name),
        (true, false) => rustix::fs::getxattr(path, name, out),
        (false, true) => rustix::fs::lgetxattr_query(path, name),
        (false, false) => rustix::fs::lgetxattr(path, name, out),
    }
}

/// The names in the user namespace of a directory of the kernel's, each with a NUL behind it.
fn user_names_outside(path: &[u8]) -> Result<Vec<u8>, Errno> {
    let mut names = vec![0; 64 << 10];
    let length = match rustix::fs::listxattr(path, &mut names) {
        // A file system without them.
        Err(Errno::OPNOTSUPP) => 0,
        length => length?,
    };
    let all = names[..length].split_inclusive(|byte| *byte == 0);
    Ok(all
        .filter(|name| name.starts_with(USER))
        .flatten()
        .copied()
        .collect())
}

/// Copies a value of variable length to `out`, unless that is empty; returns its length.
fn give(value: &[u8], out: &mut [u8]) -> Result<usize, Errno> {
    if !out.is_empty() {
        let room = out.get_mut(..value.len()).ok_or(Errno::RANGE)?;
        room.copy_from_slice(value);
    }
    Ok(value.len())
}
