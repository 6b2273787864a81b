//! Directories of our own in places where others can write.
//!
//! Such a directory is hostile until it was opened without following links and found to be ours
//! and closed to others: /tmp lets anyone make `/tmp/weir-UID` before us.

use std::fs::{DirBuilder, OpenOptions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::Path;

use anyhow::{bail, ensure, Context, Result};

use super::names::uid;

/// Makes a directory of mode 0700, unless something is there.
pub fn make_private(path: &Path) -> Result<()> {
    match DirBuilder::new().mode(0o700).create(path) {
        Ok(()) => Ok(()),
        Err(e) if e.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        Err(e) => Err(e).with_context(|| format!("making {}", path.display())),
    }
}

/// Refuses a directory that is a link, is not ours, or that others may enter.
pub fn check_private(path: &Path) -> Result<()> {
    let dir = OpenOptions::new()
        .read(true)
        .custom_flags(libc::O_DIRECTORY | libc::O_NOFOLLOW)
        .open(path);
    let dir = match dir {
        Err(e) if matches!(e.raw_os_error(), Some(libc::ELOOP | libc::ENOTDIR)) => {
            bail!(
                "{} is not a directory of ours but a link or a file: remove it",
                path.display()
            )
        }
        other => other.with_context(|| format!("opening {}", path.display()))?,
    };
    let meta = dir.metadata()?;
    ensure!(
        meta.uid() == uid(),
        "{} belongs to user {}, not to {}: remove it, or set TMPDIR to a directory of your own",
        path.display(),
        meta.uid(),
        uid()
    );
    ensure!(
        // Nothing for others; of the group's bits one may say that there is a list of users who may
        // go through it, which the own user's programs have made.
        meta.mode() & 0o067 == 0,
        "{} is open to others (mode {:o}): chmod 700 it",
        path.display(),
        meta.mode() & 0o7777
    );
    Ok(())
}
