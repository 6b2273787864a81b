//! Extended attributes of files by their paths, symbolic links not followed: lgetxattr(2) and its kin, called as functions of
//! the C library, which neither std nor nix has.
#![allow(
    unsafe_code,
    reason = "std and nix have no such functions, and rustix calls the kernel past the interposer"
)]

use std::ffi::{CString, OsStr};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use nix::errno::Errno;
use nix::libc;

/// The reply to getxattr and listxattr.
#[derive(Debug)]
pub enum SizedReply {
    /// The size, to a request without room.
    Size(u32),
    /// The bytes.
    Bytes(Vec<u8>),
}

fn terminated(text: &OsStr) -> io::Result<CString> {
    Ok(CString::new(text.as_bytes()).map_err(|_| Errno::EINVAL)?)
}

/// Calls `read` with room for `size` bytes.
fn read_sized(
    size: u32,
    read: impl FnOnce(*mut libc::c_void, libc::size_t) -> libc::ssize_t,
) -> io::Result<SizedReply> {
    let mut room = vec![0u8; usize::try_from(size).expect("64 bits")];
    let length = Errno::result(read(room.as_mut_ptr().cast(), room.len()))?;
    if size == 0 {
        return Ok(SizedReply::Size(
            u32::try_from(length).map_err(|_| Errno::E2BIG)?,
        ));
    }
    room.truncate(usize::try_from(length).expect("it is no error"));
    Ok(SizedReply::Bytes(room))
}

/// The value of an attribute, or its size if `size` is 0. ERANGE: it is larger.
pub fn get(path: &Path, name: &OsStr, size: u32) -> io::Result<SizedReply> {
    let (path, name) = (terminated(path.as_os_str())?, terminated(name)?);
    // SAFETY: both strings end with NUL and live through the call, which writes at most `length` bytes to `room`.
    read_sized(size, |room, length| unsafe {
        libc::lgetxattr(path.as_ptr(), name.as_ptr(), room, length)
    })
}

/// The names of all attributes, each with a NUL, or their size if `size` is 0. ERANGE: they are longer.
pub fn list(path: &Path, size: u32) -> io::Result<SizedReply> {
    let path = terminated(path.as_os_str())?;
    // SAFETY: the path ends with NUL and lives through the call, which writes at most `length` bytes to `room`.
    read_sized(size, |room, length| unsafe {
        libc::llistxattr(path.as_ptr(), room.cast(), length)
    })
}

/// Sets an attribute; `flags` as for setxattr(2).
pub fn set(path: &Path, name: &OsStr, value: &[u8], flags: i32) -> io::Result<()> {
    let (path, name) = (terminated(path.as_os_str())?, terminated(name)?);
    // SAFETY: both strings end with NUL, and the value has the length that is given; all live through the call.
    let set = unsafe {
        libc::lsetxattr(
            path.as_ptr(),
            name.as_ptr(),
            value.as_ptr().cast(),
            value.len(),
            flags,
        )
    };
    Ok(Errno::result(set).map(drop)?)
}

/// Removes an attribute.
pub fn remove(path: &Path, name: &OsStr) -> io::Result<()> {
    let (path, name) = (terminated(path.as_os_str())?, terminated(name)?);
    // SAFETY: both strings end with NUL and live through the call.
    let removed = unsafe { libc::lremovexattr(path.as_ptr(), name.as_ptr()) };
    Ok(Errno::result(removed).map(drop)?)
}
