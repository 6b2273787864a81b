//! The clients of this server: admitting them.

use std::collections::BTreeSet;
use std::sync::atomic::Ordering;
use std::sync::Arc;

use weir_core::journal::Item;
use weir_core::node::channel;
use weir_core::proto::{ClientKind, FsError};
use weir_core::types::ClientId;

use crate::cluster::changes::NotedChanges;
use crate::cluster::clients::table::{Client, Clients};
use crate::node::{ClientMemory, Node, Platform, Visit};

/// Users other than the server's own whose programs may be clients.
#[derive(Debug, Default)]
pub(in crate::cluster) struct AdmittedUsers(BTreeSet<u32>);

impl AdmittedUsers {
    /// Visits the users.
    pub(in crate::cluster) fn show_users(&self, visit: Visit<'_>) {
        for uid in &self.0 {
            visit(&Item::UserAdmitted(*uid));
        }
    }

    /// Admits programs of another user as clients from now on.
    pub(in crate::cluster) fn admit(
        &mut self,
        uid: u32,
        platform: &impl Platform,
        changes: &mut NotedChanges,
    ) -> Result<(), FsError> {
        if self.0.contains(&uid) {
            return Ok(());
        }
        platform.admit(uid)?;
        tracing::info!(uid, "programs of another user are admitted");
        self.0.insert(uid);
        changes.note(&Item::UserAdmitted(uid));
        Ok(())
    }
}

impl<P: Platform> Node<'_, P> {
    /// The clients.
    pub fn clients(&self) -> &Clients<P::Memory> {
        &self.clients
    }

    /// Adds a client, with the fresh region of its number.
    pub fn admit(&mut self, id: ClientId, pid: u32, kind: ClientKind, memory: Arc<P::Memory>) {
        let header = memory.header();
        header.id.store(id.0, Ordering::Relaxed);
        header.pid.store(pid, Ordering::Relaxed);
        let is_mount = u64::from(kind == ClientKind::Mount);
        header.mount.store(is_mount, Ordering::Relaxed);
        header.records.reset();
        header.notes.reset();
        header.tail.reset();
        let channels = channel::FIRST_CHANNEL;
        header.channels.store(channels, Ordering::Relaxed);
        header
            .magic
            .store(weir_core::node::region::MAGIC, Ordering::Release);
        self.stats.clients_ever += 1;
        self.clients.insert(id, Client::new(memory, pid, kind));
        self.changes.note(&Item::ClientCame { client: id, pid });
    }
}
