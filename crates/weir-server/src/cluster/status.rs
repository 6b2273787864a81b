//! The state of servers, for tools.

use weir_core::proto::ServerStatus;

use crate::cluster::files::FileParts;
use crate::cluster::peers::calls::ServerCalls;
use crate::cluster::Cluster;
use crate::node::{Node, Platform};

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
        status.findings = self.audits().findings();
        status.rejected.extend(self.peers().net().refused());
        status
    }
}
