//! Address ranges to which files are mapped; used by [`crate::map`] and [`crate::readonly`].
//!
//! Nothing here makes a reference: an [`AddressRange`] gives checked pointers, and the two modules
//! know if they may be used for stores.

use core::ffi::c_void;
use core::mem::{align_of, size_of};
use core::ptr::{self, NonNull};

use rustix::fd::AsFd;
use rustix::fs::fstat;
use rustix::io::Errno;
use rustix::mm::{mmap, mmap_anonymous, munmap, MapFlags, ProtFlags};

use crate::shm::ShmRecord;

/// The size of a huge page, in bytes: the alignment that a mapping needs for the kernel to map its
/// file's huge pages as such.
pub const HUGE_PAGE_BYTES: usize = 2 << 20;

/// The errors of mapping memory, and of access to it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum MapError {
    /// The kernel refused a call.
    #[error("{call}: {errno}")]
    System {
        /// The system call.
        call: &'static str,
        /// The returned errno.
        errno: Errno,
    },
    /// The file is shorter than the requested mapping.
    #[error("file holds {file_bytes} bytes, {wanted_bytes} were to be mapped")]
    FileTooShort {
        /// The file's size.
        file_bytes: u64,
        /// The requested size.
        wanted_bytes: u64,
    },
    /// A slice reaches beyond the mapping.
    #[error("{count} records at {offset} reach beyond {map_bytes} mapped bytes")]
    OutOfBounds {
        /// The beginning of the slice, in bytes.
        offset: usize,
        /// The number of its records.
        count: usize,
        /// The size of the mapping.
        map_bytes: usize,
    },
    /// A slice begins at an address that is not aligned for its records.
    #[error("records at {offset} need an alignment of {align}")]
    Misaligned {
        /// The beginning of the slice, in bytes.
        offset: usize,
        /// The alignment needed.
        align: usize,
    },
}

impl MapError {
    pub(crate) fn system(call: &'static str) -> impl Fn(Errno) -> MapError {
        move |errno| MapError::System { call, errno }
    }

    /// The errno nearest to this error, for callers of POSIX calls.
    pub fn errno(&self) -> Errno {
        match self {
            MapError::System { errno, .. } => *errno,
            MapError::FileTooShort { .. } | MapError::OutOfBounds { .. } => Errno::IO,
            MapError::Misaligned { .. } => Errno::INVAL,
        }
    }
}

/// The use for which a file is opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    /// Mapped for loads alone.
    ReadOnly,
    /// Mapped for loads and stores.
    ReadWrite,
}

/// An address range, mapped or not: a copyable handle.
#[derive(Debug, Clone, Copy)]
pub(crate) struct AddressRange {
    base: NonNull<u8>,
    len: usize,
}

// SAFETY: the range gives only pointers, whose users justify that they follow them.
unsafe impl Send for AddressRange {}
// SAFETY: the range is never changed, and gives only pointers.
unsafe impl Sync for AddressRange {}

impl AddressRange {
    pub fn len(self) -> usize {
        self.len
    }

    pub fn base(self) -> NonNull<u8> {
        self.base
    }

    /// Returns the `count` records from byte `offset` on, after a check of bounds and alignment. As
    /// long as the range is mapped they may be read as `&[T]`: any bytes are a valid [`ShmRecord`], and they may
    /// change under a shared reference. They may be stored to if the range is mapped for writing.
    pub fn records<T: ShmRecord>(
        self,
        offset: usize,
        count: usize,
    ) -> Result<*const [T], MapError> {
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
        Ok(ptr::slice_from_raw_parts(first.cast::<T>(), count))
    }
}

/// A file (or its beginning) mapped shared; unmapped when dropped.
#[derive(Debug)]
pub(crate) struct Mapped(AddressRange);

impl Mapped {
    /// Maps the first `len` bytes (at least one) of `file`, at any page boundary.
    pub fn new(file: impl AsFd, len: usize, access: Access) -> Result<Mapped, MapError> {
        check_file_size(&file, len)?;
        // SAFETY: the kernel chooses the address, so no existing mapping is touched.
        unsafe { map_at(ptr::null_mut(), len, access, MapFlags::empty(), &file) }
    }

    /// As [`Mapped::new`], at a multiple of [`HUGE_PAGE_BYTES`].
    pub fn new_huge_aligned(
        file: impl AsFd,
        len: usize,
        access: Access,
    ) -> Result<Mapped, MapError> {
        check_file_size(&file, len)?;
        let reserve = Reservation::new(len.saturating_add(HUGE_PAGE_BYTES))?;
        let aligned = reserve.0.base.as_ptr().align_offset(HUGE_PAGE_BYTES);
        let target = reserve.0.base.as_ptr().wrapping_add(aligned);
        // SAFETY: `target..target + len` lies within the address range just reserved
        // (which is one huge page longer than `len`), so that MAP_FIXED replaces nothing
        // but our own reservation.
        let mapped = unsafe { map_at(target, len, access, MapFlags::FIXED, &file)? };
        reserve.keep_only(mapped.0);
        Ok(mapped)
    }

    /// Its addresses, which stay mapped while it lives.
    pub fn range(&self) -> AddressRange {
        self.0
    }

    /// Keeps the memory mapped until the process ends.
    pub fn leak(self) -> AddressRange {
        let range = self.0;
        core::mem::forget(self);
        range
    }
}

impl Drop for Mapped {
    fn drop(&mut self) {
        // SAFETY: the range was mapped by `map_at` and no reference into it can exist:
        // they are lent for as long as the owner of this is borrowed, and `leak` consumes it.
        let unmapped = unsafe { munmap(self.0.base.as_ptr().cast::<c_void>(), self.0.len) };
        debug_assert!(unmapped.is_ok());
    }
}

/// The size of `file` in bytes.
pub fn file_bytes(file: impl AsFd) -> Result<u64, MapError> {
    let stat = fstat(file).map_err(MapError::system("fstat"))?;
    Ok(u64::try_from(stat.st_size).unwrap_or(0))
}

/// Refuses to map beyond a file's end: the kernel permits that, and raises SIGBUS at the first touch.
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
) -> Result<Mapped, MapError> {
    let prot = match access {
        Access::ReadOnly => ProtFlags::READ,
        Access::ReadWrite => ProtFlags::READ | ProtFlags::WRITE,
    };
    let flags = flags | MapFlags::SHARED | MapFlags::NORESERVE;
    // SAFETY: the caller owns the range if the address is fixed; otherwise the kernel
    // picks a free one.
    let base = unsafe { mmap(at.cast::<c_void>(), len, prot, flags, file, 0) }
        .map_err(MapError::system("mmap"))?;
    Ok(Mapped(AddressRange {
        base: not_null(base)?,
        len,
    }))
}

fn not_null(base: *mut c_void) -> Result<NonNull<u8>, MapError> {
    NonNull::new(base.cast::<u8>()).ok_or(MapError::System {
        call: "mmap",
        errno: Errno::NOMEM,
    })
}

/// Address space without memory, for an aligned mapping.
struct Reservation(AddressRange);

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
        Ok(Reservation(AddressRange {
            base: not_null(base)?,
            len,
        }))
    }

    /// Unmaps the address space before and after `mapped`, which lies inside.
    fn keep_only(self, mapped: AddressRange) {
        let all = self.0;
        let start = all.base.as_ptr() as usize;
        let (map_start, map_len) = (mapped.base.as_ptr() as usize, mapped.len);
        let map_end = map_start + map_len.next_multiple_of(page_bytes());
        let (before, after) = (map_start - start, start + all.len - map_end);
        let end = mapped.base.as_ptr().wrapping_add(map_end - map_start);
        // SAFETY: both ranges belong to this reservation, nothing refers to them, and
        // the mapping's pages lie between them.
        unsafe {
            if before > 0 {
                let _ = munmap(all.base.as_ptr().cast::<c_void>(), before);
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
        let unmapped = unsafe { munmap(self.0.base.as_ptr().cast::<c_void>(), self.0.len) };
        debug_assert!(unmapped.is_ok());
    }
}

/// The machine's page size in bytes.
fn page_bytes() -> usize {
    rustix::param::page_size()
}
