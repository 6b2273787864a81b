//! The node around a server in tests: one fake of its platform, of its shared regions and of its
//! storage. The tests of `weir-server`, the fuzz targets and the simulator use it.
//!
//! It is a crate, not a feature of `weir-server`: Cargo unites the features of a workspace's crates, so
//! that a feature would be built into the released command.
//!
//! ```text
//!  platform   the kernel as a server sees it, and the memory of a client
//!  regions    the files of shared tables: open files, names
//!  storage    an account of lent units and live bytes, over a vector or over slabs on tmpfs
//! ```
//!
//! Left out: the network between servers, time, and the journal. Tests of several servers draw the delay
//! of each call; the simulator uses the calls of `weir-fabric`, and the journal's real file.
#![forbid(unsafe_code)]

pub mod platform;
pub mod regions;
pub mod storage;

pub use platform::{FakeClientMemory, FakePlatform};
pub use regions::{NodeRegions, TableSizes};
pub use storage::FakeStorage;
