//! The table of clients, with the segments and cells that each was lent, and the channels that it uses.

use std::collections::BTreeSet;
use std::sync::atomic::Ordering;
use std::sync::Arc;

use weir_core::journal::{Item, State};
use weir_core::node::channel;
use weir_core::node::region::MAX_MOUNTS;
use weir_core::proto::{ClientKind, Lent};
use weir_core::types::{ClientId, SegmentId};

use crate::node::{ClientMemory, Platform, RecoverError, Visit};

/// A segment as the server lent it.
#[derive(Clone, Copy, Debug)]
pub struct Lease {
    /// Its number.
    pub segment: SegmentId,
    /// Its slab.
    pub slab: u32,
    /// The position of its first byte in the slab.
    pub pos: u64,
    /// The position after its last byte.
    pub end: u64,
}

impl Lease {
    /// The lease as a journal item.
    pub fn item(&self, client: ClientId) -> Item<'static> {
        Item::SegmentLent {
            client,
            segment: self.segment,
            slab: self.slab,
            pos: self.pos,
            len: self.end.saturating_sub(self.pos),
        }
    }
}

/// A client process.
#[derive(Debug)]
pub struct Client<M> {
    /// Its region.
    pub memory: Arc<M>,
    /// Its process.
    pub pid: u32,
    /// The kind: a program or a kernel mount.
    pub kind: ClientKind,
    /// The segments that it may write into, by slab and position.
    pub leases: Vec<Lease>,
    /// Its cells.
    pub cells: BTreeSet<u32>,
    /// True while its connection stands. Without it the client may live on, but makes no more
    /// requests.
    pub connected: bool,
    /// The number of channels that have memory, of [`weir_core::node::channel::CHANNELS`].
    pub channels: usize,
    /// True if it is a client of an earlier server, and only keeps the segments that it was lent.
    pub ghost: bool,
    /// The number of records that were taken from its ring and not yet given back.
    pub taken: usize,
}

/// All clients, by number.
#[derive(Debug)]
pub struct Clients<M> {
    slots: Vec<Option<Client<M>>>,
    /// By client number, bit c: the server is serving a request of channel c. A client may end
    /// before its requests are served.
    served: Vec<u64>,
    /// The most programs that there may be.
    most_programs: usize,
}

impl<M> Client<M> {
    /// A client that was lent nothing yet.
    pub fn new(memory: Arc<M>, pid: u32, kind: ClientKind) -> Client<M> {
        Client {
            memory,
            pid,
            kind,
            leases: Vec::new(),
            cells: BTreeSet::new(),
            connected: true,
            channels: 1,
            ghost: false,
            taken: 0,
        }
    }

    /// Records a lent segment.
    pub fn lease(&mut self, lent: &Lent) -> Lease {
        let lease = Lease {
            segment: lent.segment,
            slab: lent.slab,
            pos: lent.pos,
            end: lent.pos.saturating_add(lent.len),
        };
        let at = self
            .leases
            .partition_point(|l| (l.slab, l.pos) < (lease.slab, lease.pos));
        self.leases.insert(at, lease);
        lease
    }

    /// Forgets a lent segment; false if it is not this client's.
    pub fn end_lease(&mut self, segment: SegmentId) -> bool {
        let at = self.leases.iter().position(|l| l.segment == segment);
        if let Some(at) = at {
            self.leases.remove(at);
        }
        at.is_some()
    }

    /// A lent segment, if it is this client's.
    pub fn find_lease(&self, segment: SegmentId) -> Option<&Lease> {
        self.leases.iter().find(|lease| lease.segment == segment)
    }

    /// Shortens a lent segment, if it is this client's.
    pub fn shorten_lease(&mut self, segment: SegmentId, end: u64) -> Option<Lease> {
        let lease = self.leases.iter_mut().find(|l| l.segment == segment)?;
        lease.end = end;
        Some(*lease)
    }

    /// Returns true if `[pos, end)` of a slab lies in segments lent to this client. The range may
    /// pass from one segment into the next.
    pub fn holds(&self, slab: u32, pos: u64, end: u64) -> bool {
        let mut at = self
            .leases
            .partition_point(|l| (l.slab, l.end) <= (slab, pos));
        let mut from = pos;
        while from < end {
            match self.leases.get(at) {
                Some(l) if l.slab == slab && l.pos <= from && from < l.end => from = l.end,
                _ => return false,
            }
            at += 1;
        }
        true
    }
}

impl<M> Clients<M> {
    /// A table of at most `most_programs` programs and [`MAX_MOUNTS`] kernel mounts.
    pub fn new(most_programs: usize) -> Clients<M> {
        Clients {
            slots: Vec::new(),
            served: Vec::new(),
            most_programs,
        }
    }

    /// The number for the next client of a kind; `None`: there is no room for another one.
    pub fn vacant(&self, kind: ClientKind) -> Option<ClientId> {
        let most = match kind {
            ClientKind::Program => self.most_programs,
            ClientKind::Mount => MAX_MOUNTS,
        };
        let of_kind = self.iter().filter(|(_, client)| client.kind == kind);
        if of_kind.count() >= most {
            return None;
        }
        // A request of a client that ended must not act on the next client of its number.
        let is_free = |index: &usize| {
            self.slots.get(*index).is_none_or(Option::is_none)
                && self
                    .served
                    .get(*index)
                    .is_none_or(|channels| *channels == 0)
        };
        let index = (0..self.most_programs + MAX_MOUNTS).find(is_free)?;
        u32::try_from(index).ok().map(ClientId)
    }

    /// Notes that the server begins to serve the request of a channel; false if it is serving one.
    pub(in crate::cluster) fn begin_request(&mut self, id: ClientId, channel: u32) -> bool {
        let (index, bit) = (id.0 as usize, 1 << channel);
        if self.served.len() <= index {
            self.served.resize(index + 1, 0);
        }
        let begins = self.served[index] & bit == 0;
        self.served[index] |= bit;
        begins
    }

    /// Notes that the server has served the request of a channel.
    pub(in crate::cluster) fn end_request(&mut self, id: ClientId, channel: u32) {
        if let Some(channels) = self.served.get_mut(id.0 as usize) {
            *channels &= !(1 << channel);
        }
    }

    /// Returns true if there can be a client of this number.
    pub(in crate::cluster) fn has_place(&self, id: ClientId) -> bool {
        (id.0 as usize) < self.most_programs + MAX_MOUNTS
    }

    /// Adds a client.
    pub(in crate::cluster) fn insert(&mut self, id: ClientId, client: Client<M>) {
        let index = id.0 as usize;
        if self.slots.len() <= index {
            self.slots.resize_with(index + 1, || None);
        }
        self.slots[index] = Some(client);
    }

    /// Removes a client.
    pub(in crate::cluster) fn remove(&mut self, id: ClientId) -> Option<Client<M>> {
        self.slots.get_mut(id.0 as usize)?.take()
    }

    /// A client.
    pub(in crate::cluster) fn get(&self, id: ClientId) -> Option<&Client<M>> {
        self.slots.get(id.0 as usize)?.as_ref()
    }

    /// A client.
    pub(in crate::cluster) fn get_mut(&mut self, id: ClientId) -> Option<&mut Client<M>> {
        self.slots.get_mut(id.0 as usize)?.as_mut()
    }

    /// The process of a client.
    pub fn pid(&self, id: ClientId) -> Option<u32> {
        Some(self.get(id)?.pid)
    }

    /// Returns true if a client's connection stands.
    pub fn is_connected(&self, id: ClientId) -> bool {
        self.get(id).is_some_and(|client| client.connected)
    }

    /// Returns true if a client is a kernel mount.
    pub fn is_mount(&self, id: ClientId) -> bool {
        let client = self.get(id);
        client.is_some_and(|client| client.kind == ClientKind::Mount)
    }

    /// The numbers of all clients.
    pub fn ids(&self) -> Vec<ClientId> {
        self.iter().map(|(id, _)| id).collect()
    }

    /// Visits the clients, and the segments that they were lent.
    pub(in crate::cluster) fn show_clients(&self, visit: Visit<'_>) {
        for (client, entry) in self.iter() {
            let pid = entry.pid;
            visit(&Item::ClientCame { client, pid });
            for lease in &entry.leases {
                visit(&lease.item(client));
            }
        }
    }

    /// All clients.
    pub(in crate::cluster) fn iter(&self) -> impl Iterator<Item = (ClientId, &Client<M>)> {
        (0u32..)
            .zip(&self.slots)
            .filter_map(|(id, client)| Some((ClientId(id), client.as_ref()?)))
    }
}

impl<M: ClientMemory> Clients<M> {
    /// Returns the channels in which a client reports requests, one bit each. Lets the client use all channels, if it
    /// asks for that.
    pub(in crate::cluster) fn take_asked(&mut self, id: ClientId, platform: &impl Platform) -> u64 {
        let Some(client) = self.get_mut(id) else {
            return 0;
        };
        let header = client.memory.header();
        let asked = header.asked.swap(0, Ordering::SeqCst);
        if asked & channel::WIDEN != 0 {
            if client.channels == 1 && platform.lay_channels(id) {
                client.channels = channel::CHANNELS;
            }
            let word = match client.channels {
                1 => channel::NO_MORE_CHANNELS,
                _ => channel::ALL_CHANNELS,
            };
            header.channels.store(word, Ordering::SeqCst);
            platform.wake(&header.channels);
        }
        // The other channels may have no memory.
        asked & (u64::MAX >> (64 - client.channels))
    }

    /// Takes up the clients of a killed server, with the regions that `memory` finds.
    pub(in crate::cluster) fn take_up(
        &mut self,
        state: &State,
        memory: impl Fn(ClientId) -> Option<Arc<M>>,
    ) -> Result<(), RecoverError> {
        for (id, pid) in &state.clients {
            if !self.has_place(*id) {
                return Err(RecoverError::Client(*id));
            }
            let Some(memory) = memory(*id) else {
                tracing::warn!(client = id.0, "its region is gone, with the records in it");
                continue;
            };
            let kind = match memory.header().mount.load(Ordering::Relaxed) {
                0 => ClientKind::Program,
                _ => ClientKind::Mount,
            };
            let mut client = Client::new(memory, *pid, kind);
            client.connected = false;
            client.ghost = true;
            for (segment, lent) in &state.segments {
                if lent.client == *id {
                    client.leases.push(Lease {
                        segment: *segment,
                        slab: lent.slab,
                        pos: lent.pos,
                        end: lent.pos.saturating_add(lent.len),
                    });
                }
            }
            client.leases.sort_unstable_by_key(|l| (l.slab, l.pos));
            self.insert(*id, client);
        }
        Ok(())
    }

    /// Wakes clients that sleep until the server has news.
    pub(in crate::cluster) fn wake_waiters(
        &self,
        platform: &impl Platform,
        clients: &BTreeSet<ClientId>,
    ) {
        for client in clients.iter().filter_map(|id| self.get(*id)) {
            let event = &client.memory.header().event;
            event.fetch_add(1, Ordering::SeqCst);
            platform.wake(event);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use weir_core::proto::Tier;

    fn lent(segment: u32, slab: u32, pos: u64, len: u64) -> Lent {
        Lent {
            segment: SegmentId(segment),
            slab,
            tier: Tier::Memory,
            pos,
            len,
            warm: true,
        }
    }

    #[test]
    fn only_what_was_lent_is_held() {
        let mut client = Client::new(Arc::new(()), 1, ClientKind::Program);
        client.lease(&lent(3, 2, 100, 50));
        client.lease(&lent(1, 1, 0, 10));
        client.lease(&lent(2, 1, 10, 10));
        for (slab, pos, end, held) in [
            (1, 0, 20, true),
            (1, 5, 15, true),
            (1, 19, 21, false),
            (1, 20, 20, true),
            (2, 99, 101, false),
            (2, 100, 150, true),
            (2, 149, 151, false),
            (3, 0, 1, false),
            (2, 0, u64::MAX, false),
        ] {
            assert_eq!(client.holds(slab, pos, end), held, "{slab} {pos} {end}");
        }
        assert!(client.end_lease(SegmentId(2)));
        assert!(!client.end_lease(SegmentId(2)));
        assert!(!client.holds(1, 5, 15));
    }

    #[test]
    fn programs_and_mounts_have_limits_of_their_own() {
        let mut clients: Clients<()> = Clients::new(2);
        let mut admit = |kind| {
            let id = clients.vacant(kind)?;
            clients.insert(id, Client::new(Arc::new(()), 1, kind));
            Some(id.0)
        };
        assert_eq!(admit(ClientKind::Mount), Some(0));
        assert_eq!(admit(ClientKind::Program), Some(1));
        assert_eq!(admit(ClientKind::Program), Some(2));
        assert_eq!(admit(ClientKind::Program), None);
        for _ in 1..MAX_MOUNTS {
            assert!(admit(ClientKind::Mount).is_some());
        }
        assert_eq!(admit(ClientKind::Mount), None);
        assert_eq!(admit(ClientKind::Program), None);
    }
}
