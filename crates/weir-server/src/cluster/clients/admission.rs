//! The clients of this server: admitting them, and their requests.

use std::collections::BTreeSet;
use std::sync::atomic::Ordering;
use std::sync::Arc;

use weir_core::journal::Item;
use weir_core::node::channel;
use weir_core::proto::{Caller, ClientKind, FsError, Request};
use weir_core::types::ClientId;

use crate::cluster::clients::table::Client;
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
}

impl<P: Platform> Node<'_, P> {
    /// Admits programs of another user as clients from now on.
    pub(in crate::cluster) fn admit_user(&mut self, uid: u32) -> Result<(), FsError> {
        if self.admitted_users.0.contains(&uid) {
            return Ok(());
        }
        self.platform.admit(uid)?;
        tracing::info!(uid, "programs of another user are admitted");
        self.admitted_users.0.insert(uid);
        self.changes.note(&Item::UserAdmitted(uid));
        Ok(())
    }

    /// The number for the next client; `None`: there are too many.
    pub fn vacant_client(&self, kind: ClientKind) -> Option<ClientId> {
        self.clients.vacant(kind)
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

    /// The region of a client.
    pub(in crate::cluster) fn memory_of(&self, id: ClientId) -> Option<Arc<P::Memory>> {
        Some(Arc::clone(&self.clients.get(id)?.memory))
    }

    /// Decodes a request of a client or a tool, and counts it.
    pub(in crate::cluster) fn decoded(
        &mut self,
        from: Caller,
        bytes: &[u8],
    ) -> Result<Request, FsError> {
        let request = postcard::from_bytes::<Request>(bytes);
        let name = request.as_ref().map_or("malformed", Request::name);
        self.stats.count_request(name);
        request.map_err(|_| {
            let about = || format!("{from:?}: {} bytes", bytes.len());
            self.stats.reject("request", about);
            FsError::Malformed
        })
    }

    /// Returns true if a client's connection stands.
    pub fn is_connected(&self, id: ClientId) -> bool {
        self.clients.get(id).is_some_and(|client| client.connected)
    }

    /// The numbers of all clients.
    pub fn client_ids(&self) -> Vec<ClientId> {
        self.clients.ids()
    }

    /// The process of a client.
    pub fn client_pid(&self, id: ClientId) -> Option<u32> {
        Some(self.clients.get(id)?.pid)
    }
}
