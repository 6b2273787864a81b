//! The state of a server according to its own tables.

use weir_core::proto::{ClientKind, ServerStatus};

use crate::node::{ClientMemory, Node, Platform};

impl<P: Platform> Node<'_, P> {
    /// The state of the server, after a harvest of all clients.
    pub fn report(&mut self) -> ServerStatus {
        self.take_in_all();
        let counts = self.names.counts();
        let mut folded = self.stats.folded();
        for (_, client) in self.clients.iter() {
            folded.add(client.memory.header());
            folded.add_written(self.writers().uncounted(client.cells.iter().copied()));
        }
        let clients = self.clients.iter();
        let mounts = clients.filter(|(_, client)| client.kind == ClientKind::Mount);
        let (ghosts, mounts): (Vec<_>, Vec<_>) = mounts.partition(|(_, client)| client.ghost);
        let runs = self.extents.run_count();
        let opened = self.files.opened(&self.open);
        ServerStatus {
            pid: self.identity.pid,
            rank: self.identity.rank.0,
            servers: self.identity.servers,
            started_ns: self.identity.started_ns,
            clients: u32::try_from(self.clients.iter().count() - mounts.len() - ghosts.len())
                .unwrap_or(u32::MAX),
            clients_ever: self.stats.clients_ever - mounts.len() as u64,
            files: counts.files + counts.symlinks,
            directories: counts.dirs.saturating_sub(1),
            runs: runs as u64,
            tiers: self.segments.usage(),
            counters: folded.counters(),
            refused: folded.refused(),
            requests: self.stats.requests(),
            rejected: [self.stats.rejected(), self.platform.refused()].concat(),
            findings: Vec::new(),
            recoverable: self.journal.is_recoverable(),
            attached: self.parties().attached(|id| opened.has_open(id)),
        }
    }
}
