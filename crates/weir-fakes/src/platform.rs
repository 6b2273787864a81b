//! The kernel as a server sees it, and the memory of a client. No thread sleeps on a word here; the test
//! determines the life of processes and of shared descriptions.

use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::marker::PhantomData;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, AtomicU32};
use std::sync::Arc;

use weir_core::node::landing::POOL_BYTES;
use weir_core::node::region::client_layout;
use weir_core::proto;
use weir_fabric::bulk;
use weir_server::arrival::Arrival;
use weir_server::node::{ClientMemory, Platform, Space};
use weir_store::map::Mapping;
use weir_store::shm::ShmRecord;
use weir_store::slabmap::Window;

use crate::regions::map_file;

/// A client's region, mapped.
#[derive(Debug)]
pub struct FakeClientMemory(Mapping);

impl FakeClientMemory {
    /// The region of a new client.
    pub fn new() -> FakeClientMemory {
        FakeClientMemory(map_file(client_layout().bytes).1)
    }
}

impl Default for FakeClientMemory {
    fn default() -> FakeClientMemory {
        FakeClientMemory::new()
    }
}

impl ClientMemory for FakeClientMemory {
    fn part<T: ShmRecord>(&self, offset: usize, count: usize) -> &[T] {
        self.0.slice(offset, count).expect("a part of the region")
    }
}

/// The state of a node's kernel.
#[derive(Debug, Default)]
struct KernelState {
    pool: Cell<Option<Window>>,
    ended_processes: RefCell<BTreeSet<u32>>,
    held_descriptions: RefCell<BTreeSet<u32>>,
}

/// The kernel of a node whose servers have storage `S`. Clones are of the same node.
pub struct FakePlatform<S> {
    state: Rc<KernelState>,
    storage: PhantomData<S>,
}

impl<S> FakePlatform<S> {
    /// The pool for bytes of other nodes; a node without one refuses them.
    pub fn set_pool(&self, pool: Window) {
        self.state.pool.set(Some(pool));
    }

    /// A process has open file description `index`, which was marked as shared.
    pub fn hold_description(&self, index: u32) {
        self.state.held_descriptions.borrow_mut().insert(index);
    }

    /// No process has a shared description any longer.
    pub fn release_descriptions(&self) {
        self.state.held_descriptions.borrow_mut().clear();
    }

    /// Process `pid` ended; each process lives until then.
    pub fn end_process(&self, pid: u32) {
        self.state.ended_processes.borrow_mut().insert(pid);
    }
}

/// A fresh pool for bytes of other nodes.
pub fn new_pool() -> Window {
    map_file(POOL_BYTES).1.leak_window()
}

impl<S> Default for FakePlatform<S> {
    fn default() -> FakePlatform<S> {
        FakePlatform {
            state: Rc::default(),
            storage: PhantomData,
        }
    }
}

impl<S> Clone for FakePlatform<S> {
    fn clone(&self) -> FakePlatform<S> {
        FakePlatform {
            state: Rc::clone(&self.state),
            storage: PhantomData,
        }
    }
}

impl<S> std::fmt::Debug for FakePlatform<S> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.state.fmt(f)
    }
}

impl<S: Space> Platform for FakePlatform<S> {
    type Memory = FakeClientMemory;
    type Space = S;

    fn wake(&self, _: &AtomicU32) {}

    fn ofd_alive(&self, index: u32) -> bool {
        self.state.held_descriptions.borrow().contains(&index)
    }

    fn lives(&self, pid: u32) -> bool {
        !self.state.ended_processes.borrow().contains(&pid)
    }

    fn landing(
        &self,
        client: &Arc<FakeClientMemory>,
        landing: proto::Landing,
        len: u32,
        over: &Arc<AtomicBool>,
    ) -> Option<Box<dyn bulk::Landing>> {
        let pool = self.state.pool.get()?;
        let arrival = Arrival::new(client, pool, landing, len as usize, over, |_| ())?;
        Some(Box::new(arrival))
    }

    fn program(&self, pid: u32) -> String {
        format!("program {pid}")
    }
}
