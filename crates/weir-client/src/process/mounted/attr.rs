//! Setting attributes and sizes.

use rustix::io::Errno;
use weir_core::names::{Attr, FileType};
use weir_core::proto::SetAttr;
use weir_core::types::Ino;

use super::{OpenFile, Requester, Tree};
use crate::operation;
use crate::path::{access, Credentials, Guard};
use crate::process::attributes::nanoseconds;
use crate::types::{Stat, Time, UTIME_NOW, UTIME_OMIT};

/// The changes to an inode; `None` leaves an attribute unchanged.
#[derive(Clone, Copy, Debug, Default)]
pub struct Changes {
    /// Permission bits.
    pub mode: Option<u32>,
    /// Owner.
    pub uid: Option<u32>,
    /// Group.
    pub gid: Option<u32>,
    /// The size, bytes.
    pub size: Option<u64>,
    /// Access time; its nanoseconds may be `UTIME_NOW`.
    pub atime: Option<Time>,
    /// Modification time, likewise.
    pub mtime: Option<Time>,
}

impl Tree {
    /// chmod, chown, utimensat, truncate, as far as `changes` names them; `open`: by a descriptor.
    /// Returns the new attributes.
    pub fn set_attr(
        self,
        who: &Requester<'_>,
        ino: Ino,
        open: Option<OpenFile>,
        changes: &Changes,
    ) -> Result<Stat, Errno> {
        let _call = operation::begin();
        self.check_changes(who, ino, open, changes)?;
        let session = self.parts.server.session()?;
        if let Some(size) = changes.size {
            self.parts.inodes.truncate_inode(ino, size)?;
        }
        let omit = Time {
            sec: 0,
            nsec: UTIME_OMIT,
        };
        let set = SetAttr {
            mode: changes.mode.map(|mode| mode & 0o7777),
            uid: changes.uid,
            gid: changes.gid,
            atime_ns: nanoseconds(changes.atime.unwrap_or(omit))?,
            mtime_ns: nanoseconds(changes.mtime.unwrap_or(omit))?,
            ..SetAttr::nothing(ino)
        };
        if set != SetAttr::nothing(ino) {
            session.call(set)?;
        }
        self.parts.inodes.stat_of(ino)
    }

    fn check_changes(
        self,
        who: &Requester<'_>,
        ino: Ino,
        open: Option<OpenFile>,
        changes: &Changes,
    ) -> Result<(), Errno> {
        let attr = self.parts.inodes.attr(ino)?;
        let owner = who.uid == 0 || attr.uid == who.uid;
        if changes.size.is_some() {
            match attr.file_type() {
                FileType::File => {}
                FileType::Dir => return Err(Errno::ISDIR),
                FileType::Symlink | FileType::Fifo | FileType::Socket => return Err(Errno::INVAL),
            }
            match open {
                Some(open) if !open.may_write() => return Err(Errno::INVAL),
                Some(_) => {}
                None => who.check(&attr, access::WRITE)?,
            }
        }
        if changes.mode.is_some() && !owner {
            return Err(Errno::PERM);
        }
        if who.uid != 0 && changes.uid.is_some_and(|uid| !owner || uid != attr.uid) {
            return Err(Errno::PERM);
        }
        if let Some(gid) = changes.gid.filter(|gid| who.uid != 0 && *gid != attr.gid) {
            if !owner || gid != who.gid && !(who.groups)().contains(&gid) {
                return Err(Errno::PERM);
            }
        }
        check_times(who, &attr, owner, changes)
    }

    /// fallocate(2), as `IoCalls::fallocate`.
    pub fn allocate(
        self,
        open: OpenFile,
        mode: i32,
        offset: i64,
        length: i64,
    ) -> Result<(), Errno> {
        let _call = operation::begin();
        self.parts.io.allocate(open.handle, mode, offset, length)
    }
}

/// Checks that the requester may set times: the owner may, and to now any user that may write, as
/// by truncate(2).
fn check_times(
    who: &Requester<'_>,
    attr: &Attr,
    owner: bool,
    changes: &Changes,
) -> Result<(), Errno> {
    let times = [changes.atime, changes.mtime];
    if owner || changes.size.is_some() || times == [None; 2] {
        return Ok(());
    }
    let all_now = times
        .iter()
        .all(|time| time.is_some_and(|time| time.nsec == UTIME_NOW));
    match all_now {
        true => who.check(attr, access::WRITE),
        false => Err(Errno::PERM),
    }
}

/// Extended attributes. The kernel does not check them before it asks.
impl Tree {
    /// getxattr(2): the value's length, and the value unless `out` is empty.
    pub fn xattr(
        self,
        who: &Requester<'_>,
        ino: Ino,
        name: &[u8],
        out: &mut [u8],
    ) -> Result<usize, Errno> {
        let _call = operation::begin();
        self.parts
            .inodes
            .xattr_of(&self.who(who, ino)?, ino, name, out)
    }

    /// listxattr(2): the names' length, and the names unless `out` is empty.
    pub fn xattr_names(self, ino: Ino, out: &mut [u8]) -> Result<usize, Errno> {
        let _call = operation::begin();
        self.parts.inodes.xattr_names_of(ino, out)
    }

    /// setxattr(2).
    pub fn set_xattr(
        self,
        who: &Requester<'_>,
        ino: Ino,
        name: &[u8],
        value: &[u8],
        flags: u32,
    ) -> Result<(), Errno> {
        let _call = operation::begin();
        let who = self.who(who, ino)?;
        self.parts
            .inodes
            .set_xattr_of(&who, ino, name, value, flags)
    }

    /// removexattr(2).
    pub fn remove_xattr(self, who: &Requester<'_>, ino: Ino, name: &[u8]) -> Result<(), Errno> {
        let _call = operation::begin();
        self.parts
            .inodes
            .remove_xattr_of(&self.who(who, ino)?, ino, name)
    }

    /// The credentials of a requester, as far as they matter for an inode.
    fn who(self, who: &Requester<'_>, ino: Ino) -> Result<Credentials, Errno> {
        let attr = self.parts.inodes.attr(ino)?;
        Ok(who.credentials(Guard::from(&attr)))
    }
}
