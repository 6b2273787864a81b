//! Access for other users to a server's files: an entry for each user in the files' POSIX access
//! control lists (acl(5)).
//!
//! ```text
//! version 2 (u32) | tag (u16), permissions (u16), user or group (u32) | ...   in the order of the tags
//! ```
//!
//! A server is one process of one user. The admitted users hold for the process, and for all files
//! that it makes from then on by [`create_sparse`](crate::map::create_sparse).

use std::sync::{Mutex, PoisonError};

use rustix::fd::AsFd;
use rustix::fs::{fgetxattr, fsetxattr, fstat, lgetxattr, lsetxattr, lstat, XattrFlags};
use rustix::io::Errno;

const NAME: &str = "system.posix_acl_access";
const VERSION: u32 = 2;
const USER_OBJ: u16 = 0x01;
const USER: u16 = 0x02;
const GROUP_OBJ: u16 = 0x04;
const GROUP: u16 = 0x08;
const MASK: u16 = 0x10;
const OTHER: u16 = 0x20;
/// The id of an entry for no particular user or group.
const NOBODY: u32 = u32::MAX;
/// The longest list that is read.
const MOST_BYTES: usize = 4096;

/// The permission to read and write.
pub const READ_WRITE: u16 = 6;
/// The permission to search a directory.
pub const SEARCH: u16 = 1;
/// All permissions.
pub const ALL: u16 = 7;

static ADMITTED: Mutex<Vec<u32>> = Mutex::new(Vec::new());

/// An entry of a list.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
struct AclEntry {
    tag: u16,
    id: u32,
    permissions: u16,
}

/// True if this process has admitted a user.
pub fn is_admitted(uid: u32) -> bool {
    admitted().contains(&uid)
}

/// Admits a user to files that are made from now on.
pub fn admit(uid: u32) {
    let mut admitted = ADMITTED.lock().unwrap_or_else(PoisonError::into_inner);
    if !admitted.contains(&uid) {
        admitted.push(uid);
    }
}

fn admitted() -> Vec<u32> {
    let admitted = ADMITTED.lock().unwrap_or_else(PoisonError::into_inner);
    admitted.clone()
}

/// Permits all admitted users to read and write a new file.
pub(crate) fn share_with_admitted(file: impl AsFd) -> Result<(), Errno> {
    admitted()
        .into_iter()
        .try_for_each(|uid| grant(&file, uid, READ_WRITE))
}

/// Permits all admitted users to read and write the file at a path.
pub fn share_path_with_admitted(path: &[u8]) -> Result<(), Errno> {
    admitted()
        .into_iter()
        .try_for_each(|uid| grant_at(path, uid, READ_WRITE))
}

/// Gives a user permissions on a file or directory, in addition to those that the user has.
/// EOPNOTSUPP: its file system keeps no lists.
pub fn grant(file: impl AsFd, uid: u32, permissions: u16) -> Result<(), Errno> {
    let mut bytes = [0; MOST_BYTES];
    let known = fgetxattr(&file, NAME, &mut bytes).map(|length| &bytes[..length]);
    let list = list_with_user(known, || Ok(fstat(&file)?.st_mode), uid, permissions)?;
    fsetxattr(&file, NAME, &list, XattrFlags::empty())
}

/// As [`grant`], for the file at a path; no link is followed.
pub fn grant_at(path: &[u8], uid: u32, permissions: u16) -> Result<(), Errno> {
    let mut bytes = [0; MOST_BYTES];
    let known = lgetxattr(path, NAME, &mut bytes).map(|length| &bytes[..length]);
    let list = list_with_user(known, || Ok(lstat(path)?.st_mode), uid, permissions)?;
    lsetxattr(path, NAME, &list, XattrFlags::empty())
}

/// Returns the existing list, or that of the mode, with a user's permissions added.
fn list_with_user(
    known: Result<&[u8], Errno>,
    mode: impl FnOnce() -> Result<u32, Errno>,
    uid: u32,
    permissions: u16,
) -> Result<Vec<u8>, Errno> {
    let mut lines = match known {
        Ok(known) => parse(known).ok_or(Errno::INVAL)?,
        Err(Errno::NODATA) => entries_of_mode(mode()?),
        Err(error) => return Err(error),
    };
    add_user(&mut lines, uid, permissions);
    Ok(encode(&lines))
}

/// Returns the list that is equivalent to a mode.
fn entries_of_mode(mode: u32) -> Vec<AclEntry> {
    let line = |tag, shift: u32| AclEntry {
        tag,
        id: NOBODY,
        permissions: u16::try_from((mode >> shift) & 7).unwrap_or(0),
    };
    vec![line(USER_OBJ, 6), line(GROUP_OBJ, 3), line(OTHER, 0)]
}

fn add_user(lines: &mut Vec<AclEntry>, uid: u32, permissions: u16) {
    let has = |line: &&mut AclEntry| (line.tag, line.id) == (USER, uid);
    match lines.iter_mut().find(has) {
        Some(line) => line.permissions |= permissions,
        None => lines.push(AclEntry {
            tag: USER,
            id: uid,
            permissions,
        }),
    }
    // The mask bounds the permissions of all but owner and others.
    let bounded = lines
        .iter()
        .filter(|line| line.tag & (USER | GROUP_OBJ | GROUP) != 0);
    let permissions = bounded.fold(0, |all, line| all | line.permissions);
    lines.retain(|line| line.tag != MASK);
    lines.push(AclEntry {
        tag: MASK,
        id: NOBODY,
        permissions,
    });
    lines.sort_unstable();
}

fn encode(lines: &[AclEntry]) -> Vec<u8> {
    let mut bytes = VERSION.to_le_bytes().to_vec();
    for line in lines {
        bytes.extend(line.tag.to_le_bytes());
        bytes.extend(line.permissions.to_le_bytes());
        bytes.extend(line.id.to_le_bytes());
    }
    bytes
}

/// Decodes a list. `None`: the format is not known.
fn parse(bytes: &[u8]) -> Option<Vec<AclEntry>> {
    let (version, lines) = bytes.split_at_checked(4)?;
    if version != VERSION.to_le_bytes() || lines.len() % 8 != 0 {
        return None;
    }
    let line = |line: &[u8]| AclEntry {
        tag: u16::from_le_bytes([line[0], line[1]]),
        permissions: u16::from_le_bytes([line[2], line[3]]),
        id: u32::from_le_bytes([line[4], line[5], line[6], line[7]]),
    };
    Some(lines.chunks_exact(8).map(line).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_user_is_added_and_the_mask_follows() {
        let mut lines = entries_of_mode(0o100_600);
        add_user(&mut lines, 1000, SEARCH);
        add_user(&mut lines, 7, READ_WRITE);
        let said: Vec<_> = lines.iter().map(|l| (l.tag, l.id, l.permissions)).collect();
        let nobody = NOBODY;
        let wanted = [
            (USER_OBJ, nobody, 6),
            (USER, 7, 6),
            (USER, 1000, 1),
            (GROUP_OBJ, nobody, 0),
            (MASK, nobody, 7),
            (OTHER, nobody, 0),
        ];
        assert_eq!(said, wanted);
        assert_eq!(parse(&encode(&lines)), Some(lines));
        assert_eq!(parse(b"\x02\0\0\0x"), None);
    }
}
