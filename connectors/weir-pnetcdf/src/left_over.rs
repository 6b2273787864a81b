//! Logs of programs that were killed. Before their file is opened again, under any name, the logged writes go into it. When the
//! file is created anew, its logs are removed.

use core::ffi::CStr;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use weir_arraylog::{find_logs, replay, ArrayLog};
use weir_connect::complain;
use weir_connect::mpi::{Mpi, MpiHandle};
use weir_connect::place;

use crate::library::inside;
use crate::settings::Settings;

/// Replays the logs that are left of a file, before it is opened. The first process does it, and the others wait.
///
/// # Safety
///
/// All processes of the communicator call this, with valid arguments of PnetCDF.
pub unsafe fn replay_left_over(comm: MpiHandle, path: &CStr) {
    let Some(mpi) = Mpi::get() else {
        return;
    };
    // SAFETY: the communicator is valid, and all its processes call this, by the caller.
    unsafe {
        settle_first(mpi, comm, path, false);
        // Keeps the other processes from opening the file earlier.
        mpi.all_agree(comm, [true]);
    }
}

/// Removes the logs that are left of a file, after it was created. The first process does it before it agrees with the others on a
/// new log.
///
/// # Safety
///
/// As [`replay_left_over`].
pub unsafe fn remove_left_over(comm: MpiHandle, path: &CStr) {
    if let Some(mpi) = Mpi::get() {
        // SAFETY: the communicator is valid, by the caller.
        unsafe { settle_first(mpi, comm, path, true) };
    }
}

/// In the first process, replays or removes the logs that are left.
///
/// # Safety
///
/// A valid communicator.
unsafe fn settle_first(mpi: &Mpi, comm: MpiHandle, path: &CStr, is_created: bool) {
    // SAFETY: the communicator is valid, by the caller.
    if unsafe { mpi.rank(comm) } == Some(0) {
        inside(|| settle_alone(&Settings::read(), path, is_created));
    }
}

fn settle_alone(settings: &Settings, path: &CStr, is_created: bool) {
    let Some(directory) = &settings.directory else {
        return;
    };
    if !settings.all_files && !place::lives_in_weir(path) {
        return;
    }
    let path = place::path(path);
    let path = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    let Ok(file) = path.metadata() else {
        return;
    };
    // Without logs their directory does not exist. Logs of other files are not read.
    let Ok(logs) = find_logs(directory, Some(file.ino())) else {
        return;
    };
    let own = logs.into_iter().filter_map(|(_, log)| log.ok());
    for log in own.filter(|log| !log.is_open && log.inode() == Some(file.ino())) {
        settle_log(log, &path, is_created);
    }
}

fn settle_log(log: ArrayLog, path: &Path, is_created: bool) {
    if !is_created {
        match replay(&log, Some(path)) {
            Ok(replayed) if replayed.entries > 0 => complain!(
                "weir: {}: {} writes that a program had logged when it ended are in it now",
                path.display(),
                replayed.entries
            ),
            Ok(_) => {}
            Err(error) => {
                let log = log.directory.display();
                complain!("weir: writes that a program had logged when it ended are not in their file: {error}; they are in {log}");
                return;
            }
        }
    }
    if let Err(error) = log.remove() {
        complain!(
            "weir: {}: the log of its writes cannot be removed: {error}",
            path.display()
        );
    }
}
