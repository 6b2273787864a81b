//! Inodes of files in this node's table: those of this server, and the stand-ins of other servers'.

use weir_core::names::{Attr, FileType, SetAttr};
use weir_core::proto::{self, FsError};
use weir_core::types::Ino;

use crate::cluster::files::NodeFiles;
use crate::cluster::refusal::refusal;

/// The set-user-id and the set-group-id bit.
const SET_ID: u32 = 0o6000;

impl NodeFiles<'_, '_> {
    /// Ends a stand-in that no process here has open, unless it has unpublished extents.
    pub(super) fn end_stand_in(&mut self, local: Ino) -> bool {
        let unused = !self.writers().is_written(local);
        if unused {
            self.extents.keep_stored(local, 0);
        }
        unused && self.names.disown_file(local).is_ok()
    }

    /// Updates a stand-in. This node's writers may be ahead of `attr`, and so may ended ones, of whose bytes the home
    /// does not know yet.
    pub(super) fn refresh(&mut self, local: Ino, attr: &Attr, leased: bool) -> Result<(), FsError> {
        let attr = &Attr {
            size: attr.size.max(self.extents.end_of_data(local)),
            ..*attr
        };
        self.names
            .refresh_stand_in(local, attr, leased)
            .map_err(refusal)?;
        self.extents.keep_stored(local, attr.allocated);
        if let Some(block) = self.writers().shared_block(local) {
            block.raise(attr.size);
        }
        Ok(())
    }

    /// Sets attributes.
    pub(super) fn set_attributes(&mut self, op: &proto::SetAttr) -> Result<(), FsError> {
        let attr = self.names.attr(op.ino).map_err(refusal)?;
        let own_file = attr.file_type() == FileType::File && attr.home == attr.ino;
        if let Some(mode) = op.mode.filter(|_| own_file) {
            self.note_mode(&attr, mode)?;
        }
        let set = SetAttr {
            mode: op.mode,
            uid: op.uid,
            gid: op.gid,
            atime_ns: op.atime_ns,
            mtime_ns: op.mtime_ns,
            ctime_ns: Some(self.names.now_ns()),
            policy: op.policy,
            ..SetAttr::default()
        };
        if op.mtime_ns.is_some() {
            self.writers().forget_cell_times(op.ino);
        }
        self.names.setattr(op.ino, &set).map_err(refusal)?;
        if op.mode.is_some_and(|mode| mode & SET_ID != 0) {
            // The next writer checks the bits, and clears them.
            if let Some(block) = self.writers().shared_block(op.ino) {
                block.end_claims();
            }
        }
        Ok(())
    }
}
