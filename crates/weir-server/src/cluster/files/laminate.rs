//! Lamination: a file becomes read-only for good, once no program has it open for writing.
//!
//! A client opens a file by writing its inode into a description and then checking if it is
//! laminated; the server marks it laminated and then checks the descriptions. So one of the two
//! sees the other, and no write comes after a lamination.

use std::collections::HashSet;
use std::sync::atomic::{fence, Ordering};

use weir_core::names::{Attr, LaminateOn, Lamination, SetAttr};
use weir_core::node::ofd::Ofd;
use weir_core::proto::{Cause, FsError};
use weir_core::types::Ino;

use crate::cluster::files::descriptions::OpenDescriptions;
use crate::cluster::files::{FileSteps, NodeFiles};
use crate::cluster::refusal::refusal;

/// O_WRONLY and O_RDWR.
const WRITES: u32 = 3;

/// Returns true if a cause suffices for laminating this file.
pub(super) fn is_cause(attr: &Attr, cause: Cause) -> bool {
    match cause {
        Cause::Request => true,
        Cause::Close => {
            attr.lamination == Lamination::Due || attr.policy.laminate_on == LaminateOn::Close
        }
    }
}

impl<'a> OpenDescriptions<'a, '_> {
    /// The files of the descriptions that are open for writing.
    fn written(self) -> impl Iterator<Item = Ino> + 'a {
        let writes = |ofd: &Ofd| ofd.flags.load(Ordering::Acquire) & WRITES != 0;
        self.opened()
            .filter_map(move |(ino, ofd)| writes(ofd).then_some(ino))
    }

    /// The number of descriptions that have a file open for writing.
    fn count_writers(self, ino: Ino) -> u32 {
        let writers = self.written().filter(|written| *written == ino);
        u32::try_from(writers.count()).unwrap_or(u32::MAX)
    }
}

/// Seals a file against opens for writing, if no program has it open for writing. Returns the number of descriptions
/// that do; if there are any, its lamination is due.
pub(super) fn try_seal(node: &mut impl FileSteps, ino: Ino) -> Result<u32, FsError> {
    node.take_all_notes();
    node.files().set_lamination(ino, Lamination::Sealing)?;
    fence(Ordering::SeqCst);
    let writers = node.opened().count_writers(ino);
    if writers > 0 {
        node.files().set_lamination(ino, Lamination::Due)?;
    } else {
        node.writes().harvest(ino);
    }
    Ok(writers)
}

/// The number of descriptions of this node that have a file open for writing. A client that has just made the file
/// counts as one, even before its description shows it.
pub(super) fn count_writers(node: &mut impl FileSteps, ino: Ino) -> u32 {
    node.take_all_notes();
    let attached = u32::from(node.writers().has_writers_of(ino));
    node.opened().count_writers(ino).max(attached)
}

impl NodeFiles<'_, '_> {
    /// Sets a file's state of lamination.
    pub(super) fn set_lamination(&mut self, ino: Ino, is: Lamination) -> Result<(), FsError> {
        let set = SetAttr {
            lamination: Some(is),
            ..SetAttr::default()
        };
        self.names.setattr(ino, &set).map_err(refusal)?;
        match is {
            Lamination::Due => self.tables.watched.insert(ino),
            _ => self.tables.watched.remove(&ino),
        };
        Ok(())
    }

    /// Watches a file again that could not be laminated, although it had no writer.
    pub(super) fn watch_again(&mut self, ino: Ino) {
        if self.names.attr(ino).is_ok() {
            self.tables.watched.insert(ino);
        }
    }

    /// Takes the watched files that no program has open for writing any more. A client that has just made a file is
    /// attached to it before its description shows it.
    pub(super) fn take_unwritten(&mut self) -> Vec<Ino> {
        if self.tables.watched.is_empty() {
            return Vec::new();
        }
        let written: HashSet<Ino> = self.tables.opened(self.open).written().collect();
        let is_unwritten =
            |ino: &Ino| !written.contains(ino) && !self.writers().has_writers_of(*ino);
        let all: Vec<Ino> = self
            .tables
            .watched
            .iter()
            .copied()
            .filter(is_unwritten)
            .collect();
        for ino in &all {
            self.tables.watched.remove(ino);
        }
        all
    }

    /// Handles a change of the permission bits: it removes a file's last write permission, or adds
    /// one to a file that was to be laminated.
    pub(super) fn note_mode(&mut self, attr: &Attr, mode: u32) -> Result<(), FsError> {
        let writable = mode & 0o222 != 0;
        match attr.lamination {
            Lamination::Done | Lamination::Sealing if writable => Err(FsError::ReadOnly),
            Lamination::Due if writable => self.set_lamination(attr.ino, Lamination::No),
            Lamination::No if !writable && attr.policy.laminate_on != LaminateOn::Request => {
                self.set_lamination(attr.ino, Lamination::Due)
            }
            _ => Ok(()),
        }
    }
}
