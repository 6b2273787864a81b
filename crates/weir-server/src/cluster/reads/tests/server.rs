//! A server with a small pool, its clients, and a fabric that holds the reads.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::atomic::AtomicBool;
use std::sync::Arc;

use futures_util::future::LocalBoxFuture;
use weir_core::node::landing::{Failed, LandingSlot};
use weir_core::proto::peer::{LogRange, PeerOperation};
use weir_core::proto::{Fetch, FsError, Landing, PathInTree};
use weir_core::types::{ClientId, Ino, Rank};
use weir_fabric::bulk::{self, ReadError};
use weir_fakes::regions::map_file;
use weir_store::slabmap::Window;

use crate::cluster::abilities::{FindsPaths, InodeNumbers};
use crate::cluster::fake::MappedMemory;
use crate::cluster::net::{Answer, Lost, Net};
use crate::cluster::peers::calls::{Replied, ServerCalls};
use crate::cluster::peers::fake::TestThread;
use crate::cluster::peers::fake_fabric::reply;
use crate::cluster::peers::PeerServers;
use crate::cluster::reads::arrival::Arrival;
use crate::cluster::reads::fetch::Fetches;
use crate::cluster::reads::{ReadsNeeds, ReadsState, RemoteReads};
use crate::cluster::ROOT;
use crate::node::ClientMemory;

/// A unit of the pool, bytes.
pub(super) const UNIT: u64 = 64 << 10;
/// The units of the pool.
pub(super) const UNITS: u64 = 8;
/// The file that is read.
pub(super) const FILE: Ino = Ino::new(Rank(1), 0, 5);

/// A read that the fabric was given.
pub(super) struct HeldRead {
    landing: Box<dyn bulk::Landing>,
    bytes: usize,
}

impl HeldRead {
    /// Some bytes arrive.
    pub(super) fn arrive(&mut self, at: usize, bytes: &[u8]) {
        self.landing.put(at, bytes);
    }

    /// All bytes arrive, and the fabric has finished with the place.
    pub(super) fn arrive_whole(mut self) {
        self.landing.put(0, &vec![7; self.bytes]);
        self.landing.finish(Ok(()));
    }

    /// The bytes do not come.
    pub(super) fn fail(self) {
        self.landing.finish(Err(ReadError::Refused));
    }
}

/// A fabric that reads past the other server's logic, or does not.
#[derive(Default)]
pub(super) struct HoldingFabric {
    pub(super) held: RefCell<Vec<HeldRead>>,
    /// It reads by calls.
    by_call: Cell<bool>,
    /// The answer to a call; `None`: the server is lost.
    bulk: RefCell<Option<Vec<u8>>>,
}

impl HoldingFabric {
    /// It reads by calls from now on, with these bytes as the answer; `None`: the server is lost.
    pub(super) fn read_by_calls(&self, bulk: Option<Vec<u8>>) {
        self.by_call.set(true);
        self.bulk.replace(bulk);
    }

    /// Takes the oldest read.
    pub(super) fn take_read(&self) -> HeldRead {
        self.held.borrow_mut().remove(0)
    }
}

impl Net for HoldingFabric {
    fn call(&self, to: Rank, _: Vec<u8>) -> LocalBoxFuture<'static, Result<Answer, Lost>> {
        let answer = self.bulk.borrow().clone();
        let answer = answer.map(|bulk| Answer {
            bulk,
            ..reply(&Ok(()))
        });
        Box::pin(std::future::ready(answer.ok_or(Lost(to))))
    }

    fn read(
        &self,
        _: Rank,
        ranges: &[LogRange],
        landing: Box<dyn bulk::Landing>,
    ) -> Option<Box<dyn bulk::Landing>> {
        if self.by_call.get() {
            return Some(landing);
        }
        let bytes = ranges.iter().map(|range| range.len).sum::<u64>();
        let bytes = usize::try_from(bytes).expect("small");
        self.held.borrow_mut().push(HeldRead { landing, bytes });
        None
    }
}

#[derive(Clone)]
pub(super) struct ReadsServer(Rc<ServerParts>);

struct ServerParts {
    peers: PeerServers,
    state: ReadsState<MappedMemory>,
    clients: RefCell<BTreeMap<ClientId, Arc<MappedMemory>>>,
    pool: Window,
    /// The bytes of the pool that can have memory.
    memory: Cell<usize>,
    receives: Cell<bool>,
    laminated: Cell<bool>,
    /// The files whose paths were asked for, and the directories.
    paths: RefCell<Vec<Ino>>,
}

impl ServerCalls for ReadsServer {
    fn peers(&self) -> &PeerServers {
        &self.0.peers
    }

    fn do_here<O: PeerOperation + 'static>(&self, _: O) -> LocalBoxFuture<'_, Replied<O>> {
        panic!("it reads from others only")
    }
}

impl InodeNumbers for ReadsServer {
    fn global(&self, ino: Ino) -> Ino {
        ino
    }

    fn local(&self, _: Ino) -> Option<Ino> {
        None
    }
}

impl FindsPaths for ReadsServer {
    async fn path_by_homes(&self, dir: Ino) -> Result<PathInTree, FsError> {
        self.0.paths.borrow_mut().push(dir);
        let path = b"/dir".to_vec();
        Ok(PathInTree { root: ROOT, path })
    }
}

impl ReadsNeeds for ReadsServer {
    type Memory = MappedMemory;

    fn reads_state(&self) -> &ReadsState<MappedMemory> {
        &self.0.state
    }

    fn memory_of(&self, id: ClientId) -> Option<Arc<MappedMemory>> {
        self.0.clients.borrow().get(&id).cloned()
    }

    fn pool_memory(&self, wanted: usize) -> usize {
        wanted.min(self.0.memory.get())
    }

    fn landing(
        &self,
        client: &Arc<MappedMemory>,
        landing: Landing,
        len: u32,
        over: &Arc<AtomicBool>,
    ) -> Option<Box<dyn bulk::Landing>> {
        if !self.0.receives.get() {
            return None;
        }
        let arrival = Arrival::new(client, self.0.pool, landing, len as usize, over, |_| ())?;
        Some(Box::new(arrival))
    }

    fn laminated_here(&self, ino: Ino) -> Option<Ino> {
        self.0.laminated.get().then_some(ino)
    }

    async fn path_of_file(&self, ino: Ino) -> String {
        self.0.paths.borrow_mut().push(ino);
        "/file".to_owned()
    }
}

/// The result of a request, once there is one.
pub(super) type Fetched = Rc<RefCell<Option<Result<Vec<Landing>, FsError>>>>;

/// A server with two clients.
pub(super) struct ReadsWorld {
    pub(super) thread: TestThread,
    pub(super) fabric: Rc<HoldingFabric>,
    pub(super) server: ReadsServer,
}

impl ReadsWorld {
    pub(super) fn new() -> ReadsWorld {
        let bytes = usize::try_from(UNIT * UNITS).expect("small");
        let (thread, fabric) = (TestThread::new(), Rc::new(HoldingFabric::default()));
        let clients = [0, 1].map(|id| (ClientId(id), Arc::new(MappedMemory::new())));
        let parts = ServerParts {
            peers: thread.first_of_two(Rc::clone(&fabric) as Rc<dyn Net>),
            state: ReadsState {
                fetches: RefCell::new(Fetches::new(bytes, 0)),
                missing: RefCell::default(),
            },
            clients: RefCell::new(clients.into_iter().collect()),
            pool: map_file(bytes).1.leak_window(),
            memory: Cell::new(bytes),
            receives: Cell::new(true),
            laminated: Cell::new(false),
            paths: RefCell::default(),
        };
        ReadsWorld {
            thread,
            fabric,
            server: ReadsServer(Rc::new(parts)),
        }
    }

    /// The room.
    pub(super) fn reads(&self) -> RemoteReads<ReadsServer> {
        RemoteReads::new(&self.server)
    }

    /// A client asks for reads.
    pub(super) fn ask(&self, id: u32, reads: Vec<Vec<LogRange>>, ahead: bool) -> Fetched {
        let (room, shown) = (self.reads(), Fetched::default());
        let fetch = Fetch {
            ino: FILE,
            reads,
            ahead,
        };
        let result = Rc::clone(&shown);
        self.thread.spawn(async move {
            let landings = room.fetch_for(ClientId(id), fetch).await;
            result.borrow_mut().replace(landings);
        });
        self.thread.run_again();
        shown
    }

    /// A client asks for one read of so many units; returns its landing, if it got one at once.
    pub(super) fn read(&self, id: u32, pos: u64, units: u64) -> Option<Landing> {
        let asked = self.ask(id, vec![vec![range(pos, units * UNIT)]], false);
        let landings = asked.borrow_mut().take()?;
        Some(landings.expect("landings")[0])
    }

    /// The same ahead of a reader.
    pub(super) fn read_ahead(&self, id: u32, pos: u64) -> Option<Landing> {
        let asked = self.ask(id, vec![vec![range(pos, UNIT)]], true);
        let landings = asked.borrow_mut().take().expect("nobody waits");
        landings.expect("landings").first().copied()
    }

    pub(super) fn client(&self, id: u32) -> Arc<MappedMemory> {
        Arc::clone(&self.server.0.clients.borrow()[&ClientId(id)])
    }

    /// The bytes that have arrived for a client.
    pub(super) fn arrived(&self, id: u32, landing: Landing) -> Result<u32, Failed> {
        self.slot(id, landing, LandingSlot::arrived)
    }

    /// A client does something with a slot.
    pub(super) fn slot<R>(
        &self,
        id: u32,
        landing: Landing,
        act: impl FnOnce(&LandingSlot) -> R,
    ) -> R {
        act(&self.client(id).landings()[usize::from(landing.slot)])
    }

    /// A client has copied the bytes.
    pub(super) fn release(&self, id: u32, landing: Landing) {
        self.slot(id, landing, |slot| slot.release(landing.serial));
    }

    /// A client ends.
    pub(super) fn end_client(&self, id: u32) {
        self.server.0.clients.borrow_mut().remove(&ClientId(id));
    }

    /// Tasks that wait for room look again.
    pub(super) fn look(&self) {
        self.reads().look_for_room();
        self.thread.run_again();
    }

    /// The units of the pool that are in use or kept.
    pub(super) fn used_units(&self) -> u64 {
        self.reads().pool_use().0 as u64 / UNIT
    }

    pub(super) fn laminate(&self) {
        self.server.0.laminated.set(true);
    }

    /// Sets the bytes of the pool that can have memory.
    pub(super) fn limit_memory(&self, units: u64) {
        let bytes = usize::try_from(units * UNIT).expect("small");
        self.server.0.memory.set(bytes);
    }

    /// The node cannot receive bytes of other nodes.
    pub(super) fn receive_nothing(&self) {
        self.server.0.receives.set(false);
    }

    /// The bytes of the pool.
    pub(super) fn pool_bytes(&self, landing: Landing, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        self.server.0.pool.read(landing.at as usize, &mut bytes);
        bytes
    }

    /// The files and directories whose paths were asked for since the last call.
    pub(super) fn take_paths(&self) -> Vec<Ino> {
        self.server.0.paths.take()
    }

    /// Runs the tasks as far as they can.
    pub(super) fn settle(&self) {
        for _ in 0..4 {
            self.thread.run_again();
        }
    }
}

/// Bytes of the log of the other server.
pub(super) fn range(pos: u64, len: u64) -> LogRange {
    LogRange {
        rank: 1,
        slab: 3,
        pos,
        len,
    }
}
