//! The renames that this server has led, for the process that walks a tree beside programs: a walk may miss a file
//! that gets another directory meanwhile, and what a directory holds that was renamed is to be seen at once.
//!
//! A rename is counted before any of its names changes. The counts are of the server's process: one that was
//! started anew begins at 0, which whoever compares them takes for a change.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;

use weir_core::proto::LedRenames;
use weir_core::types::Ino;

use crate::cluster::names::{InstanceNames, NamesNeeds};

/// The most directories that are kept.
const MOST_DIRECTORIES: usize = 4096;

#[derive(Default)]
pub(in crate::cluster) struct RenameLog {
    begun: Cell<u64>,
    ended: Cell<u64>,
    of_directories: Cell<u64>,
    /// The newest last.
    directories: RefCell<VecDeque<Ino>>,
}

/// A rename that has begun; it has ended when this is dropped.
pub(super) struct RenameUnderWay<'l>(&'l RenameLog);

impl Drop for RenameUnderWay<'_> {
    fn drop(&mut self) {
        self.0.ended.set(self.0.ended.get() + 1);
    }
}

impl RenameLog {
    /// Counts a rename that is about to change names.
    pub(super) fn begin(&self) -> RenameUnderWay<'_> {
        self.begun.set(self.begun.get() + 1);
        RenameUnderWay(self)
    }

    /// Notes a directory that is about to get another name.
    pub(super) fn note_directory(&self, dir: Ino) {
        let mut directories = self.directories.borrow_mut();
        if directories.len() == MOST_DIRECTORIES {
            directories.pop_front();
        }
        directories.push_back(dir);
        self.of_directories.set(self.of_directories.get() + 1);
    }

    /// The renames so far, with the directories of those that are not among the first `since`.
    fn led(&self, since: u64) -> LedRenames {
        let directories = self.directories.borrow();
        let of_directories = self.of_directories.get();
        let new = usize::try_from(of_directories.saturating_sub(since)).unwrap_or(usize::MAX);
        let known = directories.len().saturating_sub(new);
        LedRenames {
            begun: self.begun.get(),
            ended: self.ended.get(),
            of_directories,
            directories: directories.iter().skip(known).copied().collect(),
        }
    }
}

impl<S: NamesNeeds> InstanceNames<S> {
    /// See [`weir_core::proto::GetRenames`].
    pub(in crate::cluster) fn led_renames(&self, since: u64) -> LedRenames {
        self.state().rename_log.led(since)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_caller_gets_the_directories_that_it_does_not_know() {
        let log = RenameLog::default();
        let under_way = log.begin();
        log.note_directory(Ino(7));
        let led = log.led(0);
        assert_eq!((led.begun, led.ended, led.of_directories), (1, 0, 1));
        drop(under_way);
        log.note_directory(Ino(8));
        let led = log.led(1);
        assert_eq!((led.ended, led.directories), (1, vec![Ino(8)]));
        assert_eq!(log.led(2).directories, []);
        for ino in 0..2 * MOST_DIRECTORIES as u64 {
            log.note_directory(Ino(ino));
        }
        let led = log.led(2);
        assert_eq!(led.of_directories, 2 + 2 * MOST_DIRECTORIES as u64);
        assert_eq!(led.directories.len(), MOST_DIRECTORIES);
    }
}
