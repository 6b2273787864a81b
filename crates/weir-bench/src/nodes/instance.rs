//! The instance under test: its nodes, their workers, and the counters of its servers.

use std::collections::BTreeMap;
use std::path::PathBuf;

use anyhow::Result;

use crate::workers::{WorkerId, Workers};

/// A node of the instance.
#[derive(Clone, Debug)]
pub struct InstanceNode {
    /// The name of its host.
    pub host: String,
    /// The worker that moves plain bytes.
    pub worker: WorkerId,
    /// The workers that use the file system.
    pub processes: Vec<WorkerId>,
}

/// Counters of one server, by name.
pub type ServerCounters = BTreeMap<String, u64>;

/// The instance under test.
pub struct TestInstance {
    /// All workers.
    pub workers: Workers,
    /// The nodes, by rank.
    pub nodes: Vec<InstanceNode>,
    /// The directory for the files of the run.
    pub directory: PathBuf,
    /// The workers at a server that is alone, for comparison.
    pub alone: Vec<WorkerId>,
    /// All nodes are one machine.
    pub one_machine: bool,
    /// Reads the counters of each server.
    pub read_counters: Box<dyn Fn() -> Result<Vec<ServerCounters>>>,
}

impl TestInstance {
    /// A process of node `node`.
    pub fn process(&self, node: usize, number: usize) -> WorkerId {
        self.nodes[node].processes[number]
    }

    /// A path of the file system.
    pub fn path(&self, name: &str) -> PathBuf {
        self.directory.join(name)
    }

    /// The counters of each server.
    pub fn counters(&self) -> Result<Vec<ServerCounters>> {
        (self.read_counters)()
    }
}

/// The increase of some counters between two readings, by server.
pub fn increase(
    before: &[ServerCounters],
    after: &[ServerCounters],
    wanted: impl Fn(&str) -> bool,
) -> Vec<u64> {
    let difference = |(before, after): (&ServerCounters, &ServerCounters)| {
        let wanted = after.iter().filter(|(name, _)| wanted(name));
        wanted
            .map(|(name, count)| count - before.get(name).unwrap_or(&0).min(count))
            .sum()
    };
    before.iter().zip(after).map(difference).collect()
}

/// True if a counter is of requests.
pub fn is_request(name: &str) -> bool {
    !name.starts_with("fabric_")
}
