//! The kernel mount beneath the interposer, as an interposed program uses it.
//!
//! If programs have mapped a file, the kernel keeps pages of it. Reads and writes of the file then
//! go through the mount too, so that they and the pages are the same: the kernel writes a page back
//! before it reads its bytes, and drops a page whose bytes are written. The server's
//! `cluster/files/mapped.rs` says which files these are.
//!
//! A file of the mount is opened by its inode ([`weir_core::proto::beneath`]): names may change.

use rustix::fd::BorrowedFd;
use rustix::fs::{FallocateFlags, Mode, OFlags};
use rustix::io::Errno;
use weir_core::proto::beneath::{name_of, MOUNT_LINK, PRIVATE, SHARED, SHARE_OFFSET};
use weir_core::types::Ino;

use core::ops::Range;
use core::sync::atomic::Ordering;

use crate::internal::{Internal, InternalSlot};
use crate::kernel::{self, Fd};
use crate::session::Session;

/// The number of further looks at a record that the server is changing.
const MOST_YIELDS: u32 = 1000;

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

impl Session {
    /// True if the kernel keeps pages of a file. Always false in the mount itself: the kernel asks
    /// it for them.
    pub(crate) fn is_mapped(&self, ino: Ino) -> bool {
        let is_mount = || self.header().mount.load(Ordering::Relaxed) != 0;
        for _ in 0..MOST_YIELDS {
            match self.names().attr(ino) {
                Ok(attr) => return attr.is_some_and(|attr| attr.mapped) && !is_mount(),
                // The server is changing the record, and may have lost its processor meanwhile.
                Err(_) => rustix::thread::sched_yield(),
            }
        }
        // Through the mount no bytes are lost; past it, some could be.
        !is_mount()
    }

    /// Does something that changes a file as a whole through the kernel mount, if the kernel keeps
    /// pages of it: `None` if it does not, or the mount is gone.
    pub(crate) fn if_mapped<T>(
        &self,
        ino: Ino,
        act: impl FnOnce(BorrowedFd<'_>) -> Result<T, Errno>,
    ) -> Option<Result<T, Errno>> {
        if !self.is_mapped(ino) {
            return None;
        }
        let slot = InternalSlot::default();
        let opened = self.open_mapped(ino, &slot);
        let done = opened.and_then(|(fd, is_kept)| {
            let done = kernel::borrow(fd).and_then(act);
            if !is_kept {
                let _ = kernel::close(fd);
            }
            done
        });
        slot.take().into_iter().for_each(Internal::close);
        there(done)
    }

    /// Lets the kernel write back the pages of a file and sync it: `None` if it keeps none.
    pub(crate) fn write_back(&self, ino: Ino) -> Option<Result<(), Errno>> {
        self.if_mapped(ino, |file| rustix::fs::fsync(file))
    }

    /// See [`crate::data::Host::move_mapped`].
    pub(crate) fn move_mapped(
        &self,
        ino: Ino,
        slot: &InternalSlot,
        bytes: Transfer<'_>,
    ) -> Option<Result<usize, Errno>> {
        let opened = match bytes {
            // Through a read-only descriptor: the kernel lets it ask the server, which knows what
            // other nodes have synced.
            Transfer::Read(..) => self.open_beneath(ino, slot, OFlags::RDONLY),
            Transfer::Write(..) => self.open_mapped(ino, slot),
        };
        let (fd, is_kept) = match opened {
            Ok(opened) => opened,
            Err(error) => return there(Err(error)),
        };
        let moved = kernel::borrow(fd).and_then(|file| match bytes {
            Transfer::Read(offset, bytes) => rustix::io::pread(file, bytes, offset),
            Transfer::Write(offset, bytes) => write_all(file, offset, bytes),
        });
        if !is_kept {
            let _ = kernel::close(fd);
        }
        there(moved)
    }

    /// The descriptor of a file in the mount, and true if `slot` keeps it; if false, the caller
    /// closes it. It is read-only where the file's mode allows no more.
    pub(crate) fn open_mapped(&self, ino: Ino, slot: &InternalSlot) -> Result<(Fd, bool), Errno> {
        let shared = OFlags::from_bits_retain(SHARED.cast_unsigned());
        self.open_beneath(ino, slot, OFlags::RDWR | shared)
    }

    /// A descriptor for private mappings alone; otherwise as [`Session::open_mapped`].
    pub(crate) fn open_private(&self, ino: Ino, slot: &InternalSlot) -> Result<(Fd, bool), Errno> {
        let private = OFlags::from_bits_retain(PRIVATE.cast_unsigned());
        self.open_beneath(ino, slot, OFlags::RDONLY | private)
    }

    /// A descriptor for shared mappings that only read: the kernel must know that they may not become
    /// writable. Never kept.
    pub(crate) fn open_readable(&self, ino: Ino) -> Result<(Fd, bool), Errno> {
        let mount = mount_of(self.run_dir()).ok_or(Errno::NOTCONN)?;
        Ok((open_inode(&mount, ino, OFlags::RDONLY)?, false))
    }

    fn open_beneath(
        &self,
        ino: Ino,
        slot: &InternalSlot,
        flags: OFlags,
    ) -> Result<(Fd, bool), Errno> {
        if let Some(fd) = slot.get().and_then(Internal::sure) {
            return Ok((fd, true));
        }
        let mount = mount_of(self.run_dir()).ok_or(Errno::NOTCONN)?;
        let opened = match open_inode(&mount, ino, flags) {
            Err(Errno::ACCESS | Errno::ROFS) if flags.contains(OFlags::RDWR) => {
                open_inode(&mount, ino, OFlags::RDONLY)?
            }
            opened => opened?,
        };
        match Internal::adopt_spare(opened) {
            Ok(kept) => {
                if let Some(lost) = slot.replace(kept) {
                    lost.close();
                }
                Ok((kept.number(), true))
            }
            // The table has no room to keep one more.
            Err(opened) => Ok((opened, false)),
        }
    }
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
fn write_all(file: BorrowedFd<'_>, offset: u64, bytes: &[u8]) -> Result<usize, Errno> {
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

/// `None` if the mount is gone, and the kernel's pages with it. The directory of the mount may be
/// left, if the name of an inode is too long for one of the kernel's file systems.
fn there<T>(done: Result<T, Errno>) -> Option<Result<T, Errno>> {
    match done {
        Err(
            Errno::NOTCONN | Errno::CONNABORTED | Errno::NOENT | Errno::NODEV | Errno::NAMETOOLONG,
        ) => None,
        done => Some(done),
    }
}
