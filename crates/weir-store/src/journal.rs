//! The file of a server's journal, on tmpfs: it outlives the server's process, not its node.
//!
//! Appending is a copy into mapped memory, which is made present a step ahead: a store into a page
//! that the file system has no room for would kill the process. A frame's first word is stored
//! last, so that a server killed meanwhile leaves a whole frame or none. Then the head gets the
//! number of frames, so that the loss of the last ones is noticed.
//!
//! When the journal has grown to several times the size of its snapshot, it is *renewed*: a new
//! file gets a snapshot of the state, and takes the old one's name. The snapshot comes in steps, so
//! that no request waits for all of it; changes that are appended meanwhile go to both files:
//!
//! ```text
//! journal      ... | change | change | change |            removed when the other has its name
//! journal.new  head | step | change | step | change | step, Whole |  then: | change ...
//! ```
//!
//! Invariants:
//! - Until the new file has the old one's name the old one is the journal, and whole: a server
//!   killed in between leaves a `journal.new` that is never read.
//! - The new one has every change that was appended since its first step, in the same order.
//! - After a failed append the journal is no longer whole. So its file is removed, and nothing more is
//!   appended to it. A server that is then killed does not come back with half of its state.
//!   A new file in the making continues, and becomes the journal when it is whole.
//!
//! Left out: the contents of frames (`weir_core::journal`).

use std::ffi::CString;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::fd::OwnedFd;
use rustix::fs::{fallocate, ftruncate, FallocateFlags, CWD};
use rustix::io::Errno;
use weir_core::journal::frame::{end_word, frame_bytes, frame_words, END_AT, FRAME_HEAD_BYTES};
use weir_core::journal::{Head, HEAD_BYTES};

use crate::map::{create_private, file_bytes, open_shared, Access, MapError, Mapping};

/// The journal's name in its directory.
pub const JOURNAL: &str = "journal";
/// The name of a new journal in the making.
pub const JOURNAL_NEW: &str = "journal.new";
/// The step in which memory is made present.
const STEP_BYTES: usize = 1 << 20;
/// The first size of the file, which is sparse and grows by doubling.
const FIRST_BYTES: usize = 4 << 20;
/// The least growth after which a journal is renewed.
const LEAST_GROWTH_BYTES: usize = 8 << 20;
/// The least ratio of appended bytes to the snapshot at which it is renewed.
const GROWTH: usize = 2;
/// The approximate size of a frame of a snapshot.
const SNAPSHOT_FRAME_BYTES: usize = 256 << 10;
/// The step in which the memory of an old journal is freed.
const FREE_BYTES: u64 = 4 << 20;

/// The reasons for which a journal cannot be written.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum JournalFileError {
    /// The file cannot be made, mapped or enlarged.
    #[error("{path}: {error}")]
    File {
        /// The file.
        path: PathBuf,
        /// The cause.
        error: MapError,
    },
    /// Its file system is full, or the file cannot be renamed.
    #[error("{path}: {errno}")]
    System {
        /// The file.
        path: PathBuf,
        /// The cause.
        errno: Errno,
    },
    /// A change is too large for a frame.
    #[error("a change of {bytes} bytes is too large")]
    TooLarge {
        /// Its size.
        bytes: usize,
    },
    /// An append failed before.
    #[error("it was given up before")]
    GivenUp,
}

/// The journal of a server.
#[derive(Debug)]
pub struct JournalFile {
    dir: PathBuf,
    head: Head,
    /// `None` after it was given up.
    file: Option<OpenJournal>,
    /// The new file in the making, which will take its place.
    next: Option<OpenJournal>,
    /// The file of the old journal, which is freed in steps, and its length.
    before: Option<(OwnedFd, u64)>,
}

/// A file to which frames are appended.
#[derive(Debug)]
struct OpenJournal {
    path: PathBuf,
    file: OwnedFd,
    mapping: Mapping,
    /// The end of the memory that is present.
    present: usize,
    /// The offset of the next frame.
    end: usize,
    sequence: u64,
    /// The end of the snapshot.
    snapshot_end: usize,
}

impl JournalFile {
    /// Makes the journal of the server `head` in `dir`, in place of any existing one, with the
    /// items that `snapshot` adds.
    pub fn create(
        dir: &Path,
        head: Head,
        snapshot: &mut dyn FnMut(&mut SnapshotWriter<'_>),
    ) -> Result<JournalFile, JournalFileError> {
        let mut journal = JournalFile {
            dir: dir.to_owned(),
            head,
            file: None,
            next: None,
            before: None,
        };
        journal.begin_anew()?;
        let next = journal.next.as_mut().ok_or(JournalFileError::GivenUp)?;
        let mut out = SnapshotWriter {
            file: next,
            items: Vec::new(),
            done: Ok(()),
        };
        snapshot(&mut out);
        out.finish()?;
        journal.take_over()?;
        Ok(journal)
    }

    /// Appends a frame. No append succeeds after an error: see the head of this file.
    pub fn append(&mut self, payload: &[u8]) -> Result<(), JournalFileError> {
        let done = match &mut self.file {
            Some(file) => file.append(payload),
            None => Err(JournalFileError::GivenUp),
        };
        if done.is_err() {
            self.give_up();
        }
        let next = self
            .next
            .as_mut()
            .map_or(Ok(()), |next| next.append(payload));
        if next.is_err() {
            self.drop_next();
        }
        done
    }

    /// True if it has grown so much that it should be renewed.
    pub fn is_long(&self) -> bool {
        self.file.as_ref().is_some_and(|file| {
            let grown = file.end - file.snapshot_end;
            grown > LEAST_GROWTH_BYTES.max(GROWTH * file.snapshot_end)
        })
    }

    /// Begins a new file for a snapshot in steps. If that fails, the journal continues as before.
    pub fn begin_anew(&mut self) -> Result<(), JournalFileError> {
        self.drop_next();
        let path = self.dir.join(JOURNAL_NEW);
        let _ = rustix::fs::unlink(c_path(&path));
        let begun = OpenJournal::create(path, &self.head);
        self.next = Some(self.drop_next_on_error(begun)?);
        Ok(())
    }

    /// Adds items of the snapshot to the new file. An error ends the new file.
    pub fn add(&mut self, items: &[u8]) -> Result<(), JournalFileError> {
        let next = self.next.as_mut().ok_or(JournalFileError::GivenUp)?;
        let added = next.append(items);
        self.drop_next_on_error(added)
    }

    /// Gives the journal's name to the new file, whose snapshot is whole.
    pub fn take_over(&mut self) -> Result<(), JournalFileError> {
        let to = self.dir.join(JOURNAL);
        let next = self.next.as_mut().ok_or(JournalFileError::GivenUp)?;
        let named = rustix::fs::rename(c_path(&next.path), c_path(&to));
        let named = named.map_err(|errno| JournalFileError::System {
            path: to.clone(),
            errno,
        });
        self.drop_next_on_error(named)?;
        if let Some(mut next) = self.next.take() {
            next.path = to;
            next.snapshot_end = next.end;
            let before = self.file.replace(next);
            self.before = before.map(|open| (open.file, open.present as u64));
        }
        Ok(())
    }

    /// Frees some of the memory of the old journal; false if there is none.
    pub fn free_some(&mut self) -> bool {
        let Some((file, len)) = &mut self.before else {
            return false;
        };
        *len = len.saturating_sub(FREE_BYTES);
        if ftruncate(&*file, *len).is_err() || *len == 0 {
            self.before = None;
        }
        true
    }

    /// Drops the new file after an error; the next try comes after the same growth again.
    fn drop_next_on_error<T>(
        &mut self,
        done: Result<T, JournalFileError>,
    ) -> Result<T, JournalFileError> {
        if done.is_err() {
            self.drop_next();
            if let Some(file) = &mut self.file {
                file.snapshot_end = file.end;
            }
        }
        done
    }

    fn drop_next(&mut self) {
        if let Some(next) = self.next.take() {
            let _ = rustix::fs::unlink(c_path(&next.path));
        }
    }

    /// True if it was not given up.
    pub fn is_whole(&self) -> bool {
        self.file.is_some()
    }

    /// Its length in bytes.
    pub fn len_bytes(&self) -> usize {
        self.file.as_ref().map_or(0, |file| file.end)
    }

    fn give_up(&mut self) {
        if let Some(file) = self.file.take() {
            // If it cannot be removed, it is at least not whole: no good frame follows a bad one.
            let _ = rustix::fs::unlink(file.path.as_os_str().as_bytes());
        }
    }
}

fn c_path(path: &Path) -> CString {
    CString::new(path.as_os_str().as_bytes()).unwrap_or_default()
}

/// Writes the items of a snapshot into a new journal.
pub struct SnapshotWriter<'a> {
    file: &'a mut OpenJournal,
    items: Vec<u8>,
    done: Result<(), JournalFileError>,
}

impl SnapshotWriter<'_> {
    /// Adds an item. Errors are returned at the end.
    pub fn add(&mut self, item: &weir_core::journal::Item<'_>) {
        weir_core::journal::encode(item, &mut self.items);
        if self.items.len() >= SNAPSHOT_FRAME_BYTES {
            self.flush();
        }
    }

    fn flush(&mut self) {
        if self.done.is_ok() && !self.items.is_empty() {
            self.done = self.file.append(&self.items);
        }
        self.items.clear();
    }

    fn finish(mut self) -> Result<(), JournalFileError> {
        self.add(&weir_core::journal::Item::SnapshotEnd);
        self.flush();
        self.done
    }
}

impl OpenJournal {
    fn create(path: PathBuf, head: &Head) -> Result<OpenJournal, JournalFileError> {
        let failed = |error| JournalFileError::File {
            path: path.clone(),
            error,
        };
        let bytes = path.as_os_str().as_bytes();
        let file = create_private(CWD, bytes, FIRST_BYTES as u64).map_err(failed)?;
        let mapping = Mapping::new(&file, FIRST_BYTES).map_err(failed)?;
        let mut open = OpenJournal {
            path,
            file,
            mapping,
            present: 0,
            end: 0,
            sequence: 0,
            snapshot_end: 0,
        };
        open.make_present(HEAD_BYTES)?;
        open.put(0, &head.encode())?;
        open.end = HEAD_BYTES;
        Ok(open)
    }

    fn append(&mut self, payload: &[u8]) -> Result<(), JournalFileError> {
        let bytes = payload.len();
        let words = frame_words(self.sequence, payload);
        let [first, second] = words.ok_or(JournalFileError::TooLarge { bytes })?;
        let end = self.end + frame_bytes(bytes);
        if end > self.present {
            self.make_present(end)?;
        }
        self.put(self.end + FRAME_HEAD_BYTES, payload)?;
        let head = self.words(self.end, 2)?;
        head[1].store(second.to_le(), Ordering::Relaxed);
        head[0].store(first.to_le(), Ordering::Release);
        self.end = end;
        self.sequence += 1;
        // After the frame: a server killed in between leaves one frame more than the head says, not
        // one less.
        let told = end_word(self.sequence).to_le();
        self.words(END_AT, 1)?[0].store(told, Ordering::Release);
        Ok(())
    }

    fn words(&self, at: usize, count: usize) -> Result<&[AtomicU64], JournalFileError> {
        self.mapping
            .slice(at, count)
            .map_err(|error| JournalFileError::File {
                path: self.path.clone(),
                error,
            })
    }

    fn put(&self, at: usize, bytes: &[u8]) -> Result<(), JournalFileError> {
        let words = self.words(at, bytes.len().div_ceil(8))?;
        let whole = bytes.chunks_exact(8);
        let rest = whole.remainder();
        for (word, part) in words.iter().zip(whole) {
            let part: [u8; 8] = part.try_into().unwrap_or_default();
            word.store(u64::from_ne_bytes(part), Ordering::Relaxed);
        }
        if let (Some(word), false) = (words.last(), rest.is_empty()) {
            let mut last = [0; 8];
            last[..rest.len()].copy_from_slice(rest);
            word.store(u64::from_ne_bytes(last), Ordering::Relaxed);
        }
        Ok(())
    }

    /// Makes memory present up to `end`, rounded up to a step.
    fn make_present(&mut self, end: usize) -> Result<(), JournalFileError> {
        let end = end.next_multiple_of(STEP_BYTES);
        let system = |errno| JournalFileError::System {
            path: self.path.clone(),
            errno,
        };
        if end > self.mapping.len() {
            let len = end.next_power_of_two();
            ftruncate(&self.file, len as u64).map_err(system)?;
            let mapping = Mapping::new(&self.file, len);
            self.mapping = mapping.map_err(|error| JournalFileError::File {
                path: self.path.clone(),
                error,
            })?;
        }
        let (from, len) = (self.present as u64, (end - self.present) as u64);
        rustix::io::retry_on_intr(|| fallocate(&self.file, FallocateFlags::empty(), from, len))
            .map_err(system)?;
        // If pages cannot be mapped ahead, each is mapped when it is first written.
        let _ = crate::warm::populate(&self.mapping, &self.file, &(self.present..end));
        self.present = end;
        Ok(())
    }
}

/// Reads the journal in `dir`; `None` if there is none.
pub fn read(dir: &Path) -> Result<Option<Vec<u8>>, JournalFileError> {
    let path = dir.join(JOURNAL);
    let failed = |error| JournalFileError::File {
        path: path.clone(),
        error,
    };
    let file = match open_shared(CWD, path.as_os_str().as_bytes(), Access::ReadOnly) {
        Err(error) if error.errno() == Errno::NOENT => return Ok(None),
        file => file.map_err(failed)?,
    };
    let len = file_bytes(&file).map_err(failed)?;
    let len = usize::try_from(len).map_err(|_| JournalFileError::System {
        path: path.clone(),
        errno: Errno::FBIG,
    })?;
    let mut bytes = vec![0; len];
    let mut done = 0;
    while done < len {
        let read = rustix::io::pread(&file, &mut bytes[done..], done as u64);
        match read {
            Ok(0) => break,
            Ok(n) => done += n,
            Err(Errno::INTR) => {}
            Err(errno) => return Err(JournalFileError::System { path, errno }),
        }
    }
    bytes.truncate(done);
    Ok(Some(bytes))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testdir::TestDir;
    use weir_core::journal::{encode, frames, replay, Item};
    use weir_core::types::{ClientId, Rank};

    const HEAD: Head = Head {
        rank: Rank(3),
        servers: 4,
        instance: [7; 16],
        made_ns: 5,
    };

    fn client(number: u32) -> Item<'static> {
        Item::ClientCame {
            client: ClientId(number),
            pid: 1,
        }
    }

    fn payload(number: u32) -> Vec<u8> {
        let mut out = Vec::new();
        encode(&client(number), &mut out);
        out
    }

    #[test]
    fn what_was_appended_is_read_again_across_growth_and_renewal() {
        let dir = TestDir::new("journal");
        assert_eq!(read(dir.path()).unwrap(), None);
        let mut journal = JournalFile::create(dir.path(), HEAD, &mut |out| {
            out.add(&client(0));
        })
        .unwrap();
        // Past the first mapping.
        let big = vec![payload(1); 200_000].concat();
        while journal.len_bytes() < FIRST_BYTES {
            journal.append(&big).unwrap();
        }
        journal.append(&payload(2)).unwrap();
        let bytes = read(dir.path()).unwrap().unwrap();
        let replayed = replay(&bytes).unwrap();
        assert_eq!((replayed.head, replayed.torn), (HEAD, None));
        assert_eq!(replayed.state.clients.len(), 3);
        while !journal.is_long() {
            journal.append(&big).unwrap();
        }
        journal.begin_anew().unwrap();
        journal.add(&payload(9)).unwrap();
        journal.append(&payload(8)).unwrap();
        assert!(
            journal.is_long(),
            "the old one is the journal until the new one is whole"
        );
        let replayed = replay(&read(dir.path()).unwrap().unwrap()).unwrap();
        assert_eq!(replayed.state.clients.len(), 4);
        let mut whole = Vec::new();
        encode(&Item::SnapshotEnd, &mut whole);
        journal.add(&whole).unwrap();
        journal.take_over().unwrap();
        assert!(!journal.is_long());
        while journal.free_some() {}
        journal.append(&payload(7)).unwrap();
        let replayed = replay(&read(dir.path()).unwrap().unwrap()).unwrap();
        let clients: Vec<u32> = replayed.state.clients.keys().map(|c| c.0).collect();
        assert_eq!(clients, [7, 8, 9]);
    }

    #[test]
    fn one_that_cannot_grow_is_given_up_and_removed() {
        let dir = TestDir::new("journal-full");
        let mut journal = JournalFile::create(dir.path(), HEAD, &mut |_| ()).unwrap();
        // It cannot be enlarged: the file was opened for reading.
        let path = dir.path().join(JOURNAL);
        let reading = open_shared(CWD, path.as_os_str().as_bytes(), Access::ReadOnly).unwrap();
        journal.file.as_mut().unwrap().file = reading;
        let big = vec![payload(1); 200_000].concat();
        let failed = loop {
            if let Err(error) = journal.append(&big) {
                break error;
            }
        };
        assert!(
            matches!(failed, JournalFileError::System { .. }),
            "{failed}"
        );
        assert_eq!(journal.append(&big), Err(JournalFileError::GivenUp));
        assert_eq!(read(dir.path()).unwrap(), None);
        // When there is room, a new one may be made.
        journal.begin_anew().unwrap();
        let mut whole = Vec::new();
        encode(&Item::SnapshotEnd, &mut whole);
        journal.add(&whole).unwrap();
        journal.take_over().unwrap();
        assert!(journal.is_whole());
        assert!(replay(&read(dir.path()).unwrap().unwrap()).is_ok());
    }

    #[test]
    fn the_head_is_the_first_thing_in_the_file() {
        let dir = TestDir::new("journal-head");
        let _journal = JournalFile::create(dir.path(), HEAD, &mut |_| ()).unwrap();
        let bytes = read(dir.path()).unwrap().unwrap();
        assert_eq!(Head::decode(&bytes), Ok(HEAD));
        let mut reader = frames(&bytes);
        assert!(reader.next().unwrap().is_some());
        assert!(reader.next().unwrap().is_none());
    }
}
