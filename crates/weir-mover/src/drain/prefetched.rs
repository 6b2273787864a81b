//! Files of an elevated tree that were prefetched: the target has them in this version, so their bytes need not be
//! compared.
//!
//! Size and times are not enough: a file of the target that was written once has an mtime equal to its ctime, so bytes
//! would be compared (`Likeness::Perhaps`). So a prefetch notes the inode and the ctime of the file that it made; if a
//! program has changed the file since, the ctime differs. Notes are lines of JSON in a file of the run directory, to which
//! all runs of an instance append.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use weir_client::types::Stat;

use super::snapshot::{SeenNode, TreeSnapshot};
use super::{Drain, MovedNode, MovedNodes};
use crate::content::ContentStamp;
use crate::copy::is_kept_time;
use crate::side::MoveSide;
use crate::tree::{kind_of, FileTree, NodeKind};

/// A file that was prefetched.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct PrefetchedFile {
    /// The bytes of its path below the root of the tree.
    path: Vec<u8>,
    content: ContentStamp,
    /// The time of its last change of any kind, in the tree; nanoseconds since 1970.
    ctime_ns: i64,
}

impl PrefetchedFile {
    /// The file at a path below the root of the tree, without the slash before it.
    pub fn new(path: &Path, stat: &Stat) -> PrefetchedFile {
        PrefetchedFile {
            path: path.as_os_str().as_bytes().to_vec(),
            content: ContentStamp::from(stat),
            ctime_ns: stat.ctime.since_epoch_ns(),
        }
    }

    /// Appends a note to a file that is open for that.
    pub fn append_to(&self, mut notes: &File) -> io::Result<()> {
        let mut line = serde_json::to_vec(self)?;
        line.push(b'\n');
        // In one write, since others append, too.
        notes.write_all(&line)
    }

    fn is(&self, node: &SeenNode) -> bool {
        node.kind == NodeKind::File
            && self.content == ContentStamp::from(&node.version)
            && self.ctime_ns == node.version.ctime.since_epoch_ns()
    }
}

/// The notes of a tree. Prefetches may append to them at any time.
#[derive(Debug)]
pub struct PrefetchNotes {
    path: PathBuf,
    /// The bytes that were read.
    read: u64,
}

impl PrefetchNotes {
    /// The notes in a file, which need not exist yet.
    pub fn new(path: PathBuf) -> PrefetchNotes {
        PrefetchNotes { path, read: 0 }
    }

    /// Reads the new notes. Skips a line that is not a note.
    fn read_new(&mut self) -> io::Result<Vec<PrefetchedFile>> {
        let mut file = match File::open(&self.path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            file => file?,
        };
        file.seek(SeekFrom::Start(self.read))?;
        let mut text = Vec::new();
        file.read_to_end(&mut text)?;
        // The rest of the last line may come later.
        let whole = text.iter().rposition(|byte| *byte == b'\n');
        text.truncate(whole.map_or(0, |end| end + 1));
        self.read += text.len() as u64;
        let lines = text.split(|byte| *byte == b'\n');
        Ok(lines
            .filter_map(|line| serde_json::from_slice(line).ok())
            .collect())
    }
}

/// The files that were prefetched, from the reading of their notes until a walk.
#[derive(Debug, Default)]
pub(super) struct NotedPrefetches {
    notes: Option<PrefetchNotes>,
    files: Vec<PrefetchedFile>,
}

impl NotedPrefetches {
    /// Reads the notes before a walk, which then sees their files. If the note of a file cannot be read, or comes later,
    /// the bytes of the file are compared.
    pub fn read_new(&mut self) {
        let notes = self.notes.as_mut().map(PrefetchNotes::read_new);
        self.files
            .extend(notes.and_then(Result::ok).into_iter().flatten());
    }

    /// Notes as moved the files that a walk saw unchanged since their prefetch, and that the target still has.
    pub fn adopt<T: FileTree>(
        &mut self,
        snapshot: &TreeSnapshot,
        to: &MoveSide<'_, T>,
        moved: &mut MovedNodes,
    ) {
        for file in std::mem::take(&mut self.files) {
            let path = PathBuf::from(std::ffi::OsStr::from_bytes(&file.path));
            let Some(node) = snapshot.get(&path).filter(|node| file.is(node)) else {
                continue;
            };
            let is_same = |there: &Stat| {
                kind_of(there) == NodeKind::File
                    && there.size == node.version.size
                    && is_kept_time(node.version.mtime, there.mtime)
            };
            let there = to.find_node(&path);
            if there.is_ok_and(|there| there.as_ref().is_some_and(is_same)) {
                moved.insert(path, MovedNode::from_seen(node, false));
            }
        }
    }
}

impl<S: FileTree, T: FileTree> Drain<'_, S, T> {
    /// Makes files that are unchanged since their prefetch count as moved.
    pub fn follow_prefetched(&mut self, notes: PrefetchNotes) {
        self.prefetched.notes = Some(notes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn notes_are_read_as_they_were_written() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("prefetched0");
        let mut read = PrefetchNotes::new(path.clone());
        assert_eq!(read.read_new().unwrap(), []);
        let file = |name: &str, ctime_ns| PrefetchedFile {
            path: name.as_bytes().to_vec(),
            content: ContentStamp::new(1, 2, weir_client::types::Time { sec: 3, nsec: 4 }),
            ctime_ns,
        };
        let notes = File::options()
            .append(true)
            .create(true)
            .open(&path)
            .unwrap();
        file("a\n", 1).append_to(&notes).unwrap();
        (&notes).write_all(b"{\"path\":[1\n").unwrap();
        file("b", 2).append_to(&notes).unwrap();
        (&notes).write_all(b"{\"path\":").unwrap();
        assert_eq!(read.read_new().unwrap(), [file("a\n", 1), file("b", 2)]);
        (&notes).write_all(b"[1\n").unwrap();
        file("c", 3).append_to(&notes).unwrap();
        assert_eq!(read.read_new().unwrap(), [file("c", 3)]);
    }
}
