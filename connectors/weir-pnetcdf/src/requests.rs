//! Nonblocking puts that the program has not waited for yet. Their elements are in the log already; they become entries of it
//! when they are waited for: until then they may be taken back, and neither the file nor its number of records changes.

use core::ffi::c_int;
use std::collections::btree_map::Entry;
use std::collections::BTreeMap;

use weir_arrays::log::LogEntry;

/// Numbers of requests begin here, where PnetCDF's own, which begin at 0, do not come in a program's life. They are even, as
/// those of its puts.
const FIRST: c_int = 0x4000_0000;

/// A request.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PutRequest {
    /// One or more.
    pub entries: Vec<LogEntry>,
    /// For `bput`: bytes of the attached buffer that it takes.
    pub buffered: Option<u64>,
}

/// The requests of a file.
#[derive(Debug, Default)]
pub struct PutRequests {
    begun: c_int,
    /// By their numbers.
    pending: BTreeMap<c_int, PutRequest>,
}

impl PutRequests {
    /// Notes a request, and gives its number.
    pub fn begin(&mut self, request: PutRequest) -> c_int {
        loop {
            let number = FIRST + 2 * (self.begun & 0x0fff_ffff);
            self.begun = self.begun.wrapping_add(1);
            if let Entry::Vacant(free) = self.pending.entry(number) {
                free.insert(request);
                return number;
            }
        }
    }

    /// Forgets a request. `None`: it is none of these.
    pub fn end_request(&mut self, number: c_int) -> Option<PutRequest> {
        self.pending.remove(&number)
    }

    /// Forgets all of them. Returns them in their order.
    pub fn end_all(&mut self) -> Vec<PutRequest> {
        std::mem::take(&mut self.pending).into_values().collect()
    }

    /// The entries that they will be.
    pub fn entries(&self) -> impl Iterator<Item = &LogEntry> {
        self.pending.values().flat_map(|request| &request.entries)
    }

    /// How many there are.
    pub fn count(&self) -> usize {
        self.pending.len()
    }

    /// Bytes of the attached buffer that are in use.
    pub fn buffered_bytes(&self) -> u64 {
        self.pending
            .values()
            .filter_map(|request| request.buffered)
            .sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_is_not_given_twice_at_a_time() {
        let request = PutRequest {
            entries: Vec::new(),
            buffered: Some(8),
        };
        let mut requests = PutRequests::default();
        let first = requests.begin(request.clone());
        requests.begun = 0;
        let second = requests.begin(request.clone());
        assert_ne!(first, second);
        assert_eq!((requests.count(), requests.buffered_bytes()), (2, 16));
        assert_eq!(requests.end_request(first), Some(request.clone()));
        assert_eq!(requests.end_request(first), None);
        assert_eq!(requests.end_all(), [request]);
    }
}
