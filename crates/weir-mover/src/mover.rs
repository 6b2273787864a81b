//! A process that moves files for a drain or a stage, and what the two say to each other.

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

/// The size from which on a file is cut into pieces for several movers, bytes.
pub(crate) const LARGE_BYTES: u64 = 256 << 20;
/// The most files of a list.
pub(crate) const LIST_FILES: usize = 256;
/// The bytes of a list, unless it is of one file.
pub(crate) const LIST_BYTES: u64 = 256 << 20;

/// A file that is to be moved.
#[derive(Clone, Debug)]
pub struct FileToMove {
    /// Its paths.
    pub pair: StagePair,
    /// The nodes that it may replace at its target.
    pub replaces: Replaceable,
    /// The only content that is moved; `None`: any.
    pub content: Option<ContentStamp>,
    /// How it is known if the target has it already.
    pub likeness: LikenessBy,
    /// A drain has put there what the target has: extended attributes that programs have removed since go.
    pub is_ours: bool,
}

/// Something that moves lists of files: a process on another node.
pub trait FileMover: Send + Sync + Debug {
    /// The rank of its node's server.
    fn rank(&self) -> u16;
    /// Moves files. An error: it is gone, and another mover moves them again.
    fn move_files(&self, files: &[FileToMove]) -> io::Result<MovedFiles>;
    /// Copies files up to their names, for a drain. `list`: its number among those that have not ended. An error, here and
    /// below: as above.
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
    /// Copies a piece of a large file; the reason if it cannot.
    fn move_piece(&self, piece: &FilePiece) -> io::Result<Result<(), PieceFailure>>;
    /// Has it end what it does, from another thread. It answers with what it has moved, and does nothing more.
    fn stop(&self) {}
}

/// A list of files that are copied up to their names.
pub(crate) trait PreparedList: Send + Sync {
    /// Gives a file its name once it is copied. An error: its mover is gone.
    fn name(&self, file: usize) -> io::Result<NameOutcome>;
    /// Has the names on storage, and removes the copies that got none. An error: as above.
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
    /// Those that programs had open for writing.
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
    /// The source, when it was copied or found to be at its target: it may be another one than the caller saw under its
    /// name.
    pub(crate) version: Option<WireVersion>,
    /// The reason why it is not safe.
    pub failure: Option<String>,
    /// It was copied, and has not got its name: its turn has not come.
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
    /// Of a file that this process moved.
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

/// A version on its way between nodes, which may give the instance different devices.
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
