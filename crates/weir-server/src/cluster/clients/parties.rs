//! The programs of this node that are clients, for people.

use std::collections::BTreeSet;

use weir_core::proto::audit::Party;
use weir_core::proto::ClientKind;
use weir_core::types::{ClientId, Rank};

use crate::cluster::clients::table::Clients;
use crate::node::{Node, Platform};

/// The clients of this node and the names of their programs.
pub(in crate::cluster) struct NodeParties<'a, P: Platform> {
    rank: Rank,
    clients: &'a Clients<P::Memory>,
    platform: &'a P,
}

impl<P: Platform> NodeParties<'_, P> {
    /// Describes a client.
    pub(in crate::cluster) fn party(&self, id: ClientId) -> Party {
        let pid = self.clients.pid(id).unwrap_or(0);
        Party {
            rank: self.rank.0,
            pid,
            program: self.platform.program(pid),
        }
    }

    /// Describes clients, each once.
    pub(in crate::cluster) fn parties(&self, ids: impl Iterator<Item = ClientId>) -> Vec<Party> {
        let ids: BTreeSet<ClientId> = ids.collect();
        ids.into_iter().map(|id| self.party(id)).collect()
    }

    /// Describes all clients, except those that have just ended, and mounts that have nothing open.
    pub(super) fn attached(&self, has_open: impl Fn(ClientId) -> bool) -> Vec<Party> {
        let clients = self.clients.iter();
        let connected = clients.filter(|(id, client)| {
            let idles = || client.kind == ClientKind::Mount && !has_open(*id);
            client.connected && !client.ghost && !idles()
        });
        let mut parties = self.parties(connected.map(|(id, _)| id));
        parties.retain(|party| !party.program.is_empty());
        parties
    }
}

impl<P: Platform> Node<'_, P> {
    /// The programs that are clients, to describe them.
    pub(in crate::cluster) fn parties(&self) -> NodeParties<'_, P> {
        NodeParties {
            rank: self.identity.rank,
            clients: &self.clients,
            platform: &self.platform,
        }
    }
}
