//! The end of a client. However it died, the bytes of its finished writes stay, and its segments,
//! cells and descriptions come back.

use weir_core::journal::Item;
use weir_core::proto::ClientKind;
use weir_core::types::ClientId;

use crate::node::{ClientMemory, Node, Platform};

impl<P: Platform> Node<'_, P> {
    /// Handles the end of a client's connection. Its process may still live with our memory mapped (it closed all
    /// descriptors), or it became another program, which has not mapped it. So nothing that it may write into is lent
    /// again.
    pub fn hung_up(&mut self, id: ClientId, now_ns: i64) {
        self.clock.set(now_ns);
        self.take_notes(id);
        self.writes().harvest_client(id);
        if let Some(client) = self.clients.get_mut(id) {
            client.connected = false;
        }
        self.commit();
    }

    /// Handles the end of a client: its process is gone, or has connected anew, so no process writes as this client any
    /// more. Afterwards its number may be given to another. The caller removes the region.
    pub fn gone(&mut self, id: ClientId, now_ns: i64) {
        self.clock.set(now_ns);
        self.bury(id);
        // The caller removes the region, with the ring, after this.
        self.commit();
    }

    /// Does the same without committing.
    pub(in crate::cluster) fn bury(&mut self, id: ClientId) {
        self.take_notes(id);
        self.writes().harvest_client(id);
        let Some(client) = self.clients.get(id) else {
            return;
        };
        let cells = client.cells.iter().copied();
        self.stats.fold_written(self.writers().uncounted(cells));
        self.writes().detach_cells_of(id);
        self.descriptions().end_client(id);
        self.files().forget_client(id);
        self.descriptions().check_ownerless();
        self.locks.drop_client(id);
        self.drop_dead_locks();
        if let Some(client) = self.clients.remove(id) {
            if client.kind == ClientKind::Mount && !client.ghost {
                // A kernel mount is not one of the programs that are counted.
                self.stats.clients_ever -= 1;
            }
            for lease in &client.leases {
                self.segments.release(lease.segment);
            }
            self.stats.fold(client.memory.header());
            self.changes.note(&Item::ClientGone(id));
        }
        self.sweep();
    }
}
