//! The choice of files: which are moved, which of them before all others, and which are never evicted.

use std::path::Path;
use std::sync::Arc;

use super::urgent::UrgentPaths;
use crate::filter::PathFilter;

/// The choice, by the path below the source.
#[derive(Debug)]
pub(super) struct FileChoice {
    /// Files that are moved. Its paths begin with a slash, as those of all filters.
    pub filter: PathFilter,
    /// Files that are moved before all others.
    pub first: Option<PathFilter>,
    /// Others that are, because somebody waits for them.
    pub urgent: Arc<UrgentPaths>,
    /// Files that are not evicted.
    pub kept: Option<PathFilter>,
}

impl FileChoice {
    pub fn new(filter: PathFilter) -> FileChoice {
        FileChoice {
            filter,
            first: None,
            urgent: Arc::default(),
            kept: None,
        }
    }

    pub fn is_moved(&self, path: &Path) -> bool {
        names_file(&self.filter, path)
    }

    pub fn is_first(&self, path: &Path) -> bool {
        let first = self.first.as_ref();
        first.is_some_and(|first| names_file(first, path)) || self.urgent.has(path)
    }

    pub fn is_kept(&self, path: &Path) -> bool {
        let kept = self.kept.as_ref();
        kept.is_some_and(|kept| names_file(kept, path))
    }
}

fn names_file(filter: &PathFilter, path: &Path) -> bool {
    filter.takes(&Path::new("/").join(path))
}
