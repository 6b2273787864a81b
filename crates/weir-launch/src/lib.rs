//! Starting an instance: one server here, or one on each of several nodes.
//!
//! ```text
//!  weir start/run --pipe--> agent of this node --pipe--> its server
//!                             |
//!                             +-- ssh pipe --> agent of a node --> its server
//!                             |                  +-- ssh pipe --> agent ...
//!                             +-- ssh pipe --> agent of a node ...
//! ```
//!
//! Over ssh the agents make a tree; srun and flux exec start all at once and have trees of
//! their own; pbsdsh, which carries no standard input, has them connect back.
//!
//! Invariants:
//! - the secret goes down pipes only, and into a file of mode 0600 in each run directory;
//! - agents stay as long as the instance. When one ends, however it ends, the pipes below it
//!   close, and what hangs on them stops: no process outlives the first node's agent, which
//!   dies with the job;
//! - either all servers are ready within the deadline, or none is left and the error names a
//!   node.
//!
//! | file | subject |
//! | --- | --- |
//! | `server` | a server process and its words |
//! | `hosted_server` | the servers and their hosts |
//! | `hosts` | lists of hosts as people and batch systems write them |
//! | `nodes` | which nodes, and what starts programs there |
//! | `reach` | the commands that start agents |
//! | `message` | what agents say |
//! | `link` | a process below an agent: its words, its noise |
//! | `join`, `greet` | agents that connect back; how both prove who they are |
//! | `workers` | workers of `weir bench`, which agents start too |
//! | `agent` | one node's part: the state machine |
//! | `root` | the starter's end |
//! | `recover` | the same for an instance whose servers were all killed |
//! | `address` | where a server listens for others |
//! | `endpoint` | its endpoint of libfabric |
//! | `mount_right` | the right to mount, for servers |

#![forbid(unsafe_code)]

pub mod address;
pub mod agent;
pub mod endpoint;
mod error;
pub mod greet;
pub mod hosted_server;
pub mod hosts;
mod join;
mod link;
pub mod message;
pub mod mount_right;
pub mod nodes;
pub mod random;
pub mod reach;
pub mod recover;
pub mod root;
pub mod server;
pub mod shell;
pub mod workers;

pub use error::LaunchError;
