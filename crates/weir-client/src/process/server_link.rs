//! The way from a process's calls to its server: connected with the first request that needs it.

use rustix::io::Errno;
use weir_core::names::NamesView;
use weir_core::node::block::FileBlock;
use weir_core::node::known::KnownNames;
use weir_core::node::region::Hub;
use weir_core::node::ring::Note;
use weir_core::proto::Operation;
use weir_core::types::Rank;

use super::forks::ForkWatch;
use super::instance::{Instance, InstanceConnection};
use crate::lock::SlowLock;
use crate::node::Node;
use crate::session::Session;
use crate::sys::coarse_now_ns;
use crate::view::{NodeClient, View};

/// The connection of the process, which is made under its lock with the first request.
#[derive(Debug)]
pub(super) struct ServerLink {
    pub(super) connection: InstanceConnection,
    /// The owner of the process's state.
    pub(super) forks: ForkWatch,
    /// Guards the connection and the tables of the process.
    pub(super) lock: SlowLock,
}

impl ServerLink {
    /// Not connected.
    pub(super) const fn new() -> ServerLink {
        ServerLink {
            connection: InstanceConnection::new(),
            forks: ForkWatch::new(),
            lock: SlowLock::new(),
        }
    }

    /// The directories of the instance, if there is one and the process has looked for it.
    pub(super) fn instance(&self) -> Option<&'static Instance> {
        self.connection.instance()
    }

    /// The directory at which the kernel has mounted the instance, if it has.
    pub(super) fn mount(&self) -> Option<Vec<u8>> {
        self.connection.mount()
    }

    /// The node's memory, mapped if need be.
    #[inline]
    pub(super) fn node(&self) -> Result<&'static Node, Errno> {
        match self.connection.node() {
            Some(node) => Ok(node),
            None => self.map_node(),
        }
    }

    #[cold]
    fn map_node(&self) -> Result<&'static Node, Errno> {
        let _held = self.lock.hold();
        self.connection.map_node()
    }

    /// The session, connected if need be.
    #[inline]
    pub(super) fn session(&self) -> Result<&'static Session, Errno> {
        match self.connection.session() {
            Some(session) => Ok(session),
            None => self.connect(),
        }
    }

    #[cold]
    fn connect(&self) -> Result<&'static Session, Errno> {
        let _held = self.lock.hold();
        self.connection.connect(&self.forks)
    }

    /// True if the server can still be asked.
    pub(super) fn is_served(&self) -> bool {
        self.session().is_ok_and(|session| !session.server_gone())
    }

    /// The namespace.
    #[inline]
    pub(super) fn view(&'static self) -> Result<View<LazyClient>, Errno> {
        let (server, node) = (self, self.node()?);
        Ok(View::new(LazyClient { server, node }))
    }

    /// Counts a call that is not supported; EOPNOTSUPP.
    pub(super) fn refuse<T>(&self, name: &'static str) -> Result<T, Errno> {
        self.count_refusal(name);
        Err(Errno::OPNOTSUPP)
    }

    pub(super) fn count_refusal(&self, name: &'static str) {
        if let Ok(session) = self.session() {
            session.refuse(name);
        }
    }
}

/// A process that connects to its server with its first request: one that only looks at the shared
/// tables makes none.
#[derive(Clone, Copy)]
pub struct LazyClient {
    server: &'static ServerLink,
    node: &'static Node,
}

impl NodeClient for LazyClient {
    #[inline]
    fn names(&self) -> NamesView<'static> {
        self.node.names()
    }

    #[inline]
    fn known(&self) -> KnownNames<'static> {
        self.node.known()
    }

    #[inline]
    fn hub(&self) -> &'static Hub {
        self.node.hub()
    }

    #[inline]
    fn blocks(&self) -> &'static [FileBlock] {
        self.node.blocks()
    }

    #[inline]
    fn several(&self) -> Option<(Rank, u16)> {
        self.node.several()
    }

    #[inline]
    fn now_ns(&self) -> u64 {
        coarse_now_ns()
    }

    fn call<O: Operation>(&self, op: O) -> Result<O::Reply, Errno> {
        self.server.session()?.call(op)
    }

    fn note(&self, note: Note) {
        if let Ok(session) = self.server.session() {
            session.note(note);
        }
    }
}
