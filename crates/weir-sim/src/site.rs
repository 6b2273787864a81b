//! A node: its shared memory, its storage, and its server, which is the real one with the
//! simulated fabric around it. What `weir-server`'s runtime does with threads and sockets, a
//! pump does here.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, AtomicU32};
use std::sync::Arc;
use std::time::Duration;

use futures_channel::oneshot;
use futures_util::future::LocalBoxFuture;
use weir_core::names::{
    layout, InodeRecord, NamesHeader, NamesView, Owner, Section, Shard, Tables,
};
use weir_core::node::channel::Channel;
use weir_core::node::landing::{LandingSlot, LANDINGS, POOL, POOL_BYTES};
use weir_core::node::region::{client_layout, open_layout, ClientHeader, NOTE_SLOTS, RECORD_SLOTS};
use weir_core::node::ring::{NoteSlot, RecordSlot};
use weir_core::proto::{Caller, Landing};
use weir_core::types::{ClientId, Rank};
use weir_fabric::bulk;
use weir_fabric::sim::{End, Network};
use weir_fabric::{CallId, Event, Fabric, Message};
use weir_server::arrival::Arrival;
use weir_server::cluster::{Answer, Cluster, Lost, Net};
use weir_server::node::{ClientMemory, Identity, Node, OpenRegion, Platform};
use weir_store::map::{create_sparse, Access, Mapping, Region};
use weir_store::shm::ShmRecord;
use weir_store::slabmap::Window;

use crate::executor::{Executor, Group};
use crate::storage::{Log, Storage};

/// How often a server publishes what was not, and looks for what nobody uses any more.
const TICK: Duration = Duration::from_secs(1);
/// How often a program that waits for bytes of other nodes looks for them.
const PAUSE: Duration = Duration::from_micros(100);
/// Tables of a node.
const FILES: u32 = 1000;
const BLOCKS: usize = 64;
const CELLS: usize = 128;
const OFDS: usize = 512;
const CLIENTS: usize = 16;

/// A client's region.
#[derive(Debug)]
pub struct Memory(Region);

impl Memory {
    fn part<T: ShmRecord>(&self, offset: usize, count: usize) -> &'static [T] {
        self.0.slice(offset, count).expect("a part of the region")
    }

    /// What is on its way from other nodes, for as long as the program likes.
    pub fn arriving(&self) -> &'static [LandingSlot] {
        self.part(client_layout().landings, LANDINGS)
    }
}

impl ClientMemory for Memory {
    fn header(&self) -> &ClientHeader {
        &self.part(0, 1)[0]
    }

    fn record_slots(&self) -> &[RecordSlot] {
        self.part(client_layout().records, RECORD_SLOTS)
    }

    fn note_slots(&self) -> &[NoteSlot] {
        self.part(client_layout().notes, NOTE_SLOTS)
    }

    fn channel(&self) -> &Channel {
        &self.part(client_layout().channel, 1)[0]
    }

    fn landings(&self) -> &[LandingSlot] {
        self.arriving()
    }
}

/// Nobody sleeps on a word, and no description outlives its process.
#[derive(Clone, Debug)]
pub struct Kernel {
    /// Where bytes of other nodes arrive.
    pool: Window,
}

impl Platform for Kernel {
    type Memory = Memory;
    type Space = Storage;

    fn wake(&self, _: &AtomicU32) {}

    fn ofd_alive(&self, _: u32) -> bool {
        false
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

type Waiting = Rc<RefCell<BTreeMap<CallId, oneshot::Sender<Result<Answer, Lost>>>>>;

/// The other servers, for the logic.
struct Others {
    end: Rc<End>,
    waiting: Waiting,
}

impl Others {
    fn answer(&self, to: Rank, id: CallId) -> LocalBoxFuture<'static, Result<Answer, Lost>> {
        let (sender, answer) = oneshot::channel();
        self.waiting.borrow_mut().insert(id, sender);
        Box::pin(async move { answer.await.unwrap_or(Err(Lost(to))) })
    }
}

impl Net for Others {
    fn call(&self, to: Rank, request: Vec<u8>) -> LocalBoxFuture<'static, Result<Answer, Lost>> {
        self.answer(to, self.end.call(to, message(request)))
    }

    fn call_surely(
        &self,
        to: Rank,
        request: Vec<u8>,
    ) -> LocalBoxFuture<'static, Result<Answer, Lost>> {
        self.answer(to, self.end.call_surely(to, message(request)))
    }
}

fn message(body: Vec<u8>) -> Message {
    Message {
        body,
        bulk: Vec::new(),
    }
}

/// A node with its running server.
pub struct Site {
    /// Its rank.
    pub rank: Rank,
    /// How many there are.
    pub servers: u16,
    /// The logic.
    pub cluster: Cluster<Kernel>,
    /// The node's part of it.
    pub node: Rc<RefCell<Node<'static, Kernel>>>,
    /// What is shared with clients.
    pub open: OpenRegion<'static>,
    /// The tables, as clients see them.
    pub names: NamesView<'static>,
    /// The bytes.
    pub storage: Storage,
    /// Tasks of this life of the server.
    pub group: Group,
    executor: Executor,
    end: Rc<End>,
    waiting: Waiting,
    lost: Cell<u64>,
    pool: Window,
    /// Gone with the site.
    dir: tempfile::TempDir,
}

impl std::fmt::Debug for Site {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "site {}", self.rank.0)
    }
}

fn map(dir: &std::path::Path, name: &str, bytes: usize) -> Region {
    map_file(dir, name, bytes).leak()
}

fn map_file(dir: &std::path::Path, name: &str, bytes: usize) -> Mapping {
    let at = std::fs::File::open(dir).expect("the node's directory");
    let file = create_sparse(&at, name, bytes as u64).expect("a region");
    Mapping::new(&file, bytes, Access::ReadWrite).expect("to map a region")
}

/// The namespace's tables, for the server and for its clients.
fn tables(region: Region, rank: Rank) -> (Shard<'static>, NamesView<'static>) {
    let parts = layout(FILES);
    let at = |section: Section| usize::try_from(section.offset_bytes).expect("fits");
    let header: &NamesHeader = region.record(at(parts.header)).expect("a header");
    let inodes: &[InodeRecord] = region
        .slice(at(parts.inodes), parts.inodes.len)
        .expect("inodes");
    let arena = region
        .slice(at(parts.arena), parts.arena.len)
        .expect("an arena");
    let buckets = region
        .slice(at(parts.buckets), parts.buckets.len)
        .expect("buckets");
    let tables = Tables::format(header, inodes, arena, buckets, rank).expect("tables");
    let shard = Shard::new(tables, 0o755, Owner { uid: 0, gid: 0 }, 1).expect("a root");
    let tables = Tables::open(header, inodes, arena, buckets).expect("the same tables");
    (shard, NamesView::new(tables))
}

impl Site {
    /// Starts a server on a fresh node with so much storage.
    pub fn start(
        (rank, servers): (Rank, u16),
        (units, warm): (usize, bool),
        executor: &Executor,
        network: &Network,
    ) -> Rc<Site> {
        let dir = tempfile::tempdir_in("/dev/shm").expect("a directory on tmpfs");
        let parts = open_layout(OFDS, BLOCKS, CELLS);
        let region = map(dir.path(), "open", parts.bytes);
        let whole = "the region is that long";
        let open = OpenRegion {
            hub: region.record(0).expect(whole),
            ofds: region.slice(parts.ofds, OFDS).expect(whole),
            blocks: region.slice(parts.blocks, BLOCKS).expect(whole),
            cells: region.slice(parts.cells, CELLS).expect(whole),
        };
        let bytes = usize::try_from(layout(FILES).file_bytes).expect("fits");
        let (shard, names) = tables(map(dir.path(), "names", bytes), rank);
        let storage = Storage::new(dir.path(), units, warm);
        let identity = Identity {
            rank,
            servers,
            pid: 1,
            started_ns: 1,
        };
        let pool = map_file(dir.path(), POOL, POOL_BYTES).leak_window();
        let node = Node::new(
            identity,
            open,
            shard,
            storage.clone(),
            Kernel { pool },
            CLIENTS,
        );
        let node = Rc::new(RefCell::new(node));
        let end = Rc::new(network.start(rank, 1));
        let waiting = Waiting::default();
        let others = Others {
            end: Rc::clone(&end),
            waiting: Rc::clone(&waiting),
        };
        let group = executor.group();
        let spawner = executor.clone();
        let cluster = Cluster::new(
            (rank, servers),
            Rc::clone(&node),
            Rc::new(others),
            Rc::new(Log(Rc::clone(storage.slabs()))),
            move |task| spawner.spawn(group, task),
        );
        // So that few servers are a tree, too.
        cluster.set_fan_out(1 + u32::from(servers % 2));
        let site = Rc::new(Site {
            rank,
            servers,
            cluster,
            node,
            open,
            names,
            storage,
            group,
            executor: executor.clone(),
            end,
            waiting,
            lost: Cell::new(0),
            pool,
            dir,
        });
        site.tick_for_ever();
        site.look_for_ever();
        site
    }

    /// What the service thread does now and then.
    fn tick_for_ever(self: &Rc<Site>) {
        let (site, executor) = (Rc::downgrade(self), self.executor.clone());
        self.executor.spawn(self.group, async move {
            loop {
                executor.sleep(TICK).await;
                let Some(site) = site.upgrade() else { return };
                let now_ns = site.now_ns();
                site.node.borrow_mut().idle(now_ns);
                site.cluster.tick(now_ns);
                site.cluster.catch_up();
                site.cluster.look_for_room();
            }
        });
    }

    /// What it does more often.
    fn look_for_ever(self: &Rc<Site>) {
        let (site, executor) = (Rc::downgrade(self), self.executor.clone());
        self.executor.spawn(self.group, async move {
            loop {
                executor.sleep(TICK / 2).await;
                let Some(site) = site.upgrade() else { return };
                site.cluster.tick(site.now_ns());
                site.cluster.look_at_sessions();
            }
        });
    }

    /// The time, as servers are told it.
    pub fn now_ns(&self) -> i64 {
        1_000_000_000 + i64::try_from(self.executor.now().as_nanos()).expect("not for so long")
    }

    /// Takes in what came from others; false if nothing did.
    pub fn pump(self: &Rc<Site>) -> bool {
        let mut any = false;
        while let Some(event) = self.end.poll() {
            any = true;
            self.cluster.tick(self.now_ns());
            self.take(event);
        }
        any
    }

    fn take(self: &Rc<Site>, event: Event) {
        match event {
            Event::Request(token, message) => {
                let (cluster, end) = (self.cluster.clone(), Rc::downgrade(&self.end));
                self.executor.spawn(self.group, async move {
                    let answer = cluster.handle(token.from, &message.body).await;
                    let message = Message {
                        body: answer.body,
                        bulk: answer.bulk,
                    };
                    if let Some(end) = end.upgrade() {
                        end.reply(token, message);
                    }
                });
            }
            Event::Done(id, result) => {
                let Some(sender) = self.waiting.borrow_mut().remove(&id) else {
                    return;
                };
                let answer = result.map(|message| Answer {
                    body: message.body,
                    bulk: message.bulk,
                });
                // Whoever asked may have been killed.
                let _ = sender.send(answer.map_err(|_| {
                    self.lost.set(self.lost.get() + 1);
                    Lost(Rank(u16::MAX))
                }));
            }
            Event::PeerLost(rank) => self.cluster.peer_gone(rank),
        }
    }

    /// Has the server do what a client asks; `None`: the server died over it.
    pub async fn ask(self: Rc<Site>, id: ClientId, request: Vec<u8>) -> Option<Vec<u8>> {
        let (sender, reply) = oneshot::channel();
        let site = Rc::downgrade(&self);
        self.executor.spawn(self.group, async move {
            let Some(site) = site.upgrade() else { return };
            let now_ns = site.now_ns();
            site.node.borrow_mut().poll_client(id, now_ns);
            site.cluster.tick(now_ns);
            let reply = site.cluster.serve(Caller::Client(id), &request).await;
            // The process may be gone meanwhile.
            let _ = sender.send(reply);
        });
        drop(self);
        reply.await.ok()
    }

    /// The pool in which bytes of other nodes arrive.
    pub fn pool(&self) -> Window {
        self.pool
    }

    /// Passes some time, in which bytes may come.
    pub async fn pause(&self) {
        self.executor.sleep(PAUSE).await;
    }

    /// Takes a client process in.
    pub fn admit(&self) -> Option<(ClientId, Arc<Memory>)> {
        let id = self.node.borrow().vacant_client()?;
        let name = format!("client-{}-{}", id.0, self.executor.steps());
        let memory = Arc::new(Memory(map(self.dir.path(), &name, client_layout().bytes)));
        let mut node = self.node.borrow_mut();
        node.admit(id, 100 + id.0, Arc::clone(&memory));
        Some((id, memory))
    }

    /// Calls to other servers that were lost.
    pub fn lost(&self) -> u64 {
        self.lost.get()
    }
}
