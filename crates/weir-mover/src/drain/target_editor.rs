//! Changes of names of the target, and of the state that follows them. It cannot reach the source.

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

/// The target, with all state that changes with its names.
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

    /// Syncs the directories of changed names. If this fails, the next round syncs the directory again.
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
