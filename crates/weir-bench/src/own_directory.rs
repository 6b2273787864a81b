//! A directory of the benchmark's own.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

/// A directory that is removed with all that is in it.
pub struct OwnDirectory(pub PathBuf);

impl OwnDirectory {
    /// Makes one in another.
    pub fn make(within: &Path, name: &str) -> Result<OwnDirectory> {
        let within = within
            .canonicalize()
            .with_context(|| within.display().to_string())?;
        let own = within.join(format!("{name}-{}", std::process::id()));
        // It must be new: a link that somebody has put there is not followed.
        std::fs::create_dir(&own).with_context(|| own.display().to_string())?;
        Ok(OwnDirectory(own))
    }
}

impl Drop for OwnDirectory {
    fn drop(&mut self) {
        if let Err(error) = std::fs::remove_dir_all(&self.0) {
            eprintln!("weir bench: {}: {error}", self.0.display());
        }
    }
}
