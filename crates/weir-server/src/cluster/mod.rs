//! The logic of a server, with the other servers of its instance, if there are any.
//!
//! Two types aggregate what the rooms keep: [`Node`] the tables of this server, [`Cluster`] what it
//! knows of the others. Each room has a subject, and its `mod.rs` says what it keeps, its invariants
//! and which rooms it may call. Requests are `async fn`s on one thread: the runtime passes in what others
//! ask ([`Cluster::handle`]) and what its own clients ask ([`Cluster::poll_client`],
//! [`Cluster::serve`]), and gives it a [`Net`] to ask others. There is no I/O and no clock here; time
//! comes in by [`Cluster::tick`]. See docs/design/0002-many-nodes.md and 0008-one-house.md.
//!
//! Invariants:
//! - A borrow of the node or of a table never lives across an `await`.
//! - Locks of names and directories are taken at their home, one at a time, or two in the
//!   order of their keys.
//! - What a handler did is done when its reply is made: there is no work left behind that
//!   the asker relies on.
//! - What clients wrote (cells, rings, notes, requests) is checked against the private tables here
//!   before it changes anything; what does not fit is counted, logged and dropped, and disturbs
//!   nothing else.
//!
//! | room | subject |
//! | --- | --- |
//! | `router` | each operation that clients ask for, handed to its room |
//! | `names` | entries, directories, renames, links |
//! | `files` | inodes that are open, their holders and leases, how they are shared |
//! | `extents` | where the bytes of files are |
//! | `reads` | bytes of other nodes |
//! | `locks` | flock and fcntl locks |
//! | `storage` | segments that clients are lent |
//! | `clients` | the processes of this node |
//! | `journal` | what is written down, and taken up again |
//! | `peers` | sessions, deadlines, debts; what other servers ask |
//!
//! | file | subject |
//! | --- | --- |
//! | `node`, `parts` | what several rooms do with this server's tables |
//! | `platform`, `net`, `memory` | what the runtime implements: kernel and storage, the other servers, shared regions |
//! | `keyed` | locks that tasks wait for |
//! | `slots`, `refusal`, `visibility` | small things that several rooms use |

mod clients;
mod extents;
mod files;
mod journal;
mod keyed;
mod locks;
mod memory;
mod names;
mod net;
mod node;
mod parts;
mod peers;
mod platform;
pub mod reads;
mod refusal;
mod router;
mod slots;
mod storage;
mod visibility;

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::future::Future;
use std::rc::Rc;
use std::task::{Context, Waker};

use futures_util::future::LocalBoxFuture;
use weir_core::journal::Given;
use weir_core::names::{Owner, Reach, Shard};
use weir_core::node::region::set_bits;
use weir_core::placement;
use weir_core::proto::audit::Finding;
use weir_core::proto::peer::{self, PeerOperation};
use weir_core::proto::{self, Caller, FsError};
use weir_core::types::{ClientId, Ino, Rank};
use weir_core::xattr::Xattrs;

use crate::rules::Rules;
use clients::stats::Stats;
use clients::table::Clients;
use extents::table::FileTable;
use extents::writers::{OpenFile, Writer};
use files::descriptions::OfdTable;
use keyed::{Keyed, Token};
use locks::table::LockTable;
use peers::session::Admitted;
use slots::Slots;

pub(crate) use extents::ranges::{few_or_wanted, FEW_RUNS, MAX_RUNS};
use journal::commit::RUNS as SNAPSHOT_RUNS;
pub use journal::commit::{Journal, SharedPlace, ShowShared, Visit};
pub use journal::recover::{stop_clients, Found};
pub(crate) use locks::table::{Family, Owner as LockHolder, Wish, UNLOCK};
pub use memory::{ClientMemory, OpenRegion};
pub use net::{Answer, LogBytes, Lost, Net};
pub use peers::session::enclose;
pub use platform::{Accounts, Identity, Platform, RecoverError, Space, Table};

/// One server's state.
pub struct Node<'m, P: Platform> {
    identity: Identity,
    open: OpenRegion<'m>,
    names: Shard<'m>,
    xattrs: Xattrs,
    unfinished_xattrs: files::xattr_tables::Unfinished,
    /// Users beside the server's own whose programs may be clients.
    admitted: BTreeSet<u32>,
    space: P::Space,
    platform: P,
    clients: Clients<P::Memory>,
    blocks: Slots<OpenFile>,
    cells: Slots<Writer>,
    files: FileTable,
    ofds: OfdTable,
    mapped: files::mapped::MappedFiles,
    locks: LockTable,
    /// Files and directories without a name, that somebody may still have open.
    orphans: BTreeSet<Ino>,
    /// Files to be laminated once nobody has them open for writing.
    watched: BTreeSet<Ino>,
    /// How files are shared, by path.
    pub(crate) rules: Rules,
    /// When memory for the table of known names was asked for last, ns since 1970.
    known_tried_ns: i64,
    /// Files that other nodes have open.
    pinned: HashSet<Ino>,
    /// Bytes stored of files, beside what is in their indexes here.
    stored: HashMap<Ino, u64>,
    /// Files whose last bytes other servers are to be told of.
    gone: Vec<Ino>,
    /// Files whose index changed in the call at hand.
    changed: Vec<Ino>,
    notes: journal::commit::Notes,
    /// How much of the log is published.
    given: Given,
    /// Unnamed files stay: nobody has said yet which of them other nodes have open.
    keeps_orphans: bool,
    /// Gaps lent since all was done that may make room.
    gaps_lent: u32,
    stats: Stats,
    /// When the call at hand was made, ns since 1970.
    now_ns: i64,
    stopping: bool,
    /// How much of the tables of names there is memory for.
    names_present: Reach,
}

/// The reply to an operation, and the bytes that follow it.
type Replied<O> = Result<(<O as PeerOperation>::Reply, Vec<u8>), FsError>;

/// One server of several. Cheap to clone: tasks have a clone each.
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

struct Inner<P: Platform + 'static> {
    rank: Rank,
    servers: u16,
    node: Rc<RefCell<Node<'static, P>>>,
    net: Rc<dyn Net>,
    log: Rc<dyn LogBytes>,
    spawn: Box<dyn Fn(LocalBoxFuture<'static, ()>)>,
    tokens: Cell<u64>,
    /// How many servers are told something each, before it is passed down a tree.
    fan_out: Cell<u32>,
    /// Entries or runs that a step of a snapshot shows.
    snapshot_step: Cell<usize>,
    /// The number of the last truncation of a file of this server.
    cuts: Cell<u64>,
    /// Names of this server under change.
    names: Keyed<(Ino, Vec<u8>)>,
    /// Directories of this server under removal.
    burials: Keyed<Ino>,
    /// Directories whose stand-ins here are being made or ended.
    stands: Keyed<Ino>,
    /// The permit for moving directories (rank 0).
    moves: Keyed<()>,
    sessions: RefCell<peers::session::Sessions>,
    /// By when the operation is to end whose task runs now, ns since 1970.
    deadline: Cell<Option<i64>>,
    /// The server that asked for what the task does that runs now, and its session.
    asker: Cell<Option<(Rank, u64)>>,
    /// How often what is known of any file was recalled here.
    recalled: Cell<u64>,
    /// How often homes said something of files for which there is no stand-in here: what is being
    /// made may be one of them, and be laminated or have no name any more.
    told_of_unknown: Cell<u64>,
    moves_of_others: names::moves::Moves,
    /// Servers with which a session is being begun.
    beginning: Keyed<Rank>,
    /// Held until all others know that this server is back.
    returning: Keyed<()>,
    /// Files of this server being cut.
    publishing: Keyed<Ino>,
    /// Files being published from here.
    publishing_here: Keyed<Ino>,
    /// Raw files of this server for which a token or a lease is being granted.
    granting: Keyed<Ino>,
    /// Raw files for which this node asks for a token.
    asking_tokens: Keyed<Ino>,
    write_tokens: RefCell<files::tokens::Tokens>,
    leaving: files::leaving::Leaving,
    dirs: RefCell<names::directories::Dirs>,
    entries: RefCell<names::entries::Entries>,
    placements: RefCell<names::placements::Placements>,
    /// Directories of this server whose entries are being placed.
    placing: Keyed<Ino>,
    /// Directories with all entries here that are being split.
    splitting: Keyed<Ino>,
    files: RefCell<files::stand_ins::Files>,
    shards: RefCell<extents::publish::Shards>,
    maps: RefCell<BTreeMap<Ino, extents::locate::Map>>,
    fetches: RefCell<reads::fetch::Fetches<P::Memory>>,
    locks: RefCell<locks::homes::LocksElsewhere>,
    /// Locks of this node's owners that are being given back to other homes.
    locks_given_back: Keyed<(Ino, peer::LockOwner)>,
    paths: RefCell<files::sharing::Paths>,
    becoming_raw: files::sharing::BecomingRaw,
    findings: RefCell<Vec<Finding>>,
    /// Files of this server that several nodes write.
    appends: RefCell<BTreeMap<Ino, files::append::Appends>>,
    /// Files, of any server, whose home says where programs of this node append.
    shared_appends: RefCell<BTreeSet<Ino>>,
    /// Servers that have not said since this one is back what they write of its files; until when
    /// they are waited for, ns since 1970.
    unheard: RefCell<BTreeMap<Rank, i64>>,
    /// Files of this server whose writers are being told to ask where they append.
    sharing: Keyed<Ino>,
    missing: RefCell<reads::missing::Missing>,
    asked: RefCell<HashMap<&'static str, u64>>,
    moved: Cell<Moved>,
}

/// What this server has asked of others.
#[derive(Clone, Copy, Debug, Default)]
struct Moved {
    /// Requests.
    calls: u64,
    /// Bytes of requests and replies, and of logs, without what a transport adds.
    bytes: u64,
}

impl<P: Platform> Cluster<P> {
    /// A server of `servers`. `spawn` runs a future on the same thread.
    pub fn new(
        (rank, servers): (Rank, u16),
        node: Rc<RefCell<Node<'static, P>>>,
        net: Rc<dyn Net>,
        log: Rc<dyn LogBytes>,
        spawn: impl Fn(LocalBoxFuture<'static, ()>) + 'static,
    ) -> Cluster<P> {
        node.borrow_mut().join(ROOT);
        let fetches = {
            let node = node.borrow();
            let platform = node.platform();
            // A server without others receives no bytes.
            let first = if servers > 1 {
                reads::fetch::POOL_FIRST
            } else {
                0
            };
            let present = platform.present(Table::Pool, first);
            reads::fetch::Fetches::new(platform.pool_bytes(), present)
        };
        Cluster {
            inner: Rc::new(Inner {
                rank,
                servers,
                node,
                net,
                log,
                spawn: Box::new(spawn),
                tokens: Cell::new(0),
                fan_out: Cell::new(placement::tree::FAN_OUT),
                snapshot_step: Cell::new(SNAPSHOT_RUNS),
                cuts: Cell::new(0),
                names: Keyed::default(),
                burials: Keyed::default(),
                stands: Keyed::default(),
                moves: Keyed::default(),
                sessions: RefCell::default(),
                deadline: Cell::default(),
                asker: Cell::default(),
                recalled: Cell::new(0),
                told_of_unknown: Cell::new(0),
                moves_of_others: names::moves::Moves::default(),
                beginning: Keyed::default(),
                returning: Keyed::default(),
                publishing: Keyed::default(),
                publishing_here: Keyed::default(),
                granting: Keyed::default(),
                asking_tokens: Keyed::default(),
                write_tokens: RefCell::default(),
                leaving: files::leaving::Leaving::default(),
                dirs: RefCell::new(names::directories::Dirs::new(rank, servers)),
                entries: RefCell::default(),
                placements: RefCell::default(),
                placing: Keyed::default(),
                splitting: Keyed::default(),
                files: RefCell::default(),
                shards: RefCell::default(),
                maps: RefCell::default(),
                fetches: RefCell::new(fetches),
                locks: RefCell::default(),
                locks_given_back: Keyed::default(),
                paths: RefCell::default(),
                becoming_raw: files::sharing::BecomingRaw::default(),
                findings: RefCell::default(),
                appends: RefCell::default(),
                shared_appends: RefCell::default(),
                unheard: RefCell::default(),
                sharing: Keyed::default(),
                missing: RefCell::default(),
                asked: RefCell::default(),
                moved: Cell::default(),
            }),
        }
    }

    /// Does what another server asks.
    pub async fn handle(&self, from: Rank, request: &[u8]) -> Answer {
        let bulk = Rc::new(RefCell::new(Vec::new()));
        let handler = peers::handler::Asked {
            cluster: self,
            bulk: Rc::clone(&bulk),
        };
        let body = match self.admitted(from, request) {
            Ok(Admitted {
                request,
                number,
                deadline_ns,
            }) => {
                let done = peer::dispatch(&handler, from, request);
                self.run_for(Some((from, number)), deadline_ns, done).await
            }
            Err(error) => proto::refusal(error),
        };
        self.commit();
        Answer {
            body,
            bulk: bulk.take(),
        }
    }

    /// Does what a client or a tool of this node asks; the encoded reply.
    pub async fn serve(&self, from: Caller, request: &[u8]) -> Vec<u8> {
        self.serve_late(from, request, 0).await
    }

    /// The same for a call of a program that has waited for servers before, so many ms.
    pub async fn serve_late(&self, from: Caller, request: &[u8], spent_ms: u32) -> Vec<u8> {
        let done = self.serve_client(from, request);
        let reply = self.by(self.next_deadline_of(spent_ms), done).await;
        self.commit();
        reply
    }

    /// Does what a client asks for by its channels and its notes: each request at once as far as it
    /// gets, which is to its end if it need not wait. True if there was anything.
    pub fn poll_client(&self, id: ClientId, now_ns: i64) -> bool {
        let (mut any, asked) = self.node(|node| {
            node.set_time(now_ns);
            let noted = node.take_notes(id);
            node.commit();
            (noted, node.take_asked(id))
        });
        if any {
            self.laminate_unwritten();
        }
        for channel in set_bits(asked) {
            any |= self.begin_request(id, channel);
        }
        any
    }

    /// Begins to do what a client asks for by one of its channels, if it asks for anything.
    fn begin_request(&self, id: ClientId, channel: u32) -> bool {
        let mut request = Vec::new();
        let asked = self.node(|node| node.take_request(id, channel, &mut request));
        let Some(spent_ms) = asked else {
            return false;
        };
        let this = self.clone();
        self.begin(async move {
            let served = this.serve_late(Caller::Client(id), &request, spent_ms);
            let mut reply = served.await;
            this.node(|node| node.put_reply(id, channel, &mut reply));
        });
        true
    }

    /// Runs a task as far as it gets, and the rest of it when what it waits for has come.
    /// The caller has borrowed nothing that the task may need.
    fn begin(&self, task: impl Future<Output = ()> + 'static) {
        let mut task: LocalBoxFuture<'static, ()> = Box::pin(task);
        let mut context = Context::from_waker(Waker::noop());
        // It is polled again when it is spawned, so that this waker need not wake it.
        if task.as_mut().poll(&mut context).is_pending() {
            (self.inner.spawn)(task);
        }
    }

    /// Takes in what nobody rang for, and what nobody has open any more: for a server that has
    /// nothing else to do.
    pub fn idle(&self, now_ns: i64) {
        self.node(|node| node.idle(now_ns));
        self.laminate_unwritten();
    }

    /// A client's process is gone; see [`Node::gone`].
    pub fn client_gone(&self, id: ClientId, now_ns: i64) {
        self.node(|node| node.gone(id, now_ns));
        self.laminate_unwritten();
    }

    /// Sets the time, ns since 1970.
    pub fn tick(&self, now_ns: i64) {
        self.node(|node| node.set_time(now_ns));
        self.look_at_times(now_ns);
    }

    /// Publishes what this node wrote and did not publish yet, and lets go of files that
    /// nobody here has open.
    pub fn catch_up(&self) {
        for ino in self.dirty() {
            if self.inner.publishing_here.is_held(&ino) {
                // Where a server does not answer, tries must not queue up before a client's.
                continue;
            }
            let this = self.clone();
            self.spawn(async move {
                let flushed = this.flush(ino);
                let done = this.by(this.next_deadline(), flushed).await;
                this.tell_of_publishing(ino, done);
            });
        }
        self.look_at_sessions();
        self.node(Node::look_at_descriptions);
        self.tell_dead_owners();
        self.laminate_unwritten();
        self.let_go();
        self.erase_gone_soon();
        self.tell_of_missing();
    }

    /// Whether [`Cluster::catch_up`] may come to have something to do by itself.
    pub fn has_work_to_come(&self) -> bool {
        let publishes = !self.has_all_extents();
        self.has_stand_ins()
            || self.has_locks_elsewhere()
            || self.has_missing()
            || self.node(|node| node.has_gone() || node.is_watching() || node.awaits_closing())
            || publishes && self.node(|node| node.has_writers())
    }

    /// A server cannot be reached or has started anew: its locks and holds end, and sessions with
    /// it. What it was leased it may believe until the term is over.
    pub fn peer_gone(&self, rank: Rank) {
        self.end_sessions(rank);
        self.drop_names_of(rank);
        self.inner.moves.drop_rank(rank);
        self.forget_holder(rank);
        self.forget_known(rank);
        self.drop_locks_of(rank);
        self.reserve_no_more(rank);
        // Its session has ended, and with it what it leased to this one.
        for ino in self.stand_ins_of(rank) {
            self.recall_here(ino);
            self.give_up_token(ino);
            self.forget_cuts(ino);
        }
    }

    /// How often each operation of peers was asked of this server.
    pub fn asked(&self) -> Vec<(String, u64)> {
        let asked = self.inner.asked.borrow();
        let mut all: Vec<_> = asked
            .iter()
            .map(|(name, n)| ((*name).to_owned(), *n))
            .collect();
        all.sort();
        all
    }

    /// What this server has asked of others, and owes to those that it cannot reach, by name.
    pub fn moved(&self) -> [(String, u64); 4] {
        let moved = self.inner.moved.get();
        let (owed, dropped) = self.debts();
        [
            ("fabric_calls".to_owned(), moved.calls),
            ("fabric_bytes".to_owned(), moved.bytes),
            ("owed".to_owned(), owed),
            ("owed_dropped".to_owned(), dropped),
        ]
    }

    fn count_moved(&self, calls: u64, bytes: usize) {
        let moved = self.inner.moved.get();
        self.inner.moved.set(Moved {
            calls: moved.calls + calls,
            bytes: moved.bytes + bytes as u64,
        });
    }

    fn rank(&self) -> Rank {
        self.inner.rank
    }

    /// True if all names and inodes live here: then an operation on names is one change of this
    /// server's tables, which the processes of this node see whole, and nobody else keeps any.
    fn has_all_names(&self) -> bool {
        self.inner.servers == 1
    }

    /// True if no other node has, or asks for, bytes of any file: then the index that is made of
    /// what this node's programs wrote is all there is. Nothing is published, and no file is shared.
    fn has_all_extents(&self) -> bool {
        self.inner.servers == 1
    }

    fn ranks(&self) -> impl Iterator<Item = Rank> {
        (0..self.inner.servers).map(Rank)
    }

    fn node<R>(&self, act: impl FnOnce(&mut Node<'static, P>) -> R) -> R {
        act(&mut self.inner.node.borrow_mut())
    }

    fn spawn(&self, task: impl Future<Output = ()> + 'static) {
        (self.inner.spawn)(Box::pin(task));
    }

    /// A token that no other lock of any server has.
    fn token(&self) -> Token {
        let next = self.inner.tokens.get() + 1;
        self.inner.tokens.set(next);
        Token {
            rank: self.rank(),
            number: next,
        }
    }

    /// Asks a server, which may be this one.
    async fn call<O: PeerOperation + 'static>(&self, to: Rank, op: O) -> Result<O::Reply, FsError> {
        Ok(self.call_for_bytes(to, op).await?.0)
    }

    /// As [`Cluster::call`], with the number of the session in which it was answered.
    async fn call_in<O: PeerOperation + 'static>(
        &self,
        to: Rank,
        op: O,
    ) -> Result<(O::Reply, u64), FsError> {
        if to == self.rank() {
            return Ok((self.do_here(op).await?.0, 0));
        }
        let (answer, number) = self.ask(to, peer::request(op)).await?;
        Ok((peer::reply::<O>(&answer.body)?, number))
    }

    /// As [`Cluster::call`], with the bytes that came behind the reply.
    async fn call_for_bytes<O: PeerOperation + 'static>(&self, to: Rank, op: O) -> Replied<O> {
        if to == self.rank() {
            return self.do_here(op).await;
        }
        let (answer, _) = self.ask(to, peer::request(op)).await?;
        Ok((peer::reply::<O>(&answer.body)?, answer.bulk))
    }

    /// Does what a server asks itself; the reply, and the bytes behind it. Boxed: a handler may ask
    /// in turn.
    fn do_here<O: PeerOperation + 'static>(&self, op: O) -> LocalBoxFuture<'_, Replied<O>> {
        Box::pin(async move {
            let bulk = Rc::new(RefCell::new(Vec::new()));
            let handler = peers::handler::Asked {
                cluster: self,
                bulk: Rc::clone(&bulk),
            };
            let reply = op.perform(&handler, self.rank()).await;
            self.commit();
            Ok((reply?, bulk.take()))
        })
    }
}

/// The root directory of every instance lives at rank 0.
pub const ROOT: Ino = Ino::new(Rank(0), 0, 1);

fn owner(uid: u32, gid: u32) -> Owner {
    Owner { uid, gid }
}
