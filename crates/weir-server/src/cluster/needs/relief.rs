//! For writes that wait for room: the room, and the trees that files are in.

use weir_core::proto::FsStat;

use crate::cluster::storage::relief::{Relief, ReliefNeeds, RoomRelief};
use crate::cluster::Cluster;
use crate::node::Platform;

impl<P: Platform> Cluster<P> {
    /// Writes that wait for room.
    pub(in crate::cluster) fn relief(&self) -> Relief<Self> {
        Relief::new(self)
    }
}

impl<P: Platform> ReliefNeeds for Cluster<P> {
    fn relief_state(&self) -> &RoomRelief {
        &self.inner.relief
    }

    fn room(&self) -> FsStat {
        self.node(|node| node.segments.room(&node.names.counts()))
    }
}
