//! The settings of a server.

use std::path::PathBuf;

use weir_core::elevate_rule::ElevateRule;
use weir_core::names::NewTree;

use crate::rules::Sharing;

/// A directory of the file tier.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StorageDir {
    /// The directory. The server makes it if it does not exist.
    pub path: PathBuf,
    /// The most bytes that it may take.
    pub budget_bytes: u64,
}

/// A directory of the parallel file system that is elevated.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ElevatedDirectory {
    /// Its path as users name it.
    pub path: PathBuf,
    /// Its paths by other mounts of its file system on this node.
    pub other_names: Vec<PathBuf>,
    /// Its tree; the target is its canonical path.
    pub tree: NewTree,
    /// Which of its files are taken, and how: for clients.
    pub rule: ElevateRule,
}

/// The settings for [`crate::serve`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// The directory of the socket. The server makes it if it does not exist.
    pub run_dir: PathBuf,
    /// The directory of shared regions and memory slabs: on tmpfs, of mode 0700. The server makes
    /// it if it does not exist.
    pub shm_dir: PathBuf,
    /// The file tier.
    pub storage: Vec<StorageDir>,
    /// The most bytes that the memory tier may take.
    pub memory_budget_bytes: u64,
    /// The amount of free memory to keep warm, bytes.
    pub warm_bytes: u64,
    /// The number of threads that warm memory.
    pub warmers: usize,
    /// The most inodes that there can be.
    pub max_files: u32,
    /// The most client processes at a time, at most [`weir_core::node::region::MAX_CLIENTS`].
    pub max_clients: usize,
    /// The time for which the server, and a client that waits for it, looks before it sleeps, us.
    pub spin_us: u32,
    /// The mount prefix, without a slash at its end.
    pub prefix: String,
    /// The directories of the parallel file system that are elevated.
    pub elevated: Vec<ElevatedDirectory>,
    /// Rules for how files are shared between nodes.
    pub sharing: Sharing,
    /// True if reads are audited.
    pub audit: bool,
    /// True if programs may use `io_uring`.
    pub io_uring: bool,
    /// The server stops when this process ends.
    pub watch_pid: Option<u32>,
}
