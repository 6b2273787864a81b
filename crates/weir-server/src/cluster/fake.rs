//! The node around a room in a test: kernel, storage of a log, shared regions. That of `weir-fakes` is made for the
//! library, whose types are not those of its unit tests.

use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::rc::Rc;
use std::sync::atomic::AtomicU32;

use weir_core::journal::{Item, State};
use weir_core::names::{Owner, Shard};
use weir_core::node::region::client_layout;
use weir_core::proto::{Lent, Tier, TierStatus};
use weir_core::types::{ClientId, Rank, SegmentId};
use weir_fakes::regions::map_file;
use weir_fakes::{NodeRegions, TableSizes};
use weir_store::map::Mapping;
use weir_store::shm::ShmRecord;

use crate::node::{Accounts, ClientMemory, OpenRegion, Platform, RecoverError, Space};

/// The sizes of the tables of a node here.
const SIZES: TableSizes = TableSizes {
    files: 64,
    descriptions: 16,
    blocks: 16,
    cells: 16,
};

/// The region of a client.
#[derive(Debug)]
pub(in crate::cluster) struct MappedMemory(Mapping);

impl MappedMemory {
    /// The region of a new client.
    pub(in crate::cluster) fn new() -> MappedMemory {
        MappedMemory(map_file(client_layout().bytes).1)
    }
}

impl ClientMemory for MappedMemory {
    fn part<T: ShmRecord>(&self, offset: usize, count: usize) -> &[T] {
        self.0.slice(offset, count).expect("a part of the region")
    }
}

/// A kernel in which nothing sleeps, and every process lives.
#[derive(Clone, Debug, Default)]
pub(in crate::cluster) struct QuietPlatform;

impl Platform for QuietPlatform {
    type Memory = MappedMemory;
    type Space = LogSpace;

    fn wake(&self, _: &AtomicU32) {}

    fn ofd_alive(&self, _: u32) -> bool {
        false
    }

    fn program(&self, pid: u32) -> String {
        format!("program {pid}")
    }
}

/// The account of a log, byte by byte: its slab and its position. No byte begins or ends to live twice.
#[derive(Clone, Debug, Default)]
pub(in crate::cluster) struct LogSpace {
    living: Rc<RefCell<BTreeSet<(u32, u64)>>>,
    /// The server recovers: it does not count until it resumes.
    is_recovering: Rc<Cell<bool>>,
}

impl LogSpace {
    /// The log of a server that recovers.
    pub(in crate::cluster) fn recovering() -> LogSpace {
        let space = LogSpace::default();
        space.is_recovering.set(true);
        space
    }

    /// The living bytes.
    pub(in crate::cluster) fn living(&self) -> BTreeSet<(u32, u64)> {
        self.living.borrow().clone()
    }
}

impl Space for LogSpace {
    fn grant(&mut self, client: ClientId, _: u64, want_bytes: u64) -> Option<Lent> {
        Some(Lent {
            segment: SegmentId(client.0),
            slab: client.0,
            tier: Tier::Memory,
            pos: 0,
            len: want_bytes,
            warm: true,
        })
    }

    fn add_live(&mut self, slab: u32, pos: u64, len: u64) {
        let counted = if self.is_recovering.get() { 0 } else { len };
        for at in pos..pos + counted {
            let is_new = self.living.borrow_mut().insert((slab, at));
            assert!(is_new, "byte {at} of slab {slab} lives already");
        }
    }

    fn freed(&mut self, slab: u32, pos: u64, len: u64) {
        let counted = if self.is_recovering.get() { 0 } else { len };
        for at in pos..pos + counted {
            let lived = self.living.borrow_mut().remove(&(slab, at));
            assert!(lived, "byte {at} of slab {slab} is freed twice");
        }
    }

    fn release(&mut self, _: SegmentId) {}

    fn is_file(&self, _: u32) -> bool {
        false
    }

    fn usage(&self) -> Vec<TierStatus> {
        Vec::new()
    }

    fn resume(&mut self, accounts: &Accounts) -> Result<(), RecoverError> {
        self.is_recovering.set(false);
        for (slab, pos, len) in &accounts.live {
            self.add_live(*slab, *pos, *len);
        }
        Ok(())
    }
}

/// The tables of open files and of names of a new node.
pub(in crate::cluster) fn new_tables(rank: Rank) -> (OpenRegion<'static>, Shard<'static>) {
    let regions = NodeRegions::new(SIZES);
    let root = Owner { uid: 0, gid: 0 };
    let names = Shard::new(regions.format_names(rank), 0o755, root, 1);
    (open_region(&regions), names.expect("a root"))
}

/// The tables of a node that takes up the state of a killed server, whose region of open files is gone.
pub(in crate::cluster) fn restored_tables(state: &State) -> (OpenRegion<'static>, Shard<'static>) {
    let regions = NodeRegions::new(SIZES);
    let names = Shard::restore(regions.format_names(state.rank), state);
    (open_region(&regions), names.expect("a whole state"))
}

fn open_region(regions: &NodeRegions) -> OpenRegion<'static> {
    let open = regions.open();
    OpenRegion {
        hub: open.hub,
        ofds: open.ofds,
        blocks: open.blocks,
        cells: open.cells,
        known: open.known,
    }
}

/// Applies the items of a record of a journal.
pub(in crate::cluster) fn replay(mut record: &[u8], state: &mut State) {
    while !record.is_empty() {
        let (item, rest) = postcard::take_from_bytes::<Item<'_>>(record).expect("an item");
        state.apply(&item).expect("it fits those before it");
        record = rest;
    }
}
