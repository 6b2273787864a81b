//! The changes of names that programs have made, as far as the servers have reported them.

use super::order::NameOrder;
use super::removals::{find_inode, RemovalHistory};
use super::renames::RenameHistory;
use super::Drain;
use crate::tree::{FileTree, TreeHistory};

/// The changes of names by programs that are remembered.
#[derive(Debug, Default)]
pub(super) struct ProgramHistory {
    pub renames: RenameHistory,
    pub removals: RemovalHistory,
}

impl<S: FileTree, T: FileTree> Drain<'_, S, T> {
    /// Asks for the changes of names since the last call. `None`: a server does not answer, so nothing is known.
    pub(super) fn ask_for_history(&mut self, walk: u64) -> Option<TreeHistory> {
        let history = self
            .from
            .tree
            .name_history(&mut self.history.renames.known)
            .ok()?;
        self.history.renames.note(&history, walk);
        if self.order.rule == NameOrder::Changes && !self.target.ownership.keeps_all {
            let root = || find_inode(&self.from);
            self.history.removals.note(&history.lost, walk, root);
        }
        Some(history)
    }
}
