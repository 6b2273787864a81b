//! A target that fails.

use std::ffi::{OsStr, OsString};
use std::fmt;
use std::fs;
use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, UNIX_EPOCH};

use rustix::io::Errno;
use rustix::time::{clock_gettime, ClockId};
use weir_client::process::mounted::{HistoryPosition, WriteState};
use weir_client::types::{Stat, Time};
use weir_mover::tree::{FileTree, KeptAttributes, NodeKind, TreeHistory};
use weir_mover::DirectoryTree;

/// Called beside calls of a tree.
pub type Hook = Box<dyn Fn() + Send + Sync>;

/// A question about a path.
type PathTest = Box<dyn Fn(&Path) -> bool + Send + Sync>;

/// The answer to the question for changes of names.
type HistorySource = Box<dyn Fn(&mut Vec<HistoryPosition>) -> TreeHistory + Send + Sync>;

/// A tree whose changes fail from one on: as if the process had died there, or for once.
pub struct FaultyTree {
    /// Changes until the fault.
    left: AtomicI64,
    /// All changes after it fail too.
    dies: bool,
    errno: Errno,
    /// It is only links that fail, and always.
    has_no_links: bool,
    /// It is only writes that fail.
    is_full: bool,
    before_look: Option<Hook>,
    before_read: Option<Hook>,
    after_change: Option<Hook>,
    is_open: Option<PathTest>,
    history: Option<HistorySource>,
    /// Held while something changes, and is checked: other threads change it as well.
    changing: Arc<Mutex<()>>,
    clock: TreeClock,
}

/// The clock of a tree.
#[derive(Clone, Copy, PartialEq, Eq)]
enum TreeClock {
    System,
    /// A tick of it is over before anything else is stamped with it.
    Ticks,
}

impl fmt::Debug for FaultyTree {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} changes, then {}", self.left, self.errno)
    }
}

impl FaultyTree {
    fn new(left: i64, errno: Errno) -> FaultyTree {
        FaultyTree {
            left: AtomicI64::new(left),
            dies: false,
            errno,
            has_no_links: false,
            is_full: false,
            before_look: None,
            before_read: None,
            after_change: None,
            is_open: None,
            history: None,
            changing: Arc::default(),
            clock: TreeClock::System,
        }
    }

    /// All changes after this many fail, as if the process had died.
    pub fn dying_after(changes: i64) -> FaultyTree {
        FaultyTree {
            dies: true,
            ..FaultyTree::new(changes, Errno::IO)
        }
    }

    /// All writes of bytes after this many find no room.
    pub fn full_after(writes: i64) -> FaultyTree {
        FaultyTree {
            is_full: true,
            ..FaultyTree::new(writes, Errno::NOSPC)
        }
    }

    /// One change after this many fails.
    pub fn failing_once(changes: i64, errno: Errno) -> FaultyTree {
        FaultyTree::new(changes, errno)
    }

    /// No hard link can be made.
    pub fn without_links(errno: Errno) -> FaultyTree {
        FaultyTree {
            has_no_links: true,
            ..FaultyTree::new(i64::MAX, errno)
        }
    }

    /// A source that programs use: `act` is called before each look at it, and files are open for
    /// writing.
    pub fn used(act: Hook, is_open: impl Fn(&Path) -> bool + Send + Sync + 'static) -> FaultyTree {
        FaultyTree {
            before_look: Some(act),
            is_open: Some(Box::new(is_open)),
            ..FaultyTree::new(i64::MAX, Errno::IO)
        }
    }

    /// The same tree, which knows what programs rename and remove.
    pub fn with_history(
        self,
        history: impl Fn(&mut Vec<HistoryPosition>) -> TreeHistory + Send + Sync + 'static,
    ) -> FaultyTree {
        FaultyTree {
            history: Some(Box::new(history)),
            ..self
        }
    }

    /// The same tree, whose time is over before anything else is stamped with it.
    pub fn with_ticks(self) -> FaultyTree {
        FaultyTree {
            clock: TreeClock::Ticks,
            ..self
        }
    }

    /// The same tree, with `check` called after each change.
    pub fn checked(self, check: Hook) -> FaultyTree {
        FaultyTree {
            after_change: Some(check),
            ..self
        }
    }

    /// The same tree, of which others that have this lock change nothing while it does.
    pub fn locked(self, changing: &Arc<Mutex<()>>) -> FaultyTree {
        FaultyTree {
            changing: Arc::clone(changing),
            ..self
        }
    }

    /// The same tree, with `wait` called before each look for bytes.
    pub fn read_after(self, wait: Hook) -> FaultyTree {
        FaultyTree {
            before_read: Some(wait),
            ..self
        }
    }

    fn look(&self) {
        if let Some(before_look) = &self.before_look {
            before_look();
        }
    }

    /// True if a change has failed.
    pub fn has_failed(&self) -> bool {
        self.left.load(Ordering::Relaxed) < 0
    }

    fn change<T>(&self, change: impl FnOnce() -> io::Result<T>) -> io::Result<T> {
        let left = match self.is_full {
            true => i64::MAX,
            false => self.left.fetch_sub(1, Ordering::Relaxed),
        };
        if left == 0 || self.dies && left < 0 {
            return Err(self.error());
        }
        let _changing = self.changing.lock();
        let changed = change();
        if let Some(after_change) = &self.after_change {
            after_change();
        }
        changed
    }

    fn error(&self) -> io::Error {
        io::Error::from_raw_os_error(self.errno.raw_os_error())
    }
}

impl FileTree for FaultyTree {
    type File = fs::File;

    fn now(&self) -> Duration {
        let coarse = || {
            let now = clock_gettime(ClockId::RealtimeCoarse);
            Duration::new(
                now.tv_sec.unsigned_abs(),
                u32::try_from(now.tv_nsec).unwrap(),
            )
        };
        if self.clock == TreeClock::System {
            return DirectoryTree.now();
        }
        let begun = coarse();
        while coarse() == begun {
            std::thread::yield_now();
        }
        coarse().saturating_sub(Duration::from_nanos(1))
    }
    fn look_up(&self, path: &Path) -> io::Result<Option<Stat>> {
        self.look();
        let stat = DirectoryTree.look_up(path)?;
        let born = |path: &Path| path.symlink_metadata().ok()?.created().ok();
        let born = born(path).and_then(|born| born.duration_since(UNIX_EPOCH).ok());
        let btime = born.map(|born| Time::from_epoch_ns(i64::try_from(born.as_nanos()).unwrap()));
        Ok(stat.map(|stat| Stat { btime, ..stat }))
    }
    fn list(&self, path: &Path) -> io::Result<Vec<OsString>> {
        self.look();
        DirectoryTree.list(path)
    }
    fn read_link(&self, path: &Path) -> io::Result<PathBuf> {
        self.look();
        DirectoryTree.read_link(path)
    }
    fn xattrs(&self, path: &Path) -> io::Result<Vec<(OsString, Vec<u8>)>> {
        self.look();
        DirectoryTree.xattrs(path)
    }
    fn open(&self, path: &Path) -> io::Result<fs::File> {
        self.look();
        DirectoryTree.open(path)
    }
    fn stat(&self, file: &fs::File) -> io::Result<Stat> {
        self.look();
        DirectoryTree.stat(file)
    }
    fn read_at(&self, file: &fs::File, offset: u64, bytes: &mut [u8]) -> io::Result<usize> {
        self.look();
        DirectoryTree.read_at(file, offset, bytes)
    }
    fn next_data(&self, file: &fs::File, within: Range<u64>) -> io::Result<Option<Range<u64>>> {
        self.look();
        if let Some(before_read) = &self.before_read {
            before_read();
        }
        DirectoryTree.next_data(file, within)
    }
    fn write_state(&self, path: &Path) -> io::Result<WriteState> {
        self.look();
        path.symlink_metadata()?;
        Ok(
            match self.is_open.as_ref().is_some_and(|is_open| is_open(path)) {
                true => WriteState::Open,
                false => WriteState::Written,
            },
        )
    }
    fn name_history(&self, known: &mut Vec<HistoryPosition>) -> io::Result<TreeHistory> {
        self.look();
        let history = self.history.as_ref().map(|history| history(known));
        Ok(history.unwrap_or_default())
    }
    fn create_part(&self, path: &Path, mode: u32) -> io::Result<fs::File> {
        self.change(|| DirectoryTree.create_part(path, mode))
    }
    fn write_at(&self, file: &fs::File, offset: u64, bytes: &[u8]) -> io::Result<()> {
        if self.is_full && self.left.fetch_sub(1, Ordering::Relaxed) <= 0 {
            return Err(self.error());
        }
        self.change(|| DirectoryTree.write_at(file, offset, bytes))
    }
    fn set_size(&self, file: &fs::File, size: u64) -> io::Result<()> {
        self.change(|| DirectoryTree.set_size(file, size))
    }
    fn begin_sync(&self, file: &fs::File) {
        DirectoryTree.begin_sync(file);
    }
    fn sync(&self, file: &fs::File) -> io::Result<()> {
        self.change(|| DirectoryTree.sync(file))
    }
    fn set_mode(&self, file: &fs::File, mode: u32) -> io::Result<()> {
        self.change(|| DirectoryTree.set_mode(file, mode))
    }
    fn set_times(&self, file: &fs::File, kept: &KeptAttributes) -> io::Result<()> {
        self.change(|| DirectoryTree.set_times(file, kept))
    }
    fn set_attributes(&self, path: &Path, kind: NodeKind, kept: &KeptAttributes) -> io::Result<()> {
        self.change(|| DirectoryTree.set_attributes(path, kind, kept))
    }
    fn set_xattr(&self, path: &Path, name: &OsStr, value: &[u8]) -> io::Result<()> {
        self.change(|| DirectoryTree.set_xattr(path, name, value))
    }
    fn remove_xattr(&self, path: &Path, name: &OsStr) -> io::Result<()> {
        self.change(|| DirectoryTree.remove_xattr(path, name))
    }
    fn make_directory(&self, path: &Path, mode: u32) -> io::Result<()> {
        self.change(|| DirectoryTree.make_directory(path, mode))
    }
    fn make_symlink(&self, target: &Path, path: &Path) -> io::Result<()> {
        self.change(|| DirectoryTree.make_symlink(target, path))
    }
    fn make_link(&self, existing: &Path, path: &Path) -> io::Result<()> {
        match self.has_no_links {
            true => Err(self.error()),
            false => self.change(|| DirectoryTree.make_link(existing, path)),
        }
    }
    fn rename(&self, from: &Path, to: &Path, replace: bool) -> io::Result<()> {
        self.change(|| DirectoryTree.rename(from, to, replace))
    }
    fn exchange(&self, one: &Path, other: &Path) -> io::Result<()> {
        self.change(|| DirectoryTree.exchange(one, other))
    }
    fn remove(&self, path: &Path) -> io::Result<()> {
        self.change(|| DirectoryTree.remove(path))
    }
    fn remove_directory(&self, path: &Path) -> io::Result<()> {
        self.change(|| DirectoryTree.remove_directory(path))
    }
    fn open_part(&self, path: &Path) -> io::Result<fs::File> {
        self.change(|| DirectoryTree.open_part(path))
    }
    fn sync_directory(&self, path: &Path) -> io::Result<()> {
        self.change(|| DirectoryTree.sync_directory(path))
    }
}
