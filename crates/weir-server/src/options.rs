//! What a server is started with.

use std::path::PathBuf;

use crate::rules::Sharing;

/// A directory of the file tier.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StorageDir {
    /// The directory; made if it is not there.
    pub path: PathBuf,
    /// What it may take, bytes.
    pub budget_bytes: u64,
}

/// What [`crate::serve`] needs to know.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// Where the socket is; made if it is not there.
    pub run_dir: PathBuf,
    /// Where shared regions and memory slabs are: a directory on tmpfs, of mode 0700;
    /// made if it is not there.
    pub shm_dir: PathBuf,
    /// The file tier.
    pub storage: Vec<StorageDir>,
    /// What the memory tier may take, bytes.
    pub memory_budget_bytes: u64,
    /// How much free memory to keep warm, bytes.
    pub warm_bytes: u64,
    /// Threads that warm memory.
    pub warmers: usize,
    /// Inodes there can be.
    pub max_files: u32,
    /// Client processes there can be at a time, at most
    /// [`weir_core::node::region::MAX_CLIENTS`].
    pub max_clients: usize,
    /// How long the server, and a client that waits for it, looks before it sleeps, us.
    pub spin_us: u32,
    /// The mount prefix, without a slash at its end.
    pub prefix: String,
    /// How files are shared between nodes.
    pub sharing: Sharing,
    /// Whether reads are audited.
    pub audit: bool,
    /// Whether programs may use `io_uring`.
    pub io_uring: bool,
    /// Stop when this process ends.
    pub watch_pid: Option<u32>,
}
