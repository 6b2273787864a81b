//! The state of a round under way.

use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use weir_client::types::Time;

use super::order::WaitingFiles;
use super::snapshot::{FileSet, FileVersion, SeenNode, TreeSnapshot};
use super::{PendingFile, PendingState};
use crate::error::MoveError;

/// A file that this drain has moved under another name, which it does not have any more.
#[derive(Debug)]
pub(super) struct RenamedFile {
    pub from: PathBuf,
    pub path: PathBuf,
}

/// A round under way.
pub(super) struct RoundState {
    /// Since 1970.
    pub settled: Duration,
    pub threads: usize,
    pub snapshot: Arc<TreeSnapshot>,
    /// Files without a writer that are not on the target.
    pub closed: FileSet,
    /// Other such files, which wait for the names of directories.
    pub behind: WaitingFiles,
    /// The inodes of changed files that programs write.
    pub open: HashSet<(u64, u64)>,
    pub pending: Vec<PendingFile>,
    /// Directories that cannot be made in this round: a removed or old node of the target is still in the way, or a call
    /// failed.
    pub blocked: HashSet<PathBuf>,
    /// Renamed directories that could not be made.
    pub unmade: Vec<PathBuf>,
    /// Files that were copied.
    pub copied: u64,
    /// Bytes of them.
    pub bytes: u64,
    /// Files were left for the next round.
    pub is_cut: bool,
    /// Renamed files that get their names in turn with others.
    pub renamed: Vec<RenamedFile>,
    /// Names that were changed or removed on the target.
    pub names: u64,
}

impl RoundState {
    pub(super) fn is_settled(&self, version: &FileVersion) -> bool {
        since_1970(version.ctime) <= self.settled
    }

    /// True if the walk has seen all files that changed before this version.
    pub(super) fn is_in_time(&self, version: &FileVersion) -> bool {
        since_1970(version.ctime) <= self.snapshot.began.max(self.settled)
    }

    pub(super) fn pend(&mut self, path: &Path, node: &SeenNode, state: PendingState) {
        self.pending.push(PendingFile {
            path: path.to_owned(),
            size: node.version.size,
            state,
        });
    }

    /// True if a directory above could not be made yet.
    pub(super) fn is_blocked(&self, path: &Path) -> bool {
        path.ancestors().any(|above| self.blocked.contains(above))
    }

    pub(super) fn fail(&mut self, path: &Path, error: &MoveError) {
        self.pending.push(PendingFile {
            path: path.to_owned(),
            size: 0,
            state: PendingState::failed(error),
        });
    }
}

pub(super) fn since_1970(time: Time) -> Duration {
    let seconds = u64::try_from(time.sec).unwrap_or(0);
    let nanoseconds = u32::try_from(time.nsec).unwrap_or(0);
    Duration::new(seconds, nanoseconds)
}

/// The point in time at this distance from 1970.
pub(super) fn time_since_1970(duration: Duration) -> Time {
    Time::from_epoch_ns(duration.as_nanos().try_into().unwrap_or(i64::MAX))
}
