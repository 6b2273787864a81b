//! The changes of names by the program, as servers tell them.

use rustix::fs::{
    getxattr, removexattr, setxattr, utimensat, AtFlags, Timespec, Timestamps, XattrFlags, CWD,
};
use rustix::time::{clock_gettime, ClockId};
use weir_client::types::Time;

use super::*;

/// The time by a clock of the system.
fn now_by(clock: ClockId) -> Time {
    let now = clock_gettime(clock);
    Time {
        sec: now.tv_sec,
        nsec: now.tv_nsec,
    }
}

/// Waits until what changes next has a later time than this.
pub fn await_tick() {
    let now = now_by(ClockId::Realtime);
    while now_by(ClockId::RealtimeCoarse) <= now {
        std::thread::yield_now();
    }
}

impl Program {
    /// Renames a node, and notes it as a server does.
    pub(super) fn rename(&mut self, from: &Path, to: &Path) -> bool {
        let found = from.symlink_metadata().ok();
        let replaced = to.symlink_metadata().ok();
        let is_elsewhere = from.parent() != to.parent();
        if fs::rename(from, to).is_err() {
            return false;
        }
        let lost = [(from, &found, false), (to, &replaced, true)];
        for (path, node, is_replaced) in lost {
            if let Some(file) = node.as_ref().filter(|node| !node.is_dir()) {
                self.note_lost_name(path, file.ino(), is_replaced);
            }
        }
        let dir = found.filter(fs::Metadata::is_dir);
        self.renames += u64::from(is_elsewhere || dir.is_some());
        self.renamed_directories.extend(dir.map(|dir| dir.ino()));
        true
    }

    /// The changes of names that a walk asks for.
    pub(super) fn tell_history(&self, known: &mut Vec<HistoryPosition>) -> TreeHistory {
        known.resize(1, HistoryPosition::default());
        let [renames, removals] =
            [known[0].renames, known[0].removals].map(|number| usize::try_from(number).unwrap());
        known[0] = HistoryPosition {
            renames: self.renamed_directories.len() as u64,
            removals: self.lost_names.len() as u64,
        };
        TreeHistory {
            counts: vec![(self.renames, self.renames)],
            directories: self.renamed_directories[renames..].to_vec(),
            is_cut: false,
            lost: self.lost_names[removals..].to_vec(),
        }
    }

    /// Removes a file or link, and notes it as a server does.
    pub(super) fn remove(&mut self, path: &Path) -> io::Result<()> {
        let found = path.symlink_metadata()?;
        fs::remove_file(path)?;
        self.note_lost_name(path, found.ino(), false);
        Ok(())
    }

    /// Notes that a file or link has lost a name. What changes within this tick of the clock, by which file systems go, may have
    /// an earlier time.
    pub(super) fn note_lost_name(&mut self, path: &Path, ino: u64, is_replaced: bool) {
        let (dir, name) = (path.parent().unwrap(), path.file_name().unwrap());
        self.lost_names.push(LostName {
            dir: fs::metadata(dir).unwrap().ino(),
            name: name.to_owned(),
            ino,
            at: now_by(ClockId::Realtime),
            is_replaced,
        });
    }

    /// Removes a directory with all that is in it.
    pub(super) fn remove_all(&mut self, dir: &Path) -> io::Result<()> {
        for entry in fs::read_dir(dir)?.map(Result::unwrap) {
            match entry.file_type().unwrap().is_dir() {
                true => self.remove_all(&entry.path())?,
                false => self.remove(&entry.path())?,
            }
        }
        fs::remove_dir(dir)
    }
}

/// A long time before any file of a test was made.
const OLD: Timespec = Timespec {
    tv_sec: 1_577_836_800,
    tv_nsec: 0,
};

/// Writes a file whose time is not that of the write, as tar(1) and cp -p do.
fn write_dated(scene: &Scene, name: &str, content: &str) {
    let path = scene.source.join(name);
    fs::write(&path, content).unwrap();
    let times = Timestamps {
        last_access: OLD,
        last_modification: OLD,
    };
    utimensat(CWD, &path, &times, AtFlags::empty()).unwrap();
    let closed = content.as_bytes().to_vec();
    scene.program.lock().unwrap().closed.insert(closed);
}

/// Versions of the same size and time are told apart, whichever way they get the same name.
#[test]
fn versions_of_the_same_size_and_time_are_moved() {
    let scene = Scene::new(FaultyTree::failing_once(i64::MAX, Errno::IO));
    let mut drain = scene.drain();
    let path = |name: &str| scene.source.join(name);
    let rename = |from: &str, to: &str| fs::rename(path(from), path(to)).unwrap();
    for name in ["anew", "in_place", "one", "other", "over"] {
        write_dated(&scene, name, &format!("{name:>9}"));
    }
    for _ in 0..2 {
        round(&mut drain, now());
    }
    assert_eq!(contents(&scene.source), contents(&scene.target));
    fs::remove_file(path("anew")).unwrap();
    write_dated(&scene, "anew", "     ANEW");
    write_dated(&scene, "in_place", " IN_PLACE");
    write_dated(&scene, "new", "     OVER");
    rename("new", "over");
    rename("one", "aside");
    rename("other", "one");
    rename("aside", "other");
    for _ in 0..2 {
        round(&mut drain, now());
    }
    assert_eq!(contents(&scene.source), contents(&scene.target));
}

/// Attributes that programs give a file or take from it later.
#[test]
fn extended_attributes_change_with_the_source() {
    let scene = Scene::new(FaultyTree::failing_once(i64::MAX, Errno::IO));
    let mut drain = scene.drain();
    let [source, target] = [&scene.source, &scene.target].map(|dir| dir.join("file"));
    scene.write(&source);
    let flags = XattrFlags::empty();
    if setxattr(&source, "user.gone", b"1", flags) == Err(Errno::NOTSUP) {
        weir_cluster::skip_for_kernel(
            "extended attributes that change",
            "a tmpfs with those of users",
        );
        return;
    }
    round(&mut drain, now());
    removexattr(&source, "user.gone").unwrap();
    setxattr(&source, "user.new", b"2", flags).unwrap();
    round(&mut drain, now());
    let value = |name: &str| {
        let mut value = [0; 9];
        let length = getxattr(&target, name, &mut value);
        length.map(|length| value[..length].to_vec())
    };
    assert_eq!(value("user.gone"), Err(Errno::NODATA));
    assert_eq!(value("user.new"), Ok(b"2".to_vec()));
}

impl Scene {
    pub(super) fn remove(&self, path: &Path) {
        self.program.lock().unwrap().remove(path).unwrap();
    }
}
