//! Transfers: the service moves single files for programs, which go on meanwhile (`weir.h`, `weir_transfer_start`).
//!
//! | file | subject |
//! | --- | --- |
//! | this one | the move of one file: its copy, its name, and if wanted the removal of its source |
//! | `table` | the files of all transfers, their order, their state; cancelling them |
//!
//! Unlike a stage, a transfer moves no trees, compares nothing with the target, and reports an errno for each file. The
//! node that has the target's name is replaced in one step, as by rename(2).

mod table;

use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use rustix::io::Errno;
use weir_client::process::mounted::WriteState;
use weir_client::types::Stat;

use crate::copy::FileCopy;
use crate::error::MoveError;
use crate::publish::{check_replaceable, is_same};
use crate::replaceable::Replaceable;
use crate::side::MoveSide;
use crate::tree::{io_error, kind_of, FileTree, NodeKind};
pub use table::{TransferTable, TransferTask};

/// The progress of one file, shared by the thread that moves it and others.
#[derive(Debug, Default)]
pub struct FileProgress {
    /// Bytes that were copied, holes included.
    pub bytes: AtomicU64,
    /// The size of the source, bytes.
    pub size: AtomicU64,
    /// Other threads may set it: the move must end without a result.
    pub stop: AtomicBool,
}

impl FileProgress {
    /// Counts bytes; false: the move must end.
    fn count(&self, bytes: u64) -> bool {
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
        !self.stop.load(Ordering::Relaxed)
    }
}

/// Copies one file; when this returns, the target has its name and is synced. `removes_source`: afterwards the source is
/// removed, if nobody has written to it meanwhile. A source that is open for writing, or not laminated, is refused.
pub fn transfer_file<S: FileTree, T: FileTree>(
    from: &MoveSide<'_, S>,
    to: &MoveSide<'_, T>,
    removes_source: bool,
    progress: &FileProgress,
) -> Result<(), MoveError> {
    let (source, target) = (&*from.path, &*to.path);
    let (from, to) = (from.tree, to.tree);
    let stat = find_source(from, source)?;
    progress.size.store(stat.size, Ordering::Relaxed);
    check_closed(from, source)?;
    let there = to
        .look_up(target)
        .map_err(MoveError::io("looking for", target))?;
    check_replaceable(target, there.as_ref(), |there| {
        Replaceable::Any.allows(there)
    })?;
    let copy = FileCopy::begin(from, to, source, target, there)?;
    let copied = *copy.copied();
    progress.size.store(copied.size, Ordering::Relaxed);
    copy.copy(0..copied.size, &mut Vec::new(), &|bytes| {
        progress.count(bytes)
    })?;
    // A program may have opened the file before the copy began: then the copy may have a part of a version.
    check_closed(from, source)?;
    if progress.stop.load(Ordering::Relaxed) {
        return Err(MoveError::Stopped);
    }
    copy.publish(false, &mut Vec::new())?;
    sync_name(to, target)?;
    match removes_source {
        true => remove_source(from, source, &copied),
        false => Ok(()),
    }
}

/// The source, which must be a regular file, not a symbolic link.
fn find_source<S: FileTree>(from: &S, source: &Path) -> Result<Stat, MoveError> {
    let looking = || MoveError::io("looking for", source);
    let found = from.look_up(source).map_err(looking())?;
    let stat = found.ok_or_else(|| looking()(io_error(Errno::NOENT)))?;
    let wrong = match kind_of(&stat) {
        NodeKind::File => return Ok(stat),
        NodeKind::Directory => Errno::ISDIR,
        NodeKind::Symlink => Errno::LOOP,
        NodeKind::Special => Errno::INVAL,
    };
    Err(looking()(io_error(wrong)))
}

fn check_closed<S: FileTree>(from: &S, source: &Path) -> Result<(), MoveError> {
    let state = from.write_state(source);
    match state.map_err(MoveError::io("looking for", source))? {
        WriteState::Open => Err(MoveError::Open(source.to_owned())),
        WriteState::Hidden => Err(MoveError::NotLaminated(source.to_owned())),
        WriteState::Written => Ok(()),
    }
}

/// Syncs the name.
fn sync_name<T: FileTree>(to: &T, target: &Path) -> Result<(), MoveError> {
    let dir = target.parent().unwrap_or(target);
    to.sync_directory(dir)
        .map_err(MoveError::io("syncing", dir))
}

/// Removes a source that has not changed since it was copied.
fn remove_source<S: FileTree>(from: &S, source: &Path, copied: &Stat) -> Result<(), MoveError> {
    let removing = || MoveError::io("removing", source);
    let now = from.look_up(source).map_err(removing())?;
    match is_same(Some(copied), now.as_ref()) {
        true => from.remove(source).map_err(removing()),
        false => Err(MoveError::SourceChanged(source.to_owned())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::DirectoryTree;

    fn transfer(source: &Path, target: &Path, removes_source: bool) -> Result<(), Errno> {
        let tree = DirectoryTree;
        let progress = FileProgress::default();
        let [from, to] = [source, target].map(|path| MoveSide::new(&tree, path));
        transfer_file(&from, &to, removes_source, &progress).map_err(|error| error.errno())
    }

    #[test]
    fn a_file_is_copied_over_another_one_and_then_moved() {
        let dir = tempfile::tempdir().unwrap();
        let path = |name: &str| dir.path().join(name);
        std::fs::write(path("a"), "new").unwrap();
        std::fs::write(path("b"), "an old one").unwrap();
        assert_eq!(transfer(&path("a"), &path("b"), false), Ok(()));
        assert_eq!(std::fs::read(path("b")).unwrap(), b"new");
        assert_eq!(transfer(&path("a"), &path("c"), true), Ok(()));
        assert!(!path("a").exists());
        assert_eq!(std::fs::read(path("c")).unwrap(), b"new");
        assert_eq!(dir.path().read_dir().unwrap().count(), 2, "no part is left");
    }

    #[test]
    fn what_is_no_file_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let path = |name: &str| dir.path().join(name);
        std::fs::create_dir(path("d")).unwrap();
        std::fs::write(path("f"), "f").unwrap();
        std::os::unix::fs::symlink("f", path("l")).unwrap();
        let refused = |source, target| transfer(&path(source), &path(target), true).unwrap_err();
        assert_eq!(refused("none", "x"), Errno::NOENT);
        assert_eq!(refused("d", "x"), Errno::ISDIR);
        assert_eq!(refused("l", "x"), Errno::LOOP);
        assert_eq!(refused("f", "d"), Errno::ISDIR);
        assert_eq!(refused("f", "none/x"), Errno::NOENT);
        assert_eq!(refused("f", "f/x"), Errno::NOTDIR);
        nix::unistd::mkfifo(&path("fifo"), nix::sys::stat::Mode::S_IRUSR).unwrap();
        assert_eq!(refused("fifo", "x"), Errno::INVAL);
        assert_eq!(refused("f", "fifo"), Errno::INVAL);
        let there = std::fs::symlink_metadata(path("fifo")).unwrap();
        assert!(std::os::unix::fs::FileTypeExt::is_fifo(&there.file_type()));
        assert_eq!(std::fs::read(path("f")).unwrap(), b"f");
    }

    #[test]
    fn a_stopped_copy_leaves_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let (source, target) = (dir.path().join("a"), dir.path().join("b"));
        std::fs::write(&source, vec![1; 1 << 20]).unwrap();
        let progress = FileProgress::default();
        progress.stop.store(true, Ordering::Relaxed);
        let tree = DirectoryTree;
        let [from, to] = [&source, &target].map(|path| MoveSide::new(&tree, path));
        let stopped = transfer_file(&from, &to, true, &progress);
        assert!(matches!(stopped, Err(MoveError::Stopped)));
        assert_eq!(dir.path().read_dir().unwrap().count(), 1);
    }
}
