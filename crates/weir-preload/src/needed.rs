//! Libraries in weir that a program needs at its start, by RUNPATH or `$LD_LIBRARY_PATH`.
//!
//! The program's loader looks for them with system calls of its own, before any code of ours runs. So
//! the process that executes the program opens copies of them and tells the loader to load these first
//! (LD_PRELOAD, `/proc/self/fd/N`). The loader then finds by their sonames that the needed libraries are
//! loaded. At its start the program restores the variable, and keeps the descriptors for dlopen.

use core::ffi::{c_char, c_int, CStr};
use std::ffi::CString;

use weir_client::process::process;

use crate::elf::Needs;
use crate::environment::{entries, value_in, Strings};
use crate::{attempt, bytes_of, calls, load};

const PRELOAD: &CStr = c"LD_PRELOAD";
const LIBRARY_PATH: &CStr = c"LD_LIBRARY_PATH";
const BY_NUMBER: &[u8] = b"/proc/self/fd/";

/// The directories of `$LD_LIBRARY_PATH` in an environment.
///
/// # Safety
///
/// `envp` is null or a null-terminated array of C strings.
unsafe fn library_path(envp: Strings) -> Vec<Vec<u8>> {
    // SAFETY: `envp` is null or a null-terminated array of C strings, by the caller.
    let named = unsafe { entries(envp).find_map(|entry| value_in(entry, LIBRARY_PATH)) };
    let dirs = named.unwrap_or_default().split(|byte| b":;".contains(byte));
    dirs.filter(|dir| !dir.is_empty())
        .map(<[u8]>::to_vec)
        .collect()
}

/// Returns true if a program with this environment looks for libraries in weir.
///
/// # Safety
///
/// See `library_path`.
pub(crate) unsafe fn looks_in_weir(envp: Strings) -> bool {
    // SAFETY: `envp` is null or a null-terminated array of C strings, by the caller.
    let dirs = unsafe { library_path(envp) };
    dirs.iter().any(|dir| load::is_our_directory(dir))
}

/// Copies of the libraries in weir that a program needs, in the order in which it names them.
struct Copies {
    library_path: Vec<Vec<u8>>,
    found: Vec<(CString, c_int)>,
}

impl Copies {
    fn add_needs_of(&mut self, library: c_int, path: &CStr) {
        let Some(needs) = Needs::read_from(library) else {
            return;
        };
        let own = load::canonical_directory(path);
        let dirs = needs.directories(&own, &self.library_path);
        let mut new = Vec::new();
        for name in needs.libraries {
            if self.found.iter().any(|(known, _)| *known == name) {
                continue;
            }
            let Some(path) = load::first_in(&dirs, name.to_bytes()) else {
                continue;
            };
            let copy = attempt(|| {
                process()
                    .programs
                    .materialize_at(libc::AT_FDCWD, path.to_bytes(), 0)
            });
            if let Ok(Some(Ok(copy))) = copy {
                calls::fcntl_number::<{ libc::F_SETFD }>(copy, 0);
                self.found.push((name, copy));
                new.push((path, copy));
            }
        }
        for (path, copy) in new {
            self.add_needs_of(copy, &path);
        }
    }
}

/// Runs `exec` with an environment that lets the loader find the libraries in weir that a program needs.
/// The program is open as `program` and lies at `path`. Returns only if that failed.
///
/// # Safety
///
/// `envp` is null or a null-terminated array of C strings.
pub(crate) unsafe fn with_libraries(
    program: c_int,
    path: &CStr,
    envp: Strings,
    exec: impl FnOnce(Strings) -> c_int,
) -> c_int {
    let mut copies = Copies {
        // SAFETY: `envp` is null or a null-terminated array of C strings, by the caller.
        library_path: unsafe { library_path(envp) },
        found: Vec::new(),
    };
    copies.add_needs_of(program, path);
    if copies.found.is_empty() {
        return exec(envp);
    }
    // SAFETY: `envp` is null or a null-terminated array of C strings, which outlive `exec`, by the
    // caller.
    let (others, before) = unsafe {
        let is_named = |entry: &*const c_char| value_in(*entry, PRELOAD).is_some();
        let others: Vec<_> = entries(envp).filter(|entry| !is_named(entry)).collect();
        let before = entries(envp)
            .filter_map(|entry| value_in(entry, PRELOAD))
            .last();
        (others, before.unwrap_or_default())
    };
    let mut value = [PRELOAD.to_bytes(), b"=", before].concat();
    for (_, copy) in &copies.found {
        value.extend_from_slice(b":");
        value.extend_from_slice(BY_NUMBER);
        value.extend_from_slice(copy.to_string().as_bytes());
    }
    let value = CString::new(value).unwrap_or_default();
    let all = others
        .into_iter()
        .chain([value.as_ptr(), core::ptr::null()]);
    let done = exec(all.collect::<Vec<_>>().as_ptr());
    let saved = crate::raw::errno();
    for (_, copy) in copies.found {
        calls::close_fd(copy);
    }
    crate::raw::restore_errno(saved);
    done
}

/// Removes the added entries from the variable, and keeps the copies. Called at the start of the
/// program.
pub(crate) fn take_over() {
    // SAFETY: C strings, or null; no other thread runs yet.
    unsafe {
        let Some(value) = bytes_of(libc::getenv(PRELOAD.as_ptr())).map(<[u8]>::to_vec) else {
            return;
        };
        let parts = || value.split(|byte| *byte == b':');
        let number_of = |part: &[u8]| {
            let number = core::str::from_utf8(part.strip_prefix(BY_NUMBER)?).ok()?;
            number.parse::<c_int>().ok()
        };
        if !parts().any(|part| number_of(part).is_some()) {
            return;
        }
        for copy in parts().filter_map(number_of) {
            load::adopt(copy);
        }
        let left: Vec<_> = parts().filter(|part| number_of(part).is_none()).collect();
        let left = CString::new(left.join(&b':')).unwrap_or_default();
        libc::setenv(PRELOAD.as_ptr(), left.as_ptr(), 1);
    }
}
