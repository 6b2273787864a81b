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

/// A fact that holds from now on. The variants' order is the format: new ones go to the end.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Item<'a> {
    /// The snapshot ends here.
    Whole,
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
        name: &'a [u8],
    },
    /// A file's index here has these runs laid over the earlier ones.
    Laid(Ino, Vec<Run>),
    /// No client writes the file any more: the runs in its index have no order.
    Settled(Ino),
    /// A file's index here is empty.
    Cleared(Ino),
    /// A client came.
    Client {
        /// Its number.
        client: ClientId,
        /// Its process.
        pid: u32,
    },
    /// A client is gone, with everything that it was lent.
    ClientGone(ClientId),
    /// A client may write into a segment.
    Lent {
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
    Returned(SegmentId),
    /// A client writes to a file through a cell.
    Attached {
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
    Detached(u32),
    /// The bytes of a cell's record were taken to be published: the file's index has them no more.
    Noted(u32, CellMark),
    /// All bytes that a file's index here had are being published: its number here, and everywhere.
    Taken(Ino, Ino),
    /// The publish of a file has ended: its bytes are at their homes.
    Flushed(Ino),
    /// The slices of a file that are kept here have these runs laid over the earlier ones.
    Kept(Ino, Vec<Run>),
    /// Bytes of this server's log, which had been published, are free.
    Freed(LogRange),
    /// The number of published bytes of this server's log in a MiB of a slab.
    Given {
        /// The slab.
        slab: u32,
        /// The MiB.
        unit: u32,
        /// Bytes.
        bytes: u64,
    },
    /// The published state of a file of this server: its size, and bytes stored.
    Published(Ino, u64, u64),
    /// The published state of a file is known no more.
    PublishedGone(Ino),
    /// A server may hold entries of a directory of this one.
    Enrolled(Ino, Rank),
    /// A server holds entries of a directory of this one no more.
    Retired(Ino, Rank),
    /// The name of a directory whose entry is at another server.
    Moved(Ino, &'a [u8]),
    /// A directory is gone: no server is enrolled, it has no name, and no entries anywhere.
    Buried(Ino),
    /// These runs of a file are being published, under this number.
    InFlight(Ino, u64, Vec<Run>),
    /// The number of the publish that was last taken from a file's index.
    Numbered(Ino, u64),
    /// The answer to a server for a part of a publish.
    Answered {
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
    /// Publishes of a server to a file are remembered no more.
    Forgotten(Ino, Rank),
    /// The stored bytes count the publishes of a server to a file of this one up to this number; 0:
    /// the server repeats none of them.
    Counted(Ino, Rank, u64),
    /// Within a snapshot: all earlier items of clients, segments and cells, of bytes being
    /// published and of their number, are void, because all of these follow.
    Anew,
    /// A name is locked, by a rename that has two steps.
    Locked(Ino, &'a [u8], LockedName),
    /// A name is locked no more.
    Unlocked(Ino, &'a [u8]),
    /// A name is being changed, by this server's operation of that number; or the change is made,
    /// and a part of it is left to be done elsewhere.
    Changing(Rank, u64, NameChange),
    /// All parts of that change are done.
    ChangeOver(Rank, u64),
    /// A server's rename of that number gives no name any more.
    CalledOff(Rank, u64),
    /// The server began its life anew: none of its earlier renames gives a name.
    CalledOffGone(Rank),
    /// The placement of the entries of a directory of this server.
    Placed(Ino, Placement),
    /// Sets whether all entries of a directory are at this server.
    HasAll(Ino, bool),
    /// An extended attribute of an inode of this server: name and value.
    Xattr(Ino, &'a [u8], &'a [u8]),
    /// An inode has no extended attribute of this name any more.
    XattrGone(Ino, &'a [u8]),
    /// Programs of this user may be clients, too.
    Admitted(u32),
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

/// A change of a name that other steps follow.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct NameChange {
    /// The directory.
    pub dir: Ino,
    /// The name.
    pub name: Vec<u8>,
    /// The inode that it names before. A directory that has no name afterwards is buried first.
    pub was: Option<Child>,
    /// The inode that it names afterwards.
    pub child: Option<Child>,
    /// In a rename: the old name, which is changed after that.
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
