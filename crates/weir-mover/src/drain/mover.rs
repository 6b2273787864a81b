//! A process that moves files for a drain, and what the two say to each other.

use std::fmt::Debug;
use std::io;

use serde::{Deserialize, Serialize};
use weir_client::types::{Stat, Time};

use super::marks::Replaceable;
use super::snapshot::FileVersion;
use crate::content::ContentStamp;
use crate::error::MoveError;
use crate::piece::FilePiece;
use crate::sources::StagePair;

/// A file that is to be moved.
#[derive(Clone, Debug)]
pub struct FileToMove {
    /// Its paths.
    pub pair: StagePair,
    /// The nodes that it may replace at its target.
    pub replaces: Replaceable,
    /// The only content that is moved; `None`: any.
    pub content: Option<ContentStamp>,
}

/// Something that moves lists of files: a process on another node.
pub trait FileMover: Send + Sync + Debug {
    /// The rank of its node's server.
    fn rank(&self) -> u16;
    /// Moves files, none that a program has open for writing. An error: it is gone, and another mover
    /// moves them again.
    fn move_files(&self, files: &[FileToMove]) -> io::Result<MovedFiles>;
    /// Copies a piece of a large file; the reason if it cannot.
    fn move_piece(&self, piece: &FilePiece) -> io::Result<Result<(), String>>;
}

/// The result of moving a list of files.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct MovedFiles {
    /// Files that were copied.
    pub copied: u64,
    /// Bytes of them.
    pub bytes: u64,
    /// True if it was stopped before its end.
    pub stopped: bool,
    /// In the order of the list.
    pub files: Vec<MovedFile>,
}

/// The result of moving a file.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct MovedFile {
    /// True if its target has its name from this move.
    pub is_named: bool,
    /// The source, when it was copied.
    pub(super) version: Option<WireVersion>,
    /// The reason why it is not safe.
    pub failure: Option<String>,
}

impl MovedFile {
    /// Of a file that this process moved; `None`: it was there.
    pub(super) fn new(moved: Result<Option<Stat>, MoveError>) -> MovedFile {
        let (version, failure) = match moved {
            Ok(copied) => (copied.as_ref().map(WireVersion::from), None),
            Err(error) => (None, Some(error.to_string())),
        };
        MovedFile {
            is_named: version.is_some(),
            version,
            failure,
        }
    }

    /// The version that was copied, as this node sees it.
    pub(super) fn version_on(&self, dev: u64) -> Option<FileVersion> {
        let version = self.version?;
        Some(FileVersion {
            dev,
            ino: version.ino,
            size: version.size,
            mtime: Time {
                sec: version.mtime.0,
                nsec: version.mtime.1,
            },
            ctime: Time {
                sec: version.ctime.0,
                nsec: version.ctime.1,
            },
        })
    }
}

/// A version on its way between nodes, which may give the instance different devices.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(super) struct WireVersion {
    ino: u64,
    size: u64,
    mtime: (i64, i64),
    ctime: (i64, i64),
}

impl From<&Stat> for WireVersion {
    fn from(stat: &Stat) -> WireVersion {
        WireVersion {
            ino: stat.ino,
            size: stat.size,
            mtime: (stat.mtime.sec, stat.mtime.nsec),
            ctime: (stat.ctime.sec, stat.ctime.nsec),
        }
    }
}
