//! What one step costs, measured on one machine (`weir simulate-scale --measure`).
//!
//! The defaults are what it printed on the machine that docs/SPECIFICATION.md describes; the
//! link and what other nodes' ssh takes are not measured but set.

use serde::{Deserialize, Serialize};

/// Costs of steps. In files: TOML, all keys optional.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Costs {
    /// A small message from one server's thread to another's, one way, ns: half a round trip.
    pub latency_ns: f64,
    /// What a server's thread does for a small request, ns: frames, codec, queue, handler.
    pub request_ns: f64,
    /// What the asking server's thread does for the reply, ns.
    pub reply_ns: f64,
    /// Laying one run into an index of extents, ns.
    pub lay_ns: f64,
    /// Encoding and decoding one run, ns.
    pub say_ns: f64,
    /// Working out the home of one slice, ns.
    pub slice_ns: f64,
    /// Memory of a run in an index, bytes.
    pub run_bytes: f64,
    /// Memory of an inode with its name, bytes.
    pub inode_bytes: f64,
    /// What all processes of a node together store into memory, bytes/s.
    pub write_bytes_per_s: f64,
    /// What they read of their own node's bytes, bytes/s.
    pub read_bytes_per_s: f64,
    /// What one server can send, and take, of other servers' bytes if the link lets it, bytes/s.
    pub fetch_bytes_per_s: f64,
    /// The link of a node, each way, bytes/s.
    pub link_bytes_per_s: f64,
    /// Starting one agent's process below an agent, ns: its children are started one by one.
    pub spawn_ns: f64,
    /// From an agent's being started to its having a server that listens, ns.
    pub agent_ns: f64,
}

impl Default for Costs {
    fn default() -> Costs {
        Costs {
            latency_ns: 8_100.0,
            request_ns: 3_200.0,
            reply_ns: 3_200.0,
            lay_ns: 300.0,
            say_ns: 80.0,
            slice_ns: 54.0,
            run_bytes: 65.0,
            inode_bytes: 172.0,
            write_bytes_per_s: 11e9,
            read_bytes_per_s: 11e9,
            fetch_bytes_per_s: 2.1e9,
            link_bytes_per_s: 25e9,
            spawn_ns: 1e6,
            agent_ns: 60e6,
        }
    }
}

impl Costs {
    /// The first cost that is no positive number.
    pub fn check(&self) -> Result<(), &'static str> {
        let all = [
            ("latency_ns", self.latency_ns),
            ("request_ns", self.request_ns),
            ("reply_ns", self.reply_ns),
            ("lay_ns", self.lay_ns),
            ("say_ns", self.say_ns),
            ("slice_ns", self.slice_ns),
            ("run_bytes", self.run_bytes),
            ("inode_bytes", self.inode_bytes),
            ("write_bytes_per_s", self.write_bytes_per_s),
            ("read_bytes_per_s", self.read_bytes_per_s),
            ("fetch_bytes_per_s", self.fetch_bytes_per_s),
            ("link_bytes_per_s", self.link_bytes_per_s),
            ("spawn_ns", self.spawn_ns),
            ("agent_ns", self.agent_ns),
        ];
        match all
            .iter()
            .find(|(_, cost)| !(cost.is_finite() && *cost > 0.0))
        {
            Some((name, _)) => Err(name),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cost_that_makes_no_sense_is_named() {
        assert_eq!(Costs::default().check(), Ok(()));
        for bad in [0.0, -1.0, f64::NAN, f64::INFINITY] {
            let costs = Costs {
                lay_ns: bad,
                ..Costs::default()
            };
            assert_eq!(costs.check(), Err("lay_ns"));
        }
    }
}
