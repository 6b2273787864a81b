//! The destination of other nodes' bytes: slots of a client's region, and ranges of the node's
//! pool.
//!
//! The server receives into the pool, a file that clients map for reading only, and shows its
//! progress in the slot; the client copies the bytes as they come, and gives back slot and range.
//! So no byte passes the service thread, and copying overlaps with receiving.
//!
//! ```text
//! free -> (server: lend) -> arriving: `arrived` grows -> (client: release) -> free
//!                           or FAILED, for good
//! ```
//!
//! Bytes that are fetched ahead of a reader lie in slots that are not used yet. The client claims
//! such a slot before it copies from it, and puts it back if it will need the rest later; the
//! server may take it back meanwhile, for reads that a program waits for:
//!
//! ```text
//! owner:  31               2   0
//!        +-----------------+-----+
//!        | serial          |state|    HELD <--claim, put back--> AHEAD --take back--> TAKEN
//!        +-----------------+-----+      `--release--> FREE <--release--'
//! ```
//!
//! Each lending has its own serial, so that a claim of a slot that was taken back and lent anew
//! fails.
//!
//! The server never reads `arrived`, and looks at `owner` only of slots that it lent: a client that
//! writes here can only spoil its own reads.

use crate::sync::{AtomicU32, Ordering};

/// Slots of a client.
pub const LANDINGS: usize = 64;
/// The most of these that have bytes that were fetched ahead.
pub const LANDINGS_AHEAD: usize = LANDINGS / 2;
/// Bytes of the node's pool, at least; it is as long as its file.
pub const POOL_BYTES: usize = 64 << 20;
/// The pool's file.
pub const POOL: &str = "pool";
/// The value of `arrived` when the bytes will not come.
const FAILED: u32 = u32::MAX;

/// The client uses it.
const HELD: u32 = 0;
/// Fetched ahead, and not used yet.
const AHEAD: u32 = 1;
/// The client needs it no more.
const FREE: u32 = 2;
/// The server has taken it back.
const TAKEN: u32 = 3;

/// Packs the serial of a lending and its state.
fn owner(serial: u32, state: u32) -> u32 {
    serial << 2 | state
}

/// One read of bytes of another node.
#[repr(C, align(64))]
#[derive(Debug, Default)]
pub struct LandingSlot {
    /// Bytes that are there; a futex.
    arrived: AtomicU32,
    /// 1 while the client sleeps on `arrived` (or is about to): it wants a wake.
    pub client_sleeps: AtomicU32,
    /// The serial of the lending, and the state: see above.
    owner: AtomicU32,
    spare: [AtomicU32; 13],
}

/// The bytes did not come, and will not.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Failed;

impl LandingSlot {
    /// Prepares the slot for another read (server): one that the client waits for, or one ahead.
    pub fn lend(&self, serial: u32, ahead: bool) {
        self.arrived.store(0, Ordering::Release);
        let state = if ahead { AHEAD } else { HELD };
        self.owner.store(owner(serial, state), Ordering::Release);
    }

    /// Sets the number of bytes that are there (server); returns true if the client must be woken.
    pub fn arrive(&self, bytes: u32) -> bool {
        self.say(bytes.min(FAILED - 1))
    }

    /// Marks the bytes as failed (server); returns true if the client must be woken.
    pub fn fail(&self) -> bool {
        self.say(FAILED)
    }

    fn say(&self, arrived: u32) -> bool {
        // The client sets its flag before it sleeps and then looks; this is the other half.
        self.arrived.store(arrived, Ordering::SeqCst);
        self.client_sleeps.load(Ordering::SeqCst) != 0
            && self.client_sleeps.swap(0, Ordering::SeqCst) != 0
    }

    /// Returns the number of bytes that are there (client).
    pub fn arrived(&self) -> Result<u32, Failed> {
        match self.arrived.load(Ordering::SeqCst) {
            FAILED => Err(Failed),
            bytes => Ok(bytes),
        }
    }

    /// Returns the word to sleep on (client).
    pub fn word(&self) -> &AtomicU32 {
        &self.arrived
    }

    /// Claims bytes that were fetched ahead (client); returns false if the slot was taken back.
    pub fn claim(&self, serial: u32) -> bool {
        self.turn(serial, AHEAD, HELD)
    }

    /// Puts a claimed slot back, for later use (client).
    pub fn put_back(&self, serial: u32) {
        let _ = self.turn(serial, HELD, AHEAD);
    }

    /// Gives the slot back (client).
    pub fn release(&self, serial: u32) {
        let _ = self.turn(serial, HELD, FREE) || self.turn(serial, AHEAD, FREE);
    }

    /// Takes back a slot that is not used (server); returns true if it is taken back now.
    pub fn take_back(&self, serial: u32) -> bool {
        self.turn(serial, AHEAD, TAKEN)
    }

    /// Returns true if the client does not need it any more (server).
    pub fn is_over(&self, serial: u32) -> bool {
        let now = self.owner.load(Ordering::Acquire);
        now == owner(serial, FREE) || now == owner(serial, TAKEN)
    }

    fn turn(&self, serial: u32, from: u32, to: u32) -> bool {
        let (from, to) = (owner(serial, from), owner(serial, to));
        let (won, lost) = (Ordering::AcqRel, Ordering::Relaxed);
        self.owner.compare_exchange(from, to, won, lost).is_ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_arrive_or_fail_and_a_sleeper_is_woken_once() {
        let slot = LandingSlot::default();
        slot.lend(1, false);
        assert!(!slot.arrive(5));
        assert_eq!(slot.arrived(), Ok(5));
        slot.client_sleeps.store(1, Ordering::SeqCst);
        assert!(slot.arrive(9));
        assert!(!slot.arrive(10));
        assert!(!slot.fail());
        assert_eq!(slot.arrived(), Err(Failed));
        slot.release(1);
        assert!(slot.is_over(1));
        slot.lend(2, false);
        assert_eq!((slot.arrived(), slot.is_over(2)), (Ok(0), false));
    }

    #[test]
    fn what_lies_ahead_has_one_owner_at_a_time() {
        let slot = LandingSlot::default();
        slot.lend(7, true);
        assert!(slot.claim(7));
        assert!(!slot.take_back(7), "it is in use");
        slot.put_back(7);
        assert!(slot.take_back(7) && slot.is_over(7));
        assert!(!slot.claim(7), "it is the server's");
        slot.lend(8, false);
        // The client of the earlier lending cannot affect the client of this one.
        slot.release(7);
        slot.put_back(7);
        assert!(!slot.claim(7) && !slot.is_over(8));
        slot.release(8);
        assert!(slot.is_over(8));
        slot.lend(9, true);
        slot.release(9);
        assert!(slot.is_over(9), "dropped without use");
    }

    #[test]
    fn format_of_a_landing() {
        use crate::node::format::check_format;
        check_format!(LandingSlot: arrived client_sleeps owner);
    }
}
