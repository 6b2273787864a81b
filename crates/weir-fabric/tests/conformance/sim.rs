//! The simulated network, with and without faults.

use std::time::Duration;

use weir_core::types::Rank;
use weir_fabric::sim::{Network, NetworkFaults, SimulatedEndpoint};
use weir_fabric::Timing;

use crate::servers::{Transport, Wrong};

const STORM: NetworkFaults = NetworkFaults {
    delay: (Duration::from_micros(10), Duration::from_millis(20)),
    breaks_per_mille: 20,
    notice: Duration::from_millis(20),
    twice_per_mille: 50,
    overtakes_per_mille: 50,
};

/// A network with an arbitrary seed.
pub struct Simulated(Network);

impl Transport for Simulated {
    type End = SimulatedEndpoint;

    const IS_SIMULATED: bool = true;
    const OPEN: bool = false;

    fn new(servers: u16, timing: Timing) -> Simulated {
        Simulated(Network::new(servers, timing, NetworkFaults::NONE, 1))
    }

    fn troubled(servers: u16, timing: Timing) -> Simulated {
        Simulated(Network::new(servers, timing, STORM, 1))
    }

    fn start(&mut self, rank: Rank, incarnation: u64) -> SimulatedEndpoint {
        self.0.start(rank, incarnation)
    }

    fn now(&self) -> Duration {
        self.0.now()
    }

    fn pass(&mut self) {
        let little = self.0.now() + Duration::from_millis(5);
        let next = self.0.due().map_or(little, |due| due.min(little));
        self.0.run_until(next);
    }

    fn stranger(&mut self, _: Rank, _: Wrong) {
        unreachable!("nobody else is on it");
    }
}
