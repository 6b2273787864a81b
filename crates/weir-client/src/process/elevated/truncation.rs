//! Files of the PFS that are truncated as they are opened: one of the tree replaces them, if it can have all that a
//! truncation keeps.

use rustix::fs::{Access, AtFlags, FileType as KernelType, CWD};
use rustix::io::Errno;
use weir_core::proto::Unlink;
use weir_core::types::Ino;
use weir_core::xattr::SetFlags;

use super::super::inodes::InodeOperations;
use super::super::outside;
use super::may_make_names;
use crate::limits;
use crate::path::Name;

/// The attributes of a file of the PFS that one of the tree has, too, which replaces it.
pub(in super::super) struct ReplacedFile {
    /// The mode, without the set-id bits that a truncation by this process clears.
    pub(in super::super) mode: u32,
    pub(in super::super) uid: u32,
    pub(in super::super) gid: u32,
    /// Names and values.
    xattrs: Vec<(Vec<u8>, Vec<u8>)>,
}

impl InodeOperations {
    /// The attributes of a file of the PFS that one of the tree replaces when it is truncated; `None`: the PFS has to
    /// truncate it, for it is no regular file, or a new one could not take its name, or would lose what a truncation
    /// keeps: other names, an owner or group that this user cannot give, an access control list. EACCES: this process
    /// may not write it.
    pub(in super::super) fn replaced_by_truncation(
        self,
        dir: Ino,
        path: &[u8],
    ) -> Result<Option<ReplacedFile>, Errno> {
        let stat = outside::stat(path, false)?;
        if KernelType::from_raw_mode(stat.mode) != KernelType::RegularFile {
            return Ok(None);
        }
        rustix::fs::accessat(CWD, path, Access::WRITE_OK, AtFlags::EACCESS)?;
        let who = self.user.credentials();
        let has_group = limits::acts_for_group(stat.gid, who);
        if self.names_left(&stat)? > 1 || stat.uid != who.uid || !has_group {
            return Ok(None);
        }
        let covered = self.covered_by(dir)?.ok_or(Errno::NOENT)?;
        if self.check_parent(dir).is_err() || may_make_names(&covered).is_err() {
            return Ok(None);
        }
        let Some(xattrs) = user_xattrs_of(path) else {
            return Ok(None);
        };
        Ok(Some(ReplacedFile {
            mode: limits::mode_after_write_by(stat.mode, stat.gid, who),
            uid: stat.uid,
            gid: stat.gid,
            xattrs,
        }))
    }

    /// Removes a file that was made to replace one of the PFS, and that a failed call leaves empty: a drain would replace that
    /// one by it.
    pub(in super::super) fn discard_replacement(self, parent: Ino, name: &Name) {
        if let Ok(session) = self.server.session() {
            let name = name.to_vec();
            let _ = session.call(Unlink { parent, name });
        }
    }

    /// Gives a file of the tree the extended attributes of the one that it replaces.
    pub(in super::super) fn keep_replaced_xattrs(
        self,
        ino: Ino,
        replaced: &ReplacedFile,
    ) -> Result<(), Errno> {
        for (name, value) in &replaced.xattrs {
            let flags = SetFlags {
                create: false,
                replace: false,
            };
            self.set_user_xattr(ino, name, value, flags)?;
        }
        Ok(())
    }
}

/// True for the extended attributes of a file of the PFS that one of the tree gets, which takes its place: those of users, without
/// weir's own.
pub(super) fn is_taken_along(name: &[u8]) -> bool {
    name.starts_with(b"user.") && !name.starts_with(b"user.weir.")
}

/// The attributes of the user namespace of a file of the PFS. `None`: it has an access control list, or more of them than
/// any program sets.
fn user_xattrs_of(path: &[u8]) -> Option<Vec<(Vec<u8>, Vec<u8>)>> {
    let mut names = [0; 4096];
    let length = match rustix::fs::llistxattr(path, &mut names) {
        Ok(length) => length,
        Err(Errno::NOTSUP) => 0,
        Err(_) => return None,
    };
    let mut found = Vec::new();
    for name in names[..length].split(|byte| *byte == 0) {
        if name == b"system.posix_acl_access" {
            return None;
        }
        if is_taken_along(name) {
            let mut value = vec![0; 64 << 10];
            let length = rustix::fs::lgetxattr(path, name, &mut value).ok()?;
            value.truncate(length);
            found.push((name.to_vec(), value));
        }
    }
    Some(found)
}
