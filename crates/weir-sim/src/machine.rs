//! A node's machine, which outlives the process of its server: shared memory and its mappings, the slab,
//! the journal's file, and the living processes.
//!
//! Regions are files on tmpfs, as in production. A killed server leaves them in the state of that
//! moment, with all that was written. Only a node that loses power loses more, and it does not come
//! back.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64};
use std::sync::Arc;

use weir_core::names::{layout, InodeRecord, NamesHeader, Section, Tables};
use weir_core::node::block::FileBlock;
use weir_core::node::cell::Cell as WriterCell;
use weir_core::node::known::{KnownSlot, KNOWN_SLOTS};
use weir_core::node::landing::{LandingSlot, LANDINGS, POOL, POOL_BYTES};
use weir_core::node::ofd::{Ofd, BATCH};
use weir_core::node::region::{client_layout, open_layout};
use weir_core::proto::Landing;
use weir_core::types::{ClientId, Rank};
use weir_fabric::bulk;
use weir_server::arrival::Arrival;
use weir_server::node::{ClientMemory, OpenRegion, Platform};
use weir_store::map::{create_sparse, Mapping, Region};
use weir_store::shm::ShmRecord;
use weir_store::slabmap::{SlabMap, Window};

use crate::journal::KillSwitch;
use crate::storage::{self, Storage};

/// Tables of a node.
const FILES: u32 = 1000;
const BLOCKS: usize = 64;
const CELLS: usize = 128;
const OFDS: usize = 512;
const _: () = assert!(OFDS.is_multiple_of(BATCH as usize));

/// A client's region.
#[derive(Debug)]
pub struct Memory(Region);

impl Memory {
    /// The slots for bytes that arrive from other nodes; they live as long as the region is mapped.
    pub fn arriving(&self) -> &'static [LandingSlot] {
        let landings = self.0.slice(client_layout().landings, LANDINGS);
        landings.expect("a part of the region")
    }
}

impl ClientMemory for Memory {
    fn part<T: ShmRecord>(&self, offset: usize, count: usize) -> &[T] {
        self.0.slice(offset, count).expect("a part of the region")
    }
}

/// Processes that live, by number.
type Living = Rc<RefCell<BTreeSet<u32>>>;

/// The kernel of a node: no thread sleeps on a word, and no description outlives its process.
#[derive(Clone, Debug)]
pub struct Kernel {
    /// The pool into which bytes of other nodes arrive.
    pool: Window,
    living: Living,
}

impl Platform for Kernel {
    type Memory = Memory;
    type Space = Storage;

    fn wake(&self, _: &AtomicU32) {}

    fn ofd_alive(&self, _: u32) -> bool {
        false
    }

    fn lives(&self, pid: u32) -> bool {
        self.living.borrow().contains(&pid)
    }

    fn landing(
        &self,
        client: &Arc<Memory>,
        landing: Landing,
        len: u32,
        over: &Arc<AtomicBool>,
    ) -> Option<Box<dyn bulk::Landing>> {
        let arrival = Arrival::new(client, self.pool, landing, len as usize, over, |_| ())?;
        Some(Box::new(arrival))
    }

    fn program(&self, pid: u32) -> String {
        format!("program {pid}")
    }
}

/// The machine of one node.
#[derive(Debug)]
pub struct Machine {
    /// The slabs, as all processes map them.
    pub slabs: Rc<SlabMap>,
    /// Kills the server at a commit.
    pub kill_switch: KillSwitch,
    kernel: Kernel,
    /// Regions of clients, by the number that each client got last.
    regions: RefCell<BTreeMap<ClientId, Arc<Memory>>>,
    /// The number of regions and processes made so far.
    made: Cell<u32>,
    /// Removed with the machine.
    dir: tempfile::TempDir,
}

impl Machine {
    /// An empty machine.
    pub fn new() -> Machine {
        let dir = tempfile::tempdir_in("/dev/shm").expect("a directory on tmpfs");
        let slabs = Rc::new(storage::slab_in(dir.path()));
        let pool = new_file(dir.path(), POOL, POOL_BYTES).leak_window();
        let living = Living::default();
        Machine {
            slabs,
            kill_switch: KillSwitch::default(),
            kernel: Kernel { pool, living },
            regions: RefCell::default(),
            made: Cell::new(0),
            dir,
        }
    }

    /// The directory of its files.
    pub fn dir(&self) -> &Path {
        self.dir.path()
    }

    /// Its kernel, as servers see it.
    pub fn kernel(&self) -> Kernel {
        self.kernel.clone()
    }

    /// The pool into which bytes of other nodes arrive.
    pub fn pool(&self) -> Window {
        self.kernel.pool
    }

    fn region(&self, name: &str, bytes: usize) -> Region {
        let number = self.made.get();
        self.made.set(number + 1);
        new_file(self.dir(), &format!("{name}-{number}"), bytes).leak()
    }

    /// A fresh `open` region.
    pub fn new_open(&self) -> OpenRegion<'static> {
        let parts = open_layout(OFDS, BLOCKS, CELLS);
        let region = self.region("open", parts.bytes);
        let whole = "the region is that long";
        OpenRegion {
            hub: region.record(0).expect(whole),
            ofds: region.slice::<Ofd>(parts.ofds, OFDS).expect(whole),
            blocks: region
                .slice::<FileBlock>(parts.blocks, BLOCKS)
                .expect(whole),
            cells: region.slice::<WriterCell>(parts.cells, CELLS).expect(whole),
            known: region
                .slice::<KnownSlot>(parts.known, KNOWN_SLOTS)
                .expect(whole),
        }
    }

    /// A fresh region for tables of names.
    pub fn new_names(&self) -> NamesRegion {
        let bytes = usize::try_from(layout(FILES).file_bytes).expect("fits");
        NamesRegion(self.region("names", bytes))
    }

    /// Starts a process with a region as client `id`; returns its number.
    pub fn begin(&self, id: ClientId) -> (u32, Arc<Memory>) {
        let memory = Arc::new(Memory(self.region("client", client_layout().bytes)));
        let pid = 100 + self.made.get();
        self.kernel.living.borrow_mut().insert(pid);
        self.regions.borrow_mut().insert(id, Arc::clone(&memory));
        (pid, memory)
    }

    /// Ends a process.
    pub fn end(&self, pid: u32) {
        self.kernel.living.borrow_mut().remove(&pid);
    }

    /// The region of the last client with number `id`.
    pub fn region_of(&self, id: ClientId) -> Option<Arc<Memory>> {
        self.regions.borrow().get(&id).cloned()
    }
}

impl Default for Machine {
    fn default() -> Machine {
        Machine::new()
    }
}

/// A region of tables of names.
#[derive(Clone, Copy, Debug)]
pub struct NamesRegion(Region);

type Parts = (
    &'static NamesHeader,
    &'static [InodeRecord],
    &'static [AtomicU64],
    &'static [AtomicU32],
);

impl NamesRegion {
    fn parts(&self) -> Parts {
        let parts = layout(FILES);
        let at = |section: Section| usize::try_from(section.offset_bytes).expect("fits");
        let region = &self.0;
        (
            region.record(at(parts.header)).expect("a header"),
            region
                .slice(at(parts.inodes), parts.inodes.len)
                .expect("inodes"),
            region
                .slice(at(parts.arena), parts.arena.len)
                .expect("an arena"),
            region
                .slice(at(parts.buckets), parts.buckets.len)
                .expect("buckets"),
        )
    }

    /// Makes the tables, for the server.
    pub fn format(&self, rank: Rank) -> Tables<'static> {
        let (header, inodes, arena, buckets) = self.parts();
        Tables::format(header, inodes, arena, buckets, rank).expect("tables")
    }

    /// The same tables, for clients.
    pub fn open(&self) -> Tables<'static> {
        let (header, inodes, arena, buckets) = self.parts();
        Tables::open(header, inodes, arena, buckets).expect("the same tables")
    }
}

fn new_file(dir: &Path, name: &str, bytes: usize) -> Mapping {
    let at = std::fs::File::open(dir).expect("the node's directory");
    let file = create_sparse(&at, name, bytes as u64).expect("a region");
    Mapping::new(&file, bytes).expect("to map a region")
}
