//! The logs of a directory.

use std::fs::{File, TryLockError};
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use weir_arrays::definitions::FileDefinitions;
use weir_arrays::log::{BlockMap, LogContents, LogEntry, HEAD_BYTES};

use crate::blocks::WriterBlocks;

/// The extension of the files with records.
const RECORDS: &str = "records";
/// The longest file of records that is read, bytes.
const MAX_RECORDS_BYTES: u64 = 1 << 32;

/// The log of one writer.
#[derive(Debug)]
pub struct WriterLog {
    elements: WriterBlocks,
    /// The records.
    pub contents: LogContents,
}

impl WriterLog {
    /// Reads bytes of its elements.
    ///
    /// # Errors
    ///
    /// Errors of the file.
    pub fn read_elements(&self, offset: u64, elements: &mut [u8]) -> io::Result<()> {
        self.elements.read_exact(offset, elements)
    }
}

/// The log of a file: the logs of all processes that had the file open.
#[derive(Debug)]
pub struct ArrayLog {
    /// The directory of this log alone.
    pub directory: PathBuf,
    /// True if a program has it open.
    pub is_open: bool,
    /// The logs of the single processes.
    pub writers: Vec<WriterLog>,
    /// Its files of records. They are locked if no program has them open, so that a second replay sees that they are in use.
    locked: Vec<File>,
}

impl ArrayLog {
    /// Reads the log in a directory.
    ///
    /// # Errors
    ///
    /// The directory, or a file in it, cannot be read, or is not a log.
    pub fn read(directory: &Path) -> io::Result<ArrayLog> {
        let mut log = ArrayLog {
            directory: directory.to_owned(),
            is_open: false,
            writers: Vec::new(),
            locked: Vec::new(),
        };
        let mut paths: Vec<PathBuf> = Vec::new();
        for entry in std::fs::read_dir(directory)? {
            let path = entry?.path();
            if path
                .extension()
                .is_some_and(|extension| extension == RECORDS)
            {
                paths.push(path);
            }
        }
        paths.sort();
        for path in paths {
            let records = File::open(&path)?;
            match records.try_lock() {
                Ok(()) => {}
                Err(TryLockError::WouldBlock) => log.is_open = true,
                Err(TryLockError::Error(error)) => return Err(error),
            }
            log.read_pair(&records, &path)?;
            log.locked.push(records);
        }
        Ok(log)
    }

    fn read_pair(&mut self, mut records: &File, path: &Path) -> io::Result<()> {
        let mut bytes = Vec::new();
        records
            .by_ref()
            .take(MAX_RECORDS_BYTES)
            .read_to_end(&mut bytes)?;
        let invalid = |error| {
            io::Error::new(
                io::ErrorKind::InvalidData,
                format!("{}: {error}", path.display()),
            )
        };
        let map = match BlockMap::from_head(&bytes) {
            Ok(map) => map,
            // Its writer was killed before it wrote anything.
            Err(_) if bytes.is_empty() => return Ok(()),
            Err(error) => return Err(invalid(error)),
        };
        let blocks = &bytes[usize::try_from(HEAD_BYTES).expect("64")..];
        for writer in 0..map.writers {
            let stream = map.stream(writer, blocks);
            if stream.is_empty() && writer > 0 {
                // The file ends before this writer's first block, and before those of all after it.
                break;
            }
            let elements = WriterBlocks {
                file: File::open(path.with_extension("elements"))?,
                map,
                writer,
                start: 0,
            };
            let data_bytes = map.stream_bytes(writer, elements.file.metadata()?.len());
            let contents = LogContents::read(&stream, data_bytes);
            self.writers.push(WriterLog { elements, contents });
        }
        Ok(())
    }

    /// The path of the file when it was opened.
    pub fn path(&self) -> Option<&[u8]> {
        let mut paths = self
            .writers
            .iter()
            .map(|writer| writer.contents.path.as_slice());
        paths.find(|path| !path.is_empty())
    }

    /// The inode number of the file.
    pub fn inode(&self) -> Option<u64> {
        let mut inodes = self.writers.iter().map(|writer| writer.contents.inode);
        inodes.find(|inode| *inode != 0)
    }

    /// The variables of the file.
    pub fn definitions(&self) -> Option<&FileDefinitions> {
        let definitions = self
            .writers
            .iter()
            .map(|writer| &writer.contents.definitions);
        definitions
            .into_iter()
            .find(|definitions| !definitions.variables.is_empty())
    }

    /// The entries of all writers, in the order in which they were written. Those of one writer keep the order of its log, also if
    /// its clock was set back between them.
    pub fn entries(&self) -> Vec<(&WriterLog, &LogEntry)> {
        let writers = self.writers.iter();
        let entries = writers.flat_map(|writer| {
            let entries = &writer.contents.entries;
            let stamps = rising(entries.iter().map(|entry| entry.stamp_ns));
            stamps.zip(entries.iter().map(move |entry| (writer, entry)))
        });
        let mut entries: Vec<_> = entries.collect();
        // Stable: entries with the same stamp keep their order in the log of a writer.
        entries.sort_by_key(|(stamp, _)| *stamp);
        entries.into_iter().map(|(_, entry)| entry).collect()
    }

    /// Removes the log, and the directory of all logs if this was the last one in it.
    ///
    /// # Errors
    ///
    /// Errors of the file system.
    pub fn remove(self) -> io::Result<()> {
        let ArrayLog {
            directory, locked, ..
        } = self;
        std::fs::remove_dir_all(&directory)?;
        drop(locked);
        // Fails while other logs are in the directory of all logs: it stays then.
        directory.parent().map(std::fs::remove_dir);
        Ok(())
    }
}

/// The name of the directory of a log of a file: `NAME.INODE.NUMBER`. `number`: one that no other log of the file has.
pub fn log_name(file: &Path, inode: u64, number: u64) -> String {
    let name = file.file_name().unwrap_or_default();
    format!("{}.{inode:x}.{number:x}", name.to_string_lossy())
}

/// True if this is the name of a log of the file with this inode number, under any file name.
fn is_log_of(name: &str, inode: u64) -> bool {
    let mut parts = name.rsplit('.').skip(1);
    parts.next() == Some(&format!("{inode:x}"))
}

/// The logs in a directory of logs; if the directory is a log itself, that one. With `inode`: only the logs of that file. A log
/// that cannot be read is returned as its error.
///
/// # Errors
///
/// The directory cannot be read.
pub fn find_logs(
    directory: &Path,
    inode: Option<u64>,
) -> io::Result<Vec<(PathBuf, io::Result<ArrayLog>)>> {
    let mut found = Vec::new();
    let mut is_one = false;
    for entry in std::fs::read_dir(directory)? {
        let path = entry?.path();
        is_one |= path
            .extension()
            .is_some_and(|extension| extension == RECORDS);
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        if inode.is_none_or(|inode| is_log_of(&name, inode)) && path.is_dir() {
            let log = ArrayLog::read(&path);
            found.push((path, log));
        }
    }
    if is_one {
        return Ok(vec![(directory.to_owned(), ArrayLog::read(directory))]);
    }
    found.sort_by(|(one, _), (other, _)| one.cmp(other));
    Ok(found)
}
/// The stamps of a writer, each at least that of the entry before it.
fn rising(stamps: impl Iterator<Item = u64>) -> impl Iterator<Item = u64> {
    stamps.scan(0, |last, stamp| {
        *last = stamp.max(*last);
        Some(*last)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clock_that_is_set_back_changes_no_order() {
        let stamps: Vec<u64> = rising([5, 7, 3, 6, 9].into_iter()).collect();
        assert_eq!(stamps, [5, 7, 7, 7, 9]);
    }
}
