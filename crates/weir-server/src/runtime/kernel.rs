//! The services of the kernel for the logic: futexes, locks of placeholders, time.

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU32};
use std::sync::Arc;

use nix::fcntl::{fcntl, FcntlArg};
use rustix::io::Errno;
use rustix::process::{getrlimit, setrlimit, test_kill_process, Pid, Resource, Rlimit};
use rustix::thread::{futex, membarrier, membarrier_query, MembarrierCommand, MembarrierQuery};
use weir_core::node::ofd::lock_byte;
use weir_core::node::region::{client_layout, SPECIAL};
use weir_core::proto::{FsError, Landing};
use weir_core::types::{ClientId, Ino};
use weir_fabric::bulk;
use weir_store::slabmap::Window;

use super::admit::InstanceDirs;
use super::ground::SparseRegion;
use super::refusals::ConnectionRefusals;
use super::regions::{client_file, ClientRegion, Instance, Placeholder};
use super::storage::Storage;
use super::ServerError;
use crate::cluster::reads::arrival::Arrival;
use crate::node::{Platform, Table};

/// The kernel of this node.
#[derive(Debug)]
pub struct Kernel {
    /// The directory that all virtual descriptors refer to.
    placeholder: Arc<Placeholder>,
    /// The pool in which bytes of other nodes arrive.
    pool: Window,
    /// The directory of the clients' regions.
    shm_dir: PathBuf,
    /// Memory behind the tables.
    grounds: Vec<SparseRegion>,
    refusals: Arc<ConnectionRefusals>,
    dirs: InstanceDirs,
}

impl Kernel {
    /// Opens the parts of an instance that the kernel needs.
    pub fn new(
        instance: &Instance,
        refusals: Arc<ConnectionRefusals>,
    ) -> Result<Kernel, ServerError> {
        let pool = instance.pool()?;
        Ok(Kernel {
            placeholder: instance.placeholder()?,
            pool,
            shm_dir: instance.shm_dir().to_owned(),
            grounds: instance.grounds(pool.len())?,
            refusals,
            dirs: InstanceDirs::of_instance(instance),
        })
    }
}

impl Platform for Kernel {
    type Memory = ClientRegion;
    type Space = Storage;

    fn wake(&self, word: &AtomicU32) {
        wake(word);
    }

    fn barrier(&self) {
        // If the kernel has none, clients are told at their beginning to use barriers of their own.
        let _ = membarrier(MembarrierCommand::GlobalExpedited);
    }

    fn lay_channels(&self, client: ClientId) -> bool {
        let ground = SparseRegion::open(&self.shm_dir.join(client_file(client)), &[]);
        let bytes = client_layout().bytes as u64;
        ground.and_then(|ground| ground.lay(0, bytes)).is_ok()
    }

    fn present(&self, table: Table, count: usize) -> usize {
        let found = self.grounds.iter().find_map(|g| g.present(table, count));
        found.unwrap_or(0)
    }

    fn lives(&self, pid: u32) -> bool {
        let pid = i32::try_from(pid).ok().and_then(Pid::from_raw);
        pid.is_some_and(|pid| test_kill_process(pid) != Err(Errno::SRCH))
    }

    fn landing(
        &self,
        client: &Arc<ClientRegion>,
        landing: Landing,
        len: u32,
        over: &Arc<AtomicBool>,
    ) -> Option<Box<dyn bulk::Landing>> {
        let arrival = Arrival::new(client, self.pool, landing, len as usize, over, wake)?;
        Some(Box::new(arrival))
    }

    fn refused(&self) -> Vec<(String, u64)> {
        self.refusals.counts()
    }

    fn remove_special(&self, ino: Ino) {
        // It exists only if a process has used it.
        let path = self.shm_dir.join(SPECIAL).join(format!("{:016x}", ino.0));
        let _ = std::fs::remove_file(path.with_extension("name"));
        let _ = std::fs::remove_file(path);
    }

    fn admit(&self, uid: u32) -> Result<(), FsError> {
        self.dirs.admit(uid).map_err(|errno| {
            tracing::warn!(uid, %errno, "a directory takes no access control list");
            FsError::NotSupported
        })
    }

    fn pool_bytes(&self) -> usize {
        self.pool.len()
    }

    fn program(&self, pid: u32) -> String {
        // The process may have ended: then it has no name.
        let name = std::fs::read_to_string(format!("/proc/{pid}/comm"));
        name.unwrap_or_default().trim_end().to_owned()
    }

    fn ofd_alive(&self, index: u32) -> bool {
        let mut lock = nix::libc::flock {
            l_type: 1,   // F_WRLCK: anybody's lock is in its way
            l_whence: 0, // SEEK_SET
            l_start: i64::try_from(lock_byte(index)).unwrap_or(i64::MAX),
            l_len: 1,
            l_pid: 0,
        };
        let asked = fcntl(&self.placeholder.watched, FcntlArg::F_OFD_GETLK(&mut lock));
        // On an error the description counts as alive, so that nothing is taken away.
        asked.is_err() || i32::from(lock.l_type) != nix::libc::F_UNLCK
    }
}

/// Returns true if [`Platform::barrier`] reaches clients: since Linux 4.16, if no filter forbids
/// it.
pub fn has_barriers() -> bool {
    membarrier_query().contains(MembarrierQuery::GLOBAL_EXPEDITED)
        && membarrier(MembarrierCommand::GlobalExpedited).is_ok()
}

/// Wakes all threads that sleep on a word, in any process.
pub fn wake(word: &AtomicU32) {
    // This fails only for invalid addresses.
    let _ = futex::wake(word, futex::Flags::empty(), i32::MAX as u32);
}

/// Descriptors that a server needs besides those of its clients and of its connections with other
/// servers: slabs of the file tier, tools.
const OWN_DESCRIPTORS: u64 = 256;
/// Connections with another server for requests in both directions, including old ones that end.
const CONNECTIONS_A_SERVER: u64 = 4;
/// A connection, a process descriptor, and a region while it is being mapped.
const DESCRIPTORS_A_CLIENT: u64 = 2;

/// The number of clients that there can be, at most `wanted`. Each client costs descriptors; the
/// limit of descriptors is raised as far as possible. `servers` is the number of servers.
pub fn clients_allowed(wanted: usize, servers: u16) -> usize {
    raise_descriptor_limit();
    let limit = getrlimit(Resource::Nofile).current;
    let own = OWN_DESCRIPTORS
        + CONNECTIONS_A_SERVER * u64::from(servers)
        + bulk::connections_most(servers.into()) as u64;
    let allowed = |limit: u64| limit.saturating_sub(own) / DESCRIPTORS_A_CLIENT;
    let allowed = limit.map_or(u64::MAX, allowed).max(1);
    let allowed = usize::try_from(allowed).unwrap_or(usize::MAX);
    if allowed < wanted {
        tracing::warn!(
            open_files = limit,
            clients = allowed,
            server_max_clients = wanted,
            "the limit of open files (ulimit -Hn) allows fewer clients than the settings"
        );
    }
    wanted.min(allowed)
}

fn raise_descriptor_limit() {
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit {
        current: limit.maximum,
        maximum: limit.maximum,
    };
    if let Err(errno) = setrlimit(Resource::Nofile, raised) {
        tracing::warn!(%errno, "the limit of open files stays as it is");
    }
}
