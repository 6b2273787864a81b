//! The directories that hold those of instances: which they are, and who lives in them.

use std::path::{Path, PathBuf};

use anyhow::{ensure, Result};
use weir_config::{Config, Environment};

use super::life::{lives, lock_of_dead};
use super::names::{check_name, tame, uid, DEAD_PREFIX, NAME_MOST, SOCKET};
use super::private::{check_private, make_private};
use super::removal::Burial;
use crate::lock::Lock;

/// `sun_path` of a Unix socket holds 108 bytes with the closing zero: unix(7).
const SOCKET_PATH_MOST: usize = 107;

/// A directory that holds those of instances, and how theirs are called.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Parent {
    pub(super) path: PathBuf,
    prefix: &'static str,
    /// Made by us if absent, as against one that the system made.
    ours: bool,
}

impl Parent {
    /// The parent of run directories. The environment alone decides, so that every command of one login
    /// or job agrees; a name's length does not matter, since room is left for the longest.
    pub fn of_runs(env: &Environment) -> Self {
        let longest = "/weir-".len() + NAME_MOST + "/".len() + SOCKET.len();
        let fits = |dir: &str| dir.len() + longest <= SOCKET_PATH_MOST;
        if let Some(dir) = env.get("XDG_RUNTIME_DIR").filter(|dir| fits(dir)) {
            if Path::new(dir).is_dir() {
                return Self {
                    path: dir.into(),
                    prefix: "weir-",
                    ours: false,
                };
            }
        }
        let below = format!("weir-{}", uid());
        let long = |dir: &&str| fits(&format!("{dir}/{below}"));
        let tmp = env.get("TMPDIR").filter(long).unwrap_or("/tmp");
        Self {
            path: Path::new(tmp).join(below),
            prefix: "",
            ours: true,
        }
    }

    /// The parent of run directories of several servers. `TMPDIR` does not count: `WEIR_INSTANCE`
    /// has to mean the same on every node.
    pub fn of_shared_runs(config: &Config) -> Self {
        Self {
            path: config.launch.directory.join(format!("weir-{}", uid())),
            prefix: "",
            ours: true,
        }
    }

    /// The one that has `dir`, which is a directory of an instance.
    pub fn holding(dir: &Path) -> Option<Self> {
        let path = dir.parent()?;
        let parent = path.file_name()?.to_str()?;
        let ours = parent.starts_with(&format!("weir-{}", uid()));
        Some(Self {
            path: path.to_owned(),
            prefix: if ours { "" } else { "weir-" },
            ours,
        })
    }

    /// The name of the instance whose directory `dir` is.
    pub fn name_in(&self, dir: &Path) -> Option<String> {
        let name = dir.file_name()?.to_str()?;
        self.name_of(name).map(str::to_owned)
    }

    /// The parent of the memory tier's directories.
    pub(super) fn of_memory(config: &Config) -> Self {
        let path = config
            .memory
            .directory
            .join(format!("weir-{}-memory", uid()));
        Self {
            path,
            prefix: "",
            ours: true,
        }
    }

    /// The parents of the file tier's directories. Storage may turn out to be shared by nodes, where locks
    /// do not tell who lives; so each node has its own.
    pub(super) fn of_files(config: &Config) -> Vec<Self> {
        if !config.file.enabled {
            return Vec::new();
        }
        let host = nix::unistd::gethostname().unwrap_or_default();
        let below = format!("weir-{}-files-{}", uid(), tame(&host.to_string_lossy()));
        let parent = |dir: &PathBuf| Self {
            path: dir.join(&below),
            prefix: "",
            ours: true,
        };
        config.file.directories.0.iter().map(parent).collect()
    }

    /// Refuses a parent in which a socket's path would be too long.
    pub fn check_length(&self) -> Result<()> {
        let longest = self.child(&"n".repeat(NAME_MOST)).join(SOCKET);
        ensure!(
            longest.as_os_str().len() <= SOCKET_PATH_MOST,
            "{} is too long a path for run directories (launch.directory)",
            self.path.display()
        );
        Ok(())
    }

    /// The directory of instance `name`.
    pub fn child(&self, name: &str) -> PathBuf {
        self.path.join(format!("{}{name}", self.prefix))
    }

    /// The name of the instance whose directory is called `file_name`.
    fn name_of<'n>(&self, file_name: &'n str) -> Option<&'n str> {
        let name = file_name.strip_prefix(self.prefix)?;
        check_name(name).ok().map(|()| name)
    }

    /// Makes the parent if it is ours to make, and refuses one that others could have planted.
    pub fn prepare(&self) -> Result<()> {
        if self.ours {
            make_private(&self.path)?;
        }
        check_private(&self.path)
    }

    pub(super) fn guard(&self) -> Result<Lock> {
        Lock::acquire(&self.path.join(format!("{}guard.lock", self.prefix)))
    }

    /// Live instances, by name.
    pub fn live(&self) -> Vec<String> {
        let mut names: Vec<String> = self
            .children()
            .into_iter()
            .filter(|name| lives(&self.child(name)))
            .collect();
        names.sort();
        names
    }

    pub(super) fn children(&self) -> Vec<String> {
        file_names(&self.path)
            .iter()
            .filter_map(|name| self.name_of(name).map(str::to_owned))
            .collect()
    }

    /// Moves what dead instances left out of the way, where `clears` says so of their directory. The
    /// caller holds the guard; the removal itself, which may take long, is [`Burial`]'s.
    pub(super) fn bury_dead(&self, clears: &dyn Fn(&Path) -> bool, burial: &mut Burial) {
        for name in self.children() {
            let path = self.child(&name);
            if !clears(&path) {
                continue;
            }
            // Looked at again with the lock held: a server that was starting has a label now.
            if let Some(lock) = lock_of_dead(&path).filter(|_| clears(&path)) {
                burial.add(path, lock, Some(name));
            }
        }
        for name in file_names(&self.path) {
            let path = self.path.join(&name);
            if name.starts_with(DEAD_PREFIX) {
                if let Some(lock) = lock_of_dead(&path) {
                    burial.add(path, lock, None);
                }
            }
        }
    }
}

pub(super) fn file_names(dir: &Path) -> Vec<String> {
    let Ok(entries) = std::fs::read_dir(dir) else {
        return Vec::new();
    };
    entries
        .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_runtime_directory_comes_first_unless_it_is_too_long() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().to_str().unwrap();
        let env: Environment = [("XDG_RUNTIME_DIR", path)].into_iter().collect();
        assert_eq!(Parent::of_runs(&env).child("a"), dir.path().join("weir-a"));

        let long = format!("/{}", "x".repeat(90));
        let env: Environment = [("XDG_RUNTIME_DIR", &long), ("TMPDIR", &long)]
            .into_iter()
            .collect();
        let run_dir = Parent::of_runs(&env).child(&"n".repeat(NAME_MOST));
        assert!(run_dir.starts_with("/tmp"));
        assert!(run_dir.join(SOCKET).as_os_str().len() <= SOCKET_PATH_MOST);
    }
}
