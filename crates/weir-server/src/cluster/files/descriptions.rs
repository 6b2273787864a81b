//! Open file descriptions: the batches lent to each client, and the descriptions that still live.
//!
//! A client opens and closes entries of its batches by itself. An entry that it shared with others
//! (fork, exec) may outlive it: then its batch stays without an owner until the kernel says that
//! the last such entry is closed. The last process with an entry may be a client of another server
//! of this machine, or be killed; so awaited entries are checked from time to time.

use std::collections::HashSet;
use std::sync::atomic::{fence, Ordering};

use weir_core::node::ofd::{Ofd, BATCH};
use weir_core::proto::FsError;
use weir_core::types::{ClientId, Ino};

use crate::cluster::files::OpenFileTables;
use crate::cluster::slots::Slots;
use crate::node::{Node, OpenRegion, Platform, Table};

/// The `owner` of an entry whose client is gone.
const NOBODY: u32 = u32::MAX;

/// Lent batches.
#[derive(Debug)]
pub struct OfdTable {
    /// The owner of each batch, if it lives.
    batches: Slots<Option<ClientId>>,
    /// Entries that a client closed while other processes had them.
    closing: HashSet<u32>,
}

impl OfdTable {
    /// A table of `batches` batches.
    pub fn new(batches: usize) -> OfdTable {
        OfdTable {
            batches: Slots::new(batches),
            closing: HashSet::new(),
        }
    }

    /// The number of batches needed to lend one more; see [`Slots::wants`].
    pub fn wants(&self) -> Option<usize> {
        self.batches.wants()
    }

    /// Sets the number of batches that may be lent.
    pub fn allow(&mut self, batches: usize) {
        self.batches.allow(batches);
    }

    /// The entries of all lent batches.
    pub fn entries(&self) -> impl Iterator<Item = u32> + '_ {
        self.batches
            .iter()
            .flat_map(|(batch, _)| batch * BATCH..(batch + 1) * BATCH)
    }

    /// Returns true if entry `index` is in a lent batch.
    pub fn is_lent(&self, index: u32) -> bool {
        self.batches.get(index / BATCH).is_some()
    }

    /// The owner of an entry, if it lives.
    pub fn owner(&self, index: u32) -> Option<ClientId> {
        *self.batches.get(index / BATCH)?
    }

    /// Returns true if descriptions may end without a client's message.
    pub(super) fn awaits_closing(&self) -> bool {
        !self.closing.is_empty() || self.batches.iter().any(|(_, owner)| owner.is_none())
    }

    fn batches_of(&self, owner: Option<ClientId>) -> Vec<u32> {
        self.batches
            .iter()
            .filter(|(_, of)| **of == owner)
            .map(|(batch, _)| batch)
            .collect()
    }
}

/// The descriptions of this node, to look at: the table, and the entries in shared memory.
#[derive(Clone, Copy)]
pub(in crate::cluster) struct OpenDescriptions<'a, 'm> {
    table: &'a OfdTable,
    open: &'a OpenRegion<'m>,
}

impl<'a, 'm> OpenDescriptions<'a, 'm> {
    /// A description that a client uses. `None` if it may not, or if there is none.
    pub(in crate::cluster) fn used_by(self, from: ClientId, index: u32) -> Option<&'m Ofd> {
        // Check first that the entry is lent: otherwise there may be no memory behind it.
        if !self.table.is_lent(index) {
            return None;
        }
        let ofd = self.open.ofds.get(index as usize)?;
        (self.table.owner(index) == Some(from) || is_shared(ofd)).then_some(ofd)
    }

    /// Returns true if a client has a file or a directory open.
    pub(in crate::cluster) fn has_open(self, id: ClientId) -> bool {
        let batches = self.table.batches_of(Some(id)).into_iter();
        let mut entries = batches.flat_map(|batch| batch * BATCH..(batch + 1) * BATCH);
        entries.any(|index| {
            let ofd = self.open.ofds.get(index as usize);
            ofd.is_some_and(|ofd| ofd.ino.load(Ordering::Acquire) != 0)
        })
    }

    /// The lent descriptions that are open on a file or a directory, with its inode.
    pub(super) fn opened(self) -> impl Iterator<Item = (Ino, &'m Ofd)> + 'a {
        self.table
            .entries()
            .filter_map(move |index| self.open.ofds.get(index as usize))
            .map(|ofd| (Ino(ofd.ino.load(Ordering::SeqCst)), ofd))
            .filter(|(ino, _)| *ino != Ino::NONE)
    }

    /// The inodes in all lent descriptions.
    pub(super) fn inodes(self) -> impl Iterator<Item = Ino> + 'a {
        fence(Ordering::SeqCst);
        self.opened().map(|(ino, _)| ino)
    }

    /// The files that programs of this node have open; for callers that check many files.
    pub(super) fn open_files(self) -> HashSet<Ino> {
        self.inodes().collect()
    }

    /// Returns true if a program of this node has a file open; for callers that check one file.
    pub(super) fn is_open(self, ino: Ino) -> bool {
        self.inodes().any(|opened| opened == ino)
    }
}

impl OpenFileTables {
    /// The open file descriptions, to look at.
    pub(in crate::cluster) fn opened<'a, 'm>(
        &'a self,
        open: &'a OpenRegion<'m>,
    ) -> OpenDescriptions<'a, 'm> {
        OpenDescriptions {
            table: &self.ofds,
            open,
        }
    }
}

/// True if processes other than its owner may have the description.
pub(in crate::cluster) fn is_shared(ofd: &Ofd) -> bool {
    ofd.state.load(Ordering::Acquire) & Ofd::BOTH == Ofd::BOTH
}

/// The outcome of a note that a description may have lost its last descriptor.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum NoteClosed {
    /// There is no entry of that number.
    Unknown,
    /// The entry's batch was taken back before the note was read: no process had the entry any more.
    TakenBack,
    /// The entry was checked, and closed if no process has it.
    Checked,
}

/// The descriptions of this node: the table, the entries in shared memory, and the kernel, which
/// knows if an entry still has a descriptor.
pub(in crate::cluster) struct Descriptions<'a, 'm, P> {
    table: &'a mut OfdTable,
    open: &'a OpenRegion<'m>,
    platform: &'a P,
}

impl<P: Platform> Descriptions<'_, '_, P> {
    /// Lends a batch.
    pub(in crate::cluster) fn lend_batch(&mut self, id: ClientId) -> Result<u32, FsError> {
        if !self.table.batches.has_room() {
            self.check_ownerless();
        }
        self.make_room();
        let batch = self
            .table
            .batches
            .insert(Some(id))
            .ok_or(FsError::NoSpace)?;
        for index in batch * BATCH..(batch + 1) * BATCH {
            let ofd = &self.open.ofds[index as usize];
            if ofd.ino.load(Ordering::Relaxed) != 0 {
                ofd.close();
            }
            ofd.owner.store(id.0, Ordering::Relaxed);
        }
        Ok(batch * BATCH)
    }

    fn close_ofd(&mut self, index: u32) {
        self.open.ofds[index as usize].close();
        self.table.closing.remove(&index);
    }

    /// Closes an entry that its client shared with other processes: frees it once no process has it.
    fn close_shared_ofd(&mut self, index: u32) {
        if self.platform.ofd_alive(index) {
            self.table.closing.insert(index);
        } else {
            self.close_ofd(index);
        }
    }

    /// Frees a gone client's descriptions, except those that other processes still have.
    pub(in crate::cluster) fn end_client(&mut self, id: ClientId) {
        for batch in self.table.batches_of(Some(id)) {
            self.end_batch(batch);
        }
    }

    /// Checks again the batches whose owner is gone, and the entries closed while other processes
    /// had them.
    pub(in crate::cluster) fn check_ownerless(&mut self) {
        for index in std::mem::take(&mut self.table.closing) {
            // The entry may have been freed meanwhile, with its batch, and lent again.
            if self.table.is_lent(index) && is_shared(&self.open.ofds[index as usize]) {
                self.close_shared_ofd(index);
            }
        }
        for batch in self.table.batches_of(None) {
            self.end_batch(batch);
        }
    }

    fn end_batch(&mut self, batch: u32) {
        let mut living = false;
        for index in batch * BATCH..(batch + 1) * BATCH {
            let ofd = &self.open.ofds[index as usize];
            if ofd.ino.load(Ordering::Acquire) == 0 {
                continue;
            }
            if is_shared(&self.open.ofds[index as usize]) && self.platform.ofd_alive(index) {
                ofd.owner.store(NOBODY, Ordering::Relaxed);
                living = true;
            } else {
                self.close_ofd(index);
            }
        }
        if living {
            if let Some(owner) = self.table.batches.get_mut(batch) {
                *owner = None;
            }
        } else {
            self.table.batches.remove(batch);
        }
    }

    /// Allocates memory for a batch of descriptions.
    fn make_room(&mut self) {
        if let Some(batches) = self.table.wants() {
            let batch = BATCH as usize;
            let present = self.platform.present(Table::Ofds, batches * batch);
            self.table.allow(present / batch);
        }
    }

    /// Handles a description that may have lost its last descriptor.
    fn note_closed(&mut self, index: u32) -> NoteClosed {
        let Some(ofd) = self.open.ofds.get(index as usize) else {
            return NoteClosed::Unknown;
        };
        if !self.table.is_lent(index) {
            return NoteClosed::TakenBack;
        }
        let ino = Ino(ofd.ino.load(Ordering::SeqCst));
        if ino != Ino::NONE && is_shared(ofd) {
            self.close_shared_ofd(index);
        }
        self.check_ownerless();
        NoteClosed::Checked
    }
}

impl<'m, P: Platform> Node<'m, P> {
    /// The descriptions, to change them.
    pub(in crate::cluster) fn descriptions(&mut self) -> Descriptions<'_, 'm, P> {
        Descriptions {
            table: &mut self.files.ofds,
            open: &self.open,
            platform: &self.platform,
        }
    }

    /// Handles a description that may have lost its last descriptor; its locks end with it. Returns
    /// false if there is none of that number.
    pub(in crate::cluster) fn ofd_closed(&mut self, index: u32) -> bool {
        let noted = self.descriptions().note_closed(index);
        if noted == NoteClosed::Checked {
            self.drop_dead_locks();
        }
        noted != NoteClosed::Unknown
    }

    /// Frees the entries whose last client did not say that it closed them.
    pub(in crate::cluster) fn look_at_descriptions(&mut self) {
        if self.files.ofds.awaits_closing() {
            self.descriptions().check_ownerless();
            self.drop_dead_locks();
            self.sweep();
        }
    }
}
