//! The other servers: sessions, deadlines, debts, and telling many at once.
//!
//! [`PeerServers`] keeps the session with each server and the debts to it. It knows nothing of names and files:
//! [`PeersNeeds`] carries the effects of sessions on the other rooms. A room asks another server by
//! [`ServerCalls`](calls::ServerCalls), which also serves a request of this server to itself.
//!
//! Invariant: a call acts once, or not at all if its session has ended. A server that is given up is never asked: no
//! session with it begins.
//!
//! May use: [`PeersNeeds`], [`Net`].
//!
//! | file | subject |
//! | --- | --- |
//! | `calls` | the ways to ask a server, which may be this one |
//! | `session` | the time for which one server may believe another's answers |
//! | `outcome` | operations that are completed even if no client waits for them |
//! | `deadline` | one deadline for one operation |
//! | `debts` | operations owed to a server that cannot be reached |
//! | `tell` | telling many servers the same, down a tree |
//! | `counts` | the numbers of requests and bytes |

use std::cell::{Cell, OnceCell, RefCell};
use std::collections::{BTreeSet, HashMap};
use std::future::Future;
use std::rc::Rc;
use std::task::{Context, Waker};

use futures_util::future::LocalBoxFuture;
use weir_core::placement;
use weir_core::proto::peer::{self, LogRange};
use weir_core::proto::FsError;
use weir_core::types::{Ino, Rank};

use crate::cluster::clock::ServerClock;
use crate::cluster::keyed::{Keyed, Token};
use crate::cluster::net::Net;

pub(super) mod calls;
mod counts;
mod deadline;
pub(super) mod debts;
#[cfg(test)]
pub(super) mod fake;
#[cfg(test)]
pub(super) mod fake_fabric;
pub(super) mod outcome;
pub(super) mod session;
pub(super) mod tell;
#[cfg(test)]
mod tests;

/// The other servers, as this one knows them. Cheap to clone: each task has a clone.
#[derive(Clone)]
pub(in crate::cluster) struct PeerServers {
    inner: Rc<PeersState>,
}

/// The state of this room.
struct PeersState {
    rank: Rank,
    servers: u16,
    net: Rc<dyn Net>,
    spawn: Box<dyn Fn(LocalBoxFuture<'static, ()>)>,
    clock: ServerClock,
    /// The parts of the server that this room needs.
    server: OnceCell<Box<dyn PeersNeeds>>,
    /// The last token.
    tokens: Cell<u64>,
    sessions: RefCell<session::Sessions>,
    /// Servers with which a session is being begun.
    beginning: Keyed<Rank>,
    /// The deadline of the operation whose task runs now, ns since 1970.
    deadline: Cell<Option<i64>>,
    /// The server that asked for the work of the task that runs now, and its session.
    asker: Cell<Option<(Rank, u64)>>,
    /// The most servers that this one tells something itself; the rest hear it through a tree.
    fan_out: Cell<u32>,
    /// The number of requests of other servers, by operation.
    asked: RefCell<HashMap<&'static str, u64>>,
    sent: Cell<counts::SentCounts>,
    given_up: RefCell<BTreeSet<Rank>>,
    /// The number of elevated trees.
    trees: Cell<usize>,
}

/// The parts of the server that sessions and debts need. They may be gone while a task still runs.
pub(in crate::cluster) trait PeersNeeds {
    /// Commits the changes, before a message that relies on them is sent.
    fn commit(&self);
    /// Shows programs the time until which they may believe leases of other servers' files.
    fn set_believed_until(&self, until_ns: Option<i64>);
    /// Stops believing all leases of a server.
    fn doubt(&self, home: Rank);
    /// True if this server uses files of another one, so that a session with it is wanted.
    fn uses_files_of(&self, home: Rank) -> bool;
    /// The files of a server that this one holds, for the message that begins a session. `None`: this server is gone.
    fn held_of(&self, home: Rank) -> Option<peer::Begin>;
    /// Cuts files here to the sizes that their home reported when the session began.
    fn cut(&self, files: &[(Ino, u64)]);
    /// Notes that a session with a server has begun.
    fn note_own_session(&self, with: Rank);
    /// Pays a debt of this server to itself.
    fn pay_here(&self, debt: debts::Debt) -> LocalBoxFuture<'static, Result<(), FsError>>;
    /// Gives bytes of logs back to their servers.
    fn give_back(&self, freed: Vec<LogRange>) -> LocalBoxFuture<'static, ()>;
}

impl PeerServers {
    /// The server `rank` of `servers`. `spawn` runs a future on the same thread.
    pub(in crate::cluster) fn new(
        rank: Rank,
        servers: u16,
        net: Rc<dyn Net>,
        clock: ServerClock,
        spawn: impl Fn(LocalBoxFuture<'static, ()>) + 'static,
    ) -> PeerServers {
        let inner = PeersState {
            rank,
            servers,
            net,
            spawn: Box::new(spawn),
            clock,
            server: OnceCell::new(),
            tokens: Cell::default(),
            sessions: RefCell::default(),
            beginning: Keyed::default(),
            deadline: Cell::default(),
            asker: Cell::default(),
            fan_out: Cell::new(placement::tree::FAN_OUT),
            asked: RefCell::default(),
            sent: Cell::default(),
            given_up: RefCell::default(),
            trees: Cell::default(),
        };
        PeerServers {
            inner: Rc::new(inner),
        }
    }

    /// Sets the parts of the server that this room needs. Called once, before a request is sent.
    pub(in crate::cluster) fn set_server(&self, server: impl PeersNeeds + 'static) {
        let set = self.inner.server.set(Box::new(server));
        assert!(set.is_ok(), "the rest of a server is set once");
    }

    fn server(&self) -> &dyn PeersNeeds {
        let server = self.inner.server.get();
        &**server.expect("set when the server was made")
    }

    /// The rank of this server.
    pub(in crate::cluster) fn rank(&self) -> Rank {
        self.inner.rank
    }

    /// The number of servers.
    pub(in crate::cluster) fn servers(&self) -> u16 {
        self.inner.servers
    }

    /// All servers, this one too.
    pub(in crate::cluster) fn ranks(&self) -> impl Iterator<Item = Rank> {
        (0..self.inner.servers).map(Rank)
    }

    /// The other servers that are not given up.
    pub(in crate::cluster) fn others(&self) -> Vec<Rank> {
        let is_other = |rank: &Rank| *rank != self.rank() && !self.is_given_up(*rank);
        self.ranks().filter(is_other).collect()
    }

    /// The time, ns since 1970.
    pub(in crate::cluster) fn now_ns(&self) -> i64 {
        self.inner.clock.now_ns()
    }

    /// The way to the other servers.
    pub(in crate::cluster) fn net(&self) -> &dyn Net {
        &*self.inner.net
    }

    /// Runs a task on the thread of the server.
    pub(in crate::cluster) fn spawn(&self, task: impl Future<Output = ()> + 'static) {
        (self.inner.spawn)(Box::pin(task));
    }

    /// Runs a task as far as it can without waiting, and spawns the rest of it. The caller has
    /// borrowed nothing that the task may need.
    pub(in crate::cluster) fn run_or_spawn(&self, task: impl Future<Output = ()> + 'static) {
        let mut task: LocalBoxFuture<'static, ()> = Box::pin(task);
        let mut context = Context::from_waker(Waker::noop());
        // The spawned task is polled again, so this waker need not wake it.
        if task.as_mut().poll(&mut context).is_pending() {
            (self.inner.spawn)(task);
        }
    }

    /// A new token, different from those of all locks of all servers.
    pub(in crate::cluster) fn token(&self) -> Token {
        let next = self.inner.tokens.get() + 1;
        self.inner.tokens.set(next);
        Token {
            rank: self.rank(),
            number: next,
        }
    }

    /// Counts these servers as lost for as long as this one lives. `trees`: the number of elevated trees.
    pub(in crate::cluster) fn give_up(&self, ranks: impl Iterator<Item = Rank>, trees: usize) {
        self.inner.given_up.borrow_mut().extend(ranks);
        self.inner.trees.set(trees);
    }

    /// The number of elevated trees, if servers are lost.
    pub(in crate::cluster) fn trees(&self) -> usize {
        self.inner.trees.get()
    }

    /// True if the server is lost for good.
    pub(in crate::cluster) fn is_given_up(&self, rank: Rank) -> bool {
        self.inner.given_up.borrow().contains(&rank)
    }

    /// Starts as after a restart: no earlier session with another server holds, and the others may know tokens of an
    /// earlier life.
    pub(in crate::cluster) fn begin_anew(&self) {
        let now_ns = self.now_ns();
        self.inner.tokens.set(u64::try_from(now_ns).unwrap_or(0));
        let others = self.others().into_iter();
        self.inner.sessions.borrow_mut().begin_anew(others, now_ns);
    }
}
