//! A tree that keeps a record of the calls under way: a parallel file system (PFS) may hang, and its calls cannot be
//! cancelled. Writes wait for a limit on their rate. Paths for which a call of an earlier process hangs are avoided: each
//! call for one fails at once.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ffi::{OsStr, OsString};
use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, RwLock};
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
pub struct CallWatch {
    calls: Mutex<WatchedCalls>,
    /// Calls may begin again.
    opened: Condvar,
}

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
    /// The other path that it is for.
    other: Option<PathBuf>,
    changes_names: bool,
    began: Instant,
}

impl PendingCall {
    fn slow_call(&self) -> SlowCall {
        SlowCall {
            step: self.step.to_owned(),
            path: self.path.clone(),
            seconds: self.began.elapsed().as_secs_f64(),
        }
    }
}

/// A call that is under way.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct CallUnderWay {
    /// The call, with its path.
    #[serde(flatten)]
    pub call: SlowCall,
    /// The other paths that it is for: one at most.
    #[serde(flatten, with = "crate::json_path::others")]
    pub others: Vec<PathBuf>,
    /// It makes, changes or removes names. Linux holds up other such calls in the same directory meanwhile.
    pub changes_names: bool,
}

impl CallUnderWay {
    /// The paths that it is for.
    pub fn paths(&self) -> impl Iterator<Item = &PathBuf> {
        std::iter::once(&self.call.path).chain(&self.others)
    }
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
        self.calls.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn watch<T>(&self, step: &'static str, path: &Path, call: impl FnOnce() -> T) -> T {
        let pending = PendingCall {
            step,
            path: path.to_owned(),
            other: None,
            changes_names: false,
            began: Instant::now(),
        };
        self.watch_call(pending, call)
    }

    fn watch_call<T>(&self, pending: PendingCall, call: impl FnOnce() -> T) -> T {
        let call_number = {
            let opened = |calls: &mut WatchedCalls| calls.is_closed;
            let waited = self.opened.wait_while(self.calls(), opened);
            let mut calls = waited.unwrap_or_else(PoisonError::into_inner);
            let number = calls.next;
            calls.next += 1;
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
        slow.map(PendingCall::slow_call).collect()
    }

    /// The calls that are under way.
    pub fn calls_under_way(&self) -> Vec<CallUnderWay> {
        let calls = self.calls();
        let under_way = |call: &PendingCall| CallUnderWay {
            call: call.slow_call(),
            others: call.other.iter().cloned().collect(),
            changes_names: call.changes_names,
        };
        calls.pending.values().map(under_way).collect()
    }

    /// Lets no call begin: the threads that would make one wait for [`CallWatch::open`], or the end of the process.
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

    /// Lets calls begin again.
    pub fn open(&self) {
        self.calls().is_closed = false;
        self.opened.notify_all();
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

/// Paths for which calls fail at once, each with the reason.
#[derive(Debug, Default)]
pub struct AvoidedPaths(RwLock<AvoidedSet>);

#[derive(Debug, Default)]
struct AvoidedSet {
    nodes: HashMap<PathBuf, String>,
    /// With all that is below them.
    trees: HashMap<PathBuf, String>,
}

impl AvoidedSet {
    fn reason(&self, path: &Path) -> Option<&String> {
        if self.nodes.is_empty() {
            return None;
        }
        let node = self.nodes.get(path);
        let node = node.or_else(|| self.nodes.get(&part_of(path)));
        let mut above = path.ancestors();
        node.or_else(|| above.find_map(|above| self.trees.get(above)))
    }
}

impl AvoidedPaths {
    /// Avoids the paths of calls that hang, and no others. A path and its part (`publish`) are avoided together. A call that
    /// changes names may still move a directory: all below is avoided, too. If another call hangs in its directory, or for
    /// that, the directory is avoided: Linux keeps its lock.
    pub fn set<'c>(&self, hung: impl IntoIterator<Item = (&'c CallUnderWay, String)>) {
        let mut avoided = AvoidedSet::default();
        // The calls in each directory, or for it, with a reason; and if one of them changes names there.
        let mut in_directory: HashMap<PathBuf, (u32, bool, String)> = HashMap::new();
        for (call, reason) in hung {
            for path in call.paths() {
                avoided.nodes.insert(part_of(path), reason.clone());
                avoided.nodes.insert(path.clone(), reason.clone());
                if call.changes_names {
                    avoided.trees.insert(path.clone(), reason.clone());
                }
            }
            let parents: BTreeSet<&Path> = call.paths().filter_map(|path| path.parent()).collect();
            let own = call.paths().map(PathBuf::as_path);
            for dir in own.chain(parents.iter().copied()).collect::<BTreeSet<_>>() {
                let known = in_directory.entry(dir.to_owned());
                let (calls, changes_names, _) = known.or_insert((0, false, reason.clone()));
                *calls += 1;
                *changes_names |= call.changes_names && parents.contains(dir);
            }
        }
        for (dir, (calls, changes_names, reason)) in in_directory {
            if calls > 1 && changes_names {
                avoided.trees.insert(dir, reason);
            }
        }
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = avoided;
    }

    /// True if calls for a path fail.
    pub fn has(&self, path: &Path) -> bool {
        self.check(path).is_err()
    }

    fn check(&self, path: &Path) -> io::Result<()> {
        let avoided = self.0.read().unwrap_or_else(PoisonError::into_inner);
        avoided.reason(path).map_or(Ok(()), |reason| {
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
        self.watch.watch(step, path, call)
    }

    /// The same for a call that changes a name, or two.
    fn change_names<R>(
        &self,
        step: &'static str,
        path: &Path,
        other: Option<&Path>,
        call: impl FnOnce() -> io::Result<R>,
    ) -> io::Result<R> {
        self.avoided.check(path)?;
        other.map_or(Ok(()), |other| self.avoided.check(other))?;
        let pending = PendingCall {
            step,
            path: path.to_owned(),
            other: other.map(Path::to_owned),
            changes_names: true,
            began: Instant::now(),
        };
        self.watch.watch_call(pending, call)
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
        let call = || self.tree.create_part(path, mode);
        let file = self.change_names("creating", path, None, call)?;
        let path = path.to_owned();
        Ok(WatchedFile { file, path })
    }
    fn open_part(&self, path: &Path) -> io::Result<Self::File> {
        self.open_by("opening", path, T::open_part)
    }
    fn lock_part(&self, file: &Self::File) {
        let call = || self.tree.lock_part(&file.file);
        self.watch.watch("locking", &file.path, call);
    }
    fn stripe_of(&self, part: &Self::File) -> StripeSize {
        let call = || self.tree.stripe_of(&part.file);
        let set = self.stripe;
        set.unwrap_or_else(|| self.watch.watch("looking for", &part.path, call))
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
        self.watch.watch("syncing", &file.path, call);
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
        self.change_names("creating", path, None, call)
    }
    fn make_symlink(&self, target: &Path, path: &Path) -> io::Result<()> {
        let call = || self.tree.make_symlink(target, path);
        self.change_names("creating", path, None, call)
    }
    fn make_link(&self, existing: &Path, path: &Path) -> io::Result<()> {
        let call = || self.tree.make_link(existing, path);
        self.change_names("creating", path, Some(existing), call)
    }
    fn rename(&self, from: &Path, to: &Path, replace: bool) -> io::Result<()> {
        let call = || self.tree.rename(from, to, replace);
        self.change_names("naming", to, Some(from), call)
    }
    fn exchange(&self, one: &Path, other: &Path) -> io::Result<()> {
        let call = || self.tree.exchange(one, other);
        self.change_names("renaming", one, Some(other), call)
    }
    fn remove(&self, path: &Path) -> io::Result<()> {
        let call = || self.tree.remove(path);
        self.change_names("removing", path, None, call)
    }
    fn remove_directory(&self, path: &Path) -> io::Result<()> {
        let call = || self.tree.remove_directory(path);
        self.change_names("removing", path, None, call)
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
        watch.watch("naming", Path::new("/a"), || {
            watch.watch("writing", Path::new("/b"), || {
                let slow = watch.slow_calls(Duration::ZERO);
                let calls: Vec<_> = slow.iter().map(|call| (&*call.step, &*call.path)).collect();
                let expected = [("naming", Path::new("/a")), ("writing", Path::new("/b"))];
                assert_eq!(calls, expected);
                assert_eq!(watch.slow_calls(Duration::from_secs(3600)), []);
                assert_eq!(watch.calls_under_way().len(), 2);
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

    fn hung_call(path: &Path, changes_names: bool) -> CallUnderWay {
        CallUnderWay {
            call: SlowCall {
                step: "naming".to_owned(),
                path: path.to_owned(),
                seconds: 0.0,
            },
            others: Vec::new(),
            changes_names,
        }
    }

    #[test]
    fn a_path_is_avoided_together_with_its_part() {
        let tree = WatchedTree::new(crate::DirectoryTree);
        let dir = tempfile::tempdir().unwrap();
        let (file, other) = (dir.path().join("file"), dir.path().join("other"));
        let part = part_of(&file);
        for hung in [&file, &part] {
            let hung = hung_call(hung, false);
            tree.avoided().set([(&hung, "it hangs".to_owned())]);
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

    #[test]
    fn a_name_that_may_still_change_is_avoided_with_all_below() {
        let avoided = AvoidedPaths::default();
        let set = |hung: &[CallUnderWay]| {
            avoided.set(hung.iter().map(|call| (call, String::new())));
        };
        let (dir, below) = (Path::new("/pfs/d"), Path::new("/pfs/d/e/x"));
        set(&[hung_call(dir, false)]);
        assert!(avoided.has(dir) && !avoided.has(below));
        set(&[hung_call(dir, true)]);
        assert!(avoided.has(dir) && avoided.has(below) && !avoided.has(Path::new("/pfs/x")));
        // Linux holds the lock of the directory of such a call.
        set(&[hung_call(dir, true), hung_call(Path::new("/pfs/f"), true)]);
        assert!(avoided.has(Path::new("/pfs/x")) && !avoided.has(Path::new("/other")));
        // A look-up or a listing waits for it, too.
        for waiting in ["/pfs/f", "/pfs"] {
            set(&[hung_call(dir, true), hung_call(Path::new(waiting), false)]);
            assert!(avoided.has(Path::new("/pfs/x")), "{waiting}");
        }
        set(&[hung_call(dir, false), hung_call(Path::new("/pfs/f"), false)]);
        assert!(!avoided.has(Path::new("/pfs/x")));
        let mut renamed = hung_call(dir, true);
        renamed.others = vec!["/pfs/part".into()];
        set(&[renamed]);
        assert!(!avoided.has(Path::new("/pfs/x")));
    }

    #[test]
    fn a_closed_watch_lets_no_call_begin_until_it_is_opened() {
        let watch = CallWatch::default();
        assert!(!watch.close_if_hung(Duration::from_nanos(1)));
        watch.close();
        std::thread::scope(|scope| {
            let call = scope.spawn(|| watch.watch("naming", Path::new("/a"), || ()));
            std::thread::sleep(Duration::from_millis(20));
            assert!(!call.is_finished() && watch.calls_under_way().is_empty());
            watch.open();
        });
        assert_eq!(watch.slow_calls(Duration::ZERO), []);
    }
}
