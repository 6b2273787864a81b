//! The simulator: several servers, their clients and the network between them in one thread,
//! with one virtual clock, all by one seed.
//!
//! Real are the servers' logic (`weir-server`: `cluster/`, `node/`), the clients' view of names and
//! files and their data path (`weir-client`: `view/`, `data/`), and the fabric's calls (`weir-fabric`:
//! `links`). Simulated are the transport of messages, the order of tasks, the clock, and the programs.
//! Their results are checked against a model. After TigerBeetle's simulator.
//!
//! ```text
//!  plan      drawn from a seed: cluster, programs, weather, faults
//!  run       one run of it: site (a node in one life of its server), process, program
//!            over executor (tasks, clock), fiber (programs that block), machine (what outlives
//!            a server; its parts are of `weir-fakes`), journal
//!  record    the events, in one order; a trace with its hash
//!  linear, model   check that names behaved as in one namespace
//!  bytes     checks that readers saw the bytes they must see
//!  locks     checks that locks excluded one another
//!  elevated  directories that are taken up into an elevated tree, and must be found from then on
//!  evicted   files whose storage is freed; target has their copies
//! ```
//!
//! Left out: the walk along a path, lamination at the last close, programs that hold several locks,
//! threads of one node at a time inside a step (the tests of `weir-core` and `weir-client` explore
//! shared memory), the tiers of `weir-store`, a full tmpfs.
#![forbid(unsafe_code)]

pub mod bytes;
pub mod elevated;
pub mod evicted;
pub mod executor;
pub mod fiber;
pub mod journal;
pub mod linear;
pub mod locks;
pub mod machine;
pub mod model;
pub mod plan;
pub mod process;
pub mod program;
pub mod record;
pub mod run;
pub mod shrink;
pub mod site;
pub mod target;
