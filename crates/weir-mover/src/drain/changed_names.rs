//! The names of the target that were changed, and those that could not be.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use crate::error::MoveError;

/// Names that were changed.
#[derive(Debug, Default)]
pub(super) struct ChangedNames {
    pub count: u64,
    pub failed: Vec<(PathBuf, MoveError)>,
    /// Directories of the target.
    pub directories: BTreeSet<PathBuf>,
    /// The files of a renamed directory are to be copied again, one by one: the target has them under no name.
    pub has_merged: bool,
}

impl ChangedNames {
    /// Notes the change of a name. `Ok(false)`: there was nothing to do.
    pub(super) fn note(
        &mut self,
        path: &Path,
        target: &Path,
        done: Result<bool, MoveError>,
    ) -> bool {
        match done {
            Ok(true) => {
                self.count += 1;
                self.directories.extend(target.parent().map(Path::to_owned));
            }
            Ok(false) => {}
            Err(error) => {
                self.failed.push((path.to_owned(), error));
                return false;
            }
        }
        true
    }
}
