//! Answers and bytes of other servers that did not come. The log names those servers by node, and
//! programs that go on asking do not fill it.
//!
//! Invariant: the first failure after a success is logged, then the second, fourth, ...

use std::io;
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::Arc;

use weir_core::types::Rank;
use weir_fabric::bulk::{Landing, ReadError};

/// The failures of one server since its last answer.
#[derive(Debug)]
struct Peer {
    host: String,
    answers: AtomicU64,
    reads: AtomicU64,
}

/// All servers of the instance.
#[derive(Debug)]
pub struct Missed(Vec<Peer>);

impl Missed {
    /// No failures yet, of the servers of these nodes, by rank.
    pub fn new(hosts: Vec<String>) -> Missed {
        let peer = |host| Peer {
            host,
            answers: AtomicU64::new(0),
            reads: AtomicU64::new(0),
        };
        Missed(hosts.into_iter().map(peer).collect())
    }

    /// The name of a server's node.
    pub fn host(&self, rank: Rank) -> &str {
        let peer = self.0.get(usize::from(rank.0));
        peer.map_or("unknown", |peer| &peer.host)
    }

    /// Notes that a call had no answer.
    pub fn no_answer(&self, rank: Rank, why: &dyn std::fmt::Display) {
        let Some(peer) = self.0.get(usize::from(rank.0)) else {
            return;
        };
        let count = peer.answers.fetch_add(1, Ordering::Relaxed) + 1;
        if count.is_power_of_two() {
            let (rank, host) = (rank.0, &peer.host);
            tracing::warn!(rank, host, %why, count, "a server did not answer: who asked gets EIO");
        }
    }

    /// Notes that a call had an answer.
    pub fn answered(&self, rank: Rank) {
        if let Some(peer) = self.0.get(usize::from(rank.0)) {
            peer.answers.store(0, Ordering::Relaxed);
        }
    }

    /// Wraps a read from a server, so that its result is noted.
    pub fn watch(self: &Arc<Self>, rank: Rank, landing: Box<dyn Landing>) -> Box<dyn Landing> {
        Box::new(WatchedServer {
            landing,
            rank,
            missed: Arc::clone(self),
        })
    }

    fn ended(&self, rank: Rank, result: Result<(), ReadError>) {
        let Some(peer) = self.0.get(usize::from(rank.0)) else {
            return;
        };
        let Err(why) = result else {
            return peer.reads.store(0, Ordering::Relaxed);
        };
        let count = peer.reads.fetch_add(1, Ordering::Relaxed) + 1;
        if count.is_power_of_two() {
            let (rank, host) = (rank.0, &peer.host);
            tracing::warn!(rank, host, %why, count, "bytes that only this server has did not come: their readers get EIO");
        }
    }
}

/// A landing that notes its result.
struct WatchedServer {
    landing: Box<dyn Landing>,
    rank: Rank,
    missed: Arc<Missed>,
}

impl Landing for WatchedServer {
    fn receive(&mut self, from: BorrowedFd<'_>, at: usize, most: usize) -> io::Result<usize> {
        self.landing.receive(from, at, most)
    }

    fn put(&mut self, at: usize, bytes: &[u8]) {
        self.landing.put(at, bytes);
    }

    fn finish(self: Box<Self>, result: Result<(), ReadError>) {
        self.missed.ended(self.rank, result);
        self.landing.finish(result);
    }
}
