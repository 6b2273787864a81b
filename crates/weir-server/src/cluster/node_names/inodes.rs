//! The inodes of this server, and the stand-ins of others: their attributes, and changes of a single one.

use weir_core::extent::MAX_OFFSET;
use weir_core::names::{Attr, FileType, Lamination, Policy, SetAttr};
use weir_core::proto::FsError;
use weir_core::types::Ino;

use crate::cluster::node_names::NodeNames;
use crate::cluster::refusal::refusal;

impl NodeNames<'_> {
    /// The files of this server, with their sizes in the table.
    pub(in crate::cluster) fn own_sizes(&self) -> Vec<(Ino, u64)> {
        let files = self.shard.own_files();
        files.map(|attr| (attr.ino, attr.size)).collect()
    }

    pub(in crate::cluster) fn adopt_file(&mut self, attr: &Attr) -> Result<Ino, FsError> {
        self.shard.adopt_file(attr).map_err(refusal)
    }

    /// Makes void what readers of this node know of a file.
    pub(in crate::cluster) fn recall(&mut self, local: Ino) {
        if self.shard.recall_stand_in(local).is_err() {
            let _ = self.shard.bump_index_generation(local);
        }
    }

    /// See `Shard::recall_named_stand_in`.
    pub(in crate::cluster) fn recall_named(&mut self, local: Ino, named: bool) {
        let _ = self.shard.recall_named_stand_in(local, named);
    }

    /// The attributes of `ino`, which must be a regular file.
    pub(in crate::cluster) fn regular(&self, ino: Ino) -> Result<Attr, FsError> {
        let attr = self.shard.attr(ino).map_err(refusal)?;
        match attr.file_type() {
            FileType::File => Ok(attr),
            FileType::Dir => Err(FsError::IsADirectory),
            FileType::Symlink | FileType::Fifo | FileType::Socket => Err(FsError::Invalid),
        }
    }

    /// Returns true if a number of this table is that of a regular file.
    pub(in crate::cluster) fn is_file(&self, local: Ino) -> bool {
        self.regular(local).is_ok()
    }

    /// The attributes of a file that programs may write if they have it open for writing. While its home asks all nodes
    /// for such programs, they may still write, and their answer stops the lamination. EROFS if the file is laminated.
    pub(in crate::cluster) fn writable(&self, ino: Ino) -> Result<Attr, FsError> {
        let attr = self.regular(ino)?;
        match attr.lamination {
            Lamination::Done => Err(FsError::ReadOnly),
            Lamination::No | Lamination::Due | Lamination::Sealing => Ok(attr),
        }
    }

    /// Checks that a file may be cut or extended to this size (`ReadOnly`, `Evicted`, `TooBig`).
    pub(in crate::cluster) fn check_size(&self, ino: Ino, size: u64) -> Result<(), FsError> {
        let attr = self.writable(ino)?;
        match size > MAX_OFFSET {
            true => Err(FsError::TooBig),
            // Its bytes are not here.
            false if attr.evicted && size > 0 => Err(FsError::Evicted),
            false => Ok(()),
        }
    }

    pub(in crate::cluster) fn set_policy(
        &mut self,
        ino: Ino,
        policy: Policy,
    ) -> Result<(), FsError> {
        let set = SetAttr {
            policy: Some(policy),
            ..SetAttr::default()
        };
        self.shard.setattr(ino, &set).map(drop).map_err(refusal)
    }

    pub(in crate::cluster) fn set_ask(&mut self, ino: Ino, ask: bool) {
        // The file may be gone: then no program reads it.
        let _ = self.shard.set_ask(ino, ask);
    }

    pub(in crate::cluster) fn set_evicted(
        &mut self,
        ino: Ino,
        evicted: bool,
    ) -> Result<(), FsError> {
        let set = SetAttr {
            evicted: Some(evicted),
            ..SetAttr::default()
        };
        self.shard.setattr(ino, &set).map(drop).map_err(refusal)
    }

    /// Sets the inode's own size, which does not count while there are writers.
    pub(in crate::cluster) fn set_own_size(&mut self, attr: &Attr, size: u64, writers: bool) {
        if !writers && size != attr.size {
            let set = SetAttr {
                size: Some(size),
                ..SetAttr::default()
            };
            let _ = self.shard.setattr(attr.ino, &set);
        }
    }

    /// Sets the time of the last change of the attributes to now, and with `contents` that of the
    /// bytes.
    pub(in crate::cluster) fn touch(&mut self, ino: Ino, contents: bool) -> Result<(), FsError> {
        let set = SetAttr {
            mtime_ns: contents.then_some(self.now_ns()),
            ctime_ns: Some(self.now_ns()),
            ..SetAttr::default()
        };
        self.shard.setattr(ino, &set).map(drop).map_err(refusal)
    }

    pub(in crate::cluster) fn fold_mtime(&mut self, ino: Ino, mtime_ns: i64) {
        let Ok(attr) = self.shard.attr(ino) else {
            return;
        };
        if mtime_ns > attr.mtime_ns {
            let set = SetAttr {
                mtime_ns: Some(mtime_ns),
                ctime_ns: Some(mtime_ns.max(attr.ctime_ns)),
                ..SetAttr::default()
            };
            let _ = self.shard.setattr(ino, &set);
        }
    }
}
