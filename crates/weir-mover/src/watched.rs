//! A tree that keeps a record of the calls under way: a parallel file system (PFS) may hang, and its calls cannot be
//! cancelled. Writes wait for a limit on their rate.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use weir_client::process::mounted::{Cover, HistoryPosition, Whiteout, WriteState};
use weir_client::types::{Stat, Time};

use crate::limit::RateLimit;
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
}

#[derive(Debug)]
struct PendingCall {
    step: &'static str,
    path: PathBuf,
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

    fn watch<T>(&self, step: &'static str, path: &Path, call: impl FnOnce() -> T) -> T {
        let call_number = {
            let mut calls = self.calls();
            let number = calls.next;
            calls.next += 1;
            let pending = PendingCall {
                step,
                path: path.to_owned(),
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

    /// True if a call for this path has been under way for longer than `than`.
    fn is_slow(&self, path: &Path, than: Duration) -> bool {
        let calls = self.calls();
        let mut pending = calls.pending.values();
        pending.any(|call| call.path == path && call.began.elapsed() > than)
    }

    /// The time for which calls have been under way and none has returned; zero if none is under way.
    pub fn time_without_return(&self) -> Duration {
        let calls = self.calls();
        let oldest = calls.pending.values().next();
        let since =
            oldest.map(|oldest| calls.last_return.unwrap_or(oldest.began).max(oldest.began));
        since.map_or(Duration::ZERO, |since| since.elapsed())
    }
}

/// A tree whose calls are watched.
#[derive(Debug)]
pub struct WatchedTree<T> {
    tree: T,
    watch: Arc<CallWatch>,
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
}

impl<T: FileTree> WatchedTree<T> {
    fn open_by<F>(
        &self,
        step: &'static str,
        path: &Path,
        open: impl FnOnce(&T, &Path) -> io::Result<F>,
    ) -> io::Result<WatchedFile<F>> {
        let file = self.watch.watch(step, path, || open(&self.tree, path))?;
        let path = path.to_owned();
        Ok(WatchedFile { file, path })
    }
}

impl<T: FileTree> FileTree for WatchedTree<T> {
    type File = WatchedFile<T::File>;

    fn hangs_at(&self, path: &Path) -> bool {
        self.watch.is_slow(path, self.patience)
    }
    fn look_up(&self, path: &Path) -> io::Result<Option<Stat>> {
        let call = || self.tree.look_up(path);
        self.watch.watch("looking for", path, call)
    }
    fn list(&self, path: &Path) -> io::Result<Vec<OsString>> {
        self.watch.watch("listing", path, || self.tree.list(path))
    }
    fn read_link(&self, path: &Path) -> io::Result<PathBuf> {
        let call = || self.tree.read_link(path);
        self.watch.watch("reading", path, call)
    }
    fn xattrs(&self, path: &Path) -> io::Result<Vec<(OsString, Vec<u8>)>> {
        let call = || self.tree.xattrs(path);
        self.watch.watch("reading the attributes of", path, call)
    }
    fn cover_of(&self, path: &Path) -> io::Result<Cover> {
        let call = || self.tree.cover_of(path);
        self.watch.watch("looking for", path, call)
    }
    fn cover(&self, target: &Path, path: &Path, mode: u32) -> io::Result<()> {
        let call = || self.tree.cover(target, path, mode);
        self.watch.watch("looking for", path, call)
    }
    fn note_covered_mode(&self, path: &Path, mode: u32) -> io::Result<()> {
        let call = || self.tree.note_covered_mode(path, mode);
        self.watch.watch("looking for", path, call)
    }
    fn whiteouts(&self) -> io::Result<Vec<Whiteout>> {
        let call = || self.tree.whiteouts();
        self.watch
            .watch("listing removed names of", Path::new("/"), call)
    }
    fn now(&self) -> Duration {
        self.tree.now()
    }
    fn removed_at(&self, whiteout: &Whiteout) -> io::Result<Option<Time>> {
        let call = || self.tree.removed_at(whiteout);
        self.watch
            .watch("looking for a name of", Path::new("/"), call)
    }
    fn holder_of(&self, path: &Path, range: Range<u64>) -> io::Result<Option<u16>> {
        let call = || self.tree.holder_of(path, range);
        self.watch.watch("looking for", path, call)
    }
    fn name_history(&self, known: &mut Vec<HistoryPosition>) -> io::Result<TreeHistory> {
        let call = || self.tree.name_history(known);
        self.watch
            .watch("asking for changed names of", Path::new("/"), call)
    }
    fn forget(&self, whiteout: &Whiteout) -> io::Result<()> {
        let call = || self.tree.forget(whiteout);
        self.watch
            .watch("forgetting a name of", Path::new("/"), call)
    }
    fn evictions(&self) -> Option<&dyn EvictionTable> {
        self.tree.evictions()
    }
    fn write_state(&self, path: &Path) -> io::Result<WriteState> {
        let call = || self.tree.write_state(path);
        self.watch.watch("asking for writers of", path, call)
    }
    fn laminate(&self, path: &Path) -> io::Result<()> {
        let call = || self.tree.laminate(path);
        self.watch.watch("laminating", path, call)
    }
    fn open(&self, path: &Path) -> io::Result<Self::File> {
        self.open_by("opening", path, T::open)
    }
    fn stat(&self, file: &Self::File) -> io::Result<Stat> {
        let call = || self.tree.stat(&file.file);
        self.watch.watch("looking for", &file.path, call)
    }
    fn read_at(&self, file: &Self::File, offset: u64, bytes: &mut [u8]) -> io::Result<usize> {
        let call = || self.tree.read_at(&file.file, offset, bytes);
        self.watch.watch("reading", &file.path, call)
    }
    fn next_data(&self, file: &Self::File, within: Range<u64>) -> io::Result<Option<Range<u64>>> {
        let call = || self.tree.next_data(&file.file, within);
        self.watch.watch("reading", &file.path, call)
    }
    fn create_part(&self, path: &Path, mode: u32) -> io::Result<Self::File> {
        self.open_by("creating", path, |tree, path| tree.create_part(path, mode))
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
        self.watch.watch("writing", &file.path, call)
    }
    fn set_size(&self, file: &Self::File, size: u64) -> io::Result<()> {
        let call = || self.tree.set_size(&file.file, size);
        self.watch.watch("writing", &file.path, call)
    }
    fn begin_sync(&self, file: &Self::File) {
        let call = || self.tree.begin_sync(&file.file);
        self.watch.watch("syncing", &file.path, call);
    }
    fn sync(&self, file: &Self::File) -> io::Result<()> {
        let call = || self.tree.sync(&file.file);
        self.watch.watch("syncing", &file.path, call)
    }
    fn set_mode(&self, file: &Self::File, mode: u32) -> io::Result<()> {
        let call = || self.tree.set_mode(&file.file, mode);
        self.watch.watch("setting attributes of", &file.path, call)
    }
    fn set_group(&self, file: &Self::File, gid: u32) -> io::Result<()> {
        let call = || self.tree.set_group(&file.file, gid);
        self.watch.watch("setting attributes of", &file.path, call)
    }
    fn set_times(&self, file: &Self::File, kept: &KeptAttributes) -> io::Result<()> {
        let call = || self.tree.set_times(&file.file, kept);
        self.watch.watch("setting attributes of", &file.path, call)
    }
    fn set_attributes(&self, path: &Path, kind: NodeKind, kept: &KeptAttributes) -> io::Result<()> {
        let call = || self.tree.set_attributes(path, kind, kept);
        self.watch.watch("setting attributes of", path, call)
    }
    fn set_xattr(&self, path: &Path, name: &OsStr, value: &[u8]) -> io::Result<()> {
        let call = || self.tree.set_xattr(path, name, value);
        self.watch.watch("setting attributes of", path, call)
    }
    fn remove_xattr(&self, path: &Path, name: &OsStr) -> io::Result<()> {
        let call = || self.tree.remove_xattr(path, name);
        self.watch.watch("removing attributes of", path, call)
    }
    fn make_directory(&self, path: &Path, mode: u32) -> io::Result<()> {
        let call = || self.tree.make_directory(path, mode);
        self.watch.watch("creating", path, call)
    }
    fn make_symlink(&self, target: &Path, path: &Path) -> io::Result<()> {
        let call = || self.tree.make_symlink(target, path);
        self.watch.watch("creating", path, call)
    }
    fn make_link(&self, existing: &Path, path: &Path) -> io::Result<()> {
        let call = || self.tree.make_link(existing, path);
        self.watch.watch("creating", path, call)
    }
    fn rename(&self, from: &Path, to: &Path, replace: bool) -> io::Result<()> {
        let call = || self.tree.rename(from, to, replace);
        self.watch.watch("naming", to, call)
    }
    fn exchange(&self, one: &Path, other: &Path) -> io::Result<()> {
        self.watch
            .watch("renaming", one, || self.tree.exchange(one, other))
    }
    fn remove(&self, path: &Path) -> io::Result<()> {
        self.watch
            .watch("removing", path, || self.tree.remove(path))
    }
    fn remove_directory(&self, path: &Path) -> io::Result<()> {
        let call = || self.tree.remove_directory(path);
        self.watch.watch("removing", path, call)
    }
    fn sync_directory(&self, path: &Path) -> io::Result<()> {
        let call = || self.tree.sync_directory(path);
        self.watch.watch("syncing", path, call)
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
}
