//! Extended attributes: requests for those of an inode go to its home.

use weir_core::proto::{self, peer, Caller, FsError};

use crate::cluster::files::{ExtendedAttributes, FileParts, FileSteps, FilesNeeds};

impl<S: FilesNeeds> ExtendedAttributes<S> {
    pub(in crate::cluster) async fn get_xattr_for_client(
        &self,
        op: proto::GetXattr,
    ) -> Result<Vec<u8>, FsError> {
        let (ino, name) = (self.server.resolve(op.ino)?, op.name);
        self.server
            .call(ino.rank(), peer::GetXattr { ino, name })
            .await
    }

    pub(in crate::cluster) async fn list_xattrs_for_client(
        &self,
        op: proto::ListXattrs,
    ) -> Result<Vec<u8>, FsError> {
        let ino = self.server.resolve(op.ino)?;
        self.server.call(ino.rank(), peer::ListXattrs { ino }).await
    }

    /// Sets an attribute. The parts of a value are put together here; its home gets it whole.
    pub(in crate::cluster) async fn set_xattr_for_client(
        &self,
        from: Caller,
        op: proto::SetXattr,
    ) -> Result<(), FsError> {
        let ino = self.server.resolve(op.ino)?;
        let Some(set) = self
            .server
            .node(|node| node.files().tables.take_xattr_part(from, op))?
        else {
            return Ok(());
        };
        self.server
            .call(ino.rank(), peer::SetXattr { ino, ..set })
            .await?;
        self.server.stand_ins().recall_here(ino);
        Ok(())
    }

    pub(in crate::cluster) async fn remove_xattr_for_client(
        &self,
        op: proto::RemoveXattr,
    ) -> Result<(), FsError> {
        let (ino, name) = (self.server.resolve(op.ino)?, op.name);
        let removal = peer::RemoveXattr { ino, name };
        self.server.call(ino.rank(), removal).await?;
        self.server.stand_ins().recall_here(ino);
        Ok(())
    }

    pub(in crate::cluster) async fn set_xattr_at_home(
        &self,
        op: peer::SetXattr,
    ) -> Result<(), FsError> {
        self.server.node(|node| {
            let mut files = node.files();
            files.set_xattr(op.ino, &op.name, &op.value, op.flags)
        })?;
        // The attributes were changed with it.
        self.server
            .stand_ins()
            .set_attr_at_home(proto::SetAttr::nothing(op.ino))
            .await
    }

    pub(in crate::cluster) async fn remove_xattr_at_home(
        &self,
        op: peer::RemoveXattr,
    ) -> Result<(), FsError> {
        self.server
            .node(|node| node.files().remove_xattr(op.ino, &op.name))?;
        self.server
            .stand_ins()
            .set_attr_at_home(proto::SetAttr::nothing(op.ino))
            .await
    }
}
