//! The nodes with the name of its target that a move may replace.

use serde::{Deserialize, Serialize};
use weir_client::process::mounted::elevated::LowerFile;
use weir_client::types::{Stat, Time};

use crate::copy::is_kept_time;
use crate::tree::{kind_of, NodeKind};

/// The size and the time of a node that a drain puts on the target.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct NodeMark {
    /// Bytes; for a symbolic link, those of its text.
    pub(crate) size: u64,
    /// The last change of the contents: seconds since 1970, and nanoseconds.
    pub(crate) mtime: (i64, i64),
    /// The inode of the source; 0: it is not known.
    pub(crate) source: u64,
}

impl NodeMark {
    /// The mark of a node with this source.
    pub(crate) fn new(size: u64, mtime: Time, source: u64) -> NodeMark {
        NodeMark {
            size,
            mtime: (mtime.sec, mtime.nsec),
            source,
        }
    }

    pub(crate) fn fits(&self, there: &Stat) -> bool {
        let mtime = Time {
            sec: self.mtime.0,
            nsec: self.mtime.1,
        };
        there.size == self.size && is_kept_time(mtime, there.mtime)
    }
}

/// A node of the target that the job has replaced or removed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct TakenNode {
    ino: u64,
    /// Nanoseconds since 1970; `None`: the drain itself has changed it since.
    ctime_ns: Option<i64>,
}

impl TakenNode {
    pub(crate) fn new(file: LowerFile, is_changed_here: bool) -> TakenNode {
        TakenNode {
            ino: file.ino,
            ctime_ns: (!is_changed_here).then_some(file.ctime_ns),
        }
    }

    pub(crate) fn fits(&self, there: &Stat) -> bool {
        self.ino == there.ino
            && self
                .ctime_ns
                .is_none_or(|ctime_ns| ctime_ns == there.ctime.since_epoch_ns())
    }
}

/// The nodes with the name of its target that a move may replace.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub enum Replaceable {
    /// Any node, except a device, a FIFO or a socket: programs of the whole machine may use it.
    #[default]
    Any,
    /// One of these.
    Only {
        /// Those that a drain has put there.
        placed: Vec<NodeMark>,
        /// The one that the job has replaced or removed.
        taken: Option<TakenNode>,
    },
}

impl Replaceable {
    pub(crate) fn allows(&self, there: &Stat) -> bool {
        match self {
            Replaceable::Any => kind_of(there) != NodeKind::Special,
            // A directory in the way of a file, or the other way around, is checked elsewhere.
            _ if kind_of(there) == NodeKind::Directory => true,
            Replaceable::Only { placed, taken } => {
                placed.iter().any(|mark| mark.fits(there))
                    || taken.is_some_and(|taken| taken.fits(there))
            }
        }
    }
}
