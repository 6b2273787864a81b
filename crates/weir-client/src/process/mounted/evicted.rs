//! Evicted files of an elevated tree, for those who move it.

use rustix::io::Errno;
use weir_core::elevated::{inode_of_name, name_of_inode, TargetCopy, EVICTED};
use weir_core::proto::{ContentVersion, Evict, ReportRelief, Unlink};
use weir_core::types::Ino;

use super::whiteouts::unless_gone;
use super::Tree;
use crate::operation;
use crate::path::walk::Names;
use crate::process::elevated::name_lock::NameLock;

/// A file of an elevated tree that was evicted.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct EvictedFile {
    /// Its inode.
    pub ino: Ino,
    /// Its copy on the target.
    pub copy: TargetCopy,
}

impl Tree {
    /// Frees the storage of a file of this elevated tree that is on the target; false: it is another
    /// version, or a program has it open for writing, or it cannot be evicted.
    pub fn evict(self, evicted: &EvictedFile, version: ContentVersion) -> Result<bool, Errno> {
        let _call = operation::begin();
        let ino = evicted.ino;
        let name = name_of_inode(ino);
        let session = self.process.session()?;
        let _lock = NameLock::hold(session, EVICTED, &name)?;
        if self.process.inodes().attr(ino)?.evicted {
            return Ok(false);
        }
        match self.put_copy(evicted) {
            // The path of the copy is too long to be kept.
            Err(Errno::NAMETOOLONG) => return Ok(false),
            put => put?,
        }
        let done = session.call(Evict { ino, version });
        if done == Ok(false) {
            self.unlink_copy(ino)?;
        }
        done
    }

    /// The evicted files whose copies are on the target of this tree.
    pub fn evicted_files(self) -> Result<Vec<EvictedFile>, Errno> {
        let _call = operation::begin();
        let mut found = Vec::new();
        if self.elevated.is_none() {
            return Ok(found);
        }
        let names = self.process.inodes().view()?;
        for name in self.names_in(EVICTED)? {
            let Some(ino) = inode_of_name(&name) else {
                continue;
            };
            // Forgotten meanwhile, perhaps.
            let text = names.text_at(EVICTED, &name)?;
            let copy = text.as_deref().and_then(TargetCopy::of_text);
            let is_of_target = |copy: &TargetCopy| {
                let below = copy.path.strip_prefix(self.prefix());
                below.is_some_and(|below| below.first() == Some(&b'/'))
            };
            if let Some(copy) = copy.filter(is_of_target) {
                found.push(EvictedFile { ino, copy });
            }
        }
        Ok(found)
    }

    /// True if a file is evicted; false: it has its bytes, or is gone.
    pub fn is_evicted(self, ino: Ino) -> Result<bool, Errno> {
        let _call = operation::begin();
        match self.process.inodes().attr(ino) {
            Ok(attr) => Ok(attr.evicted),
            Err(Errno::NOENT) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Notes that the copy of an evicted file has another path.
    pub fn put_copy(self, evicted: &EvictedFile) -> Result<(), Errno> {
        let name = name_of_inode(evicted.ino);
        let made = self
            .process
            .inodes()
            .put_link(EVICTED, &name, &evicted.copy.text());
        made.map(drop)
    }

    /// Forgets the copy of a file that is not evicted any more.
    pub fn forget_copy(self, ino: Ino) -> Result<(), Errno> {
        let name = name_of_inode(ino);
        let session = self.process.session()?;
        let _lock = NameLock::hold(session, EVICTED, &name)?;
        if self.is_evicted(ino)? {
            return Ok(());
        }
        self.unlink_copy(ino)
    }

    fn unlink_copy(self, ino: Ino) -> Result<(), Errno> {
        let gone = self.process.session()?.call(Unlink {
            parent: EVICTED,
            name: name_of_inode(ino).to_vec(),
        });
        unless_gone(gone)
    }

    /// Tells a server of the instance whether room can be made, and returns how much there is.
    pub fn report_relief(self, report: ReportRelief) -> Result<super::RoomState, Errno> {
        self.process.session()?.call(report)
    }
}
