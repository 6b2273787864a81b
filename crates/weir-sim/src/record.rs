//! The records of a run: the order of events, the results of operations, the faults found, and a trace
//! with a hash that tells if two runs were the same.

use std::cell::{Cell, RefCell};
use std::fmt::{Arguments, Write};
use std::time::Duration;

use weir_core::types::Ino;

use crate::bytes::{Bytes, Guarantees};
use crate::linear::Call;
use crate::locks::Locks;
use crate::plan::{FaultKind, Plan};

/// The notes of one run.
#[derive(Debug, Default)]
pub struct Record {
    next: Cell<u64>,
    hash: Cell<u64>,
    lines: RefCell<Vec<String>>,
    keep: bool,
    /// Operations on names.
    pub calls: RefCell<Vec<Call>>,
    /// The history of bytes.
    pub bytes: RefCell<Bytes>,
    /// Locks of files.
    pub locks: RefCell<Locks>,
    /// The directories that programs have taken up into an elevated tree, with their names there.
    pub taken_up: RefCell<Vec<(Vec<u8>, Ino)>>,
    faults: RefCell<Vec<String>>,
    operations: Cell<u64>,
    failed: Cell<u64>,
    evicted: Cell<u64>,
}

/// FNV-1a.
fn hash_on(mut hash: u64, bytes: &[u8]) -> u64 {
    for byte in bytes {
        hash = (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01B3);
    }
    hash
}

impl Record {
    /// An empty record for a plan; with `keep`, it keeps the lines of the trace.
    pub fn new(keep: bool, plan: &Plan) -> Record {
        let lost = plan.faults.iter().filter_map(|fault| match fault.what {
            FaultKind::KillServer(rank) | FaultKind::KillNode(rank) => Some(rank),
            _ => None,
        });
        Record {
            keep,
            bytes: RefCell::new(Bytes::new(Guarantees {
                visibility: plan.visibility(),
                lost: lost.collect(),
                fails_calls: plan.fails_calls(),
            })),
            locks: RefCell::new(Locks::new(plan.troubled())),
            hash: Cell::new(0xCBF2_9CE4_8422_2325),
            ..Record::default()
        }
    }

    /// Adds an event; returns its position in the order of all events.
    pub fn event(&self) -> u64 {
        let next = self.next.get() + 1;
        self.next.set(next);
        next
    }

    /// Adds a line to the trace.
    pub fn line(&self, now: Duration, what: Arguments<'_>) {
        let mut line = String::new();
        // Writing to a string does not fail.
        let _ = write!(line, "{:>14.6} {what}", now.as_secs_f64() * 1e3);
        self.hash.set(hash_on(self.hash.get(), line.as_bytes()));
        if self.keep {
            self.lines.borrow_mut().push(line);
        }
    }

    /// Records a fault.
    pub fn fault(&self, what: String) {
        self.faults.borrow_mut().push(what);
    }

    /// Records the end of an operation.
    pub fn count(&self, failed: bool) {
        self.operations.set(self.operations.get() + 1);
        self.failed.set(self.failed.get() + u64::from(failed));
    }

    /// The number of operations, and of those that failed because a server was lost.
    pub fn counts(&self) -> (u64, u64) {
        (self.operations.get(), self.failed.get())
    }

    /// Records that a file, or ranges of it, lost its storage.
    pub fn count_evicted(&self, is_evicted: bool) {
        self.evicted.set(self.evicted.get() + u64::from(is_evicted));
    }

    /// The number of evictions.
    pub fn evicted(&self) -> u64 {
        self.evicted.get()
    }

    /// The faults found.
    pub fn faults(&self) -> Vec<String> {
        self.faults.borrow().clone()
    }

    /// The trace's hash.
    pub fn hash(&self) -> u64 {
        self.hash.get()
    }

    /// The trace, if it was kept.
    pub fn lines(&self) -> Vec<String> {
        self.lines.take()
    }
}
