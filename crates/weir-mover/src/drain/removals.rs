//! The names that programs have removed, with the times of their removal: a walk sees nothing of them.
//!
//! The servers tell each name that a file or symbolic link has lost, whether it was removed or renamed. A name that was removed
//! from an elevated tree, and was not made by a drain, has a whiteout, which has the time.
//!
//! Left out: directories, which go with all that is in them.

use std::collections::{HashMap, HashSet};
use std::path::{Path, PathBuf};

use weir_client::process::mounted::Whiteout;
use weir_client::types::{Stat, Time};

use super::order::MOST_ROUNDS;
use super::snapshot::{SeenNode, TreeSnapshot};
use super::whiteouts::RealDirectories;
use super::{Drain, MovedNode};
use crate::error::MoveError;
use crate::tree::{FileTree, LostName, NodeKind};

/// The walks for which a lost name is remembered that the drain has not made.
const KEPT_WALKS: u64 = 8;
/// The most lost names that are remembered.
const MOST_TOLD: usize = 1 << 18;

/// The removals that are known.
#[derive(Debug, Default)]
pub(super) struct RemovalHistory {
    /// The names that the servers have told, each with the number of the walk.
    told: Vec<(LostName, u64)>,
    /// The times of whiteouts, by the path of the name.
    whited_out: HashMap<PathBuf, (Whiteout, Time)>,
    /// The rounds in which files waited for a removal that failed, by its path.
    failures: HashMap<PathBuf, u32>,
}

impl RemovalHistory {
    pub(super) fn note(&mut self, lost: &[LostName], walk: u64) {
        self.told
            .extend(lost.iter().map(|name| (name.clone(), walk)));
        // Without the oldest ones some removals come later, with those that only walks see.
        let too_many = self.told.len().saturating_sub(MOST_TOLD);
        self.told.drain(..too_many);
    }

    /// Notes that files wait for a removal which has failed.
    pub(super) fn count_failure(&mut self, path: &Path) {
        *self.failures.entry(path.to_owned()).or_default() += 1;
    }

    /// True if files may wait for removals.
    pub(super) fn has_some(&self) -> bool {
        !self.told.is_empty() || !self.whited_out.is_empty()
    }

    /// Forgets that a removal has failed.
    pub(super) fn forget_failures(&mut self, path: &Path) {
        self.failures.remove(path);
    }
}

/// The loss of a name that this drain has given a file or link on the target.
#[derive(Clone, Copy, Debug)]
pub(super) struct NameLoss {
    /// The time at which the name first led elsewhere, or nowhere.
    pub first: Time,
    /// The inode that had it last, and the time at which programs removed it.
    removed: Option<(u64, Time)>,
}

impl NameLoss {
    /// True if programs removed the name, and no other file replaced it at once.
    pub(super) fn is_removal(&self) -> bool {
        self.removed.is_some()
    }
}

/// A name that a file has lost before the drain has given it to that on the target.
#[derive(Debug)]
pub(super) struct UnmovedName {
    pub path: PathBuf,
    /// The time of the loss.
    pub at: Time,
    /// The time of the creation of the file, if the tree has it under another name.
    pub born: Option<Time>,
}

/// A name of the target that programs have removed.
#[derive(Debug)]
pub(super) struct RemovedName {
    pub path: PathBuf,
    pub at: Time,
    /// The whiteout of a name that this drain has not made.
    whiteout: Option<Whiteout>,
}

impl<S: FileTree, T: FileTree> Drain<'_, S, T> {
    /// The names of the target that can be removed by themselves, since programs have removed them, or have renamed their
    /// files. `losses`: the names that files have lost which this drain has moved; `named`: files that get theirs in this round.
    pub(super) fn removed_names(
        &mut self,
        losses: &HashMap<PathBuf, NameLoss>,
        now: &TreeSnapshot,
        named: &HashSet<&Path>,
    ) -> Vec<RemovedName> {
        let mut names = self.lost_names(losses, now, named);
        names.retain(|name| self.can_be_removed(&name.path, now));
        names.extend(self.whited_out_names(now));
        names
    }

    /// The names that files and links have lost which this drain has moved.
    pub(super) fn told_losses(&mut self, now: &TreeSnapshot) -> HashMap<PathBuf, NameLoss> {
        let mut told = std::mem::take(&mut self.removals.told);
        if told.is_empty() {
            return HashMap::new();
        }
        let wanted = told.iter().map(|(lost, _)| lost.dir).collect();
        let directories = self.paths_of_directories(&wanted, now);
        let mut by_path: HashMap<PathBuf, Vec<LostName>> = HashMap::new();
        told.retain(|(lost, walk)| {
            let path = directories.get(&lost.dir).map(|dir| dir.join(&lost.name));
            let is_since = |moved: &MovedNode| moved.version.ctime <= lost.at;
            let path = path.filter(|path| self.target.moved.get(path).is_some_and(is_since));
            let is_kept = path.is_some() || walk + KEPT_WALKS >= now.walk;
            if let Some(path) = path {
                by_path.entry(path).or_default().push(lost.clone());
            }
            is_kept
        });
        self.removals.told = told;
        let losses = by_path.into_iter().filter_map(|(path, mut lost)| {
            lost.sort_by_key(|lost| lost.at);
            let ino = self.target.moved[&*path].version.ino;
            let first = lost.iter().find(|lost| lost.ino == ino)?.at;
            let mut removals = lost
                .iter()
                .filter(|lost| !lost.is_replaced && lost.at >= first);
            let removed = removals.next().map(|lost| (lost.ino, lost.at));
            Some((path, NameLoss { first, removed }))
        });
        losses.collect()
    }

    /// The names that files have lost since a point in time, and that the target does not have.
    pub(super) fn lost_unmoved(&self, since: Time, now: &TreeSnapshot) -> Vec<UnmovedName> {
        let told = self.removals.told.iter();
        let lost: Vec<&LostName> = told
            .map(|(lost, _)| lost)
            .filter(|lost| lost.at > since)
            .collect();
        if lost.is_empty() {
            return Vec::new();
        }
        let directories = lost.iter().map(|lost| lost.dir).collect();
        let directories = self.paths_of_directories(&directories, now);
        let inodes: HashSet<u64> = lost.iter().map(|lost| lost.ino).collect();
        let files = now.of_kind(NodeKind::File);
        let seen = files.filter(|(_, node)| inodes.contains(&node.version.ino));
        let born: HashMap<u64, Option<Time>> = seen
            .map(|(_, node)| (node.version.ino, node.born))
            .collect();
        let unmoved = lost.into_iter().filter_map(|lost| {
            let path = directories.get(&lost.dir)?.join(&lost.name);
            let moved = self.target.moved.get(&path);
            let is_moved = moved.is_some_and(|moved| moved.version.ino == lost.ino);
            let is_chosen = self.choice.is_moved(&path);
            (is_chosen && !is_moved).then(|| UnmovedName {
                path,
                at: lost.at,
                born: born.get(&lost.ino).copied().flatten(),
            })
        });
        unmoved.collect()
    }

    fn lost_names(
        &self,
        losses: &HashMap<PathBuf, NameLoss>,
        now: &TreeSnapshot,
        named: &HashSet<&Path>,
    ) -> Vec<RemovedName> {
        let removed = losses.iter().filter_map(|(path, loss)| {
            let (ino, at) = loss.removed?;
            // It may have got the name again. The number of an inode is used for others.
            let is_back =
                |seen: &SeenNode| seen.version.ino == ino && seen.born.is_none_or(|born| born < at);
            (!now.get(path).is_some_and(is_back)).then_some((path, (ino, at)))
        });
        let removed: HashMap<&PathBuf, (u64, Time)> = removed.collect();
        if removed.is_empty() {
            return Vec::new();
        }
        // Those that have other names get these before, or the target would have them under none.
        let mut others: HashMap<u64, Option<Time>> = removed
            .values()
            .map(|(ino, at)| (*ino, Some(*at)))
            .collect();
        for (path, node) in now
            .of_kind(NodeKind::File)
            .chain(now.of_kind(NodeKind::Symlink))
        {
            let Some(turn) = others.get_mut(&node.version.ino) else {
                continue;
            };
            if removed.contains_key(path) || self.target.has_name(path, node) {
                continue;
            }
            let is_named = named.contains(&**path) && !self.target.relocated.is_relocated(path);
            *turn = turn
                .filter(|_| is_named)
                .map(|turn| turn.max(node.version.ctime));
        }
        let names = removed.into_iter().filter_map(|(path, (ino, at))| {
            Some(RemovedName {
                path: path.clone(),
                at: others[&ino]?.max(at),
                whiteout: None,
            })
        });
        names.collect()
    }

    /// The paths below the source of directories that the walk or an earlier one saw, by their inode numbers.
    fn paths_of_directories(
        &self,
        wanted: &HashSet<u64>,
        now: &TreeSnapshot,
    ) -> HashMap<u64, PathBuf> {
        let moved = self.target.moved.iter();
        let moved = moved.filter(|(_, moved)| moved.kind == NodeKind::Directory);
        let moved = moved.map(|(path, moved)| (moved.version.ino, path));
        let seen = now.of_kind(NodeKind::Directory);
        let seen = seen.map(|(path, node)| (node.version.ino, path));
        let known = moved.chain(seen).filter(|(ino, _)| wanted.contains(ino));
        let root = self.from.tree.look_up(&self.from.path).ok().flatten();
        let root = root.map(|root| (root.ino, PathBuf::new()));
        let known = known.map(|(ino, path)| (ino, path.clone()));
        known.chain(root).collect()
    }

    /// The names that programs have removed from an elevated tree, and that no drain has made.
    fn whited_out_names(&mut self, now: &TreeSnapshot) -> Vec<RemovedName> {
        let mut known = std::mem::take(&mut self.removals.whited_out);
        known.retain(|path, (whiteout, _)| now.whiteouts.get(path) == Some(whiteout));
        let mut names = Vec::new();
        for (path, whiteout) in &now.whiteouts {
            if whiteout.file().is_none()
                || self.target.moved.contains(path)
                || !self.can_be_removed(path, now)
            {
                continue;
            }
            let known_at = known.get(path).map(|(_, at)| *at);
            // Forgotten meanwhile, or its server does not answer.
            let Some(at) = known_at.or_else(|| self.from.tree.removed_at(whiteout).ok()?) else {
                continue;
            };
            known.insert(path.clone(), (whiteout.clone(), at));
            // It is made before the name is removed, which may fail.
            let is_removed = |seen: &SeenNode| seen.born.is_some_and(|born| born >= at);
            if now.get(path).is_none_or(is_removed) {
                names.push(RemovedName {
                    path: path.clone(),
                    at,
                    whiteout: Some(whiteout.clone()),
                });
            }
        }
        self.removals.whited_out = known;
        names
    }

    /// True if a name goes by itself, and nothing that links lead to takes its place.
    fn can_be_removed(&self, path: &Path, now: &TreeSnapshot) -> bool {
        let is_kind = |path: &Path, kind| now.get(path).is_some_and(|node| node.kind == kind);
        let dir = path.parent().unwrap_or(Path::new(""));
        let has_directory = dir == Path::new("") || is_kind(dir, NodeKind::Directory);
        let failures = self.removals.failures.get(path).copied().unwrap_or(0);
        has_directory
            && !is_kind(path, NodeKind::Symlink)
            && failures < MOST_ROUNDS
            && !self.target.relocated.is_relocated(path)
            && !self.target.copies.has_around(path)
    }

    /// Removes a name from the target, if it is still that of what programs have removed; returns the node.
    pub(super) fn remove_name(
        &self,
        name: &RemovedName,
        now: &TreeSnapshot,
    ) -> Result<Option<Stat>, MoveError> {
        let path = &*name.path;
        let Some(whiteout) = &name.whiteout else {
            let is_whited_out = now.whiteouts.contains_key(path);
            let target = self.to.join(path);
            let is_removed = self.remove_ours(&target, &self.target.moved[path], is_whited_out)?;
            return Ok(is_removed.then(Stat::default));
        };
        let target = &self.to.join(path);
        let there = self.to.find_node(target)?;
        // Else a drain has put the next version there.
        let is_taken = |there: &Stat| self.target.ownership.is_taken(path, there);
        if !there.as_ref().is_some_and(is_taken) {
            return Ok(None);
        }
        match self.remove_from_target(path, whiteout, None, &mut RealDirectories::default()) {
            // It goes with what is in it.
            Err(error) if error.is_directory_not_empty() => Ok(None),
            removed => removed,
        }
    }
}
