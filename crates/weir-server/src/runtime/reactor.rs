//! The logic on the service thread, with the fabric to the other servers, if there are any. Requests
//! that wait for them are tasks of one pool, which is polled when something has arrived.

use std::cell::RefCell;
use std::collections::HashMap;
use std::net::TcpListener;
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use futures_channel::oneshot;
use futures_executor::{LocalPool, LocalSpawner};
use futures_util::future::LocalBoxFuture;
use futures_util::task::LocalSpawnExt;
use rustix::io::read;
use weir_core::journal;
use weir_core::names::NewTree;
use weir_core::proto::peer::LogRange;
use weir_core::proto::{Caller, FsError, ServerStatus};
use weir_core::types::{ClientId, Rank};
use weir_fabric::bulk::{BulkReader, Landing, LogSource, Piece};
use weir_fabric::ofi::BoundEndpoint;
use weir_fabric::{CallId, Event, Fabric, Libfabric, Membership, Message, PolledTcp, Timing};
use weir_store::slab::SlabId;
use weir_store::slabmap::SlabMap;

use super::clock::now_ns;
use super::kernel::Kernel;
use super::mailbox::{Rouser, Serial};
use super::missed::Missed;
use super::regions::Instance;
use super::shelf::OwnSlabs;
use super::ServerError;
use crate::cluster::{Answer, Cluster, LogBytes, Lost, Net, NoOthers};
use crate::node::{Node, SnapshotPosition, Visit};
use crate::options::Options;

/// The interval of publishes, ns.
const INTERVAL_NS: i64 = 1_000_000_000;
/// The interval of looks for room in the pool while a task waits for it, ns: clients give back
/// places without a message.
const ROOM_NS: i64 = 500_000;
/// The most slabs of a directory, as far as others can ask for them.
const MAX_SLABS: u32 = 16 << 10;

/// The settings of a server that is one of several.
#[derive(Debug)]
pub struct Several {
    /// The socket on which it listens for the others.
    pub listener: TcpListener,
    /// The members of the instance.
    pub membership: Membership,
    /// The host names of all nodes, by rank.
    pub hosts: Vec<String>,
    /// Those that are lost for good.
    pub given_up: Vec<Rank>,
    /// The time limits.
    pub timing: Timing,
    /// Its libfabric endpoint and the addresses of all by rank, if the servers talk over libfabric.
    pub endpoint: Option<(BoundEndpoint, Vec<Vec<u8>>)>,
}

/// The connection to the other servers.
struct Carrier {
    fabric: Rc<dyn Fabric>,
    /// The direct way to bytes of logs, if the fabric has one.
    reads: Option<BulkReader>,
    /// The fabric, if this thread serves its sockets, and the bell that wakes the thread there.
    driven: Option<(Rc<PolledTcp>, Arc<OwnedFd>)>,
}

impl Several {
    /// See [`weir_core::node::region::Hub::deadline_ms`].
    pub(super) fn deadline_ms(&self) -> u32 {
        u32::try_from(self.timing.deadline.as_millis()).unwrap_or(u32::MAX)
    }

    fn join(
        self,
        shelf: Arc<dyn LogSource>,
        rouser: Rouser,
        bell: Option<Arc<OwnedFd>>,
    ) -> std::io::Result<Carrier> {
        let (me, timing) = (self.membership, self.timing);
        if let Some((bound, names)) = self.endpoint {
            let rouse = move || rouser.rouse();
            let fabric = Libfabric::start(bound, me, names, timing, rouse)?;
            return Ok(Carrier {
                fabric: Rc::new(fabric),
                reads: None,
                driven: None,
            });
        }
        let fabric = Rc::new(PolledTcp::start(self.listener, me, timing, shelf)?);
        if let Some(bell) = &bell {
            fabric.watch(bell.as_raw_fd())?;
        }
        Ok(Carrier {
            reads: Some(fabric.reads().clone()),
            driven: bell.map(|bell| (Rc::clone(&fabric), bell)),
            fabric,
        })
    }
}

impl Carrier {
    /// Looks for new messages.
    fn look(&self) {
        if let Some((driven, _)) = &self.driven {
            driven.look();
        }
    }

    fn next_event(&self) -> Option<Event> {
        match &self.driven {
            Some((driven, _)) => driven.next_event(),
            None => self.fabric.poll(),
        }
    }
}

/// The server that each call asked, and the task that waits for the answer.
type Waiting = Rc<RefCell<HashMap<CallId, (Rank, oneshot::Sender<Result<Answer, Lost>>)>>>;
type Outbox = Rc<RefCell<Vec<(Serial, Vec<u8>)>>>;

/// The other servers, for the logic.
struct Others {
    fabric: Rc<dyn Fabric>,
    reads: Option<BulkReader>,
    waiting: Waiting,
    missed: Arc<Missed>,
    deadline: Duration,
}

impl Net for Others {
    fn deadline(&self) -> Duration {
        self.deadline
    }

    fn host(&self, rank: Rank) -> String {
        self.missed.host(rank).to_owned()
    }

    fn read(
        &self,
        to: Rank,
        ranges: &[LogRange],
        landing: Box<dyn Landing>,
    ) -> Option<Box<dyn Landing>> {
        let piece = |range: &LogRange| {
            let len = u32::try_from(range.len).ok()?;
            let (slab, pos) = (range.slab, range.pos);
            Some(Piece { slab, len, pos })
        };
        let pieces = ranges.iter().map(piece).collect::<Option<Vec<_>>>();
        let (Some(reads), Some(pieces)) = (&self.reads, pieces) else {
            return Some(landing);
        };
        reads.read(to, &pieces, self.missed.watch(to, landing));
        None
    }

    fn call(&self, to: Rank, request: Vec<u8>) -> LocalBoxFuture<'static, Result<Answer, Lost>> {
        self.answer(to, self.fabric.call(to, message(request)))
    }

    fn call_without_deadline(
        &self,
        to: Rank,
        request: Vec<u8>,
    ) -> LocalBoxFuture<'static, Result<Answer, Lost>> {
        self.answer(to, self.fabric.call_without_deadline(to, message(request)))
    }

    fn refused(&self) -> Vec<(String, u64)> {
        let refused = self.fabric.counters().named();
        let any = refused.into_iter().filter(|(_, count)| *count > 0);
        any.map(|(name, count)| (format!("network: {name}"), count))
            .collect()
    }
}

impl Others {
    fn answer(&self, to: Rank, id: CallId) -> LocalBoxFuture<'static, Result<Answer, Lost>> {
        let (sender, answer) = oneshot::channel();
        self.waiting.borrow_mut().insert(id, (to, sender));
        Box::pin(async move { answer.await.unwrap_or(Err(Lost(to))) })
    }
}

fn message(body: Vec<u8>) -> Message {
    Message {
        body,
        bulk: Vec::new(),
    }
}

/// The server's own slabs, mapped.
struct OwnLog(Arc<SlabMap>);

impl LogBytes for OwnLog {
    fn read(&self, slab: u32, pos: u64, len: u64, out: &mut Vec<u8>) -> Result<(), FsError> {
        let id = SlabId::from_raw(slab).ok_or(FsError::Invalid)?;
        let begin = out.len();
        let len = usize::try_from(len).map_err(|_| FsError::TooBig)?;
        out.resize(begin + len, 0);
        self.0.read_at(id, pos, &mut out[begin..]).map_err(|error| {
            tracing::warn!(slab, pos, len, ?error, "bytes of the log cannot be read");
            out.truncate(begin);
            FsError::Io
        })
    }
}

/// The running logic of a server.
pub struct Reactor {
    cluster: Cluster<Kernel>,
    pool: LocalPool,
    spawner: LocalSpawner,
    /// `None`: there are no other servers.
    carrier: Option<Carrier>,
    waiting: Waiting,
    missed: Arc<Missed>,
    outbox: Outbox,
    /// True if a client made a request that may need the other servers.
    asked: bool,
    caught_up_ns: i64,
}

/// The parts from which the logic of a running server is made.
pub struct ServerParts<'a> {
    /// Its own tables.
    pub node: Rc<RefCell<Node<'static, Kernel>>>,
    /// Its rank.
    pub rank: Rank,
    /// The number of servers.
    pub servers: u16,
    /// Wakes the service thread.
    pub rouser: Rouser,
    /// The bell that the thread sleeps over, if it serves the sockets of other servers.
    pub bell: Option<Arc<OwnedFd>>,
    /// Its directories.
    pub instance: &'a Instance,
    /// The number of elevated trees.
    pub trees: usize,
}

impl Reactor {
    /// Makes the logic, and connects it to the other servers.
    pub fn new(others: Option<Several>, parts: ServerParts<'_>) -> Result<Reactor, ServerError> {
        let ServerParts { node, instance, .. } = parts;
        let storage: Vec<(&Path, u32)> = instance
            .storage_dirs()
            .iter()
            .map(|dir| (dir.as_path(), MAX_SLABS))
            .collect();
        let slabs = Arc::new(SlabMap::new(instance.shm_dir(), MAX_SLABS, &storage));
        let log = OwnLog(Arc::clone(&slabs));
        let hosts = others.as_ref().map_or_else(Vec::new, |o| o.hosts.clone());
        let missed = Arc::new(Missed::new(hosts));
        let waiting = Waiting::default();
        let deadline = others.as_ref().map(|others| others.timing.deadline);
        let given_up = others
            .as_ref()
            .map_or_else(Vec::new, |o| o.given_up.clone());
        let join = |others: Several| {
            let shelf = Arc::new(OwnSlabs(slabs));
            others.join(shelf, parts.rouser, parts.bell)
        };
        let carrier = others.map(join).transpose();
        let carrier = carrier.map_err(ServerError::Thread)?;
        let net: Rc<dyn Net> = match (&carrier, deadline) {
            (Some(carrier), Some(deadline)) => Rc::new(Others {
                fabric: Rc::clone(&carrier.fabric),
                reads: carrier.reads.clone(),
                waiting: Rc::clone(&waiting),
                missed: Arc::clone(&missed),
                deadline,
            }),
            _ => Rc::new(NoOthers),
        };
        let pool = LocalPool::new();
        let spawner = pool.spawner();
        let spawn = {
            let spawner = spawner.clone();
            move |task| {
                // This fails only when the pool is gone, and with it the server.
                let _ = spawner.spawn_local(task);
            }
        };
        let (rank, servers) = (parts.rank, parts.servers);
        let cluster = Cluster::new(rank, servers, node, net, Rc::new(log), spawn);
        cluster.give_up(given_up.into_iter(), parts.trees);
        Ok(Reactor {
            cluster,
            pool,
            spawner,
            carrier,
            waiting,
            missed,
            outbox: Outbox::default(),
            asked: false,
            caught_up_ns: 0,
        })
    }

    /// Takes up the shared state of a killed server, and tells the others that it is back.
    pub fn take_up(&self, before: journal::Cluster) {
        self.cluster.take_up(before);
        self.spawn(self.cluster.announce());
    }

    /// Makes the trees of elevated directories, of a file system that is new.
    pub fn make_trees(&self, options: &Options) -> Result<(), ServerError> {
        let trees = options.elevated.iter().map(|dir| dir.tree.clone());
        let trees: Vec<NewTree> = trees.collect();
        self.cluster
            .make_trees(&trees, options.sharing.policy)
            .map_err(|e| ServerError::Setting(format!("elevated directories: {e}")))
    }

    /// Shows all state that is not the node's own.
    pub fn for_each_item(&self, visit: Visit<'_>) {
        self.cluster.for_each_item(visit);
    }

    /// Shows some of that state; see [`crate::node::ShowShared`].
    pub fn show_shared(
        &self,
        at: Option<SnapshotPosition>,
        visit: Visit<'_>,
    ) -> Option<SnapshotPosition> {
        let Some(at) = at else {
            self.cluster.show_publishing(visit);
            return None;
        };
        self.cluster.show_some(at, visit)
    }

    /// Takes messages from other servers and runs the tasks that can run; false if there were none.
    /// A thread that is about to sleep need not `look` for new messages: they end the sleep.
    pub fn step(&mut self, look: bool) -> bool {
        let Some(carrier) = &self.carrier else {
            return false;
        };
        if look {
            carrier.look();
        }
        let mut any = std::mem::take(&mut self.asked);
        let mut ticked = false;
        while let Some(event) = self.carrier.as_ref().and_then(Carrier::next_event) {
            any = true;
            if !std::mem::replace(&mut ticked, true) {
                self.cluster.tick(now_ns());
            }
            self.handle_event(event);
        }
        if any {
            self.run();
        }
        any
    }

    fn handle_event(&mut self, event: Event) {
        match event {
            Event::Request(token, message) => {
                let Some(carrier) = &self.carrier else {
                    return;
                };
                let (cluster, fabric) = (self.cluster.clone(), Rc::clone(&carrier.fabric));
                self.spawn(async move {
                    let answer = cluster.handle(token.from, &message.body).await;
                    let message = Message {
                        body: answer.body,
                        bulk: answer.bulk,
                    };
                    fabric.reply(token, message);
                });
            }
            Event::Done(id, result) => {
                let Some((to, sender)) = self.waiting.borrow_mut().remove(&id) else {
                    return;
                };
                let answer = result.map(|message| {
                    self.missed.answered(to);
                    Answer {
                        body: message.body,
                        bulk: message.bulk,
                    }
                });
                // The task that asked may have been dropped.
                let _ = sender.send(answer.map_err(|why| {
                    self.missed.no_answer(to, &why);
                    Lost(to)
                }));
            }
            Event::PeerLost(rank) => {
                let host = self.missed.host(rank);
                tracing::warn!(
                    rank = rank.0,
                    host,
                    "a server is lost, or was started again: its locks and leases end"
                );
                self.cluster.peer_gone(rank);
            }
        }
    }

    /// Runs the tasks that can run, and sends their messages to other servers.
    fn run(&mut self) {
        self.pool.run_until_stalled();
        if let Some((driven, _)) = self.driven() {
            driven.flush();
        }
    }

    fn driven(&self) -> Option<&(Rc<PolledTcp>, Arc<OwnedFd>)> {
        self.carrier.as_ref()?.driven.as_ref()
    }

    /// Returns true if this thread must sleep in [`Reactor::sleep`]. The thread looks for earlier
    /// rings of the bell after this call; later ones end the sleep.
    pub fn has_bell(&self) -> bool {
        let Some((driven, bell)) = self.driven() else {
            return false;
        };
        if driven.take_bell() {
            let mut bytes = [0; 64];
            while read(bell, &mut bytes).is_ok_and(|read| read == bytes.len()) {}
        }
        true
    }

    /// Sleeps until a message comes from other servers, the bell is rung, or `due_ns` ns have
    /// passed.
    pub fn sleep(&self, due_ns: Option<i64>) {
        if let Some((driven, _)) = self.driven() {
            let due = due_ns.and_then(|ns| u64::try_from(ns).ok());
            driven.wait(due.map(Duration::from_nanos));
        }
    }

    fn spawn(&self, task: impl std::future::Future<Output = ()> + 'static) {
        // The pool lives as long as this reactor.
        let _ = self.spawner.spawn_local(task);
    }

    /// Serves a client's notes and requests; true if there was anything.
    pub fn poll_client(&mut self, id: ClientId, now_ns: i64) -> bool {
        let any = self.cluster.poll_client(id, now_ns);
        // Without other servers the work is already complete.
        self.asked |= any && self.carrier.is_some();
        any
    }

    /// Takes notes that rang no bell.
    pub fn idle(&self, now_ns: i64) {
        self.cluster.idle(now_ns);
    }

    /// Ends a client whose process is gone.
    pub fn client_gone(&self, id: ClientId, now_ns: i64) {
        self.cluster.client_gone(id, now_ns);
    }

    /// Serves a tool's request. The answer appears in [`Reactor::answers`] later.
    pub fn serve_tool(&mut self, serial: Serial, request: Vec<u8>, now_ns: i64) {
        self.cluster.tick(now_ns);
        let (cluster, outbox) = (self.cluster.clone(), Rc::clone(&self.outbox));
        self.spawn(async move {
            let reply = cluster.serve(Caller::Control, &request).await;
            outbox.borrow_mut().push((serial, reply));
        });
        self.run();
    }

    /// The state of this server.
    pub fn status(&self) -> ServerStatus {
        self.cluster.status_here()
    }

    /// Answers for tools.
    pub fn answers(&self) -> Vec<(Serial, Vec<u8>)> {
        self.outbox.take()
    }

    /// Publishes when it is time. Returns the time until the next call, ns, if there is anything to
    /// publish or to let go of.
    pub fn catch_up(&mut self, now_ns: i64) -> Option<i64> {
        if now_ns - self.caught_up_ns >= INTERVAL_NS {
            self.caught_up_ns = now_ns;
            self.cluster.tick(now_ns);
            self.cluster.catch_up();
            self.run();
        }
        self.cluster.tick(now_ns);
        let sessions = self.cluster.look_at_sessions();
        self.pool.run_until_stalled();
        if self.cluster.look_for_room() {
            self.run();
        }
        let due = (self.caught_up_ns + INTERVAL_NS - now_ns).max(1);
        let room = self.cluster.awaits_room().then_some(ROOM_NS);
        let work = self.cluster.has_work_to_come().then_some(due);
        let sessions = sessions.map(|at_ns| (at_ns - now_ns).max(1));
        [room, work, sessions].into_iter().flatten().min()
    }
}
