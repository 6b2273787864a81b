//! Nonblocking puts that the program has not waited for yet. Their elements are in the log already, and the wait makes them
//! entries. Until then they can be cancelled, and neither the file nor its number of records changes.

use core::ffi::c_int;
use std::collections::btree_map::Entry;
use std::collections::BTreeMap;

use weir_arrays::log::LogEntry;

/// Numbers of requests begin here. PnetCDF's own begin at 0, and do not reach this in a program's life. Ours are even, as for
/// PnetCDF's puts.
const FIRST: c_int = 0x4000_0000;

/// A request.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PutRequest {
    /// The entries, one or more.
    pub entries: Vec<LogEntry>,
    /// For `bput`: its bytes of the attached buffer.
    pub buffered: Option<u64>,
}

/// The requests of a file.
#[derive(Debug, Default)]
pub struct PutRequests {
    begun: c_int,
    /// The requests by their numbers.
    pending: BTreeMap<c_int, PutRequest>,
}

impl PutRequests {
    /// Notes a request, and returns its number.
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

    /// Forgets a request. `None`: the number is not one of ours.
    pub fn end_request(&mut self, number: c_int) -> Option<PutRequest> {
        self.pending.remove(&number)
    }

    /// Forgets all of them. Returns them in their order.
    pub fn end_all(&mut self) -> Vec<PutRequest> {
        std::mem::take(&mut self.pending).into_values().collect()
    }

    /// The entries of all requests.
    pub fn entries(&self) -> impl Iterator<Item = &LogEntry> {
        self.pending.values().flat_map(|request| &request.entries)
    }

    /// The number of requests.
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
