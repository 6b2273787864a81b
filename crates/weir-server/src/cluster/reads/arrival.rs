//! The place where bytes of another node arrive for a client: a place of the pool, and the slot of
//! the client's region that says how many bytes have arrived.

use std::io;
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::Arc;

use weir_core::node::landing::LandingSlot;
use weir_core::proto;
use weir_fabric::bulk::{Landing, ReadError};
use weir_store::slabmap::Window;
use weir_store::socket;

use crate::node::ClientMemory;

/// A read on its way to a client. Threads of the fabric own it.
pub struct Arrival<M: ClientMemory> {
    /// Kept mapped while something may arrive, even if the client is gone.
    client: Arc<M>,
    slot: u16,
    window: Window,
    over: Arc<AtomicBool>,
    wake: fn(&AtomicU32),
    /// True if all bytes came.
    whole: bool,
}

impl<M: ClientMemory> Arrival<M> {
    /// A read into a slot of the client and `len` bytes of the pool; `None` if they do not exist.
    /// `over` is set when nothing arrives any more.
    pub fn new(
        client: &Arc<M>,
        pool: Window,
        landing: proto::Landing,
        len: usize,
        over: &Arc<AtomicBool>,
        wake: fn(&AtomicU32),
    ) -> Option<Arrival<M>> {
        client.landings().get(usize::from(landing.slot))?;
        Some(Arrival {
            client: Arc::clone(client),
            slot: landing.slot,
            window: pool.part(usize::try_from(landing.at).ok()?, len)?,
            over: Arc::clone(over),
            wake,
            whole: false,
        })
    }

    fn slot(&self) -> &LandingSlot {
        &self.client.landings()[usize::from(self.slot)]
    }

    fn arrived(&self, upto: usize) {
        let slot = self.slot();
        if slot.arrive(u32::try_from(upto).unwrap_or(u32::MAX)) {
            (self.wake)(slot.word());
        }
    }
}

impl<M: ClientMemory + Send + Sync> Landing for Arrival<M> {
    fn receive(&mut self, from: BorrowedFd<'_>, at: usize, most: usize) -> io::Result<usize> {
        let took = socket::receive(from, self.window, at, most)?;
        self.arrived(at + took);
        Ok(took)
    }

    fn put(&mut self, at: usize, bytes: &[u8]) {
        self.window.write(at, bytes);
        self.arrived(at + bytes.len());
    }

    fn finish(mut self: Box<Self>, result: Result<(), ReadError>) {
        // A failure is noted where this landing is wrapped (`fetch::watched`).
        self.whole = result.is_ok();
    }
}

impl<M: ClientMemory> Drop for Arrival<M> {
    /// Nothing arrives any more. A read that was not ended has failed.
    fn drop(&mut self) {
        if !self.whole && self.slot().fail() {
            (self.wake)(self.slot().word());
        }
        self.over.store(true, Ordering::Release);
    }
}
