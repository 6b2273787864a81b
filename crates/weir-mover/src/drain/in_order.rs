//! Puts the files of a round in order ([`order`](super::order)).

use std::cmp::Reverse;
use std::path::{Path, PathBuf};

use super::order::{FileOrder, NameOrder, OrderedNode, RoundOrder, LONGEST_WAIT};
use super::round_state::RoundState;
use super::snapshot::SeenNode;
use super::target_view::TargetView;
use super::{Drain, FileChoice, PendingState};
use crate::side::MoveSide;
use crate::tree::FileTree;

/// Decides about the turns of files, and makes the changes of names that come in turn with them. It changes no state of the
/// drain, so that the thread that gives the names can use it.
pub(super) struct TurnMaker<'d, 't, S: FileTree, T: FileTree> {
    pub from: &'d MoveSide<'t, S>,
    pub view: TargetView<'d, 't, T>,
    pub order: &'d FileOrder,
    pub choice: &'d FileChoice,
}

impl<S: FileTree, T: FileTree> TurnMaker<'_, '_, S, T> {
    /// True if a file gets its name in order.
    pub(super) fn is_ordered(&self, path: &Path) -> bool {
        self.order.rule == NameOrder::Changes && !self.view.state.relocated.is_relocated(path)
    }

    /// True if files behind this one wait for it.
    pub(super) fn is_awaited(&self, path: &Path, node: &SeenNode) -> bool {
        self.is_ordered(path)
            && self.order.is_awaited(node.version.inode())
            && Some(node.version.ctime) > self.order.released
    }

    pub(super) fn ordered_node<'n>(&self, path: &'n Path, node: &'n SeenNode) -> OrderedNode<'n> {
        OrderedNode {
            path,
            version: &node.version,
            is_first: self.choice.is_first(path),
        }
    }
}

impl<'t, S: FileTree, T: FileTree> Drain<'t, S, T> {
    pub(super) fn turns(&self) -> TurnMaker<'_, 't, S, T> {
        TurnMaker {
            from: &self.from,
            view: self.view(),
            order: &self.order,
            choice: &self.choice,
        }
    }

    /// Sets the order in which files get their names.
    pub fn set_order(&mut self, rule: NameOrder) {
        self.order.rule = rule;
    }

    /// Makes files not wait for other files, as long as a write waits for room.
    pub fn hurry(&mut self, is_hurried: bool) {
        self.order.is_hurried = is_hurried;
    }

    /// The files that wait for no other, in the order in which they get their names.
    pub(super) fn put_in_order<'s>(
        &mut self,
        round: &mut RoundState,
        mut order: RoundOrder,
        mut movable: Vec<(&'s PathBuf, &'s SeenNode)>,
    ) -> Vec<(&'s PathBuf, &'s SeenNode)> {
        let unnamed = self.target.relocated.unnamed();
        let unnamed = unnamed.filter(|path| self.target.relocated[*path].rounds <= LONGEST_WAIT);
        for path in unnamed.chain(&round.unmade) {
            if let Some(directory) = round.snapshot.get(path) {
                order.note_directory(&self.order, self.turns().ordered_node(path, directory));
            }
        }
        // A file that has waited long is released, and with it every file that changed before it.
        let is_patient = |path: &Path| self.order.rounds_of(path) >= LONGEST_WAIT;
        let patient = movable.iter().filter(|(path, _)| is_patient(path));
        let released = patient.map(|(_, node)| node.version.ctime).max();
        self.order.released = released;
        movable.retain(|(path, node)| {
            let version = &node.version;
            if !self.turns().is_ordered(path) || Some(version.ctime) <= released {
                return true;
            }
            let file = self.turns().ordered_node(path, node);
            let is_behind = order.is_behind(file);
            let is_waiting = order.note_if_waiting(file) || is_behind;
            if is_behind {
                // The names of directories do not wait for a file that waits for them.
                round.closed.remove(path, version);
                round.behind.insert((*path).clone(), version.ctime);
                self.due.put_behind(path, version);
            }
            if is_waiting {
                order.leave_out(path);
                round.pend(path, node, PendingState::Waiting);
            }
            !is_waiting
        });
        self.order
            .end_round(order, movable.iter().map(|(path, _)| *path));
        movable.sort_by_cached_key(|(path, node)| {
            let version = &node.version;
            let changed = self.turns().is_ordered(path).then_some(version.ctime);
            // If a coarse clock does not tell two files apart, the larger one comes first: it has more of the data.
            (changed, Reverse(version.size), version.ino, (*path).clone())
        });
        movable
    }
}
