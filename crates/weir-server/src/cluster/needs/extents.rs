//! For published extents: files that nodes hold, and this server's own tables.

use weir_core::names::Attr;
use weir_core::node::claim::Claim;
use weir_core::proto::FsError;
use weir_core::types::{Ino, Rank};

use crate::cluster::extents::{
    ExtentsNeeds, ExtentsState, NodeWriters, NodeWrites, PublishedExtents, WriteTables,
};
use crate::cluster::files::FileParts;
use crate::cluster::net::LogBytes;
use crate::cluster::Cluster;
use crate::node::{Node, Platform};

impl<P: Platform> Cluster<P> {
    /// The extents of all files, as their slices' homes know them.
    pub(in crate::cluster) fn extents(&self) -> PublishedExtents<Self> {
        PublishedExtents::new(self)
    }
}

impl<P: Platform> ExtentsNeeds for Cluster<P> {
    fn extents_state(&self) -> &ExtentsState {
        &self.inner.extents
    }

    fn log(&self) -> &dyn LogBytes {
        &*self.inner.log
    }

    fn may_publish(&self, ino: Ino, local: Ino) -> Result<bool, FsError> {
        self.sharing().may_publish(ino, local)
    }

    fn holds_back(&self, ino: Ino) -> bool {
        self.sharing().holds_back(ino)
    }

    async fn hold_here(&self, ino: Ino, write: bool) -> Result<Attr, FsError> {
        self.stand_ins().hold_here(ino, write).await
    }

    async fn lease_here(&self, ino: Ino) -> Result<(), FsError> {
        self.stand_ins().lease_here(ino).await
    }

    fn attached_here(&self, ino: Ino, local: Ino) {
        self.appends().attached_here(ino, local);
    }

    async fn end_other_writes(&self, ino: Ino, claim: &Claim) -> Result<(), FsError> {
        self.tokens().end_other_writes(ino, claim).await
    }

    fn erased_from(&self, ino: Ino) -> u64 {
        self.truncation().erased_from(ino)
    }

    fn recall_here(&self, ino: Ino) {
        self.stand_ins().recall_here(ino);
    }

    fn forget_counted(&self, from: Rank, ino: Ino) {
        self.stand_ins().forget_counted(from, ino);
    }

    fn doubt_answers(&self, ino: Ino) {
        self.stand_ins().doubt_answers(ino);
    }
}

impl<P: Platform> WriteTables for Node<'static, P> {
    type Platform = P;

    fn writers(&self) -> NodeWriters<'_, 'static> {
        self.writers()
    }

    fn writes(&mut self) -> NodeWrites<'_, 'static, P> {
        self.writes()
    }
}
