//! The nodes that drains of this instance have put on a target. In an elevated directory a drain replaces these, and the
//! nodes that the job has replaced or removed; any other node with the name of a file was put there by somebody else. With
//! any target, a drain that takes over from a killed one removes the nodes that the killed one had put there, if programs
//! have removed them since.
//!
//! The marks outlive the processes of drains, in a file beside the journal of the server. A mark is written as an attempt
//! before its node gets its name: so a drain that is killed leaves no node that the next one does not know. Several drains
//! of one tree append to one file, in writes of whole records, and read the records of the others.
//!
//! ```text
//!  0   16  the beginning of the BLAKE3 hash of the path below the target
//! 16    8  size, bytes, little-endian as all numbers
//! 24    8  time of the last change of the contents: seconds since 1970
//! 32    4  and nanoseconds
//! 36    4  1: attempted, 2: placed, so attempts before it count no more, 3: removed, with its marks, 4: the first
//!          record, whose time is that of this node when the file was begun
//! 40    8  inode of the source; 0: it is not known
//! 48    4  CRC32C of the above
//! ```
//!
//! A record that is torn or damaged is skipped: then its node counts as somebody else's, which is the safe side. Marks are
//! also written for nodes that a drain finds on the target in the right version. So a drain removes a node only if it has
//! also changed since the file was begun.

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

use weir_client::types::{Stat, Time};

use crate::replaceable::NodeMark;

/// The bytes of a record.
const RECORD: usize = 52;
/// The most attempts that are kept for a name: of moves that failed, or whose process was killed before it knew if the node
/// got its name.
const MOST_ATTEMPTS: usize = 8;
/// A file with fewer records is not written anew.
const LEAST_REWRITTEN: usize = 1 << 16;

/// The clock of file times may be behind the clock that processes read by this much, seconds.
const CLOCK_STEP_S: i64 = 1;
/// The path in the record that has the time at which the file was begun.
const NO_PATH: &str = "";
/// The mark of a record of a removed name.
const NO_NODE: NodeMark = NodeMark {
    size: 0,
    mtime: (0, 0),
    source: 0,
};

/// The marks of nodes that drains of one tree have put on its target.
#[derive(Debug)]
pub struct PlacedNodes {
    file: Mutex<MarkFile>,
    is_continued: bool,
}

#[derive(Debug)]
struct MarkFile {
    file: File,
    path: PathBuf,
    /// The bytes that were read.
    read: u64,
    marks: HashMap<[u8; 16], NameMarks>,
    /// The time at which it was begun, by the node's clock; `None`: it is not known.
    began: Option<Time>,
    /// The records that were read or written.
    records: usize,
    failure: Option<io::Error>,
}

/// The marks of a name.
#[derive(Clone, Debug, Default)]
struct NameMarks {
    placed: Option<NodeMark>,
    /// The newest last.
    attempts: Vec<NodeMark>,
}

impl NameMarks {
    fn all(&self) -> impl Iterator<Item = &NodeMark> {
        self.placed.iter().chain(&self.attempts)
    }

    fn add_attempt(&mut self, mark: NodeMark) {
        self.attempts.retain(|one| *one != mark);
        self.attempts.push(mark);
        let extra = self.attempts.len().saturating_sub(MOST_ATTEMPTS);
        self.attempts.drain(..extra);
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum MarkStep {
    Attempted = 1,
    Placed = 2,
    Removed = 3,
    Began = 4,
}

impl PlacedNodes {
    /// Reads a file of marks, or makes it.
    pub fn open(path: &Path) -> io::Result<PlacedNodes> {
        let mut marks = MarkFile::open(path)?;
        if let Err(error) = marks.rewrite_if_large() {
            marks.failure = Some(error);
        }
        let is_continued = !marks.marks.is_empty();
        let file = Mutex::new(marks);
        Ok(PlacedNodes { file, is_continued })
    }

    /// The same, but forgets the nodes of earlier processes.
    pub fn open_anew(path: &Path) -> io::Result<PlacedNodes> {
        let mut marks = MarkFile::open(path)?;
        marks.forget_all()?;
        let file = Mutex::new(marks);
        let is_continued = false;
        Ok(PlacedNodes { file, is_continued })
    }

    /// True if a node of the target has changed since the file of marks was begun.
    pub(super) fn may_have_made(&self, there: &Stat) -> bool {
        let began = self.marks().began;
        began.is_some_and(|began| {
            let sec = began.sec - CLOCK_STEP_S;
            there.ctime >= Time { sec, ..began }
        })
    }

    /// True if an earlier process has put nodes there.
    pub(super) fn is_continued(&self) -> bool {
        self.is_continued
    }

    /// The last failure to keep the marks. Without them a later process takes files of this one for somebody else's: it
    /// overwrites none, and reports it.
    pub fn take_failure(&self) -> Option<io::Error> {
        self.marks().failure.take()
    }

    fn marks(&self) -> MutexGuard<'_, MarkFile> {
        self.file.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The marks of a name.
    pub(super) fn of_name(&self, path: &Path) -> Vec<NodeMark> {
        let marks = self.marks();
        let of_name = marks.marks.get(&hash_of(path));
        of_name.map_or_else(Vec::new, |of_name| of_name.all().copied().collect())
    }

    /// Reads the marks of other drains of the tree.
    pub(super) fn refresh(&self) {
        let mut marks = self.marks();
        let read = marks.read_on().and_then(|()| marks.rewrite_if_large());
        if let Err(error) = read {
            marks.failure = Some(error);
        }
    }

    /// Notes the nodes that are about to get these names.
    pub(super) fn note_attempts<'p>(&self, nodes: impl Iterator<Item = (&'p Path, NodeMark)>) {
        self.marks().append(nodes, MarkStep::Attempted);
    }

    /// Notes that a node has its name.
    pub(super) fn note_placed(&self, path: &Path, mark: NodeMark) {
        let node = std::iter::once((path, mark));
        self.marks().append(node, MarkStep::Placed);
    }

    /// Notes that the target does not have these names any more.
    pub(super) fn note_removed<'p>(&self, paths: impl Iterator<Item = &'p Path>) {
        self.marks()
            .append(paths.map(|path| (path, NO_NODE)), MarkStep::Removed);
    }
}

impl MarkFile {
    fn open(path: &Path) -> io::Result<MarkFile> {
        let file = loop {
            let mut options = File::options();
            let file = options
                .read(true)
                .append(true)
                .create(true)
                .mode(0o600)
                .open(path)?;
            // Nobody writes the file anew while this lock is held.
            file.lock_shared()?;
            // It may have been replaced just before the lock.
            if has_name(&file, path)? {
                break file;
            }
        };
        let mut marks = MarkFile {
            file,
            path: path.to_owned(),
            read: 0,
            marks: HashMap::new(),
            began: None,
            records: 0,
            failure: None,
        };
        marks.read_on()?;
        if marks.records == 0 {
            marks.note_beginning();
        }
        Ok(marks)
    }

    /// Reads the records that were appended since the last read.
    fn read_on(&mut self) -> io::Result<()> {
        let mut bytes = Vec::new();
        self.file.seek(SeekFrom::Start(self.read))?;
        self.file.read_to_end(&mut bytes)?;
        let mut at = 0;
        while let Some(record) = bytes.get(at..at + RECORD) {
            match decode(record) {
                Some((hash, mark, step)) => {
                    self.change(hash, mark, step);
                    self.records += 1;
                    at += RECORD;
                }
                None => at += 1,
            }
        }
        self.read += at as u64;
        Ok(())
    }

    fn change(&mut self, hash: [u8; 16], mark: NodeMark, step: MarkStep) {
        match step {
            MarkStep::Attempted => self.marks.entry(hash).or_default().add_attempt(mark),
            MarkStep::Placed => {
                let marks = NameMarks {
                    placed: Some(mark),
                    attempts: Vec::new(),
                };
                self.marks.insert(hash, marks);
            }
            MarkStep::Removed => drop(self.marks.remove(&hash)),
            MarkStep::Began => {
                let (sec, nsec) = mark.mtime;
                self.began.get_or_insert(Time { sec, nsec });
            }
        }
    }

    fn note_beginning(&mut self) {
        let now = SystemTime::now().duration_since(UNIX_EPOCH);
        let now = now.unwrap_or_default().as_nanos().try_into();
        let now = Time::from_epoch_ns(now.unwrap_or(i64::MAX));
        let mark = (NO_PATH.as_ref(), NodeMark::new(0, now, 0));
        self.append(std::iter::once(mark), MarkStep::Began);
    }

    fn append<'p>(&mut self, nodes: impl Iterator<Item = (&'p Path, NodeMark)>, step: MarkStep) {
        let mut bytes = Vec::new();
        for (path, mark) in nodes {
            let hash = hash_of(path);
            self.change(hash, mark, step);
            self.records += 1;
            encode(&mut bytes, hash, mark, step);
        }
        let written = self.file.write_all(&bytes);
        match written.and_then(|()| self.file.stream_position()) {
            // Otherwise others have written in between: these records are read again with theirs.
            Ok(end) if end == self.read + bytes.len() as u64 => self.read = end,
            Ok(_) => {}
            Err(error) => self.failure = Some(error),
        }
    }

    /// Begins the file anew, unless another drain has it open.
    fn forget_all(&mut self) -> io::Result<()> {
        self.marks.clear();
        self.rewrite(|_| Vec::new())
    }

    /// Writes the file anew without marks that do not count any more, if these are most of it and no other drain has it
    /// open.
    fn rewrite_if_large(&mut self) -> io::Result<()> {
        match self.records <= LEAST_REWRITTEN.max(4 * self.marks.len()) {
            true => Ok(()),
            false => self.rewrite(MarkFile::records_that_count),
        }
    }

    /// Replaces the file, unless another drain has it open.
    fn rewrite(&mut self, records: impl Fn(&MarkFile) -> Vec<u8>) -> io::Result<()> {
        self.file.unlock()?;
        let is_alone = self.file.try_lock().is_ok();
        // Another one may have replaced it in between.
        let is_current = has_name(&self.file, &self.path)?;
        let replaced = match is_alone && is_current {
            true => self.read_on().and_then(|()| self.replace(&records(self))),
            false => Ok(()),
        };
        self.file.lock_shared()?;
        if !has_name(&self.file, &self.path)? {
            let failure = self.failure.take();
            *self = MarkFile::open(&self.path)?;
            self.failure = failure;
        }
        replaced
    }

    fn replace(&self, bytes: &[u8]) -> io::Result<()> {
        let beside = self.path.with_extension("new");
        let replaced = std::fs::write(&beside, bytes);
        let replaced = replaced.and_then(|()| std::fs::rename(&beside, &self.path));
        replaced.inspect_err(|_| drop(std::fs::remove_file(&beside)))
    }

    fn records_that_count(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        if let Some(began) = self.began {
            let mark = NodeMark::new(0, began, 0);
            encode(&mut bytes, hash_of(NO_PATH.as_ref()), mark, MarkStep::Began);
        }
        for (hash, of_name) in &self.marks {
            if let Some(mark) = &of_name.placed {
                encode(&mut bytes, *hash, *mark, MarkStep::Placed);
            }
            for mark in &of_name.attempts {
                encode(&mut bytes, *hash, *mark, MarkStep::Attempted);
            }
        }
        bytes
    }
}

/// True if a file still has this name.
fn has_name(file: &File, path: &Path) -> io::Result<bool> {
    let ino = file.metadata()?.ino();
    Ok(std::fs::metadata(path).is_ok_and(|named| named.ino() == ino))
}

fn hash_of(path: &Path) -> [u8; 16] {
    let whole = blake3::hash(path.as_os_str().as_bytes());
    let (begin, _) = whole.as_bytes().split_at(16);
    begin.try_into().expect("16 bytes")
}

fn encode(bytes: &mut Vec<u8>, hash: [u8; 16], mark: NodeMark, step: MarkStep) {
    let begin = bytes.len();
    bytes.extend(hash);
    bytes.extend(mark.size.to_le_bytes());
    bytes.extend(mark.mtime.0.to_le_bytes());
    let nanoseconds = u32::try_from(mark.mtime.1).unwrap_or(0);
    bytes.extend(nanoseconds.to_le_bytes());
    bytes.extend((step as u32).to_le_bytes());
    bytes.extend(mark.source.to_le_bytes());
    bytes.extend(crc32c::crc32c(&bytes[begin..]).to_le_bytes());
}

fn decode(record: &[u8]) -> Option<([u8; 16], NodeMark, MarkStep)> {
    let (content, sum) = record.split_at(RECORD - 4);
    let number = |at: usize| u64::from_le_bytes(content[at..at + 8].try_into().expect("8 bytes"));
    let half = |at: usize| u32::from_le_bytes(content[at..at + 4].try_into().expect("4 bytes"));
    if crc32c::crc32c(content).to_le_bytes() != sum {
        return None;
    }
    let mark = NodeMark {
        size: number(16),
        mtime: (number(24).cast_signed(), half(32).into()),
        source: number(40),
    };
    let step = match half(36) {
        1 => MarkStep::Attempted,
        2 => MarkStep::Placed,
        3 => MarkStep::Removed,
        4 => MarkStep::Began,
        _ => return None,
    };
    Some((content[..16].try_into().expect("16 bytes"), mark, step))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mark(size: u64) -> NodeMark {
        NodeMark::new(size, Time { sec: -7, nsec: 3 }, 5 * size)
    }

    fn note(marks: &PlacedNodes, name: &str, size: u64) {
        marks.note_attempts(std::iter::once((Path::new(name), mark(size))));
    }

    #[test]
    fn marks_outlive_their_process_and_each_one_is_of_its_name() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("moved0");
        let marks = PlacedNodes::open(&path).unwrap();
        note(&marks, "a", 1);
        note(&marks, "a", 2);
        marks.note_placed(Path::new("b"), mark(1));
        for size in 3..30 {
            note(&marks, "b", size);
        }
        let again = PlacedNodes::open(&path).unwrap();
        for marks in [&marks, &again] {
            assert_eq!(marks.of_name(Path::new("a")), [mark(1), mark(2)]);
            let of_b = marks.of_name(Path::new("b"));
            assert_eq!((of_b[0], of_b.len()), (mark(1), 1 + MOST_ATTEMPTS));
            assert_eq!(of_b.last(), Some(&mark(29)));
            assert_eq!(marks.of_name(Path::new("c")), []);
        }
        again.note_placed(Path::new("b"), mark(40));
        marks.refresh();
        assert_eq!(marks.of_name(Path::new("b")), [mark(40)]);
        assert!(marks.take_failure().is_none());
    }

    #[test]
    fn damaged_records_are_skipped_and_the_others_count() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("moved0");
        let marks = PlacedNodes::open(&path).unwrap();
        for name in ["a", "b", "c"] {
            note(&marks, name, 1);
        }
        let mut bytes = std::fs::read(&path).unwrap();
        bytes[2 * RECORD + 20] ^= 1;
        // A write that was cut, and one after it.
        let cut = [&bytes[..], &bytes[..17], &bytes[RECORD..2 * RECORD]].concat();
        std::fs::write(&path, cut).unwrap();
        let again = PlacedNodes::open(&path).unwrap();
        let counts = |name| again.of_name(Path::new(name)).len();
        assert_eq!((counts("a"), counts("b"), counts("c")), (1, 0, 1));
        std::fs::write(&path, [7; 1000]).unwrap();
        let garbage = PlacedNodes::open(&path).unwrap();
        assert!(garbage.marks().marks.is_empty());
    }

    #[test]
    fn a_file_that_says_little_is_written_anew_unless_it_is_used() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("moved0");
        let marks = PlacedNodes::open(&path).unwrap();
        for size in 0..=LEAST_REWRITTEN as u64 {
            marks.note_placed(Path::new("a"), mark(size));
        }
        let length = || std::fs::metadata(&path).unwrap().len();
        let before = length();
        let second = PlacedNodes::open(&path).unwrap();
        assert_eq!(length(), before, "another one uses it");
        drop(second);
        note(&marks, "b", 7);
        marks.refresh();
        assert_eq!(length(), 3 * RECORD as u64);
        let last = mark(LEAST_REWRITTEN as u64);
        let third = PlacedNodes::open(&path).unwrap();
        for marks in [&marks, &third] {
            assert_eq!(marks.of_name(Path::new("a")), [last]);
            assert_eq!(marks.of_name(Path::new("b")), [mark(7)]);
        }
        marks.note_removed([Path::new("a"), Path::new("c")].into_iter());
        third.refresh();
        for marks in [&marks, &third] {
            assert_eq!(marks.of_name(Path::new("a")), []);
            assert_eq!(marks.marks().marks.len(), 1);
        }
    }

    #[test]
    fn a_file_that_is_begun_anew_knows_nothing_of_before_and_what_is_older_is_nobodys() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("moved0");
        let gone = PlacedNodes::open(&path).unwrap();
        note(&gone, "a", 1);
        let began = gone.marks().began;
        let other = PlacedNodes::open_anew(&path).unwrap();
        assert!(!other.is_continued(), "another one uses the file");
        drop((gone, other));
        let again = PlacedNodes::open(&path).unwrap();
        assert_eq!((again.is_continued(), again.marks().began), (true, began));
        drop(again);
        let anew = PlacedNodes::open_anew(&path).unwrap();
        assert_eq!(
            (anew.is_continued(), anew.of_name(Path::new("a"))),
            (false, vec![])
        );
        assert!(anew.marks().began > began);
        let since = anew.marks().began.unwrap();
        for (after_s, may_have_made) in [(-100, false), (0, true), (100, true)] {
            let ctime = Time {
                sec: since.sec + after_s,
                ..since
            };
            let there = Stat {
                ctime,
                ..Stat::default()
            };
            assert_eq!(anew.may_have_made(&there), may_have_made);
        }
    }
}
