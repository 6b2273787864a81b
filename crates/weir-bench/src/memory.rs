//! Mapped memory: page-aligned buffers, and shared mappings whose pages are there before the clock runs.
//!
//! A mapping is owned by one process here and handed out as slices; memory that processes share
//! for coordination is in `control`.

use std::io;
use std::ptr::NonNull;

const HUGE: usize = 2 << 20;

/// `madvise` advice of Linux 6.1: collapse into huge pages now, also where they are off for shared memory.
const MADV_COLLAPSE: libc::c_int = 25;

/// A page-aligned, zeroed private buffer, touched by whoever fills it.
pub struct Buffer(Mapping);

impl Buffer {
    /// A buffer of `length` bytes, every page present.
    pub fn new(length: usize) -> io::Result<Self> {
        let mut mapping = Mapping::new(length, None)?;
        touch(mapping.bytes_mut());
        Ok(Buffer(mapping))
    }

    /// The bytes.
    pub fn bytes(&self) -> &[u8] {
        self.0.bytes()
    }

    /// The bytes, to fill.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        self.0.bytes_mut()
    }
}

/// Shared memory with every page present and mapped: what the copy limit copies into and out of.
pub struct WarmShared(Mapping);

impl WarmShared {
    /// Maps `length` bytes of a new memory file and writes every page twice, in huge pages if `huge`.
    ///
    /// # Errors
    /// The kernel's; for `huge` also when it cannot collapse (before 6.1, or memory too scattered).
    pub fn new(length: usize, huge: bool) -> io::Result<Self> {
        let length = length.next_multiple_of(HUGE);
        // SAFETY: the name is a nul-terminated string, and the call returns a new descriptor or -1.
        let fd = unsafe { libc::memfd_create(c"weir-bench-limit".as_ptr(), libc::MFD_CLOEXEC) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        let mapping = Mapping::of_file(fd, length);
        // SAFETY: `fd` is ours, and the mapping keeps its memory.
        unsafe { libc::close(fd) };
        let mut mapping = mapping?;
        touch(mapping.bytes_mut());
        if huge {
            mapping.collapse()?;
        }
        mapping.bytes_mut().fill(1);
        Ok(WarmShared(mapping))
    }

    /// The bytes.
    pub fn bytes(&self) -> &[u8] {
        self.0.bytes()
    }

    /// The bytes, to write.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        self.0.bytes_mut()
    }
}

/// Writes each page once, so that it is there.
fn touch(bytes: &mut [u8]) {
    for page in bytes.chunks_mut(4096) {
        page[0] = 1;
    }
}

/// A mapping aligned to 2 MiB, unmapped on drop.
struct Mapping {
    reserved: NonNull<libc::c_void>,
    reserved_length: usize,
    start: NonNull<u8>,
    length: usize,
}

impl Mapping {
    fn of_file(fd: libc::c_int, length: usize) -> io::Result<Self> {
        let size = libc::off_t::try_from(length).map_err(io::Error::other)?;
        // SAFETY: no memory is involved.
        if unsafe { libc::ftruncate(fd, size) } != 0 {
            return Err(io::Error::last_os_error());
        }
        Mapping::new(length, Some(fd))
    }

    /// Reserves address space to align in, then maps private memory or `fd` over the aligned part.
    fn new(length: usize, fd: Option<libc::c_int>) -> io::Result<Self> {
        let reserved_length = length + HUGE;
        let reserve = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        let anywhere = std::ptr::null_mut();
        // SAFETY: without MAP_FIXED.
        let reserved = unsafe { map(anywhere, reserved_length, libc::PROT_NONE, reserve, -1) }?;
        let skip = reserved.as_ptr().align_offset(HUGE);
        let start = reserved.as_ptr().wrapping_byte_add(skip);
        let kind = match fd {
            Some(_) => libc::MAP_SHARED,
            None => libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
        } | libc::MAP_FIXED;
        let access = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: a part of the reservation just made, which nothing points into.
        let mapped = unsafe { map(start, length, access, kind, fd.unwrap_or(-1)) };
        let mapping = Mapping {
            reserved,
            reserved_length,
            start: NonNull::new(start.cast()).expect("inside a reservation"),
            length,
        };
        mapped.map(|_| mapping)
    }

    fn collapse(&mut self) -> io::Result<()> {
        // SAFETY: the range is this mapping; collapsing changes the page size and no content.
        match unsafe { libc::madvise(self.start.as_ptr().cast(), self.length, MADV_COLLAPSE) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }

    fn bytes(&self) -> &[u8] {
        // SAFETY: the mapping is readable, initialised (zero pages) and lives as long as `self`; nobody
        // else holds its memory file, so nothing but `bytes_mut` writes it.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.length) }
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: the mapping is readable and writable, and lives as long as `self`; `&mut self`
        // makes this the only slice.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.length) }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the range was reserved by `new`, and no slice outlives `self`.
        unsafe { libc::munmap(self.reserved.as_ptr(), self.reserved_length) };
    }
}

/// `mmap` with the kernel's error.
///
/// # Safety
///
/// With `MAP_FIXED`, the caller owns the address range, and no reference points into it.
unsafe fn map(
    at: *mut libc::c_void,
    length: usize,
    access: libc::c_int,
    kind: libc::c_int,
    fd: libc::c_int,
) -> io::Result<NonNull<libc::c_void>> {
    // SAFETY: without MAP_FIXED the kernel chooses free addresses; with it the range is the caller's.
    let address = unsafe { libc::mmap(at, length, access, kind, fd, 0) };
    if address == libc::MAP_FAILED {
        return Err(io::Error::last_os_error());
    }
    NonNull::new(address).ok_or_else(|| io::Error::other("mapped at address zero"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_aligned_and_writable_to_its_end() {
        let mut warm = WarmShared::new(3 << 20, false).unwrap();
        assert_eq!(warm.bytes().len(), 4 << 20);
        assert_eq!(warm.bytes().as_ptr().align_offset(HUGE), 0);
        *warm.bytes_mut().last_mut().unwrap() = 9;
        assert_eq!(warm.bytes().last(), Some(&9));
        assert_eq!(Buffer::new(5000).unwrap().bytes().len(), 5000);
    }
}
