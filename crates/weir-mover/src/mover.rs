//! A process that moves files for a drain or a stage, and the data that the two exchange.

use std::fmt::Debug;
use std::io;

use serde::{Deserialize, Serialize};
use weir_client::types::Stat;

use crate::content::ContentStamp;
use crate::copy::LikenessBy;
use crate::error::MoveError;
use crate::piece::FilePiece;
use crate::replaceable::Replaceable;
use crate::sources::StagePair;

/// A larger file is cut into pieces for several movers, bytes.
pub(crate) const LARGE_BYTES: u64 = 256 << 20;
/// The most files of a list.
pub(crate) const LIST_FILES: usize = 256;
/// A list with this number of bytes is full.
pub(crate) const LIST_BYTES: u64 = 256 << 20;

/// A file that is to be moved.
#[derive(Clone, Debug)]
pub struct FileToMove {
    /// Its paths.
    pub pair: StagePair,
    /// The nodes that it may replace at its target.
    pub replaces: Replaceable,
    /// If set, no other content is moved; `None`: any content is moved.
    pub content: Option<ContentStamp>,
    /// The way to check if the target has it already.
    pub likeness: LikenessBy,
    /// A drain has put the target's node there: extended attributes that programs have removed since are removed from it,
    /// too.
    pub is_ours: bool,
}

/// A process on another node that moves lists of files.
pub trait FileMover: Send + Sync + Debug {
    /// The rank of its node's server.
    fn rank(&self) -> u16;
    /// Moves files. An error means that the process is gone: another mover moves the files again.
    fn move_files(&self, files: &[FileToMove]) -> io::Result<MovedFiles>;
    /// Copies files without naming them, for a drain. `list`: the number of the list among those that have not ended. Here
    /// and below, an error means the same.
    fn prepare_files(&self, _list: u32, _files: &[FileToMove]) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }
    /// Gives the file with this number in a list its name, as [`PreparedList::name`] does.
    fn name_file(&self, _list: u32, _file: usize) -> io::Result<NameOutcome> {
        Err(io::ErrorKind::Unsupported.into())
    }
    /// Ends a list, as [`PreparedList::finish`] does.
    fn finish_files(&self, _list: u32) -> io::Result<MovedFiles> {
        Err(io::ErrorKind::Unsupported.into())
    }
    /// Copies a piece of a large file; returns the reason if it cannot.
    fn move_piece(&self, piece: &FilePiece) -> io::Result<Result<(), PieceFailure>>;
    /// Ends the work of the process, from another thread. The process answers with the files that it has moved, and does
    /// nothing more.
    fn stop(&self) {}
}

/// A list of files that are copied without being named.
pub(crate) trait PreparedList: Send + Sync {
    /// Gives a file its name once it is copied. An error means that its mover is gone.
    fn name(&self, file: usize) -> io::Result<NameOutcome>;
    /// Syncs the names, and removes the copies that got none. An error means the same.
    fn finish(&self) -> io::Result<MovedFiles>;
}

/// The outcome of the turn of a file.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum NameOutcome {
    /// The target has it.
    Named,
    /// It could not be copied or named.
    Failed,
    /// A call of the target hangs.
    Hangs,
}

/// The reason why a piece was not copied.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct PieceFailure {
    /// In one line.
    pub reason: String,
    /// The target had no room.
    pub is_target_full: bool,
}

impl From<&MoveError> for PieceFailure {
    fn from(error: &MoveError) -> PieceFailure {
        PieceFailure {
            reason: error.to_string(),
            is_target_full: error.is_out_of_room(),
        }
    }
}

/// The result of moving a list of files.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct MovedFiles {
    /// Files that were copied.
    pub copied: u64,
    /// Bytes of them.
    pub bytes: u64,
    /// Copied files that programs had open for writing.
    #[serde(default)]
    pub open: u64,
    /// Extended attributes that the target does not take.
    #[serde(default)]
    pub xattrs_not_kept: u64,
    /// The target had no room for a file.
    #[serde(default)]
    pub is_target_full: bool,
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
    /// The version of the source that was copied or found at the target. The caller may have seen another one under this
    /// name.
    pub(crate) version: Option<WireVersion>,
    /// The reason why it is not safe.
    pub failure: Option<String>,
    /// It has not got its name, since its turn has not come.
    #[serde(default)]
    pub awaits_turn: bool,
}

/// The source of a move that has not failed.
#[derive(Debug)]
pub(crate) enum MovedSource {
    Copied(Stat),
    /// The target had it.
    Found(Stat),
}

impl MovedFile {
    /// The result for a file that this process moved.
    pub(crate) fn new(moved: Result<MovedSource, MoveError>) -> MovedFile {
        let is_named = matches!(moved, Ok(MovedSource::Copied(_)));
        let (version, failure) = match moved {
            Ok(MovedSource::Copied(stat) | MovedSource::Found(stat)) => {
                (Some(WireVersion::from(&stat)), None)
            }
            Err(error) => (None, Some(error.to_string())),
        };
        MovedFile {
            is_named,
            version,
            failure,
            awaits_turn: false,
        }
    }
}

/// A version in a message between nodes. It has no device number, since that of the instance may differ between nodes.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct WireVersion {
    pub ino: u64,
    pub size: u64,
    /// Seconds and nanoseconds.
    pub mtime: (i64, i64),
    pub ctime: (i64, i64),
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
