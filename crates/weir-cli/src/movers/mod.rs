//! Movers: processes on the other nodes of an instance that move files for a drain or a stage.
//!
//! The command (`gate`) listens on the network of the instance and has the agents start movers (`serve`), which connect
//! to it. A mover shows first that it sees the same parallel file system: on a node where that is another one it would
//! move files to nowhere. Then it moves lists of files and copies pieces (`remote`), one after the other; for a drain it copies
//! lists up to their names, and gives these when it is told. If a mover is lost, others take the list that it copies; what it had
//! copied and not named, the next round copies again.
//!
//! Both sides prove to know a secret before the first order. From then on a mover does what it is told with any path,
//! as the user whose processes all of them are.

mod gate;
mod probes;
mod remote;
mod serve;

use std::ffi::OsString;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use weir_mover::mover::FileToMove;
use weir_mover::piece::FilePiece;
use weir_mover::replaceable::Replaceable;
use weir_mover::stripe::StripeSize;
use weir_mover::{ContentStamp, LikenessBy, StageOptions, StagePair};

pub use gate::{MoverGate, SharedPaths};
pub use serve::serve;

/// The longest message, bytes: a list has a few hundred paths, a byte of which takes up to four.
const MESSAGE_BYTES: u64 = 64 << 20;

/// A message to a mover.
#[derive(Debug, Serialize, Deserialize)]
enum MoverOrder {
    /// Read this small file of the parallel file system.
    Probe(Vec<u8>),
    /// Say which inode of the parallel file system has this path.
    Find(Vec<u8>),
    /// Move files in this way from now on.
    Begin(MoverRole),
    /// Move these files.
    Move {
        files: Vec<WireFile>,
        /// The most bytes that are written in a second; 0: without limit.
        limit: u64,
    },
    /// Copy these files up to their names.
    Prepare {
        /// The number of the list.
        list: u32,
        files: Vec<WireFile>,
        /// As above.
        limit: u64,
    },
    /// Give this file of a list its name.
    Name { list: u32, file: usize },
    /// End this list.
    Finish(u32),
    /// Copy this piece of a file.
    Copy {
        piece: FilePiece,
        /// As of files.
        limit: u64,
    },
}

/// The way in which a mover moves the files of its orders.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub struct MoverRole {
    /// They go into the instance, and not out of it.
    pub is_inward: bool,
    /// They are those of the elevated tree with this number.
    pub tree: Option<usize>,
    /// Programs compute meanwhile, and go first.
    pub gives_way: bool,
    /// The stripes of all files outside the instance; `None`: their file system is asked.
    pub stripe: Option<StripeSize>,
    /// How they are moved; no threads: as many as is usual on the mover's node.
    pub options: StageOptions,
}

/// A file that is to be moved, with the bytes of its paths.
#[derive(Debug, Serialize, Deserialize)]
struct WireFile {
    source: Vec<u8>,
    target: Vec<u8>,
    replaces: Replaceable,
    /// The only content that is moved.
    content: Option<ContentStamp>,
    likeness: LikenessBy,
    is_ours: bool,
}

impl From<&FileToMove> for WireFile {
    fn from(file: &FileToMove) -> WireFile {
        let bytes = |path: &Path| path.as_os_str().as_bytes().to_vec();
        WireFile {
            source: bytes(&file.pair.source),
            target: bytes(&file.pair.target),
            replaces: file.replaces.clone(),
            content: file.content,
            likeness: file.likeness,
            is_ours: file.is_ours,
        }
    }
}

impl From<WireFile> for FileToMove {
    fn from(file: WireFile) -> FileToMove {
        FileToMove {
            pair: StagePair {
                source: path_of(file.source),
                target: path_of(file.target),
            },
            replaces: file.replaces,
            content: file.content,
            likeness: file.likeness,
            is_ours: file.is_ours,
        }
    }
}

/// A message of a mover.
#[derive(Debug, Serialize, Deserialize)]
enum MoverReply<R> {
    /// It has moved bytes since the last message.
    Alive,
    /// The answer to the order.
    Done(R),
}

fn path_of(bytes: Vec<u8>) -> PathBuf {
    OsString::from_vec(bytes).into()
}
