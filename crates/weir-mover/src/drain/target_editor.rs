//! The target, to change names of it, and the state that follows these changes. It has nothing of the source.

use std::collections::BTreeSet;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use super::changed_names::ChangedNames;
use super::history::ProgramHistory;
use super::target_state::TargetState;
use super::target_view::TargetView;
use crate::error::MoveError;
use crate::side::MoveSide;
use crate::tree::FileTree;

/// The target, with all that changes of its names change.
pub(super) struct TargetEditor<'d, 't, T: FileTree> {
    pub to: &'d MoveSide<'t, T>,
    pub state: &'d mut TargetState<T::File>,
    pub history: &'d mut ProgramHistory,
    /// Directories, by the path below the target, in which names were changed that are not on storage yet.
    pub unsynced: &'d mut BTreeSet<PathBuf>,
}

impl<'t, T: FileTree> TargetEditor<'_, 't, T> {
    pub fn view(&self) -> TargetView<'_, 't, T> {
        TargetView {
            to: self.to,
            state: self.state,
        }
    }

    /// The path of a node on the target.
    pub fn find_path(&self, path: &Path) -> PathBuf {
        self.view().find_path(path)
    }

    /// Has the changed names on storage; the next round syncs a directory again where that failed.
    pub fn sync(&mut self, changed: &mut ChangedNames) {
        for dir in &changed.directories {
            match self.to.tree.sync_directory(dir) {
                Err(error) if error.kind() != ErrorKind::NotFound => {
                    let below = dir.strip_prefix(&self.to.path);
                    self.unsynced.extend(below.map(Path::to_owned));
                    let error = MoveError::io("syncing", dir)(error);
                    changed.failed.push((dir.clone(), error));
                }
                _ => {}
            }
        }
    }
}
