//! The state of one file on its way, for a program that asks. It comes from the last round, unless the file has changed
//! since.

use std::io;
use std::path::Path;

use rustix::io::Errno;
use serde::{Deserialize, Serialize};
use weir_client::process::mounted::WriteState;
use weir_client::types::Stat;

use super::snapshot::FileVersion;
use super::{DrainRound, PendingState};
use crate::tree::{io_error, kind_of, FileTree, NodeKind};

/// The state of a file on its way to the target, with the letters of Data Elevator's states.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(tag = "state", rename_all = "lowercase")]
pub enum FileDrainState {
    /// Nothing moves it: it is not chosen.
    Unmoved,
    /// A program has it open for writing, or it awaits its lamination (W).
    Writing,
    /// It is closed, and awaits its move, or is being moved (B, D).
    Written,
    /// It awaits its analysis, or is being analysed (A).
    Analysis,
    /// The target has its current version (F).
    Safe,
    /// It could not be moved, and is tried again.
    Failed {
        /// The reason, in one line.
        reason: String,
    },
}

impl DrainRound {
    /// The state of the file at a path below the source, and its size; `None`: the source has none. Valid after the first
    /// round. EISDIR, EINVAL: it is no regular file.
    pub fn find_file_state<S: FileTree>(
        &self,
        tree: &S,
        source: &Path,
        path: &Path,
    ) -> io::Result<Option<(FileDrainState, u64)>> {
        let whole = source.join(path);
        let Some(stat) = tree.look_up(&whole)? else {
            return Ok(None);
        };
        match kind_of(&stat) {
            NodeKind::File => {}
            NodeKind::Directory => return Err(io_error(Errno::ISDIR)),
            NodeKind::Symlink | NodeKind::Special => return Err(io_error(Errno::INVAL)),
        }
        let state = match tree.write_state(&whole)? {
            WriteState::Open | WriteState::Hidden => FileDrainState::Writing,
            WriteState::Written => self.state_of_closed(path, &stat),
        };
        Ok(Some((state, stat.size)))
    }

    fn state_of_closed(&self, path: &Path, stat: &Stat) -> FileDrainState {
        let seen = self.names_seen.get(path).map(|node| node.version);
        // It has changed since the round saw it.
        if seen != Some(FileVersion::from(stat)) {
            return FileDrainState::Written;
        }
        let pending = self.pending.iter().find(|file| file.path == path);
        match pending.map(|file| &file.state) {
            None => FileDrainState::Safe,
            Some(PendingState::Analysis) => FileDrainState::Analysis,
            Some(PendingState::Failed { reason }) => FileDrainState::Failed {
                reason: reason.clone(),
            },
            // It is closed now.
            Some(PendingState::Waiting | PendingState::Open | PendingState::Unlaminated) => {
                FileDrainState::Written
            }
        }
    }
}
