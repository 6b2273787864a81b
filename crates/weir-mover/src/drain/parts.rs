//! Files with a part that only the target has: programs write over their evicted bytes, or ranges of them went ahead
//! (`ahead`).
//!
//! The *base* of such a file is its part on the target. The base has a hidden name as long as the file needs it: so the
//! next version of the file can get its name, and programs may rename the file, without another step. If a drain is killed
//! in between, the link of the file still leads to a base. The next version is copied from the instance, which reads the
//! base. Then the new version is the file's copy, and the hidden name is removed.

use std::path::{Path, PathBuf};

use weir_client::process::mounted::elevated::CopyIdentity;
use weir_client::process::mounted::Ino;

use super::copies::{hidden_name, DisplacedFile, FileBase};
use super::copy_links::CopyLinks;
use super::round_state::RoundState;
use super::snapshot::FileVersion;
use super::Drain;
use crate::error::MoveError;
use crate::stage::StageProgress;
use crate::tree::{FileTree, NodeKind};

impl<S: FileTree, T: FileTree> Drain<'_, S, T> {
    /// Notes a file with a part that only the target has, and gives its base a hidden name.
    pub(super) fn note_part(
        &mut self,
        progress: &StageProgress,
        round: &mut RoundState,
        file: &DisplacedFile,
    ) {
        let ino = file.ino;
        let at = file.at.clone();
        let base = match file.identity {
            CopyIdentity::Inode(inode) => self.copy_links().find_base(file, inode),
            CopyIdentity::Content { .. } => self.hide_base(progress, round, file),
        };
        let base = base.unwrap_or_else(|error| {
            round.fail(&at, &error);
            self.target.copies.hold(&at);
            FileBase { at, inode: None }
        });
        self.target.copies.add_base(ino.0, base);
    }

    /// Gives a hidden name to a base whose name others may use.
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
        let inode = self.copy_links().note_base(file.ino, &at)?;
        let inode = Some(inode);
        Ok(FileBase { at, inode })
    }

    /// To be called after a version of a file was moved: this becomes the copy of the file, and its base is removed.
    pub(super) fn replace_base(
        &mut self,
        path: &Path,
        version: &FileVersion,
    ) -> Result<(), MoveError> {
        let ino = Ino(version.ino);
        // When a relocated directory gets its name, its files get other paths.
        if !self.target.copies.has_base(ino.0) || self.target.relocated.is_relocated(path) {
            return Ok(());
        }
        // Even if the file is open and cannot be evicted now, the bytes of its base are read from the new copy from now on.
        let links = CopyLinks::find(&self.from, &self.to).expect("it has an evicted file");
        let evicted = links.evict_version(path, version);
        let is_evicted = evicted.map_err(MoveError::io("evicting", path))?;
        if is_evicted {
            self.target.copies.note_evicted(version.ino, path);
        }
        links.drop_base(&mut self.target.copies, ino)
    }

    /// To be called at the end: makes the moved versions of files with bases their copies, and forgets copies that no file
    /// needs.
    pub(super) fn replace_bases(&mut self) -> Vec<(PathBuf, MoveError)> {
        let mut failed = Vec::new();
        let Some(table) = self.from.tree.evictions() else {
            return failed;
        };
        let snapshot = self.walk();
        for (path, node) in snapshot.of_kind(NodeKind::File) {
            // Equal size and time are not enough: they may be those of another version.
            if !self.target.moved.has_version(path, node) {
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
            if let Err(error) = self.copy_links().forget_if_unused(file, &at) {
                failed.push((at, error));
            }
        }
        failed
    }
}
