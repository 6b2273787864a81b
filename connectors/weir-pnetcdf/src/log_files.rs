//! The pair of files in weir that a process writes its log to (`weir_arrays::log`).
//!
//! Elements are written before their record, so a process that is killed leaves only whole entries. In weir a write that has
//! returned is not lost with its process.

use std::fs::{DirBuilder, OpenOptions};
use std::io::{self, ErrorKind};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{DirBuilderExt, FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use weir_arraylog::WriterBlocks;
use weir_arrays::log::{BlockMap, LogRecord, HEAD_BYTES};

/// A log that is being written.
#[derive(Debug)]
pub struct LogFiles {
    paths: [PathBuf; 2],
    records: WriterBlocks,
    elements: WriterBlocks,
    records_end: u64,
    elements_end: u64,
    /// The elements before this offset are freed.
    elements_freed: u64,
    /// The end of the records that a clear keeps: path and definitions.
    records_kept: u64,
    encoded: Vec<u8>,
}

impl LogFiles {
    /// Makes the directory of a log, with those above it.
    pub fn create_directory(directory: &Path) -> io::Result<()> {
        DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(directory)
    }

    /// Removes the directory if it is empty, and the one above it.
    pub fn remove_directory(directory: &Path) {
        // The upper one stays if other logs are in it.
        if std::fs::remove_dir(directory).is_ok() {
            directory.parent().map(std::fs::remove_dir);
        }
    }

    /// Opens a pair of files. Its first writer makes them, before the others open them.
    pub fn open(directory: &Path, name: &str, map: BlockMap, writer: u32) -> io::Result<LogFiles> {
        let paths = ["records", "elements"].map(|kind| directory.join(format!("{name}.{kind}")));
        let open = |path: &Path, start| {
            let mut options = OpenOptions::new();
            options.read(true).write(true).mode(0o600);
            let file = options.create_new(writer == 0).open(path)?;
            io::Result::Ok(WriterBlocks {
                file,
                map,
                writer,
                start,
            })
        };
        let files = LogFiles {
            records: open(&paths[0], HEAD_BYTES)?,
            elements: open(&paths[1], 0)?,
            paths,
            records_end: 0,
            elements_end: 0,
            elements_freed: 0,
            records_kept: 0,
            encoded: Vec::new(),
        };
        // Others take a log without a lock for that of a killed program.
        files.records.file.lock_shared()?;
        if writer == 0 {
            files.records.file.write_all_at(&map.head(), 0)?;
        }
        Ok(files)
    }

    /// Bytes of elements in the log.
    pub fn bytes(&self) -> u64 {
        self.elements_end
    }

    /// Bytes that all processes together may still write; the highest number if that is unknown.
    pub fn available_bytes(&self) -> u64 {
        let mut found = core::mem::MaybeUninit::<libc::statvfs>::zeroed();
        // SAFETY: a descriptor of ours, and room for the answer, of which zeros are a valid value.
        let (code, found) = unsafe {
            let file = self.elements.file.as_raw_fd();
            (
                libc::fstatvfs(file, found.as_mut_ptr()),
                found.assume_init(),
            )
        };
        match code {
            0 => found.f_bavail.saturating_mul(found.f_frsize),
            _ => u64::MAX,
        }
    }

    /// Appends elements, and returns their offset.
    pub fn append_elements(&mut self, elements: &[u8]) -> io::Result<u64> {
        let offset = self.elements_end;
        self.elements.write_all(offset, elements)?;
        self.elements_end += elements.len() as u64;
        Ok(offset)
    }

    /// Appends a record.
    pub fn append_record(&mut self, record: &LogRecord) -> io::Result<()> {
        let mut encoded = core::mem::take(&mut self.encoded);
        encoded.clear();
        record.append(&mut encoded);
        self.records.write_all(self.records_end, &encoded)?;
        self.records_end += encoded.len() as u64;
        self.encoded = encoded;
        Ok(())
    }

    /// Appends a record that a clear keeps.
    pub fn append_kept(&mut self, record: &LogRecord) -> io::Result<()> {
        self.append_record(record)?;
        self.records_kept = self.records_end;
        Ok(())
    }

    /// Reads elements.
    pub fn read_elements(&self, offset: u64, elements: &mut [u8]) -> io::Result<()> {
        self.elements.read_exact(offset, elements)
    }

    /// Frees the room of all entries, which are in the file. A shared pair is not truncated: its elements get holes.
    pub fn clear(&mut self) -> io::Result<()> {
        if self.records.map.writers > 1 {
            let kept = core::mem::replace(&mut self.elements_freed, self.elements_end);
            self.punch(kept, self.elements_end);
            return Ok(());
        }
        self.records.file.set_len(HEAD_BYTES + self.records_kept)?;
        self.elements.file.set_len(0)?;
        (self.records_end, self.elements_end) = (self.records_kept, 0);
        Ok(())
    }

    /// Punches a hole into the elements. If that fails, the room stays in use until the end.
    fn punch(&self, start: u64, end: u64) {
        for (at, bytes) in self.elements.pieces(start, end - start) {
            let (Ok(at), Ok(bytes)) = (i64::try_from(at), i64::try_from(bytes)) else {
                return;
            };
            let mode = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
            // SAFETY: a descriptor of ours.
            unsafe { libc::fallocate(self.elements.file.as_raw_fd(), mode, at, bytes) };
        }
    }

    /// The directory of the log.
    pub fn directory(&self) -> Option<&Path> {
        self.paths[0].parent()
    }

    /// Removes the pair.
    pub fn remove(self) -> io::Result<()> {
        for path in &self.paths {
            match std::fs::remove_file(path) {
                // Another process of the node was first.
                Err(error) if error.kind() == ErrorKind::NotFound => {}
                other => other?,
            }
        }
        Ok(())
    }
}
