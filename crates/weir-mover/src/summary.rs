//! The result of moving trees of files.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::json_path;

/// The result of a stage.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct StageSummary {
    /// Files that were copied.
    pub files: u64,
    /// Files that were there already, by size and time, and with `--verify` by their bytes.
    pub unchanged: u64,
    /// Copied files that programs had open for writing: they were copied as they were at that time.
    pub open: u64,
    /// Directories.
    pub directories: u64,
    /// Symbolic links.
    pub symlinks: u64,
    /// Further names of files that were moved.
    pub hard_links: u64,
    /// Further names that became files of their own, since the target makes no such links, or the first
    /// name was not moved.
    pub hard_links_not_kept: u64,
    /// Bytes of files that were copied, holes included.
    pub bytes: u64,
    /// Extended attributes that the target does not take.
    pub xattrs_not_kept: u64,
    /// Nodes that are not moved: devices, fifos and sockets, and parts that interrupted moves left
    /// ([`crate::publish::is_part`]).
    #[serde(flatten, with = "json_path::skipped")]
    pub skipped: Vec<PathBuf>,
    /// Directories of the target that the source removed, and that have files of unknown owners: of somebody else, or of a
    /// move that was interrupted. They stay.
    #[serde(flatten, with = "json_path::not_emptied")]
    pub not_emptied: Vec<PathBuf>,
    /// For a drain that was stopped: the files of the source that are not safe, besides those that failed.
    #[serde(flatten, with = "json_path::not_reached")]
    pub not_reached: Vec<PathBuf>,
    /// Nodes that were not moved.
    pub failed: Vec<StageFailure>,
    /// Seconds that it took.
    pub seconds: f64,
    /// True if it was stopped before its end.
    pub stopped: bool,
    /// The target had no room for a file.
    #[serde(skip)]
    pub is_target_full: bool,
    /// For a stage: the shares of the nodes that took part. Their sums are [`StageSummary::files`] and
    /// [`StageSummary::bytes`].
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub nodes: Vec<NodeShare>,
}

/// The share of a node in a stage.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct NodeShare {
    /// The rank of its server.
    pub server: u16,
    /// Its name; empty if it is not known.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub host: String,
    /// Files that it copied and named. Files that are cut into pieces count for the command's node.
    pub files: u64,
    /// Bytes that it copied.
    pub bytes: u64,
}

/// A node that was not moved.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct StageFailure {
    /// Its path.
    #[serde(flatten, with = "json_path::source")]
    pub source: PathBuf,
    /// The path that it should have got.
    #[serde(flatten, with = "json_path::target")]
    pub target: PathBuf,
    /// The reason, in one line.
    pub reason: String,
}

impl StageSummary {
    /// True if everything is at its target, and on its storage.
    pub fn is_complete(&self) -> bool {
        self.failed.is_empty() && !self.stopped
    }

    /// Counts files that a node has named, and bytes that it has copied.
    pub(crate) fn add_share(&mut self, server: u16, files: u64, bytes: u64) {
        let found = self.nodes.iter().position(|node| node.server == server);
        let at = found.unwrap_or_else(|| {
            self.nodes.push(NodeShare {
                server,
                ..NodeShare::default()
            });
            self.nodes.len() - 1
        });
        self.nodes[at].files += files;
        self.nodes[at].bytes += bytes;
        self.files += files;
        self.bytes += bytes;
    }

    pub(crate) fn fail(&mut self, source: &Path, target: &Path, reason: &dyn std::fmt::Display) {
        self.failed.push(StageFailure {
            source: source.to_owned(),
            target: target.to_owned(),
            reason: reason.to_string(),
        });
    }
}
