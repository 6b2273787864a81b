//! The programs of this node that are clients, for people and for messages to them.

use std::collections::BTreeSet;
use std::sync::atomic::Ordering;

use weir_core::proto::audit::Party;
use weir_core::proto::ClientKind;
use weir_core::types::{ClientId, Ino};

use crate::cluster::clients::table::Clients;
use crate::node::{ClientMemory, Node, Platform};

impl<P: Platform> Node<'_, P> {
    /// Describes a client, for people.
    pub(in crate::cluster) fn party(&self, id: ClientId) -> Party {
        let pid = self.client_pid(id).unwrap_or(0);
        Party {
            rank: self.identity.rank.0,
            pid,
            program: self.platform.program(pid),
        }
    }

    /// The programs of this node that are clients, except those that have just ended.
    pub(super) fn parties_attached(&self) -> Vec<Party> {
        let clients = self.clients.iter();
        let connected = clients.filter(|(id, client)| {
            let idles = || !self.opened().has_open(*id);
            client.connected && !client.ghost && !(self.is_mount(*id) && idles())
        });
        let ids: Vec<ClientId> = connected.map(|(id, _)| id).collect();
        let mut parties: Vec<Party> = ids.into_iter().map(|id| self.party(id)).collect();
        parties.retain(|party| !party.program.is_empty());
        parties
    }

    /// The programs of this node that write a file.
    pub(in crate::cluster) fn parties_writing(&self, ino: Ino) -> Vec<Party> {
        let mut clients: Vec<ClientId> = self.writers().clients_of(ino).collect();
        clients.sort_unstable_by_key(|id| id.0);
        clients.dedup();
        clients.into_iter().map(|id| self.party(id)).collect()
    }

    /// Returns true if a client is a kernel mount.
    pub fn is_mount(&self, id: ClientId) -> bool {
        let client = self.clients.get(id);
        client.is_some_and(|client| client.kind == ClientKind::Mount)
    }

    /// Wakes clients that sleep until the server has news.
    pub(in crate::cluster) fn wake_waiters(&self, clients: &BTreeSet<ClientId>) {
        wake_waiters(&self.clients, &self.platform, clients);
    }
}

/// Wakes clients that sleep until the server has news.
pub(in crate::cluster) fn wake_waiters<P: Platform>(
    table: &Clients<P::Memory>,
    platform: &P,
    clients: &BTreeSet<ClientId>,
) {
    for client in clients.iter().filter_map(|id| table.get(*id)) {
        let event = &client.memory.header().event;
        event.fetch_add(1, Ordering::SeqCst);
        platform.wake(event);
    }
}
