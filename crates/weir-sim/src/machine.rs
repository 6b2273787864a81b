//! A node's machine, which outlives the process of its server: shared memory and its mappings, the slab,
//! the journal's file, and the living processes.
//!
//! Regions are files on tmpfs, as in production. A killed server leaves them in the state of that
//! moment, with all that was written. Only a node that loses power loses more, and it does not come
//! back.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;

use weir_core::node::ofd::BATCH;
use weir_core::types::ClientId;
use weir_fakes::platform::new_pool;
use weir_fakes::storage::{slab_in, UnitLayout};
use weir_fakes::{FakeClientMemory, FakePlatform, FakeStorage, NodeRegions, TableSizes};
use weir_store::slab::SLAB_BYTES;
use weir_store::slabmap::{SlabMap, Window};

use crate::journal::KillSwitch;

/// A node's storage: one slab on tmpfs.
pub type SimStorage = FakeStorage<Rc<SlabMap>>;
/// The node around a server.
pub type SimPlatform = FakePlatform<SimStorage>;

/// Tables of a node.
const TABLES: TableSizes = TableSizes {
    files: 1000,
    descriptions: 512,
    blocks: 64,
    cells: 128,
};
const _: () = assert!(TABLES.descriptions.is_multiple_of(BATCH as usize));

/// The size of the smallest segment, in bytes.
const UNIT_BYTES: u64 = 4096;
/// The sizes of segments.
pub const STORAGE: UnitLayout = UnitLayout {
    unit_bytes: UNIT_BYTES,
    slab_units: SLAB_BYTES / UNIT_BYTES,
    most_units: 8,
};

/// The machine of one node.
#[derive(Debug)]
pub struct Machine {
    /// The slabs, as all processes map them.
    pub slabs: Rc<SlabMap>,
    /// Kills the server at a commit.
    pub kill_switch: KillSwitch,
    /// The kernel, as servers see it.
    pub platform: SimPlatform,
    /// The pool into which bytes of other nodes arrive.
    pub pool: Window,
    /// Regions of clients, by the number that each client got last.
    regions: RefCell<BTreeMap<ClientId, Arc<FakeClientMemory>>>,
    /// The number of regions made so far. Processes are numbered by it; journals contain these numbers, so
    /// that a run of a seed depends on them.
    made: Cell<u32>,
    /// Removed with the machine.
    dir: tempfile::TempDir,
}

impl Machine {
    /// An empty machine.
    pub fn new() -> Machine {
        let dir = tempfile::tempdir_in("/dev/shm").expect("a directory on tmpfs");
        let (platform, pool) = (SimPlatform::default(), new_pool());
        platform.set_pool(pool);
        Machine {
            slabs: Rc::new(slab_in(dir.path())),
            kill_switch: KillSwitch::default(),
            platform,
            pool,
            regions: RefCell::default(),
            made: Cell::new(0),
            dir,
        }
    }

    /// The directory of its files.
    pub fn dir(&self) -> &Path {
        self.dir.path()
    }

    /// Fresh regions for a server.
    pub fn new_regions(&self) -> NodeRegions {
        self.made.set(self.made.get() + 2);
        NodeRegions::new(TABLES)
    }

    /// Starts a process with a region as client `id`; returns its number.
    pub fn start_process(&self, id: ClientId) -> (u32, Arc<FakeClientMemory>) {
        let memory = Arc::new(FakeClientMemory::new());
        self.made.set(self.made.get() + 1);
        let pid = 100 + self.made.get();
        self.regions.borrow_mut().insert(id, Arc::clone(&memory));
        (pid, memory)
    }

    /// The region of the last client with number `id`.
    pub fn region_of(&self, id: ClientId) -> Option<Arc<FakeClientMemory>> {
        self.regions.borrow().get(&id).cloned()
    }
}

impl Default for Machine {
    fn default() -> Machine {
        Machine::new()
    }
}
