//! Eviction: when the instance has little room, the drain frees the storage of files that are on the target, the least
//! recently used ones first.
//!
//! Programs read an evicted file's bytes from its copy, the file that the drain has made on the target. So the copy is
//! *held* as long as its name is not one that the file has in the walk: nothing replaces or removes it. If a file is
//! renamed, its copy gets the new name by a hard link on the target, before anything else is moved; if the target makes no
//! links, the file is copied. If files have exchanged their names, the copy of one has a hidden name in between.

use std::collections::{HashMap, HashSet};
use std::ops::AddAssign;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use weir_client::process::mounted::elevated::CopyIdentity;
use weir_client::process::mounted::{CopyUse, Ino, WriteState};

use super::copies::{hidden_name, DisplacedFile};
use super::copy_links::CopyLinks;
use super::round::options_of_round;
use super::round_state::RoundState;
use super::snapshot::{SeenNode, TreeSnapshot};
use super::{Drain, MovedNode};
use crate::copy::{match_xattrs, LikenessBy};
use crate::error::MoveError;
use crate::list::move_files;
use crate::mover::FileToMove;
use crate::publish::{is_part, make_hard_link, LinkOutcome};
use crate::replaceable::Replaceable;
use crate::sources::StagePair;
use crate::stage::StageProgress;
use crate::tree::{EvictionTable, FileTree, NodeKind};

/// The amount of storage that was freed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct EvictedBytes {
    /// Files.
    pub files: u64,
    /// Their bytes.
    pub bytes: u64,
}

impl AddAssign for EvictedBytes {
    fn add_assign(&mut self, more: EvictedBytes) {
        self.files += more.files;
        self.bytes += more.bytes;
    }
}

impl<'t, S: FileTree, T: FileTree> Drain<'t, S, T> {
    /// The links of the evicted files. The tree must have such files.
    pub(super) fn copy_links(&self) -> CopyLinks<'_, 't, T> {
        CopyLinks::find(&self.from, &self.to).expect("it has an evicted file")
    }

    /// Evicts files that the last round found safe, until this many bytes are free. Files that were made at the server of
    /// this rank come first; files that await an analysis come last. Fails if a call of the instance fails.
    pub fn evict(&mut self, rank: u16, bytes: u64) -> Result<EvictedBytes, MoveError> {
        let mut evicted = EvictedBytes::default();
        if self.from.tree.evictions().is_none() {
            return Ok(evicted);
        }
        let snapshot = Arc::clone(&self.seen);
        let mut chosen = self.evictable(&snapshot);
        chosen.sort_by_cached_key(|(path, node)| {
            let used = node.kept.atime.max(node.version.mtime);
            let is_last = self.held_files.is_awaited(path, node);
            let is_elsewhere = Ino(node.version.ino).rank().0 != rank;
            (
                is_last,
                is_elsewhere,
                !self.target.moved.has_found(path),
                used,
            )
        });
        for (path, node) in chosen {
            if evicted.bytes >= bytes {
                break;
            }
            let file = self.from.join(path);
            if self
                .evict_file(path, node)
                .map_err(MoveError::io("evicting", &file))?
            {
                self.target.copies.note_evicted(node.version.ino, path);
                if let Some(log) = &mut self.events {
                    log.note_evicted(path, node.version.size);
                }
                evicted.files += 1;
                evicted.bytes += node.version.size;
            }
            let links = CopyLinks::find(&self.from, &self.to).expect("it has evictions");
            links.drop_base(&mut self.target.copies, Ino(node.version.ino))?;
        }
        Ok(evicted)
    }

    fn evictable<'s>(&self, snapshot: &'s TreeSnapshot) -> Vec<(&'s PathBuf, &'s SeenNode)> {
        let files = snapshot.of_kind(NodeKind::File);
        let is_evictable = |(path, node): &(&PathBuf, &SeenNode)| {
            // A copy has one name only, so files with several names are not evicted.
            node.version.size > 0
                && !node.has_links
                && !self.target.copies.is_evicted(node.version.ino)
                && self.target.is_safe(path, node)
                && !(self.held_files.keeps_files() && self.held_files.is_awaited(path, node))
        };
        files
            .filter(is_evictable)
            .filter(|(path, _)| !self.choice.is_kept(path))
            .collect()
    }

    fn evict_file(&self, path: &Path, node: &SeenNode) -> std::io::Result<bool> {
        let version = &node.version;
        if self.target.copies.has_base(version.ino) {
            let source = self.from.join(path);
            if !matches!(self.from.tree.write_state(&source), Ok(WriteState::Written)) {
                return Ok(false);
            }
        }
        self.copy_links().evict_version(path, version)
    }

    /// Gives the copies of evicted files the names that these files have now, and holds the copies that cannot get them.
    pub(super) fn relink_copies(&mut self, round: &mut RoundState, progress: &StageProgress) {
        self.target.copies.clear();
        let Some(table) = self.from.tree.evictions() else {
            return;
        };
        let snapshot = Arc::clone(&round.snapshot);
        let mut displaced = self.displaced(table, progress, round);
        self.target.copies.forget_ranges();
        for file in &displaced {
            self.target.copies.hold(&file.at);
        }
        // When a copy gets its name, its old name is free for another one.
        loop {
            let before = displaced.len();
            displaced.retain(|file| {
                let Some(name) = self.view().find_free_name(round, file, &snapshot) else {
                    return true;
                };
                match self.relink(progress, round, file, name) {
                    Ok(()) => self.target.copies.release(&file.at),
                    // The next round tries again.
                    Err(error) => round.fail(&file.at, &error),
                }
                false
            });
            if displaced.len() < before {
                continue;
            }
            // Files have exchanged their names: set one copy aside.
            let is_in_cycle = |file: &&mut DisplacedFile| !file.names.is_empty() && !file.is_aside;
            let Some(file) = displaced.iter_mut().find(is_in_cycle) else {
                break;
            };
            file.is_aside = true;
            if let Err(error) = self.set_aside(progress, round, file) {
                round.fail(&file.at, &error);
            }
        }
    }

    /// The evicted files whose copies have none of the file's names.
    fn displaced(
        &mut self,
        table: &dyn EvictionTable,
        progress: &StageProgress,
        round: &mut RoundState,
    ) -> Vec<DisplacedFile> {
        let snapshot = Arc::clone(&round.snapshot);
        let inodes: HashSet<u64> = snapshot.evicted.iter().map(|file| file.ino.0).collect();
        let mut names: HashMap<u64, Vec<PathBuf>> = HashMap::new();
        for (path, node) in snapshot.of_kind(NodeKind::File) {
            if inodes.contains(&node.version.ino) {
                let of_inode = names.entry(node.version.ino).or_default();
                of_inode.push(path.clone());
            }
        }
        let mut displaced = Vec::new();
        for file in &snapshot.evicted {
            let Some(at) = table.path_below(&file.copy) else {
                continue;
            };
            let used = self.copy_links().forget_if_unused(file, &at);
            let used = used.unwrap_or_else(|error| {
                round.fail(&at, &error);
                CopyUse::Whole
            });
            let names = names.remove(&file.ino.0).unwrap_or_default();
            let with_names = DisplacedFile {
                ino: file.ino,
                // A copy that was set aside already is not set aside again.
                is_aside: at.file_name().is_some_and(is_part)
                    && at.parent() == Some(self.target.lasting_directory(&at, &snapshot)),
                at,
                identity: file.copy.identity,
                names,
            };
            match used {
                CopyUse::None => {}
                CopyUse::Part => self.note_part(progress, round, &with_names),
                CopyUse::Whole => {
                    self.target.copies.note_evicted(file.ino.0, &with_names.at);
                    if !with_names.names.contains(&with_names.at) {
                        displaced.push(with_names);
                    }
                }
            }
        }
        displaced
    }

    /// Gives the copy of an evicted file the attributes that programs have set since; it is not copied again, since its
    /// name may belong to another file by then.
    pub(super) fn keep_copy_attributes(
        &mut self,
        path: &Path,
        node: &SeenNode,
    ) -> Result<(), MoveError> {
        let target = self.to.join(path);
        self.target.note_placing(std::iter::once((path, node)));
        match_xattrs(self.from.tree, self.to.tree, &self.from.join(path), &target)?;
        let set = self
            .to
            .tree
            .set_attributes(&target, NodeKind::File, &node.kept);
        set.map_err(MoveError::io("changing", &target))?;
        self.copy_links().note_copy(Ino(node.version.ino), path)?;
        self.target
            .moved
            .insert(path.to_owned(), MovedNode::from_seen(node, true));
        self.note_placed(path, &node.version);
        Ok(())
    }

    /// Gives the copy of a file this name of the file.
    fn relink(
        &mut self,
        progress: &StageProgress,
        round: &RoundState,
        file: &DisplacedFile,
        name: &Path,
    ) -> Result<(), MoveError> {
        self.place_copy(progress, round, file, name, name)?;
        let node = round.snapshot.get(name).expect("its name was seen");
        self.keep_copy_attributes(name, node)?;
        // Its old name may be a hidden one.
        self.copy_links().remove_base(&file.at)
    }

    /// Gives the copy of a file a hidden name, so that another one, or nothing, can have its name.
    fn set_aside(
        &mut self,
        progress: &StageProgress,
        round: &RoundState,
        file: &mut DisplacedFile,
    ) -> Result<(), MoveError> {
        let dir = self.target.lasting_directory(&file.at, &round.snapshot);
        let aside = hidden_name(dir, file.ino, false);
        let name = file.names[0].clone();
        self.place_copy(progress, round, file, &aside, &name)?;
        let inode = self.copy_links().note_base(file.ino, &aside)?;
        file.identity = CopyIdentity::Inode(inode);
        self.target.copies.release(&file.at);
        self.target.copies.hold(&aside);
        file.at = aside;
        Ok(())
    }

    /// Gives the copy of a file a second path. `name`: a name of the file, from which it is copied if the target makes no
    /// links.
    pub(super) fn place_copy(
        &self,
        progress: &StageProgress,
        round: &RoundState,
        file: &DisplacedFile,
        path: &Path,
        name: &Path,
    ) -> Result<(), MoveError> {
        file.check(&self.to)?;
        let existing = self.to.join(&file.at);
        let target = self.to.join(path);
        let is_hidden = path.file_name().is_some_and(is_part);
        let replaces = match is_hidden {
            true => Replaceable::Any,
            false => self.target.replaceable(path),
        };
        if !is_hidden {
            let copy = self.to.find_node(&existing)?;
            self.target.ownership.note_placing_copy(path, copy.as_ref());
        }
        match make_hard_link(self.to.tree, &existing, &target, &|there| {
            replaces.allows(there)
        })? {
            LinkOutcome::Made | LinkOutcome::There => {}
            LinkOutcome::NoFile => return Err(MoveError::SourceChanged(existing)),
            LinkOutcome::Refused => {
                let file = FileToMove {
                    pair: StagePair {
                        source: self.from.join(name),
                        target: target.clone(),
                    },
                    replaces,
                    content: None,
                    likeness: LikenessBy::Bytes,
                    is_ours: false,
                };
                let moved = move_files(
                    self.from.tree,
                    self.to.tree,
                    &[file],
                    options_of_round(round.threads),
                    progress,
                );
                let failure = moved.files.into_iter().find_map(|moved| moved.failure);
                if let Some(failure) = failure {
                    return Err(MoveError::Elsewhere(failure));
                }
            }
        }
        let dir = target.parent().unwrap_or(Path::new("/"));
        let synced = self.to.tree.sync_directory(dir);
        synced.map_err(MoveError::io("syncing", dir))
    }
}
