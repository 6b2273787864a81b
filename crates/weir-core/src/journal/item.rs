//! What is written down: one [`Item`] for each thing that changed.

use serde::{Deserialize, Serialize};

use crate::extent::Run;
use crate::names::FileType;
use crate::proto::peer::{Destination, LogRange, Origin, Placement};
use crate::proto::Child;
use crate::types::{ClientId, Ino, Rank, SegmentId};

/// An inode as the table has it, but for what the clients of this node write.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct InodeImage {
    /// Its number in this server's table.
    pub ino: Ino,
    /// The inode that it stands in for; its own number, if it stands in for none.
    pub home: Ino,
    /// The record's `mode` word: `st_mode` in the low half, how the file is shared in the
    /// high one.
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
    /// When it was made, ns since 1970.
    pub btime_ns: i64,
    /// The directory of the entry that names it.
    pub parent: Ino,
}

/// Something that is so from now on. The variants' order is the format: new ones go to the
/// end.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Item<'a> {
    /// The snapshot ends here.
    Whole,
    /// An inode is so.
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
        /// What it names.
        child: Ino,
        /// The type of that.
        kind: FileType,
        /// Its place in the directory's order.
        sequence: u64,
    },
    /// A directory has no such entry any more.
    EntryGone {
        /// The directory.
        dir: Ino,
        /// The name.
        name: &'a [u8],
    },
    /// A file's index here has these runs laid over what it had.
    Laid(Ino, Vec<Run>),
    /// Nobody writes the file any more: what is in its index has no order.
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
    /// A client is gone, with all that it was lent.
    ClientGone(ClientId),
    /// A client may write into a segment.
    Lent {
        /// The client.
        client: ClientId,
        /// The segment.
        segment: SegmentId,
        /// Its slab.
        slab: u32,
        /// Where it begins there.
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
    /// A cell is nobody's any more.
    Detached(u32),
    /// What a cell's record had was taken to be published: it is in the file's index no more.
    Noted(u32, CellMark),
    /// All that a file's index here had is being published, by its number here and everywhere.
    Taken(Ino, Ino),
    /// What was being published of a file is where it belongs.
    Flushed(Ino),
    /// The slices of a file that are kept here have these runs laid over what they had.
    Kept(Ino, Vec<Run>),
    /// Bytes of this server's log, which had been published, are nobody's any more.
    Freed(LogRange),
    /// So many bytes of this server's log are published, in the MiB of a slab.
    Given {
        /// The slab.
        slab: u32,
        /// The MiB.
        unit: u32,
        /// Bytes.
        bytes: u64,
    },
    /// What was published of a file of this server: its size, and bytes stored.
    Published(Ino, u64, u64),
    /// Nothing is known any more of what was published of a file.
    PublishedGone(Ino),
    /// A server may hold entries of a directory of this one.
    Enrolled(Ino, Rank),
    /// It does not any more.
    Retired(Ino, Rank),
    /// The name of a directory whose entry is at another server.
    Moved(Ino, &'a [u8]),
    /// A directory is gone: nobody is enrolled, it has no name, and no entries anywhere.
    Buried(Ino),
    /// These runs of a file are being published, under this number.
    InFlight(Ino, u64, Vec<Run>),
    /// The number of the publish that was last taken from a file's index.
    Numbered(Ino, u64),
    /// What a server was answered to a part of a publish.
    Answered {
        /// The file.
        ino: Ino,
        /// Who publishes.
        from: Rank,
        /// Which publish of its.
        publish: u64,
        /// Which part of that.
        part: u32,
        /// What was free by it.
        freed: Vec<LogRange>,
    },
    /// Publishes of a server to a file are remembered no more.
    Forgotten(Ino, Rank),
    /// The publishes of a server to a file of this one up to this number are in what is stored;
    /// 0: none of its will be said again.
    Counted(Ino, Rank, u64),
    /// Within a snapshot: what was said so far of clients, segments and cells, of what is being
    /// published and of how much is, is void, for all of that follows.
    Anew,
    /// A name is locked, by a rename that has two steps.
    Locked(Ino, &'a [u8], LockedName),
    /// It is not any more.
    Unlocked(Ino, &'a [u8]),
    /// A name is being changed, by this server's operation of that number; or the change is made,
    /// and something is left to be done elsewhere.
    Changing(Rank, u64, NameChange),
    /// Nothing of it is left to be done.
    ChangeOver(Rank, u64),
    /// That server's rename of that number gives no name any more.
    CalledOff(Rank, u64),
    /// It began its life anew: none of its renames of before gives a name.
    CalledOffGone(Rank),
    /// Where the entries of a directory of this server are.
    Placed(Ino, Placement),
    /// All entries of a directory are at this server; or no longer.
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
    /// Who leads the rename.
    pub leader: Rank,
    /// Its number there.
    pub token: u64,
    /// What the name names until the rename changes it.
    pub child: Child,
    /// Of the old name: the new one.
    pub to: Option<Destination>,
}

/// How a name is changed, with more to do than that.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct NameChange {
    /// The directory.
    pub dir: Ino,
    /// The name.
    pub name: Vec<u8>,
    /// What it names before. A directory that no name names afterwards is buried first.
    pub was: Option<Child>,
    /// What it names afterwards.
    pub child: Option<Child>,
    /// Of a rename: the old name, which is changed after that.
    pub from: Option<Origin>,
    /// It names that.
    pub done: bool,
}

/// How far a cell's record was taken; see the server's `cluster/extents/applied.rs`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct CellMark {
    /// The record's stamp.
    pub stamp: u64,
    /// Its slab.
    pub slab: u32,
    /// Where it begins there.
    pub pos: u64,
    /// And in the file.
    pub offset: u64,
    /// Bytes of a whole piece.
    pub length: u64,
    /// From piece to piece.
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
