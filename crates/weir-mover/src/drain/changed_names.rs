//! The names of the target that were changed, and those that could not be.

use std::cmp::Reverse;
use std::collections::{BTreeSet, HashMap};
use std::path::{Path, PathBuf};

use weir_client::types::Time;

use crate::error::MoveError;

/// Names that were changed.
#[derive(Debug, Default)]
pub(super) struct ChangedNames {
    pub count: u64,
    pub failed: Vec<(PathBuf, MoveError)>,
    /// Directories of the target.
    pub directories: BTreeSet<PathBuf>,
    /// The files of a renamed directory must be copied again, one by one: the target does not have them under any name.
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

/// Sorts names by the time at which programs removed them; names with an unknown time come last. A directory comes after
/// its entries.
pub(super) fn sort_removals(paths: &mut [PathBuf], removed_at: impl Fn(&Path) -> Option<Time>) {
    const UNKNOWN: Time = Time {
        sec: i64::MAX,
        nsec: 0,
    };
    let own = paths.iter().map(|path| {
        let at = removed_at(path).unwrap_or(UNKNOWN);
        (path.clone(), at)
    });
    let own: HashMap<PathBuf, Time> = own.collect();
    let mut times = own.clone();
    for (path, at) in &own {
        for above in path.ancestors().skip(1) {
            if let Some(last) = times.get_mut(above) {
                *last = (*last).max(*at);
            }
        }
    }
    paths.sort_by_cached_key(|path| (times[path], Reverse(path.clone())));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_removed_in_the_order_of_their_times_and_directories_last() {
        let mut paths = ["a", "b", "c", "d", "d/x", "e", "e/y"].map(PathBuf::from);
        let sec = |path: &Path| match path.to_str()? {
            "c" => Some(1),
            "a" | "d" => Some(2),
            "d/x" => Some(3),
            _ => None,
        };
        sort_removals(&mut paths, |path| {
            sec(path).map(|sec| Time { sec, nsec: 0 })
        });
        assert_eq!(
            paths,
            ["c", "a", "d/x", "d", "e/y", "e", "b"].map(PathBuf::from)
        );
    }
}
