//! One server's threads, socket and shared memory.
//!
//! The thread that calls [`serve`] becomes the *service thread*. It owns the
//! [`Node`], answers clients' channels, and sleeps on one futex while there are
//! no requests. The *poller* thread waits for connections, hangups and the ends of processes. It
//! passes these events over a queue and wakes the service thread. Warmers (`weir-store`) make
//! memory warm; they start only once clients may come.
//!
//! The caller handles signals: it sends `Stop` over a [`crate::control::Control`] connection.
//!
//! | file | subject |
//! | --- | --- |
//! | `regions` | making, mapping and removing shared memory |
//! | `kernel`, `clock` | the services of the kernel for the logic |
//! | `recovery` | the journal, and taking over from a server that was killed |
//! | `storage` | `weir-store`'s tiers as the logic's space |
//! | `mailbox` | the queues between the two threads |
//! | `poller`, `connection`, `refusals` | the socket's thread; refused connections |
//! | `service` | the service thread |
//! | `reactor`, `missed` | the logic on it, with the fabric; servers that do not answer |

mod admit;
mod clock;
mod connection;
mod ground;
mod kernel;
mod mailbox;
mod missed;
mod patience;
mod poller;
mod reactor;
mod recovery;
mod refusals;
mod regions;
mod service;
mod shelf;
mod storage;

use std::cell::RefCell;
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::atomic::Ordering;
use std::sync::Arc;

use rustix::io::Errno;
use weir_core::node::region::{Hub, MAX_CLIENTS};
use weir_core::proto::{ServerStatus, Welcome, VERSION};
use weir_core::types::{ClientId, Rank};
use weir_store::map::MapError;
use weir_store::pool::WarmPool;

use crate::node::{Identity, Node, Visit};
use crate::options::Options;
use crate::rules::Rules;
use clock::now_ns;
use kernel::Kernel;
use mailbox::{mailboxes, Rouser};
pub use reactor::Several;
use reactor::{Reactor, ServerParts};
use recovery::{Remains, ServerIdentity};
use refusals::ConnectionRefusals;
use regions::Instance;
use service::Service;

/// The reason why a server could not start, or ended with an error.
#[derive(Debug, thiserror::Error)]
pub enum ServerError {
    /// A directory or file could not be made.
    #[error("{path}: {error}")]
    Path {
        /// The path.
        path: PathBuf,
        /// The error.
        error: std::io::Error,
    },
    /// A region of shared memory could not be made or mapped.
    #[error("shared memory {path}: {error}")]
    Map {
        /// Its file.
        path: PathBuf,
        /// The error.
        error: MapError,
    },
    /// There is no room for memory that the server needs.
    #[error("shared memory {path}: {errno}; free some of that file system, or choose another one with memory.directory")]
    Room {
        /// The file.
        path: PathBuf,
        /// The error of the allocation.
        errno: Errno,
    },
    /// The tables of names do not fit their region: a bug.
    #[error("the namespace's tables: {0}")]
    Tables(String),
    /// The socket could not be made.
    #[error("socket {path}: {errno}")]
    Socket {
        /// Its path.
        path: PathBuf,
        /// The error.
        errno: Errno,
    },
    /// The queues between the threads cannot be made.
    #[error("an event descriptor: {0}")]
    Event(Errno),
    /// A thread could not be started.
    #[error("starting a thread: {0}")]
    Thread(std::io::Error),
    /// The process to watch does not exist.
    #[error("process {pid}, with which the server should end: {errno}")]
    Watched {
        /// The process.
        pid: u32,
        /// The error.
        errno: Errno,
    },
    /// Another server uses the directory.
    #[error("{dir}: a server is there already ({errno})")]
    Taken {
        /// The directory.
        dir: PathBuf,
        /// The error of taking its lock.
        errno: Errno,
    },
    /// The remains of a killed server are incomplete.
    #[error("{dir}: {why}; {}", recovery::advice(.dir))]
    Remains {
        /// The directory.
        dir: PathBuf,
        /// The defect.
        why: String,
    },
    /// The journal of a killed server cannot be used, or none can be written.
    #[error("journal {path}: {why}; {}", recovery::advice(.path.parent().unwrap_or(.path)))]
    Journal {
        /// Its file.
        path: PathBuf,
        /// The reason.
        why: String,
    },
    /// An invalid setting.
    #[error("{0}")]
    Setting(String),
}

impl ServerError {
    fn path(path: &std::path::Path, error: &std::io::Error) -> ServerError {
        ServerError::Path {
            path: path.to_owned(),
            error: error
                .raw_os_error()
                .map_or_else(|| error.kind().into(), std::io::Error::from_raw_os_error),
        }
    }
}

/// Serves until a client asks it to stop, or the watched process ends. Calls `ready` once clients
/// may connect. Returns the status at the end. Removes its files and the directories that it made.
pub fn serve(options: &Options, ready: impl FnOnce()) -> Result<ServerStatus, ServerError> {
    serve_as(options, None, ready)
}

/// As [`serve`], as one of several servers.
pub fn serve_as(
    options: &Options,
    several: Option<Several>,
    ready: impl FnOnce(),
) -> Result<ServerStatus, ServerError> {
    let max_clients = options.max_clients;
    if max_clients == 0 || max_clients > MAX_CLIENTS {
        let why = format!("max_clients must be 1 to {MAX_CLIENTS}, not {max_clients}");
        return Err(ServerError::Setting(why));
    }
    let whose = part(several.as_ref())?;
    let options = &Options {
        max_clients: kernel::clients_allowed(max_clients, whose.servers),
        ..options.clone()
    };
    let mut instance = Instance::create(options)?;
    // This comes before any change: unusable remains stay as they are.
    let remains = recovery::look(&options.shm_dir, &whose)?;
    let took_up = remains.is_some();
    let settled = instance.settle_in(took_up);
    let served =
        settled.and_then(|()| serve_in(&instance, options, whose, remains, several, ready));
    // The remains of a killed server stay for another try.
    if served.is_ok() || !took_up {
        instance.remove();
    }
    served
}

/// This server's rank, and the number of servers.
fn part(several: Option<&Several>) -> Result<ServerIdentity, ServerError> {
    let Some(several) = several else {
        return Ok(ServerIdentity {
            rank: Rank(0),
            servers: 1,
            instance: [0; 16],
        });
    };
    let servers = several.membership.addresses.len();
    let servers = u16::try_from(servers)
        .map_err(|_| ServerError::Setting(format!("{servers} servers are too many")))?;
    Ok(ServerIdentity {
        rank: several.membership.rank,
        servers,
        instance: several.membership.instance.0,
    })
}

/// Tells clients the settings that concern them.
fn tell_clients(hub: &Hub, options: &Options) {
    hub.audit.store(u32::from(options.audit), Ordering::Relaxed);
    hub.io_uring
        .store(u32::from(options.io_uring), Ordering::Relaxed);
}

/// The greeting of a client, without its number.
fn welcome(
    instance: &Instance,
    options: &Options,
    whose: &ServerIdentity,
) -> Result<Welcome, ServerError> {
    Ok(Welcome {
        version: VERSION,
        client: ClientId(0),
        rank: whose.rank.0,
        servers: whose.servers,
        shm_dir: regions::text(instance.shm_dir())?,
        storage_dirs: options
            .storage
            .iter()
            .map(|dir| regions::text(&dir.path))
            .collect::<Result<_, _>>()?,
        prefix: options.prefix.clone(),
        spin_us: options.spin_us,
        fences: !kernel::has_barriers(),
    })
}

/// Sets how files are shared.
fn set_sharing(
    node: &mut Node<'static, Kernel>,
    options: &Options,
    fresh: bool,
) -> Result<(), ServerError> {
    let sharing = &options.sharing;
    let rules = Rules::new(&sharing.rules).map_err(|e| ServerError::Setting(e.to_string()))?;
    node.share(sharing.policy, rules, fresh)
        .map_err(|e| ServerError::Setting(e.to_string()))
}

fn serve_in(
    instance: &Instance,
    options: &Options,
    whose: ServerIdentity,
    remains: Option<Remains>,
    several: Option<Several>,
    ready: impl FnOnce(),
) -> Result<ServerStatus, ServerError> {
    let ServerIdentity { rank, servers, .. } = whose;
    let space = storage::open(instance, options, remains.is_some())?;
    let board = Arc::clone(space.board());
    let open = instance.open_region()?;
    let identity = Identity {
        rank,
        servers,
        pid: std::process::id(),
        started_ns: now_ns(),
    };
    let refusals = Arc::new(ConnectionRefusals::default());
    let fresh = remains.is_none();
    let (mut node, before) = if let Some(remains) = remains {
        let max_clients = options.max_clients;
        let (node, before) = recovery::take_up(
            instance,
            remains,
            identity,
            space,
            &refusals,
            open,
            max_clients,
        )?;
        (node, Some(before))
    } else {
        let names = instance.names(rank)?;
        let platform = Kernel::new(instance, Arc::clone(&refusals))?;
        let max_clients = options.max_clients;
        let node = Node::new(identity, open, names, space, platform, max_clients);
        (node, None)
    };
    set_sharing(&mut node, options, fresh)?;
    let several = several.filter(|_| servers > 1);
    let bell = match &several {
        Some(several) if several.endpoint.is_none() => Some(Arc::new(instance.bell()?)),
        _ => None,
    };
    let rouser = Rouser::new(open.hub, bell.clone());
    let (service_box, poller_box) = mailboxes(rouser.clone()).map_err(ServerError::Event)?;
    let listener = instance.listen()?;
    let poller = poller::start(
        listener,
        poller_box,
        options,
        Arc::clone(&refusals),
        instance.placeholder()?,
    )?;
    let welcome = welcome(instance, options, &whose)?;
    tell_clients(open.hub, options);
    let deadline_ms = several.as_ref().map_or(0, Several::deadline_ms);
    open.hub.deadline_ms.store(deadline_ms, Ordering::Relaxed);
    open.hub.rank.store(u32::from(rank.0), Ordering::Relaxed);
    open.hub.set_instance(whose.instance);
    open.hub
        .servers
        .store(u32::from(servers), Ordering::Release);
    let node = Rc::new(RefCell::new(node));
    let parts = ServerParts {
        node: Rc::clone(&node),
        rank,
        servers,
        rouser,
        bell,
        instance,
        trees: options.elevated.len(),
    };
    let reactor = Reactor::new(several, parts)?;
    if let Some(before) = before {
        reactor.take_up(before);
    } else if rank == Rank(0) {
        reactor.make_trees(options)?;
    }
    let others = |visit: Visit<'_>| reactor.for_each_item(visit);
    recovery::begin_journal(instance, &mut node.borrow_mut(), &whose, &others)?;
    let mut service = Service::new(
        node,
        reactor,
        refusals,
        open.hub,
        service_box,
        instance,
        welcome,
    );
    ready();
    let warmers =
        WarmPool::start(instance.shm_dir(), board, options.warmers).map_err(ServerError::Thread);
    let status = warmers.map(|warmers| {
        let status = service.run();
        warmers.stop();
        status
    });
    service.shut_down();
    // A poller that panicked has logged it; nothing more depends on the poller.
    let _ = poller.join();
    status
}
