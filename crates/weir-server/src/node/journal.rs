//! What is written down of every change, before anybody is told of it.
//!
//! Changes are noted where they are made, in the order in which they are made, and *committed*
//! together: by whoever is about to tell somebody (a client, a tool, another server), and at
//! the latest when the server has nothing else to do. So what was told is in the journal, and
//! an operation is there whole or not at all.
//!
//! What clients wrote stays where they wrote it until it was committed: their rings' records
//! are given back then, and a cell is lent again after that. The record that a cell still
//! shows is not written down each time it grows, only when the cell moves on.

use weir_core::journal::{encode, Item};
use weir_core::types::{ClientId, Ino};

use super::{ClientMemory, Node, Platform};

/// Is shown items, one by one.
pub type Visit<'v> = &'v mut dyn FnMut(&Item<'_>);

/// Where changes are written down.
pub trait Journal {
    /// Appends items, as one record.
    fn append(&mut self, items: &[u8]);
    /// Whether it is so long that it should be begun anew.
    fn is_long(&self) -> bool;
    /// Whether all that was appended is there: if not, nothing comes after this server.
    fn is_whole(&self) -> bool;
    /// Begins anew with what `snapshot` passes on.
    fn renew(&mut self, snapshot: &dyn Fn(Visit<'_>));
}

/// What is noted and not yet committed.
#[derive(Default)]
pub(super) struct Notes {
    journal: Option<Box<dyn Journal>>,
    items: Vec<u8>,
    /// Clients of whose rings something was taken.
    drained: Vec<ClientId>,
}

impl<P: Platform> Node<'_, P> {
    /// Writes down what changes from now on; what is there already is in `journal`.
    pub fn keep_journal(&mut self, journal: Box<dyn Journal>) {
        self.names.note_changes();
        self.notes.journal = Some(journal);
    }

    /// Notes a change.
    pub(crate) fn note(&mut self, item: &Item<'_>) {
        if self.notes.journal.is_some() {
            encode(item, &mut self.notes.items);
        }
    }

    /// Writes down what was noted.
    pub(crate) fn commit(&mut self) {
        self.make_room_for_names();
        if let Some(journal) = &mut self.notes.journal {
            self.names.take_changes(&mut self.notes.items);
            if !self.notes.items.is_empty() {
                journal.append(&self.notes.items);
                self.notes.items.clear();
            }
        }
        for id in std::mem::take(&mut self.notes.drained) {
            if let Some(client) = self.clients.get_mut(id) {
                let taken = std::mem::take(&mut client.taken);
                client.memory.header().records.consumed(taken);
            }
        }
    }

    /// Whether a server that is killed now can be started again.
    pub(super) fn is_recoverable(&self) -> bool {
        let journal = self.notes.journal.as_ref();
        journal.is_some_and(|journal| journal.is_whole())
    }

    /// Begins the journal anew if it is long; `others` shows what is not the node's own.
    pub(crate) fn renew_journal(&mut self, others: &dyn Fn(Visit<'_>)) {
        if !self.notes.journal.as_ref().is_some_and(|j| j.is_long()) {
            return;
        }
        self.commit();
        if let Some(mut journal) = self.notes.journal.take() {
            journal.renew(&|visit| {
                self.for_each_item(visit);
                others(visit);
            });
            self.notes.journal = Some(journal);
        }
    }

    /// All that the node knows, as items.
    pub fn for_each_item(&self, visit: Visit<'_>) {
        self.names.for_each_item(visit);
        for slot in self.files.not_empty() {
            let ino = self.names.ino_at(slot);
            let mut runs = Vec::new();
            if let Some(index) = self.files.get(ino) {
                index.for_each_run(&mut |run| runs.push(run));
            }
            visit(&Item::Laid(ino, runs));
        }
        for (client, entry) in self.clients.iter() {
            let pid = entry.pid;
            visit(&Item::Client { client, pid });
            for lease in &entry.leases {
                visit(&lease.item(client));
            }
        }
        for (cell, writer) in self.cells.iter() {
            if let Some(file) = self.blocks.get(writer.block) {
                visit(&Item::Attached {
                    cell,
                    client: writer.client,
                    ino: file.ino,
                    block: writer.block,
                });
                if self.several && writer.noted.stamp != 0 {
                    // All that was noted is in the index above, or was taken out of it.
                    visit(&Item::Noted(cell, writer.noted.mark()));
                }
            }
        }
        self.given.items().for_each(|item| visit(&item));
    }

    /// Records of a client's ring were taken, and stay there until they are committed.
    pub(super) fn hold_ring(&mut self, id: ClientId) {
        if !self.notes.drained.contains(&id) {
            self.notes.drained.push(id);
        }
    }

    /// Notes what a cell's record, which is in the index, has more than was noted of it.
    pub(super) fn note_written(&mut self, cell: u32) {
        let rank = self.identity.rank.0;
        let Some(writer) = self.cells.get_mut(cell) else {
            return;
        };
        let runs = writer.noted.beyond(&writer.applied, rank);
        writer.noted = writer.applied;
        let block = writer.block;
        let Some(ino) = self.blocks.get(block).map(|file| file.ino) else {
            return;
        };
        if !runs.is_empty() {
            self.note(&Item::Laid(ino, runs));
        }
    }

    /// Notes that all that a file's index has, which is known as `home` everywhere, is taken out
    /// of it to be published.
    pub(super) fn note_taken(&mut self, local: Ino, home: Ino) {
        let block = self
            .block_of(local)
            .and_then(|block| self.blocks.get(block));
        for cell in block.map_or_else(Vec::new, |file| file.cells.clone()) {
            self.note_written(cell);
            if let Some(noted) = self.cells.get(cell).map(|writer| writer.noted) {
                if noted.stamp != 0 {
                    self.note(&Item::Noted(cell, noted.mark()));
                }
            }
        }
        self.note(&Item::Taken(local, home));
    }

    /// Notes that a file's index is empty now.
    pub(super) fn note_cleared(&mut self, ino: Ino) {
        self.note(&Item::Cleared(ino));
    }
}
