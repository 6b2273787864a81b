//! The records of the journal: one [`Item`] for each thing that changed.

use serde::{Deserialize, Serialize};

use crate::extent::Run;
use crate::names::FileType;
use crate::proto::peer::{Destination, LogRange, Origin, Placement};
use crate::proto::Child;
use crate::types::{ClientId, Ino, Rank, SegmentId};

/// An inode as the table has it, without the changes by clients of this node.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct InodeImage {
    /// Its number in this server's table.
    pub ino: Ino,
    /// The inode that it stands in for; its own number, if it stands in for none.
    pub home: Ino,
    /// The record's `mode` word: `st_mode` in the low half, the sharing between nodes in the high
    /// one.
    pub mode: u32,
    /// Links.
    pub nlink: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Bytes.
    pub size: u64,
    /// Last access, ns since 1970.
    pub atime_ns: i64,
    /// Last change of the contents, ns since 1970.
    pub mtime_ns: i64,
    /// Last change of the attributes, ns since 1970.
    pub ctime_ns: i64,
    /// The time of its creation, ns since 1970.
    pub btime_ns: i64,
    /// The directory of the entry that names it.
    pub parent: Ino,
}

/// A fact that holds from now on. The order of the variants is the format: new ones go to the end.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Item<'a> {
    /// The snapshot ends here.
    SnapshotEnd,
    /// An inode has this state.
    Inode(InodeImage),
    /// An inode's life is over; its slot's next one has the next generation.
    InodeGone(Ino),
    /// A symbolic link's target.
    Target(Ino, &'a [u8]),
    /// A directory has this entry.
    Entry {
        /// The directory, by its home's number.
        dir: Ino,
        /// The name.
        #[serde(borrow, with = "serde_bytes")]
        name: &'a [u8],
        /// The inode that it names.
        child: Ino,
        /// The type of that inode.
        kind: FileType,
        /// Its position in the directory's order.
        sequence: u64,
    },
    /// A directory has no such entry any more.
    EntryGone {
        /// The directory.
        dir: Ino,
        /// The name.
        #[serde(borrow, with = "serde_bytes")]
        name: &'a [u8],
    },
    /// Runs that a file's index here got, over the earlier ones.
    IndexRuns(Ino, Vec<Run>),
    /// No client writes the file any more: the runs in its index have no order.
    IndexSettled(Ino),
    /// A file's index here is empty.
    IndexCleared(Ino),
    /// A client has attached.
    ClientCame {
        /// Its number.
        client: ClientId,
        /// Its process.
        pid: u32,
    },
    /// A client is gone, and its segments and cells are returned.
    ClientGone(ClientId),
    /// A client may write into a segment.
    SegmentLent {
        /// The client.
        client: ClientId,
        /// The segment.
        segment: SegmentId,
        /// Its slab.
        slab: u32,
        /// Its first byte there.
        pos: u64,
        /// Its length, bytes.
        len: u64,
    },
    /// No client writes into a segment any more.
    SegmentReturned(SegmentId),
    /// A client writes to a file through a cell.
    CellAttached {
        /// The cell.
        cell: u32,
        /// The client.
        client: ClientId,
        /// The file, by its number in this server's table.
        ino: Ino,
        /// Its block.
        block: u32,
    },
    /// A cell is free.
    CellDetached(u32),
    /// The bytes of a cell's record up to a mark are being published: the file's index has them no
    /// more.
    CellMarked(u32, CellMark),
    /// All bytes of a file's index here are being published. The file by its number in this
    /// server's table, and by its number everywhere.
    PublishBegun(Ino, Ino),
    /// The publish of a file has ended: its bytes are at their homes.
    PublishEnded(Ino),
    /// Runs that this server's slices of a file got, over the earlier ones.
    SliceRuns(Ino, Vec<Run>),
    /// Published bytes of this server's log are free.
    LogFreed(LogRange),
    /// The number of published bytes of this server's log in a MiB of a slab.
    LogPublished {
        /// The slab.
        slab: u32,
        /// The MiB.
        unit: u32,
        /// Bytes.
        bytes: u64,
    },
    /// The published state of a file of this server: its size, and bytes stored.
    Published(Ino, u64, u64),
    /// The published state of a file is no longer known.
    PublishedGone(Ino),
    /// A server may hold entries of a directory of this one.
    Enrolled(Ino, Rank),
    /// A server no longer holds entries of a directory of this one.
    Retired(Ino, Rank),
    /// The name of a directory whose entry is at another server.
    RemoteName(Ino, &'a [u8]),
    /// A directory is gone: no server is enrolled, it has no name, and no entries anywhere.
    DirectoryGone(Ino),
    /// These runs of a file are being published, under this number.
    InFlight(Ino, u64, Vec<Run>),
    /// The number of the last publish of a file.
    PublishNumbered(Ino, u64),
    /// The answer to a server for a part of a publish.
    PublishAnswered {
        /// The file.
        ino: Ino,
        /// The server that publishes.
        from: Rank,
        /// The number of the publish at that server.
        publish: u64,
        /// The part of the publish.
        part: u32,
        /// The bytes of logs that it freed.
        freed: Vec<LogRange>,
    },
    /// The answers to a server's publishes of a file are forgotten.
    AnswersForgotten(Ino, Rank),
    /// The stored bytes count the publishes of a server to a file of this one up to this number; 0:
    /// the server repeats none of them.
    PublishCounted(Ino, Rank, u64),
    /// Within a snapshot: all earlier items of clients, segments, cells, publishes and renames are
    /// void; the snapshot has all of these anew behind this item.
    SnapshotReset,
    /// A name is locked, by a rename that has two steps.
    NameLocked(Ino, &'a [u8], LockedName),
    /// A name is no longer locked.
    NameUnlocked(Ino, &'a [u8]),
    /// A name is being changed by the operation of this number at this server; or it is changed,
    /// and another server still has to do its part.
    NameChanging(Rank, u64, NameChange),
    /// All parts of that change are done.
    NameChanged(Rank, u64),
    /// The rename of this number at this server is cancelled: it gives no name any more.
    RenameCalledOff(Rank, u64),
    /// The server was started anew: none of its earlier renames gives a name.
    CalledOffForgotten(Rank),
    /// The placement of the entries of a directory of this server.
    Placed(Ino, Placement),
    /// True if all entries of a directory are at this server.
    HasAll(Ino, bool),
    /// An extended attribute of an inode of this server: name and value.
    Xattr(Ino, &'a [u8], &'a [u8]),
    /// An inode has no extended attribute of this name any more.
    XattrGone(Ino, &'a [u8]),
    /// Programs of this user may be clients as well.
    UserAdmitted(u32),
    /// A file or symbolic link has lost a name: it was removed, or renamed, or another one was renamed to it.
    NameLost {
        /// The time, ns since 1970.
        at_ns: i64,
        /// The directory, with its number everywhere.
        dir: Ino,
        /// The name.
        name: &'a [u8],
        /// The inode.
        ino: Ino,
        /// Another inode has the name since then.
        is_replaced: bool,
    },
}

/// A name that a rename of two steps has locked.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct LockedName {
    /// The server that leads the rename.
    pub leader: Rank,
    /// Its number there.
    pub token: u64,
    /// The inode that the name names until the rename changes it.
    pub child: Child,
    /// If it is the old name: the new one.
    pub to: Option<Destination>,
}

/// A change of a name that has further steps.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct NameChange {
    /// The directory.
    pub dir: Ino,
    /// The name.
    #[serde(with = "serde_bytes")]
    pub name: Vec<u8>,
    /// The inode that it names before the change. If that is a directory, it is removed first.
    pub was: Option<Child>,
    /// The inode that it names after the change.
    pub child: Option<Child>,
    /// In a rename: the old name, which is changed next.
    pub from: Option<Origin>,
    /// The inode that the old name names then.
    pub done: bool,
}

/// The part of a cell's record that was taken; see the server's `cluster/extents/applied.rs`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct CellMark {
    /// The record's stamp.
    pub stamp: u64,
    /// Its slab.
    pub slab: u32,
    /// Its first byte there.
    pub pos: u64,
    /// Its first byte in the file.
    pub offset: u64,
    /// Bytes of a whole piece.
    pub length: u64,
    /// The distance from piece to piece.
    pub stride: u64,
    /// Whole pieces.
    pub count: u64,
    /// Bytes of the piece behind them.
    pub live: u64,
}

/// Appends an item.
pub fn encode(item: &Item<'_>, out: &mut Vec<u8>) {
    crate::proto::encode(item, out);
}
