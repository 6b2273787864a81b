//! The memory that all processes of the node share, as this process maps it.
//!
//! Mapping it needs no connection to the server: a process that only looks (stat,
//! access, readlink) asks nobody. It stays mapped until the process ends, across fork.

use core::sync::atomic::Ordering;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::OnceLock;

use rustix::fs::CWD;
use rustix::io::Errno;
use weir_core::names::{self, InodeRecord, NamesHeader, NamesView, Tables};
use weir_core::node::block::FileBlock;
use weir_core::node::cell::Cell;
use weir_core::node::known::{KnownNames, KNOWN_SLOTS};
use weir_core::node::landing::POOL;
use weir_core::node::ofd::Ofd;
use weir_core::node::region::{open_layout, Hub, MAGIC};
use weir_core::types::Rank;
use weir_store::map::{file_bytes, open_shared, Access, MapError, Mapping, Region};
use weir_store::slabmap::{SlabMap, Window};

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
    pool: OnceLock<Window>,
}

/// Slabs that a place may have, as far as a client reaches: 1 TiB.
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
        let open = map_file(shm_dir, "open", Access::ReadWrite)?;
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
            names: names_of(map_file(shm_dir, "names", Access::ReadOnly)?)?,
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

    /// The server of this node among how many, if there are several.
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

    /// The slabs, as this process and its forked children map them; the first session
    /// tells where the file tier is.
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

    /// The pool in which bytes of other nodes arrive; for reading only.
    pub fn pool(&self) -> Result<Window, Errno> {
        if let Some(pool) = self.pool.get() {
            return Ok(*pool);
        }
        let path = [self.shm_dir.as_slice(), b"/", POOL.as_bytes()].concat();
        let file = open_shared(CWD, path, Access::ReadOnly).map_err(|e| e.errno())?;
        let bytes = file_bytes(&file).map_err(|e| e.errno())?;
        let bytes = usize::try_from(bytes).map_err(|_| Errno::FBIG)?;
        let mapping = Mapping::new(&file, bytes, Access::ReadOnly).map_err(|e| e.errno())?;
        // Of two threads that are first at once one has mapped it in vain: address space only.
        Ok(*self.pool.get_or_init(|| mapping.leak_window()))
    }

    /// The slabs, if they are in use.
    pub fn slabs_in_use(&self) -> Option<&SlabMap> {
        self.slabs.get()
    }

    /// The descriptors kept there.
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

/// Maps the whole of a shared file for good.
pub fn map_file(shm_dir: &[u8], name: &str, access: Access) -> Result<Region, Errno> {
    let path = [shm_dir, b"/", name.as_bytes()].concat();
    let file = open_shared(CWD, path, access).map_err(|e| e.errno())?;
    let bytes = file_bytes(&file).map_err(|e| e.errno())?;
    let bytes = usize::try_from(bytes).map_err(|_| Errno::FBIG)?;
    Ok(Mapping::new(&file, bytes, access)
        .map_err(|e| e.errno())?
        .leak())
}

/// The namespace of a server, whose file is mapped as `region`.
pub fn names_of(region: Region) -> Result<NamesView<'static>, Errno> {
    let header: &NamesHeader = region.record(0).map_err(broken)?;
    let layout = names::layout(header.max_inodes());
    let at = |section: names::Section| usize::try_from(section.offset_bytes).unwrap_or(usize::MAX);
    let inodes: &[InodeRecord] = region
        .slice(at(layout.inodes), layout.inodes.len)
        .map_err(broken)?;
    let arena = region
        .slice(at(layout.arena), layout.arena.len)
        .map_err(broken)?;
    let buckets = region
        .slice(at(layout.buckets), layout.buckets.len)
        .map_err(broken)?;
    let tables = Tables::open(header, inodes, arena, buckets).map_err(|_| Errno::PROTO)?;
    Ok(NamesView::new(tables))
}

#[allow(clippy::needless_pass_by_value)] // as map_err gives it
pub(crate) fn broken(_: MapError) -> Errno {
    Errno::PROTO
}
