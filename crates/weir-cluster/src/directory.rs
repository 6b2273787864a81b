//! The directory of a cluster; its lock tells if the cluster lives.
//!
//! ```text
//! BASE/guard.lock  held while directories are made and cleared
//! BASE/NAME/lock     locked, shared (flock(2)), by the first processes of switch and nodes
//!           hosts    the nodes' /etc/hosts
//!           ssh/     keys and configuration, if sshd was asked for
//!           shared/  for tests: the same for all nodes
//!           init.sh  what first processes run
//!           switch/  the switch's `pid`, init.log
//!           node-0/  the node's `pid`, init.log, tmp/ and storage/
//! ```

use std::fs::{DirBuilder, File};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use anyhow::{bail, ensure, Context, Result};

use crate::{base, NODES_MOST};

/// A cluster's directory.
#[derive(Debug)]
pub struct ClusterDirectory {
    name: String,
    dir: PathBuf,
    /// Held until the first processes hold theirs, and until the directory is removed. So no other
    /// process takes it for a leftover, or its name for a free one.
    _lock: File,
}

impl ClusterDirectory {
    /// Creates a directory with a free name; removes leftovers first.
    pub fn claim(name: Option<&str>) -> Result<Self> {
        std::fs::create_dir_all(base())?;
        let guard = guard()?;
        sweep_guarded(&guard);
        let own = format!("c{}", std::process::id());
        let counted = (0..1000).map(|n| match (name, n) {
            (Some(name), _) => name.to_owned(),
            (None, 0) => own.clone(),
            (None, n) => format!("{own}x{n}"),
        });
        for name in counted {
            check_name(&name)?;
            let dir = base().join(&name);
            match DirBuilder::new().mode(0o755).create(&dir) {
                Ok(()) => return Self::lock(name, dir),
                Err(e) if e.kind() == std::io::ErrorKind::AlreadyExists => {}
                Err(e) => return Err(e).with_context(|| dir.display().to_string()),
            }
        }
        bail!("a cluster of that name is there already");
    }

    fn lock(name: String, dir: PathBuf) -> Result<Self> {
        let lock = File::create(dir.join("lock"))?;
        lock.lock_shared().context("locking the cluster")?;
        std::fs::create_dir(dir.join("shared"))?;
        Ok(Self {
            name,
            dir,
            _lock: lock,
        })
    }

    /// The directory of a cluster that lives.
    pub fn existing(name: &str) -> Result<Self> {
        check_name(name)?;
        let dir = base().join(name);
        ensure!(lives(&dir), "there is no cluster {name}");
        let lock = File::open(dir.join("lock"))?;
        lock.lock_shared().context("locking the cluster")?;
        Ok(Self {
            name: name.to_owned(),
            dir,
            _lock: lock,
        })
    }

    pub fn name(&self) -> &str {
        &self.name
    }

    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// The directory of a node.
    pub fn node_dir(&self, index: usize) -> PathBuf {
        self.dir.join(format!("node-{index}"))
    }

    /// The number of nodes that have a directory.
    pub fn node_count(&self) -> Result<usize> {
        let is_there = |index: &usize| self.node_dir(*index).is_dir();
        let count = (0..NODES_MOST).take_while(is_there).count();
        ensure!(count > 0, "cluster {} has no nodes", self.name);
        Ok(count)
    }

    /// Removes the directory.
    pub fn remove(&self) -> Result<()> {
        std::fs::remove_dir_all(&self.dir)
            .with_context(|| format!("removing {}", self.dir.display()))
    }
}

fn check_name(name: &str) -> Result<()> {
    ensure!(
        !name.is_empty()
            && name.len() <= 32
            && name
                .chars()
                .all(|c| c.is_ascii_lowercase() || c.is_ascii_digit()),
        "a cluster's name is part of host names: up to 32 small letters and digits"
    );
    Ok(())
}

/// Returns true if a first process holds the lock.
fn lives(dir: &Path) -> bool {
    let Ok(lock) = File::open(dir.join("lock")) else {
        return false;
    };
    let held = matches!(lock.try_lock(), Err(std::fs::TryLockError::WouldBlock));
    // Not by closing it: a process that is being started may have it open, too.
    let _ = lock.unlock();
    held
}

/// The names of clusters that live, or of dead ones with a directory.
pub fn names(living: bool) -> Vec<String> {
    let entries = std::fs::read_dir(base()).into_iter().flatten().flatten();
    let mut names: Vec<String> = entries
        .filter(|entry| entry.path().join("lock").is_file() && lives(&entry.path()) == living)
        .filter_map(|entry| entry.file_name().into_string().ok())
        .collect();
    names.sort();
    names
}

/// Held while directories are made and checked for leftovers, so that a new directory without a lock yet
/// is not taken for one.
fn guard() -> Result<File> {
    let file = File::create(base().join("guard.lock"))?;
    file.lock().context("locking the clusters' directory")?;
    Ok(file)
}

/// Removes the directories of clusters that have no process left; returns their names.
pub fn sweep() -> Vec<String> {
    guard().map_or_else(|_| Vec::new(), |guard| sweep_guarded(&guard))
}

fn sweep_guarded(_guard: &File) -> Vec<String> {
    let mut dead = names(false);
    dead.retain(|name| std::fs::remove_dir_all(base().join(name)).is_ok());
    dead
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_fit_for_hosts() {
        assert!(check_name("c123").is_ok());
        for bad in ["", "a/b", "..", "A", "a b", &"a".repeat(33)] {
            assert!(check_name(bad).is_err(), "{bad}");
        }
    }
}
