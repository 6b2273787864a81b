//! A node and a life of its server, which is the real one with the simulated fabric around it.
//! What `weir-server`'s runtime does with threads and sockets, a pump does here; what it does to
//! come after a server that was killed, [`Site::after`] does, in the same order.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use futures_channel::oneshot;
use futures_util::future::LocalBoxFuture;
use weir_core::journal;
use weir_core::names::{NamesView, Owner, Policy, Shard, Visibility};
use weir_core::proto::{Caller, ClientKind};
use weir_core::types::{ClientId, Rank};
use weir_fabric::sim::rng::SeededRng;
use weir_fabric::sim::{Endpoint, Network};
use weir_fabric::{CallId, Event, Fabric, Message};
use weir_server::cluster::{Answer, Cluster, Lost, Net};
use weir_server::node::{stop_clients, Found, Identity, Node, OpenRegion, Visit};
use weir_server::rules::Rules;
use weir_store::slabmap::Window;

use crate::executor::{Executor, Group};
use crate::journal::{unless_killed, Written};
use crate::machine::{Kernel, Machine, Memory, NamesRegion};
use crate::storage::{Log, Storage};

/// How often a server publishes what was not, and looks for what nobody uses any more.
const TICK: Duration = Duration::from_secs(1);
/// Inodes, entries or runs of a step of the journal's snapshot.
const SNAPSHOT_STEP: usize = 4;
/// Clients of a node, those of before included.
const CLIENTS: usize = 64;

type Waiting = Rc<RefCell<BTreeMap<CallId, oneshot::Sender<Result<Answer, Lost>>>>>;

/// The other servers, for the logic.
struct Others {
    end: Rc<Endpoint>,
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

    fn call_without_deadline(
        &self,
        to: Rank,
        request: Vec<u8>,
    ) -> LocalBoxFuture<'static, Result<Answer, Lost>> {
        self.answer(to, self.end.call_without_deadline(to, message(request)))
    }
}

fn message(body: Vec<u8>) -> Message {
    Message {
        body,
        bulk: Vec::new(),
    }
}

/// What ends when the server is killed.
#[derive(Clone)]
struct Life {
    cluster: Cluster<Kernel>,
    node: Rc<RefCell<Node<'static, Kernel>>>,
    end: Rc<Endpoint>,
    waiting: Waiting,
}

/// What a server is.
#[derive(Clone, Copy, Debug)]
pub struct Which {
    /// Its rank.
    pub rank: Rank,
    /// How many there are.
    pub servers: u16,
    /// Units of storage.
    pub units: usize,
    /// Whether it is lent warm.
    pub warm: bool,
    /// After so many bytes its journal is begun anew.
    pub journal_bytes: usize,
    /// When other nodes see what is written to a file.
    pub visibility: Visibility,
    /// What it draws from when it does what it may.
    pub seed: u64,
}

/// What a server lives in.
#[derive(Clone, Copy)]
pub struct World<'w> {
    /// Where its tasks run.
    pub executor: &'w Executor,
    /// How it reaches the others.
    pub network: &'w Network,
}

/// A node in one life of its server.
pub struct Site {
    /// The server.
    pub which: Which,
    /// What is shared with clients.
    pub open: OpenRegion<'static>,
    /// The tables, as clients see them.
    pub names: NamesView<'static>,
    /// The bytes.
    pub storage: Storage,
    /// Tasks of this life of the server.
    pub group: Group,
    /// What outlives it.
    pub machine: Rc<Machine>,
    tables: NamesRegion,
    executor: Executor,
    life: RefCell<Option<Life>>,
    number: u64,
    dice: SeededRng,
    lost: Cell<u64>,
}

impl std::fmt::Debug for Site {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "site {}", self.which.rank.0)
    }
}

/// What a life begins with.
struct Beginning {
    node: Node<'static, Kernel>,
    open: OpenRegion<'static>,
    tables: NamesRegion,
    storage: Storage,
    machine: Rc<Machine>,
    /// Of which life of the server, from 1 on.
    number: u64,
    /// What the one before knew as one of several.
    before: Option<journal::Cluster>,
}

impl Site {
    /// Starts a server on a fresh node.
    pub fn start(which: Which, world: World<'_>) -> Rc<Site> {
        let machine = Rc::new(Machine::new());
        let (open, tables) = (machine.new_open(), machine.new_names());
        let owner = Owner { uid: 0, gid: 0 };
        let shard = Shard::new(tables.format(which.rank), 0o755, owner, 1).expect("a root");
        let storage = Storage::new(Rc::clone(&machine.slabs), which.units, which.warm);
        let (space, kernel) = (storage.clone(), machine.kernel());
        let mut node = Node::new(identity(&which, 1), open, shard, space, kernel, CLIENTS);
        let policy = Policy {
            visibility: which.visibility,
            ..Policy::default()
        };
        let shared = node.share(policy, Rules::default(), true);
        shared.expect("the root is there");
        let beginning = Beginning {
            node,
            open,
            tables,
            storage,
            machine,
            number: 1,
            before: None,
        };
        Site::live(which, beginning, world)
    }

    /// Starts a server again that was killed, on its node; what it found there. Before, it is
    /// killed so many times just before it begins its journal anew.
    pub fn after(before: &Site, stumbles: u32, world: World<'_>) -> (Rc<Site>, Found) {
        assert!(!before.lives(), "one life at a time");
        for _ in 0..stumbles {
            drop(before.come_after());
        }
        let (beginning, found) = before.come_after();
        (Site::live(before.which, beginning, world), found)
    }

    fn come_after(&self) -> (Beginning, Found) {
        let before = self;
        let (which, machine) = (before.which, Rc::clone(&before.machine));
        let mut state = Written::read(&machine).state;
        stop_clients(&before.open, &state);
        before.tables.open().condemn();
        let (open, tables) = (machine.new_open(), machine.new_names());
        let shard = Shard::restore(tables.format(which.rank), &state).expect("names");
        let storage = Storage::after(&before.storage);
        let (space, kernel) = (storage.clone(), machine.kernel());
        let now_ns = before.now_ns();
        let itself = identity(&which, now_ns);
        let mut node = Node::new(itself, before.open, shard, space, kernel, CLIENTS);
        let found = node.take_up(&mut state, |id| machine.region_of(id), now_ns);
        let found = found.expect("what the journal says can be taken up");
        node.reopen(open).expect("its storage is there");
        let beginning = Beginning {
            node,
            open,
            tables,
            storage,
            machine,
            number: before.number + 1,
            before: Some(std::mem::take(&mut state.cluster)),
        };
        (beginning, found)
    }

    fn live(which: Which, begin: Beginning, world: World<'_>) -> Rc<Site> {
        let node = Rc::new(RefCell::new(begin.node));
        let end = Rc::new(world.network.start(which.rank, begin.number));
        let waiting = Waiting::default();
        let others = Others {
            end: Rc::clone(&end),
            waiting: Rc::clone(&waiting),
        };
        let group = world.executor.group();
        let spawner = world.executor.clone();
        let cluster = Cluster::new(
            (which.rank, which.servers),
            Rc::clone(&node),
            Rc::new(others),
            Rc::new(Log(Rc::clone(&begin.machine.slabs))),
            move |task| spawner.spawn(group, task),
        );
        // So that few servers are a tree, too.
        cluster.set_fan_out(1 + u32::from(which.servers % 2));
        if let Some(before) = begin.before {
            cluster.take_up(before);
            world.executor.spawn(group, cluster.announce());
        }
        let itself = (which.rank, which.servers);
        let journal = Written::begin(&begin.machine, itself, which.journal_bytes, &|visit| {
            node.borrow().for_each_item(visit);
            cluster.for_each_item(visit);
        });
        node.borrow_mut().keep_journal(Box::new(journal));
        node.borrow_mut().set_snapshot_step(SNAPSHOT_STEP);
        cluster.set_snapshot_step(SNAPSHOT_STEP);
        let site = Rc::new(Site {
            which,
            open: begin.open,
            names: NamesView::new(begin.tables.open()),
            storage: begin.storage,
            group,
            machine: begin.machine,
            tables: begin.tables,
            executor: world.executor.clone(),
            life: RefCell::new(Some(Life {
                cluster,
                node,
                end,
                waiting,
            })),
            number: begin.number,
            dice: SeededRng::new(which.seed ^ begin.number),
            lost: Cell::new(0),
        });
        site.tick_for_ever();
        site.look_for_ever();
        site
    }

    fn life(&self) -> Option<Life> {
        self.life.borrow().clone()
    }

    /// Whether the server runs.
    pub fn lives(&self) -> bool {
        self.life.borrow().is_some()
    }

    /// Kills the server if it was killed over a commit; whether it was.
    pub fn die(&self) -> bool {
        let dies = self.lives() && self.machine.fuse.is_burnt();
        if dies {
            self.kill();
        }
        dies
    }

    /// The server is killed, wherever its tasks are.
    pub fn kill(&self) {
        self.machine.fuse.quench();
        self.executor.kill(self.group);
        let life = self.life.borrow_mut().take();
        drop(life);
    }

    /// What the service thread does now and then.
    fn tick_for_ever(self: &Rc<Site>) {
        let (site, executor) = (Rc::downgrade(self), self.executor.clone());
        self.executor.spawn(self.group, async move {
            loop {
                executor.sleep(TICK).await;
                let Some(site) = site.upgrade() else { return };
                let (now_ns, Some(life)) = (site.now_ns(), site.life()) else {
                    return;
                };
                life.node.borrow_mut().idle(now_ns);
                life.node.borrow_mut().drop_dead_ghosts(now_ns);
                life.cluster.tick(now_ns);
                life.cluster.catch_up();
                life.cluster.look_for_room();
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
                let Some(life) = site.life() else { return };
                life.cluster.tick(site.now_ns());
                life.cluster.look_at_sessions();
            }
        });
    }

    /// The time, as servers are told it.
    pub fn now_ns(&self) -> i64 {
        1_000_000_000 + i64::try_from(self.executor.now().as_nanos()).expect("not for so long")
    }

    /// Takes in what came from others; false if nothing did.
    pub fn pump(self: &Rc<Site>) -> bool {
        let Some(life) = self.life() else {
            return false;
        };
        let pumped = unless_killed(|| self.pump_in(&life));
        drop(life);
        pumped.unwrap_or_else(|| self.die())
    }

    fn pump_in(self: &Rc<Site>, life: &Life) -> bool {
        let mut any = false;
        while let Some(event) = life.end.poll() {
            any = true;
            life.cluster.tick(self.now_ns());
            self.take(life, event);
        }
        self.renew_journal(life);
        any
    }

    /// A step of beginning the journal anew, now and then, so that much may happen between two.
    fn renew_journal(&self, life: &Life) {
        if !self.dice.chance(100) {
            return;
        }
        let cluster = &life.cluster;
        life.node
            .borrow_mut()
            .renew_journal(&|at, visit: Visit<'_>| {
                let Some(at) = at else {
                    cluster.show_publishing(visit);
                    return None;
                };
                cluster.show_some(at, visit)
            });
    }

    fn take(self: &Rc<Site>, life: &Life, event: Event) {
        match event {
            Event::Request(token, message) => {
                let (cluster, end) = (life.cluster.clone(), Rc::downgrade(&life.end));
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
                let Some(sender) = life.waiting.borrow_mut().remove(&id) else {
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
            Event::PeerLost(rank) => life.cluster.peer_gone(rank),
        }
    }

    /// Has the server do what a client asks; `None`: the server died over it.
    pub async fn ask(self: Rc<Site>, id: ClientId, request: Vec<u8>) -> Option<Vec<u8>> {
        let (sender, reply) = oneshot::channel();
        if !self.lives() {
            return None;
        }
        let site = Rc::downgrade(&self);
        self.executor.spawn(self.group, async move {
            let Some(site) = site.upgrade() else { return };
            let (now_ns, Some(life)) = (site.now_ns(), site.life()) else {
                return;
            };
            life.cluster.poll_client(id, now_ns);
            life.cluster.tick(now_ns);
            let reply = life.cluster.serve(Caller::Client(id), &request).await;
            // The process may be gone meanwhile.
            let _ = sender.send(reply);
        });
        drop(self);
        reply.await.ok()
    }

    /// The pool in which bytes of other nodes arrive.
    pub fn pool(&self) -> Window {
        self.machine.pool()
    }

    /// Passes some time, in which what a program waits for may come.
    pub async fn pause(&self, time: Duration) {
        self.executor.sleep(time).await;
    }

    /// Takes a client process in; with its number as a process.
    pub fn admit(&self) -> Option<(ClientId, u32, Arc<Memory>)> {
        let life = self.life()?;
        let id = life.node.borrow().vacant_client(ClientKind::Program)?;
        let (pid, memory) = self.machine.begin(id);
        life.node
            .borrow_mut()
            .admit(id, pid, ClientKind::Program, Arc::clone(&memory));
        Some((id, pid, memory))
    }

    /// A client's process has ended.
    pub fn gone(&self, id: ClientId, pid: u32) {
        self.machine.end(pid);
        if let Some(life) = self.life() {
            let now_ns = self.now_ns();
            unless_killed(|| life.node.borrow_mut().gone(id, now_ns));
            drop(life);
            self.die();
        }
    }

    /// Calls to other servers that were lost.
    pub fn lost(&self) -> u64 {
        self.lost.get()
    }
}

fn identity(which: &Which, started_ns: i64) -> Identity {
    Identity {
        rank: which.rank,
        servers: which.servers,
        pid: 1,
        started_ns,
    }
}
