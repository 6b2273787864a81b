//! The abilities of a server, and of its tables, that several rooms need.

use weir_core::journal::Item;
use weir_core::node::known::KnownNames;
use weir_core::proto::{FsError, PathInTree};
use weir_core::types::Ino;

use crate::cluster::abilities::{FindsPaths, InodeNumbers, Journals, NameTables, OwnTables};
use crate::cluster::node_names::NodeNames;
use crate::cluster::peers::calls::ServerCalls;
use crate::cluster::Cluster;
use crate::node::{Node, Platform};

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
        self.node(|node| node.changes.note(item));
    }

    async fn announced(&self) {
        self.inner.journal.announced(self.peers().token()).await;
    }

    fn has_announced(&self) -> bool {
        self.inner.journal.has_announced()
    }
}

impl<P: Platform> OwnTables for Cluster<P> {
    type Node = Node<'static, P>;

    fn node<R>(&self, act: impl FnOnce(&mut Node<'static, P>) -> R) -> R {
        self.node(act)
    }
}

impl<P: Platform> NameTables for Node<'static, P> {
    fn names(&mut self) -> &mut NodeNames<'static> {
        &mut self.names
    }

    fn known(&self) -> KnownNames<'static> {
        KnownNames::new(self.open.hub, self.open.known)
    }

    fn known_to_keep(&mut self) -> KnownNames<'static> {
        let now_ns = self.names.now_ns();
        let memory = &mut self.names_memory;
        memory.known_to_keep(&self.open, &self.platform, now_ns)
    }
}
