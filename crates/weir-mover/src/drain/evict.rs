//! Eviction: the storage of files that are on the target is freed, the least recently used ones first, when
//! the instance has little room.
//!
//! Programs read an evicted file's bytes from its copy, the file that the drain has made on the target. So the
//! copy is *held* as long as the file has another name than it, or none that a walk saw: nothing replaces or
//! removes it there. A renamed file gets its copy under the new name by a link of the target's, before anything
//! else is moved; where the target has no links, it is copied. Of files that have exchanged their names, one
//! has its copy under a hidden name in between.

use std::collections::{HashMap, HashSet};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use weir_client::process::mounted::{elevated::TargetCopy, ContentVersion, EvictedFile, Ino};
use weir_client::types::Stat;

use super::marks::Replaceable;
use super::round::RoundState;
use super::snapshot::{FileVersion, SeenNode, TreeSnapshot};
use super::{move_files, Drain, FileToMove, MovedNode};
use crate::copy::{is_kept_time, keep_xattrs};
use crate::error::MoveError;
use crate::publish::{is_at_above_or_below, is_part, make_hard_link, part_of, LinkOutcome};
use crate::sources::StagePair;
use crate::stage::StageProgress;
use crate::tree::{kind_of, unless, EvictionTable, FileTree, NodeKind};

/// A file whose storage was freed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct EvictedBytes {
    /// Files.
    pub files: u64,
    /// Bytes of them.
    pub bytes: u64,
}

/// An evicted file whose copy has no name of the file.
struct DisplacedFile {
    ino: Ino,
    /// The path of the copy below the target.
    at: PathBuf,
    /// The names of the file.
    names: Vec<PathBuf>,
    /// Its copy was to make way for another one.
    is_aside: bool,
}

impl<S: FileTree, T: FileTree> Drain<'_, S, T> {
    /// Evicts files that the last round found safe, until this many bytes are free, those first that were
    /// made at the server of this rank. Fails if the instance does.
    pub fn evict(&mut self, rank: u16, bytes: u64) -> Result<EvictedBytes, MoveError> {
        let mut evicted = EvictedBytes::default();
        let Some(table) = self.from.evictions() else {
            return Ok(evicted);
        };
        let snapshot = Arc::clone(&self.seen);
        let mut chosen = self.evictable(&snapshot);
        chosen.sort_by_cached_key(|(path, node)| {
            let used = node.kept.atime.max(node.version.mtime);
            let is_last = self.awaits_analysis(path, node);
            (is_last, Ino(node.version.ino).rank().0 != rank, used)
        });
        for (path, node) in chosen {
            if evicted.bytes >= bytes {
                break;
            }
            let file = self.source.join(path);
            if self
                .evict_file(table, path, node)
                .map_err(MoveError::io("evicting", &file))?
            {
                self.evicted.insert(node.version.ino, path.clone());
                self.note_evicted(path, node.version.size);
                evicted.files += 1;
                evicted.bytes += node.version.size;
            }
        }
        Ok(evicted)
    }

    fn evictable<'s>(&self, snapshot: &'s TreeSnapshot) -> Vec<(&'s PathBuf, &'s SeenNode)> {
        let files = snapshot.of_kind(NodeKind::File);
        let is_evictable = |(path, node): &(&PathBuf, &SeenNode)| {
            // The copy has one name. Another one of the file would show it under that.
            node.version.size > 0
                && !node.has_links
                && !self.evicted.contains_key(&node.version.ino)
                && self.is_safe(path, node)
                && !(self.keeps_for_analysis() && self.awaits_analysis(path, node))
        };
        files.filter(is_evictable).collect()
    }

    fn evict_file(
        &self,
        table: &dyn EvictionTable,
        path: &Path,
        node: &SeenNode,
    ) -> std::io::Result<bool> {
        let version = &node.version;
        let there = self.to.look_up(&self.target.join(path))?;
        let is_copy = |there: &Stat| {
            kind_of(there) == NodeKind::File
                && there.size == version.size
                && is_kept_time(version.mtime, there.mtime)
        };
        let Some(there) = there.filter(is_copy) else {
            return Ok(false);
        };
        let copy = copy_at(table, path, &there);
        let ino = Ino(version.ino);
        table.evict(&EvictedFile { ino, copy }, content_of(version))
    }

    /// Has the copies of evicted files under names of these files, and notes those that are to stay where
    /// they are.
    pub(super) fn relink_copies(&mut self, round: &mut RoundState, progress: &StageProgress) {
        self.held.clear();
        self.evicted.clear();
        let Some(table) = self.from.evictions() else {
            return;
        };
        let snapshot = Arc::clone(&round.snapshot);
        let mut displaced = self.displaced(table, round);
        self.held
            .extend(displaced.iter().map(|file| file.at.clone()));
        // A copy that gets its name may make way for another one.
        loop {
            let before = displaced.len();
            displaced.retain(|file| {
                let Some(name) = self.free_name(round, file, &snapshot) else {
                    return true;
                };
                match self.relink(progress, round, file, name) {
                    Ok(()) => drop(self.held.remove(&file.at)),
                    // The next round tries again.
                    Err(error) => round.fail(&file.at, &error),
                }
                false
            });
            if displaced.len() < before {
                continue;
            }
            // Files that have exchanged their names: one makes way.
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

    /// The evicted files whose copies have no name of theirs.
    fn displaced(
        &mut self,
        table: &dyn EvictionTable,
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
            let is_evicted = table.is_evicted(file.ino).and_then(|is_evicted| {
                if !is_evicted {
                    // It has its bytes again, or is gone.
                    table.forget_copy(file.ino)?;
                }
                Ok(is_evicted)
            });
            let is_evicted = is_evicted.unwrap_or_else(|error| {
                round.fail(&at, &MoveError::io("looking for the file of", &at)(error));
                true
            });
            if !is_evicted {
                continue;
            }
            self.evicted.insert(file.ino.0, at.clone());
            let names = names.remove(&file.ino.0).unwrap_or_default();
            if !names.contains(&at) {
                displaced.push(DisplacedFile {
                    ino: file.ino,
                    at,
                    names,
                    is_aside: false,
                });
            }
        }
        displaced
    }

    /// True if a file is evicted, and its copy is what the target has under this name.
    pub(super) fn has_copy_at(&self, path: &Path, node: &SeenNode) -> bool {
        let copy = self.evicted.get(&node.version.ino);
        copy.is_some_and(|at| at == path)
    }

    /// Gives the copy of an evicted file the attributes that programs have set since; it is not copied anew,
    /// for its name may be another file's by then.
    pub(super) fn keep_copy_attributes(
        &mut self,
        path: &Path,
        node: &SeenNode,
    ) -> Result<(), MoveError> {
        let target = self.target.join(path);
        self.note_placing(std::iter::once((path, node)));
        keep_xattrs(self.from, self.to, &self.source.join(path), &target)?;
        let set = self.to.set_attributes(&target, NodeKind::File, &node.kept);
        set.map_err(MoveError::io("changing", &target))?;
        self.note_copy(Ino(node.version.ino), path)?;
        self.moved
            .insert(path.to_owned(), MovedNode::from_seen(node, true));
        self.note_placed(path, &node.version);
        Ok(())
    }

    /// A name of a file under which its copy can be now.
    fn free_name<'f>(
        &self,
        round: &RoundState,
        file: &'f DisplacedFile,
        snapshot: &TreeSnapshot,
    ) -> Option<&'f Path> {
        let is_free = |path: &&PathBuf| {
            !self.is_in_the_way(path)
                && !round.is_blocked(path)
                && !self.is_relocated(path)
                && !is_at_above_or_below(path, &self.held)
                && !self.awaits_removal(snapshot, path, NodeKind::File)
        };
        file.names.iter().find(is_free).map(PathBuf::as_path)
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
        if file.at.file_name().is_some_and(is_part) {
            // It was set aside there.
            let aside = self.target.join(&file.at);
            let removed = unless(self.to.remove(&aside), ErrorKind::NotFound);
            removed.map_err(MoveError::io("removing", &aside))?;
        }
        Ok(())
    }

    /// Gives the copy of a file a hidden name beside it, so that another one can have its name.
    fn set_aside(
        &mut self,
        progress: &StageProgress,
        round: &RoundState,
        file: &mut DisplacedFile,
    ) -> Result<(), MoveError> {
        let beside = format!("{:x}", file.ino.0);
        let aside = part_of(&file.at.with_file_name(beside));
        let name = file.names[0].clone();
        self.place_copy(progress, round, file, &aside, &name)?;
        self.note_copy(file.ino, &aside)?;
        self.held.remove(&file.at);
        self.held.insert(aside.clone());
        file.at = aside;
        Ok(())
    }

    /// Has the copy of a file at another path, too. `name`: a name of the file, by which it is copied where the
    /// target has no links.
    fn place_copy(
        &self,
        progress: &StageProgress,
        round: &RoundState,
        file: &DisplacedFile,
        path: &Path,
        name: &Path,
    ) -> Result<(), MoveError> {
        let existing = self.target.join(&file.at);
        let target = self.target.join(path);
        let is_hidden = path.file_name().is_some_and(is_part);
        let replaces = match is_hidden {
            true => Replaceable::Any,
            false => self.replaceable(path),
        };
        if !is_hidden {
            let copy = self.to.look_up(&existing);
            let copy = copy.map_err(MoveError::io("looking for", &existing))?;
            self.note_placing_copy(path, copy.as_ref());
        }
        match make_hard_link(self.to, &existing, &target, &|there| replaces.allows(there))? {
            LinkOutcome::Made | LinkOutcome::There => {}
            LinkOutcome::NoFile => return Err(MoveError::SourceChanged(existing)),
            LinkOutcome::Refused => {
                let file = FileToMove {
                    pair: StagePair {
                        source: self.source.join(name),
                        target: target.clone(),
                    },
                    replaces,
                    content: None,
                };
                let moved = move_files(self.from, self.to, &[file], round.threads, progress);
                let failure = moved.files.into_iter().find_map(|moved| moved.failure);
                if let Some(failure) = failure {
                    return Err(MoveError::Elsewhere(failure));
                }
            }
        }
        let dir = target.parent().unwrap_or(Path::new("/"));
        let synced = self.to.sync_directory(dir);
        synced.map_err(MoveError::io("syncing", dir))
    }

    /// Notes that the copy of an evicted file is at this path below the target.
    fn note_copy(&self, ino: Ino, path: &Path) -> Result<(), MoveError> {
        let table = self.from.evictions().expect("it has an evicted file");
        let target = self.target.join(path);
        let there = self.to.look_up(&target);
        let there = there.map_err(MoveError::io("looking for", &target))?;
        let there = there.ok_or_else(|| MoveError::TargetChanged(target.clone()))?;
        let copy = copy_at(table, path, &there);
        let noted = table.put_copy(&EvictedFile { ino, copy });
        noted.map_err(MoveError::io("noting", &target))
    }
}

/// The copy that a node of the target is.
fn copy_at(table: &dyn EvictionTable, path: &Path, there: &Stat) -> TargetCopy {
    TargetCopy {
        path: table.absolute(path),
        size: there.size,
        mtime_ns: there.mtime.since_epoch_ns(),
    }
}

fn content_of(version: &FileVersion) -> ContentVersion {
    ContentVersion {
        size: version.size,
        mtime_ns: version.mtime.since_epoch_ns(),
        ctime_ns: version.ctime.since_epoch_ns(),
    }
}
