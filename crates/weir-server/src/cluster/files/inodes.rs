//! Inodes of files in this node's table: those of this server, and the stand-ins of other servers'.

use std::sync::atomic::Ordering;

use weir_core::names::{Attr, FileType, SetAttr};
use weir_core::node::block::FileBlock;
use weir_core::proto::{self, FsError};
use weir_core::types::Ino;

use crate::cluster::refusal::refusal;
use crate::node::{Node, Platform};

/// The set-user-id and the set-group-id bit.
const SET_ID: u32 = 0o6000;

impl<P: Platform> Node<'_, P> {
    /// The attributes, including the writes of this node's writers.
    pub(in crate::cluster) fn attr_now(&self, ino: Ino) -> Result<Attr, FsError> {
        let mut attr = self.names.attr_of(ino)?;
        if attr.file_type() == FileType::File {
            attr.size = self.size_of(&attr);
            attr.mtime_ns = self.mtime_of(&attr);
        }
        Ok(attr)
    }

    /// Ends a stand-in that no process here has open, unless it has unpublished extents.
    pub(in crate::cluster) fn end_stand_in(&mut self, local: Ino) -> bool {
        let unused = !self.is_written(local);
        if unused {
            self.extents.keep_stored(local, 0);
        }
        unused && self.names.disown_file(local).is_ok()
    }

    /// Updates a stand-in. This node's writers may be ahead of `attr`: also those that have ended, of
    /// whose bytes the home does not know yet.
    pub(in crate::cluster) fn refresh(
        &mut self,
        local: Ino,
        attr: &Attr,
        leased: bool,
    ) -> Result<(), FsError> {
        let attr = &Attr {
            size: attr.size.max(self.extents.end_of_data(local)),
            ..*attr
        };
        self.names
            .refresh_stand_in(local, attr, leased)
            .map_err(refusal)?;
        self.extents.keep_stored(local, attr.allocated);
        if let Some(block) = self.shared_block(local) {
            block.raise(attr.size);
        }
        Ok(())
    }

    /// Makes writers ask for the position of each append. Returns the file's end, with the
    /// positions that appends have reserved.
    pub(in crate::cluster) fn share_appends(&mut self, local: Ino) -> u64 {
        let block = self.shared_block(local);
        let reserved = block.map_or(0, FileBlock::share_appends);
        let size = self.attr_now(local).map_or(0, |attr| attr.size);
        size.max(reserved)
    }

    /// Sets the tokens of a file, which tell this node's writers if they must ask before they begin
    /// a record: see [`weir_core::node::block`].
    pub(in crate::cluster) fn set_tokens(&self, local: Ino, tokens: u64) {
        if let Some(block) = self.shared_block(local) {
            block.tokens.store(tokens, Ordering::SeqCst);
        }
    }

    /// Makes this node's writers of a raw file ask from now on. Consider a write that did not ask:
    /// when this returns, its record is in the cells, or the write itself will find that it must
    /// ask.
    pub(in crate::cluster) fn revoke_writes(&self, local: Ino) {
        if let Some(block) = self.shared_block(local) {
            block.revoke();
            self.platform.barrier();
        }
    }

    /// Raises a file's size to at least `size`, and its times to at least `mtime_ns`.
    pub(in crate::cluster) fn raise_to(
        &mut self,
        ino: Ino,
        size: u64,
        mtime_ns: i64,
    ) -> Result<(), FsError> {
        let attr = self.names.regular(ino)?;
        self.raise_size(&attr, size);
        let set = SetAttr {
            mtime_ns: (mtime_ns > attr.mtime_ns).then_some(mtime_ns),
            ctime_ns: (mtime_ns > attr.ctime_ns).then_some(mtime_ns),
            ..Default::default()
        };
        self.names.setattr(ino, &set).map(drop).map_err(refusal)
    }

    pub(in crate::cluster) fn set_attributes(
        &mut self,
        op: &proto::SetAttr,
    ) -> Result<(), FsError> {
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
            ctime_ns: Some(self.time()),
            policy: op.policy,
            ..SetAttr::default()
        };
        if op.mtime_ns.is_some() {
            self.forget_cell_times(op.ino);
        }
        self.names.setattr(op.ino, &set).map_err(refusal)?;
        if op.mode.is_some_and(|mode| mode & SET_ID != 0) {
            // The next writer checks the bits, and clears them.
            if let Some(block) = self.shared_block(op.ino) {
                block.end_claims();
            }
        }
        Ok(())
    }
}
