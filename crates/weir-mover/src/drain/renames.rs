//! The renames that programs make while a drain walks.
//!
//! A walk takes time. If a program meanwhile moves a file from a directory that the walk has not read into one that it has
//! read, the walk sees the file in neither. So the servers count renames, and a walk is *calm* if no rename was under way
//! that could hide a name. The servers also report the renamed directories: these get their names on the target when they
//! are whole (`relocated`).

use std::collections::HashMap;

use weir_client::process::mounted::HistoryPosition;

use crate::tree::TreeHistory;

/// A directory that no walk sees is remembered for this number of walks.
const KEPT_WALKS: u64 = 8;

/// The directories that programs have renamed, and the counts of all renames.
#[derive(Debug, Default)]
pub(super) struct RenameHistory {
    /// The last changes that are known, by the rank of the server.
    pub known: Vec<HistoryPosition>,
    /// By inode number.
    directories: HashMap<u64, RenamedDirectory>,
    /// The number of renames that the servers have reported.
    told: u64,
    /// The number of the last walk for which a server had forgotten renamed directories.
    lost_at: Option<u64>,
}

#[derive(Debug)]
struct RenamedDirectory {
    /// The number of the last walk that saw it, or that came after its rename.
    walk: u64,
    /// The number of its last rename.
    order: u64,
}

impl RenameHistory {
    /// The number of the last rename of a directory, in the order of the reports.
    pub fn order_of(&self, ino: u64) -> u64 {
        self.directories.get(&ino).map_or(0, |dir| dir.order)
    }

    /// True if a directory is known to have been renamed, or may have been, since a server had forgotten renames at this
    /// walk.
    pub fn has_renamed(&self, ino: u64, walk: u64) -> bool {
        self.directories.contains_key(&ino) || self.lost_at == Some(walk)
    }

    /// The renamed directories that are remembered.
    pub fn directories(&self) -> impl Iterator<Item = u64> + '_ {
        self.directories.keys().copied()
    }

    pub fn note(&mut self, renames: &TreeHistory, walk: u64) {
        for ino in &renames.directories {
            self.told += 1;
            let order = self.told;
            self.directories
                .insert(*ino, RenamedDirectory { walk, order });
        }
        if renames.is_cut {
            self.lost_at = Some(walk);
        }
    }

    /// Forgets directories that walks have not seen for long.
    pub fn forget_unseen(&mut self, seen: impl Iterator<Item = u64>, walk: u64) {
        if self.directories.is_empty() {
            return;
        }
        for ino in seen {
            if let Some(dir) = self.directories.get_mut(&ino) {
                dir.walk = walk;
            }
        }
        self.directories
            .retain(|_, dir| dir.walk + KEPT_WALKS >= walk);
    }
}

/// True if no rename was under way between two answers of the servers.
pub(super) fn is_calm(before: Option<&TreeHistory>, after: Option<&TreeHistory>) -> bool {
    let (Some(before), Some(after)) = (before, after) else {
        return false;
    };
    let has_ended = |(begun, ended): &(u64, u64)| begun == ended;
    before.counts == after.counts && after.counts.iter().all(has_ended)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_walk_is_calm_if_no_rename_was_under_way() {
        let renames = |counts: &[(u64, u64)]| {
            Some(TreeHistory {
                counts: counts.to_vec(),
                ..TreeHistory::default()
            })
        };
        let calm = |before: &[(u64, u64)], after: &[(u64, u64)]| {
            is_calm(renames(before).as_ref(), renames(after).as_ref())
        };
        assert!(calm(&[], &[]));
        assert!(calm(&[(3, 3), (0, 0)], &[(3, 3), (0, 0)]));
        assert!(!calm(&[(3, 3), (0, 0)], &[(3, 3), (1, 1)]));
        assert!(!calm(&[(3, 2)], &[(3, 3)]));
        assert!(!calm(&[(3, 2)], &[(3, 2)]));
        assert!(!is_calm(None, renames(&[]).as_ref()));
    }

    #[test]
    fn directories_are_forgotten_when_walks_do_not_see_them() {
        let mut history = RenameHistory::default();
        let renames = TreeHistory {
            directories: vec![1, 2],
            ..TreeHistory::default()
        };
        history.note(&renames, 1);
        for walk in 2..=2 + KEPT_WALKS {
            history.forget_unseen([1].into_iter(), walk);
        }
        assert!(history.has_renamed(1, 99) && !history.has_renamed(2, 99));
        let lost = TreeHistory {
            is_cut: true,
            ..TreeHistory::default()
        };
        history.note(&lost, 20);
        assert!(history.has_renamed(2, 20) && !history.has_renamed(2, 21));
    }
}
