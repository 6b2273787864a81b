//! The messages between libweir and the transfer service of a node, which moves files for programs, and asks drains for
//! them.
//!
//! The service is a process of its own beside the node's server (`weir transfer-process`): what it moves goes on when the
//! program that asked has ended, and a call of the parallel file system that hangs holds up nobody else. A
//! connection carries one request and one reply, as frames of [`crate::socket`]; so a caller keeps nothing
//! that a fork could share.
//!
//! Both ends are of one installation: the messages have no version.

use serde::{Deserialize, Serialize};

/// The name of the socket in the run directory.
pub const SOCKET: &str = "transfer.socket";
/// The name of a file in the run directory that is there once the service has begun: nobody has to start it to find out that
/// nothing is under way.
pub const BEGUN: &str = "transfer.begun";
/// The most files of one request.
pub const MOST_FILES: usize = 1 << 16;

/// One file that is to be moved, by absolute paths.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct FileTransfer {
    /// The path of the source, as programs name it.
    pub source: Vec<u8>,
    /// The same of the target.
    pub target: Vec<u8>,
    /// The source is removed once the target has its name.
    pub removes_source: bool,
}

/// The number of a transfer: that of the service's life in the upper half, so that no other life takes it for its own.
pub type TransferId = u64;

/// A request.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum TransferRequest {
    /// Begin to copy files. The reply is `Started`.
    Copy(Vec<FileTransfer>),
    /// Begin to take files of elevated directories into the instance. The reply is `Started`.
    Prefetch(Vec<Vec<u8>>),
    /// Report on a transfer, when it has ended or the time is over. The reply is `Report`.
    Await {
        /// The transfer.
        id: TransferId,
        /// Milliseconds; `None`: as long as it takes.
        wait_ms: Option<u32>,
    },
    /// Give up the files of a transfer that do not have their names yet. The reply is `Done`.
    Cancel(TransferId),
    /// Say what is under way, for the end of the instance, after this number of milliseconds or when nothing is. The reply is
    /// `Unfinished`.
    FindUnfinished {
        /// Milliseconds.
        wait_ms: u32,
    },
    /// Say where a file is on its way to the parallel file system. The reply is `Drain`.
    FindDrainState(Vec<u8>),
    /// Have what is at and below a path drained first, and wait until it is safe. The reply is `Drained`.
    Drain {
        /// The path.
        path: Vec<u8>,
        /// As for `Await`.
        wait_ms: Option<u32>,
    },
}

/// A reply.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum TransferReply {
    /// The transfer has this number.
    Started(TransferId),
    /// The state of a transfer.
    Report(TransferReport),
    /// It was done.
    Done,
    /// The work that is left.
    Unfinished(UnfinishedTransfers),
    /// The state of a file on its way.
    Drain(DrainReport),
    /// True if all of it is safe; else the time is over.
    Drained(bool),
    /// It was refused, with this errno.
    Refused(i32),
}

/// The transfers of a service that an end of the instance would cut off, or that nobody has heard the end of.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
pub struct UnfinishedTransfers {
    /// Files that wait, or are being moved.
    pub files: u64,
    /// Bytes of them that were copied.
    pub bytes: u64,
    /// Files that could not be moved out of the instance, of transfers that nobody has asked about since they ended.
    pub unheard_failures: u64,
}

/// The state of a transfer.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct TransferReport {
    /// Nothing of it is waiting or under way.
    pub has_ended: bool,
    /// Its files, in the order of the request.
    pub files: Vec<FileReport>,
}

/// The state of a file of a transfer.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
pub struct FileReport {
    /// Where it stands.
    pub state: TransferState,
    /// The errno if it has failed or was cancelled, else 0.
    pub error: i32,
    /// Bytes that were copied, holes included.
    pub bytes: u64,
    /// The size of the source, bytes; 0 until it is looked at.
    pub size: u64,
    /// From the first look at the source to the end, or to now.
    pub microseconds: u64,
}

/// The step of a file of a transfer.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
pub enum TransferState {
    /// It waits for its turn.
    #[default]
    Waiting,
    /// It is being copied.
    Moving,
    /// It has its name, and is on storage.
    Done,
    /// It was not moved.
    Failed,
    /// It was given up because the transfer was cancelled.
    Cancelled,
}

/// The state of a file on its way to the parallel file system.
#[derive(Clone, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
pub struct DrainReport {
    /// Where it stands.
    pub state: DrainPhase,
    /// Bytes.
    pub size: u64,
    /// Milliseconds since the drain's last look at the instance began.
    pub age_ms: u64,
    /// The reason why it could not be moved; else empty.
    pub reason: String,
}

/// The step of a file on its way to the parallel file system.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
pub enum DrainPhase {
    /// Nothing moves it.
    #[default]
    Unmoved,
    /// A program has it open for writing, or it awaits its lamination.
    Writing,
    /// It is closed, and awaits its move, or is being moved.
    Written,
    /// It awaits its analysis, or is under it.
    Analysis,
    /// The parallel file system has it as it is.
    Safe,
    /// It could not be moved, and is tried again.
    Failed,
}
