//! Claims of two writers of a file: a write that begins after another one returned has the newer record.
//!
//! A writer claims the bytes into which its record may grow, takes a stamp, and grows the record while
//! the file's epoch is that of the claim. So if one writer finds, before it grows, that another one's write
//! has returned, and the epoch still holds, then the other's record is older than its own, or elsewhere.

use std::sync::Arc;

use loom::thread;
use weir_core::node::block::FileBlock;
use weir_core::node::cell::Cell;
use weir_core::node::claim::{acquire, Claim, Outcome};
use weir_core::sync::{AtomicU64, Ordering};

use super::{explore, explore_kills};

struct Shared {
    block: FileBlock,
    cells: Vec<Cell>,
    /// The stamp of a write that has returned, of each writer.
    returned: Vec<AtomicU64>,
    /// The claim of the writer that the file had first.
    wide: Claim,
}

/// A record that a writer may grow.
#[derive(Clone, Copy, Debug)]
struct Growing {
    claim: Claim,
    epoch: u64,
    stamp: u64,
}

impl Shared {
    fn new(writers: u32) -> Arc<Shared> {
        let shared = Shared {
            block: FileBlock::default(),
            cells: (0..writers).map(|_| Cell::default()).collect(),
            returned: (0..writers).map(|_| AtomicU64::default()).collect(),
            wide: Claim::range(0, 100),
        };
        shared.block.lend(1, 0, 1);
        for (index, cell) in (0..).zip(&shared.cells) {
            let next = shared.block.head.load(Ordering::Relaxed);
            cell.lend(0, index, next);
            shared.block.head.store(index + 1, Ordering::Release);
        }
        Arc::new(shared)
    }

    /// Begins a record, whose first write is of the bytes `needed`, and ends that write.
    fn begin(&self, writer: u32, needed: &Claim, wished: &Claim) -> Growing {
        let outcome = acquire(&self.block, &self.cells, writer, needed, wished);
        let stamp = self.block.stamp();
        self.returned[writer as usize].store(stamp, Ordering::Release);
        match outcome {
            Outcome::Granted { claim, epoch } => Growing {
                claim,
                epoch,
                stamp,
            },
            Outcome::Single => Growing {
                claim: Claim::default(),
                epoch: u64::MAX,
                stamp,
            },
        }
    }

    /// Looks if the record may grow by `bytes` after the other's write of `theirs` has returned.
    fn check(&self, grows: &Growing, bytes: &Claim, other: usize, theirs: &Claim) {
        let returned = self.returned[other].load(Ordering::Acquire);
        let holds = self.block.epoch.load(Ordering::Acquire) == grows.epoch;
        if returned != 0 && holds && grows.claim.contains(bytes) {
            let older = returned < grows.stamp;
            assert!(
                older || !bytes.overlaps(theirs),
                "{grows:?} over {returned}"
            );
        }
    }
}

#[test]
fn of_two_records_that_begin_the_later_write_is_newer() {
    explore(1, || {
        let shared = Shared::new(2);
        let bytes = Claim::range(50, 10);
        let other = thread::spawn({
            let shared = Arc::clone(&shared);
            move || {
                let grows = shared.begin(1, &bytes, &bytes);
                shared.check(&grows, &bytes, 0, &Claim::range(0, 10));
            }
        });
        let grows = shared.begin(0, &Claim::range(0, 10), &shared.wide);
        shared.check(&grows, &bytes, 1, &bytes);
        other.join().unwrap();
        shared.check(&grows, &bytes, 1, &bytes);
    });
}

/// As `Stream::widen_claim` does: the record keeps its stamp, so no other may have begun since.
#[test]
fn a_record_that_claims_more_is_not_older_than_what_it_grows_over() {
    explore(1, || {
        let shared = Shared::new(2);
        let first = Claim::range(0, 10);
        let bytes = Claim::range(50, 10);
        let mut grows = shared.begin(0, &first, &first);
        let other = thread::spawn({
            let shared = Arc::clone(&shared);
            move || {
                shared.begin(1, &bytes, &bytes);
            }
        });
        let needed = Claim::range(0, 20);
        let outcome = acquire(&shared.block, &shared.cells, 0, &needed, &shared.wide);
        if let Outcome::Granted { claim, epoch } = outcome {
            let next = shared.block.next_stamp.load(Ordering::SeqCst);
            if epoch == grows.epoch && next == grows.stamp + 1 {
                grows.claim = claim;
            }
        }
        shared.check(&grows, &bytes, 1, &bytes);
        other.join().unwrap();
        shared.check(&grows, &bytes, 1, &bytes);
    });
}

/// A third writer's claim makes one give a part of its wish back: that shows a claim that changes.
#[test]
fn a_claim_that_is_made_smaller_is_not_overlooked() {
    explore(1, || {
        let shared = Shared::new(3);
        let (wish, needed) = (Claim::range(50, 300), Claim::range(200, 10));
        shared.begin(2, &Claim::range(300, 10), &Claim::range(300, 10));
        let other = thread::spawn({
            let shared = Arc::clone(&shared);
            move || {
                shared.begin(1, &needed, &needed);
            }
        });
        let grows = shared.begin(0, &needed, &wish);
        other.join().unwrap();
        shared.check(&grows, &needed, 1, &needed);
    });
}

/// A writer that is killed while it changes its claim, or between claim and record, costs a new epoch.
#[test]
fn a_killed_writer_binds_nobody() {
    explore_kills(1, |victim| {
        let shared = Shared::new(2);
        let bytes = Claim::range(50, 10);
        victim.run(|| shared.begin(1, &bytes, &bytes));
        let grows = shared.begin(0, &bytes, &shared.wide);
        shared.check(&grows, &bytes, 1, &bytes);
        // The server takes the cell back.
        shared.cells[1].withdraw_claim();
        let grows = shared.begin(0, &bytes, &shared.wide);
        shared.check(&grows, &bytes, 1, &bytes);
    });
}
