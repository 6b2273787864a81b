//! The simulator: several servers, their clients and the network between them in one thread,
//! with one virtual clock, all by one seed.
//!
//! The servers' logic (`weir-server`: `cluster/`, `node/`), the clients' view of names and files
//! and their data path (`weir-client`: `view/`, `data/`), and the fabric's calls (`weir-fabric`: `links`) are the real ones;
//! simulated are what carries messages, the order of tasks, the clock, and the programs. What
//! they see is checked against a model. After TigerBeetle's simulator.
//!
//! ```text
//!  plan      what a seed draws: cluster, programs, weather, faults
//!  run       one run of it: site (a node in one life of its server), process, program
//!            over executor (tasks, clock), fiber (programs that block), machine (what outlives
//!            a server), storage, journal
//!  record    what was seen, in one order; a trace with its hash
//!  linear, model   whether names did what one namespace does
//!  bytes     whether readers saw what they must
//!  locks     whether locks excluded one another
//! ```
//!
//! Left out: the walk along a path, lamination at the last close, programs that hold several locks,
//! threads of one node at a time inside a step (shared memory is explored by `weir-core`'s and `weir-client`'s own tests),
//! the tiers of `weir-store`, a full tmpfs.
#![forbid(unsafe_code)]

pub mod bytes;
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
pub mod storage;
