//! Paths for which somebody waits: their files are moved before all others, like those that `drain.first` names.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The paths for which somebody waits, below the source.
#[derive(Debug, Default)]
pub struct UrgentPaths(Mutex<Vec<PathBuf>>);

/// Files are moved first until this is dropped.
#[derive(Debug)]
pub struct UrgentGuard {
    all: Arc<UrgentPaths>,
    paths: Vec<PathBuf>,
}

impl UrgentPaths {
    fn paths(&self) -> MutexGuard<'_, Vec<PathBuf>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes the files at and below some paths come first, from the next round on.
    #[must_use = "they are moved first until it is dropped"]
    pub fn add(self: &Arc<Self>, paths: Vec<PathBuf>) -> UrgentGuard {
        self.paths().extend(paths.iter().cloned());
        UrgentGuard {
            all: Arc::clone(self),
            paths,
        }
    }

    /// True if somebody waits for a file.
    pub(super) fn has(&self, path: &Path) -> bool {
        self.paths().iter().any(|urgent| path.starts_with(urgent))
    }
}

impl Drop for UrgentGuard {
    fn drop(&mut self) {
        let mut all = self.all.paths();
        for path in &self.paths {
            // Another caller may wait for the same path.
            if let Some(at) = all.iter().position(|urgent| urgent == path) {
                all.swap_remove(at);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_is_urgent_as_long_as_somebody_waits_for_it() {
        let urgent = Arc::<UrgentPaths>::default();
        let first = urgent.add(vec!["a/b".into()]);
        let second = urgent.add(vec!["a/b".into(), "c".into()]);
        assert!(urgent.has(Path::new("a/b/d")) && !urgent.has(Path::new("a/bc")));
        drop(first);
        assert!(urgent.has(Path::new("a/b")));
        drop(second);
        assert!(!urgent.has(Path::new("a/b")) && !urgent.has(Path::new("c")));
    }
}
