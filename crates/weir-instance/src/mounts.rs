//! Kernel mounts in the directories of instances.

use std::path::{Path, PathBuf};

use anyhow::{bail, Context, Result};

/// Unmounts what is mounted of weir's at a directory or below it, so that the directory can be
/// removed without what is mounted there.
pub fn clear_below(dir: &Path) -> Result<()> {
    let below = |at: &PathBuf| at.starts_with(dir);
    for at in weir_fuse::mounts()?.iter().filter(|at| below(at)) {
        let unmounted = weir_fuse::unmount(at);
        unmounted.with_context(|| format!("unmounting {}", at.display()))?;
    }
    let left = weir_fuse::mounts()?;
    match left.iter().find(|at| below(at)) {
        None => Ok(()),
        Some(at) => bail!("{} is still mounted", at.display()),
    }
}
