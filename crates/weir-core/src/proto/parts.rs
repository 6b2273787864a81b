//! The parts of messages of clients and tools, and of the replies to them. In postcard the order of
//! the fields is the format: see the head of [`super`].

use serde::{Deserialize, Serialize};

use super::audit;
use crate::extent::Run;
use crate::names::FileType;
use crate::types::{Ino, SegmentId};

/// The destination of a read's bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Landing {
    /// The caller's slot that shows the number of bytes there.
    pub slot: u16,
    /// Their position in the pool.
    pub at: u32,
    /// The serial of the slot's lending.
    pub serial: u32,
}

/// The cause of a lamination.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Cause {
    /// A program asks for it.
    Request,
    /// The close of a description that was open for writing: it counts if the file's policy says
    /// so, or a lamination is due.
    Close,
}

/// A position in the history of a server's names, which begins with its process.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct HistoryPosition {
    /// Renames of directories.
    pub renames: u64,
    /// Removals.
    pub removals: u64,
}

/// A name that a file or symbolic link has lost: it was removed, or renamed, or another one was renamed to it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct NameRemoval {
    /// The directory, with its number everywhere.
    pub dir: Ino,
    /// The name.
    #[serde(with = "serde_bytes")]
    pub name: Vec<u8>,
    /// The inode.
    pub ino: Ino,
    /// The time, ns since 1970.
    pub removed_ns: i64,
    /// Another inode has the name since then.
    pub is_replaced: bool,
}

/// The history of a server's names since a position: the names that it has removed, and the renames that it has led. Of these it
/// has those of directories, and counts those that gave a file another directory: a walk of a tree may miss what they move.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct NameHistory {
    /// The number of renames that it has begun.
    pub begun: u64,
    /// The number of those that have ended.
    pub ended: u64,
    /// The position behind what is returned.
    pub position: HistoryPosition,
    /// The directories of the renames, each with its number everywhere.
    pub directories: Vec<Ino>,
    /// The removals, the oldest first.
    pub removals: Vec<NameRemoval>,
    /// The server does not keep all renames of directories that the caller does not know.
    pub is_cut: bool,
    /// There are later removals.
    pub has_more: bool,
}

/// How far the writing of a file is.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum WriteState {
    /// No program has it open for writing.
    Written,
    /// A program has it open for writing.
    Open,
    /// No program has it open for writing, and it awaits its lamination: until then a node sees only the
    /// bytes that its own programs wrote.
    Hidden,
}

/// The attributes by which two versions of a file's contents differ. The time of the last change of the
/// attributes is one, since programs set the other.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ContentVersion {
    /// Bytes.
    pub size: u64,
    /// The last change of the contents, ns since 1970.
    pub mtime_ns: i64,
    /// The last change of the attributes, ns since 1970.
    pub ctime_ns: i64,
}

/// The part of a file of an elevated tree whose bytes are those of its copy on the parallel file system.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum CopyUse {
    /// None of it: if there is a copy, nobody reads it.
    None,
    /// Ranges of it: programs may write it.
    Part,
    /// All of it: it is evicted, and was not written since.
    Whole,
}

/// The moment at which the extents of a file were settled; see [`super::SettleExtents`].
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct SettledExtents {
    /// Of one server, a stamp greater than those of all extents, and lower than those of later writes; 0: the file
    /// had no writers. Of several, a number that the file's home has given to it.
    pub stamp: u64,
    /// The generation of its extents, of one server.
    pub generation: u64,
}

/// Bytes `[start, end)` of a file.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ByteRange {
    /// The offset of the first byte.
    pub start: u64,
    /// The offset behind the last byte.
    pub end: u64,
}

/// The chance that moving an elevated tree makes room.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum RoomOutlook {
    /// Files are being moved, or evicted.
    Working,
    /// Files cannot be moved now, and are tried again.
    Failing {
        /// The time for which a write waits for that, ms.
        patience_ms: u64,
    },
    /// There is nothing that could be moved or evicted.
    Hopeless,
}

/// The room at a server.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct RoomState {
    /// Bytes of all tiers.
    pub capacity_bytes: u64,
    /// Bytes that can still be lent.
    pub free_bytes: u64,
    /// Writes that wait for room.
    pub waiting: u32,
}

/// The inode and type that a name names.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Child {
    /// The inode.
    pub ino: Ino,
    /// Its type.
    pub kind: FileType,
}

/// The path of a directory in its tree.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct PathInTree {
    /// The root of the tree: the instance's, or that of an elevated tree.
    pub root: Ino,
    /// The path from there, "/" for the root itself.
    #[serde(with = "serde_bytes")]
    pub path: Vec<u8>,
}

/// An answer that its receiver may keep until it is recalled.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Kept<T> {
    /// The answer.
    pub what: T,
    /// True if it may be kept. Otherwise the receiver must ask again.
    pub may_keep: bool,
}

/// The outcome of [`Create`](super::Create).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Created {
    /// The file, new or found.
    pub ino: Ino,
    /// True if it is new.
    pub new: bool,
    /// True if it is held for the asker as [`Hold`](super::Hold) does: a file, new or found, that
    /// needs no other look-up. Otherwise the caller must look at its type.
    pub held: bool,
    /// The place for writing, if it is new and `attach` was set.
    pub attached: Option<Attached>,
}

/// The block and cell of an attached client.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Attached {
    /// The file's block.
    pub block: u32,
    /// The client's cell.
    pub cell: u32,
}

/// The kind of storage of a slab.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Tier {
    /// Memory (tmpfs): mapped.
    Memory,
    /// A file of a storage directory: read and written.
    File,
}

/// A segment that is lent.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Lent {
    /// Its number, for giving it back.
    pub segment: SegmentId,
    /// The slab it is a piece of.
    pub slab: u32,
    /// The storage of that slab.
    pub tier: Tier,
    /// Its first byte in the slab.
    pub pos: u64,
    /// Its length, bytes.
    pub len: u64,
    /// True if its memory is allocated already: a store into it does not fault.
    pub warm: bool,
}

/// A server's answer about a range of a file.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Located {
    /// The inode's index generation that this belongs to.
    pub generation: u64,
    /// `runs` is all there is in `[known_from, known_to)`.
    pub known_from: u64,
    /// See `known_from`.
    pub known_to: u64,
    /// The runs.
    pub runs: Vec<Run>,
}

/// A part of the listing of a directory.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Listing {
    /// In the order of their cookies; none: there are no more.
    pub entries: Vec<Entry>,
    /// The last cookie that the listing has, of the server whose entries these are.
    pub until: u64,
}

/// A directory entry.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Entry {
    /// The file.
    pub ino: Ino,
    /// The cookie after which a later [`Readdir`](super::Readdir) goes on.
    pub cookie: u64,
    /// The kind and permission bits, as `st_mode`.
    pub mode: u32,
    /// Its size in bytes.
    pub size: u64,
    /// Its modification time, ns since 1970.
    pub mtime_ns: i64,
    /// Its name.
    #[serde(with = "serde_bytes")]
    pub name: Vec<u8>,
}

/// A lock that is held.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct HeldLock {
    /// F_RDLCK or F_WRLCK.
    pub kind: u32,
    /// First byte.
    pub start: u64,
    /// Byte behind the last.
    pub end: u64,
    /// The process that holds it; 0 for a lock of an open file description.
    pub pid: u32,
}

/// Space, in bytes, and inodes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct FsStat {
    /// Bytes of all tiers.
    pub capacity_bytes: u64,
    /// Bytes that can still be lent.
    pub free_bytes: u64,
    /// Inodes that there can be.
    pub inodes: u64,
    /// Inodes that are free.
    pub free_inodes: u64,
}

/// One tier's space.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct TierStatus {
    /// "memory", or the storage directory.
    pub name: String,
    /// Its maximum size.
    pub budget_bytes: u64,
    /// Lent to clients or holding data.
    pub lent_bytes: u64,
    /// Holding data that a file refers to.
    pub live_bytes: u64,
    /// Ready to be lent without a fault.
    pub warm_bytes: u64,
}

/// The contents of `weir status` and the report.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct ServerStatus {
    /// The server's process.
    pub pid: u32,
    /// Its rank and the number of servers.
    pub rank: u16,
    /// See `rank`.
    pub servers: u16,
    /// The time of its start, ns since 1970.
    pub started_ns: i64,
    /// Client processes now.
    pub clients: u32,
    /// Client processes in all.
    pub clients_ever: u64,
    /// Files that are not directories.
    pub files: u64,
    /// Directories, without the root.
    pub directories: u64,
    /// Extent runs held.
    pub runs: u64,
    /// Space by tier.
    pub tiers: Vec<TierStatus>,
    /// The clients' counters, by name.
    pub counters: Vec<(String, u64)>,
    /// Calls refused, by name; only those that were.
    pub refused: Vec<(String, u64)>,
    /// Requests done, by operation.
    pub requests: Vec<(String, u64)>,
    /// Input that was refused: name and count.
    pub rejected: Vec<(String, u64)>,
    /// The findings of the audit.
    pub findings: Vec<audit::Finding>,
    /// True if the server can be started again after a kill: its journal is whole.
    pub recoverable: bool,
    /// The programs that are clients now.
    pub attached: Vec<audit::Party>,
}

impl super::SetAttr {
    /// A change of nothing.
    pub fn nothing(ino: Ino) -> super::SetAttr {
        super::SetAttr {
            ino,
            mode: None,
            uid: None,
            gid: None,
            atime_ns: None,
            mtime_ns: None,
            policy: None,
        }
    }
}
