//! The checks that the kernel makes when a program writes, and that weir makes in its place: the
//! limit of a file's size (RLIMIT_FSIZE), and if a write clears the set-id bits of a file.
//!
//! Both are looked up when they may have changed, and kept here, where the slow path of a write
//! reads them. A write that needs no decision ([`crate::data`]) checks neither: its room ends at
//! the limit, and the server ends all claims of a file that gets a set-id bit.
//!
//! Left out: a limit that another process sets by prlimit(2); it holds from the next program on.

use core::sync::atomic::{AtomicU64, Ordering};

use rustix::process::{getrlimit, Resource};
use weir_core::names::{Attr, FileType};

use crate::kernel::Slot;
use crate::path::Credentials;

const S_ISUID: u32 = 0o4000;
const S_ISGID: u32 = 0o2000;
const S_IXGRP: u32 = 0o010;

/// No limit.
const UNLIMITED: u64 = u64::MAX;

static FILE_BYTES: AtomicU64 = AtomicU64::new(UNLIMITED);
static WRITER: Slot<Credentials> = Slot::empty();

/// The greatest size to which this process may let a file grow, bytes.
pub fn file_bytes() -> u64 {
    FILE_BYTES.load(Ordering::Relaxed)
}

/// Asks the kernel for the limit.
pub(crate) fn look() {
    let limit = getrlimit(Resource::Fsize).current;
    FILE_BYTES.store(limit.unwrap_or(UNLIMITED), Ordering::Relaxed);
}

/// Makes this process write as `who` from now on.
pub(crate) fn set_writer(who: &'static Credentials) {
    WRITER.set(Some(who));
}

/// The mode of a file after this process has changed its contents; `None`: unchanged.
///
/// As `setattr_should_drop_suidgid` of Linux: root's writes (CAP_FSETID) leave the bits. Set-group-id
/// without the group's execute bit is no set-id bit, and stays where the writer is in the group.
pub fn mode_after_write(attr: &Attr) -> Option<u32> {
    if attr.mode & (S_ISUID | S_ISGID) == 0 || attr.file_type() != FileType::File {
        return None;
    }
    let who = WRITER.get()?;
    let mode = mode_after_write_by(attr.mode, attr.gid, who);
    (mode != attr.mode & 0o7777).then_some(mode)
}

/// The mode of a file with this one and this group after a user has changed its contents.
pub fn mode_after_write_by(mode: u32, gid: u32, who: &Credentials) -> u32 {
    match who.uid {
        0 => mode & 0o7777,
        _ => mode & 0o7777 & !(S_ISUID | group_bit(mode, gid, who)),
    }
}

/// The mode of a file after its owner or group was set, by any user; `None`: unchanged.
pub fn mode_after_chown(attr: &Attr, who: &Credentials) -> Option<u32> {
    let bits = S_ISUID | group_bit(attr.mode, attr.gid, who);
    let changes = attr.file_type() != FileType::Dir && attr.mode & bits != 0;
    changes.then_some(attr.mode & 0o7777 & !bits)
}

/// The mode that chmod(2) sets: set-group-id is only for those who are in the group.
pub fn mode_of_chmod(attr: &Attr, who: &Credentials, mode: u32) -> u32 {
    match acts_for_group(attr.gid, who) {
        true => mode & 0o7777,
        false => mode & 0o7777 & !S_ISGID,
    }
}

/// The set-group-id bit, if a change of the file clears it.
fn group_bit(mode: u32, gid: u32, who: &Credentials) -> u32 {
    let clears = mode & S_IXGRP != 0 || !acts_for_group(gid, who);
    if clears {
        S_ISGID
    } else {
        0
    }
}

/// True for members of the group, and for root, which may act for every group.
pub fn acts_for_group(gid: u32, who: &Credentials) -> bool {
    who.uid == 0 || who.is_in_group(gid)
}
