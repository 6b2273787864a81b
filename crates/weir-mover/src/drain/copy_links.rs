//! The links of a tree that say where the copies of its evicted files are, and the removal of copies that no link names.
//!
//! A link is put before anything relies on it, and a base is removed only after its link is gone or names another copy: a
//! drain that is killed in between leaves a hidden file, never a link without its copy.

use std::io::ErrorKind;
use std::path::Path;

use weir_client::process::mounted::elevated::{CopyIdentity, TargetCopy};
use weir_client::process::mounted::{CopyUse, EvictedFile, Ino};

use super::copies::{content_of, copy_at, is_copy};
use super::snapshot::FileVersion;
use crate::error::MoveError;
use crate::publish::is_part;
use crate::side::MoveSide;
use crate::tree::{unless, EvictionTable, FileTree};

/// The links, and the target that they lead to.
pub(super) struct CopyLinks<'d, 't, T: FileTree> {
    pub table: &'t dyn EvictionTable,
    pub to: &'d MoveSide<'t, T>,
}

impl<T: FileTree> CopyLinks<'_, '_, T> {
    /// Frees the storage of a version of a file, if the target has it under this name; false: it has not, or the
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

    /// Notes that the base of a file has this hidden name; returns its inode of the target.
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

    /// Forgets the copy of a file that does not need it any more; returns the part of the file that needs it.
    pub fn forget_if_unused(&self, file: &EvictedFile, at: &Path) -> Result<CopyUse, MoveError> {
        let looking = || MoveError::io("looking for the file of", at);
        let used = self.table.copy_use(file.ino).map_err(looking())?;
        if used == CopyUse::None {
            self.table.forget_copy(file.ino).map_err(looking())?;
            // Else it needs it again.
            if self.table.copy_of(file.ino).map_err(looking())?.is_none() {
                self.remove_base(at)?;
            }
        }
        Ok(used)
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
