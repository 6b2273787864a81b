//! Slots for bytes of other nodes: a range of the pool has one user at a time.
//!
//! The server lends a slot, receives into the range and shows how much has arrived. The client reads that
//! much and releases the slot; then the server lends slot and range again. A slot with bytes ahead belongs
//! to the client only after a claim, which competes with the server's taking it back. Of the range, here a
//! cell of loom's, no access may race with another; and a client that sleeps until bytes arrive is woken.

use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::thread;
use weir_core::node::landing::{Failed, LandingSlot};
use weir_core::sync::Ordering;

use super::{explore, explore_kills, Futex};

#[derive(Default)]
struct Shared {
    slot: LandingSlot,
    range: UnsafeCell<u32>,
    futex: Futex,
}

impl Shared {
    /// Lends the slot, or more of it, with bytes for the lending `serial` (server).
    fn lend(&self, serial: u32, ahead: bool) {
        self.slot.lend(serial, ahead);
        self.receive(serial);
    }

    fn receive(&self, serial: u32) {
        // SAFETY: a cell that lives, to which loom lets nothing else point now.
        self.range.with_mut(|range| unsafe { *range = serial });
        if self.slot.arrive(1) {
            self.futex.wake();
        }
    }

    /// Reads the bytes of the lending `serial`, which have arrived (client).
    fn read(&self, serial: u32) {
        assert_eq!(self.slot.arrived(), Ok(1));
        // SAFETY: a cell that lives, to which loom lets nothing write now.
        assert_eq!(self.range.with(|range| unsafe { *range }), serial);
    }

    /// Waits until something has arrived, as the client's `fetch.rs` does.
    fn wait(&self) -> Result<u32, Failed> {
        loop {
            let arrived = self.slot.arrived()?;
            if arrived > 0 {
                return Ok(arrived);
            }
            self.slot.client_sleeps.store(1, Ordering::SeqCst);
            if self.slot.arrived() == Ok(arrived) {
                self.futex.wait(self.slot.word(), arrived);
            }
        }
    }
}

#[test]
fn a_sleeper_is_woken_and_its_range_is_lent_again_only_after_its_release() {
    explore(3, || {
        let shared = Arc::new(Shared::default());
        shared.slot.lend(1, false);
        let client = thread::spawn({
            let shared = Arc::clone(&shared);
            move || {
                assert_eq!(shared.wait(), Ok(1));
                shared.read(1);
                shared.slot.release(1);
            }
        });
        shared.receive(1);
        if shared.slot.is_over(1) {
            shared.lend(2, false);
        }
        client.join().unwrap();
    });
}

#[test]
fn bytes_that_fail_wake_the_sleeper() {
    explore(3, || {
        let shared = Arc::new(Shared::default());
        shared.slot.lend(1, false);
        let client = thread::spawn({
            let shared = Arc::clone(&shared);
            move || assert_eq!(shared.wait(), Err(Failed))
        });
        if shared.slot.fail() {
            shared.futex.wake();
        }
        client.join().unwrap();
    });
}

#[test]
fn bytes_ahead_are_the_clients_or_the_servers() {
    explore(3, || {
        let shared = Arc::new(Shared::default());
        shared.lend(1, true);
        let client = thread::spawn({
            let shared = Arc::clone(&shared);
            move || {
                if shared.slot.claim(1) {
                    shared.read(1);
                    shared.slot.put_back(1);
                }
                if shared.slot.claim(1) {
                    shared.read(1);
                    shared.slot.release(1);
                }
            }
        });
        for _ in 0..2 {
            if shared.slot.take_back(1) {
                break;
            }
        }
        if shared.slot.is_over(1) {
            shared.lend(2, true);
            assert!(
                !shared.slot.is_over(2),
                "the first client has no part in it"
            );
        }
        client.join().unwrap();
    });
}

/// The server gives up what a killed client held; a slot it did not hold goes to nobody else meanwhile.
#[test]
fn the_slot_of_a_killed_client_is_lent_again() {
    explore_kills(2, |victim| {
        let shared = Arc::new(Shared::default());
        shared.lend(1, true);
        let client = thread::spawn({
            let (shared, victim) = (Arc::clone(&shared), victim.clone());
            move || {
                victim.run(|| {
                    if shared.slot.claim(1) {
                        shared.read(1);
                        shared.slot.release(1);
                    }
                })
            }
        });
        let taken = shared.slot.take_back(1);
        let end = client.join().unwrap();
        assert!(taken || end.is_none() || shared.slot.is_over(1));
        shared.lend(2, false);
        shared.slot.release(1);
        assert!(!shared.slot.is_over(2));
        shared.read(2);
    });
}
