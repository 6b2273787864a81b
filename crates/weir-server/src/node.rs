//! This server's own tables, and the logic's interface to the kernel: the parts of `cluster` that
//! the runtime, tests and the simulator use.

pub(crate) use crate::cluster::{few_or_wanted, FEW_RUNS, MAX_RUNS};
pub use crate::cluster::{
    stop_clients, Accounts, ClientMemory, Identity, Journal, Node, OpenRegion, Platform,
    RecoverError, RecoveredCounts, ShowShared, SnapshotPosition, Space, Table, Visit,
};
