//! Files in atomic mode: what one process writes, the others read (MPI 4.0, section 14.6.1), on whatever node they are.
//!
//! ROMIO locks in that mode, and a lock of weir's publishes. OMPIO relies on the order of POSIX's calls, which between nodes holds for
//! files of visibility `raw` alone. So a file that gets atomic mode is made one. Each process does so before its own accesses in that
//! mode, so none has to wait for another, and where the file is `raw` already, by default, it costs one look.
//!
//! The file stays `raw`: a process that took that back could do so while another one is still in the mode, since the call that
//! ends it need not synchronise.

use core::ffi::CStr;
use std::collections::HashMap;
use std::ffi::CString;
use std::sync::{Once, PoisonError, RwLock};

use weir_connect::complain;
use weir_connect::mpi::MpiHandle;
use weir_connect::place::{make_read_after_write, path_in_weir};

/// The paths of open files that live in weir.
static PATHS: RwLock<Option<HashMap<MpiHandle, CString>>> = RwLock::new(None);

/// Notes a file that was opened by this name, if it lives in weir.
pub fn note_path(file: MpiHandle, name: &CStr) {
    if let Some(path) = path_in_weir(name) {
        let mut paths = PATHS.write().unwrap_or_else(PoisonError::into_inner);
        paths.get_or_insert_default().insert(file, path);
    }
}

/// Forgets a file that is closed.
pub fn forget_path(file: MpiHandle) {
    let mut paths = PATHS.write().unwrap_or_else(PoisonError::into_inner);
    if let Some(paths) = paths.as_mut() {
        paths.remove(&file);
    }
}

/// Makes a file one that atomic mode can rely on. A failure is told once: the mode is then what it is without this library.
pub fn prepare(file: MpiHandle) {
    static TOLD: Once = Once::new();
    let paths = PATHS.read().unwrap_or_else(PoisonError::into_inner);
    let Some(path) = paths.as_ref().and_then(|paths| paths.get(&file)).cloned() else {
        return;
    };
    // The calls below may take a while.
    drop(paths);
    if let Err(error) = make_read_after_write(&path) {
        TOLD.call_once(|| {
            complain!(
                "weir: {}: in atomic mode, and its visibility cannot be made raw: {error}; other nodes may see writes later",
                path.to_string_lossy()
            );
        });
    }
}
