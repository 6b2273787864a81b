//! The calls in which processes that drain hang, and which they have left behind.
//!
//! A call of a parallel file system (PFS) may hang for hours, for one file only: as if one of its servers were away. Its
//! thread cannot be ended. So the process notes the paths of its calls in a file of the run directory, locks this file, and
//! ends; another process goes on ([`succession`](super::succession)). The kernel keeps the lock until the last of the calls
//! has returned. Until then the call may still have its effect, so other processes avoid these paths: calls for them fail at
//! once.
//!
//! Some file systems end a call with its process, though the server is still away. So if the lock is free at once, the paths
//! rest for some time.
//!
//! The file is JSON. Those that cannot be read are ignored.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{self, Write};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rustix::fs::{flock, FlockOperation};
use serde::{Deserialize, Serialize};
use weir_mover::{AvoidedPaths, CallUnderWay, CallWatch, SlowCall};

use super::command::in_words_slow;

/// The beginning of the name of a file; the number of the process follows.
const NAME: &str = "hung-";
/// The longest file that is read, bytes.
const MOST_BYTES: u64 = 4 << 20;
/// The interval between two checks for calls that have returned.
const LOOK: Duration = Duration::from_millis(500);
/// A lock that is kept for this time is that of a call which does not end with its process.
const END_TIME_S: f64 = 2.0;
/// A request for a look ends a rest that has taken this time.
const LEAST_REST_S: f64 = 60.0;

/// The content of a file.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct HungFile {
    /// The time at which the process left, seconds since 1970.
    left_s: f64,
    /// The time for which the paths rest, seconds.
    rest_s: f64,
    /// The command had ended.
    is_of_end: bool,
    calls: Vec<CallUnderWay>,
}

impl HungFile {
    fn age_s(&self) -> f64 {
        seconds_since_1970() - self.left_s
    }

    /// True if the rest time has not passed; in the end it does not pass. A clock that was set back ends it.
    fn is_resting(&self) -> bool {
        let rest_s = match self.is_of_end && self.rest_s > 0.0 {
            true => f64::INFINITY,
            false => self.rest_s,
        };
        (0.0..rest_s).contains(&self.age_s())
    }

    /// Notes that the file is locked: if the process has left long ago, its calls do not end with it, so that no rest is
    /// needed.
    fn note_lock(&mut self) {
        if self.age_s() > END_TIME_S {
            self.rest_s = 0.0;
        }
    }

    /// The calls, with their times up to now.
    fn calls_now(&self) -> impl Iterator<Item = SlowCall> + '_ {
        let age = self.age_s().max(0.0);
        self.calls.iter().map(move |hung| SlowCall {
            seconds: hung.call.seconds + age,
            ..hung.call.clone()
        })
    }
}

/// The calls that processes of an instance have left behind.
#[derive(Debug)]
pub struct HungCalls {
    run_dir: PathBuf,
    /// The directory that is drained to; calls elsewhere are those of other drains.
    target: PathBuf,
    avoided: Arc<AvoidedPaths>,
    /// Paths rest. Not in a drain that begins later: somebody asks for it, and the target may be back.
    has_rests: bool,
    /// By the path of the file.
    found: Mutex<BTreeMap<PathBuf, HungFile>>,
}

impl HungCalls {
    /// Makes a tree avoid the paths of these calls, as long as one of them may still have its effect, or may hang again.
    /// `is_successor`: the drain that has left them goes on.
    pub fn avoid(
        run_dir: &Path,
        target: &Path,
        avoided: Arc<AvoidedPaths>,
        is_successor: bool,
    ) -> io::Result<Arc<HungCalls>> {
        let hung = Arc::new(HungCalls {
            run_dir: run_dir.to_owned(),
            target: target.to_owned(),
            avoided,
            has_rests: is_successor,
            found: Mutex::default(),
        });
        if hung.find_again() {
            let hung = Arc::clone(&hung);
            std::thread::Builder::new().spawn(move || {
                while hung.find_again() {
                    std::thread::sleep(LOOK);
                }
            })?;
        }
        Ok(hung)
    }

    fn found(&self) -> MutexGuard<'_, BTreeMap<PathBuf, HungFile>> {
        self.found.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Avoids the paths of the files that count now, and removes the others. False: there are none.
    fn find_again(&self) -> bool {
        let mut known = self.found();
        let mut found = BTreeMap::new();
        for path in files_in(&self.run_dir) {
            let Some(mut file) = known.remove(&path).or_else(|| read(&path)) else {
                continue;
            };
            let is_locked = is_locked(&path);
            if is_locked {
                file.note_lock();
            }
            let is_below = |hung: &CallUnderWay| hung.call.path.starts_with(&self.target);
            let is_own = file.calls.iter().any(is_below);
            let is_resting = file.is_resting() && (self.has_rests || !is_own);
            if !is_locked && !is_resting {
                let _ = fs::remove_file(&path);
            } else if is_own {
                found.insert(path, file);
            }
        }
        let hung = found.values().flat_map(|file| &file.calls);
        self.avoided
            .set(hung.map(|hung| (hung, in_words_slow(&hung.call))));
        *known = found;
        !known.is_empty()
    }

    /// Ends the rests that began before the command ended, since it has ended now.
    pub fn end_rests(&self) {
        self.end_rests_of(|file| !file.is_of_end);
    }

    /// Ends the rests that have taken some time, since somebody asks for a look.
    pub fn end_long_rests(&self) {
        self.end_rests_of(|file| file.age_s() > LEAST_REST_S);
    }

    fn end_rests_of(&self, is_chosen: impl Fn(&HungFile) -> bool) {
        let mut found = self.found();
        let chosen = found.values_mut().filter(|file| is_chosen(file));
        chosen.for_each(|file| file.rest_s = 0.0);
        let is_any = !found.is_empty();
        drop(found);
        if is_any {
            self.find_again();
        }
    }

    /// True if calls for a path of the target fail at once.
    pub fn avoids(&self, path: &Path) -> bool {
        self.avoided.has(path)
    }

    /// The calls whose paths are avoided.
    pub fn calls(&self) -> Vec<SlowCall> {
        let found = self.found();
        found.values().flat_map(HungFile::calls_now).collect()
    }

    /// The number of processes that have left calls which have not returned.
    pub fn hanging_processes(&self) -> usize {
        self.find_again();
        self.found().keys().filter(|path| is_locked(path)).count()
    }

    /// The number of processes whose paths are avoided, and of those among them that left after the command had ended.
    pub fn count_left(&self) -> (usize, usize) {
        self.find_again();
        let found = self.found();
        let of_end = found.values().filter(|file| file.is_of_end).count();
        (found.len(), of_end)
    }

    /// Notes the calls of this process that are under way. The file stays locked while the returned one is open.
    /// `is_of_end`: the command has ended.
    pub fn note(&self, watch: &CallWatch, rest: Duration, is_of_end: bool) -> io::Result<File> {
        let noted = HungFile {
            left_s: seconds_since_1970(),
            rest_s: rest.as_secs_f64(),
            is_of_end,
            calls: watch.calls_under_way(),
        };
        // Locked before it has its name, so that nobody finds it without the lock.
        let part = self.run_dir.join(format!(".{NAME}{}", std::process::id()));
        let mut file = File::create(&part)?;
        flock(&file, FlockOperation::NonBlockingLockExclusive)?;
        file.write_all(&serde_json::to_vec(&noted)?)?;
        fs::rename(&part, self.own_note())?;
        Ok(file)
    }

    fn own_note(&self) -> PathBuf {
        self.run_dir.join(format!("{NAME}{}", std::process::id()))
    }

    /// Takes the note of this process back.
    pub fn take_back(&self) {
        let _ = fs::remove_file(self.own_note());
    }
}

fn files_in(run_dir: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(run_dir).into_iter().flatten().flatten();
    let is_noted = |name: &OsString| name.as_bytes().starts_with(NAME.as_bytes());
    let noted = entries.filter(|entry| is_noted(&entry.file_name()));
    noted.map(|entry| entry.path()).collect()
}

fn read(path: &Path) -> Option<HungFile> {
    let is_small = fs::metadata(path).is_ok_and(|found| found.len() <= MOST_BYTES);
    let bytes = is_small.then(|| fs::read(path).ok()).flatten()?;
    serde_json::from_slice(&bytes).ok()
}

/// True if the process that made a file, or a thread of it, is still there.
fn is_locked(path: &Path) -> bool {
    let locked = File::open(path).map(|file| flock(&file, FlockOperation::NonBlockingLockShared));
    matches!(locked, Ok(Err(rustix::io::Errno::WOULDBLOCK)))
}

fn seconds_since_1970() -> f64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    now.unwrap_or_default().as_secs_f64()
}

#[cfg(test)]
mod tests {
    use std::os::unix::ffi::OsStringExt;

    use super::*;
    use weir_mover::tree::FileTree as _;
    use weir_mover::{DirectoryTree, WatchedTree};

    #[test]
    fn paths_are_avoided_until_the_lock_and_the_rest_time_have_ended() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("file");
        let left = WatchedTree::new(DirectoryTree);
        let hung = HungCalls::avoid(dir.path(), dir.path(), left.avoided(), true).unwrap();
        let note = |rest| hung.note(&left.watch(), rest, false).unwrap();
        // The note of a process without calls names no path.
        drop(note(Duration::ZERO));
        assert_eq!(hung.hanging_processes(), 0);
        let noted = HungFile {
            left_s: seconds_since_1970(),
            rest_s: 0.0,
            is_of_end: true,
            calls: vec![CallUnderWay {
                call: SlowCall {
                    step: "writing".to_owned(),
                    path: file.clone(),
                    seconds: 1.0,
                },
                others: vec![OsString::from_vec(b"/\xff".to_vec()).into()],
                changes_names: false,
            }],
        };
        let path = dir.path().join("hung-1");
        fs::write(&path, serde_json::to_vec(&noted).unwrap()).unwrap();
        fs::write(dir.path().join("hung-2"), b"{").unwrap();
        let lock = File::open(&path).unwrap();
        flock(&lock, FlockOperation::LockExclusive).unwrap();
        let tree = WatchedTree::new(DirectoryTree);
        let hung = HungCalls::avoid(dir.path(), dir.path(), tree.avoided(), true).unwrap();
        assert_eq!(hung.hanging_processes(), 1);
        assert!(tree.look_up(&file).is_err());
        let other: PathBuf = OsString::from_vec(b"/\xff".to_vec()).into();
        assert!(hung.avoids(&other) && !hung.avoids(Path::new("/x")));
        // Another drain has nothing to do with it.
        let elsewhere =
            HungCalls::avoid(dir.path(), Path::new("/pfs"), left.avoided(), true).unwrap();
        assert_eq!(
            (elsewhere.hanging_processes(), elsewhere.calls()),
            (0, Vec::new())
        );
        drop(lock);
        weir_cluster::guard::wait_until("the path is not avoided", || tree.look_up(&file).is_ok());
        assert!(!path.exists());
        let resting = HungFile {
            rest_s: 3600.0,
            ..noted
        };
        fs::write(&path, serde_json::to_vec(&resting).unwrap()).unwrap();
        let tree = WatchedTree::new(DirectoryTree);
        let hung = HungCalls::avoid(dir.path(), dir.path(), tree.avoided(), true).unwrap();
        hung.end_rests();
        hung.end_long_rests();
        assert!(tree.look_up(&file).is_err() && path.exists());
        let later = WatchedTree::new(DirectoryTree);
        HungCalls::avoid(dir.path(), Path::new("/pfs"), later.avoided(), true).unwrap();
        assert!(path.exists());
        hung.end_rests_of(|file| file.is_of_end);
        assert!(tree.look_up(&file).is_ok() && !path.exists());
        fs::write(&path, serde_json::to_vec(&resting).unwrap()).unwrap();
        HungCalls::avoid(dir.path(), dir.path(), later.avoided(), false).unwrap();
        assert!(later.look_up(&file).is_ok() && !path.exists());
        let mut of_another_clock = HungFile {
            left_s: seconds_since_1970() + 7200.0,
            ..resting
        };
        assert!(!of_another_clock.is_resting());
        of_another_clock.left_s -= 7300.0;
        assert!(of_another_clock.is_resting());
        of_another_clock.note_lock();
        assert!(!of_another_clock.is_resting());
    }
}
