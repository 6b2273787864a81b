//! A model of an instance of up to 10,000 nodes: what it costs to start, to write a checkpoint,
//! to read it back on the nodes that wrote it, and to read it shuffled.
//!
//! Not a formula: which server gets which request comes from the real placement and from real
//! runs ([`job`]), how long messages are from the real encodings, who starts whom from the
//! launcher's tree. Each server has a queue ([`engine`]), so that a hot one shows. What one step
//! costs is measured on a machine ([`costs`]); who asks whom, in which order, is written down
//! once ([`phases`]) as the server's `cluster/` does it, and is compared with the counters of
//! real servers (`weir-tests`, `scale`).
//!
//! | module | subject |
//! | --- | --- |
//! | [`costs`] | what a step costs: measured |
//! | [`job`] | who writes what where, as runs |
//! | [`engine`] | messages, queues of servers, links |
//! | [`spread`] | where runs go, and what servers keep of them |
//! | [`phases`] | the steps of a start, a checkpoint, and reads |
//! | [`tell`] | telling all nodes the same: recalls, laminations |
//! | [`table`] | predictions as text |
//!
//! Left out: links that several nodes share above the first switch, other traffic, failures, the
//! file tier, and what clients and their own server say to each other, which stays on the node.
#![forbid(unsafe_code)]

pub mod costs;
pub mod engine;
pub mod job;
pub mod phases;
pub mod spread;
pub mod table;
pub mod tell;

pub use costs::Costs;
pub use engine::Machines;
pub use job::{Job, JobError, Layout};
pub use phases::{predict, Phase, Prediction};

use serde::Serialize;

/// How much of something servers have: of all, on average, and the one with the most.
#[derive(Clone, Copy, PartialEq, Debug, Default, Serialize)]
pub struct Load {
    /// Of all servers.
    pub total: f64,
    /// Of one, on average.
    pub mean: f64,
    /// Of the one that has the most.
    pub most: f64,
}

impl Load {
    /// Of each server's part.
    pub fn of(parts: impl Iterator<Item = f64>) -> Load {
        let (mut total, mut most, mut count) = (0.0, 0.0_f64, 0.0);
        for part in parts {
            total += part;
            most = most.max(part);
            count += 1.0;
        }
        Load {
            total,
            mean: total / f64::max(count, 1.0),
            most,
        }
    }
}

/// A count as a number to reckon with; exact up to 2^53.
#[allow(clippy::cast_precision_loss)] // what is counted or measured here is far below 2^53
pub(crate) fn real(count: u64) -> f64 {
    count as f64
}
