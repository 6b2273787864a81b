//! Changes that the rooms note for the journal, which `journal` commits.

use weir_core::journal::{encode, Item};
use weir_core::types::ClientId;

/// The changes that are noted and not yet committed.
#[derive(Default)]
pub(in crate::cluster) struct NotedChanges {
    /// True if there is a journal; nothing is noted without one.
    is_kept: bool,
    items: Vec<u8>,
    /// Clients from whose rings records were taken.
    drained: Vec<ClientId>,
}

impl NotedChanges {
    /// Notes all changes from now on.
    pub(in crate::cluster) fn keep(&mut self) {
        self.is_kept = true;
    }

    /// Notes a change.
    pub(in crate::cluster) fn note(&mut self, item: &Item<'_>) {
        if self.is_kept {
            encode(item, &mut self.items);
        }
    }

    /// Notes that records of a client's ring were taken. They stay there until they are committed.
    pub(in crate::cluster) fn hold_ring(&mut self, id: ClientId) {
        if !self.drained.contains(&id) {
            self.drained.push(id);
        }
    }

    /// The noted changes as the journal has them.
    pub(in crate::cluster) fn items(&mut self) -> &mut Vec<u8> {
        &mut self.items
    }

    /// Takes the clients from whose rings records were taken.
    pub(in crate::cluster) fn take_drained(&mut self) -> Vec<ClientId> {
        std::mem::take(&mut self.drained)
    }
}
