//! The choice of files: those that are moved, those that are moved before all others, and those that are never evicted.

use std::path::Path;
use std::sync::Arc;

use super::urgent::UrgentPaths;
use crate::filter::PathFilter;

/// The choice, by the path below the source.
#[derive(Debug)]
pub(super) struct FileChoice {
    /// Files that are moved. As for all filters, paths begin with a slash.
    pub filter: PathFilter,
    /// Files that are moved before all others.
    pub first: Option<PathFilter>,
    /// Other files that are moved before all others, because somebody waits for them.
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
