//! The operations that change this server's tables only.

use weir_core::proto::{
    Admit, Caller, Control, FsError, FsStat, HarvestRing, LocalOperations, OfdBatch, Ping,
    SetMapped, Statfs,
};
use weir_core::types::ClientId;

use crate::node::{Node, Platform};

impl<P: Platform> LocalOperations for Node<'_, P> {
    fn ping(&mut self, _: Caller, _: Ping) -> Result<(), FsError> {
        Ok(())
    }

    fn harvest_ring(&mut self, from: ClientId, _: HarvestRing) -> Result<(), FsError> {
        self.writes().harvest_ring(from);
        Ok(())
    }

    fn ofd_batch(&mut self, from: ClientId, _: OfdBatch) -> Result<u32, FsError> {
        self.descriptions().lend_batch(from)
    }

    fn statfs(&mut self, _: Caller, _: Statfs) -> Result<FsStat, FsError> {
        Ok(self.segments.room(&self.names.counts()))
    }

    fn set_mapped(&mut self, from: ClientId, op: SetMapped) -> Result<(), FsError> {
        if !self.clients.is_mount(from) {
            return Err(FsError::NotPermitted);
        }
        self.files().keep_pages(from, op.ino, op.mapped)
    }

    fn admit(&mut self, _: Control, op: Admit) -> Result<(), FsError> {
        self.admitted_users
            .admit(op.uid, &self.platform, &mut self.changes)
    }
}
