//! A file in weir that this process writes beside PnetCDF.

use core::ffi::CStr;
use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::os::unix::ffi::OsStrExt;

use weir_arraylog::EntryWriter;
use weir_arrays::definitions::FileDefinitions;
use weir_arrays::log::LogEntry;
use weir_connect::place;

use crate::log_files::LogFiles;

/// A file that this process writes itself.
#[derive(Debug)]
pub struct DirectFile {
    file: File,
    writer: EntryWriter,
    /// With several servers, processes of other nodes see writes only after a sync.
    has_one_server: bool,
}

impl DirectFile {
    /// Opens a file for writing. `None`: it is not in weir.
    ///
    /// # Errors
    ///
    /// Errors of open(2).
    pub fn open(path: &CStr) -> io::Result<Option<DirectFile>> {
        let Some(path) = place::path_in_weir(path) else {
            return Ok(None);
        };
        let file = File::options()
            .write(true)
            .open(OsStr::from_bytes(path.to_bytes()))?;
        Ok(Some(DirectFile {
            file,
            writer: EntryWriter::default(),
            has_one_server: place::has_one_server(),
        }))
    }

    /// Writes entries of a log, in order. Processes of other nodes see them once this has returned.
    ///
    /// # Errors
    ///
    /// Errors of the log and of the file. One entry may be written in part, and those after it are not written.
    pub fn write_entries(
        &mut self,
        log: &LogFiles,
        definitions: &FileDefinitions,
        entries: &[LogEntry],
    ) -> io::Result<()> {
        for entry in entries {
            let read = |offset, elements: &mut [u8]| log.read_elements(offset, elements);
            self.writer
                .write_entry(&self.file, definitions, entry, read)?;
        }
        match self.has_one_server {
            true => Ok(()),
            false => self.file.sync_data(),
        }
    }
}
