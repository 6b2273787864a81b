//! Files without a name, which live as long as somebody has them open.
//!
//! A client opens a file by writing its inode into a description and then looking
//! whether the inode still has a name; the server takes the name and then looks at the
//! descriptions. So one of the two sees the other. No message says that a file was
//! closed: the descriptions are looked through when there is time, when there are
//! many orphans, and when room is needed.

use std::collections::HashSet;
use std::sync::atomic::{fence, Ordering};

use weir_core::names::FileType;
use weir_core::types::Ino;

use crate::node::{Node, Platform};

/// With so many orphans a sweep is due.
const MANY: usize = 1024;

impl<P: Platform> Node<'_, P> {
    /// An inode lost its last name.
    pub(crate) fn add_orphan(&mut self, ino: Ino) {
        self.orphans.insert(ino);
        // Doubling, so that many that are open do not cost a sweep each.
        if self.orphans.len() >= MANY && self.orphans.len().is_power_of_two() {
            self.sweep();
        }
    }

    /// Frees the orphans that nobody has open.
    pub(crate) fn sweep(&mut self) {
        if self.orphans.is_empty() || self.keeps_orphans {
            return;
        }
        let held: HashSet<Ino> = self
            .opened()
            .filter(|ino| self.orphans.contains(ino))
            .collect();
        let gone: Vec<Ino> = self
            .orphans
            .iter()
            .copied()
            .filter(|ino| !held.contains(ino) && !self.pinned.contains(ino))
            .filter(|ino| self.block_of(*ino).is_none())
            .collect();
        for ino in gone {
            self.free_inode(ino);
        }
    }

    /// Frees one orphan, if nobody has it open.
    pub(crate) fn sweep_one(&mut self, ino: Ino) {
        self.take_in(ino);
        if self.orphans.contains(&ino)
            && !(self.keeps_orphans || self.pinned.contains(&ino))
            && self.block_of(ino).is_none()
            && !self.is_open(ino)
        {
            self.free_inode(ino);
        }
    }

    /// Takes in what the clients of a file wrote and closed.
    pub(crate) fn take_in(&mut self, ino: Ino) {
        if self.block_of(ino).is_some() {
            self.take_all_notes();
        }
        self.harvest(ino);
    }

    /// The files that somebody of this node has open: for who asks after many.
    pub(crate) fn open_files(&self) -> HashSet<Ino> {
        self.opened().collect()
    }

    /// Whether somebody of this node has a file open: for who asks after one.
    pub(crate) fn is_open(&self, ino: Ino) -> bool {
        self.opened().any(|opened| opened == ino)
    }

    /// What each description says that is lent.
    fn opened(&self) -> impl Iterator<Item = Ino> + '_ {
        fence(Ordering::SeqCst);
        self.ofds
            .entries()
            .filter_map(|index| self.open.ofds.get(index as usize))
            .map(|ofd| Ino(ofd.ino.load(Ordering::SeqCst)))
    }

    fn free_inode(&mut self, ino: Ino) {
        self.orphans.remove(&ino);
        self.locks.forget_file(ino);
        self.xattrs.forget(ino);
        let kind = self.names.attr(ino).map(|attr| attr.file_type());
        if matches!(kind, Ok(FileType::Fifo | FileType::Socket)) {
            self.platform.remove_special(ino);
        }
        if self.files.get(ino).is_some_and(|index| !index.is_empty()) {
            self.change(ino, |index, freed, _| index.clear(freed));
            self.note_cleared(ino);
            self.announce_changes();
        }
        if self.identity.is_of_several() {
            self.stored.remove(&ino);
            self.gone.push(ino);
        }
        if let Err(error) = self.names.release(ino) {
            tracing::error!(?ino, %error, "an unnamed file cannot be freed");
        }
    }
}
