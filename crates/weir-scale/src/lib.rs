//! A model of an instance of up to 10,000 nodes: how often its servers are asked for what, when a
//! job opens files, publishes what it wrote, and looks up where bytes are.
//!
//! Not a formula: the server that gets a request follows from the real placement and from real runs
//! ([`job`]), the nodes that tell others from the real trees. The requests of a phase are written down
//! once ([`phases`]) as the server's `cluster/` makes them. A test compares all counts with those of
//! real servers (`weir-tests`, `scale`).
//!
//! | module | subject |
//! | --- | --- |
//! | [`job`] | the bytes that each process writes, as runs |
//! | [`spread`] | the servers that keep runs, and how many records of them |
//! | [`phases`] | the requests of a checkpoint and its restart |
//! | [`table`] | predictions as text |
//!
//! Left out: times. A model of queues, with costs measured for each step, was too fast by a factor of
//! 1.5 to 800, since servers that share processors wait for those. Also left out: what clients and
//! their own server say to each other, which stays on the node.
#![forbid(unsafe_code)]

pub mod job;
mod load;
pub mod phases;
pub mod spread;
pub mod table;

pub use job::{Job, JobError, Layout};
pub use load::Load;
pub use phases::{predict, Phase, Prediction};
