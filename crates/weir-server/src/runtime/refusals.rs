//! Counters of refusals at the server's socket, before the service thread hears of them. The first,
//! second, fourth... refusal of a kind is logged, so that a program that connects all day does not
//! fill the log. The poller counts; the service thread shows the counts.

use std::sync::atomic::{AtomicU64, Ordering};

/// The reason why a connection was refused.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Refusal {
    /// It sent an invalid message.
    Garbled,
    /// Another version of the protocol.
    Version,
    /// It is of another user.
    User,
    /// There are too many connections.
    Crowd,
    /// There are too many clients.
    Clients,
    /// It connected, said nothing, and had to make room for another.
    Silent,
    /// No descriptor was left, so it had to wait.
    Descriptors,
}

const NAMES: [&str; 7] = [
    "socket: no message",
    "socket: another version",
    "socket: another user",
    "socket: too many connections",
    "socket: too many clients",
    "socket: said nothing",
    "socket: no descriptors left",
];

/// The counts of one server.
#[derive(Debug, Default)]
pub struct ConnectionRefusals {
    counts: [AtomicU64; NAMES.len()],
}

impl ConnectionRefusals {
    /// Counts a refusal of process `pid`.
    pub fn refuse(&self, refusal: Refusal, pid: u32) {
        let count = self.counts[refusal as usize].fetch_add(1, Ordering::Relaxed) + 1;
        if count.is_power_of_two() {
            let what = NAMES[refusal as usize];
            tracing::warn!(pid, count, "refused: {what}");
        }
    }

    /// Kinds and counts, of those that occurred.
    pub fn counts(&self) -> Vec<(String, u64)> {
        let counts = self.counts.iter().map(|n| n.load(Ordering::Relaxed));
        let named = NAMES.iter().zip(counts).filter(|(_, n)| *n > 0);
        named.map(|(name, n)| ((*name).to_owned(), n)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_kind_is_counted_by_its_name() {
        let refusals = ConnectionRefusals::default();
        refusals.refuse(Refusal::Version, 1);
        refusals.refuse(Refusal::Silent, 1);
        refusals.refuse(Refusal::Silent, 2);
        let counts = refusals.counts();
        let expected = [("socket: another version", 1), ("socket: said nothing", 2)];
        assert_eq!(counts, expected.map(|(name, n)| (name.to_owned(), n)));
    }
}
