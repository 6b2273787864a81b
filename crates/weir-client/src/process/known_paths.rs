//! The knowledge that saves an instance with elevated trees look-ups: of directories and of paths. It is
//! never wrong for longer than it says; a slot that something else takes costs a look-up.

use core::sync::atomic::{AtomicU64, Ordering};

use weir_core::names::hash_of_bytes;
use weir_core::types::Ino;

use crate::sys::coarse_now_ns;

/// The time for which a path is known to be the kernel's.
const KNOWN_NS: u64 = 1_000_000_000;

/// Some of the directories that are known to cover none, which they remain: one that covers another is
/// made so before anybody sees it. So the home of a name need not be asked for each of their new names.
#[derive(Debug)]
pub(super) struct OpaqueDirectories([AtomicU64; 256]);

impl OpaqueDirectories {
    pub(super) const fn new() -> OpaqueDirectories {
        OpaqueDirectories([const { AtomicU64::new(0) }; 256])
    }

    fn slot(&self, dir: Ino) -> &AtomicU64 {
        let hash = hash_of_bytes(0, &dir.0.to_ne_bytes());
        &self.0[(hash % 256) as usize]
    }

    pub(super) fn contains(&self, dir: Ino) -> bool {
        self.slot(dir).load(Ordering::Relaxed) == dir.0
    }

    pub(super) fn insert(&self, dir: Ino) {
        self.slot(dir).store(dir.0, Ordering::Relaxed);
    }
}

/// Paths that were found to be the kernel's.
#[derive(Debug)]
pub(super) struct OutsidePaths([OutsidePath; 512]);

#[derive(Debug)]
struct OutsidePath {
    hash: AtomicU64,
    until_ns: AtomicU64,
}

impl OutsidePaths {
    pub(super) const fn new() -> OutsidePaths {
        OutsidePaths(
            [const {
                OutsidePath {
                    hash: AtomicU64::new(0),
                    until_ns: AtomicU64::new(0),
                }
            }; 512],
        )
    }

    fn slot(&self, hash: u64) -> &OutsidePath {
        &self.0[(hash % 512) as usize]
    }

    pub(super) fn contains(&self, hash: u64) -> bool {
        let slot = self.slot(hash);
        slot.hash.load(Ordering::Acquire) == hash
            && slot.until_ns.load(Ordering::Relaxed) > coarse_now_ns()
    }

    pub(super) fn insert(&self, hash: u64) {
        let slot = self.slot(hash);
        let until = coarse_now_ns().saturating_add(KNOWN_NS);
        slot.until_ns.store(until, Ordering::Relaxed);
        slot.hash.store(hash, Ordering::Release);
    }
}
