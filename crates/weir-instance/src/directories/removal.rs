//! Removing directories, which another start may do at the same time.

use std::io::{
    self,
    ErrorKind::{DirectoryNotEmpty, NotFound},
};
use std::path::{Path, PathBuf};

use super::names::DEAD_PREFIX;
use crate::lock::Lock;
use crate::mounts;

/// Removes a directory that another start may be burying at the same time: once the lock in it is
/// gone it looks like a dead instance's, and one that looks makes a lock of its own there.
pub(super) fn remove(dir: &Path) -> io::Result<()> {
    const TRIES: u32 = 100;
    let mut tries = 0;
    // A mount below it, whose process and server were killed, is no part of the directory.
    mounts::clear_below(dir).map_err(io::Error::other)?;
    loop {
        tries += 1;
        match std::fs::remove_dir_all(dir) {
            Err(_) if dir.symlink_metadata().is_err_and(|e| e.kind() == NotFound) => return Ok(()),
            Err(e) if matches!(e.kind(), NotFound | DirectoryNotEmpty) && tries < TRIES => {}
            done => return done,
        }
    }
}

/// Directories of dead instances, out of the way but still to be removed.
#[derive(Debug, Default)]
pub struct Burial {
    names: Vec<String>,
    pub(super) dirs: Vec<(PathBuf, Lock)>,
}

impl Burial {
    pub(super) fn add(&mut self, path: PathBuf, lock: Lock, name: Option<String>) {
        let aside = path.with_file_name(format!(
            "{DEAD_PREFIX}{}-{}",
            std::process::id(),
            self.dirs.len()
        ));
        let path = match std::fs::rename(&path, &aside) {
            Ok(()) => aside,
            Err(_) => path,
        };
        self.names.extend(name);
        self.dirs.push((path, lock));
    }

    /// The instances whose remains are cleared.
    pub fn names(&self) -> Vec<String> {
        let mut names = self.names.clone();
        names.sort();
        names.dedup();
        names
    }

    /// Removes the directories; what fails is said and left for the next start.
    pub fn remove(self) {
        for (path, _lock) in self.dirs {
            if let Err(e) = remove(&path) {
                tracing::warn!("cannot remove {}: {e}", path.display());
            }
        }
    }
}
