//! The kernel mount beneath the interposer, as an interposed program uses it.
//!
//! [`crate::session`] moves the bytes of mapped files through it. A file of the mount is opened by its inode ([`weir_core::proto::beneath`]): names may change.

use rustix::fd::BorrowedFd;
use rustix::fs::{FallocateFlags, Mode, OFlags};
use rustix::io::Errno;
use weir_core::proto::beneath::{name_of, MIRRORED_MARK, MOUNT_LINK, SHARE_OFFSET};
use weir_core::types::Ino;

use core::ops::Range;

use crate::kernel::{self, Fd};

/// Bytes that are to move between a program and a file, at an offset.
#[derive(Debug)]
pub enum Transfer<'b> {
    /// Into memory.
    Read(u64, &'b mut [u8]),
    /// Out of memory.
    Write(u64, &'b [u8]),
}

/// The directory at which the kernel has mounted the instance with this run directory, if it has.
pub fn mount_of(run_dir: &[u8]) -> Option<Vec<u8>> {
    let link = [run_dir, b"/", MOUNT_LINK.as_bytes()].concat();
    Some(rustix::fs::readlink(link, Vec::new()).ok()?.into_bytes())
}

/// True if mirrors lie over the elevated directories of the instance with this run directory, as this process finds them.
pub fn sees_mirrors(run_dir: &[u8]) -> bool {
    let mark = [run_dir, b"/", MIRRORED_MARK.as_bytes()].concat();
    rustix::fs::stat(mark).is_ok_and(|mark| mark.st_size > 0)
}

/// Opens an inode in the mount at `mount`.
pub fn open_inode(mount: &[u8], ino: Ino, flags: OFlags) -> Result<Fd, Errno> {
    let path = [mount, b"/", name_of(ino).as_bytes()].concat();
    let opened = rustix::fs::open(path, flags | OFlags::CLOEXEC, Mode::empty())?;
    Ok(kernel::into_number(opened))
}

/// Tells the mount which open file description a file of the mount stands for; see [`SHARE_OFFSET`].
pub fn share_offset(fd: Fd, description: u64) -> Result<(), Errno> {
    kernel::ioctl_set_u64(kernel::borrow(fd)?, SHARE_OFFSET, description)
}

/// Lets a range of a file that is mapped read as zeros, with the `flags` of fallocate(2) for it.
///
/// The kernel passes that by its pages, and a page that is being written back then restores the old
/// bytes. That must not happen to a page that the range covers only in part, because other programs
/// store into the rest of it: there zeros are written.
pub fn zero_mapped(
    file: BorrowedFd<'_>,
    flags: FallocateFlags,
    range: Range<u64>,
) -> Result<(), Errno> {
    static ZEROS: [u8; 4096] = [0; 4096];
    let page = rustix::param::page_size() as u64;
    if !flags.contains(FallocateFlags::KEEP_SIZE) {
        let length = range.end - range.start;
        rustix::fs::fallocate(file, FallocateFlags::empty(), range.start, length)?;
    }
    let size = u64::try_from(rustix::fs::fstat(file)?.st_size).map_err(|_| Errno::IO)?;
    let Range { start, end } = range;
    let whole = start.next_multiple_of(page)..end - end % page;
    let parts = match whole.start <= whole.end {
        true => [start..whole.start, whole.end..end],
        false => [start..end, end..end],
    };
    for part in parts {
        let (mut at, end) = (part.start, part.end.min(size));
        while at < end {
            let length = usize::try_from(end - at).unwrap_or(usize::MAX);
            match write_all(file, at, &ZEROS[..length.min(ZEROS.len())])? {
                0 => return Err(Errno::NOSPC),
                written => at += written as u64,
            }
        }
    }
    if whole.start < whole.end {
        // FUSE has no FALLOC_FL_ZERO_RANGE before Linux 5.14, and holes are zeros here.
        let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        rustix::fs::fallocate(file, flags, whole.start, whole.end - whole.start)?;
    }
    Ok(())
}

/// Writes all bytes; fewer only if an error followed the first ones.
pub(crate) fn write_all(file: BorrowedFd<'_>, offset: u64, bytes: &[u8]) -> Result<usize, Errno> {
    let mut done = 0;
    while done < bytes.len() {
        match rustix::io::pwrite(file, &bytes[done..], offset + done as u64) {
            Ok(0) => break,
            Ok(written) => done += written,
            Err(error) if done == 0 => return Err(error),
            Err(_) => break,
        }
    }
    Ok(done)
}
