//! The flags of open(2) as numbers.

use rustix::fs::OFlags;

/// Flags of open(2) with the numbers that this architecture gives them.
#[allow(clippy::cast_possible_wrap)] // flags
const fn bits(flags: OFlags) -> i32 {
    flags.bits() as i32
}
pub(super) const O_CREAT: i32 = bits(OFlags::CREATE);
pub(super) const O_EXCL: i32 = bits(OFlags::EXCL);
pub(super) const O_TRUNC: i32 = bits(OFlags::TRUNC);
pub(super) const O_APPEND: i32 = bits(OFlags::APPEND);
/// A bit of O_SYNC, too.
pub(super) const O_DSYNC: i32 = bits(OFlags::DSYNC);
pub(super) const O_CLOEXEC: i32 = bits(OFlags::CLOEXEC);
pub(super) const O_DIRECTORY: i32 = bits(OFlags::DIRECTORY);
pub(super) const O_NOFOLLOW: i32 = bits(OFlags::NOFOLLOW);
pub(super) const O_PATH: i32 = bits(OFlags::PATH);
pub(super) const O_TMPFILE: i32 = bits(OFlags::TMPFILE);
pub(super) const O_ACCMODE: i32 = 3;

/// True if a description with these flags may change the file.
pub(super) fn writes(flags: i32) -> bool {
    flags & O_PATH == 0 && (flags & O_ACCMODE != 0 || flags & O_TRUNC != 0)
}
