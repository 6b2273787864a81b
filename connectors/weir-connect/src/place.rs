//! Recognizes files that live in weir by statfs(2), and reads their visibility from an extended attribute. A connector needs no
//! other interface of weir's, knows no rules of elevated directories, and is idle without the interposer.

use core::ffi::{c_int, CStr};
use std::ffi::{CString, OsStr};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::Path;

/// `f_type` of statfs(2), which the interposer returns for files in weir.
const WEIR: u64 = 0x5745_4952;

/// The extended attribute with a file's visibility: when other nodes see writes to it.
const VISIBILITY: &CStr = c"user.weir.visibility";

/// The file of a run directory that lists the servers, if there are several (`weir_instance::roster`).
const ROSTER: &str = "roster.json";

/// True if the file with a name as MPI_File_open takes it lives in weir.
pub fn lives_in_weir(name: &CStr) -> bool {
    is_in_weir(without_prefix(name.to_bytes()))
}

/// The path of a file with a name as MPI_File_open takes it.
pub fn path(name: &CStr) -> &Path {
    Path::new(OsStr::from_bytes(without_prefix(name.to_bytes())))
}

/// True if no file has this name and its directory is in weir. A rule of an elevated directory may still put a new file elsewhere.
pub fn may_be_made_in_weir(name: &CStr) -> bool {
    let path = path(name);
    let parent = match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    !path.exists() && is_in_weir(parent.as_os_str().as_bytes())
}

/// The absolute path of a file with a name as MPI_File_open takes it: the program may change its directory later. `None`: the file
/// does not live in weir.
pub fn path_in_weir(name: &CStr) -> Option<CString> {
    let path = without_prefix(name.to_bytes());
    let whole = std::path::absolute(OsStr::from_bytes(path)).ok()?;
    is_in_weir(path).then(|| CString::new(whole.into_os_string().into_vec()).ok())?
}

/// Makes other nodes see each write to a file once it has returned (visibility raw). Reads the visibility first, since only the
/// owner may set it. An error is that of setxattr(2).
pub fn make_read_after_write(path: &CStr) -> std::io::Result<()> {
    const RAW: &[u8] = b"raw";
    let mut value = [0_u8; 16];
    // SAFETY: C strings, and room for `value.len()` bytes.
    let length = unsafe {
        libc::getxattr(
            path.as_ptr(),
            VISIBILITY.as_ptr(),
            value.as_mut_ptr().cast(),
            value.len(),
        )
    };
    if usize::try_from(length).is_ok_and(|length| value.get(..length) == Some(RAW)) {
        return Ok(());
    }
    // SAFETY: C strings, and a value of `RAW.len()` bytes.
    let code = unsafe {
        libc::setxattr(
            path.as_ptr(),
            VISIBILITY.as_ptr(),
            RAW.as_ptr().cast(),
            RAW.len(),
            0,
        )
    };
    match code {
        0 => Ok(()),
        _ => Err(std::io::Error::last_os_error()),
    }
}

fn is_in_weir(path: &[u8]) -> bool {
    let Ok(path) = CString::new(path) else {
        return false;
    };
    let mut found = core::mem::MaybeUninit::<libc::statfs>::zeroed();
    // SAFETY: a C string, and room for the answer, of which zeros are a valid value: a call that fails leaves them.
    let (code, found): (c_int, libc::statfs) = unsafe {
        (
            libc::statfs(path.as_ptr(), found.as_mut_ptr()),
            found.assume_init(),
        )
    };
    code == 0 && u64::try_from(found.f_type) == Ok(WEIR)
}

/// True if the instance has one server, so that all processes see a write as soon as it has returned.
pub fn has_one_server() -> bool {
    let run_dir = std::env::var_os("WEIR_INSTANCE");
    run_dir.is_some_and(|dir| Path::new(&dir).is_dir() && !Path::new(&dir).join(ROSTER).exists())
}

/// A name without ROMIO's prefix for a type of file system, `ufs:/a`.
fn without_prefix(name: &[u8]) -> &[u8] {
    match name.iter().position(|byte| *byte == b':') {
        Some(at) if at > 0 && !name[..at].contains(&b'/') => {
            let is_name = Path::new(OsStr::from_bytes(name)).exists();
            if is_name {
                name
            } else {
                &name[at + 1..]
            }
        }
        _ => name,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prefixes_of_file_systems_are_no_part_of_names() {
        assert_eq!(without_prefix(b"ufs:/weir/a"), b"/weir/a");
        assert_eq!(without_prefix(b"/weir/a:b"), b"/weir/a:b");
        assert_eq!(without_prefix(b":a"), b":a");
        assert_eq!(without_prefix(b"a"), b"a");
    }
}
