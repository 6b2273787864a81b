//! Files mapped into memory for loads and stores, and the files themselves.
//!
//! Invariants:
//! - a [`Mapping`] never reaches beyond its file's end as of when it was made, and weir
//!   never truncates a shared file while its instance lives, so touching one does not
//!   raise SIGBUS in normal operation (a tmpfs that is full still does: what is mapped
//!   for writing is allocated first, see `pool`);
//! - a [`Region`] stays mapped until the process ends, hence its `'static` slices;
//! - references into a mapping exist only for [`ShmRecord`] types;
//! - these types may be stored to: memory mapped for reading has types of
//!   its own, [`crate::readonly`].
//!
//! All calls go to the kernel directly (rustix's `linux_raw`), since this runs inside
//! processes whose libc calls weir intercepts. Nothing here locks or allocates, so it may
//! run in a child between fork and exec.
//!
//! Left out: the contents of the files (weir-core), and copying bulk data (`copy`).

use rustix::fd::{AsFd, OwnedFd};
use rustix::fs::{ftruncate, openat, Mode, OFlags};
use rustix::path::Arg;

use core::ptr::NonNull;

use crate::acl;
pub use crate::area::{file_bytes, Access, MapError, HUGE_PAGE_BYTES};
use crate::area::{AddressRange, Mapped};
use crate::shm::ShmRecord;
use crate::window::Window;

/// A file (or its beginning) mapped shared, for loads and stores; unmapped when dropped.
///
/// It is not reserved in swap (`MAP_NORESERVE`) and holes stay holes until touched.
#[derive(Debug)]
pub struct Mapping(Mapped);

impl Mapping {
    /// Maps the first `len` bytes (at least one) of `file`, at any page boundary. EACCES: the
    /// file was not opened for writing.
    pub fn new(file: impl AsFd, len: usize) -> Result<Mapping, MapError> {
        Mapped::new(file, len, Access::ReadWrite).map(Mapping)
    }

    /// Maps the first `len` bytes of `file` at an address that is a multiple of
    /// [`HUGE_PAGE_BYTES`], so that the file's huge pages are mapped as such: copying
    /// into them is 1.4 times as fast as into 4 KiB pages (20 against 13.9 GiB/s).
    pub fn new_huge_aligned(file: impl AsFd, len: usize) -> Result<Mapping, MapError> {
        Mapped::new_huge_aligned(file, len, Access::ReadWrite).map(Mapping)
    }

    /// The size in bytes.
    #[allow(clippy::len_without_is_empty)] // a mapping is never empty
    pub fn len(&self) -> usize {
        self.0.range().len()
    }

    /// The address at which it begins.
    pub fn base(&self) -> NonNull<u8> {
        self.0.range().base()
    }

    /// Keeps the memory mapped until the process ends.
    pub fn leak(self) -> Region {
        Region(self.0.leak())
    }

    /// Keeps the memory mapped until the process ends, for copies into it and out of it.
    pub fn leak_window(self) -> Window {
        let range = self.0.leak();
        // SAFETY: it stays mapped, for writing; a mapping that is given away by value has lent
        // no reference, and the region, which could, is not handed out.
        unsafe { Window::new(range.base().as_ptr(), range.len()) }
    }

    /// The `count` records from byte `offset` on; as [`Region::slice`], while this lives.
    pub fn slice<T: ShmRecord>(&self, offset: usize, count: usize) -> Result<&[T], MapError> {
        let records = self.0.range().records(offset, count)?;
        // SAFETY: the memory is mapped for loads and stores while `self` is borrowed, and the
        // range was checked by `records`.
        Ok(unsafe { &*records })
    }
}

/// Memory mapped for loads and stores that stays until the process ends; a copyable handle.
#[derive(Debug, Clone, Copy)]
pub struct Region(AddressRange);

impl Region {
    /// The size in bytes.
    #[allow(clippy::len_without_is_empty)] // a mapping is never empty
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// The address at which it begins.
    pub fn base(&self) -> NonNull<u8> {
        self.0.base()
    }

    /// The `count` records from byte `offset` on. Bounds and alignment are checked.
    pub fn slice<T: ShmRecord>(
        &self,
        offset: usize,
        count: usize,
    ) -> Result<&'static [T], MapError> {
        let records = self.0.records(offset, count)?;
        // SAFETY: the memory is mapped for loads and stores until the process ends, and the
        // range was checked by `records`.
        Ok(unsafe { &*records })
    }

    /// The one record at byte `offset`.
    pub fn record<T: ShmRecord>(&self, offset: usize) -> Result<&'static T, MapError> {
        Ok(&self.slice::<T>(offset, 1)?[0])
    }
}

/// Creates the file `path` (below the directory `dir`; `rustix::fs::CWD` for a path by
/// itself), for this user alone, of `len` bytes without any storage behind them yet.
///
/// Fails with `EEXIST` if something of that name exists.
pub fn create_sparse(dir: impl AsFd, path: impl Arg, len: u64) -> Result<OwnedFd, MapError> {
    let file = create_private(dir, path, len)?;
    acl::share_with_admitted(&file).map_err(MapError::system("set an access control list"))?;
    Ok(file)
}

/// As [`create_sparse`], for this process's user alone, even if it has admitted others.
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

#[cfg(test)]
mod tests {
    use core::sync::atomic::{AtomicU32, AtomicU64, Ordering::SeqCst};

    use rustix::fs::fstat;
    use rustix::io::Errno;

    use super::*;
    use crate::testdir::TestDir;

    #[test]
    fn two_mappings_of_a_file_show_the_same_records() {
        let dir = TestDir::new("map-two");
        let file = create_sparse(dir.fd(), "shared", 1 << 20).unwrap();
        let writer = Mapping::new(&file, 1 << 20).unwrap().leak();
        let again = open_shared(dir.fd(), "shared", Access::ReadWrite).unwrap();
        let reader = Mapping::new(&again, 1 << 20).unwrap().leak();
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
        let region = Mapping::new(&file, 8192).unwrap().leak();
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
        let refused = Mapping::new(&file, 4097).unwrap_err();
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
            let mapping = Mapping::new_huge_aligned(&file, len).unwrap();
            assert!((mapping.base().as_ptr() as usize).is_multiple_of(HUGE_PAGE_BYTES));
            let region = mapping.leak();
            region
                .record::<AtomicU64>(len - 8)
                .unwrap()
                .store(5, SeqCst);
        }
    }

    #[test]
    fn a_file_opened_for_reading_is_not_mapped_for_writing() {
        let dir = TestDir::new("map-reading");
        create_sparse(dir.fd(), "f", 4096).unwrap();
        let file = open_shared(dir.fd(), "f", Access::ReadOnly).unwrap();
        let refused = Mapping::new(&file, 4096).unwrap_err();
        assert_eq!(refused.errno(), Errno::ACCESS);
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
