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
use super::Drain;
use crate::error::MoveError;
use crate::tree::{FileTree, LostName, NodeKind};

/// The walks for which a lost name is remembered that the drain has not made.
const KEPT_WALKS: u64 = 8;

/// The removals that are known.
#[derive(Debug, Default)]
pub(super) struct RemovalHistory {
    /// The names that the servers have told, each with the number of the walk.
    told: Vec<(LostName, u64)>,
    /// The rounds in which files waited for a removal that failed, by its path.
    failures: HashMap<PathBuf, u32>,
}

impl RemovalHistory {
    pub(super) fn note(&mut self, lost: &[LostName], walk: u64) {
        self.told
            .extend(lost.iter().map(|name| (name.clone(), walk)));
    }

    /// Notes that files wait for a removal which has failed.
    pub(super) fn count_failure(&mut self, path: &Path) {
        *self.failures.entry(path.to_owned()).or_default() += 1;
    }

    /// Forgets that a removal has failed.
    pub(super) fn forget_failures(&mut self, path: &Path) {
        self.failures.remove(path);
    }
}

/// The loss of a name.
#[derive(Clone, Copy, Debug)]
pub(super) struct NameLoss {
    /// The inode that had it.
    ino: u64,
    pub at: Time,
    /// Another inode has the name since then.
    is_replaced: bool,
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
        &self,
        losses: &HashMap<PathBuf, NameLoss>,
        now: &TreeSnapshot,
        named: &HashSet<&Path>,
    ) -> Vec<RemovedName> {
        let mut names = self.lost_names(losses, now, named);
        names.extend(self.whited_out_names(now));
        names.retain(|name| self.can_be_removed(&name.path, now));
        names
    }

    /// The names that files and links have lost which this drain has moved.
    pub(super) fn told_losses(&mut self, now: &TreeSnapshot) -> HashMap<PathBuf, NameLoss> {
        let mut losses: HashMap<PathBuf, NameLoss> = HashMap::new();
        if self.removals.told.is_empty() {
            return losses;
        }
        let mut told = std::mem::take(&mut self.removals.told);
        let paths = self.paths_of_directories(now);
        told.retain(|(lost, walk)| {
            let path = paths.get(&lost.dir).map(|dir| dir.join(&lost.name));
            let moved = path.and_then(|path| self.moved.get_key_value(&path));
            let moved = moved.filter(|(_, moved)| {
                moved.version.ino == lost.ino && moved.version.ctime <= lost.at
            });
            if let Some((path, _)) = moved {
                let loss = NameLoss {
                    ino: lost.ino,
                    at: lost.at,
                    is_replaced: lost.is_replaced,
                };
                // The first one since it was moved.
                let first = losses.entry(path.clone()).or_insert(loss);
                if lost.at < first.at {
                    *first = loss;
                }
            }
            moved.is_some() || walk + KEPT_WALKS >= now.walk
        });
        self.removals.told = told;
        losses
    }

    fn lost_names(
        &self,
        losses: &HashMap<PathBuf, NameLoss>,
        now: &TreeSnapshot,
        named: &HashSet<&Path>,
    ) -> Vec<RemovedName> {
        // It may have got the name again. The number of an inode is used for others.
        let is_back = |seen: &SeenNode, loss: &NameLoss| {
            seen.version.ino == loss.ino && seen.born.is_none_or(|born| born < loss.at)
        };
        let is_removed = |path: &Path, loss: &NameLoss| {
            !loss.is_replaced && !now.get(path).is_some_and(|seen| is_back(seen, loss))
        };
        let names = losses.iter().filter(|(path, loss)| is_removed(path, loss));
        let names: HashMap<&PathBuf, &NameLoss> = names.collect();
        if names.is_empty() {
            return Vec::new();
        }
        let inodes: HashSet<u64> = names.values().map(|loss| loss.ino).collect();
        let files = now.of_kind(NodeKind::File);
        let others = files.filter(|(path, node)| {
            let is_named = named.contains(&***path) || self.has_moved(path, node);
            inodes.contains(&node.version.ino)
                && !names.contains_key(path)
                && (!is_named || self.is_relocated(path))
        });
        // The target would have the file under no name.
        let nameless: HashSet<u64> = others.map(|(_, node)| node.version.ino).collect();
        let names = names
            .into_iter()
            .filter(|(_, loss)| !nameless.contains(&loss.ino));
        let removed = names.map(|(path, loss)| RemovedName {
            path: path.clone(),
            at: loss.at,
            whiteout: None,
        });
        removed.collect()
    }

    /// The paths below the source of the directories that the walk or an earlier one saw, by their inode numbers.
    fn paths_of_directories(&self, now: &TreeSnapshot) -> HashMap<u64, PathBuf> {
        let moved = self.moved.iter();
        let moved = moved.filter(|(_, moved)| moved.kind == NodeKind::Directory);
        let moved = moved.map(|(path, moved)| (moved.version.ino, path.clone()));
        let seen = now.of_kind(NodeKind::Directory);
        let seen = seen.map(|(path, node)| (node.version.ino, path.clone()));
        let root = self.from.look_up(&self.source).ok().flatten();
        let root = root.map(|root| (root.ino, PathBuf::new()));
        moved.chain(seen).chain(root).collect()
    }

    /// The names that programs have removed from an elevated tree, and that no drain has made.
    fn whited_out_names(&self, now: &TreeSnapshot) -> Vec<RemovedName> {
        let of_target = now.whiteouts.iter().filter(|(path, whiteout)| {
            whiteout.file().is_some() && !self.moved.contains_key(*path)
        });
        let names = of_target.filter_map(|(path, whiteout)| {
            // Forgotten meanwhile, or its server does not answer.
            let at = self.from.removed_at(whiteout).ok()??;
            Some(RemovedName {
                path: path.clone(),
                at,
                whiteout: Some(whiteout.clone()),
            })
        });
        names.collect()
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
            && !self.is_relocated(path)
            && !self.has_copies(path)
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
            let target = self.target.join(path);
            let is_removed = self.remove_ours(&target, &self.moved[path], is_whited_out)?;
            return Ok(is_removed.then(Stat::default));
        };
        match self.remove_from_target(path, whiteout, None, &mut RealDirectories::default()) {
            // It goes with what is in it.
            Err(error) if error.is_directory_not_empty() => Ok(None),
            removed => removed,
        }
    }
}
