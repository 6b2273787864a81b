//! Recovery of a node from the journal of a killed server, and from the records that its clients
//! left in shared memory.
//!
//! The clients of the killed server have ended, even if their processes live. Their records are
//! harvested; their connections, descriptions and locks are not taken up again. But a live process may
//! still be copying into a segment, so its segments stay lent until it ends.

use std::sync::atomic::{fence, Ordering};
use std::sync::Arc;

use weir_core::journal::State;
use weir_core::types::ClientId;

use crate::node::{Accounts, Node, OpenRegion, Platform, RecoverError};

/// The result of a recovery.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct RecoveredCounts {
    /// Inodes.
    pub inodes: usize,
    /// Clients of the killed server.
    pub clients: usize,
    /// The number of those clients whose processes still live.
    pub alive: usize,
}

/// Tells the clients of the killed server that it is gone, so that none of them continues.
pub fn stop_clients(before: &OpenRegion<'_>, state: &State) {
    before.hub.stopped.store(1, Ordering::SeqCst);
    for attached in state.cells.values() {
        if let Some(block) = before.blocks.get(attached.block as usize) {
            block.end_claims();
        }
    }
    // A client shows its write and then looks if it is stopped. Here the order is the reverse, so
    // that one of the two sees the other.
    fence(Ordering::SeqCst);
}

impl<'m, P: Platform> Node<'m, P> {
    /// Takes up the state of a killed server. The tables of names are already those of that server;
    /// this node's other tables are empty. Its `open` region is that of the killed server.
    pub fn take_up(
        &mut self,
        state: &mut State,
        memory: impl Fn(ClientId) -> Option<Arc<P::Memory>>,
        now_ns: i64,
    ) -> Result<RecoveredCounts, RecoverError> {
        self.clock.set(now_ns);
        let clients = state.clients.len();
        self.writes().take_up_files(state);
        for uid in &state.admitted {
            let users = &mut self.admitted_users;
            if let Err(error) = users.admit(*uid, &self.platform, &mut self.changes) {
                tracing::warn!(uid, %error, "programs of this user are not admitted any more");
            }
        }
        self.clients.take_up(state, memory)?;
        self.writes().take_up_cells(state)?;
        let mut alive = 0;
        for id in self.clients.ids() {
            let pid = self.clients.get(id).map_or(0, |client| client.pid);
            if self.platform.lives(pid) {
                alive += 1;
                // Nothing that it writes from now on counts.
                self.take_notes(id);
                self.writes().harvest_client(id);
                self.writes().detach_cells_of(id);
            } else {
                // Rings of live clients keep the taken records until a journal has them.
                self.bury(id);
            }
        }
        self.writes().cut_beyond_ends();
        self.extents.take_up_published_log(&mut state.published_log);
        let is_of_several = self.identity.is_of_several();
        self.files().take_up(state, is_of_several);
        Ok(RecoveredCounts {
            inodes: state.inodes.len(),
            clients,
            alive,
        })
    }

    /// Continues with another `open` region, in which nothing is lent.
    pub fn reopen(&mut self, open: OpenRegion<'m>) -> Result<(), RecoverError> {
        self.open = open;
        self.extents.reopen(&open);
        self.files.reopen(&open);
        self.sweep();
        // No writers are left: the clients know that their server is gone.
        let mut accounts = Accounts::default();
        let rank = self.identity.rank.0;
        self.extents.count_bytes(rank, &mut accounts);
        for (id, client) in self.clients.iter() {
            let held = client.leases.iter();
            let held = held.map(|l| (id, l.segment, l.end - l.pos));
            accounts.held.extend(held);
        }
        let slabs = accounts.live.iter().chain(&accounts.amounts);
        if slabs
            .into_iter()
            .any(|(slab, ..)| self.segments.is_file(*slab))
        {
            open.hub.uses_files.store(1, Ordering::Release);
        }
        self.segments.resume(&accounts)
    }

    /// Removes the clients of the killed server whose processes have ended since, and returns their
    /// numbers. The caller removes their regions.
    pub fn drop_dead_ghosts(&mut self, now_ns: i64) -> Vec<ClientId> {
        let dead: Vec<ClientId> = self
            .clients
            .iter()
            .filter(|(_, client)| client.ghost && !self.platform.lives(client.pid))
            .map(|(id, _)| id)
            .collect();
        for id in &dead {
            self.gone(*id, now_ns);
        }
        dead
    }
}
