//! A node with one incarnation of its server: the real server on the simulated fabric. [`Site`]
//! polls where the runtime of `weir-server` has threads and sockets. To take over from a killed
//! server, [`Site::restart`] does the steps of that runtime in the same order.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use futures_channel::oneshot;
use futures_util::future::LocalBoxFuture;
use weir_core::journal;
use weir_core::names::{NamesView, NewTree, Owner, Policy, Shard, Visibility};
use weir_core::proto::{Caller, ClientKind};
use weir_core::types::{ClientId, Rank};
use weir_fabric::sim::rng::SeededRng;
use weir_fabric::sim::{Network, SimulatedEndpoint};
use weir_fabric::{CallId, Event, Fabric, Message};
use weir_fakes::storage::Contradictions;
use weir_fakes::{FakeClientMemory, NodeRegions};
use weir_server::cluster::{Answer, Cluster, Lost, Net};
use weir_server::node::{stop_clients, Identity, Node, OpenRegion, RecoveredCounts, Visit};
use weir_server::rules::Rules;

use crate::executor::{Executor, Group};
use crate::journal::{unless_killed, SimJournal};
use crate::machine::{Machine, SimPlatform, SimStorage, STORAGE};

/// The interval of publishing, and of looking for unused resources.
const TICK: Duration = Duration::from_secs(1);
/// Inodes, entries or runs in one step of the journal's snapshot.
const SNAPSHOT_STEP: usize = 4;
/// The most clients of a node, former ones included.
const CLIENTS: usize = 64;

type Waiting = Rc<RefCell<BTreeMap<CallId, oneshot::Sender<Result<Answer, Lost>>>>>;

/// Calls to the other servers, for the server's logic.
struct PeerCaller {
    end: Rc<SimulatedEndpoint>,
    waiting: Waiting,
}

impl PeerCaller {
    fn answer(&self, to: Rank, id: CallId) -> LocalBoxFuture<'static, Result<Answer, Lost>> {
        let (sender, answer) = oneshot::channel();
        self.waiting.borrow_mut().insert(id, sender);
        Box::pin(async move { answer.await.unwrap_or(Err(Lost(to))) })
    }
}

impl Net for PeerCaller {
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

/// The parts of a server that end when it is killed.
#[derive(Clone)]
struct RunningServer {
    cluster: Cluster<SimPlatform>,
    node: Rc<RefCell<Node<'static, SimPlatform>>>,
    end: Rc<SimulatedEndpoint>,
    waiting: Waiting,
}

/// The tree of an elevated directory.
fn elevated_tree() -> NewTree {
    NewTree {
        target: b"/pfs".to_vec(),
        mode: 0o755,
        owner: Owner { uid: 0, gid: 0 },
        times_ns: [0; 2],
    }
}

/// The parameters of a server.
#[derive(Clone, Copy, Debug)]
pub struct ServerParams {
    /// Its rank.
    pub rank: Rank,
    /// The number of servers.
    pub servers: u16,
    /// Units of storage.
    pub units: usize,
    /// Storage is lent warm.
    pub warm: bool,
    /// The server starts a new journal after this many bytes.
    pub journal_bytes: usize,
    /// The visibility of files.
    pub visibility: Visibility,
    /// There is an elevated tree.
    pub elevates: bool,
    /// The seed of its optional actions.
    pub seed: u64,
}

/// The simulation around a server.
#[derive(Clone, Copy)]
pub struct SiteEnvironment<'w> {
    /// The executor of its tasks.
    pub executor: &'w Executor,
    /// The network to the other servers.
    pub network: &'w Network,
}

/// A node with one incarnation of its server.
pub struct Site {
    /// The server.
    pub params: ServerParams,
    /// The region shared with clients.
    pub open: OpenRegion<'static>,
    /// The tables, as clients see them.
    pub names: NamesView<'static>,
    /// The storage.
    pub storage: SimStorage,
    /// The tasks of this incarnation.
    pub group: Group,
    /// The node's state that outlives the server.
    pub machine: Rc<Machine>,
    regions: NodeRegions,
    executor: Executor,
    life: RefCell<Option<RunningServer>>,
    number: u64,
    rng: SeededRng,
    lost: Cell<u64>,
}

impl std::fmt::Debug for Site {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "site {}", self.params.rank.0)
    }
}

/// The state with which an incarnation starts.
struct StartState {
    node: Node<'static, SimPlatform>,
    regions: NodeRegions,
    storage: SimStorage,
    machine: Rc<Machine>,
    /// The incarnation, from 1 on.
    number: u64,
    /// The former incarnation's cluster state.
    before: Option<journal::Cluster>,
}

impl Site {
    /// Starts a server on a fresh node.
    pub fn start(params: ServerParams, world: SiteEnvironment<'_>) -> Rc<Site> {
        let machine = Rc::new(Machine::new());
        let regions = machine.new_regions();
        let owner = Owner { uid: 0, gid: 0 };
        let names = regions.format_names(params.rank);
        let shard = Shard::new(names, 0o755, owner, 1).expect("a root");
        let storage = SimStorage::new(Rc::clone(&machine.slabs), STORAGE, params.units);
        storage.set_warm(params.warm);
        storage.set_contradictions(Contradictions::CountFreedTwice);
        let (space, platform) = (storage.clone(), machine.platform.clone());
        let itself = identity(&params, 1);
        let mut node = Node::new(itself, regions.open(), shard, space, platform, CLIENTS);
        let policy = Policy {
            visibility: params.visibility,
            ..Policy::default()
        };
        let shared = node.share(policy, Rules::default(), true);
        shared.expect("the root is there");
        let beginning = StartState {
            node,
            regions,
            storage,
            machine,
            number: 1,
            before: None,
        };
        Site::serve(params, beginning, world)
    }

    /// Restarts a killed server on its node, from the state found there. Before that, the server is
    /// killed `kills_at_restart` times just before it starts a new journal.
    pub fn restart(
        before: &Site,
        kills_at_restart: u32,
        world: SiteEnvironment<'_>,
    ) -> (Rc<Site>, RecoveredCounts) {
        assert!(!before.lives(), "one life at a time");
        for _ in 0..kills_at_restart {
            drop(before.recover());
        }
        let (beginning, found) = before.recover();
        (Site::serve(before.params, beginning, world), found)
    }

    /// Recovers the node's state from what a killed server left.
    fn recover(&self) -> (StartState, RecoveredCounts) {
        let before = self;
        let (params, machine) = (before.params, Rc::clone(&before.machine));
        let mut state = SimJournal::read(machine.dir()).state;
        stop_clients(&before.open, &state);
        before.regions.names().condemn();
        let regions = machine.new_regions();
        let shard = Shard::restore(regions.format_names(params.rank), &state).expect("names");
        let storage = SimStorage::after(&before.storage);
        let (space, platform) = (storage.clone(), machine.platform.clone());
        let now_ns = before.now_ns();
        let itself = identity(&params, now_ns);
        let mut node = Node::new(itself, before.open, shard, space, platform, CLIENTS);
        let found = node.take_up(&mut state, |id| machine.region_of(id), now_ns);
        let found = found.expect("what the journal says can be taken up");
        node.reopen(regions.open()).expect("its storage is there");
        let beginning = StartState {
            node,
            regions,
            storage,
            machine,
            number: before.number + 1,
            before: Some(std::mem::take(&mut state.cluster)),
        };
        (beginning, found)
    }

    /// Starts to serve with this state.
    fn serve(params: ServerParams, begin: StartState, world: SiteEnvironment<'_>) -> Rc<Site> {
        let node = Rc::new(RefCell::new(begin.node));
        let end = Rc::new(world.network.start(params.rank, begin.number));
        let waiting = Waiting::default();
        let others = PeerCaller {
            end: Rc::clone(&end),
            waiting: Rc::clone(&waiting),
        };
        let group = world.executor.group();
        let spawner = world.executor.clone();
        let cluster = Cluster::new(
            params.rank,
            params.servers,
            Rc::clone(&node),
            Rc::new(others),
            Rc::new(begin.storage.clone()),
            move |task| spawner.spawn(group, task),
        );
        // A small fan-out, so that few servers are a tree, too.
        cluster.set_fan_out(1 + u32::from(params.servers % 2));
        if let Some(before) = begin.before {
            cluster.take_up(before);
            world.executor.spawn(group, cluster.announce());
        } else if params.rank == Rank(0) && params.elevates {
            let made = cluster.make_trees(&[elevated_tree()], Policy::default());
            made.expect("nothing is there");
        }
        let head = journal::Head {
            rank: params.rank,
            servers: params.servers,
            instance: [0; 16],
            made_ns: 0,
        };
        let (dir, long) = (begin.machine.dir(), params.journal_bytes);
        let kill_switch = begin.machine.kill_switch.clone();
        let journal = SimJournal::begin(dir, head, long, kill_switch, &|visit| {
            node.borrow().for_each_item(visit);
            cluster.for_each_item(visit);
        });
        node.borrow_mut().keep_journal(Box::new(journal));
        node.borrow_mut().set_snapshot_step(SNAPSHOT_STEP);
        cluster.set_snapshot_step(SNAPSHOT_STEP);
        let site = Rc::new(Site {
            params,
            open: begin.regions.open(),
            names: NamesView::new(begin.regions.names()),
            storage: begin.storage,
            group,
            machine: begin.machine,
            regions: begin.regions,
            executor: world.executor.clone(),
            life: RefCell::new(Some(RunningServer {
                cluster,
                node,
                end,
                waiting,
            })),
            number: begin.number,
            rng: SeededRng::new(params.seed ^ begin.number),
            lost: Cell::new(0),
        });
        site.run_infrequent_tasks();
        site.run_frequent_tasks();
        site
    }

    fn life(&self) -> Option<RunningServer> {
        self.life.borrow().clone()
    }

    /// Returns true if the server runs.
    pub fn lives(&self) -> bool {
        self.life.borrow().is_some()
    }

    /// Kills the server if it was killed at a commit; returns true if so.
    pub fn die(&self) -> bool {
        let dies = self.lives() && self.machine.kill_switch.has_killed();
        if dies {
            self.kill();
        }
        dies
    }

    /// Kills the server, wherever its tasks are.
    pub fn kill(&self) {
        self.machine.kill_switch.disarm();
        self.executor.kill(self.group);
        let life = self.life.borrow_mut().take();
        drop(life);
    }

    /// Runs the infrequent tasks of the service thread.
    fn run_infrequent_tasks(self: &Rc<Site>) {
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

    /// Runs the frequent tasks of the service thread.
    fn run_frequent_tasks(self: &Rc<Site>) {
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

    /// The time that servers see.
    pub fn now_ns(&self) -> i64 {
        1_000_000_000 + i64::try_from(self.executor.now().as_nanos()).expect("not for so long")
    }

    /// Handles events from other servers; returns false if there were none.
    pub fn handle_events(self: &Rc<Site>) -> bool {
        let Some(life) = self.life() else {
            return false;
        };
        let handled = unless_killed(|| self.handle_waiting_events(&life));
        drop(life);
        handled.unwrap_or_else(|| self.die())
    }

    fn handle_waiting_events(self: &Rc<Site>, life: &RunningServer) -> bool {
        let mut any = false;
        while let Some(event) = life.end.poll() {
            any = true;
            life.cluster.tick(self.now_ns());
            self.handle_event(life, event);
        }
        self.renew_journal(life);
        any
    }

    /// Runs a step of starting a new journal from time to time, so that much may happen between two
    /// steps.
    fn renew_journal(&self, life: &RunningServer) {
        if !self.rng.chance(100) {
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

    fn handle_event(self: &Rc<Site>, life: &RunningServer, event: Event) {
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
                // The caller may have been killed.
                let _ = sender.send(answer.map_err(|_| {
                    self.lost.set(self.lost.get() + 1);
                    Lost(Rank(u16::MAX))
                }));
            }
            Event::PeerLost(rank) => life.cluster.peer_gone(rank),
        }
    }

    /// Lets the server carry out a client's request; returns `None` if the server died.
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
            // The process may have ended meanwhile.
            let _ = sender.send(reply);
        });
        drop(self);
        reply.await.ok()
    }

    /// Advances the time, so that awaited events can happen.
    pub async fn pause(&self, time: Duration) {
        self.executor.sleep(time).await;
    }

    /// Adds a client process; returns the client with its process number.
    pub fn admit(&self) -> Option<(ClientId, u32, Arc<FakeClientMemory>)> {
        let life = self.life()?;
        let id = life.node.borrow().clients().vacant(ClientKind::Program)?;
        let (pid, memory) = self.machine.start_process(id);
        life.node
            .borrow_mut()
            .admit(id, pid, ClientKind::Program, Arc::clone(&memory));
        Some((id, pid, memory))
    }

    /// Removes a client whose process has ended.
    pub fn remove_client(&self, id: ClientId, pid: u32) {
        self.machine.platform.end_process(pid);
        if let Some(life) = self.life() {
            let now_ns = self.now_ns();
            unless_killed(|| life.node.borrow_mut().gone(id, now_ns));
            drop(life);
            self.die();
        }
    }

    /// The number of lost calls to other servers.
    pub fn lost(&self) -> u64 {
        self.lost.get()
    }
}

fn identity(params: &ServerParams, started_ns: i64) -> Identity {
    Identity {
        rank: params.rank,
        servers: params.servers,
        pid: 1,
        started_ns,
    }
}
