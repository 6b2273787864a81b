//! Taking over from a killed server, in its directories.
//!
//! The server removes or changes nothing of the remains until a new journal has replaced the old
//! one. The new journal has the content of the old one and the records that clients wrote since. So
//! a server that is killed during the recovery can itself be recovered.
//!
//! 1. The server reads the journal.
//! 2. It renames the region `open` to `open.old`, unless that exists already. It stops the clients
//!    of the killed server: it marks the region as stopped, ends the claims, and makes the tables
//!    of names that they have mapped void. So a write or close that returns after this fails, and
//!    the record of one that returned before is in the cells.
//! 3. It makes a node from the journal, and harvests the cells and rings.
//! 4. It begins the journal anew, and removes `open.old`.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use weir_core::journal::{replay, Cluster as ClusterState, Head, Replayed};
use weir_core::names::Shard;
use weir_core::types::{ClientId, Rank};
use weir_store::journal::{JournalFile, JOURNAL};

use super::clock::now_ns;
use super::kernel::Kernel;
use super::refusals::ConnectionRefusals;
use super::regions::Instance;
use super::storage::Storage;
use super::{regions, ServerError};
use crate::node::{stop_clients, Identity, Journal, Node, OpenRegion, Visit};

/// The least time between two tries to begin another journal after the journal was given up.
const RETRY: Duration = Duration::from_secs(1);

/// The file of the node's journal.
struct File {
    file: JournalFile,
    /// The time at which it was last begun anew, and its length then.
    begun: Option<(Instant, usize)>,
}

impl Journal for File {
    fn append(&mut self, items: &[u8]) {
        if let Err(error) = self.file.append(items) {
            // This is logged once: afterwards there is no journal.
            if error != weir_store::journal::JournalFileError::GivenUp {
                tracing::error!(%error, "the journal is given up: a server that is killed now cannot be started again");
            }
        }
    }

    fn is_long(&self) -> bool {
        let tried = self.begun.is_some_and(|(at, _)| at.elapsed() < RETRY);
        self.file.is_long() || (!self.file.is_whole() && !tried)
    }

    fn is_whole(&self) -> bool {
        self.file.is_whole()
    }

    fn begin_anew(&mut self) -> bool {
        self.begun = Some((Instant::now(), self.file.len_bytes()));
        let begun = self.file.begin_anew();
        if let Err(error) = &begun {
            tracing::warn!(%error, "the journal cannot be begun anew");
        }
        begun.is_ok()
    }

    fn add(&mut self, items: &[u8]) -> bool {
        let added = self.file.add(items);
        if let Err(error) = &added {
            tracing::warn!(%error, "the journal cannot be begun anew");
        }
        added.is_ok()
    }

    fn take_over(&mut self) {
        if let Err(error) = self.file.take_over() {
            return tracing::warn!(%error, "the journal cannot be begun anew");
        }
        let (begun, before) = self.begun.take().unwrap_or((Instant::now(), 0));
        tracing::info!(
            from_bytes = before,
            to_bytes = self.file.len_bytes(),
            took_us = begun.elapsed().as_micros(),
            "the journal was begun anew, in steps"
        );
    }

    fn tidy(&mut self) -> bool {
        self.file.free_some()
    }
}

/// The remains of a killed server.
pub struct Remains {
    replayed: Replayed,
    path: PathBuf,
}

/// The owner of a journal.
#[derive(Clone, Copy, Debug)]
pub struct ServerIdentity {
    /// The server.
    pub rank: Rank,
    /// The number of servers.
    pub servers: u16,
    /// The instance; zeros with one server.
    pub instance: [u8; 16],
}

/// Reads the remains in `shm_dir`; `None` if there are none.
pub fn look(shm_dir: &Path, whose: &ServerIdentity) -> Result<Option<Remains>, ServerError> {
    let path = shm_dir.join(JOURNAL);
    let unusable = |why: String| ServerError::Journal {
        path: path.clone(),
        why,
    };
    let bytes = weir_store::journal::read(shm_dir).map_err(|error| unusable(error.to_string()))?;
    let Some(bytes) = bytes else {
        return Ok(None);
    };
    let replayed = replay(&bytes).map_err(|error| unusable(error.to_string()))?;
    let head = &replayed.head;
    let ServerIdentity { rank, servers, .. } = *whose;
    if (head.rank, head.servers) != (rank, servers) {
        return Err(unusable(format!(
            "it is of server {} of {}, not of server {} of {servers}",
            head.rank.0, head.servers, rank.0
        )));
    }
    if head.instance != whose.instance {
        return Err(unusable("it is of another instance".to_owned()));
    }
    if let Some(torn) = replayed.torn {
        tracing::warn!(
            at = torn.at,
            bytes = torn.bytes,
            "the journal's last record was being written: dropped"
        );
    }
    Ok(Some(Remains { replayed, path }))
}

/// Makes the node that takes over from the killed one.
pub fn take_up(
    instance: &Instance,
    remains: Remains,
    identity: Identity,
    space: Storage,
    refusals: &Arc<ConnectionRefusals>,
    open: OpenRegion<'static>,
    max_clients: usize,
) -> Result<(Node<'static, Kernel>, ClusterState), ServerError> {
    let begun = std::time::Instant::now();
    let Remains { replayed, path } = remains;
    let mut state = replayed.state;
    let before = instance.open_of_before()?;
    stop_clients(&before, &state);
    instance.condemn_names();
    let unusable = |why: String| ServerError::Journal {
        path: path.clone(),
        why,
    };
    let tables = instance.new_names(identity.rank, Shard::prefix_of_state(&state))?;
    let names = Shard::restore(tables, &state).map_err(|error| unusable(error.to_string()))?;
    let platform = Kernel::new(instance, Arc::clone(refusals))?;
    let mut node = Node::new(identity, before, names, space, platform, max_clients);
    let region = |id: ClientId| instance.client_region_of_before(id).map(Arc::new);
    let found = node
        .take_up(&mut state, region, now_ns())
        .map_err(|error| unusable(error.to_string()))?;
    node.reopen(open)
        .map_err(|error| unusable(error.to_string()))?;
    tracing::info!(
        records = replayed.frames,
        inodes = found.inodes,
        clients = found.clients,
        alive = found.alive,
        took_us = begun.elapsed().as_micros(),
        "took up what a killed server left"
    );
    Ok((node, std::mem::take(&mut state.cluster)))
}

/// Begins a node's journal, with its present state.
pub fn begin_journal(
    instance: &Instance,
    node: &mut Node<'static, Kernel>,
    whose: &ServerIdentity,
    others: &dyn Fn(Visit<'_>),
) -> Result<(), ServerError> {
    let head = Head {
        rank: whose.rank,
        servers: whose.servers,
        instance: whose.instance,
        made_ns: now_ns(),
    };
    let file = JournalFile::create(instance.shm_dir(), head, &mut |out| {
        node.for_each_item(&mut |item| out.add(item));
        others(&mut |item| out.add(item));
    });
    let file = file.map_err(|error| ServerError::Journal {
        path: instance.shm_dir().join(JOURNAL),
        why: error.to_string(),
    })?;
    node.keep_journal(Box::new(File { file, begun: None }));
    let keep: Vec<ClientId> = node.clients().ids();
    instance.clear_what_was_before(&keep);
    Ok(())
}

/// The text that explains how to proceed with remains that cannot be used.
pub fn advice(shm_dir: &Path) -> String {
    let path = regions::text(&shm_dir.join(JOURNAL)).unwrap_or_default();
    format!("nothing was changed; to give up what the killed server held, remove {path} and start again")
}
