//! The names that programs have removed from an elevated tree, and that the target may still have.
//!
//! They are removed from the target when the drain's own removals would be due. The drain removes only the node that the
//! job has removed: the file that the whiteout records, or one that a drain has put there, in the same directory. If
//! another node has the name, or a link has taken the place of the directory, the name counts as gone.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use weir_client::process::mounted::Whiteout;
use weir_client::types::Stat;

use super::changed_names::{sort_removals, ChangedNames};
use super::snapshot::TreeSnapshot;
use super::target_view::TargetView;
use super::Drain;
use crate::error::MoveError;
use crate::publish::{check_gone, is_at_above_or_below, remove_directory, unless_gone};
use crate::tree::{kind_of, FileTree, NodeKind};

/// The paths of the target that have been examined: true if a path is a directory, and no link.
#[derive(Debug, Default)]
pub(super) struct RealDirectories(HashMap<PathBuf, bool>);

impl RealDirectories {
    /// True if all directories above a path below `top` are there, and none of them is a link.
    fn lead_to<T: FileTree>(
        &mut self,
        tree: &T,
        top: &Path,
        path: &Path,
    ) -> Result<bool, MoveError> {
        let above: Vec<&Path> = path.ancestors().skip(1).collect();
        for dir in above.into_iter().rev() {
            let is_real = if let Some(is_real) = self.0.get(dir) {
                *is_real
            } else {
                let whole = top.join(dir);
                let found = tree.look_up(&whole);
                let found = found.map_err(MoveError::io("looking for", &whole))?;
                let is_directory = |stat: Stat| kind_of(&stat) == NodeKind::Directory;
                // The top itself may be named by a link.
                let is_real = dir == Path::new("") || found.is_some_and(is_directory);
                self.0.insert(dir.to_owned(), is_real);
                is_real
            };
            if !is_real {
                return Ok(false);
            }
        }
        Ok(true)
    }
}

impl<T: FileTree> TargetView<'_, '_, T> {
    /// Removes the node that a whiteout hides, unless its successor replaces it in one step; returns the node. `None`: it
    /// was not removed.
    pub(super) fn remove_from_target(
        &self,
        path: &Path,
        whiteout: &Whiteout,
        successor: Option<NodeKind>,
        directories: &mut RealDirectories,
    ) -> Result<Option<Stat>, MoveError> {
        if !directories.lead_to(self.to.tree, &self.to.path, path)? {
            return Ok(None);
        }
        let target = &*self.to.join(path);
        let Some(there) = self.to.find_node(target)? else {
            // If the target never had a file, no more calls are made: programs remove many files that were never there.
            if whiteout.file().is_some() {
                check_gone(self.to.tree, target).map_err(MoveError::io("removing", target))?;
            }
            return Ok(None);
        };
        let is_directory = |kind| kind == NodeKind::Directory;
        if successor.is_some_and(|kind| is_directory(kind) == is_directory(kind_of(&there))) {
            return Ok(None);
        }
        let removed = match kind_of(&there) {
            // A directory changes with each name in it; only an empty one is removed.
            NodeKind::Directory if whiteout.file().is_some_and(|file| file.ino == there.ino) => {
                remove_directory(self.to.tree, target)
            }
            NodeKind::Directory => return Ok(None),
            _ if !self.state.ownership.is_taken_or_placed(path, &there) => return Ok(None),
            _ => self.to.tree.remove(target),
        };
        unless_gone(self.to.tree, target, removed).map_err(MoveError::io("removing", target))?;
        Ok(Some(there))
    }
}

impl<S: FileTree, T: FileTree> Drain<'_, S, T> {
    /// Removes from the target the names that had been removed from an elevated tree at both walks, unless an old link of
    /// the target leads to them.
    pub(super) fn remove_whited_out(
        &mut self,
        then: &TreeSnapshot,
        now: &TreeSnapshot,
    ) -> ChangedNames {
        let mut hidden: Vec<PathBuf> = self.target.whited_out(then, now).cloned().collect();
        let kept = self.view().destinations_of_old_links(&[], now);
        hidden.retain(|path| !is_at_above_or_below(path, &kept));
        self.remove_hidden(hidden, now)
    }

    /// To be called before the rest is moved: removes the nodes that were removed from an elevated tree, if the tree now
    /// has a directory in place of another kind of node, or the other way around.
    pub(super) fn clear_whited_out(&mut self, now: &TreeSnapshot) -> ChangedNames {
        let mut in_the_way: Vec<PathBuf> = self.target.whited_out(now, now).cloned().collect();
        let has_successor = |path: &Path| {
            path.ancestors()
                .any(|above| now.whiteouts.contains_key(above) && now.get(above).is_some())
        };
        in_the_way.retain(|path| has_successor(path));
        self.remove_hidden(in_the_way, now)
    }

    fn remove_hidden(&mut self, mut hidden: Vec<PathBuf>, now: &TreeSnapshot) -> ChangedNames {
        let mut changed = ChangedNames::default();
        if self.target.ownership.keeps_all {
            return changed;
        }
        let removed_at = |path: &Path| self.from.tree.removed_at(&now.whiteouts[path]).ok()?;
        sort_removals(&mut hidden, removed_at);
        let (mut removed, mut gone) = (Vec::new(), Vec::new());
        let mut directories = RealDirectories::default();
        for path in hidden {
            let target = self.to.join(&path);
            let successor = now.get(&path).map(|node| node.kind);
            let whiteout = &now.whiteouts[&path];
            let done = self
                .view()
                .remove_from_target(&path, whiteout, successor, &mut directories);
            let done = done.map(|removed| {
                self.target.ownership.note_unlinked(removed.as_ref());
                removed.is_some()
            });
            gone.extend(matches!(done, Ok(true)).then(|| path.clone()));
            if changed.note(&path, &target, done) && successor.is_none() {
                removed.push(path);
            }
        }
        self.editor().sync(&mut changed);
        self.target.ownership.note_removed(gone.iter());
        for path in removed {
            let forgotten = self.from.tree.forget(&now.whiteouts[&path]);
            if let Err(error) = forgotten {
                let error = MoveError::io("forgetting", &path)(error);
                changed.failed.push((path, error));
            }
        }
        changed
    }
}
