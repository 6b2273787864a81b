//! The events of files: safe, evicted, failed. A caller of a drain takes them after each round.

use std::collections::HashSet;
use std::path::{Path, PathBuf};

use serde::Serialize;

use super::snapshot::TreeSnapshot;
use super::target_state::TargetState;
use super::{Drain, MovedNode, MovedNodes, PendingFile, PendingState};
use crate::summary::StageSummary;
use crate::tree::{FileTree, NodeKind};

/// A new state of a file.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct MoveEvent {
    /// Its path below the source.
    #[serde(flatten, with = "crate::json_path::path")]
    pub path: PathBuf,
    /// Its new state.
    #[serde(flatten)]
    pub state: FileEvent,
}

/// The new state of a file.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
#[serde(tag = "event", rename_all = "kebab-case")]
pub enum FileEvent {
    /// The target has this version of it, synced to storage.
    Safe {
        /// Its size.
        bytes: u64,
    },
    /// Its storage in the instance was freed.
    Evicted {
        /// Its size.
        bytes: u64,
    },
    /// It could not be moved, for another reason than before. Unless the drain ends, it is tried again.
    Failed {
        /// The reason, in one line.
        reason: String,
    },
}

/// The events that the caller has not taken yet.
#[derive(Debug, Default)]
pub(super) struct EventLog {
    events: Vec<MoveEvent>,
    /// The failures that were reported, with their reasons.
    failed: HashSet<(PathBuf, String)>,
}

impl EventLog {
    fn add(&mut self, path: &Path, state: FileEvent) {
        let path = path.to_owned();
        self.events.push(MoveEvent { path, state });
    }

    fn add_failure(&mut self, path: &Path, reason: &str) {
        if self.failed.insert((path.to_owned(), reason.to_owned())) {
            let reason = reason.to_owned();
            self.add(path, FileEvent::Failed { reason });
        }
    }

    /// Notes the files that are safe after a round, and those that it could not move.
    pub fn note_round<F>(
        &mut self,
        target: &mut TargetState<F>,
        snapshot: &TreeSnapshot,
        pending: &[PendingFile],
    ) {
        for (path, node) in snapshot.of_kind(NodeKind::File) {
            if target.relocated.is_relocated(path) {
                continue;
            }
            let moved = target.moved.get_mut(path);
            let is_version = |moved: &&mut MovedNode| {
                moved.kind == NodeKind::File && moved.is_version(node.version)
            };
            if let Some(moved) = moved.filter(is_version).filter(|moved| !moved.is_told) {
                moved.is_told = true;
                self.failed.retain(|(failed, _)| failed != path);
                let bytes = node.version.size;
                self.add(path, FileEvent::Safe { bytes });
            }
        }
        for file in pending {
            if let PendingState::Failed { reason } = &file.state {
                self.add_failure(&file.path, reason);
            }
        }
    }

    pub fn note_evicted(&mut self, path: &Path, bytes: u64) {
        self.add(path, FileEvent::Evicted { bytes });
    }

    /// Notes the files that the final stage has moved, and those that it could not move.
    pub fn note_finish(
        &mut self,
        moved: &MovedNodes,
        source: &Path,
        snapshot: &TreeSnapshot,
        summary: &StageSummary,
    ) {
        let mut failed = HashSet::new();
        for failure in &summary.failed {
            let path = failure.source.strip_prefix(source);
            let path: PathBuf = path.unwrap_or(&failure.source).components().collect();
            self.add_failure(&path, &failure.reason);
            failed.insert(path);
        }
        // If the stage was stopped, the files that it has moved are not known.
        if summary.stopped {
            return;
        }
        for (path, node) in snapshot.of_kind(NodeKind::File) {
            let is_told = moved
                .get(path)
                .is_some_and(|moved| moved.is_told && moved.is_version(node.version));
            if !is_told && !failed.contains(path) {
                let bytes = node.version.size;
                self.add(path, FileEvent::Safe { bytes });
            }
        }
    }
}

impl<S: FileTree, T: FileTree> Drain<'_, S, T> {
    /// Notes the events of files from now on, for [`Drain::take_events`].
    pub fn note_events(&mut self) {
        self.events = Some(EventLog::default());
    }

    /// The events since the last call, in their order.
    pub fn take_events(&mut self) -> Vec<MoveEvent> {
        let log = self.events.as_mut();
        log.map_or_else(Vec::new, |log| std::mem::take(&mut log.events))
    }
}
