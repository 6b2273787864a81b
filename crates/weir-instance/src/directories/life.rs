//! The locks of a directory that say whether its server lives, or is to be started again.

use std::io;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use super::names::KEEP;
use super::private::check_private;
use crate::lock::Lock;

/// True if a server holds the lock of the directory `dir`.
pub fn lives(dir: &Path) -> bool {
    check_private(dir).is_ok() && Lock::is_held(&dir.join("lock"))
}

/// Waits until no server holds the lock of `dir`, by waiting for the lock itself.
pub fn wait_until_gone(dir: &Path) -> Result<()> {
    let path = dir.join("lock");
    // Taken without making it: the file goes with the directory.
    match Lock::acquire_existing(&path) {
        Ok(_) => Ok(()),
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(e) => Err(e).with_context(|| format!("waiting for {}", path.display())),
    }
}

/// The lock of a directory that nobody lives in. What cannot be judged is left alone.
pub(super) fn lock_of_dead(dir: &Path) -> Option<Lock> {
    check_private(dir).ok()?;
    if Lock::is_held(&dir.join(KEEP)) {
        return None;
    }
    Lock::try_acquire(&dir.join("lock")).ok()?
}

/// Keeps the directories of a server from being cleared away while it does not live, for as long
/// as the locks are held.
pub fn keep(dirs: &[PathBuf]) -> Result<Vec<Lock>> {
    let locks = dirs.iter().map(|dir| {
        let lock = Lock::try_acquire(&dir.join(KEEP))?;
        lock.with_context(|| format!("{} is kept by another", dir.display()))
    });
    locks.collect()
}

/// True if an agent is about to start a server of the directory `dir` again.
pub fn is_kept(dir: &Path) -> bool {
    Lock::is_held(&dir.join(KEEP))
}
