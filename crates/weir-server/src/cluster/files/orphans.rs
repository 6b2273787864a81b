//! Files without a name, which live as long as a program has them open.
//!
//! A client opens a file by writing its inode into a description and then checking that the inode
//! still has a name; the server removes the name and then checks the descriptions. So one of the
//! two sees the other. No message says that a file was closed: the server scans the descriptions
//! when there is time, when there are many orphans, and when it needs room.

use std::collections::HashSet;

use weir_core::journal::State;
use weir_core::names::{FileType, Lamination};
use weir_core::types::Ino;

use crate::cluster::files::{NodeFiles, OpenFileTables};
use crate::node::{Node, Platform};

/// The number of orphans from which a sweep is due.
const MANY: usize = 1024;

impl<P: Platform> Node<'_, P> {
    /// Adds an inode that lost its last name.
    pub(in crate::cluster) fn add_orphan(&mut self, ino: Ino) {
        self.files.orphans.insert(ino);
        // At each doubling, so that many open orphans do not cost a sweep each.
        if self.files.orphans.len() >= MANY && self.files.orphans.len().is_power_of_two() {
            self.sweep();
        }
    }

    /// Frees the orphans that no program has open.
    pub(in crate::cluster) fn sweep(&mut self) {
        if self.files.orphans.is_empty() || self.files.keeps_orphans {
            return;
        }
        let opened = self.files.opened(&self.open).inodes();
        let held: HashSet<Ino> = opened
            .filter(|ino| self.files.orphans.contains(ino))
            .collect();
        let gone: Vec<Ino> = self
            .files
            .orphans
            .iter()
            .copied()
            .filter(|ino| !held.contains(ino) && !self.files.pinned.contains(ino))
            .filter(|ino| !self.writers().has_writers_of(*ino))
            .collect();
        for ino in gone {
            self.free_inode(ino);
        }
    }

    /// Frees one orphan, if no program has it open.
    pub(in crate::cluster) fn sweep_one(&mut self, ino: Ino) {
        self.take_in(ino);
        if self.files.orphans.contains(&ino)
            && !(self.files.keeps_orphans
                || self.files.pinned.contains(&ino)
                || self.writers().has_writers_of(ino)
                || self.files.opened(&self.open).is_open(ino))
        {
            self.free_inode(ino);
        }
    }

    /// Takes in everything that the clients of a file wrote and closed.
    pub(in crate::cluster) fn take_in(&mut self, ino: Ino) {
        if self.writers().has_writers_of(ino) {
            self.take_all_notes();
        }
        self.writes().harvest(ino);
    }

    /// Takes in everything that clients wrote and closed, and frees files that no program needs.
    pub(in crate::cluster) fn take_in_all(&mut self) {
        self.take_all_notes();
        self.writes().harvest_all();
        self.sweep();
    }

    fn free_inode(&mut self, ino: Ino) {
        self.files.orphans.remove(&ino);
        self.locks.forget_file(ino);
        self.files.xattrs.forget(ino);
        let kind = self.names.attr(ino).map(|attr| attr.file_type());
        if matches!(kind, Ok(FileType::Fifo | FileType::Socket)) {
            self.platform.remove_special(ino);
        }
        self.writes().clear_extents(ino);
        if self.identity.is_of_several() {
            self.extents.keep_stored(ino, 0);
            self.files.gone.push(ino);
        }
        if let Err(error) = self.names.release(ino) {
            tracing::error!(?ino, %error, "an unnamed file cannot be freed");
        }
    }

    pub(in crate::cluster) fn unpin(&mut self, ino: Ino) {
        self.files.pinned.remove(&ino);
        if self.files.orphans.contains(&ino) {
            self.sweep();
        }
    }
}

impl OpenFileTables {
    /// Lets unnamed files end that no other node has open. The others have now said which files they
    /// have open; after a restart all unnamed files stay until then.
    pub(in crate::cluster) fn keep_orphans_no_more(&mut self) {
        self.keeps_orphans = false;
    }
}

impl NodeFiles<'_, '_> {
    /// Restores the extended attributes, the unnamed files, and the files that are to be laminated.
    pub(in crate::cluster) fn take_up(&mut self, state: &mut State, is_of_several: bool) {
        self.tables.xattrs = std::mem::take(&mut state.xattrs);
        // Other nodes may have an unnamed file open, and this node may have bytes of theirs to
        // publish.
        self.tables.keeps_orphans = is_of_several;
        let own = state
            .inodes
            .values()
            .filter(|image| image.home == image.ino);
        let orphans = own.filter(|image| image.nlink == 0);
        self.tables.orphans.extend(orphans.map(|image| image.ino));
        let due = state.inodes.values().map(|image| image.ino).filter(|ino| {
            let attr = self.names.attr(*ino);
            attr.is_ok_and(|attr| attr.lamination == Lamination::Due)
        });
        self.tables.watched.extend(due);
    }
}
