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

use rustix::io::Errno;
use weir_client::process::mounted::{elevated::TargetCopy, ContentVersion, EvictedFile, Ino};
use weir_client::types::Stat;

use super::round::RoundState;
use super::snapshot::{FileVersion, SeenNode, TreeSnapshot};
use super::{move_files, Drain, MovedNode};
use crate::copy::{is_kept_time, keep_xattrs};
use crate::error::MoveError;
use crate::publish::{is_at_above_or_below, is_part, make_named, part_of};
use crate::sources::StagePair;
use crate::stage::StageProgress;
use crate::tree::{failed_with_any, identity, kind_of, unless, EvictionTable, FileTree, NodeKind};

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

impl DisplacedFile {
    fn is_named(&self) -> bool {
        !self.names.is_empty()
    }
}

/// The parts of a round that move copies.
struct CopyMover<'m> {
    table: &'m dyn EvictionTable,
    progress: &'m StageProgress,
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
        chosen.sort_by_key(|(_, node)| {
            let used = node.kept.atime.max(node.version.mtime);
            (Ino(node.version.ino).rank().0 != rank, used)
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
                && self.has_moved(path, node)
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
        let mover = CopyMover { table, progress };
        // A copy that gets its name may make way for another one.
        loop {
            let before = displaced.len();
            displaced.retain(|file| {
                let Some(name) = self.free_name(round, file, &snapshot) else {
                    return true;
                };
                match self.relink(&mover, round, file, name) {
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
            let is_in_cycle = |file: &&mut DisplacedFile| file.is_named() && !file.is_aside;
            let Some(file) = displaced.iter_mut().find(is_in_cycle) else {
                break;
            };
            file.is_aside = true;
            match self.set_aside(&mover, round, file) {
                Ok(()) => {}
                Err(error) => round.fail(&file.at, &error),
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
        let table = self.from.evictions().expect("it has an evicted file");
        let target = self.target.join(path);
        let changing = || MoveError::io("changing", &target);
        keep_xattrs(self.from, self.to, &self.source.join(path), &target)?;
        self.to
            .set_attributes(&target, NodeKind::File, &node.kept)
            .map_err(changing())?;
        let there = self.to.look_up(&target).map_err(changing())?;
        let there = there.ok_or_else(|| MoveError::TargetChanged(target.clone()))?;
        let evicted = EvictedFile {
            ino: Ino(node.version.ino),
            copy: copy_at(table, path, &there),
        };
        table.put_copy(&evicted).map_err(changing())?;
        self.moved
            .insert(path.to_owned(), MovedNode::from_seen(node, true));
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
                && !is_at_above_or_below(path, &self.held)
                && !self.awaits_removal(snapshot, path, NodeKind::File)
        };
        file.names.iter().find(is_free).map(PathBuf::as_path)
    }

    /// Gives the copy of a file this name of the file.
    fn relink(
        &mut self,
        mover: &CopyMover<'_>,
        round: &RoundState,
        file: &DisplacedFile,
        name: &Path,
    ) -> Result<(), MoveError> {
        self.put_at(mover, round, file, name, name)?;
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
        mover: &CopyMover<'_>,
        round: &RoundState,
        file: &mut DisplacedFile,
    ) -> Result<(), MoveError> {
        let beside = format!("{:x}", file.ino.0);
        let aside = part_of(&file.at.with_file_name(beside));
        let name = file.names[0].clone();
        self.put_at(mover, round, file, &aside, &name)?;
        self.held.remove(&file.at);
        self.held.insert(aside.clone());
        file.at = aside;
        Ok(())
    }

    /// Has the copy of a file at another path, too, and notes that it is there. `name`: a name of the file, by
    /// which it is copied where the target has no links.
    fn put_at(
        &self,
        mover: &CopyMover<'_>,
        round: &RoundState,
        file: &DisplacedFile,
        path: &Path,
        name: &Path,
    ) -> Result<(), MoveError> {
        let target = self.target.join(path);
        match self.link_copy(&self.target.join(&file.at), &target) {
            Err(MoveError::Io { source, .. }) if is_without_links(&source) => {
                let pair = StagePair {
                    source: self.source.join(name),
                    target: target.clone(),
                };
                let moved = move_files(self.from, self.to, &[pair], round.threads, mover.progress);
                let failure = moved.files.into_iter().find_map(|moved| moved.failure);
                if let Some(failure) = failure {
                    return Err(MoveError::Elsewhere(failure));
                }
            }
            linked => linked?,
        }
        let dir = target.parent().unwrap_or(Path::new("/"));
        self.to
            .sync_directory(dir)
            .map_err(MoveError::io("syncing", dir))?;
        let there = self.to.look_up(&target);
        let there = there.map_err(MoveError::io("looking for", &target))?;
        let there = there.ok_or_else(|| MoveError::TargetChanged(target.clone()))?;
        let evicted = EvictedFile {
            ino: file.ino,
            copy: copy_at(mover.table, path, &there),
        };
        let put = mover.table.put_copy(&evicted);
        put.map_err(MoveError::io("noting", &target))
    }

    /// Makes a link to a copy, instead of what has its name.
    fn link_copy(&self, copy: &Path, target: &Path) -> Result<(), MoveError> {
        let looking = |path| MoveError::io("looking for", path);
        let source = self.to.look_up(copy).map_err(looking(copy))?;
        let source = source.ok_or_else(|| MoveError::SourceChanged(copy.to_owned()))?;
        let there = self.to.look_up(target).map_err(looking(target))?;
        let is_copy = |found: &Stat| identity(found) == identity(&source);
        if there.as_ref().is_some_and(is_copy) {
            return Ok(());
        }
        let make = |part: &Path| self.to.make_link(copy, part);
        make_named(self.to, target, there.as_ref(), make, is_copy)
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

/// True if a file system cannot make this link.
fn is_without_links(error: &std::io::Error) -> bool {
    const REFUSALS: [Errno; 6] = [
        Errno::PERM,
        Errno::NOTSUP,
        Errno::OPNOTSUPP,
        Errno::NOSYS,
        Errno::MLINK,
        Errno::XDEV,
    ];
    failed_with_any(error, &REFUSALS)
}
