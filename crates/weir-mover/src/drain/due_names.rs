//! The changes of names that walks have seen, and the files for which they wait. `names` makes the changes. No I/O.

use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::moved::MovedNodes;
use super::order::WaitingFiles;
use super::round_state::RoundState;
use super::snapshot::{FileSet, FileVersion, TreeSnapshot};
use super::target_state::TargetState;
use crate::tree::NodeKind;

/// After this many walks changes of names are made, even if programs moved files between directories during each: all walks
/// miss a file only if it was moved during each of them, each time into a directory that had been read before.
const MOST_LOOKS: u32 = 4;

/// The number of times that removals wait for links that could not be made.
const MOST_HELD: u32 = 12;

/// Names as a walk saw them.
#[derive(Debug)]
pub(super) struct WalkedNames {
    pub snapshot: Arc<TreeSnapshot>,
    /// Changed links whose directories had the same names after the walk, and still were their destinations: so the walk
    /// saw all these names at once.
    pub steady: HashSet<PathBuf>,
}

/// Changes of names that a walk saw.
#[derive(Debug)]
pub(super) struct DueNames {
    pub seen: WalkedNames,
    /// Files that must be on the target before.
    awaited: FileSet,
    /// Files that get their names after directories, and before anything is removed.
    behind: WaitingFiles,
    /// The number of later walks that met no name which vanished.
    looks: u32,
    /// The walk after which no file can have been hidden from all walks. A program may have made a link, which the first
    /// walk missed, before a removal that the first walk saw: this walk has seen the link.
    last: Option<Arc<WalkedNames>>,
}

/// Removals that two walks saw, and that wait for files which get their names after directories.
#[derive(Debug)]
pub(super) struct LateRemovals {
    pub then: Arc<TreeSnapshot>,
    pub last: Arc<TreeSnapshot>,
    behind: WaitingFiles,
}

/// The state of the files that due changes wait for.
pub(super) enum Awaited {
    /// The target has the files. The walk is the later of the two whose changes are made.
    There(DueNames, Arc<WalkedNames>),
    Missing(DueNames),
    /// Programs have removed some files, and may have written others instead; or they have renamed them to a path where the
    /// target has a node that these changes remove. So the changes of a later walk are made instead.
    Gone,
}

impl DueNames {
    /// Notes another walk, whose files are awaited, too. If this is the last walk, calls `look`, which reads its names once
    /// more.
    pub fn note_walk(&mut self, round: &RoundState, look: impl FnOnce() -> WalkedNames) {
        if self.last.is_some() {
            return;
        }
        self.awaited.add(&round.closed);
        let behind = round.behind.iter();
        self.behind
            .extend(behind.map(|(path, changed)| (path.clone(), *changed)));
        self.looks += u32::from(!round.snapshot.has_missed);
        let is_calm = round.snapshot.is_calm && !round.snapshot.has_missed;
        if is_calm || self.looks >= MOST_LOOKS {
            self.last = Some(Arc::new(look()));
        }
    }

    /// Ends the wait for files that the target has, or that programs write all the time.
    pub fn forget_files(&mut self, round: &RoundState, moved: &MovedNodes) {
        let known: HashSet<_> = moved.iter().map(|(_, node)| node.version.inode()).collect();
        // A log that is opened again and again is never closed for long.
        self.awaited
            .retain(|inode| !round.open.contains(inode) || !known.contains(inode));
        // A program may have renamed a file before it was copied: the target has it under the new name.
        if !self.awaited.is_empty() {
            for (path, node) in round.snapshot.of_kind(NodeKind::File) {
                if moved.has_version(path, node) {
                    self.awaited.remove(path, &node.version);
                }
            }
        }
    }

    /// The state of the awaited files. `can_be_placed`: true if nothing on the target is in the way of a file.
    pub fn find_awaited(
        self,
        now: &TreeSnapshot,
        can_be_placed: impl Fn(&Path) -> bool,
    ) -> Awaited {
        if !self.awaited.are_in(now, can_be_placed) {
            return Awaited::Gone;
        }
        match self.last.clone().filter(|_| self.awaited.is_empty()) {
            Some(last) => Awaited::There(self, last),
            None => Awaited::Missing(self),
        }
    }
}

/// The changes that are due.
#[derive(Debug, Default)]
pub(super) struct DueChanges {
    names: Option<DueNames>,
    late: Option<LateRemovals>,
    /// The number of times that removals were held back since the last one was made.
    held_removals: u32,
}

impl DueChanges {
    /// True if files are copied at once, since changes wait for them.
    pub fn has_names(&self) -> bool {
        self.names.is_some()
    }

    pub fn take_names(&mut self) -> Option<DueNames> {
        self.names.take()
    }

    pub fn keep_names(&mut self, names: DueNames) {
        self.names = Some(names);
    }

    /// Adds the changes that a walk saw; they wait for the files of its round.
    pub fn add_names(&mut self, seen: WalkedNames, round: &RoundState) {
        self.names = Some(DueNames {
            seen,
            awaited: round.closed.clone(),
            behind: round.behind.clone(),
            looks: 0,
            last: None,
        });
    }

    /// Notes that the target has a file under its name.
    pub fn note_there(&mut self, path: &Path, version: &FileVersion) {
        if let Some(names) = &mut self.names {
            names.awaited.remove(path, version);
        }
    }

    /// Makes the names of directories not wait for a file that waits for them.
    pub fn put_behind(&mut self, path: &Path, version: &FileVersion) {
        if let Some(names) = &mut self.names {
            names.awaited.remove(path, version);
            names.behind.insert(path.to_owned(), version.ctime);
        }
    }

    /// Decides about removals, once the links and directories of the same changes are done; true: they are made now.
    /// `has_merged`: the files of a renamed directory must be copied again.
    pub fn begins_removals<F>(
        &mut self,
        due: DueNames,
        last: &WalkedNames,
        has_merged: bool,
        target: &TargetState<F>,
        now: &TreeSnapshot,
    ) -> bool {
        let later = &last.snapshot;
        let mut unmade_links = target.moved.unmade_links(later, now);
        if has_merged && self.held_removals < MOST_HELD {
            // Programs may have renamed the directory before they removed something. The changes of the next walk wait for
            // its files.
            self.held_removals += 1;
        } else if target.awaits_later_walk(later, now) && self.held_removals < MOST_HELD {
            // The next walk's changes give the directory its name; then it has seen these removals, too.
            self.held_removals += 1;
        } else if target.relocated.awaits_name(later, now) {
            // They may have renamed this directory before the removal, too.
            self.names = Some(due);
        } else if unmade_links.next().is_some() && self.held_removals < MOST_HELD {
            // The destinations of these links are gone again. The links of the next walk come first.
            self.held_removals += 1;
        } else if target.moved.lacks_files(&due.behind, now) {
            // These files come next, now that the directories have their names. The removals of the first walk are made
            // before those of later ones.
            self.late.get_or_insert(LateRemovals {
                then: due.seen.snapshot,
                last: Arc::clone(later),
                behind: due.behind,
            });
        } else {
            self.held_removals = 0;
            return true;
        }
        false
    }

    /// The removals that have waited for files, once these are there.
    pub fn take_late(&mut self, moved: &MovedNodes, now: &TreeSnapshot) -> Option<LateRemovals> {
        self.late
            .take_if(|late| !moved.lacks_files(&late.behind, now))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::drain::moved::MovedNode;

    fn walked(snapshot: &Arc<TreeSnapshot>) -> WalkedNames {
        WalkedNames {
            snapshot: Arc::clone(snapshot),
            steady: HashSet::new(),
        }
    }

    fn due(snapshot: &Arc<TreeSnapshot>, behind: WaitingFiles) -> DueNames {
        DueNames {
            seen: walked(snapshot),
            awaited: FileSet::default(),
            behind,
            looks: 0,
            last: None,
        }
    }

    #[test]
    fn a_merged_directory_holds_removals_for_a_while_only() {
        let walk = Arc::new(TreeSnapshot::from_nodes(1, &[]));
        let (mut changes, target) = (DueChanges::default(), TargetState::<()>::new());
        let mut begins = |has_merged| {
            let due = due(&walk, WaitingFiles::new());
            changes.begins_removals(due, &walked(&walk), has_merged, &target, &walk)
        };
        assert!((0..MOST_HELD).all(|_| !begins(true)));
        assert!(begins(true) && !begins(true) && begins(false));
    }

    #[test]
    fn removals_wait_for_files_that_came_after_directories() {
        let file = [("a", NodeKind::File, 1)];
        let walk = Arc::new(TreeSnapshot::from_nodes(1, &file));
        let (path, node) = walk.of_kind(NodeKind::File).next().unwrap();
        let behind = WaitingFiles::from([(path.clone(), node.version.ctime)]);
        let (mut changes, mut target) = (DueChanges::default(), TargetState::<()>::new());
        let due = due(&walk, behind);
        assert!(!changes.begins_removals(due, &walked(&walk), false, &target, &walk));
        assert!(changes.take_late(&target.moved, &walk).is_none());
        // It is there, or is gone from the tree.
        target
            .moved
            .insert(path.clone(), MovedNode::from_seen(node, true));
        assert!(changes.take_late(&target.moved, &walk).is_some());
        assert!(changes.take_late(&target.moved, &walk).is_none());
    }
}
