//! The names that programs have removed, with the times of their removal: a walk cannot see these.
//!
//! The servers report each name that a file or symbolic link has lost by a removal or a rename. If a name was removed from
//! an elevated tree, and no drain had made it, there is a whiteout, which has the time.
//!
//! Left out: directories, which are removed with their nodes.

use std::collections::{HashMap, HashSet};
use std::path::{Path, PathBuf};

use weir_client::process::mounted::Whiteout;
use weir_client::types::{Stat, Time};

use super::order::MOST_ROUNDS;
use super::snapshot::{SeenNode, TreeSnapshot};
use super::target_state::TargetState;
use super::target_view::TargetView;
use super::whiteouts::RealDirectories;
use super::{FileChoice, MovedNode, MovedNodes};
use crate::error::MoveError;
use crate::side::MoveSide;
use crate::tree::{FileTree, LostName, NodeKind};

/// A lost name that the drain has not made is remembered for this number of walks.
const KEPT_WALKS: u64 = 8;
/// The most lost names that are remembered.
const MOST_TOLD: usize = 1 << 18;

/// The removals that are known.
#[derive(Debug, Default)]
pub(super) struct RemovalHistory {
    /// The names that the servers have reported, each with the number of the walk.
    told: Vec<(LostName, u64)>,
    /// The inode of the source.
    root: Option<u64>,
    /// The times of whiteouts, by the path of the name.
    whited_out: HashMap<PathBuf, (Whiteout, Time)>,
    /// The rounds in which files waited for a removal that failed, by its path.
    failures: HashMap<PathBuf, u32>,
}

impl RemovalHistory {
    /// Notes the losses that the servers reported to a walk. `root`: finds the inode of the source.
    pub(super) fn note(
        &mut self,
        lost: &[LostName],
        walk: u64,
        root: impl FnOnce() -> Option<u64>,
    ) {
        if !lost.is_empty() {
            self.root = root();
        }
        self.told
            .extend(lost.iter().map(|name| (name.clone(), walk)));
        // If the oldest are forgotten, some removals come later, with those that only walks find.
        let too_many = self.told.len().saturating_sub(MOST_TOLD);
        self.told.drain(..too_many);
    }

    /// The names of the target that can be removed by themselves, since programs have removed them, or have renamed their
    /// files. `losses`: the lost names that this drain had put on the target. `named`: files that get their names in this
    /// round. `removed_at`: finds the time at which a name with a whiteout was removed.
    pub fn removed_names<F>(
        &mut self,
        losses: &HashMap<PathBuf, NameLoss>,
        target: &TargetState<F>,
        now: &TreeSnapshot,
        named: &HashSet<&Path>,
        removed_at: impl Fn(&Whiteout) -> Option<Time>,
    ) -> Vec<RemovedName> {
        let mut names = target.lost_names(losses, now, named);
        names.retain(|name| self.can_be_removed(&name.path, target, now));
        names.extend(self.whited_out_names(target, now, removed_at));
        names
    }

    /// The lost names of files and links that this drain has moved.
    pub fn told_losses(
        &mut self,
        moved: &MovedNodes,
        now: &TreeSnapshot,
    ) -> HashMap<PathBuf, NameLoss> {
        let mut told = std::mem::take(&mut self.told);
        if told.is_empty() {
            return HashMap::new();
        }
        let wanted = told.iter().map(|(lost, _)| lost.dir).collect();
        let directories = paths_of_directories(moved, &wanted, now, self.root);
        let mut by_path: HashMap<PathBuf, Vec<LostName>> = HashMap::new();
        told.retain(|(lost, walk)| {
            let path = directories.get(&lost.dir).map(|dir| dir.join(&lost.name));
            let is_since = |node: &MovedNode| node.version.ctime <= lost.at;
            let path = path.filter(|path| moved.get(path).is_some_and(is_since));
            let is_kept = path.is_some() || walk + KEPT_WALKS >= now.walk;
            if let Some(path) = path {
                by_path.entry(path).or_default().push(lost.clone());
            }
            is_kept
        });
        self.told = told;
        let losses = by_path.into_iter().filter_map(|(path, mut lost)| {
            lost.sort_by_key(|lost| lost.at);
            let ino = moved[&*path].version.ino;
            let first = lost.iter().find(|lost| lost.ino == ino)?.at;
            let mut removals = lost
                .iter()
                .filter(|lost| !lost.is_replaced && lost.at >= first);
            let removed = removals.next().map(|lost| (lost.ino, lost.at));
            Some((path, NameLoss { first, removed }))
        });
        losses.collect()
    }

    /// The losses of names that this drain has not moved: by path, in the order of their times. Those that were told to this walk, or
    /// `with_earlier` ones.
    pub fn losses_of_others(
        &self,
        moved: &MovedNodes,
        now: &TreeSnapshot,
        with_earlier: bool,
    ) -> HashMap<PathBuf, Vec<LostName>> {
        let told = self.told.iter();
        let new = told.filter(|(_, walk)| with_earlier || *walk == now.walk);
        let new: Vec<&LostName> = new.map(|(lost, _)| lost).collect();
        let mut by_path: HashMap<PathBuf, Vec<LostName>> = HashMap::new();
        if new.is_empty() {
            return by_path;
        }
        let wanted = new.iter().map(|lost| lost.dir).collect();
        let directories = paths_of_directories(moved, &wanted, now, self.root);
        for lost in new {
            let path = directories.get(&lost.dir).map(|dir| dir.join(&lost.name));
            if let Some(path) = path.filter(|path| !moved.contains(path)) {
                by_path.entry(path).or_default().push(lost.clone());
            }
        }
        for lost in by_path.values_mut() {
            lost.sort_by_key(|lost| lost.at);
        }
        by_path
    }

    /// The names that files have lost since a point in time, and that the target does not have.
    pub fn lost_unmoved(
        &self,
        since: Time,
        moved: &MovedNodes,
        choice: &FileChoice,
        now: &TreeSnapshot,
    ) -> Vec<UnmovedName> {
        let told = self.told.iter();
        let lost: Vec<&LostName> = told
            .map(|(lost, _)| lost)
            .filter(|lost| lost.at > since)
            .collect();
        if lost.is_empty() {
            return Vec::new();
        }
        let directories = lost.iter().map(|lost| lost.dir).collect();
        let directories = paths_of_directories(moved, &directories, now, self.root);
        let inodes: HashSet<u64> = lost.iter().map(|lost| lost.ino).collect();
        let files = now.of_kind(NodeKind::File);
        let seen = files.filter(|(_, node)| inodes.contains(&node.version.ino));
        let born: HashMap<u64, Option<Time>> = seen
            .map(|(_, node)| (node.version.ino, node.born))
            .collect();
        let unmoved = lost.into_iter().filter_map(|lost| {
            let path = directories.get(&lost.dir)?.join(&lost.name);
            let known = moved.get(&path);
            let is_moved = known.is_some_and(|moved| moved.version.ino == lost.ino);
            let is_chosen = choice.is_moved(&path);
            (is_chosen && !is_moved).then(|| UnmovedName {
                path,
                at: lost.at,
                born: born.get(&lost.ino).copied().flatten(),
            })
        });
        unmoved.collect()
    }

    /// The names that programs have removed from an elevated tree, and that no drain has made.
    fn whited_out_names<F>(
        &mut self,
        target: &TargetState<F>,
        now: &TreeSnapshot,
        removed_at: impl Fn(&Whiteout) -> Option<Time>,
    ) -> Vec<RemovedName> {
        let mut known = std::mem::take(&mut self.whited_out);
        known.retain(|path, (whiteout, _)| now.whiteouts.get(path) == Some(whiteout));
        let mut names = Vec::new();
        for (path, whiteout) in &now.whiteouts {
            // An earlier drain may have put a node of the job there.
            let is_on_target = whiteout.file().is_some() || target.ownership.has_marks(path);
            if !is_on_target
                || target.moved.contains(path)
                || !self.can_be_removed(path, target, now)
            {
                continue;
            }
            let known_at = known.get(path).map(|(_, at)| *at);
            // The whiteout is forgotten meanwhile, or its server does not answer.
            let Some(at) = known_at.or_else(|| removed_at(whiteout)) else {
                continue;
            };
            known.insert(path.clone(), (whiteout.clone(), at));
            // The whiteout is made before the name is removed, and the removal may fail.
            let is_removed = |seen: &SeenNode| seen.born.is_some_and(|born| born >= at);
            if now.get(path).is_none_or(is_removed) {
                names.push(RemovedName {
                    path: path.clone(),
                    at,
                    whiteout: Some((whiteout.clone(), at)),
                });
            }
        }
        self.whited_out = known;
        names
    }

    /// True if a name can be removed by itself: its directory is there, and no symbolic link takes its place.
    fn can_be_removed<F>(&self, path: &Path, target: &TargetState<F>, now: &TreeSnapshot) -> bool {
        let is_kind = |path: &Path, kind| now.get(path).is_some_and(|node| node.kind == kind);
        let dir = path.parent().unwrap_or(Path::new(""));
        let has_directory = dir == Path::new("") || is_kind(dir, NodeKind::Directory);
        let failures = self.failures.get(path).copied().unwrap_or(0);
        has_directory
            && !is_kind(path, NodeKind::Symlink)
            && failures < MOST_ROUNDS
            && !target.relocated.is_relocated(path)
            && !target.copies.has_around(path)
    }

    /// Counts a round in which files wait for a failed removal.
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
    /// The time at which the file that the drain had moved lost the name.
    pub first: Time,
    /// The inode that had the name last, and the time at which programs removed it.
    removed: Option<(u64, Time)>,
}

impl NameLoss {
    /// True if programs removed the name, and no other file replaced it at once.
    pub(super) fn is_removal(&self) -> bool {
        self.removed.is_some()
    }

    /// The time of the removal, or else that of the first loss.
    pub(super) fn gone_at(&self) -> Time {
        self.removed.map_or(self.first, |(_, at)| at)
    }
}

/// A name that a file lost before the drain gave it this name on the target.
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
    /// The whiteout of a name that this drain has not made, with its time.
    whiteout: Option<(Whiteout, Time)>,
}

impl<F> TargetState<F> {
    /// The removed names of files and links that this drain has moved.
    fn lost_names(
        &self,
        losses: &HashMap<PathBuf, NameLoss>,
        now: &TreeSnapshot,
        named: &HashSet<&Path>,
    ) -> Vec<RemovedName> {
        let removed = losses.iter().filter_map(|(path, loss)| {
            let (ino, at) = loss.removed?;
            // The file may have got the name back. But its inode number may also have been used again.
            let is_back =
                |seen: &SeenNode| seen.version.ino == ino && seen.born.is_none_or(|born| born < at);
            (!now.get(path).is_some_and(is_back)).then_some((path, (ino, at)))
        });
        let removed: HashMap<&PathBuf, (u64, Time)> = removed.collect();
        if removed.is_empty() {
            return Vec::new();
        }
        // A file that has other names must get these first, or the target would have it under no name.
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
            if removed.contains_key(path) || self.has_name(path, node) {
                continue;
            }
            let is_named = named.contains(&**path) && !self.relocated.is_relocated(path);
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
}

/// The paths below the source of directories that this walk or an earlier one saw, by inode number. `root`: the inode
/// number of the source.
fn paths_of_directories(
    moved: &MovedNodes,
    wanted: &HashSet<u64>,
    now: &TreeSnapshot,
    root: Option<u64>,
) -> HashMap<u64, PathBuf> {
    let moved = moved.iter();
    let moved = moved.filter(|(_, moved)| moved.kind == NodeKind::Directory);
    let moved = moved.map(|(path, moved)| (moved.version.ino, path));
    let seen = now.of_kind(NodeKind::Directory);
    let seen = seen.map(|(path, node)| (node.version.ino, path));
    let known = moved.chain(seen).filter(|(ino, _)| wanted.contains(ino));
    let root = root.map(|root| (root, PathBuf::new()));
    let known = known.map(|(ino, path)| (ino, path.clone()));
    known.chain(root).collect()
}

/// The inode number of the directory of a side.
pub(super) fn find_inode<S: FileTree>(from: &MoveSide<'_, S>) -> Option<u64> {
    let root = from.tree.look_up(&from.path).ok().flatten();
    root.map(|root| root.ino)
}

impl<T: FileTree> TargetView<'_, '_, T> {
    /// Removes a name from the target, if it is still that of the node that programs have removed; returns the node.
    pub(super) fn remove_name(
        &self,
        name: &RemovedName,
        now: &TreeSnapshot,
    ) -> Result<Option<Stat>, MoveError> {
        let path = &*name.path;
        let Some((whiteout, whited_out_at)) = &name.whiteout else {
            let is_whited_out = now.whiteouts.contains_key(path);
            let target = self.to.join(path);
            let moved = &self.state.moved[path];
            let is_removed = self.remove_ours(&target, path, moved, is_whited_out)?;
            return Ok(is_removed.then(Stat::default));
        };
        let target = &self.to.join(path);
        let there = self.to.find_node(target)?;
        let ownership = &self.state.ownership;
        let successor = now.get(path).map(|seen| seen.version.ino);
        // Otherwise a drain has put the next version there.
        let is_removed = |there: &Stat| {
            let is_next =
                successor.is_some_and(|ino| ownership.has_placed_source(path, there, ino));
            let is_older = there.mtime < *whited_out_at && !is_next;
            ownership.is_taken(path, there) || is_older && ownership.has_placed(path, there)
        };
        if !there.as_ref().is_some_and(is_removed) {
            return Ok(None);
        }
        match self.remove_from_target(path, whiteout, None, &mut RealDirectories::default()) {
            // It is removed later, when it is empty.
            Err(error) if error.is_directory_not_empty() => Ok(None),
            removed => removed,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::NodeKind::{Directory, File};
    use super::*;

    fn lost(dir: u64, name: &str, ino: u64, sec: i64, is_replaced: bool) -> LostName {
        LostName {
            dir,
            name: name.into(),
            ino,
            at: Time { sec, nsec: 0 },
            is_replaced,
        }
    }

    #[test]
    fn a_name_is_lost_with_its_file_and_removed_if_none_has_replaced_it() {
        let nodes = [("d", Directory, 1), ("d/a", File, 2), ("b", File, 3)];
        let walk = TreeSnapshot::from_nodes(1, &nodes);
        let target = TargetState::after_walk(&walk);
        let mut history = RemovalHistory::default();
        // Another file had the name after `a`, and was removed; `b` was replaced in one step.
        let told = [
            lost(1, "a", 7, 6, false),
            lost(1, "a", 2, 5, true),
            lost(0, "b", 3, 4, true),
        ];
        history.note(&told, 1, || Some(0));
        let losses = history.told_losses(&target.moved, &walk);
        let loss = |path: &str| losses[Path::new(path)];
        assert_eq!((loss("d/a").first.sec, loss("b").first.sec), (5, 4));
        assert!(loss("d/a").is_removal() && !loss("b").is_removal());
        assert_eq!(losses.len(), 2);
    }

    #[test]
    fn a_loss_before_the_move_counts_no_more_and_is_forgotten() {
        let walk = TreeSnapshot::from_nodes(1, &[("a", File, 5)]);
        let target = TargetState::after_walk(&walk);
        let mut history = RemovalHistory::default();
        history.note(&[lost(0, "a", 5, 4, false)], 1, || Some(0));
        assert_eq!(history.told_losses(&target.moved, &walk).len(), 0);
        assert!(history.has_some());
        let later = TreeSnapshot::from_nodes(2 + KEPT_WALKS, &[("a", File, 5)]);
        assert_eq!(history.told_losses(&target.moved, &later).len(), 0);
        assert!(!history.has_some());
    }

    #[test]
    fn a_name_goes_by_itself_if_its_directory_stays_and_it_has_not_failed_often() {
        let walk = TreeSnapshot::from_nodes(1, &[("d", Directory, 1)]);
        let target = TargetState::after_walk(&walk);
        let mut history = RemovalHistory::default();
        let (path, other) = (Path::new("d/a"), Path::new("e/a"));
        assert!(!history.can_be_removed(other, &target, &walk));
        for _ in 0..MOST_ROUNDS {
            assert!(history.can_be_removed(path, &target, &walk));
            history.count_failure(path);
        }
        assert!(!history.can_be_removed(path, &target, &walk));
        history.forget_failures(path);
        assert!(history.can_be_removed(path, &target, &walk));
    }
}
