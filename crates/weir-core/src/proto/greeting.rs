//! How a connection to a server's socket begins, and what its run directory says without one.

use serde::{Deserialize, Serialize};

use crate::types::ClientId;

/// The first frame of a connection to the server's socket.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Hello {
    /// [`VERSION`](super::VERSION).
    pub version: u32,
    /// What the connection is for.
    pub role: Role,
}

/// What a connection is for.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Role {
    /// A process that will use the file system: gets a client region, and is taken
    /// for dead when the connection ends and its process is gone.
    Client(ClientKind),
    /// Requests in frames, for tools.
    Control,
}

/// The kind of a client. The server limits the number of each kind.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum ClientKind {
    /// A program that uses the instance.
    Program,
    /// A kernel mount, which by itself is no use of the instance.
    Mount,
}

/// The client's number of one that is not taken in: there are as many as there may be.
pub const NO_CLIENT: ClientId = ClientId(u32::MAX);

/// The same of one for which there is no memory: the file system of the shared regions is full.
pub const NO_ROOM: ClientId = ClientId(u32::MAX - 1);

/// The server's answer to [`Hello`].
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Welcome {
    /// [`VERSION`](super::VERSION).
    pub version: u32,
    /// The client's number; its region is the file `client-<id>`.
    pub client: ClientId,
    /// This server's rank, and how many there are.
    pub rank: u16,
    /// See `rank`.
    pub servers: u16,
    /// The directory of the shared regions and of memory slabs.
    pub shm_dir: String,
    /// The storage directories: a file-tier slab `n` is `slab-<n>` of directory
    /// `(n & 0x7fff_ffff) >> 24`; its number has the highest bit set.
    pub storage_dirs: Vec<String>,
    /// The mount prefix, without a slash at its end.
    pub prefix: String,
    /// How long a client spins for a reply before it sleeps, in us.
    pub spin_us: u32,
    /// The server cannot have all processors pass a barrier (membarrier(2)): a writer of a raw
    /// file needs one of its own behind each write.
    pub fences: bool,
}

/// A symbolic link in the run directory, to the directory of the shared regions: a
/// process that uses nothing of the instance learns by it, and by [`PREFIX_LINK`], what
/// is not the instance's, without connecting.
pub const SHM_LINK: &str = "shm";
/// As [`SHM_LINK`], "to" the mount prefix.
pub const PREFIX_LINK: &str = "prefix";
