//! For published extents: files that nodes hold, and this server's own tables.

use weir_core::extent::Run;
use weir_core::names::Attr;
use weir_core::node::claim::Claim;
use weir_core::proto::peer::LogRange;
use weir_core::proto::{Allocate, Attached, FsError, Located};
use weir_core::types::{ClientId, Ino, Rank};

use crate::cluster::extents::pending::Pending;
use crate::cluster::extents::{ExtentSteps, ExtentsNeeds, ExtentsState, PublishedExtents};
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

impl<P: Platform> ExtentSteps for Node<'static, P> {
    fn attr_of(&self, local: Ino) -> Result<Attr, FsError> {
        self.names.attr_of(local)
    }

    fn attach_client(&mut self, id: ClientId, local: Ino) -> Result<Attached, FsError> {
        self.attach_client(id, local)
    }

    fn unpublished(&mut self) -> Vec<Ino> {
        self.unpublished()
    }

    fn take_pending(&mut self, local: Ino) -> Result<Pending, FsError> {
        self.take_pending(local)
    }

    fn file_slabs_of(&self, runs: &[Run]) -> Vec<u32> {
        self.file_slabs_of(runs)
    }

    fn file_slabs(&mut self, local: Ino) -> Result<Vec<u32>, FsError> {
        self.file_slabs(local)
    }

    fn touch_generation(&mut self, local: Ino) {
        let _ = self.names.bump_index_generation(local);
    }

    fn free_bytes(&mut self, range: &LogRange) {
        self.free_bytes(range);
    }

    fn locate_range(&mut self, local: Ino, offset: u64, length: u64) -> Result<Located, FsError> {
        self.locate_range(local, offset, length)
    }

    fn allocate_range(&mut self, op: &Allocate) -> Result<(), FsError> {
        self.allocate_range(op)
    }
}
