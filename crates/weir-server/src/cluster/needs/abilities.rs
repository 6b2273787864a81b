//! The abilities of a server that several rooms need.

use weir_core::journal::Item;
use weir_core::proto::{FsError, PathInTree};
use weir_core::types::Ino;

use crate::cluster::abilities::{FindsPaths, InodeNumbers, Journals};
use crate::cluster::peers::calls::ServerCalls;
use crate::cluster::Cluster;
use crate::node::Platform;

impl<P: Platform> InodeNumbers for Cluster<P> {
    fn global(&self, ino: Ino) -> Ino {
        if ino.rank() != self.rank() {
            return ino;
        }
        self.node(|node| node.names.attr_of(ino))
            .map_or(ino, |attr| attr.home)
    }

    fn local(&self, ino: Ino) -> Option<Ino> {
        match ino.rank() == self.rank() {
            true => Some(ino),
            false => self.inner.files.local_of(ino),
        }
    }
}

impl<P: Platform> FindsPaths for Cluster<P> {
    async fn path_by_homes(&self, dir: Ino) -> Result<PathInTree, FsError> {
        self.names().path_by_homes(dir).await
    }
}

impl<P: Platform> Journals for Cluster<P> {
    fn note(&self, item: &Item<'_>) {
        self.node(|node| node.note(item));
    }

    async fn announced(&self) {
        self.inner.journal.announced(self.peers().token()).await;
    }
}
