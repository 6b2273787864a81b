//! Creating, removing, renaming and listing names.

use rustix::io::Errno;
use weir_core::names::{FileType, SYMLINK_MAX};
use weir_core::proto::{Create, Link, MakeSpecial, Mkdir, Readdir, Rename, Rmdir, Symlink, Unlink};
use weir_core::types::Ino;

use super::{check_name, Requester, Tree};
use crate::operation;
use crate::path::access;
use crate::path::walk::Names;
use crate::types::Stat;

const S_IFMT: u32 = 0o170_000;
const S_IFREG: u32 = 0o100_000;
const S_IFIFO: u32 = 0o010_000;
const S_IFSOCK: u32 = 0o140_000;
const S_ISVTX: u32 = 0o1000;

/// An entry of a directory.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DirEntry {
    /// The inode.
    pub ino: Ino,
    /// The position at which a listing continues behind it.
    pub next: u64,
    /// The kind and permission bits, as `st_mode`.
    pub mode: u32,
    /// The name.
    pub name: Vec<u8>,
}

/// A part of the listing of a directory.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DirListing {
    /// None: there are no more.
    pub entries: Vec<DirEntry>,
    /// The end of the listing, for its next part.
    pub until: u64,
}

/// The position of the first name in a listing: behind "." and "..".
const DOTS: u64 = 2;

impl Tree {
    /// mkdir(2), without the umask, which the kernel has applied.
    pub fn mkdir(
        self,
        who: &Requester<'_>,
        parent: Ino,
        name: &[u8],
        mode: u32,
    ) -> Result<Stat, Errno> {
        let _call = operation::begin();
        self.check_parent(who, parent, name)?;
        let made = self.parts.server.session()?.call(Mkdir {
            parent,
            name: name.to_vec(),
            mode: mode & (0o777 | S_ISVTX),
            uid: who.uid,
            gid: who.gid,
        })?;
        self.parts.inodes.stat_of(made)
    }

    /// mknod(2) of a regular file, a fifo or a socket, without the umask. EPERM: it is a device.
    pub fn mknod(
        self,
        who: &Requester<'_>,
        parent: Ino,
        name: &[u8],
        mode: u32,
    ) -> Result<Stat, Errno> {
        let _call = operation::begin();
        self.check_parent(who, parent, name)?;
        let session = self.parts.server.session()?;
        let special = |kind| MakeSpecial {
            parent,
            name: name.to_vec(),
            kind,
            mode: mode & 0o7777,
            uid: who.uid,
            gid: who.gid,
        };
        let ino = match mode & S_IFMT {
            0 | S_IFREG => {
                let mut op = create_op(who, parent, name, mode);
                op.exclusive = true;
                session.call(op)?.ino
            }
            S_IFIFO => session.call(special(FileType::Fifo))?,
            S_IFSOCK => session.call(special(FileType::Socket))?,
            _ => {
                self.parts.server.count_refusal("mknod");
                return Err(Errno::PERM);
            }
        };
        self.parts.inodes.stat_of(ino)
    }

    /// symlink(2).
    pub fn symlink(
        self,
        who: &Requester<'_>,
        parent: Ino,
        name: &[u8],
        target: &[u8],
    ) -> Result<Stat, Errno> {
        let _call = operation::begin();
        if target.is_empty() {
            return Err(Errno::NOENT);
        }
        if target.len() > SYMLINK_MAX {
            return Err(Errno::NAMETOOLONG);
        }
        self.check_parent(who, parent, name)?;
        let made = self.parts.server.session()?.call(Symlink {
            parent,
            name: name.to_vec(),
            target: target.to_vec(),
            uid: who.uid,
            gid: who.gid,
        })?;
        self.parts.inodes.stat_of(made)
    }

    /// link(2).
    pub fn link(
        self,
        who: &Requester<'_>,
        ino: Ino,
        parent: Ino,
        name: &[u8],
    ) -> Result<Stat, Errno> {
        let _call = operation::begin();
        self.check_parent(who, parent, name)?;
        let name = name.to_vec();
        self.parts
            .server
            .session()?
            .call(Link { ino, parent, name })?;
        self.parts.inodes.stat_of(ino)
    }

    /// unlink(2).
    pub fn unlink(self, who: &Requester<'_>, parent: Ino, name: &[u8]) -> Result<(), Errno> {
        let _call = operation::begin();
        self.check_removal(who, parent, name)?;
        let name = name.to_vec();
        self.parts.server.session()?.call(Unlink { parent, name })
    }

    /// rmdir(2).
    pub fn rmdir(self, who: &Requester<'_>, parent: Ino, name: &[u8]) -> Result<(), Errno> {
        let _call = operation::begin();
        self.check_removal(who, parent, name)?;
        let name = name.to_vec();
        self.parts.server.session()?.call(Rmdir { parent, name })
    }

    /// renameat2(2); `flags` are RENAME_NOREPLACE (1) or RENAME_EXCHANGE (2).
    pub fn rename(
        self,
        who: &Requester<'_>,
        parent: Ino,
        name: &[u8],
        new_parent: Ino,
        new_name: &[u8],
        flags: u32,
    ) -> Result<(), Errno> {
        let _call = operation::begin();
        if flags > 2 {
            return Err(Errno::INVAL);
        }
        self.check_removal(who, parent, name)?;
        self.check_removal(who, new_parent, new_name)?;
        self.parts.server.session()?.call(Rename {
            parent,
            name: name.to_vec(),
            new_parent,
            new_name: new_name.to_vec(),
            flags,
        })
    }

    /// The entries of a directory from position `at` on (0: the beginning), of about
    /// `budget_bytes`. "." is at 0 and ".." at 1. A directory that was removed has none. `until`: the end that the part
    /// before had, 0 in the first one; `None`: what programs make meanwhile is listed, too, and may keep the
    /// listing from its end.
    pub fn readdir(
        self,
        dir: Ino,
        at: u64,
        until: Option<u64>,
        budget_bytes: u32,
    ) -> Result<DirListing, Errno> {
        const S_IFDIR: u32 = 0o040_000;
        let _call = operation::begin();
        let view = self.parts.inodes.view()?;
        let Some(attr) = view.attr(dir)?.filter(|attr| attr.nlink > 0) else {
            let (entries, until) = (Vec::new(), 0);
            return Ok(DirListing { entries, until });
        };
        let dot = |name: &[u8], ino, next| DirEntry {
            ino,
            next,
            mode: S_IFDIR,
            name: name.to_vec(),
        };
        let parent = match attr.parent {
            Ino::NONE => dir,
            parent => parent,
        };
        let mut entries = match at {
            0 => vec![dot(b".", dir, 1), dot(b"..", parent, DOTS)],
            1 => vec![dot(b"..", parent, DOTS)],
            _ => Vec::new(),
        };
        let found = self.parts.server.session()?.call(Readdir {
            ino: dir,
            cookie: at.saturating_sub(DOTS),
            until,
            budget_bytes,
        })?;
        let until = found.until;
        entries.extend(found.entries.into_iter().map(|entry| DirEntry {
            ino: entry.ino,
            next: entry.cookie + DOTS,
            mode: entry.mode,
            name: entry.name,
        }));
        Ok(DirListing { entries, until })
    }

    /// opendir(3): EACCES if the requester may not list a directory.
    pub fn check_listing(self, who: &Requester<'_>, dir: Ino) -> Result<(), Errno> {
        self.search(who, dir, access::READ)
    }

    /// Checks that the requester may give a directory one more name.
    pub(super) fn check_parent(
        self,
        who: &Requester<'_>,
        parent: Ino,
        name: &[u8],
    ) -> Result<(), Errno> {
        check_name(name)?;
        self.search(who, parent, access::WRITE | access::EXECUTE)
    }

    /// Checks that the requester may remove a name from a directory: if the sticky bit is set, only
    /// the owners of the directory and of the named inode may.
    fn check_removal(self, who: &Requester<'_>, parent: Ino, name: &[u8]) -> Result<(), Errno> {
        self.check_parent(who, parent, name)?;
        let view = self.parts.inodes.view()?;
        let guard = view.passage(parent)?.ok_or(Errno::NOENT)?;
        if who.uid == 0 || guard.mode & S_ISVTX == 0 || guard.uid == who.uid {
            return Ok(());
        }
        match view.lookup(parent, name)? {
            Some((ino, _)) if self.parts.inodes.attr(ino)?.uid != who.uid => Err(Errno::PERM),
            _ => Ok(()),
        }
    }
}

/// The request that makes a file, or finds it.
pub(super) fn create_op(who: &Requester<'_>, parent: Ino, name: &[u8], mode: u32) -> Create {
    Create {
        parent,
        name: name.to_vec(),
        mode: mode & 0o7777,
        uid: who.uid,
        gid: who.gid,
        exclusive: false,
        attach: false,
    }
}
