//! The numbers of requests of other servers, and of requests and bytes to them.

use crate::cluster::peers::PeerServers;

/// Counts of this server's requests to others.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct SentCounts {
    /// Requests.
    calls: u64,
    /// Bytes of requests and replies, and of logs, without the overhead of a transport.
    bytes: u64,
}

impl PeerServers {
    /// The number of requests of other servers, by operation.
    pub fn asked(&self) -> Vec<(String, u64)> {
        let asked = self.inner.asked.borrow();
        let mut all: Vec<_> = asked
            .iter()
            .map(|(name, n)| ((*name).to_owned(), *n))
            .collect();
        all.sort();
        all
    }

    /// Counts of this server's requests to others, and of its debts to servers that it cannot
    /// reach, by name.
    pub fn moved(&self) -> Vec<(String, u64)> {
        let sent = self.inner.sent.get();
        let (owed, dropped) = self.debts();
        vec![
            ("fabric_calls".to_owned(), sent.calls),
            ("fabric_bytes".to_owned(), sent.bytes),
            ("owed".to_owned(), owed),
            ("owed_dropped".to_owned(), dropped),
        ]
    }

    /// Counts a request of another server.
    pub(in crate::cluster) fn count_asked(&self, name: &'static str) {
        let mut asked = self.inner.asked.borrow_mut();
        *asked.entry(name).or_default() += 1;
    }

    /// Counts requests to other servers, and bytes to and from them.
    pub(in crate::cluster) fn count_moved(&self, calls: u64, bytes: usize) {
        let sent = self.inner.sent.get();
        self.inner.sent.set(SentCounts {
            calls: sent.calls + calls,
            bytes: sent.bytes + bytes as u64,
        });
    }
}
