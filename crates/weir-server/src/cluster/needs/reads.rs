//! For reads of other nodes' bytes: the memory of clients and of the pool; files and their paths.

use std::sync::atomic::AtomicBool;
use std::sync::Arc;

use weir_core::proto::Landing;
use weir_core::types::{ClientId, Ino};
use weir_fabric::bulk;

use crate::cluster::files::FileParts;
use crate::cluster::reads::{ReadsNeeds, ReadsState, RemoteReads};
use crate::cluster::Cluster;
use crate::node::{Platform, Table};

impl<P: Platform> Cluster<P> {
    /// Reads of bytes that are at other nodes.
    pub(in crate::cluster) fn reads(&self) -> RemoteReads<Self> {
        RemoteReads::new(self)
    }
}

impl<P: Platform> ReadsNeeds for Cluster<P> {
    type Memory = P::Memory;

    fn reads_state(&self) -> &ReadsState<P::Memory> {
        &self.inner.reads
    }

    fn memory_of(&self, id: ClientId) -> Option<Arc<P::Memory>> {
        self.node(|node| Some(Arc::clone(&node.clients.get(id)?.memory)))
    }

    fn pool_memory(&self, wanted: usize) -> usize {
        self.node(|node| node.platform.present(Table::Pool, wanted))
    }

    fn landing(
        &self,
        client: &Arc<P::Memory>,
        landing: Landing,
        len: u32,
        over: &Arc<AtomicBool>,
    ) -> Option<Box<dyn bulk::Landing>> {
        self.node(|node| node.platform.landing(client, landing, len, over))
    }

    fn laminated_here(&self, ino: Ino) -> Option<Ino> {
        self.sharing().laminated_here(ino)
    }

    async fn path_of_file(&self, ino: Ino) -> String {
        self.audits().path_of_file(ino).await
    }
}
