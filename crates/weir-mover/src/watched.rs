//! A tree that keeps a record of the calls under way: a parallel file system (PFS) may hang, and its calls cannot be
//! cancelled. Writes wait for a limit on their rate. Paths for which a call of an earlier process hangs are avoided: each
//! call for one fails at once.

use std::collections::{BTreeMap, HashMap};
use std::ffi::{OsStr, OsString};
use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use weir_client::process::mounted::{Cover, HistoryPosition, Whiteout, WriteState};
use weir_client::types::{Stat, Time};

use crate::limit::RateLimit;
use crate::publish::part_of;
use crate::stripe::StripeSize;
use crate::tree::{EvictionTable, FileTree, KeptAttributes, NodeKind, TreeHistory};

/// The time after which a call counts as hanging. To sync a large file may take minutes.
const PATIENCE: Duration = Duration::from_secs(300);

/// The calls of a tree that have not returned.
#[derive(Debug, Default)]
pub struct CallWatch(Mutex<WatchedCalls>);

#[derive(Debug, Default)]
struct WatchedCalls {
    next: u64,
    /// In the order in which they began.
    pending: BTreeMap<u64, PendingCall>,
    last_return: Option<Instant>,
    /// No call begins any more.
    is_closed: bool,
}

#[derive(Debug)]
struct PendingCall {
    step: &'static str,
    path: PathBuf,
    /// The other name that it changes.
    other: Option<PathBuf>,
    began: Instant,
}

/// A call that takes a long time.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct SlowCall {
    /// The step, as a participle: "writing".
    pub step: String,
    /// The file.
    #[serde(flatten, with = "crate::json_path::path")]
    pub path: PathBuf,
    /// The time since it began.
    pub seconds: f64,
}

impl CallWatch {
    fn calls(&self) -> MutexGuard<'_, WatchedCalls> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn watch<T>(
        &self,
        step: &'static str,
        path: &Path,
        other: Option<&Path>,
        call: impl FnOnce() -> T,
    ) -> T {
        let call_number = {
            let mut calls = self.calls();
            if calls.is_closed {
                drop(calls);
                loop {
                    std::thread::park();
                }
            }
            let number = calls.next;
            calls.next += 1;
            let pending = PendingCall {
                step,
                path: path.to_owned(),
                other: other.map(Path::to_owned),
                began: Instant::now(),
            };
            calls.pending.insert(number, pending);
            number
        };
        let result = call();
        let mut calls = self.calls();
        calls.pending.remove(&call_number);
        calls.last_return = Some(Instant::now());
        result
    }

    /// The calls that have been under way for longer than `than`, the oldest first.
    pub fn slow_calls(&self, than: Duration) -> Vec<SlowCall> {
        let calls = self.calls();
        let pending = calls.pending.values();
        let slow = pending.filter(|call| call.began.elapsed() > than);
        slow.map(|call| SlowCall {
            step: call.step.to_owned(),
            path: call.path.clone(),
            seconds: call.began.elapsed().as_secs_f64(),
        })
        .collect()
    }

    /// The paths of the calls that are under way.
    pub fn paths_under_way(&self) -> Vec<PathBuf> {
        let calls = self.calls();
        let pending = calls.pending.values();
        let paths = pending.flat_map(|call| [Some(&call.path), call.other.as_ref()]);
        paths.flatten().cloned().collect()
    }

    /// True if a call has returned.
    pub fn has_returned(&self) -> bool {
        self.calls().last_return.is_some()
    }

    /// Lets no call begin any more: the threads that would make one wait for the end of the process.
    pub fn close(&self) {
        self.calls().is_closed = true;
    }

    /// The same, if calls have been under way for this time and none has returned; else returns false.
    pub fn close_if_hung(&self, time: Duration) -> bool {
        let mut calls = self.calls();
        let is_hung = calls.time_without_return() >= time;
        calls.is_closed |= is_hung;
        is_hung
    }

    /// True if a call for this path has been under way for longer than `than`.
    fn is_slow(&self, path: &Path, than: Duration) -> bool {
        let calls = self.calls();
        let mut pending = calls.pending.values();
        pending.any(|call| call.path == path && call.began.elapsed() > than)
    }

    /// The time for which calls have been under way and none has returned; zero if none is under way.
    pub fn time_without_return(&self) -> Duration {
        self.calls().time_without_return()
    }
}

impl WatchedCalls {
    fn time_without_return(&self) -> Duration {
        let oldest = self.pending.values().next();
        let since = oldest.map(|oldest| self.last_return.unwrap_or(oldest.began).max(oldest.began));
        since.map_or(Duration::ZERO, |since| since.elapsed())
    }
}

/// Paths for which calls fail at once.
#[derive(Debug, Default)]
pub struct AvoidedPaths(RwLock<HashMap<PathBuf, String>>);

impl AvoidedPaths {
    /// Replaces the paths; each has a reason, which calls for it give. A path and its part (`publish`) are avoided
    /// together.
    pub fn set(&self, paths: impl IntoIterator<Item = (PathBuf, String)>) {
        let mut avoided = HashMap::new();
        for (path, reason) in paths {
            avoided.insert(part_of(&path), reason.clone());
            avoided.insert(path, reason);
        }
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = avoided;
    }

    /// True if calls for a path fail.
    pub fn has(&self, path: &Path) -> bool {
        self.check(path).is_err()
    }

    fn check(&self, path: &Path) -> io::Result<()> {
        let avoided = self.0.read().unwrap_or_else(PoisonError::into_inner);
        if avoided.is_empty() {
            return Ok(());
        }
        let reason = avoided.get(path).or_else(|| avoided.get(&part_of(path)));
        reason.map_or(Ok(()), |reason| {
            Err(io::Error::new(io::ErrorKind::TimedOut, reason.clone()))
        })
    }
}

/// A tree whose calls are watched.
#[derive(Debug)]
pub struct WatchedTree<T> {
    tree: T,
    watch: Arc<CallWatch>,
    avoided: Arc<AvoidedPaths>,
    limit: Arc<RateLimit>,
    stripe: Option<StripeSize>,
    patience: Duration,
}

/// An open file of a watched tree.
#[derive(Debug)]
pub struct WatchedFile<F> {
    file: F,
    path: PathBuf,
}

impl<T> WatchedTree<T> {
    /// The same tree, watched.
    pub fn new(tree: T) -> WatchedTree<T> {
        WatchedTree {
            tree,
            watch: Arc::default(),
            avoided: Arc::default(),
            limit: Arc::default(),
            stripe: None,
            patience: PATIENCE,
        }
    }

    /// Sets the time after which a call counts as hanging.
    pub fn set_patience(&mut self, patience: Duration) {
        self.patience = patience;
    }

    /// Sets the stripe size of all files; `None`: the file system is asked.
    pub fn set_stripe(&mut self, stripe: Option<StripeSize>) {
        self.stripe = stripe;
    }

    /// The limit on its writes.
    pub fn limit(&self) -> Arc<RateLimit> {
        Arc::clone(&self.limit)
    }

    /// The calls that are under way.
    pub fn watch(&self) -> Arc<CallWatch> {
        Arc::clone(&self.watch)
    }

    /// The paths for which calls fail at once.
    pub fn avoided(&self) -> Arc<AvoidedPaths> {
        Arc::clone(&self.avoided)
    }

    /// Makes a call, unless its path is avoided.
    fn make<R>(
        &self,
        step: &'static str,
        path: &Path,
        call: impl FnOnce() -> io::Result<R>,
    ) -> io::Result<R> {
        self.avoided.check(path)?;
        self.watch.watch(step, path, None, call)
    }

    /// The same for a call that changes two names.
    fn make_for_two<R>(
        &self,
        step: &'static str,
        [path, other]: [&Path; 2],
        call: impl FnOnce() -> io::Result<R>,
    ) -> io::Result<R> {
        self.avoided.check(path)?;
        self.avoided.check(other)?;
        self.watch.watch(step, path, Some(other), call)
    }
}

impl<T: FileTree> WatchedTree<T> {
    fn open_by<F>(
        &self,
        step: &'static str,
        path: &Path,
        open: impl FnOnce(&T, &Path) -> io::Result<F>,
    ) -> io::Result<WatchedFile<F>> {
        let file = self.make(step, path, || open(&self.tree, path))?;
        let path = path.to_owned();
        Ok(WatchedFile { file, path })
    }
}

impl<T: FileTree> FileTree for WatchedTree<T> {
    type File = WatchedFile<T::File>;

    fn hangs_at(&self, path: &Path) -> bool {
        self.watch.is_slow(path, self.patience)
    }
    fn check_avoided(&self, path: &Path) -> io::Result<()> {
        self.avoided.check(path)
    }
    fn look_up(&self, path: &Path) -> io::Result<Option<Stat>> {
        let call = || self.tree.look_up(path);
        self.make("looking for", path, call)
    }
    fn list(&self, path: &Path) -> io::Result<Vec<OsString>> {
        self.make("listing", path, || self.tree.list(path))
    }
    fn read_link(&self, path: &Path) -> io::Result<PathBuf> {
        let call = || self.tree.read_link(path);
        self.make("reading", path, call)
    }
    fn xattrs(&self, path: &Path) -> io::Result<Vec<(OsString, Vec<u8>)>> {
        let call = || self.tree.xattrs(path);
        self.make("reading the attributes of", path, call)
    }
    fn cover_of(&self, path: &Path) -> io::Result<Cover> {
        let call = || self.tree.cover_of(path);
        self.make("looking for", path, call)
    }
    fn cover(&self, target: &Path, path: &Path, mode: u32) -> io::Result<()> {
        let call = || self.tree.cover(target, path, mode);
        self.make("looking for", path, call)
    }
    fn note_covered_mode(&self, path: &Path, mode: u32) -> io::Result<()> {
        let call = || self.tree.note_covered_mode(path, mode);
        self.make("looking for", path, call)
    }
    fn whiteouts(&self) -> io::Result<Vec<Whiteout>> {
        let call = || self.tree.whiteouts();
        self.make("listing removed names of", Path::new("/"), call)
    }
    fn now(&self) -> Duration {
        self.tree.now()
    }
    fn removed_at(&self, whiteout: &Whiteout) -> io::Result<Option<Time>> {
        let call = || self.tree.removed_at(whiteout);
        self.make("looking for a name of", Path::new("/"), call)
    }
    fn holder_of(&self, path: &Path, range: Range<u64>) -> io::Result<Option<u16>> {
        let call = || self.tree.holder_of(path, range);
        self.make("looking for", path, call)
    }
    fn name_history(&self, known: &mut Vec<HistoryPosition>) -> io::Result<TreeHistory> {
        let call = || self.tree.name_history(known);
        self.make("asking for changed names of", Path::new("/"), call)
    }
    fn forget(&self, whiteout: &Whiteout) -> io::Result<()> {
        let call = || self.tree.forget(whiteout);
        self.make("forgetting a name of", Path::new("/"), call)
    }
    fn evictions(&self) -> Option<&dyn EvictionTable> {
        self.tree.evictions()
    }
    fn write_state(&self, path: &Path) -> io::Result<WriteState> {
        let call = || self.tree.write_state(path);
        self.make("asking for writers of", path, call)
    }
    fn laminate(&self, path: &Path) -> io::Result<()> {
        let call = || self.tree.laminate(path);
        self.make("laminating", path, call)
    }
    fn open(&self, path: &Path) -> io::Result<Self::File> {
        self.open_by("opening", path, T::open)
    }
    fn stat(&self, file: &Self::File) -> io::Result<Stat> {
        let call = || self.tree.stat(&file.file);
        self.make("looking for", &file.path, call)
    }
    fn read_at(&self, file: &Self::File, offset: u64, bytes: &mut [u8]) -> io::Result<usize> {
        let call = || self.tree.read_at(&file.file, offset, bytes);
        self.make("reading", &file.path, call)
    }
    fn next_data(&self, file: &Self::File, within: Range<u64>) -> io::Result<Option<Range<u64>>> {
        let call = || self.tree.next_data(&file.file, within);
        self.make("reading", &file.path, call)
    }
    fn create_part(&self, path: &Path, mode: u32) -> io::Result<Self::File> {
        self.open_by("creating", path, |tree, path| tree.create_part(path, mode))
    }
    fn open_part(&self, path: &Path) -> io::Result<Self::File> {
        self.open_by("opening", path, T::open_part)
    }
    fn lock_part(&self, file: &Self::File) {
        let call = || self.tree.lock_part(&file.file);
        self.watch.watch("locking", &file.path, None, call);
    }
    fn stripe_of(&self, part: &Self::File) -> StripeSize {
        let call = || self.tree.stripe_of(&part.file);
        let set = self.stripe;
        set.unwrap_or_else(|| self.watch.watch("looking for", &part.path, None, call))
    }
    fn write_at(&self, file: &Self::File, offset: u64, bytes: &[u8]) -> io::Result<()> {
        // A write that waits here does not hang.
        self.limit.await_turn(bytes.len() as u64);
        let call = || self.tree.write_at(&file.file, offset, bytes);
        self.make("writing", &file.path, call)
    }
    fn set_size(&self, file: &Self::File, size: u64) -> io::Result<()> {
        let call = || self.tree.set_size(&file.file, size);
        self.make("writing", &file.path, call)
    }
    fn begin_sync(&self, file: &Self::File) {
        let call = || self.tree.begin_sync(&file.file);
        self.watch.watch("syncing", &file.path, None, call);
    }
    fn sync(&self, file: &Self::File) -> io::Result<()> {
        let call = || self.tree.sync(&file.file);
        self.make("syncing", &file.path, call)
    }
    fn set_mode(&self, file: &Self::File, mode: u32) -> io::Result<()> {
        let call = || self.tree.set_mode(&file.file, mode);
        self.make("setting attributes of", &file.path, call)
    }
    fn set_group(&self, file: &Self::File, gid: u32) -> io::Result<()> {
        let call = || self.tree.set_group(&file.file, gid);
        self.make("setting attributes of", &file.path, call)
    }
    fn set_times(&self, file: &Self::File, kept: &KeptAttributes) -> io::Result<()> {
        let call = || self.tree.set_times(&file.file, kept);
        self.make("setting attributes of", &file.path, call)
    }
    fn set_attributes(&self, path: &Path, kind: NodeKind, kept: &KeptAttributes) -> io::Result<()> {
        let call = || self.tree.set_attributes(path, kind, kept);
        self.make("setting attributes of", path, call)
    }
    fn set_xattr(&self, path: &Path, name: &OsStr, value: &[u8]) -> io::Result<()> {
        let call = || self.tree.set_xattr(path, name, value);
        self.make("setting attributes of", path, call)
    }
    fn remove_xattr(&self, path: &Path, name: &OsStr) -> io::Result<()> {
        let call = || self.tree.remove_xattr(path, name);
        self.make("removing attributes of", path, call)
    }
    fn make_directory(&self, path: &Path, mode: u32) -> io::Result<()> {
        let call = || self.tree.make_directory(path, mode);
        self.make("creating", path, call)
    }
    fn make_symlink(&self, target: &Path, path: &Path) -> io::Result<()> {
        let call = || self.tree.make_symlink(target, path);
        self.make("creating", path, call)
    }
    fn make_link(&self, existing: &Path, path: &Path) -> io::Result<()> {
        let call = || self.tree.make_link(existing, path);
        self.make_for_two("creating", [path, existing], call)
    }
    fn rename(&self, from: &Path, to: &Path, replace: bool) -> io::Result<()> {
        let call = || self.tree.rename(from, to, replace);
        self.make_for_two("naming", [to, from], call)
    }
    fn exchange(&self, one: &Path, other: &Path) -> io::Result<()> {
        let call = || self.tree.exchange(one, other);
        self.make_for_two("renaming", [one, other], call)
    }
    fn remove(&self, path: &Path) -> io::Result<()> {
        self.make("removing", path, || self.tree.remove(path))
    }
    fn remove_directory(&self, path: &Path) -> io::Result<()> {
        let call = || self.tree.remove_directory(path);
        self.make("removing", path, call)
    }
    fn sync_directory(&self, path: &Path) -> io::Result<()> {
        let call = || self.tree.sync_directory(path);
        self.make("syncing", path, call)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_is_known_while_it_is_under_way() {
        let watch = CallWatch::default();
        assert_eq!(watch.time_without_return(), Duration::ZERO);
        watch.watch("naming", Path::new("/a"), Some(Path::new("/z")), || {
            watch.watch("writing", Path::new("/b"), None, || {
                let slow = watch.slow_calls(Duration::ZERO);
                let calls: Vec<_> = slow.iter().map(|call| (&*call.step, &*call.path)).collect();
                let expected = [("naming", Path::new("/a")), ("writing", Path::new("/b"))];
                assert_eq!(calls, expected);
                assert_eq!(watch.slow_calls(Duration::from_secs(3600)), []);
                let paths = ["/a", "/z", "/b"].map(PathBuf::from);
                assert_eq!(watch.paths_under_way(), paths);
                assert!(!watch.has_returned());
                std::thread::sleep(Duration::from_millis(20));
                assert!(watch.time_without_return() >= Duration::from_millis(20));
            });
            // The inner one has returned.
            let before = watch.calls().last_return.unwrap();
            assert!(watch.time_without_return() <= before.elapsed());
        });
        assert_eq!(watch.time_without_return(), Duration::ZERO);
        assert_eq!(watch.slow_calls(Duration::ZERO), []);
    }

    #[test]
    fn a_path_is_avoided_together_with_its_part() {
        let tree = WatchedTree::new(crate::DirectoryTree);
        let dir = tempfile::tempdir().unwrap();
        let (file, other) = (dir.path().join("file"), dir.path().join("other"));
        let part = part_of(&file);
        for hung in [&file, &part] {
            tree.avoided().set([(hung.clone(), "it hangs".to_owned())]);
            for path in [&file, &part] {
                let refused = tree.look_up(path).unwrap_err();
                assert_eq!(refused.kind(), io::ErrorKind::TimedOut);
                assert_eq!(refused.to_string(), "it hangs");
                assert!(tree.create_part(path, 0o600).is_err() && !path.exists());
                assert!(tree.rename(&other, path, true).is_err());
                assert!(tree.rename(path, &other, true).is_err());
            }
            assert!(tree.look_up(&other).unwrap().is_none());
        }
        tree.avoided().set([]);
        assert!(tree.look_up(&file).unwrap().is_none());
    }
}
