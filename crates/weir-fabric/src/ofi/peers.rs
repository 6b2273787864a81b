//! Where the others are, and the packets that wait for the provider to take them.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use weir_core::types::Rank;

use super::endpoint::{Address, Endpoint};

/// Where a server is.
#[derive(Debug)]
struct Peer {
    /// The newest life that has told its name; 0: none, the name is the roster's.
    life: u64,
    name: Vec<u8>,
    address: Option<Address>,
    /// Packets for it, and when they are of no use any more.
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

/// All servers, this one too.
#[derive(Debug)]
pub struct Peers(BTreeMap<Rank, Peer>);

impl Peers {
    /// Of these names, by rank.
    pub fn new(names: Vec<Vec<u8>>) -> Peers {
        let peer = |name| Peer {
            life: 0,
            name,
            address: None,
            queue: VecDeque::new(),
        };
        Peers((0..).map(Rank).zip(names.into_iter().map(peer)).collect())
    }

    /// How many.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// A server says where it is; the newest of its lives that did.
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

    /// Where a server is.
    pub fn address(&mut self, endpoint: &mut Endpoint, rank: Rank) -> Option<Address> {
        self.0.get_mut(&rank)?.address(endpoint)
    }

    /// Puts a packet in the queue of a server; it is dropped when it is not out by then.
    pub fn enqueue(&mut self, to: Rank, until: Duration, packet: Vec<u8>) {
        if let Some(peer) = self.0.get_mut(&to) {
            peer.queue.push_back((until, packet));
        }
    }

    /// Sends what goes: to whom nothing can be sent, and whether the provider has no room for
    /// all.
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
