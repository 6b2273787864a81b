//! Mappings: `mmap(2)` of our files.
//!
//! If the kernel has mounted the instance, it maps the file there. Else a private mapping maps a copy of
//! the file's bytes (POSIX leaves open whether it shows later writes); a shared one is refused (ENODEV,
//! as by a file system that cannot map) and counted; see docs/SEMANTICS.md.

use core::ffi::{c_int, c_void};

use libc::{off_t, size_t};
use rustix::io::Errno;
use weir_client::process::{process, Mapping};

use crate::raw;

fn failed(errno: Errno) -> *mut c_void {
    raw::set_errno(errno);
    libc::MAP_FAILED
}

/// `mmap(2)`. Not the symbol of that name: a library that watches the symbol (UCX) patches its first
/// instructions to jump to code that makes the system call by `syscall`, which calls this function.
///
/// # Safety
///
/// The caller meets the requirements of mmap(2).
#[inline(never)]
pub unsafe fn map(
    address: *mut c_void,
    length: size_t,
    protection: c_int,
    flags: c_int,
    fd: c_int,
    offset: off_t,
) -> *mut c_void {
    let ours = if flags & libc::MAP_ANONYMOUS == 0 && crate::is_ours(fd) {
        let write = protection & libc::PROT_WRITE != 0;
        match flags & libc::MAP_TYPE {
            libc::MAP_PRIVATE => process().mappings.mmap(fd, length, false, write),
            libc::MAP_SHARED | libc::MAP_SHARED_VALIDATE => {
                process().mappings.mmap(fd, length, true, write)
            }
            _ => Some(Err(Errno::INVAL)),
        }
    } else {
        None
    };
    // SAFETY: the range is free, or the caller's to replace (MAP_FIXED), by the caller.
    unsafe {
        match ours {
            Some(Ok(Mapping::Kernel { fd, is_kept })) => {
                let place = from_kernel(address, length, protection, flags, fd, offset);
                if !is_kept {
                    let _ = weir_client::kernel::close(fd);
                }
                place
            }
            Some(Ok(Mapping::Copy)) => private(address, length, protection, flags, fd, offset),
            Some(Err(errno)) => failed(errno),
            // Not weir's, or closed without a call of ours.
            None => from_kernel(address, length, protection, flags, fd, offset),
        }
    }
}

/// # Safety
///
/// The caller meets the requirements of mmap(2).
unsafe fn from_kernel(
    address: *mut c_void,
    length: size_t,
    protection: c_int,
    flags: c_int,
    fd: c_int,
    offset: off_t,
) -> *mut c_void {
    // Allocators map before any constructor has run: no lookup then.
    // SAFETY: the range is free, or the caller's to replace (MAP_FIXED), by the caller; the kernel
    // checks the rest.
    unsafe {
        raw::outcome(raw::syscall(
            libc::SYS_mmap,
            crate::next::six([
                address as usize,
                length,
                protection as usize,
                flags as usize,
                fd as usize,
                offset.cast_unsigned() as usize,
            ]),
        )) as *mut c_void
    }
}

/// # Safety
///
/// The caller meets the requirements of mmap(2).
unsafe fn private(
    address: *mut c_void,
    length: size_t,
    protection: c_int,
    flags: c_int,
    fd: c_int,
    offset: off_t,
) -> *mut c_void {
    let Ok(offset) = u64::try_from(offset) else {
        return failed(Errno::INVAL);
    };
    if offset % 4096 != 0 || length == 0 {
        return failed(Errno::INVAL);
    }
    // SAFETY: the range is free, or the caller's to replace (MAP_FIXED), by the caller.
    unsafe {
        match process().mappings.copy_to_map(fd, offset, length) {
            Some(Ok(copy)) => {
                let place = from_kernel(address, length, protection, flags, copy, 0);
                let _ = weir_client::kernel::close(copy);
                place
            }
            Some(Err(Errno::FBIG)) => anonymous(address, length, protection, flags, fd, offset),
            Some(Err(errno)) => failed(errno),
            None => failed(Errno::BADF),
        }
    }
}

/// A private mapping for a process that may not create a file for it: anonymous memory with the bytes.
///
/// # Safety
///
/// The caller meets the requirements of mmap(2).
unsafe fn anonymous(
    address: *mut c_void,
    length: size_t,
    protection: c_int,
    flags: c_int,
    fd: c_int,
    offset: u64,
) -> *mut c_void {
    // SAFETY: anonymous memory at the address that the caller gave; it is filled before the caller sees
    // it.
    unsafe {
        let writable = protection | libc::PROT_READ | libc::PROT_WRITE;
        let flags = flags | libc::MAP_ANONYMOUS;
        let place = from_kernel(address, length, writable, flags, -1, 0);
        if place == libc::MAP_FAILED {
            return place;
        }
        let bytes = core::slice::from_raw_parts_mut(place.cast::<u8>(), length);
        if let Some(Err(errno)) = process().mappings.fill_mapping(fd, offset, bytes) {
            raw::syscall(libc::SYS_munmap, [place as usize, length, 0, 0, 0, 0]);
            return failed(errno);
        }
        let arguments = [place as usize, length, protection as usize, 0, 0, 0];
        raw::syscall(libc::SYS_mprotect, arguments);
        place
    }
}

macro_rules! mmaps {
    ($($name:ident)*) => {$(
        /// `mmap(2)`.
        ///
        /// # Safety
        ///
        /// The caller meets the requirements of the C function of this name.
        #[no_mangle]
        pub unsafe extern "C" fn $name(
            address: *mut c_void,
            length: size_t,
            protection: c_int,
            flags: c_int,
            fd: c_int,
            offset: off_t,
        ) -> *mut c_void {
            crate::guarded(|| {
                // SAFETY: the range is free, or the caller's to replace (MAP_FIXED), by the caller.
                unsafe { map(address, length, protection, flags, fd, offset) }
            })
        }
    )*};
}
mmaps! { mmap mmap64 }
