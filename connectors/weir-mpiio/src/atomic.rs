//! Files in atomic mode: a process reads what another one wrote before (MPI 4.0, section 14.6.1), on any node.
//!
//! ROMIO locks in that mode, and a lock of weir's publishes. OMPIO relies on the order of POSIX calls, which holds between nodes
//! only for files of visibility `raw`. So a file that gets atomic mode is made `raw`. Each process does so before its own accesses
//! in that mode, so none waits for another. If the file is `raw` already, as by default, that costs one look at the attribute.
//!
//! The file stays `raw` afterwards. The call that ends the mode need not synchronise, so a process that restored the visibility
//! could do so while another one is still in the mode.

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

/// Makes a file fit for atomic mode. A failure is reported once; the mode is then as it is without this library.
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
