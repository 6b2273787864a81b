//! TCP over loopback; the caller serves the sockets.

use std::sync::Arc;
use std::time::Duration;

use weir_core::types::Rank;
use weir_fabric::bulk::EmptyLogSource;
use weir_fabric::{PolledTcp, Timing};

use crate::servers::{Transport, Wrong};
use crate::tcp::Loopback;

/// A loopback network.
pub struct Polled(Loopback);

impl Transport for Polled {
    type End = PolledTcp;

    /// A stranger waits for a server, whose sockets are not served meanwhile: see `tcp`.
    const OPEN: bool = false;

    fn new(servers: u16, timing: Timing) -> Polled {
        Polled(Loopback::new(servers, timing))
    }

    fn troubled(servers: u16, timing: Timing) -> Polled {
        Polled(Loopback::troubled(servers, timing))
    }

    fn start(&mut self, rank: Rank, incarnation: u64) -> PolledTcp {
        let (listener, membership, timing) = self.0.place(rank, incarnation);
        PolledTcp::start(listener, membership, timing, Arc::new(EmptyLogSource)).unwrap()
    }

    fn now(&self) -> Duration {
        self.0.now()
    }

    fn pass(&mut self) {
        // Any of them may have something: a short wait.
        std::thread::sleep(Duration::from_micros(500));
    }

    fn stranger(&mut self, _: Rank, _: Wrong) {
        unreachable!("it would wait for who serves nobody");
    }
}
