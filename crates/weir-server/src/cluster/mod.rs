//! The logic of a server, with the other servers of its instance, if there are any.
//!
//! [`Node`] holds this server's tables, [`PeerServers`] its sessions with the others, [`Cluster`] the
//! rest of its state. Each room has a subject, and types of its own for its state, with private
//! fields. Its `mod.rs` names its state, its invariants, its interface and the trait of its needs.
//!
//! All runs on one thread. A request that needs nothing but this server's tables is served at once
//! (`Served::Now`); one that may wait for others is a future (`Served::Later`). The runtime passes
//! in the requests of other servers ([`Cluster::handle`]) and of its own clients
//! ([`Cluster::poll_client`], [`Cluster::serve`]), and gives it a [`Net`] to ask others. There is
//! no I/O and no clock here; [`Cluster::tick`] sets the time. See docs/design/0002-many-nodes.md
//! and 0008-one-house.md.
//!
//! Invariants:
//! - A borrow of the node or of a table never lives across an `await`.
//! - Locks of names and directories are taken at their home, one at a time, or two in the order of
//!   their keys.
//! - A handler has done its work when its reply is made: it leaves no work behind on which the
//!   asker relies.
//! - Everything that clients write (cells, rings, notes, requests) is checked against the private
//!   tables here before it changes anything. Invalid input is counted, logged and dropped, and
//!   disturbs nothing else.
//!
//! | room | subject |
//! | --- | --- |
//! | `router`, `handler` | hand each operation of clients and other servers to its room |
//! | `names` | entries, directories, renames, links |
//! | `files` | inodes that are open, their holders and leases, how they are shared |
//! | `extents` | where the bytes of files are |
//! | `reads` | bytes of other nodes |
//! | `locks` | flock and fcntl locks |
//! | `storage` | segments that clients are lent |
//! | `clients` | the processes of this node |
//! | `journal` | changes written to the journal, and taken up again |
//! | `peers` | sessions, deadlines, debts: the ways to ask another server |
//!
//! | file | subject |
//! | --- | --- |
//! | `node_names` | the names and inodes of this server, which most rooms read |
//! | `node` | this server's own tables: making them, their time, their end |
//! | `platform`, `net`, `memory` | the traits that the runtime implements: kernel and storage, the other servers, shared regions |
//! | `status` | the state of servers, for tools |
//! | `sessions` | the beginning and the end of a session, in all rooms; messages to many servers |
//! | `needs` | `Cluster` and `Node` as the rooms need them |
//! | `abilities`, `clock` | the abilities of a server that several rooms need; the time |
//! | `changes` | changes that the rooms note for the journal |
//! | `keyed` | locks that tasks wait for |
//! | `slots`, `snapshot`, `refusal`, `visibility` | small things that several rooms use |

mod abilities;
mod changes;
mod clients;
mod clock;
mod extents;
#[cfg(test)]
mod fake;
mod files;
mod handler;
mod journal;
mod keyed;
mod locks;
mod memory;
mod names;
mod needs;
mod net;
mod node;
mod node_names;
mod peers;
mod platform;
pub mod reads;
mod refusal;
mod router;
mod sessions;
mod slots;
mod snapshot;
mod status;
mod storage;
mod visibility;

use std::cell::RefCell;
use std::rc::Rc;

use futures_util::future::LocalBoxFuture;
use weir_core::names::{NewTree, Owner, Policy};
use weir_core::node::region::set_bits;
use weir_core::proto::peer::{self, PeerOperation};
use weir_core::proto::{self, Caller, FsError, Request, Served};
use weir_core::types::{ClientId, Ino, Rank};

use clients::stats::Stats;
use clients::table::Clients;
use clock::ServerClock;
use files::FileParts;
use locks::table::LockTable;
use peers::calls::{Replied, ServerCalls};
use peers::session::Admitted;
use peers::PeerServers;
use sessions::ServerOfSessions;

pub(crate) use extents::ranges::{few_or_wanted, FEW_RUNS, MAX_RUNS};
pub use journal::commit::{Journal, ShowShared};
pub use journal::recover::{stop_clients, RecoveredCounts};
pub use memory::{ClientMemory, OpenRegion};
pub use net::{Answer, LogBytes, Lost, Net, NoOthers};
pub use peers::session::enclose;
pub use platform::{Accounts, Identity, Platform, RecoverError, Space, Table};
pub use snapshot::{SnapshotPosition, Visit};

/// The tables of this server. All rooms look at inodes in `names`, a type with private fields of its
/// own; the other tables are private to their rooms.
pub struct Node<'m, P: Platform> {
    identity: Identity,
    open: OpenRegion<'m>,
    names: node_names::NodeNames<'m>,
    names_memory: names::NamesMemory,
    platform: P,
    segments: storage::SegmentTables<P::Space>,
    clients: Clients<P::Memory>,
    admitted_users: clients::admission::AdmittedUsers,
    stats: Stats,
    files: files::OpenFileTables,
    extents: extents::ExtentTables,
    locks: LockTable,
    changes: changes::NotedChanges,
    journal: journal::commit::NodeJournal,
    clock: ServerClock,
    stopping: bool,
    buffers: node::RequestBuffers,
}

/// One server of several. It is cheap to clone: each task has a clone.
pub struct Cluster<P: Platform + 'static> {
    inner: Rc<Inner<P>>,
}

impl<P: Platform> Clone for Cluster<P> {
    fn clone(&self) -> Self {
        Cluster {
            inner: Rc::clone(&self.inner),
        }
    }
}

/// The state of a server as one of several. Each room's part is private to the room.
struct Inner<P: Platform + 'static> {
    node: Rc<RefCell<Node<'static, P>>>,
    log: Rc<dyn LogBytes>,
    peers: PeerServers,
    names: names::NamesState,
    journal: journal::JournalState,
    files: files::FilesState,
    extents: extents::ExtentsState,
    reads: reads::ReadsState<P::Memory>,
    locks: locks::LocksState,
    relief: storage::relief::RoomRelief,
}

impl<P: Platform> Cluster<P> {
    /// A server of `servers`. `spawn` runs a future on the same thread.
    pub fn new(
        rank: Rank,
        servers: u16,
        node: Rc<RefCell<Node<'static, P>>>,
        net: Rc<dyn Net>,
        log: Rc<dyn LogBytes>,
        spawn: impl Fn(LocalBoxFuture<'static, ()>) + 'static,
    ) -> Cluster<P> {
        node.borrow_mut().names.join(ROOT);
        let reads = reads::ReadsState::new(&node.borrow().platform, servers > 1);
        let clock = node.borrow().clock.clone();
        let inner = Rc::new(Inner {
            node,
            log,
            peers: PeerServers::new(rank, servers, net, clock, spawn),
            names: names::NamesState::new(rank, servers),
            journal: journal::JournalState::default(),
            files: files::FilesState::default(),
            extents: extents::ExtentsState::default(),
            reads,
            locks: locks::LocksState::default(),
            relief: storage::relief::RoomRelief::default(),
        });
        inner.peers.set_server(ServerOfSessions::new(&inner));
        Cluster { inner }
    }

    /// Serves a request of another server.
    pub async fn handle(&self, from: Rank, request: &[u8]) -> Answer {
        let bulk = Rc::new(RefCell::new(Vec::new()));
        let handler = handler::PeerCall {
            cluster: self,
            bulk: Rc::clone(&bulk),
        };
        let body = match self.peers().admitted(from, request) {
            Ok(Admitted {
                request,
                number,
                deadline_ns,
            }) => {
                let done = peer::dispatch(&handler, from, request);
                self.peers()
                    .run_for(Some((from, number)), deadline_ns, done)
                    .await
            }
            Err(error) => proto::refusal(error),
        };
        self.commit();
        Answer {
            body,
            bulk: bulk.take(),
        }
    }

    /// Serves an encoded request of a client or a tool of this node. Returns the encoded reply.
    pub async fn serve(&self, from: Caller, request: &[u8]) -> Vec<u8> {
        let request = self.node(|node| node.stats.decode_request(from, request));
        let reply = match self.begin_operation(from, request, Vec::new()) {
            Served::Now(reply) => reply,
            Served::Later(work) => self.peers().by(self.peers().next_deadline(), work).await,
        };
        self.commit();
        reply
    }

    /// `out` is an empty buffer for the reply.
    fn begin_operation(
        &self,
        from: Caller,
        request: Result<Request, FsError>,
        out: Vec<u8>,
    ) -> Served<Vec<u8>> {
        match request {
            Ok(request) => proto::perform(self, from, request, out),
            Err(error) => Served::Now(proto::refusal(error)),
        }
    }

    /// Takes a client's notes, and serves the requests in its channels. Each request runs at once, to its end
    /// or until it must wait. Returns true if there was anything.
    pub fn poll_client(&self, id: ClientId, now_ns: i64) -> bool {
        let (mut any, asked) = self.node(|node| {
            node.clock.set(now_ns);
            let noted = node.take_notes(id);
            node.commit();
            (noted, node.clients.take_asked(id, &node.platform))
        });
        if any {
            self.sharing().laminate_unwritten();
        }
        for channel in set_bits(asked) {
            any |= self.begin_request(id, channel);
        }
        any
    }

    /// Begins to serve the request in a client's channel, if there is one.
    fn begin_request(&self, id: ClientId, channel: u32) -> bool {
        let Some(asked) = self.node(|node| node.take_request(id, channel)) else {
            return false;
        };
        let spent_ms = asked.spent_ms;
        match self.begin_operation(Caller::Client(id), asked.request, asked.reply) {
            Served::Now(reply) => self.node(|node| node.put_reply(id, channel, reply)),
            Served::Later(work) => {
                let this = self.clone();
                self.peers().run_or_spawn(async move {
                    let deadline_ns = this.peers().next_deadline_of(spent_ms);
                    let reply = this.peers().by(deadline_ns, work).await;
                    this.node(|node| node.put_reply(id, channel, reply));
                });
            }
        }
        true
    }

    /// Takes notes that came without a doorbell, and sweeps files that no process has open any more. For a server that
    /// has nothing else to do.
    pub fn idle(&self, now_ns: i64) {
        self.node(|node| node.idle(now_ns));
        self.sharing().laminate_unwritten();
    }

    /// Handles a client whose process is gone; see [`Node::gone`].
    pub fn client_gone(&self, id: ClientId, now_ns: i64) {
        self.node(|node| node.gone(id, now_ns));
        self.sharing().laminate_unwritten();
    }

    /// Sets the time, ns since 1970.
    pub fn tick(&self, now_ns: i64) {
        self.node(|node| node.clock.set(now_ns));
        self.peers().look_at_times(now_ns);
    }

    /// Publishes unpublished extents of this node, and lets go of files that no process here has
    /// open.
    pub fn catch_up(&self) {
        for ino in self.extents().dirty() {
            if self.inner.extents.is_publishing(ino) {
                // If a server does not answer, the tries must not queue up before those of a
                // client.
                continue;
            }
            let this = self.clone();
            self.peers().spawn(async move {
                let extents = this.extents();
                let published = extents.publish(ino);
                let done = this
                    .peers()
                    .by(this.peers().next_deadline(), published)
                    .await;
                this.reads().tell_of_publishing(ino, done);
            });
        }
        self.peers().look_at_sessions();
        self.node(Node::look_at_descriptions);
        self.locks().tell_dead_owners();
        self.sharing().laminate_unwritten();
        self.ends().let_go();
        self.ends().erase_gone_soon();
        self.reads().tell_of_missing();
    }

    /// Returns true if [`Cluster::catch_up`] may get work without a request.
    pub fn has_work_to_come(&self) -> bool {
        let publishes = !self.has_all_extents();
        self.stand_ins().has_stand_ins()
            || self.locks().has_locks_elsewhere()
            || self.reads().has_missing()
            || self.node(|node| node.files.has_work_to_come())
            || publishes && self.node(|node| node.extents.has_writers())
    }

    fn node<R>(&self, act: impl FnOnce(&mut Node<'static, P>) -> R) -> R {
        act(&mut self.inner.node.borrow_mut())
    }

    /// Makes the trees of elevated directories, before anything else is made; files in them get this
    /// policy.
    pub fn make_trees(&self, trees: &[NewTree], policy: Policy) -> Result<(), FsError> {
        self.names().make_trees(trees, policy)
    }

    /// Begins sessions that a task waits for, and renews leases in use. Returns the time of the
    /// next call, if nothing else happens. The runner of the cluster calls it.
    pub fn look_at_sessions(&self) -> Option<i64> {
        self.peers().look_at_sessions()
    }

    /// The number of requests of other servers, by operation.
    pub fn asked(&self) -> Vec<(String, u64)> {
        self.peers().asked()
    }

    /// Counts of this server's requests to others, and of its debts to servers that it cannot
    /// reach, by name.
    pub fn moved(&self) -> Vec<(String, u64)> {
        self.peers().moved()
    }

    /// Sets the number of servers that this one tells itself; for tests with few servers.
    pub fn set_fan_out(&self, servers: u32) {
        self.peers().set_fan_out(servers);
    }

    /// Wakes the tasks that wait for a place in the pool of remote bytes, so that they look again.
    /// Returns true if there were any. The runtime calls this from time to time while
    /// [`Cluster::awaits_room`].
    pub fn look_for_room(&self) -> bool {
        self.reads().look_for_room()
    }

    /// Returns true if a task waits for a place in the pool.
    pub fn awaits_room(&self) -> bool {
        self.reads().awaits_room()
    }

    /// The bytes of the pool that are lent, and the bytes of the whole pool.
    pub fn pool_use(&self) -> (usize, usize) {
        self.reads().pool_use()
    }

    /// The bytes of laminated files that are kept in the pool, and the number of reads that they
    /// saved.
    pub fn kept(&self) -> (u64, u64) {
        self.reads().kept()
    }

    /// Counts servers as lost from the start: all servers of the instance were killed, and it came back without
    /// these. Directories are then listed without their entries. `trees`: the number of elevated trees, whose
    /// directories are known by their numbers if rank 0 is lost.
    pub fn give_up(&self, ranks: impl Iterator<Item = Rank>, trees: usize) {
        self.peers().give_up(ranks, trees);
    }
}

impl<P: Platform> ServerCalls for Cluster<P> {
    fn peers(&self) -> &PeerServers {
        &self.inner.peers
    }

    fn do_here<O: PeerOperation + 'static>(&self, op: O) -> LocalBoxFuture<'_, Replied<O>> {
        Box::pin(async move {
            let bulk = Rc::new(RefCell::new(Vec::new()));
            let handler = handler::PeerCall {
                cluster: self,
                bulk: Rc::clone(&bulk),
            };
            let reply = op.perform(&handler, self.rank()).await;
            self.commit();
            Ok((reply?, bulk.take()))
        })
    }
}

/// The root directory of every instance, which lives at rank 0.
pub const ROOT: Ino = Ino::new(Rank(0), 0, 1);

fn owner(uid: u32, gid: u32) -> Owner {
    Owner { uid, gid }
}
