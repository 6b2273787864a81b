//! For locks: the owners, which are clients and descriptions; and files that become raw.

use std::collections::BTreeSet;
use std::sync::atomic::Ordering;

use weir_core::proto::FsError;
use weir_core::types::{ClientId, Ino};

use crate::cluster::clients::table::Clients;
use crate::cluster::files::descriptions::{is_shared, OpenDescriptions};
use crate::cluster::files::FileParts;
use crate::cluster::locks::table::Owner;
use crate::cluster::locks::{InstanceLocks, LockOwners, LocksNeeds, LocksState, NodeLocks};
use crate::cluster::node_names::NodeNames;
use crate::cluster::Cluster;
use crate::node::{Node, OpenRegion, Platform};

impl<P: Platform> Cluster<P> {
    /// The locks of all servers' files.
    pub(in crate::cluster) fn locks(&self) -> InstanceLocks<Self> {
        InstanceLocks::new(self)
    }
}

impl<P: Platform> LocksNeeds for Cluster<P> {
    fn locks_state(&self) -> &LocksState {
        &self.inner.locks
    }

    fn on_node_locks<R>(&self, act: impl FnOnce(&mut NodeLocks<'_>) -> R) -> R {
        self.node(|node| node.with_locks(act))
    }

    async fn share_by_locks(&self, ino: Ino) -> Result<(), FsError> {
        self.sharing().share_by_locks(ino).await
    }
}

impl<P: Platform> Node<'_, P> {
    /// Runs `act` on the locks of this server's files.
    pub(in crate::cluster) fn with_locks<R>(
        &mut self,
        act: impl FnOnce(&mut NodeLocks<'_>) -> R,
    ) -> R {
        let owners = OwnersHere {
            names: &self.names,
            clients: &self.clients,
            descriptions: self.files.opened(&self.open),
            open: &self.open,
            platform: &self.platform,
        };
        act(&mut NodeLocks::new(&mut self.locks, &owners))
    }

    /// Drops the locks of dead owners, and wakes the clients that waited for them.
    pub(in crate::cluster) fn drop_dead_locks(&mut self) {
        self.with_locks(|locks| {
            locks.drop_dead_locks();
        });
    }
}

/// The owners of locks of this node.
struct OwnersHere<'a, 'm, P: Platform> {
    names: &'a NodeNames<'m>,
    clients: &'a Clients<P::Memory>,
    descriptions: OpenDescriptions<'a, 'm>,
    open: &'a OpenRegion<'m>,
    platform: &'a P,
}

impl<P: Platform> LockOwners for OwnersHere<'_, '_, P> {
    fn lives(&self, owner: Owner) -> bool {
        match owner {
            Owner::Client(id) => self.clients.get(id).is_some(),
            Owner::Remote(..) => true,
            Owner::Ofd { index, generation } => {
                let ofd = &self.open.ofds[index as usize];
                ofd.ino.load(Ordering::Acquire) != 0
                    && ofd.generation.load(Ordering::Acquire) == generation
                    && (!is_shared(ofd) || self.platform.ofd_alive(index))
            }
        }
    }

    fn description(&self, from: ClientId, index: u32, ino: Ino) -> Option<Owner> {
        let ofd = self.descriptions.used_by(from, index)?;
        (ofd.ino.load(Ordering::Acquire) == ino.0).then(|| Owner::Ofd {
            index,
            generation: ofd.generation.load(Ordering::Acquire),
        })
    }

    fn pid(&self, id: ClientId) -> Option<u32> {
        self.clients.pid(id)
    }

    fn check_file(&self, ino: Ino) -> Result<(), FsError> {
        self.names.attr_of(ino).map(drop)
    }

    fn wake(&self, clients: &BTreeSet<ClientId>) {
        self.clients.wake_waiters(self.platform, clients);
    }
}
