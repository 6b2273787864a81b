//! Memory behind the regions that this server shares with clients.
//!
//! The regions are sparse and others may fill their tmpfs: whoever then touches a page for the
//! first time is killed by SIGBUS. So their heads get their memory when a region is made, and the
//! tables as they are used ([`Platform::present`]).
//!
//! [`Platform::present`]: crate::node::Platform::present

use std::cell::Cell;
use std::path::{Path, PathBuf};

use rustix::fs::CWD;
use rustix::io::Errno;
use std::os::unix::ffi::OsStrExt;
use weir_store::map::{file_bytes, open_shared, Access, MapError};
use weir_store::present::Present;

use super::ServerError;
use crate::node::Table;

/// A table in a region.
#[derive(Clone, Copy, Debug)]
pub struct Strip {
    /// Where it begins, bytes.
    pub at: u64,
    /// The size of an entry, bytes.
    pub entry: u64,
    /// How many entries it has.
    pub count: u64,
}

/// A region and where its tables are.
#[derive(Debug)]
pub struct Ground {
    path: PathBuf,
    memory: Present,
    tables: Vec<(Table, Strip, Cell<usize>)>,
    /// That there is no room was said, and there was none since.
    said: Cell<bool>,
}

impl Ground {
    /// The region in the file `path`, with these tables.
    pub fn of(path: &Path, tables: &[(Table, Strip)]) -> Result<Ground, ServerError> {
        let failed = |error: MapError| ServerError::Map {
            path: path.to_owned(),
            error,
        };
        let file = open_shared(CWD, path.as_os_str().as_bytes(), Access::ReadWrite);
        let file = file.map_err(failed)?;
        let len = file_bytes(&file).map_err(failed)?;
        let table = |(table, strip): &(Table, Strip)| (*table, *strip, Cell::new(0));
        Ok(Ground {
            path: path.to_owned(),
            memory: Present::new(file, len),
            tables: tables.iter().map(table).collect(),
            said: Cell::new(false),
        })
    }

    /// Sees to it that there is memory behind a part of the region, before anything is in it.
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
                let reach = (self.memory.reach(end) - strip.at) / strip.entry;
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
