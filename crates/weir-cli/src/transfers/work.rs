//! The files of transfers: the tree that a path is in, and the move between trees.
//!
//! A path is in the instance if it is below the mount prefix by its text, as for `weir stage`. Paths in elevated
//! directories are refused: programs see a union of two trees there, and the drain moves files between these.

use std::ffi::{OsStr, OsString};
use std::io;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use rustix::io::Errno;
use weir_client::transfer::{DrainReport, FileTransfer};
use weir_instance::errln;
use weir_mover::transfer::{transfer_file, FileProgress};
use weir_mover::tree::FileTree;
use weir_mover::{DirectoryTree, InstanceTree, MoveError, MoveSide};

use super::drains;
use crate::locate::elevated_directories;
use crate::prefetch::{PrefetchOutcome, PrefetchedTree};

/// The work of one file.
#[derive(Debug)]
pub enum FileWork {
    /// Copy it, from one tree to the other or within the instance.
    Copy {
        source: TreePath,
        target: TreePath,
        removes_source: bool,
    },
    /// Prefetch it: the number of the elevated tree, and the path of the file outside the instance.
    Prefetch(usize, PathBuf),
}

impl FileWork {
    /// True if it takes a file out of the instance.
    pub fn leaves_instance(&self) -> bool {
        matches!(
            self,
            FileWork::Copy {
                source: TreePath::Inside(_),
                target: TreePath::Outside(_),
                ..
            }
        )
    }
}

/// A path, in the tree that it belongs to.
#[derive(Debug)]
pub enum TreePath {
    /// Below the mount prefix, with a slash before it.
    Inside(PathBuf),
    Outside(PathBuf),
}

/// The trees of a node.
#[derive(Debug)]
pub struct TransferTrees {
    run_dir: PathBuf,
    instance: InstanceTree,
    elevated: Vec<PathBuf>,
    evict_percent: u32,
    /// A process prefetches one file at a time.
    prefetching: Mutex<()>,
}

impl TransferTrees {
    pub fn new(run_dir: &Path, instance: InstanceTree, evict_percent: u32) -> TransferTrees {
        TransferTrees {
            run_dir: run_dir.to_owned(),
            instance,
            elevated: elevated_directories(run_dir),
            evict_percent,
            prefetching: Mutex::new(()),
        }
    }

    /// The work for one file of a request. EXDEV: neither path is in the instance, or one is in an elevated directory.
    pub fn plan_copy(&self, file: FileTransfer) -> Result<FileWork, Errno> {
        let source = self.place(file.source)?;
        let target = self.place(file.target)?;
        if let (TreePath::Outside(_), TreePath::Outside(_)) = (&source, &target) {
            return Err(Errno::XDEV);
        }
        Ok(FileWork::Copy {
            source,
            target,
            removes_source: file.removes_source,
        })
    }

    /// The work of a file that is to be prefetched. EXDEV: it is in no elevated directory.
    pub fn plan_prefetch(&self, path: Vec<u8>) -> Result<FileWork, Errno> {
        let path = check_path(path)?;
        let number = self.number_of(&path).ok_or(Errno::XDEV)?;
        Ok(FileWork::Prefetch(number, path))
    }

    fn place(&self, path: Vec<u8>) -> Result<TreePath, Errno> {
        let path = check_path(path)?;
        if let Ok(below) = path.strip_prefix(self.instance.prefix()) {
            return Ok(TreePath::Inside(Path::new("/").join(below)));
        }
        match self.number_of(&path) {
            Some(_) => Err(Errno::XDEV),
            None => Ok(TreePath::Outside(path)),
        }
    }

    /// The state of a file on its way. EXDEV: it is not in the instance. EREMOTE: a drain of another node may move it.
    pub fn find_drain_state(&self, path: Vec<u8>) -> Result<DrainReport, Errno> {
        let (path, tree, below) = self.find_drained(path)?;
        if let Some(report) = drains::find_state(&self.run_dir, &path)? {
            return Ok(report);
        }
        self.check_alone()?;
        let found = tree.look_up(&below);
        match found.map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO))? {
            // Nothing moves it now.
            Some(stat) => Ok(DrainReport {
                size: stat.size,
                ..DrainReport::default()
            }),
            None => Err(Errno::NOENT),
        }
    }

    /// Moves the files at and below a path before others; false: the time is over. EOPNOTSUPP: no drain moves them.
    pub fn drain_first(
        &self,
        path: Vec<u8>,
        until: Instant,
        goes_on: impl Fn() -> bool,
    ) -> Result<bool, Errno> {
        let (path, ..) = self.find_drained(path)?;
        if let Some(is_safe) = drains::drain_first(&self.run_dir, &path, until, goes_on)? {
            return Ok(is_safe);
        }
        self.check_alone()?;
        Err(Errno::OPNOTSUPP)
    }

    /// The tree of a path that may be drained, and the path below its root.
    fn find_drained(&self, path: Vec<u8>) -> Result<(PathBuf, InstanceTree, PathBuf), Errno> {
        let path = check_path(path)?;
        let (root, tree) = match self.number_of(&path) {
            Some(number) => (&*self.elevated[number], self.instance.elevated(number)),
            None => (self.instance.prefix(), Some(self.instance)),
        };
        let below = path.strip_prefix(root).map_err(|_| Errno::XDEV)?;
        let below = Path::new("/").join(below);
        Ok((path.clone(), tree.ok_or(Errno::XDEV)?, below))
    }

    /// EREMOTE: there are other nodes, whose drains this process does not reach.
    fn check_alone(&self) -> Result<(), Errno> {
        match self.instance.servers() {
            Ok(1) => Ok(()),
            _ => Err(Errno::REMOTE),
        }
    }

    /// The number of the elevated tree that a path is in.
    fn number_of(&self, path: &Path) -> Option<usize> {
        self.elevated.iter().position(|dir| path.starts_with(dir))
    }

    /// Moves a file. ECANCELED: it was stopped.
    pub fn move_file(&self, work: &FileWork, progress: &FileProgress) -> Result<(), Errno> {
        let moved = match work {
            FileWork::Prefetch(number, path) => return self.prefetch(*number, path, progress),
            FileWork::Copy {
                source,
                target,
                removes_source,
            } => self.copy(source, target, *removes_source, progress),
        };
        moved.map_err(|error| {
            if error.errno() == Errno::IO {
                // Standard error is the server's log.
                errln!("weir: transfer: {error}");
            }
            error.errno()
        })
    }

    fn copy(
        &self,
        source: &TreePath,
        target: &TreePath,
        removes_source: bool,
        progress: &FileProgress,
    ) -> Result<(), MoveError> {
        use TreePath::{Inside, Outside};
        let inside = |path: &PathBuf| MoveSide::new(&self.instance, path);
        let outside = |path: &PathBuf| MoveSide::new(&DirectoryTree, path);
        match (source, target) {
            (Inside(source), Inside(target)) => {
                transfer_file(&inside(source), &inside(target), removes_source, progress)
            }
            (Inside(source), Outside(target)) => {
                transfer_file(&inside(source), &outside(target), removes_source, progress)
            }
            (Outside(source), Inside(target)) => {
                transfer_file(&outside(source), &inside(target), removes_source, progress)
            }
            (Outside(source), Outside(target)) => {
                transfer_file(&outside(source), &outside(target), removes_source, progress)
            }
        }
    }

    fn prefetch(&self, number: usize, path: &Path, progress: &FileProgress) -> Result<(), Errno> {
        let _one = self
            .prefetching
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        if progress.stop.load(Ordering::Relaxed) {
            return Err(Errno::CANCELED);
        }
        let of_file = |error: &io::Error| Errno::from_io_error(error).unwrap_or(Errno::IO);
        let of_instance = |error: anyhow::Error| {
            errln!("weir: prefetch: {error:#}");
            Errno::IO
        };
        let target = &self.elevated[number];
        let tree = PrefetchedTree::open(&self.run_dir, self.instance, number, target);
        let tree = tree.map_err(of_instance)?;
        let size = tree.check_file(path).map_err(|error| of_file(&error))?;
        progress.size.store(size, Ordering::Relaxed);
        let outcome = tree.take_file(path, size, self.evict_percent);
        match outcome.map_err(of_instance)? {
            PrefetchOutcome::Taken => {
                progress.bytes.store(size, Ordering::Relaxed);
                Ok(())
            }
            PrefetchOutcome::There => Ok(()),
            PrefetchOutcome::NoRoom => Err(Errno::NOSPC),
            PrefetchOutcome::Failed(error) => Err(of_file(&error)),
        }
    }
}

/// Checks that a path is absolute, without `..` and without NUL bytes: its text alone must tell its tree.
fn check_path(path: Vec<u8>) -> Result<PathBuf, Errno> {
    let path = PathBuf::from(OsString::from_vec(path));
    let has_parent = path
        .components()
        .any(|part| part.as_os_str() == OsStr::new(".."));
    match path.is_absolute() && !has_parent && !path.as_os_str().as_bytes().contains(&0) {
        true => Ok(path.components().collect()),
        false => Err(Errno::INVAL),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_absolute_and_lead_nowhere_else() {
        let checked = |path: &[u8]| check_path(path.to_vec());
        assert_eq!(checked(b"/weir//a/./b"), Ok("/weir/a/b".into()));
        for bad in [
            &b""[..],
            b"a",
            b"/weir/../etc/passwd",
            b"/weir/..",
            b"/a\0b",
        ] {
            assert_eq!(checked(bad), Err(Errno::INVAL));
        }
        assert_eq!(checked(b"/weir/..a"), Ok("/weir/..a".into()));
    }
}
