//! The state of a server according to its own tables.

use weir_core::proto::peer;
use weir_core::proto::{FsError, ServerStatus};
use weir_core::types::Rank;

use crate::cluster::peers::calls::ServerCalls;
use crate::cluster::Cluster;
use crate::node::{ClientMemory, Node, Platform};

impl<P: Platform> Cluster<P> {
    /// The state of this server.
    pub fn status_here(&self) -> ServerStatus {
        let mut status = self.node(Node::report);
        if self.peers().servers() == 1 {
            return status; // the rest is about other servers
        }
        status.runs += self.extents().published_runs() as u64;
        let asked = self.peers().asked().into_iter();
        let of_peers = asked.map(|(name, count)| (format!("peer {name}"), count));
        status.requests.extend(of_peers);
        status.counters.extend(self.peers().moved());
        let (kept_bytes, kept_hits) = self.reads().kept();
        let kept = [("kept bytes", kept_bytes), ("kept hits", kept_hits)];
        let kept = kept.into_iter().filter(|(_, count)| *count > 0);
        let kept = kept.map(|(name, count)| (name.to_owned(), count));
        status.requests.extend(kept);
        status.findings = self.findings();
        status.rejected.extend(self.peers().net().refused());
        status
    }

    /// The state of every server that answers, in the order of ranks.
    pub async fn status_of_all(&self) -> Vec<(Rank, Result<ServerStatus, FsError>)> {
        let mut all = Vec::new();
        for rank in self.peers().ranks() {
            all.push((rank, self.call(rank, peer::Status {}).await));
        }
        all
    }
}

impl<P: Platform> Node<'_, P> {
    /// The state of the server, after a harvest of all clients.
    pub fn report(&mut self) -> ServerStatus {
        self.take_all_notes();
        self.harvest_all();
        self.sweep();
        let counts = self.names.counts();
        let mut folded = self.stats.folded();
        for (_, client) in self.clients.iter() {
            folded.add(client.memory.header());
            folded.add_written(self.uncounted(client.cells.iter().copied()));
        }
        let mounts = self.clients.iter().filter(|(id, _)| self.is_mount(*id));
        let (ghosts, mounts): (Vec<_>, Vec<_>) = mounts.partition(|(_, client)| client.ghost);
        let runs = self.extents.run_count();
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
            recoverable: self.is_recoverable(),
            attached: self.parties_attached(),
        }
    }
}
