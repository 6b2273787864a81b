//! The addresses of the other servers, and packets that wait until the provider accepts them.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use weir_core::types::Rank;

use super::endpoint::{Address, Endpoint};

/// The address of a server.
#[derive(Debug)]
struct Peer {
    /// The newest incarnation that sent its name; 0: none, the name is the roster's.
    life: u64,
    name: Vec<u8>,
    address: Option<Address>,
    /// Packets, each with its expiry time.
    queue: VecDeque<(Duration, Vec<u8>)>,
}

impl Peer {
    fn address(&mut self, endpoint: &mut Endpoint) -> Option<Address> {
        if self.address.is_none() {
            self.address = endpoint.resolve(&self.name);
        }
        self.address
    }
}

/// All servers, including this one.
#[derive(Debug)]
pub struct Peers(BTreeMap<Rank, Peer>);

impl Peers {
    /// Creates the table from the servers' names, by rank.
    pub fn new(names: Vec<Vec<u8>>) -> Peers {
        let peer = |name| Peer {
            life: 0,
            name,
            address: None,
            queue: VecDeque::new(),
        };
        Peers((0..).map(Rank).zip(names.into_iter().map(peer)).collect())
    }

    /// The number of servers.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Records the name that a server sent; returns the newest incarnation that sent one.
    pub fn set_name(&mut self, rank: Rank, life: u64, name: Vec<u8>) -> Option<u64> {
        let peer = self.0.get_mut(&rank)?;
        if peer.life < life {
            peer.life = life;
            if peer.name != name {
                (peer.name, peer.address) = (name, None);
            }
        }
        Some(peer.life)
    }

    /// The address of a server.
    pub fn address(&mut self, endpoint: &mut Endpoint, rank: Rank) -> Option<Address> {
        self.0.get_mut(&rank)?.address(endpoint)
    }

    /// Queues a packet for a server; the packet is dropped if it is not sent in time.
    pub fn enqueue(&mut self, to: Rank, until: Duration, packet: Vec<u8>) {
        if let Some(peer) = self.0.get_mut(&to) {
            peer.queue.push_back((until, packet));
        }
    }

    /// Sends queued packets. Returns the servers that nothing can be sent to, and true if the
    /// provider has no room for all packets.
    pub fn flush(&mut self, endpoint: &mut Endpoint, now: Duration) -> (Vec<Rank>, bool) {
        let (mut failed, mut full) = (Vec::new(), false);
        for (rank, peer) in &mut self.0 {
            while let Some((until, packet)) = peer.queue.pop_front() {
                if until <= now {
                    continue;
                }
                let address = peer.address(endpoint).ok_or(-libc::EADDRNOTAVAIL);
                match address.and_then(|address| endpoint.send(*rank, address, &packet)) {
                    Ok(true) => {}
                    Ok(false) => {
                        full = true;
                        peer.queue.push_front((until, packet));
                        break;
                    }
                    Err(code) => {
                        let error = endpoint.library.error(code);
                        tracing::debug!(rank = rank.0, error, "nothing can be sent");
                        peer.queue.clear();
                        failed.push(*rank);
                    }
                }
            }
        }
        (failed, full)
    }
}
