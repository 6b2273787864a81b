//! Where bytes of other nodes arrive: slots of a client's region, places of the node's pool.
//!
//! The server receives into the pool, a file that clients map for reading only, and says in
//! the slot how far it is; the client copies what is there, as it comes, and gives slot and
//! place back. So no byte passes the service thread, and copying overlaps with receiving.
//!
//! ```text
//! free -> (server: lend) -> arriving: `arrived` grows -> (client: `released` = 1) -> free
//!                           or FAILED, for good
//! ```
//!
//! The server never reads `arrived`, and looks at `released` only of slots that it lent: what a
//! client writes here can cost it its own reads, no more.

use core::sync::atomic::{AtomicU32, Ordering};

/// Slots of a client.
pub const LANDINGS: usize = 64;
/// Bytes of the node's pool.
pub const POOL_BYTES: usize = 64 << 20;
/// The pool's file.
pub const POOL: &str = "pool";
/// What `arrived` is when the bytes will not come.
const FAILED: u32 = u32::MAX;

/// One read of bytes of another node.
#[repr(C, align(64))]
#[derive(Debug)]
pub struct LandingSlot {
    /// Bytes that are there; a futex.
    arrived: AtomicU32,
    /// 1 while the client sleeps on `arrived` (or is about to): it wants a wake.
    pub client_sleeps: AtomicU32,
    /// 1 once the client needs the bytes no more.
    released: AtomicU32,
    spare: [AtomicU32; 13],
}

/// The bytes did not come, and will not.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Failed;

impl LandingSlot {
    /// Makes it ready for another read (server).
    pub fn lend(&self) {
        self.released.store(0, Ordering::Relaxed);
        self.arrived.store(0, Ordering::Release);
    }

    /// So many bytes are there (server); true if the client must be woken.
    pub fn arrive(&self, bytes: u32) -> bool {
        self.say(bytes.min(FAILED - 1))
    }

    /// They will not come (server); true if the client must be woken.
    pub fn fail(&self) -> bool {
        self.say(FAILED)
    }

    fn say(&self, arrived: u32) -> bool {
        // The client says that it sleeps and then looks; this is the other half.
        self.arrived.store(arrived, Ordering::SeqCst);
        self.client_sleeps.load(Ordering::SeqCst) != 0
            && self.client_sleeps.swap(0, Ordering::SeqCst) != 0
    }

    /// How many bytes are there (client).
    pub fn arrived(&self) -> Result<u32, Failed> {
        match self.arrived.load(Ordering::SeqCst) {
            FAILED => Err(Failed),
            bytes => Ok(bytes),
        }
    }

    /// The word to sleep on (client).
    pub fn word(&self) -> &AtomicU32 {
        &self.arrived
    }

    /// Gives it back (client).
    pub fn release(&self) {
        self.released.store(1, Ordering::Release);
    }

    /// Whether it was given back (server).
    pub fn is_released(&self) -> bool {
        self.released.load(Ordering::Acquire) != 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn slot() -> LandingSlot {
        LandingSlot {
            arrived: AtomicU32::default(),
            client_sleeps: AtomicU32::default(),
            released: AtomicU32::default(),
            spare: Default::default(),
        }
    }

    #[test]
    fn bytes_arrive_or_fail_and_a_sleeper_is_woken_once() {
        let slot = slot();
        slot.lend();
        assert!(!slot.arrive(5));
        assert_eq!(slot.arrived(), Ok(5));
        slot.client_sleeps.store(1, Ordering::SeqCst);
        assert!(slot.arrive(9));
        assert!(!slot.arrive(10));
        assert!(!slot.fail());
        assert_eq!(slot.arrived(), Err(Failed));
        slot.release();
        assert!(slot.is_released());
        slot.lend();
        assert_eq!((slot.arrived(), slot.is_released()), (Ok(0), false));
    }

    #[test]
    fn format_of_a_landing() {
        use crate::node::format::check_format;
        check_format!(LandingSlot: arrived client_sleeps released);
    }
}
