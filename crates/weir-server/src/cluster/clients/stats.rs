//! The server's counters, for `weir status` and the report.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;

use weir_core::node::region::{ClientHeader, Counter, COUNTERS, COUNTER_NAMES, REFUSAL_NAMES};
use weir_core::proto::{Caller, FsError, Request};

/// Counters.
#[derive(Debug, Default)]
pub struct Stats {
    /// The number of clients that there ever were.
    pub(super) clients_ever: u64,
    requests: BTreeMap<&'static str, u64>,
    rejected: BTreeMap<&'static str, u64>,
    folded: Folded,
}

/// Sums over clients.
#[derive(Clone, Debug)]
pub struct Folded {
    counters: [u64; COUNTERS],
    refused: [u64; 64],
}

impl Default for Folded {
    fn default() -> Self {
        Folded {
            counters: [0; COUNTERS],
            refused: [0; 64],
        }
    }
}

impl Stats {
    /// Decodes a request of a client or a tool, and counts it.
    pub(in crate::cluster) fn decode_request(
        &mut self,
        from: Caller,
        bytes: &[u8],
    ) -> Result<Request, FsError> {
        let request = postcard::from_bytes::<Request>(bytes);
        let name = request.as_ref().map_or("malformed", Request::name);
        *self.requests.entry(name).or_default() += 1;
        request.map_err(|_| {
            let about = || format!("{from:?}: {} bytes", bytes.len());
            self.reject("request", about);
            FsError::Malformed
        })
    }

    /// Counts input from outside that was refused. Logs the first, second, fourth... of its kind,
    /// so that a faulty client does not fill the log.
    pub fn reject(&mut self, what: &'static str, why: impl FnOnce() -> String) {
        let count = self.rejected.entry(what).or_default();
        *count += 1;
        if count.is_power_of_two() {
            tracing::warn!(what, count, "refused: {}", why());
        }
    }

    /// Adds the counters of a client that ended.
    pub fn fold(&mut self, header: &ClientHeader) {
        self.folded.add(header);
    }

    /// The sums over clients that ended.
    pub fn folded(&self) -> Folded {
        self.folded.clone()
    }

    /// Adds bytes that a client wrote but, because it was killed, did not count.
    pub fn fold_written(&mut self, bytes: u64) {
        self.folded.add_written(bytes);
    }

    /// Requests done, by operation.
    pub fn requests(&self) -> Vec<(String, u64)> {
        named(&self.requests)
    }

    /// Input refused, by kind.
    pub fn rejected(&self) -> Vec<(String, u64)> {
        named(&self.rejected)
    }
}

fn named(counts: &BTreeMap<&'static str, u64>) -> Vec<(String, u64)> {
    counts
        .iter()
        .map(|(name, n)| ((*name).to_owned(), *n))
        .collect()
}

impl Folded {
    /// Adds a client's counters.
    pub fn add(&mut self, header: &ClientHeader) {
        for (sum, word) in self.counters.iter_mut().zip(&header.counters) {
            *sum = sum.saturating_add(word.load(Ordering::Relaxed));
        }
        for (sum, word) in self.refused.iter_mut().zip(&header.refused) {
            *sum = sum.saturating_add(word.load(Ordering::Relaxed));
        }
    }

    /// Adds bytes that a client wrote and has not counted yet.
    pub fn add_written(&mut self, bytes: u64) {
        let written = &mut self.counters[Counter::BytesWritten as usize];
        *written = written.saturating_add(bytes);
    }

    /// The clients' counters, by name.
    pub fn counters(&self) -> Vec<(String, u64)> {
        COUNTER_NAMES
            .iter()
            .zip(self.counters)
            .map(|(name, n)| ((*name).to_owned(), n))
            .collect()
    }

    /// The calls that clients refused, by name.
    pub fn refused(&self) -> Vec<(String, u64)> {
        REFUSAL_NAMES
            .iter()
            .zip(self.refused)
            .filter(|(_, n)| *n > 0)
            .map(|(name, n)| ((*name).to_owned(), n))
            .collect()
    }
}
