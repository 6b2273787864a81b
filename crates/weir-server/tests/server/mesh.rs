//! Several servers in one thread, joined by a network with delays drawn from a seed.

use std::cell::{Cell, RefCell};
use std::future::Future;
use std::ops::Range;
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::task::Poll;

use crate::world::{table_sizes, ServerTables, Store, TestPlatform};
use futures_channel::oneshot;
use futures_executor::{LocalPool, LocalSpawner};
use futures_util::future::{poll_fn, FutureExt, LocalBoxFuture};
use futures_util::task::LocalSpawnExt;
use weir_core::names::{Attr, NamesView};
use weir_core::node::known::KnownNames;
use weir_core::node::ofd::Ofd;
use weir_core::proto::peer::{self, PeerOperation};
use weir_core::proto::{self, Caller, ClientKind, FsError, Operation};
use weir_core::types::{ClientId, Ino, Rank};
use weir_fakes::platform::new_pool;
use weir_fakes::storage::Contradictions;
use weir_fakes::{FakeClientMemory, NodeRegions};
use weir_server::cluster::{enclose, Answer, Cluster, Lost, Net};
use weir_server::node::{Node, OpenRegion};
use weir_store::slabmap::Window;

pub use crate::world::World as OneServer;

/// Numbers from a seed (xorshift64*).
#[derive(Clone)]
pub struct Dice(Rc<Cell<u64>>);

impl Dice {
    pub fn new(seed: u64) -> Dice {
        Dice(Rc::new(Cell::new(
            seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1,
        )))
    }

    /// 0 to `below - 1`.
    pub fn roll(&self, below: u64) -> u64 {
        let mut x = self.0.get();
        x ^= x >> 12;
        x ^= x << 25;
        x ^= x >> 27;
        self.0.set(x);
        (x.wrapping_mul(0x2545_F491_4F6C_DD1D) >> 33) % below
    }
}

/// Lets other tasks run `turns` times.
pub async fn pause(turns: u64) {
    let mut left = turns;
    poll_fn(|context| {
        if left == 0 {
            return Poll::Ready(());
        }
        left -= 1;
        context.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}

type Server = Cluster<TestPlatform>;

/// The servers, in which the network finds them.
type Servers = Rc<RefCell<Vec<Server>>>;

struct MeshNet {
    from: Rank,
    spawner: LocalSpawner,
    servers: Weak<RefCell<Vec<Server>>>,
    dice: Dice,
    most_turns: u64,
    sent: Rc<Cell<u64>>,
    sent_by: Rc<RefCell<Vec<u64>>>,
    deaf: Rc<RefCell<Deaf>>,
}

/// Servers that receive nothing, or only from one server.
#[derive(Default)]
struct Deaf {
    ranks: Vec<Rank>,
    but_to: Option<Rank>,
    /// Servers that receive everything, but whose answers are lost.
    mute: Vec<Rank>,
}

impl Net for MeshNet {
    fn call(&self, to: Rank, request: Vec<u8>) -> LocalBoxFuture<'static, Result<Answer, Lost>> {
        let (there, back) = (
            self.dice.roll(self.most_turns),
            self.dice.roll(self.most_turns),
        );
        let (from, servers) = (self.from, self.servers.clone());
        let spawner = self.spawner.clone();
        self.sent.set(self.sent.get() + 1);
        self.sent_by.borrow_mut()[usize::from(from.0)] += 1;
        let deaf = self.deaf.borrow();
        if deaf.ranks.contains(&to) && deaf.but_to != Some(from) {
            return Box::pin(async move { Err(Lost(to)) });
        }
        let mute = deaf.mute.contains(&to);
        Box::pin(async move {
            pause(there).await;
            let servers = servers.upgrade().ok_or(Lost(to))?;
            let server = servers.borrow()[usize::from(to.0)].clone();
            // A task of its own, as in a real server: a chain of servers that wait for each other is not nested on one
            // stack.
            let (sender, answered) = oneshot::channel();
            let serving = async move { sender.send(server.handle(from, &request).await) };
            spawner.spawn_local(serving.map(drop)).unwrap();
            let answer = answered.await.map_err(|_| Lost(to))?;
            pause(back).await;
            match mute {
                true => Err(Lost(to)),
                false => Ok(answer),
            }
        })
    }
}

pub struct Mesh {
    pub pool: LocalPool,
    pub servers: Servers,
    pub nodes: Vec<Rc<RefCell<Node<'static, TestPlatform>>>>,
    pub stores: Vec<Store>,
    pub opens: Vec<OpenRegion<'static>>,
    views: Vec<NamesView<'static>>,
    platforms: Vec<TestPlatform>,
    /// Messages sent.
    pub sent: Rc<Cell<u64>>,
    sent_by: Rc<RefCell<Vec<u64>>>,
    deaf: Rc<RefCell<Deaf>>,
    now_ns: Rc<Cell<i64>>,
}

/// A file that does not exist yet.
pub fn create(parent: Ino, name: &str) -> proto::Create {
    proto::Create {
        parent,
        name: name.into(),
        mode: 0o644,
        uid: 0,
        gid: 0,
        exclusive: true,
        attach: false,
    }
}

impl Mesh {
    pub fn new(count: u16, seed: u64) -> Mesh {
        Mesh::with_files(count, seed, 2000)
    }

    /// With room for this number of inodes at each.
    pub fn with_files(count: u16, seed: u64, files: u32) -> Mesh {
        let pool = LocalPool::new();
        let dice = Dice::new(seed);
        let servers: Servers = Rc::default();
        let sent = Rc::new(Cell::new(0));
        let sent_by = Rc::new(RefCell::new(vec![0; usize::from(count)]));
        let deaf: Rc<RefCell<Deaf>> = Rc::default();
        let (mut nodes, mut stores) = (Vec::new(), Vec::new());
        let (mut opens, mut views, mut platforms) = (Vec::new(), Vec::new(), Vec::new());
        for rank in (0..count).map(Rank) {
            let regions = NodeRegions::new(table_sizes(files, 32, 32));
            let tables = ServerTables::within(&regions, rank, count, 64);
            let ServerTables { node, store, .. } = tables;
            let net = MeshNet {
                from: rank,
                spawner: pool.spawner(),
                servers: Rc::downgrade(&servers),
                dice: dice.clone(),
                most_turns: 8,
                sent: Rc::clone(&sent),
                sent_by: Rc::clone(&sent_by),
                deaf: Rc::clone(&deaf),
            };
            let spawner = pool.spawner();
            let cluster = Cluster::new(
                rank,
                count,
                Rc::clone(&node),
                Rc::new(net),
                Rc::new(store.clone()),
                move |task| spawner.spawn_local(task).unwrap(),
            );
            servers.borrow_mut().push(cluster);
            nodes.push(node);
            stores.push(store);
            opens.push(tables.open);
            views.push(tables.view);
            platforms.push(tables.platform);
        }
        Mesh {
            pool,
            servers,
            nodes,
            stores,
            opens,
            views,
            platforms,
            sent,
            sent_by,
            deaf,
            now_ns: Rc::new(Cell::new(100)),
        }
    }

    /// Makes the pool for bytes of other nodes, at a server's node.
    pub fn make_pool(&self, rank: usize) -> Window {
        let pool = new_pool();
        self.platforms[rank].set_pool(pool);
        pool
    }

    /// No program wrote the bytes that the test publishes at these servers.
    pub fn accept_invented_bytes(&self, ranks: Range<usize>) {
        for store in &self.stores[ranks] {
            store.set_contradictions(Contradictions::Ignore);
        }
    }

    /// The table of known names at a server's node.
    pub fn known(&self, rank: usize) -> KnownNames<'static> {
        KnownNames::new(self.opens[rank].hub, self.opens[rank].known)
    }

    /// The attributes of an inode in a server's tables, by its number there.
    pub fn attr(&self, rank: usize, ino: Ino) -> Option<Attr> {
        self.views[rank].attr(ino).unwrap()
    }

    pub fn server(&self, rank: usize) -> Server {
        self.servers.borrow()[rank].clone()
    }

    /// The number of messages that one server sent.
    pub fn sent_by(&self, rank: usize) -> u64 {
        self.sent_by.borrow()[rank]
    }

    /// From now on these servers, and no others, receive nothing.
    pub fn deafen(&self, ranks: &[Rank]) {
        self.deafen_but_to(ranks, None);
    }

    /// From now on these servers receive only from one server.
    pub fn deafen_but_to(&self, ranks: &[Rank], but_to: Option<Rank>) {
        let ranks = ranks.to_vec();
        *self.deaf.borrow_mut() = Deaf {
            ranks,
            but_to,
            ..Deaf::default()
        };
    }

    /// From now on these servers, and no others, execute requests, but their answers are lost.
    pub fn mute(&self, ranks: &[Rank]) {
        *self.deaf.borrow_mut() = Deaf {
            mute: ranks.to_vec(),
            ..Deaf::default()
        };
    }

    /// Requests an operation from one server, like a tool.
    pub fn ask<O: Operation + 'static>(
        &self,
        rank: usize,
        op: O,
    ) -> impl Future<Output = Result<O::Reply, FsError>> + 'static {
        self.ask_as(rank, Caller::Control, op)
    }

    /// Requests an operation from one server, as a client or a tool.
    pub fn ask_as<O: Operation + 'static>(
        &self,
        rank: usize,
        caller: Caller,
        op: O,
    ) -> impl Future<Output = Result<O::Reply, FsError>> + 'static {
        self.now_ns.set(self.now_ns.get() + 1);
        let (server, now_ns) = (self.server(rank), self.now_ns.get());
        async move {
            server.tick(now_ns);
            let mut request = Vec::new();
            proto::request(op, &mut request);
            let reply = server.serve(caller, &request).await;
            proto::reply::<O>(&reply)
        }
    }

    /// The same, run to its end.
    pub fn call<O: Operation + 'static>(
        &mut self,
        rank: usize,
        op: O,
    ) -> Result<O::Reply, FsError> {
        let asked = self.ask(rank, op);
        self.run(asked)
    }

    /// The same as [`Mesh::call`], as a client.
    pub fn call_as_client<O: Operation + 'static>(
        &mut self,
        rank: usize,
        op: O,
    ) -> Result<O::Reply, FsError> {
        let asked = self.ask_as(rank, Caller::Client(ClientId(0)), op);
        self.run(asked)
    }

    /// Creates a file in the root, at server 0; returns its number there.
    pub fn file_here(&mut self, name: &str) -> Ino {
        let op = create(weir_server::cluster::ROOT, name);
        self.call(0, op).unwrap().ino
    }

    /// Creates a file in the root, at server 0; returns its global inode number.
    pub fn file(&mut self, name: &str) -> Ino {
        let ino = self.file_here(name);
        self.call(0, proto::GetAttr { ino }).unwrap().home
    }

    /// Sends a request from one server to another, as the fabric would deliver it.
    pub fn ask_peer<O: PeerOperation>(
        &mut self,
        from: Rank,
        to: Rank,
        op: O,
    ) -> Result<O::Reply, FsError> {
        let server = self.server(usize::from(to.0));
        let request = enclose(0, 30_000, &peer::request(op));
        let answer = self
            .pool
            .run_until(async move { server.handle(from, &request).await });
        peer::reply::<O>(&answer.body)
    }

    /// The number of requests of a kind that a server got from others.
    pub fn asked(&self, rank: Rank, what: &str) -> u64 {
        let asked = self.server(usize::from(rank.0)).asked();
        let of_name = asked.iter().find(|(name, _)| name == what);
        of_name.map_or(0, |(_, count)| *count)
    }

    /// Runs a future to its end; when all tasks wait, time passes.
    pub fn run<T: 'static>(&mut self, act: impl Future<Output = T> + 'static) -> T {
        let done = Rc::new(RefCell::new(None));
        let put = Rc::clone(&done);
        let task = async move { *put.borrow_mut() = Some(act.await) };
        self.pool.spawner().spawn_local(task).unwrap();
        loop {
            self.pool.run_until_stalled();
            if let Some(done) = done.borrow_mut().take() {
                return done;
            }
            self.now_ns.set(self.now_ns.get() + 100_000_000);
            for server in self.servers.borrow().iter() {
                server.tick(self.now_ns.get());
            }
        }
    }

    /// A client at a server's node.
    pub fn client(&mut self, rank: usize) -> ClientId {
        let mut node = self.nodes[rank].borrow_mut();
        let id = node.clients().vacant(ClientKind::Program).unwrap();
        let memory = Arc::new(FakeClientMemory::new());
        node.admit(id, 100 + id.0, ClientKind::Program, memory);
        id
    }

    /// Opens a file, by its number there, at a server's node.
    pub fn open_description(&mut self, rank: usize, ino: Ino, write: bool) -> &'static Ofd {
        let id = self.client(rank);
        let server = self.server(rank);
        let mut request = Vec::new();
        proto::request(proto::OfdBatch {}, &mut request);
        let lent = self
            .pool
            .run_until(async move { server.serve(Caller::Client(id), &request).await });
        let first = proto::reply::<proto::OfdBatch>(&lent).unwrap();
        let ofd = &self.opens[rank].ofds[first as usize];
        ofd.open(ino.0, u32::from(write));
        ofd
    }

    /// Advances the time, on all servers.
    pub fn pass(&mut self, ns: i64) {
        self.now_ns.set(self.now_ns.get() + ns);
        for server in self.servers.borrow().iter() {
            server.tick(self.now_ns.get());
        }
        self.settle();
    }

    /// Advances the time, and starts the sessions that are needed.
    pub fn go_on(&mut self) {
        for _ in 0..4 {
            self.pass(1_000_000_000);
            for server in self.servers.borrow().iter() {
                server.look_at_sessions();
            }
            self.settle();
        }
    }

    /// Runs all tasks that can run.
    pub fn settle(&mut self) {
        self.pool.run_until_stalled();
    }
}
