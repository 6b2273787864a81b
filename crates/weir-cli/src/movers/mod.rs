//! Movers: processes on the other nodes of an instance that move files for a drain or a stage.
//!
//! The command (`gate`) listens on the network of the instance and asks the agents to start movers (`serve`), which connect
//! to it. A mover first shows that it sees the same parallel file system: on a node that has another one it would move
//! files to the wrong place. Then it moves lists of files and copies pieces (`remote`), one after the other. For a drain it
//! copies the files of a list without naming them, and names each one when the drain orders it. If a mover is lost, others
//! take over the list that it was copying; the next round copies again the files that it had copied and not named.
//!
//! Both sides prove that they know a secret before the first order. From then on a mover obeys orders for any path. All
//! these processes run as the same user.

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

/// The longest message, bytes: a list has a few hundred paths, and a byte of a path takes up to four.
const MESSAGE_BYTES: u64 = 64 << 20;

/// A message to a mover.
#[derive(Debug, Serialize, Deserialize)]
enum MoverOrder {
    /// Read this small file of the parallel file system.
    Probe(Vec<u8>),
    /// Return the number of the inode at this path of the parallel file system.
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
    /// The number of the elevated tree that they belong to.
    pub tree: Option<usize>,
    /// Programs compute meanwhile, and go first.
    pub gives_way: bool,
    /// The stripes of all files outside the instance; `None`: their file system is asked.
    pub stripe: Option<StripeSize>,
    /// The options of the moves; 0 threads: the usual number on the mover's node.
    pub options: StageOptions,
}

/// A file that is to be moved, with the bytes of its paths.
#[derive(Debug, Serialize, Deserialize)]
struct WireFile {
    source: Vec<u8>,
    target: Vec<u8>,
    replaces: Replaceable,
    /// If set: no other content may be moved.
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
