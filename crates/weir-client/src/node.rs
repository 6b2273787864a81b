//! The memory that all processes of the node share, as this process maps it.
//!
//! Mapping it needs no connection to the server: a process that only looks (stat, access, readlink)
//! makes no request. It stays mapped until the process ends, across fork.

use core::sync::atomic::Ordering;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::OnceLock;

use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::fs::CWD;
use rustix::io::Errno;
use weir_core::names::NamesView;
use weir_core::node::block::FileBlock;
use weir_core::node::cell::Cell;
use weir_core::node::known::{KnownNames, KNOWN_SLOTS};
use weir_core::node::landing::POOL;
use weir_core::node::ofd::Ofd;
use weir_core::node::region::{open_layout, Hub, MAGIC};
use weir_core::types::Rank;
use weir_store::map::{file_bytes, open_shared, Access, MapError, Mapping, Region};
use weir_store::readonly::ReadOnlyMapping;
use weir_store::slabmap::{ReadWindow, SlabMap};

use crate::kernel::Fd;

/// The node's shared memory.
pub struct Node {
    shm_dir: Vec<u8>,
    hub: &'static Hub,
    ofds: &'static [Ofd],
    blocks: &'static [FileBlock],
    cells: &'static [Cell],
    known: KnownNames<'static>,
    names: NamesView<'static>,
    slabs: OnceLock<SlabMap>,
    pool: OnceLock<ReadWindow>,
}

/// The most slabs of a directory that a client reaches: 1 TiB.
const MAX_SLABS: u32 = 16 << 10;

impl core::fmt::Debug for Node {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        let dir = String::from_utf8_lossy(&self.shm_dir);
        f.debug_struct("Node")
            .field("shm_dir", &dir)
            .finish_non_exhaustive()
    }
}

impl Node {
    /// Maps the regions of the directory `shm_dir`. EPROTO: they are not weir's, or of
    /// another version.
    pub fn map(shm_dir: &[u8]) -> Result<Node, Errno> {
        let open = map_file(shm_dir, "open")?;
        let hub: &Hub = open.record(0).map_err(broken)?;
        if hub.magic.load(Ordering::Acquire) != MAGIC {
            return Err(Errno::PROTO);
        }
        let count = |n: &core::sync::atomic::AtomicU32| n.load(Ordering::Relaxed) as usize;
        let counts = (count(&hub.ofds), count(&hub.blocks), count(&hub.cells));
        let layout = open_layout(counts.0, counts.1, counts.2);
        Ok(Node {
            shm_dir: shm_dir.to_vec(),
            hub,
            ofds: open.slice(layout.ofds, counts.0).map_err(broken)?,
            blocks: open.slice(layout.blocks, counts.1).map_err(broken)?,
            cells: open.slice(layout.cells, counts.2).map_err(broken)?,
            known: KnownNames::new(hub, open.slice(layout.known, KNOWN_SLOTS).map_err(broken)?),
            names: names_of(&open_file(shm_dir, "names", Access::ReadOnly)?)?,
            slabs: OnceLock::new(),
            pool: OnceLock::new(),
        })
    }

    /// The directory of the shared files.
    pub fn shm_dir(&self) -> &[u8] {
        &self.shm_dir
    }

    /// The head of the `open` region.
    #[inline]
    pub fn hub(&self) -> &'static Hub {
        self.hub
    }

    /// The rank of this node's server and the number of servers, if there are several.
    #[inline]
    pub fn several(&self) -> Option<(Rank, u16)> {
        let servers = self.hub.servers.load(Ordering::Relaxed);
        if servers <= 1 {
            return None;
        }
        let rank = u16::try_from(self.hub.rank.load(Ordering::Relaxed)).ok()?;
        Some((Rank(rank), u16::try_from(servers).ok()?))
    }

    /// The open file descriptions.
    #[inline]
    pub fn ofds(&self) -> &'static [Ofd] {
        self.ofds
    }

    /// The blocks of files open for writing.
    #[inline]
    pub fn blocks(&self) -> &'static [FileBlock] {
        self.blocks
    }

    /// The writers' cells.
    #[inline]
    pub fn cells(&self) -> &'static [Cell] {
        self.cells
    }

    /// The slabs, as this process and its forked children map them; the first session names the
    /// directory of the file tier.
    pub fn slabs(&self, storage_dirs: &[String]) -> &SlabMap {
        self.slabs.get_or_init(|| {
            let storage: Vec<_> = storage_dirs
                .iter()
                .map(|dir| (Path::new(dir), MAX_SLABS))
                .collect();
            let memory = Path::new(OsStr::from_bytes(&self.shm_dir));
            SlabMap::new(memory, MAX_SLABS, &storage)
        })
    }

    /// The pool in which bytes of other nodes arrive.
    pub fn pool(&self) -> Result<ReadWindow, Errno> {
        if let Some(pool) = self.pool.get() {
            return Ok(*pool);
        }
        let file = open_file(&self.shm_dir, POOL, Access::ReadOnly)?;
        let mapping = ReadOnlyMapping::new(&file, whole(file.as_fd())?).map_err(|e| e.errno())?;
        // If two threads come first at once, one has mapped it in vain: that costs address space
        // only.
        Ok(*self.pool.get_or_init(|| mapping.leak_window()))
    }

    /// The slabs, if they are in use.
    pub fn slabs_in_use(&self) -> Option<&SlabMap> {
        self.slabs.get()
    }

    /// The descriptors that the slabs keep.
    pub fn kept_fds(&self) -> impl Iterator<Item = Fd> + '_ {
        self.slabs.get().into_iter().flat_map(SlabMap::kept_fds)
    }

    /// The table of known names of other servers.
    #[inline]
    pub fn known(&self) -> KnownNames<'static> {
        self.known
    }

    /// The namespace.
    #[inline]
    pub fn names(&self) -> NamesView<'static> {
        self.names
    }
}

/// Opens a shared file of the node.
fn open_file(shm_dir: &[u8], name: &str, access: Access) -> Result<OwnedFd, Errno> {
    let path = [shm_dir, b"/", name.as_bytes()].concat();
    open_shared(CWD, path, access).map_err(|e| e.errno())
}

/// The length of a file in bytes.
fn whole(file: BorrowedFd<'_>) -> Result<usize, Errno> {
    let bytes = file_bytes(file).map_err(|e| e.errno())?;
    usize::try_from(bytes).map_err(|_| Errno::FBIG)
}

/// Maps the whole of a shared file for good, for loads and stores.
pub fn map_file(shm_dir: &[u8], name: &str) -> Result<Region, Errno> {
    let file = open_file(shm_dir, name, Access::ReadWrite)?;
    let mapping = Mapping::new(&file, whole(file.as_fd())?).map_err(|e| e.errno())?;
    Ok(mapping.leak())
}

/// The namespace of a server, mapped from its file for good.
pub fn names_of(file: &OwnedFd) -> Result<NamesView<'static>, Errno> {
    let mapping = ReadOnlyMapping::new(file, whole(file.as_fd())?).map_err(|e| e.errno())?;
    let names = mapping.leak().names();
    names.map_err(broken)?.ok_or(Errno::PROTO)
}

#[allow(clippy::needless_pass_by_value)] // as map_err gives it
pub(crate) fn broken(_: MapError) -> Errno {
    Errno::PROTO
}
