//! Files of which a part is on the target alone: programs write over their evicted bytes, or ranges of them went
//! ahead (`ahead`).
//!
//! The *base* of such a file is its part on the target. The base has a hidden name as long as the file needs it: so the
//! next version of the file can get its name, and programs may rename the file, without another step. A kill in
//! between leaves the link of the file with a base that is there. The next version is copied from the
//! instance, which reads the base; then that is the file's copy, and the hidden name goes.

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
        let inode = self.copy_links().note_base(file.ino, &at)?;
        let inode = Some(inode);
        Ok(FileBase { at, inode })
    }

    /// After a version of a file was moved: what has its name on the target is its copy, and its base goes.
    pub(super) fn replace_base(
        &mut self,
        path: &Path,
        version: &FileVersion,
    ) -> Result<(), MoveError> {
        let ino = Ino(version.ino);
        // A directory that is to get its name takes its files to other paths.
        if !self.target.copies.has_base(ino.0) || self.target.relocated.is_relocated(path) {
            return Ok(());
        }
        // Also if it cannot be evicted now, since it is open, it reads the bytes of its base there from now on.
        let links = CopyLinks::find(&self.from, &self.to).expect("it has an evicted file");
        let evicted = links.evict_version(path, version);
        let is_evicted = evicted.map_err(MoveError::io("evicting", path))?;
        if is_evicted {
            self.target.copies.note_evicted(version.ino, path);
        }
        links.drop_base(&mut self.target.copies, ino)
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
