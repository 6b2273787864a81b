//! Steps on directories, which prepare others.

use std::fs;
use std::path::Path;

use anyhow::{ensure, Context};

use crate::error::c_path;
use crate::timing::{timed, Prepared};

/// Makes a directory.
pub fn make_directory(path: &Path) -> Prepared<'_> {
    timed(move || fs::create_dir_all(path).with_context(|| path.display().to_string()))
}

/// Sets the visibility of files that are made in a directory.
pub fn set_visibility<'a>(directory: &'a Path, visibility: &'a str) -> Prepared<'a> {
    timed(move || {
        let path = c_path(directory)?;
        let (name, value) = (c"user.weir.visibility", visibility.as_bytes());
        let (bytes, length) = (value.as_ptr().cast(), value.len());
        // SAFETY: path and name end with a zero byte, and `value` has as many bytes as is said.
        let failed = unsafe { libc::setxattr(path.as_ptr(), name.as_ptr(), bytes, length, 0) };
        ensure!(
            failed == 0,
            "{}: setting the visibility: {}",
            directory.display(),
            std::io::Error::last_os_error()
        );
        Ok(())
    })
}

/// Removes a file or a tree.
pub fn remove(path: &Path) -> Prepared<'_> {
    timed(move || {
        let removed = match fs::symlink_metadata(path)?.is_dir() {
            true => fs::remove_dir_all(path),
            false => fs::remove_file(path),
        };
        removed.with_context(|| path.display().to_string())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_visibility_of_no_directory_is_refused_by_name() {
        let nowhere = std::env::temp_dir().join("nowhere");
        let refused = set_visibility(&nowhere, "raw")().unwrap_err().to_string();
        assert!(
            refused.contains("nowhere: setting the visibility"),
            "{refused}"
        );
    }
}
