//! Files mapped into memory, and the files themselves.
//!
//! Invariants:
//! - a [`Mapping`] never reaches beyond its file's end as of when it was made, and weir
//!   never truncates a shared file while its instance lives, so touching one does not
//!   raise SIGBUS in normal operation (a tmpfs that is full still does: what is mapped
//!   for writing is allocated first, see `pool`);
//! - a [`Region`] stays mapped until the process ends, hence its `'static` slices;
//! - references into a mapping exist only for [`ShmRecord`] types.
//!
//! All calls go to the kernel directly (rustix's `linux_raw`), since this runs inside
//! processes whose libc calls weir intercepts. Nothing here locks or allocates, so it may
//! run in a child between fork and exec.
//!
//! Left out: what the files hold (weir-core), and copying bulk data (`copy`).

use core::ffi::c_void;
use core::mem::{align_of, size_of};
use core::ptr::{self, NonNull};

use rustix::fd::{AsFd, OwnedFd};
use rustix::fs::{fstat, ftruncate, openat, Mode, OFlags};
use rustix::io::Errno;
use rustix::mm::{mmap, mmap_anonymous, munmap, MapFlags, ProtFlags};
use rustix::path::Arg;

use crate::acl;
use crate::shm::ShmRecord;
use crate::window::Window;

/// The size of a huge page, in bytes: what a mapping must be aligned to for the kernel to
/// map its file's huge pages as such.
pub const HUGE_PAGE_BYTES: usize = 2 << 20;

/// Why memory could not be mapped or looked at.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum MapError {
    /// The kernel refused a call.
    #[error("{call}: {errno}")]
    System {
        /// The system call.
        call: &'static str,
        /// What it returned.
        errno: Errno,
    },
    /// The file is shorter than what was to be mapped.
    #[error("file holds {file_bytes} bytes, {wanted_bytes} were to be mapped")]
    FileTooShort {
        /// The file's size.
        file_bytes: u64,
        /// The size asked for.
        wanted_bytes: u64,
    },
    /// A slice reaches beyond the mapping.
    #[error("{count} records at {offset} reach beyond {map_bytes} mapped bytes")]
    OutOfBounds {
        /// Where the slice begins, in bytes.
        offset: usize,
        /// How many records it has.
        count: usize,
        /// The size of the mapping.
        map_bytes: usize,
    },
    /// A slice begins at an address its records cannot have.
    #[error("records at {offset} need an alignment of {align}")]
    Misaligned {
        /// Where the slice begins, in bytes.
        offset: usize,
        /// The alignment needed.
        align: usize,
    },
}

impl MapError {
    fn system(call: &'static str) -> impl Fn(Errno) -> MapError {
        move |errno| MapError::System { call, errno }
    }

    /// The errno nearest to this error, for handing on to a caller of POSIX calls.
    pub fn errno(&self) -> Errno {
        match self {
            MapError::System { errno, .. } => *errno,
            MapError::FileTooShort { .. } | MapError::OutOfBounds { .. } => Errno::IO,
            MapError::Misaligned { .. } => Errno::INVAL,
        }
    }
}

/// What a mapping may be used for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    /// Loads only. A store through a record of such a mapping kills the process.
    ReadOnly,
    /// Loads and stores.
    ReadWrite,
}

/// A file (or its beginning) mapped shared; unmapped when dropped.
///
/// It is not reserved in swap (`MAP_NORESERVE`) and holes stay holes until touched.
#[derive(Debug)]
pub struct Mapping {
    base: NonNull<u8>,
    len: usize,
    access: Access,
}

// SAFETY: a mapping is an address range; it is reached only through atomics (`ShmRecord`)
// or raw copies, from whatever thread.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps the first `len` bytes (at least one) of `file`, at any page boundary.
    pub fn new(file: impl AsFd, len: usize, access: Access) -> Result<Mapping, MapError> {
        check_file_size(&file, len)?;
        // SAFETY: the kernel chooses the address, so no existing mapping is touched.
        unsafe { map_at(ptr::null_mut(), len, access, MapFlags::empty(), &file) }
    }

    /// Maps the first `len` bytes of `file` at an address that is a multiple of
    /// [`HUGE_PAGE_BYTES`], so that the file's huge pages are mapped as such: copying
    /// into them is 1.4 times as fast as into 4 KiB pages (20 against 13.9 GiB/s).
    pub fn new_huge_aligned(
        file: impl AsFd,
        len: usize,
        access: Access,
    ) -> Result<Mapping, MapError> {
        check_file_size(&file, len)?;
        let reserve = Reservation::new(len.saturating_add(HUGE_PAGE_BYTES))?;
        let aligned = reserve.base.as_ptr().align_offset(HUGE_PAGE_BYTES);
        let target = reserve.base.as_ptr().wrapping_add(aligned);
        // SAFETY: `target..target + len` lies within the address range just reserved
        // (which is one huge page longer than `len`), so that MAP_FIXED replaces nothing
        // but our own reservation.
        let mapping = unsafe { map_at(target, len, access, MapFlags::FIXED, &file)? };
        reserve.keep_only(&mapping);
        Ok(mapping)
    }

    /// The size in bytes.
    #[allow(clippy::len_without_is_empty)] // a mapping is never empty
    pub fn len(&self) -> usize {
        self.len
    }

    /// Where it begins.
    pub fn base(&self) -> NonNull<u8> {
        self.base
    }

    /// Keeps the memory mapped until the process ends.
    pub fn leak(self) -> Region {
        let region = self.region();
        core::mem::forget(self);
        region
    }

    /// Keeps the memory mapped until the process ends, for copies into it and out of it. If
    /// it is not mapped for writing, a write kills the process.
    pub fn leak_window(self) -> Window {
        let region = self.leak();
        // SAFETY: it stays mapped; a mapping that is given away by value has lent no
        // reference, and the region, which could, is not handed out.
        unsafe { Window::new(region.base.as_ptr(), region.len) }
    }

    /// The `count` records from byte `offset` on; as [`Region::slice`], while this lives.
    pub fn slice<T: ShmRecord>(&self, offset: usize, count: usize) -> Result<&[T], MapError> {
        // The reference borrows `self`, so the memory cannot be unmapped under it.
        self.region().slice(offset, count)
    }

    fn region(&self) -> Region {
        Region {
            base: self.base,
            len: self.len,
            access: self.access,
        }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the range was mapped by `map_at` and no reference into it can exist:
        // `slice` lends them for as long as the `Mapping` is borrowed, and whoever is
        // given a `Region` consumes the `Mapping`.
        let unmapped = unsafe { munmap(self.base.as_ptr().cast::<c_void>(), self.len) };
        debug_assert!(unmapped.is_ok());
    }
}

/// Mapped memory that stays until the process ends; a copyable handle.
#[derive(Debug, Clone, Copy)]
pub struct Region {
    base: NonNull<u8>,
    len: usize,
    access: Access,
}

// SAFETY: as for `Mapping`; the range outlives all threads.
unsafe impl Send for Region {}
// SAFETY: as above.
unsafe impl Sync for Region {}

impl Region {
    /// The size in bytes.
    #[allow(clippy::len_without_is_empty)] // a mapping is never empty
    pub fn len(&self) -> usize {
        self.len
    }

    /// Where it begins.
    pub fn base(&self) -> NonNull<u8> {
        self.base
    }

    /// What it may be used for.
    pub fn access(&self) -> Access {
        self.access
    }

    /// The `count` records from byte `offset` on.
    ///
    /// Bounds and alignment are checked. In a [`Access::ReadOnly`] region only loads are
    /// allowed: a store through the records faults.
    pub fn slice<T: ShmRecord>(
        &self,
        offset: usize,
        count: usize,
    ) -> Result<&'static [T], MapError> {
        let out_of_bounds = MapError::OutOfBounds {
            offset,
            count,
            map_bytes: self.len,
        };
        let bytes = count.checked_mul(size_of::<T>()).ok_or(out_of_bounds)?;
        let end = offset.checked_add(bytes).ok_or(out_of_bounds)?;
        if end > self.len {
            return Err(out_of_bounds);
        }
        let first = self.base.as_ptr().wrapping_add(offset);
        if !(first as usize).is_multiple_of(align_of::<T>()) {
            return Err(MapError::Misaligned {
                offset,
                align: align_of::<T>(),
            });
        }
        // SAFETY: the range is mapped readable for as long as the process lives (a
        // `Region` is never unmapped), lies within bounds and is aligned, both checked
        // above. `ShmRecord` says that any bytes are a valid `T` and that they may change
        // under a shared reference (all of it is atomic).
        Ok(unsafe { core::slice::from_raw_parts(first.cast::<T>(), count) })
    }

    /// The one record at byte `offset`.
    pub fn record<T: ShmRecord>(&self, offset: usize) -> Result<&'static T, MapError> {
        Ok(&self.slice::<T>(offset, 1)?[0])
    }
}

/// Creates the file `path` (below the directory `dir`; `rustix::fs::CWD` for a path by
/// itself), for this user alone, of `len` bytes without any storage behind them yet.
///
/// Fails with `EEXIST` where something of that name exists.
pub fn create_sparse(dir: impl AsFd, path: impl Arg, len: u64) -> Result<OwnedFd, MapError> {
    let file = create_private(dir, path, len)?;
    acl::share_with_admitted(&file).map_err(MapError::system("set an access control list"))?;
    Ok(file)
}

/// As [`create_sparse`], for this process's user alone, whomever it has admitted.
pub fn create_private(dir: impl AsFd, path: impl Arg, len: u64) -> Result<OwnedFd, MapError> {
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    let file = openat(dir, path, flags, Mode::RUSR | Mode::WUSR)
        .map_err(MapError::system("open a new file"))?;
    ftruncate(&file, len).map_err(MapError::system("ftruncate"))?;
    Ok(file)
}

/// Opens an existing shared file.
pub fn open_shared(dir: impl AsFd, path: impl Arg, access: Access) -> Result<OwnedFd, MapError> {
    let mode = match access {
        Access::ReadOnly => OFlags::RDONLY,
        Access::ReadWrite => OFlags::RDWR,
    };
    openat(
        dir,
        path,
        mode | OFlags::CLOEXEC | OFlags::NOFOLLOW,
        Mode::empty(),
    )
    .map_err(MapError::system("open"))
}

/// The size of `file` in bytes.
pub fn file_bytes(file: impl AsFd) -> Result<u64, MapError> {
    let stat = fstat(file).map_err(MapError::system("fstat"))?;
    Ok(u64::try_from(stat.st_size).unwrap_or(0))
}

/// Mapping beyond a file's end succeeds and raises SIGBUS at the first touch, so it is
/// refused here.
fn check_file_size(file: &impl AsFd, len: usize) -> Result<(), MapError> {
    let (file_bytes, wanted_bytes) = (file_bytes(file)?, len as u64);
    if file_bytes < wanted_bytes {
        return Err(MapError::FileTooShort {
            file_bytes,
            wanted_bytes,
        });
    }
    Ok(())
}

/// Maps `file` shared at `at` (null: anywhere).
///
/// # Safety
///
/// With `MapFlags::FIXED`, `at..at + len` must be address space that the caller owns and
/// that nothing refers to.
unsafe fn map_at(
    at: *mut u8,
    len: usize,
    access: Access,
    flags: MapFlags,
    file: &impl AsFd,
) -> Result<Mapping, MapError> {
    let prot = match access {
        Access::ReadOnly => ProtFlags::READ,
        Access::ReadWrite => ProtFlags::READ | ProtFlags::WRITE,
    };
    let flags = flags | MapFlags::SHARED | MapFlags::NORESERVE;
    // SAFETY: the caller owns the range if the address is fixed; otherwise the kernel
    // picks a free one.
    let base = unsafe { mmap(at.cast::<c_void>(), len, prot, flags, file, 0) }
        .map_err(MapError::system("mmap"))?;
    Ok(Mapping {
        base: NonNull::new(base.cast::<u8>()).ok_or(MapError::System {
            call: "mmap",
            errno: Errno::NOMEM,
        })?,
        len,
        access,
    })
}

/// Address space without memory, in which to place an aligned mapping.
struct Reservation {
    base: NonNull<u8>,
    len: usize,
}

impl Reservation {
    fn new(len: usize) -> Result<Reservation, MapError> {
        // SAFETY: the kernel chooses the address.
        let base = unsafe {
            mmap_anonymous(
                ptr::null_mut(),
                len,
                ProtFlags::empty(),
                MapFlags::PRIVATE | MapFlags::NORESERVE,
            )
        }
        .map_err(MapError::system("mmap"))?;
        Ok(Reservation {
            base: NonNull::new(base.cast::<u8>()).ok_or(MapError::System {
                call: "mmap",
                errno: Errno::NOMEM,
            })?,
            len,
        })
    }

    /// Gives back what lies before and after `mapping`, which was placed inside.
    fn keep_only(self, mapping: &Mapping) {
        let start = self.base.as_ptr() as usize;
        let (map_start, map_len) = (mapping.base.as_ptr() as usize, mapping.len);
        let map_end = map_start + map_len.next_multiple_of(page_bytes());
        let (before, after) = (map_start - start, start + self.len - map_end);
        let end = mapping.base.as_ptr().wrapping_add(map_end - map_start);
        // SAFETY: both ranges belong to this reservation, nothing refers to them, and
        // the mapping's pages lie between them.
        unsafe {
            if before > 0 {
                let _ = munmap(self.base.as_ptr().cast::<c_void>(), before);
            }
            if after > 0 {
                let _ = munmap(end.cast::<c_void>(), after);
            }
        }
        core::mem::forget(self);
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        // SAFETY: address space of our own that nothing refers to.
        let unmapped = unsafe { munmap(self.base.as_ptr().cast::<c_void>(), self.len) };
        debug_assert!(unmapped.is_ok());
    }
}

/// The machine's page size in bytes.
fn page_bytes() -> usize {
    rustix::param::page_size()
}

#[cfg(test)]
mod tests {
    use core::sync::atomic::{AtomicU32, AtomicU64, Ordering::SeqCst};

    use super::*;
    use crate::testdir::TestDir;

    #[test]
    fn two_mappings_of_a_file_show_the_same_records() {
        let dir = TestDir::new("map-two");
        let file = create_sparse(dir.fd(), "shared", 1 << 20).unwrap();
        let writer = Mapping::new(&file, 1 << 20, Access::ReadWrite)
            .unwrap()
            .leak();
        let again = open_shared(dir.fd(), "shared", Access::ReadOnly).unwrap();
        let reader = Mapping::new(&again, 1 << 20, Access::ReadOnly)
            .unwrap()
            .leak();
        writer.slice::<AtomicU64>(4096, 8).unwrap()[3].store(77, SeqCst);
        assert_eq!(
            reader.slice::<[AtomicU64; 4]>(4096, 2).unwrap()[0][3].load(SeqCst),
            77
        );
        assert_eq!(
            reader.record::<AtomicU32>(4096 + 24).unwrap().load(SeqCst),
            77u32.to_le()
        );
    }

    #[test]
    fn slices_beyond_the_mapping_or_misaligned_are_refused() {
        let dir = TestDir::new("map-bounds");
        let file = create_sparse(dir.fd(), "f", 8192).unwrap();
        let region = Mapping::new(&file, 8192, Access::ReadWrite).unwrap().leak();
        assert!(region.slice::<AtomicU64>(0, 1024).is_ok());
        assert!(region.slice::<AtomicU64>(8192, 0).is_ok());
        for (offset, count) in [
            (0, 1025),
            (8, 1024),
            (8193, 0),
            (usize::MAX, 1),
            (0, usize::MAX),
        ] {
            let refused = region.slice::<AtomicU64>(offset, count);
            assert!(
                matches!(refused, Err(MapError::OutOfBounds { .. })),
                "{offset} {count}"
            );
        }
        assert!(matches!(
            region.slice::<AtomicU64>(4, 1),
            Err(MapError::Misaligned { align: 8, .. })
        ));
    }

    #[test]
    fn a_mapping_longer_than_its_file_is_refused() {
        let dir = TestDir::new("map-short");
        let file = create_sparse(dir.fd(), "f", 4096).unwrap();
        let refused = Mapping::new(&file, 4097, Access::ReadOnly).unwrap_err();
        assert_eq!(
            refused,
            MapError::FileTooShort {
                file_bytes: 4096,
                wanted_bytes: 4097
            }
        );
    }

    #[test]
    fn huge_alignment_is_kept_and_the_rest_given_back() {
        let dir = TestDir::new("map-huge");
        let len = 3 * HUGE_PAGE_BYTES + 4096;
        let file = create_sparse(dir.fd(), "f", len as u64).unwrap();
        for _ in 0..8 {
            let mapping = Mapping::new_huge_aligned(&file, len, Access::ReadWrite).unwrap();
            assert!((mapping.base().as_ptr() as usize).is_multiple_of(HUGE_PAGE_BYTES));
            let region = mapping.leak();
            region
                .record::<AtomicU64>(len - 8)
                .unwrap()
                .store(5, SeqCst);
        }
    }

    #[test]
    fn a_file_is_created_once_and_for_its_user_only() {
        let dir = TestDir::new("map-create");
        let file = create_sparse(dir.fd(), "f", 123).unwrap();
        let stat = fstat(&file).unwrap();
        assert_eq!((stat.st_mode & 0o7777, stat.st_size), (0o600, 123));
        assert_eq!(file_bytes(&file).unwrap(), 123);
        let again = create_sparse(dir.fd(), "f", 123).unwrap_err();
        assert_eq!(again.errno(), Errno::EXIST);
        let missing = open_shared(dir.fd(), "g", Access::ReadOnly).unwrap_err();
        assert_eq!(missing.errno(), Errno::NOENT);
    }
}
