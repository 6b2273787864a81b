//! Memory behind the regions that this server shares with clients.
//!
//! The regions are sparse, and other programs may fill their tmpfs. A process that then touches a
//! page for the first time is killed by SIGBUS. So the head of a region gets its memory when the
//! region is made, and the tables get theirs as they are used ([`Platform::present`]).
//!
//! [`Platform::present`]: crate::node::Platform::present

use std::cell::Cell;
use std::path::{Path, PathBuf};

use rustix::fs::CWD;
use rustix::io::Errno;
use std::os::unix::ffi::OsStrExt;
use weir_store::map::{file_bytes, open_shared, Access, MapError};
use weir_store::present::PresentMemory;

use super::ServerError;
use crate::node::Table;

/// A table in a region.
#[derive(Clone, Copy, Debug)]
pub struct TableLayout {
    /// Its beginning, bytes.
    pub at: u64,
    /// The size of an entry, bytes.
    pub entry: u64,
    /// The number of its entries.
    pub count: u64,
}

/// A region and the positions of its tables.
#[derive(Debug)]
pub struct SparseRegion {
    path: PathBuf,
    memory: PresentMemory,
    tables: Vec<(Table, TableLayout, Cell<usize>)>,
    /// True if the lack of room was logged, and there was no room since.
    said: Cell<bool>,
}

impl SparseRegion {
    /// The region in the file `path`, with these tables.
    pub fn open(path: &Path, tables: &[(Table, TableLayout)]) -> Result<SparseRegion, ServerError> {
        let failed = |error: MapError| ServerError::Map {
            path: path.to_owned(),
            error,
        };
        let file = open_shared(CWD, path.as_os_str().as_bytes(), Access::ReadWrite);
        let file = file.map_err(failed)?;
        let len = file_bytes(&file).map_err(failed)?;
        let table = |(table, strip): &(Table, TableLayout)| (*table, *strip, Cell::new(0));
        Ok(SparseRegion {
            path: path.to_owned(),
            memory: PresentMemory::new(file, len),
            tables: tables.iter().map(table).collect(),
            said: Cell::new(false),
        })
    }

    /// Allocates memory for a part of the region, before it is used.
    pub fn lay(&self, at: u64, bytes: u64) -> Result<(), ServerError> {
        let laid = self.memory.ensure(at..at + bytes);
        laid.map_err(|errno| ServerError::Room {
            path: self.path.clone(),
            errno,
        })
    }

    /// As [`crate::node::Platform::present`]; `None`: the table is of another region.
    pub fn present(&self, table: Table, count: usize) -> Option<usize> {
        let (_, strip, known) = self.tables.iter().find(|(own, ..)| *own == table)?;
        let wanted = (count as u64).min(strip.count);
        if wanted <= known.get() as u64 {
            return Some(known.get());
        }
        let end = strip.at + wanted * strip.entry;
        match self.memory.ensure(strip.at..end) {
            Ok(()) => {
                let reach = (self.memory.present_end(end) - strip.at) / strip.entry;
                known.set(usize::try_from(reach.min(strip.count)).unwrap_or(usize::MAX));
                self.said.set(false);
            }
            Err(errno) => self.say(table, errno),
        }
        Some(known.get())
    }

    fn say(&self, table: Table, errno: Errno) {
        if !self.said.replace(true) {
            tracing::error!(
                path = %self.path.display(), ?table, %errno,
                "no room in the file system of the shared memory: what needs more of it fails \
                 with ENOSPC; free some there (others may have filled it), remove files of weir, \
                 or start with another memory.directory"
            );
        }
    }
}
