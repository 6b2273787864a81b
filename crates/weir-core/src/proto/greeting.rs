//! The beginning of a connection to a server's socket, and the links in its run directory that need
//! no connection.

use serde::{Deserialize, Serialize};

use crate::types::ClientId;

/// The first frame of a connection to the server's socket.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Hello {
    /// [`VERSION`](super::VERSION).
    pub version: u32,
    /// The purpose of the connection.
    pub role: Role,
}

/// The purpose of a connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Role {
    /// A process that will use the file system: it gets a client region, and counts as dead when
    /// the connection ends and its process is gone.
    Client(ClientKind),
    /// Requests in frames, for tools.
    Control,
}

/// The kind of a client. The server limits the number of each kind.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum ClientKind {
    /// A program that uses the instance.
    Program,
    /// A process of weir's own, a kernel mount or a mover, which by itself does not count as a use of
    /// the instance.
    Mount,
}

/// The client's number in the answer to a client that is refused: the maximum number is reached.
pub const NO_CLIENT: ClientId = ClientId(u32::MAX);

/// The same for a client that there is no memory for: the file system of the shared regions is
/// full.
pub const NO_ROOM: ClientId = ClientId(u32::MAX - 1);

/// The server's answer to [`Hello`].
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Welcome {
    /// [`VERSION`](super::VERSION).
    pub version: u32,
    /// The client's number; its region is the file `client-<id>`.
    pub client: ClientId,
    /// This server's rank, and the number of servers.
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
    /// The time for which a client spins for a reply before it sleeps, in us.
    pub spin_us: u32,
    /// The server cannot have all processors pass a barrier (membarrier(2)): a writer of a raw file
    /// needs a barrier of its own behind each write.
    pub fences: bool,
}

/// A symbolic link in the run directory, to the directory of the shared regions. By it and by
/// [`PREFIX_LINK`] a process that does not use the instance learns, without connecting, which paths
/// are not the instance's.
pub const SHM_LINK: &str = "shm";
/// As [`SHM_LINK`], "to" the mount prefix.
pub const PREFIX_LINK: &str = "prefix";
