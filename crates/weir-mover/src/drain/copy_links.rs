//! The links that record the copies of a tree's evicted files, and the removal of copies that no link names.
//!
//! A link is made before anything relies on it. A base is removed only after its link is gone or names another copy. So a
//! drain that is killed in between leaves a hidden file, never a link without its copy.

use std::io::ErrorKind;
use std::path::Path;

use weir_client::process::mounted::elevated::{CopyIdentity, TargetCopy};
use weir_client::process::mounted::{CopyUse, EvictedFile, Ino};

use super::copies::{content_of, copy_at, is_copy, DisplacedFile, EvictedCopies, FileBase};
use super::snapshot::FileVersion;
use crate::error::MoveError;
use crate::publish::is_part;
use crate::side::MoveSide;
use crate::tree::{unless, EvictionTable, FileTree};

/// The links, and the target to which they lead.
pub(super) struct CopyLinks<'d, 't, T: FileTree> {
    pub table: &'t dyn EvictionTable,
    pub to: &'d MoveSide<'t, T>,
}

impl<'d, 't, T: FileTree> CopyLinks<'d, 't, T> {
    /// The links of the source; `None`: nothing is evicted from it.
    pub fn find<S: FileTree>(
        from: &MoveSide<'t, S>,
        to: &'d MoveSide<'t, T>,
    ) -> Option<CopyLinks<'d, 't, T>> {
        let table = from.tree.evictions()?;
        Some(CopyLinks { table, to })
    }

    /// Frees the storage of a version of a file, if the target has that version under this name; false: it does not, or the
    /// file cannot be evicted now.
    pub fn evict_version(&self, path: &Path, version: &FileVersion) -> std::io::Result<bool> {
        let there = self.to.tree.look_up(&self.to.join(path))?;
        let Some(there) = there.filter(|there| is_copy(version, there)) else {
            return Ok(false);
        };
        let copy = copy_at(self.table, path, &there);
        let ino = Ino(version.ino);
        self.table
            .evict(&EvictedFile { ino, copy }, content_of(version))
    }

    /// Notes that the copy of an evicted file is at this path below the target.
    pub fn note_copy(&self, ino: Ino, path: &Path) -> Result<(), MoveError> {
        let target = self.to.join(path);
        let there = self.to.find_node(&target)?;
        let there = there.ok_or_else(|| MoveError::TargetChanged(target.clone()))?;
        let copy = copy_at(self.table, path, &there);
        let noted = self.table.put_copy(&EvictedFile { ino, copy });
        noted.map_err(MoveError::io("noting", &target))
    }

    /// Finds a base that an earlier drain left under a hidden name. If that drain was killed, the base may have a name of
    /// its file instead.
    pub fn find_base(&self, file: &DisplacedFile, inode: u64) -> Result<FileBase, MoveError> {
        let base = FileBase {
            at: file.at.clone(),
            inode: Some(inode),
        };
        let inode_at = |path: &Path| {
            let found = self.to.find_node(path)?;
            Ok::<_, MoveError>(found.map(|found| found.ino))
        };
        if inode_at(&file.at)?.is_some() {
            return Ok(base);
        }
        for name in &file.names {
            if inode_at(name)? == Some(inode) {
                self.note_copy(file.ino, name)?;
                let at = name.clone();
                return Ok(FileBase { at, inode: None });
            }
        }
        Ok(base)
    }

    /// Notes that the base of a file has this hidden name; returns its inode number on the target.
    pub fn note_base(&self, ino: Ino, at: &Path) -> Result<u64, MoveError> {
        let target = self.to.join(at);
        let there = self.to.find_node(&target)?;
        let there = there.ok_or_else(|| MoveError::TargetChanged(target.clone()))?;
        let identity = CopyIdentity::Inode(there.ino);
        let path = self.table.absolute(at);
        let copy = TargetCopy { path, identity };
        let noted = self.table.put_copy(&EvictedFile { ino, copy });
        noted.map_err(MoveError::io("noting", &target))?;
        Ok(there.ino)
    }

    /// Forgets the copy of a file that does not need it any more. Returns the part of the file for which the copy is
    /// needed.
    pub fn forget_if_unused(&self, file: &EvictedFile, at: &Path) -> Result<CopyUse, MoveError> {
        let looking = || MoveError::io("looking for the file of", at);
        let used = self.table.copy_use(file.ino).map_err(looking())?;
        if used == CopyUse::None {
            self.table.forget_copy(file.ino).map_err(looking())?;
            // If the link is still there, the file needs the copy again.
            if self.table.copy_of(file.ino).map_err(looking())?.is_none() {
                self.remove_base(at)?;
            }
        }
        Ok(used)
    }

    /// Removes the base of a file that has another copy.
    pub fn drop_base<F>(&self, copies: &mut EvictedCopies<F>, ino: Ino) -> Result<(), MoveError> {
        let Some(base) = copies.find_base(ino.0).cloned() else {
            return Ok(());
        };
        let target = self.to.join(&base.at);
        let known = self.table.copy_of(ino);
        let known = known.map_err(MoveError::io("looking for the copy of", &target))?;
        if known.is_some_and(|copy| copy.path == self.table.absolute(&base.at)) {
            return Ok(());
        }
        copies.forget_base(ino.0);
        self.remove_base(&base.at)
    }

    /// Removes a base, if its name is hidden.
    pub fn remove_base(&self, at: &Path) -> Result<(), MoveError> {
        if !at.file_name().is_some_and(is_part) {
            return Ok(());
        }
        let target = self.to.join(at);
        let removed = unless(self.to.tree.remove(&target), ErrorKind::NotFound);
        removed.map_err(MoveError::io("removing", &target))
    }
}
