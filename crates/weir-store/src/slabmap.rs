//! A process's access to slabs: mapped memory, or descriptors of storage files.
//!
//! A process finds a slab by its number alone. The first use maps it (memory) or opens it (files)
//! and notes that in a table of atomics; later uses cost one load. If two threads use it
//! first at once, both do so, and one of them undoes it: there is no lock, so a fork may come at any time and
//! the child continues with the state it inherited. Slabs stay mapped until the process ends, which
//! is why a [`Window`] is `'static` and `Copy`.
//!
//! Memory slabs keep no descriptor. Storage files do, moved to high numbers where
//! programs that count descriptors do not meet them; [`SlabMap::kept_fds`] lets the
//! interposer guard them.
//!
//! Invariants: all ranges are checked against the slab; slabs are never truncated while the
//! instance lives, and pages are made present before a store through a mapping touches them
//! ([`SegmentWriter`]), so that a full tmpfs is ENOSPC and not SIGBUS.
//!
//! Left out: the positions of files' bytes (extents), and a check that a range is still this
//! client's.

use std::ffi::{CStr, CString};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::atomic::{AtomicI32, AtomicPtr, AtomicU64, AtomicUsize, Ordering};

use rustix::fd::{AsFd, AsRawFd, BorrowedFd, IntoRawFd, OwnedFd, RawFd};
use rustix::fs::{Stat, CWD};
use rustix::io::{fcntl_dupfd_cloexec, pread, pwrite, Errno};
use rustix::process::{getrlimit, Resource};

use crate::map::{open_shared, Access, Mapping, Region};
use crate::slab::{SlabId, Tier, SLAB_BYTES};
use crate::syscall::start_writing;
pub use crate::window::{ReadWindow, SegmentWriter, Window};

const SLAB_LEN: usize = 64 << 20;
const _: () = assert!(SLAB_LEN as u64 == SLAB_BYTES);

/// The least number to which descriptors of storage files are moved, if the limit allows.
const FIRST_FD: RawFd = 900;

/// The number of bytes of a storage file after which the kernel is told to start writing them out.
/// Measured on ext4 on a virtual disk, 1 GiB in writes of 1 MiB and then fdatasync: 1.6 to 2.9
/// GiB/s with this, 1.1 to 1.4 if all is left to fdatasync, 2.0 to 2.5 with pieces of 4 or 8 MiB,
/// and 1.4 to 1.9 with `O_DIRECT`, which also needs aligned buffers. On the idle machine 2.9 to 3.6
/// against 2.5 to 2.6 with `O_DIRECT` (`cargo bench -p weir-store --bench file`).
const WRITE_OUT_BYTES: u64 = 1 << 20;

/// The slabs of one instance, as this process sees them.
#[derive(Debug)]
pub struct SlabMap {
    memory_dir: CString,
    memory: Box<[AtomicPtr<u8>]>,
    storage: Vec<StorageDir>,
}

/// A storage directory and the descriptors of its slabs.
#[derive(Debug)]
struct StorageDir {
    dir: CString,
    files: Box<[KeptFile]>,
    /// One more than the last one that was ever kept.
    high: AtomicUsize,
}

/// A descriptor that is kept, and the identity of its file: a program may close it without weir's
/// knowledge, and get the number for another file.
#[derive(Debug)]
struct KeptFile {
    /// -1: not open.
    fd: AtomicI32,
    /// Its inode, in the storage directory's file system.
    inode: AtomicU64,
}

impl KeptFile {
    const fn none() -> KeptFile {
        KeptFile {
            fd: AtomicI32::new(-1),
            inode: AtomicU64::new(0),
        }
    }

    /// Returns the descriptor, if it still refers to the file that was opened.
    fn checked_fd(&self) -> Option<RawFd> {
        let fd = self.fd.load(Ordering::Acquire);
        if fd < 0 {
            return None;
        }
        // SAFETY: only its attributes are read, whatever it refers to by now.
        let stat = rustix::fs::fstat(unsafe { BorrowedFd::borrow_raw(fd) });
        let inode = self.inode.load(Ordering::Relaxed);
        let is_slab =
            |stat: Stat| stat.st_ino == inode && stat.st_size.unsigned_abs() == SLAB_BYTES;
        if stat.is_ok_and(is_slab) {
            return Some(fd);
        }
        self.disown(fd);
        None
    }

    fn disown(&self, fd: RawFd) {
        let to = Ordering::Relaxed;
        let _ = self.fd.compare_exchange(fd, -1, Ordering::AcqRel, to);
    }
}

impl SlabMap {
    /// Slabs below `memory_dir` (the instance's directory on tmpfs) and the storage directories, in
    /// the order of their directories, with the greatest number of slabs of each
    /// ([`crate::tier::Tiers::max_slabs`]). Nothing is mapped or opened yet.
    ///
    /// No other function here allocates.
    pub fn new(memory_dir: &Path, memory_slabs: u32, storage: &[(&Path, u32)]) -> SlabMap {
        let storage_dir = |&(dir, slabs): &(&Path, u32)| StorageDir {
            dir: c_path(dir),
            files: (0..slabs).map(|_| KeptFile::none()).collect(),
            high: AtomicUsize::new(0),
        };
        SlabMap {
            memory_dir: c_path(memory_dir),
            memory: (0..memory_slabs).map(|_| AtomicPtr::default()).collect(),
            storage: storage.iter().map(storage_dir).collect(),
        }
    }

    /// The `len` bytes at `pos` of a slab of the memory tier, mapped.
    ///
    /// `EIO`: there is no such slab or range (a malformed record); other errors are those of
    /// opening and mapping its file.
    #[inline]
    pub fn window(&self, slab: SlabId, pos: u64, len: u64) -> Result<Window, Errno> {
        let (pos, len) = checked(pos, len)?;
        if slab.tier() != Tier::Memory {
            return Err(Errno::IO);
        }
        let entry = self.memory.get(slab.index() as usize).ok_or(Errno::IO)?;
        let base = match entry.load(Ordering::Acquire) {
            base if base.is_null() => self.map(slab, entry)?,
            base => base,
        };
        // SAFETY: `base` is a whole slab mapped for the life of the process, and
        // `pos + len` was checked to lie within a slab.
        Ok(unsafe { Window::new(base.add(pos), len) })
    }

    /// A writer for a segment of the memory tier that was just granted: `len` bytes at `pos`,
    /// `warm` as in the grant.
    pub fn writer(
        &self,
        slab: SlabId,
        pos: u64,
        len: u64,
        warm: bool,
    ) -> Result<SegmentWriter, Errno> {
        Ok(SegmentWriter::new(
            self.window(slab, pos, len)?,
            slab,
            pos,
            warm,
        ))
    }

    /// Writes all of `bytes` at `pos` of a slab of either tier.
    ///
    /// In the memory tier this goes through the mapping, for ranges known to be present;
    /// segments just granted are written by a [`SegmentWriter`].
    pub fn write_at(&self, slab: SlabId, pos: u64, bytes: &[u8]) -> Result<(), Errno> {
        match slab.tier() {
            Tier::Memory => {
                self.window(slab, pos, bytes.len() as u64)?.write(0, bytes);
                Ok(())
            }
            Tier::File => {
                checked(pos, bytes.len() as u64)?;
                let file = self.storage_file(slab)?;
                pwrite_all(file, bytes, pos)?;
                write_out(file, pos, bytes.len() as u64);
                Ok(())
            }
        }
    }

    /// Reads `bytes.len()` bytes at `pos` of a slab of either tier.
    #[inline]
    pub fn read_at(&self, slab: SlabId, pos: u64, bytes: &mut [u8]) -> Result<(), Errno> {
        match slab.tier() {
            Tier::Memory => {
                self.window(slab, pos, bytes.len() as u64)?.read(0, bytes);
                Ok(())
            }
            Tier::File => {
                checked(pos, bytes.len() as u64)?;
                pread_all(self.storage_file(slab)?, bytes, pos)
            }
        }
    }

    /// Writes by pwrite into a memory slab whose pages are not there yet. The file is
    /// opened for this call only: writes of 64 KiB were measured to lose nothing by it,
    /// and no descriptor is kept.
    pub(crate) fn write_cold(&self, slab: SlabId, pos: u64, bytes: &[u8]) -> Result<(), Errno> {
        checked(pos, bytes.len() as u64)?;
        pwrite_all(self.open(slab)?.as_fd(), bytes, pos)
    }

    /// Opens a slab's file anew; the caller closes it.
    pub(crate) fn open(&self, slab: SlabId) -> Result<OwnedFd, Errno> {
        let dir = match slab.directory().number().checked_sub(1) {
            None => &self.memory_dir,
            Some(dir) => &self.storage.get(dir).ok_or(Errno::IO)?.dir,
        };
        let mut path = PathBuffer::new(dir.as_bytes())?;
        path.push_slab(slab)?;
        open_shared(CWD, path.as_c_str()?, Access::ReadWrite).map_err(|error| error.errno())
    }

    /// Makes the bytes written to a slab durable. Nothing to do for the memory tier.
    pub fn sync(&self, slab: SlabId) -> Result<(), Errno> {
        match slab.tier() {
            Tier::Memory => Ok(()),
            Tier::File => {
                let file = self.storage_file(slab)?;
                rustix::io::retry_on_intr(|| rustix::fs::fdatasync(file))
            }
        }
    }

    /// The descriptors kept here, which a program must not close.
    pub fn kept_fds(&self) -> impl Iterator<Item = RawFd> + '_ {
        let numbers = self.files().map(|file| file.fd.load(Ordering::Relaxed));
        numbers.filter(|&fd| fd >= 0)
    }

    /// Forgets a descriptor that the program has closed.
    pub fn disown(&self, fd: RawFd) {
        if fd >= 0 {
            self.files().for_each(|file| file.disown(fd));
        }
    }

    fn files(&self) -> impl Iterator<Item = &KeptFile> {
        let kept = |dir: &StorageDir| dir.high.load(Ordering::Relaxed);
        let dirs = self.storage.iter();
        dirs.flat_map(move |dir| dir.files.iter().take(kept(dir)))
    }

    /// Maps a memory slab for good and notes the address.
    #[cold]
    fn map(&self, slab: SlabId, entry: &AtomicPtr<u8>) -> Result<*mut u8, Errno> {
        let file = self.open(slab)?;
        let mapping = Mapping::new_huge_aligned(&file, SLAB_LEN).map_err(|error| error.errno())?;
        let base = mapping.base().as_ptr();
        let first = entry.compare_exchange(
            std::ptr::null_mut(),
            base,
            Ordering::AcqRel,
            Ordering::Acquire,
        );
        match first {
            Ok(_) => {
                let _: Region = mapping.leak();
                Ok(base)
            }
            // Another thread was faster; ours is unmapped when dropped.
            Err(other) => Ok(other),
        }
    }

    /// The descriptor of a storage file; opens it if need be.
    fn storage_file(&self, slab: SlabId) -> Result<BorrowedFd<'_>, Errno> {
        let dir = slab.directory().number().checked_sub(1).ok_or(Errno::IO)?;
        let dir = self.storage.get(dir).ok_or(Errno::IO)?;
        let entry = dir.files.get(slab.index() as usize).ok_or(Errno::IO)?;
        let fd = match entry.checked_fd() {
            None => {
                dir.high
                    .fetch_max(slab.index() as usize + 1, Ordering::Relaxed);
                self.keep_open(slab, entry)?
            }
            Some(fd) => fd,
        };
        // SAFETY: descriptors noted in the table are never closed by weir, and the
        // interposer keeps the program from closing them (`kept_fds`).
        Ok(unsafe { BorrowedFd::borrow_raw(fd) })
    }

    #[cold]
    fn keep_open(&self, slab: SlabId, entry: &KeptFile) -> Result<RawFd, Errno> {
        let file = move_high(self.open(slab)?);
        let fd = file.as_raw_fd();
        // Every thread that opens it stores the same inode.
        let inode = rustix::fs::fstat(&file)?.st_ino;
        entry.inode.store(inode, Ordering::Relaxed);
        match entry
            .fd
            .compare_exchange(-1, fd, Ordering::AcqRel, Ordering::Acquire)
        {
            Ok(_) => Ok(file.into_raw_fd()),
            // Another thread was faster; ours is closed when dropped.
            Err(other) => Ok(other),
        }
    }
}

/// Moves a descriptor to a high number, if the limit allows; else returns it unchanged.
fn move_high(file: OwnedFd) -> OwnedFd {
    let limit = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
    let limit = RawFd::try_from(limit).unwrap_or(RawFd::MAX);
    let first = FIRST_FD.min(limit - limit / 8);
    fcntl_dupfd_cloexec(&file, first).unwrap_or(file)
}

/// A range as indices, if it lies within a slab.
#[inline]
fn checked(pos: u64, len: u64) -> Result<(usize, usize), Errno> {
    if pos > SLAB_BYTES || len > SLAB_BYTES - pos {
        return Err(Errno::IO);
    }
    // Lossless: both are at most 64 MiB.
    #[allow(clippy::cast_possible_truncation)]
    Ok((pos as usize, len as usize))
}

fn pwrite_all(file: BorrowedFd<'_>, mut bytes: &[u8], mut pos: u64) -> Result<(), Errno> {
    while !bytes.is_empty() {
        match pwrite(file, bytes, pos) {
            Ok(0) => return Err(Errno::IO),
            Ok(done) => {
                bytes = &bytes[done..];
                pos += done as u64;
            }
            Err(Errno::INTR) => {}
            Err(errno) => return Err(errno),
        }
    }
    Ok(())
}

fn pread_all(file: BorrowedFd<'_>, mut bytes: &mut [u8], mut pos: u64) -> Result<(), Errno> {
    while !bytes.is_empty() {
        match pread(file, &mut *bytes, pos) {
            // Slabs have their full size from the start.
            Ok(0) => return Err(Errno::IO),
            Ok(done) => {
                bytes = &mut bytes[done..];
                pos += done as u64;
            }
            Err(Errno::INTR) => {}
            Err(errno) => return Err(errno),
        }
    }
    Ok(())
}

/// Starts writing out each full piece of a file that a write has just completed. `fdatasync` writes
/// the rest, or the kernel in its own time; so a failure here is no failure of the write, and
/// `fdatasync` will report it.
fn write_out(file: BorrowedFd<'_>, pos: u64, len: u64) {
    let from = pos / WRITE_OUT_BYTES * WRITE_OUT_BYTES;
    let to = (pos + len) / WRITE_OUT_BYTES * WRITE_OUT_BYTES;
    if from < to {
        let _ = start_writing(file, from, to - from);
    }
}

/// A path that is composed on the stack, because opening a slab must not allocate. It ends in
/// NUL, because rustix copies other strings, long ones to the heap.
struct PathBuffer {
    bytes: [u8; PathBuffer::MAX],
    len: usize,
}

impl PathBuffer {
    /// The kernel's limit, NUL included.
    const MAX: usize = 4096;

    fn new(dir: &[u8]) -> Result<PathBuffer, Errno> {
        let mut path = PathBuffer {
            bytes: [0; PathBuffer::MAX],
            len: 0,
        };
        path.push(dir)?;
        Ok(path)
    }

    /// Fails with `ENAMETOOLONG`.
    fn push(&mut self, more: &[u8]) -> Result<(), Errno> {
        let end = self.len + more.len();
        if end >= PathBuffer::MAX {
            return Err(Errno::NAMETOOLONG);
        }
        self.bytes[self.len..end].copy_from_slice(more);
        self.len = end;
        Ok(())
    }

    /// Appends the result of `backing::slab_name`.
    fn push_slab(&mut self, slab: SlabId) -> Result<(), Errno> {
        let mut digits = [0; 10];
        let mut first = digits.len();
        let mut left = slab.index();
        loop {
            first -= 1;
            digits[first] = b'0' + u8::try_from(left % 10).unwrap_or(0);
            left /= 10;
            if left == 0 {
                break;
            }
        }
        self.push(b"/slab-")?;
        self.push(&digits[first..])
    }

    fn as_c_str(&self) -> Result<&CStr, Errno> {
        CStr::from_bytes_until_nul(&self.bytes).map_err(|_| Errno::NAMETOOLONG)
    }
}

fn c_path(path: &Path) -> CString {
    CString::new(path.as_os_str().as_bytes()).expect("a path without NUL")
}

#[cfg(test)]
mod tests;
