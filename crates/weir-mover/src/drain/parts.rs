//! Files of which a part is on the target alone: programs write over their evicted bytes, or ranges of them went
//! ahead (`ahead`).
//!
//! The *base* of such a file is its part on the target. The base has a hidden name as long as the file needs it: so the
//! next version of the file can get its name, and programs may rename the file, without another step. A kill in
//! between leaves the link of the file with a base that is there. The next version is copied from the
//! instance, which reads the base; then that is the file's copy, and the hidden name goes.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use weir_client::process::mounted::elevated::{CopyIdentity, TargetCopy};
use weir_client::process::mounted::{CopyUse, EvictedFile, Ino};

use super::copies::{hidden_name, DisplacedFile};
use super::round_state::RoundState;
use super::snapshot::FileVersion;
use super::Drain;
use crate::error::MoveError;
use crate::publish::{is_at_above_or_below, is_part};
use crate::stage::StageProgress;
use crate::tree::{unless, EvictionTable, FileTree, NodeKind};

/// The base of a file.
#[derive(Clone, Debug)]
pub(super) struct FileBase {
    /// Its path below the target.
    pub at: PathBuf,
    /// The inode of the target that it has, if its name is hidden.
    pub inode: Option<u64>,
}

impl FileBase {
    /// True if this drain, or one before, made it for ranges that go ahead.
    pub fn is_ahead(&self) -> bool {
        let name = self.at.file_name().unwrap_or_default().as_encoded_bytes();
        self.inode.is_some() && name.windows(AHEAD.len()).any(|part| part == AHEAD)
    }
}

/// A part of the hidden name of a base that is written by ranges.
const AHEAD: &[u8] = b"-ahead";

impl<S: FileTree, T: FileTree> Drain<'_, S, T> {
    /// Notes a file of which a part is on the target alone, and has its base under a hidden name.
    pub(super) fn note_part(
        &mut self,
        progress: &StageProgress,
        round: &mut RoundState,
        file: &DisplacedFile,
    ) {
        let ino = file.ino;
        let at = file.at.clone();
        let base = match file.identity {
            CopyIdentity::Inode(inode) => self.find_base(file, inode),
            CopyIdentity::Content { .. } => self.hide_base(progress, round, file),
        };
        let base = base.unwrap_or_else(|error| {
            round.fail(&at, &error);
            self.held.insert(at.clone());
            FileBase { at, inode: None }
        });
        self.hidden.insert(base.at.clone());
        self.bases.insert(ino.0, base);
    }

    /// Finds a base that was left under a hidden name. A drain that was killed may have given it a name of its file.
    fn find_base(&self, file: &DisplacedFile, inode: u64) -> Result<FileBase, MoveError> {
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

    /// Checks that what is where the copy of a file was is that.
    pub(super) fn check_copy(&self, file: &DisplacedFile) -> Result<(), MoveError> {
        let target = self.to.join(&file.at);
        let there = self.to.find_node(&target)?;
        let is_it = there.is_some_and(|there| match file.identity {
            CopyIdentity::Content { size, mtime_ns } => {
                (there.size, there.mtime.since_epoch_ns()) == (size, mtime_ns)
            }
            CopyIdentity::Inode(inode) => there.ino == inode,
        });
        match is_it {
            true => Ok(()),
            // Its bytes are lost to the file.
            false => Err(MoveError::TargetChanged(target)),
        }
    }

    /// Gives a base that has a name which others may use a hidden one beside it.
    fn hide_base(
        &self,
        progress: &StageProgress,
        round: &RoundState,
        file: &DisplacedFile,
    ) -> Result<FileBase, MoveError> {
        let dir = file.at.parent().unwrap_or(Path::new(""));
        let at = hidden_name(dir, file.ino, false);
        let name = file.names.first().unwrap_or(&file.at);
        self.place_copy(progress, round, file, &at, name)?;
        let inode = self.note_base(file.ino, &at)?;
        let inode = Some(inode);
        Ok(FileBase { at, inode })
    }

    /// Notes that the base of a file has this hidden name; returns its inode of the target.
    pub(super) fn note_base(&self, ino: Ino, at: &Path) -> Result<u64, MoveError> {
        let table = self.from.tree.evictions().expect("it has an evicted file");
        let target = self.to.join(at);
        let there = self.to.find_node(&target)?;
        let there = there.ok_or_else(|| MoveError::TargetChanged(target.clone()))?;
        let identity = CopyIdentity::Inode(there.ino);
        let path = table.absolute(at);
        let copy = TargetCopy { path, identity };
        let noted = table.put_copy(&EvictedFile { ino, copy });
        noted.map_err(MoveError::io("noting", &target))?;
        Ok(there.ino)
    }

    /// After a version of a file was moved: what has its name on the target is its copy, and its base goes.
    pub(super) fn replace_base(
        &mut self,
        path: &Path,
        version: &FileVersion,
    ) -> Result<(), MoveError> {
        let ino = Ino(version.ino);
        // A directory that is to get its name takes its files to other paths.
        if !self.bases.contains_key(&ino.0) || self.relocated.is_relocated(path) {
            return Ok(());
        }
        let table = self.from.tree.evictions().expect("it has an evicted file");
        // Also if it cannot be evicted now, since it is open, it reads the bytes of its base there from now on.
        let evicted = self.evict_version(table, path, version);
        let is_evicted = evicted.map_err(MoveError::io("evicting", path))?;
        if is_evicted {
            self.evicted.insert(version.ino, path.to_owned());
        }
        self.drop_base(ino)
    }

    /// Removes the base of a file whose copy is another one.
    pub(super) fn drop_base(&mut self, ino: Ino) -> Result<(), MoveError> {
        let Some(base) = self.bases.get(&ino.0).cloned() else {
            return Ok(());
        };
        let table = self.from.tree.evictions().expect("it has an evicted file");
        let target = self.to.join(&base.at);
        let known = table.copy_of(ino);
        let known = known.map_err(MoveError::io("looking for the copy of", &target))?;
        if known.is_some_and(|copy| copy.path == table.absolute(&base.at)) {
            return Ok(());
        }
        self.bases.remove(&ino.0);
        self.open_bases.remove(&ino.0);
        self.hidden.remove(&base.at);
        self.remove_base(&base.at)
    }

    /// Forgets the copy of a file that does not need it any more; returns the part of the file that needs it.
    pub(super) fn forget_if_unused(
        &self,
        table: &dyn EvictionTable,
        file: &EvictedFile,
        at: &Path,
    ) -> Result<CopyUse, MoveError> {
        let looking = || MoveError::io("looking for the file of", at);
        let used = table.copy_use(file.ino).map_err(looking())?;
        if used == CopyUse::None {
            table.forget_copy(file.ino).map_err(looking())?;
            // Else it needs it again.
            if table.copy_of(file.ino).map_err(looking())?.is_none() {
                self.remove_base(at)?;
            }
        }
        Ok(used)
    }

    /// Removes a base, if its name is hidden.
    pub(super) fn remove_base(&self, at: &Path) -> Result<(), MoveError> {
        if !at.file_name().is_some_and(is_part) {
            return Ok(());
        }
        let target = self.to.join(at);
        let removed = unless(self.to.tree.remove(&target), ErrorKind::NotFound);
        removed.map_err(MoveError::io("removing", &target))
    }

    /// True if a path, or one above or below it, is that of a copy which stays where it is.
    pub(super) fn has_copies(&self, path: &Path) -> bool {
        is_at_above_or_below(path, &self.held) || is_at_above_or_below(path, &self.hidden)
    }

    /// In the end: has what is on the target be the copies of files that have bases, and forgets the others.
    pub(super) fn replace_bases(&mut self) -> Vec<(PathBuf, MoveError)> {
        let mut failed = Vec::new();
        let Some(table) = self.from.tree.evictions() else {
            return failed;
        };
        let snapshot = self.walk();
        for (path, node) in snapshot.of_kind(NodeKind::File) {
            // Size and time alone may be those of another version.
            if !self.moved.has_version(path, node) {
                continue;
            }
            if let Err(error) = self.replace_base(path, &node.version) {
                failed.push((path.clone(), error));
            }
        }
        for file in &snapshot.evicted {
            let Some(at) = table.path_below(&file.copy) else {
                continue;
            };
            if let Err(error) = self.forget_if_unused(table, file, &at) {
                failed.push((at, error));
            }
        }
        failed
    }
}
