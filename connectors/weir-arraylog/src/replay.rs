//! Writes the entries of a log into the file, without PnetCDF: converts them, and writes them at the variables' offsets.
//!
//! Replay is idempotent: a second one, also after one that was interrupted, gives the same file.

use std::fs::{File, Metadata};
use std::io::{self, Read};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};

use weir_arrays::header::{FileHeader, HeaderError, RECORDS_OFFSET};

use crate::entry_writer::EntryWriter;
use crate::found::ArrayLog;

/// The longest header that is read, bytes.
const MAX_HEADER_BYTES: usize = 1 << 28;

/// The writes that were replayed.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct ReplayedWrites {
    /// The file.
    pub path: PathBuf,
    /// Entries of the log.
    pub entries: u64,
    /// Bytes written to the file.
    pub bytes: u64,
}

/// A failure to replay a log.
#[derive(Debug, thiserror::Error)]
pub enum ReplayError {
    /// The log does not name its file.
    #[error("the log does not say which file it is of")]
    NoFile,
    /// The log's file is neither in the directory in which the log was made nor below it.
    #[error("{} was removed", .0.display())]
    Removed(PathBuf),
    /// The log's path names another file or none, and lies outside the tree that is searched for the inode number.
    #[error("{} is not the file of the log any more; to name it: weir log replay --path LOG --to FILE", .0.display())]
    Moved(PathBuf),
    /// The file cannot be read or written.
    #[error("{}: {error}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// The error.
        error: io::Error,
    },
    /// The file's header cannot be read.
    #[error("{}: {error}", path.display())]
    Header {
        /// The file.
        path: PathBuf,
        /// The error.
        error: HeaderError,
    },
    /// The file's variables differ from the log's.
    #[error("{}: its variables are not those that the log speaks of: it was defined anew since", .0.display())]
    Redefined(PathBuf),
}

fn failed_at(path: &Path, error: io::Error) -> ReplayError {
    ReplayError::File {
        path: path.to_owned(),
        error,
    }
}

/// Finds the file of a log: the one at its path, or, if that has another inode number or is gone, the one with the log's inode
/// number in or below the parent of the directory of all logs.
fn find_file(log: &ArrayLog) -> Result<PathBuf, ReplayError> {
    let path = log.path().ok_or(ReplayError::NoFile)?;
    let named = Path::new(std::ffi::OsStr::from_bytes(path));
    let Some(inode) = log.inode() else {
        return Ok(named.to_owned());
    };
    // Only ENOENT means that the file is gone. After any other error it may come back with a server that is down.
    let is_it = |path: &Path, found: io::Result<Metadata>| match found {
        Ok(found) => Ok(found.ino() == inode),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(failed_at(path, error)),
    };
    if is_it(named, named.metadata())? {
        return Ok(named.to_owned());
    }
    let root = log.directory.parent().and_then(Path::parent);
    let Some(root) = root.filter(|root| named.starts_with(root)) else {
        return Err(ReplayError::Moved(named.to_owned()));
    };
    let mut open = vec![root.to_owned()];
    while let Some(directory) = open.pop() {
        let failed = |error| failed_at(&directory, error);
        for entry in std::fs::read_dir(&directory).map_err(failed)? {
            let entry = entry.map_err(failed)?;
            let kind = entry.file_type().map_err(failed)?;
            if kind.is_dir() {
                open.push(entry.path());
            } else if kind.is_file() && is_it(&entry.path(), entry.metadata())? {
                return Ok(entry.path());
            }
        }
    }
    Err(ReplayError::Removed(named.to_owned()))
}

/// Writes the entries of a log into its file, or into `target`, and syncs that file.
///
/// # Errors
///
/// See [`ReplayError`]. The log stays as it is.
pub fn replay(log: &ArrayLog, target: Option<&Path>) -> Result<ReplayedWrites, ReplayError> {
    let entries = log.entries();
    let Some(definitions) = log.definitions().filter(|_| !entries.is_empty()) else {
        return Ok(ReplayedWrites::default());
    };
    let path = target.map_or_else(|| find_file(log), |target| Ok(target.to_owned()))?;
    let path = path.as_path();
    let failed = |error| failed_at(path, error);
    let file = File::options()
        .read(true)
        .write(true)
        .open(path)
        .map_err(failed)?;
    let header = read_header(&file, path)?;
    if !header.is_that_of(definitions) {
        return Err(ReplayError::Redefined(path.to_owned()));
    }
    let mut replayed = ReplayedWrites {
        path: path.to_owned(),
        ..ReplayedWrites::default()
    };
    let mut records = header.records;
    let mut entry_writer = EntryWriter::default();
    for (writer, entry) in entries {
        let read = |offset, elements: &mut [u8]| writer.read_elements(offset, elements);
        let written = entry_writer.write_entry(&file, definitions, entry, read);
        replayed.bytes += written.map_err(failed)?;
        replayed.entries += 1;
        records = records.max(entry.end_record(definitions));
    }
    if records > header.records {
        // Data first: after a crash, too few records are an older state of the file, too many are damage.
        file.sync_data().map_err(failed)?;
        file.write_all_at(&header.encoded_records(records), RECORDS_OFFSET)
            .map_err(failed)?;
    }
    file.sync_all().map_err(failed)?;
    Ok(replayed)
}

fn read_header(mut file: &File, path: &Path) -> Result<FileHeader, ReplayError> {
    let mut bytes = Vec::new();
    let mut wanted = 64 << 10;
    loop {
        let more = (wanted - bytes.len()) as u64;
        let read = file.by_ref().take(more).read_to_end(&mut bytes);
        let read = read.map_err(|error| ReplayError::File {
            path: path.to_owned(),
            error,
        })?;
        match FileHeader::read(&bytes) {
            Err(HeaderError::Short) if read > 0 && wanted < MAX_HEADER_BYTES => wanted *= 4,
            result => {
                return result.map_err(|error| ReplayError::Header {
                    path: path.to_owned(),
                    error,
                })
            }
        }
    }
}
