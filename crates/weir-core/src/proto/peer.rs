//! The operations between servers.
//!
//! Each is declared once, like the operations of clients. A handler is asynchronous, because it may
//! have to ask other servers before it answers. Every call has an id of the fabric's, which repeats
//! it if need be and lets it act once.
//!
//! The asked server is the *entry's home* ([`crate::placement::home_of_entry`]) for a name; the
//! inode's *home* ([`Ino::rank`]) for attributes, sizes, leases and locks; the *slice's home*
//! ([`crate::placement::home_of_extents`]) for extents; and the server whose log has them for
//! bytes. The handler knows the asking server as `from`.

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::audit::Unseen;
use super::table::{messages, peer_operations, Operation};
use super::{
    encode, encoded, ByteRange, Child, FsError, HeldLock, HistoryPosition, Kept, Listing,
    NameHistory, RoomOutlook, RoomState, ServerStatus,
};
pub use super::{
    BeginUpdate, Evict, EvictRanges, GetCopyUse, GetWriteState, Laminate, Readlink, SettleExtents,
};
use crate::extent::Run;
use crate::names::{Attr, FileType, Lamination, Policy};
use crate::node::claim::Claim;
use crate::types::{Ino, Rank};
use crate::xattr::SetFlags;

/// An operation between servers: a message with its kind of reply.
pub trait PeerOperation: Into<Request> {
    /// The reply when it was done.
    type Reply: Serialize + DeserializeOwned;
    /// Its name, for counters and logs.
    const NAME: &'static str;

    /// Does it at the asked server.
    #[allow(async_fn_in_trait)] // one thread: futures need not be Send
    async fn perform<H: Handler>(self, handler: &H, from: Rank) -> Result<Self::Reply, FsError>;
}

/// An operation of a client that its server hands on, as it is, to the home of an inode.
pub trait HomeOperation: PeerOperation {
    /// The inode: from a client by its number in the node's table, or by that in the instance.
    fn inode(&mut self) -> &mut Ino;
}

peer_operations! {
    home {
        readlink: Readlink,
        laminate: Laminate,
        get_write_state: GetWriteState,
        evict: Evict,
        get_copy_use: GetCopyUse,
        settle_extents: SettleExtents,
        evict_ranges: EvictRanges,
        begin_update: BeginUpdate,
    }

    /// Returns the inode that a name names. At the entry's home.
    find: Find {
        /// The directory.
        dir: Ino,
        /// The name.
        #[serde(with = "serde_bytes")]
        name: Vec<u8>,
    } -> Option<Child>;

    /// The same, and the asker may keep the answer until [`DropEntry`].
    find_to_keep: FindToKeep {
        /// The directory.
        dir: Ino,
        /// The name.
        #[serde(with = "serde_bytes")]
        name: Vec<u8>,
    } -> Kept<Option<Child>>;

    /// An entry that the asked server may have kept will change.
    drop_entry: DropEntry {
        /// The directory.
        dir: Ino,
        /// The name.
        #[serde(with = "serde_bytes")]
        name: Vec<u8>,
    } -> ();

    /// Returns the placement of a directory's entries. At the directory's home.
    place_entries at home of dir: PlaceEntries {
        /// The directory.
        dir: Ino,
        /// The purpose of the request.
        query: PlacementQuery,
    } -> Placement;

    /// Tells the server that has all entries of a directory that it is no longer the home of new
    /// ones. Returns the hashes of the names that it keeps, in order
    /// ([`crate::placement::hash_of_name`]); `None`: the entries stay together, and others' new
    /// ones come to that server.
    split_dir: SplitDir {
        /// The directory.
        dir: Ino,
    } -> Option<Vec<u64>>;

    /// Returns the kind, mode and owner of a directory. At its home; if that is lost for good, at any server, which
    /// tells those of its stand-in.
    passage: Passage {
        /// The directory.
        dir: Ino,
    } -> Attr;

    /// Makes a file, directory or link and its name. At the entry's home, which becomes the
    /// inode's. If the name is taken and `exclusive` is not set, returns the inode that has it. If
    /// that is a file of the asked server, it is held for the asker.
    make: Make {
        /// The directory.
        dir: Ino,
        /// The new name.
        #[serde(with = "serde_bytes")]
        name: Vec<u8>,
        /// The type of inode to make.
        what: What,
        /// Permission bits.
        mode: u32,
        /// Owner.
        uid: u32,
        /// Group.
        gid: u32,
        /// Refuse if the name is taken.
        exclusive: bool,
        /// A file that is found is held for writing.
        write: bool,
        /// Its path, if there may be rules about it.
        path: Option<Vec<u8>>,
    } -> Made;

    /// Lets the asker hold entries of a directory; returns its attributes. At its home.
    /// `WouldBlock`: it is being removed; ask [`Settled`], then again.
    enrol at home of dir: Enrol {
        /// The directory.
        dir: Ino,
    } -> Attr;

    /// Answers when no removal of a directory is under way. At its home.
    settled: Settled {
        /// The directory.
        dir: Ino,
    } -> ();

    /// Ends the asked server's holding of entries of a directory. It refuses (`NotEmpty`) while
    /// there are any.
    retire: Retire {
        /// The directory.
        dir: Ino,
    } -> ();

    /// Removes a directory that has no entries anywhere; the asker removes its name. At its home.
    bury at home of dir: Bury {
        /// The directory.
        dir: Ino,
    } -> ();

    /// Returns the servers that may hold entries of a directory. At its home.
    enrolled at home of dir: Enrolled {
        /// The directory.
        dir: Ino,
    } -> Vec<u16>;

    /// Returns the asked server's part of a directory.
    part: Part {
        /// The directory.
        dir: Ino,
    } -> PartOfDir;

    /// Returns entries of a directory at the asked server, as [`super::Readdir`].
    list: List {
        /// The directory.
        dir: Ino,
        /// The cookie of the last entry seen, without its rank.
        cookie: u64,
        /// As of [`super::Readdir`], without its rank.
        until: Option<u64>,
        /// The approximate length limit of the reply.
        budget_bytes: u32,
    } -> Listing;

    /// Removes a name of a file or link. At the entry's home.
    unlink: Unlink {
        /// The directory.
        dir: Ino,
        /// The name.
        #[serde(with = "serde_bytes")]
        name: Vec<u8>,
    } -> Option<Unnamed>;

    /// Removes an empty directory and its name. At the entry's home.
    rmdir: Rmdir {
        /// The directory it is in.
        dir: Ino,
        /// The name.
        #[serde(with = "serde_bytes")]
        name: Vec<u8>,
    } -> ();

    /// Gives a file one more name. At the entry's home.
    link: Link {
        /// The file.
        ino: Ino,
        /// The directory.
        dir: Ino,
        /// The new name.
        #[serde(with = "serde_bytes")]
        name: Vec<u8>,
    } -> ();

    /// Adds a link to an inode, or removes one. At its home.
    relink at home of ino: Relink {
        /// The inode.
        ino: Ino,
        /// True to add, false to remove.
        add: bool,
    } -> FileType;

    /// Locks a name against all but the asker's operation `token`; returns the inode that it names.
    /// Waits for others' locks. At the entry's home.
    lock_name: LockName {
        /// The directory.
        dir: Ino,
        /// The name.
        #[serde(with = "serde_bytes")]
        name: Vec<u8>,
        /// The operation that locks: unique at the asker.
        token: u64,
        /// If a rename removes the name: the name that it gives.
        to: Option<Destination>,
        /// True if two names are exchanged, and this is one of them.
        swaps: bool,
    } -> Option<Child>;

    /// Drops the lock of a name, after it was given another inode, taken away, or left.
    unlock_name: UnlockName {
        /// The directory.
        dir: Ino,
        /// The name.
        #[serde(with = "serde_bytes")]
        name: Vec<u8>,
        /// See [`LockName`].
        token: u64,
        /// The steps of the rename that are left; the home settles them before the name is free.
        left: Left,
    } -> ();

    /// Makes a locked name name an inode, or nothing. The asker counts the links of inodes. If the
    /// lock is gone because its holder seemed lost, the name must be unchanged. For a file's
    /// rename, the old name must not have been locked by others since, and the new one must be as
    /// it was given. `Unreachable`: this is not so.
    assign: Assign {
        /// The directory.
        dir: Ino,
        /// The name.
        #[serde(with = "serde_bytes")]
        name: Vec<u8>,
        /// See [`LockName`].
        token: u64,
        /// The inode that it named under the lock.
        was: Option<Child>,
        /// In the first step of a rename with two: the other step. The asked server has it done
        /// ([`Leave`]) if the asker is lost before that. If the rename removes the old name, a
        /// directory that this name names is buried first.
        from: Option<Origin>,
        /// In the second step of a file's rename: the new name.
        to: Option<Destination>,
        /// The inode that it will name.
        child: Option<Child>,
    } -> ();

    /// The second step of a rename: sets the inode that the old name names. Not repeated if it was
    /// done. At the old name's home.
    leave: Leave {
        /// The directory.
        dir: Ino,
        /// The old name.
        #[serde(with = "serde_bytes")]
        name: Vec<u8>,
        /// The leader.
        leader: u16,
        /// See [`LockName`].
        token: u64,
        /// The inode that the name named under the lock.
        was: Child,
        /// The inode that it will name.
        then: Option<Child>,
    } -> ();

    /// Settles a rename whose leader does not report its outcome: returns the inode that the new
    /// name was given, and the inode that the old one will name. `None`: nothing was done, and
    /// nothing will be. At the new name's home.
    end_move: EndMove {
        /// The leader.
        leader: u16,
        /// See [`LockName`].
        token: u64,
        /// None of the leader's requests is under way any more.
        over: bool,
    } -> Option<(Child, Option<Child>)>;

    /// Records the name that an inode will have after a rename. At its home.
    moved at home of ino: Moved {
        /// The inode.
        ino: Ino,
        /// The directory.
        parent: Ino,
        /// Its name there.
        #[serde(with = "serde_bytes")]
        name: Vec<u8>,
        /// See [`LockName`].
        token: u64,
    } -> ();

    /// Restores an inode's name, because that rename has come to nothing. At its home.
    stayed at home of ino: Stayed {
        /// The inode.
        ino: Ino,
        /// The directory.
        parent: Ino,
        /// Its name there.
        #[serde(with = "serde_bytes")]
        name: Vec<u8>,
        /// The leader of the rename.
        leader: u16,
        /// See [`LockName`].
        token: u64,
        /// As in [`EndMove`].
        over: bool,
    } -> ();

    /// Takes the one permit for moving directories to other parents; waits for it. At rank 0.
    lock_moves: LockMoves {
        /// As in [`LockName`].
        token: u64,
    } -> ();

    /// Gives the permit back.
    unlock_moves: UnlockMoves {
        /// See [`LockMoves`].
        token: u64,
    } -> ();

    /// Returns an inode's directory, and its name there. `None`: the root, or it has no name. At
    /// its home.
    whereabouts at home of ino: Whereabouts {
        /// The inode.
        ino: Ino,
    } -> Option<(Ino, Vec<u8>)>;

    /// Returns the attributes of an inode. At its home. If no node writes the file, the asker may
    /// hold and keep it, as if it had asked for [`Hold`] and [`Lease`]; then `may_keep` is set.
    get_attr at home of ino: GetAttr {
        /// The inode.
        ino: Ino,
        /// True if the asker has room for another file.
        keep: bool,
    } -> Kept<Attr>;

    /// Sets attributes, as [`super::SetAttr`]. At the inode's home.
    set_attr: SetAttr {
        /// The inode and the attributes to set.
        set: super::SetAttr,
    } -> ();

    /// Returns the value of an extended attribute. At the inode's home.
    get_xattr at home of ino: GetXattr {
        /// The inode.
        ino: Ino,
        /// The attribute.
        #[serde(with = "serde_bytes")]
        name: Vec<u8>,
    } -> Vec<u8>;

    /// Returns the names of all extended attributes, a NUL behind each. At the inode's home.
    list_xattrs at home of ino: ListXattrs {
        /// The inode.
        ino: Ino,
    } -> Vec<u8>;

    /// Sets an extended attribute. At the inode's home.
    set_xattr at home of ino: SetXattr {
        /// The inode.
        ino: Ino,
        /// The attribute.
        #[serde(with = "serde_bytes")]
        name: Vec<u8>,
        /// All of the value.
        #[serde(with = "serde_bytes")]
        value: Vec<u8>,
        /// The conditions on its existence.
        flags: SetFlags,
    } -> ();

    /// Removes an extended attribute. At the inode's home.
    remove_xattr at home of ino: RemoveXattr {
        /// The inode.
        ino: Ino,
        /// The attribute.
        #[serde(with = "serde_bytes")]
        name: Vec<u8>,
    } -> ();

    /// Keeps a file alive while the asker's node has it open; returns its attributes. At its home.
    hold at home of ino: Hold {
        /// The file.
        ino: Ino,
        /// True if the node may write it.
        write: bool,
    } -> Attr;

    /// Ends [`Hold`] and any lease. At the home of all of them.
    release: Release {
        /// The files.
        inos: Vec<Ino>,
    } -> ();

    /// Returns the attributes of a file, which hold until the asker is sent [`Recall`]. Of a raw
    /// file, all other nodes have published their writes, and write no more until then. At its
    /// home.
    lease at home of ino: Lease {
        /// The file.
        ino: Ino,
    } -> Attr;

    /// Returns the ranges of `[from, to)` of a file that nodes other than the asker's wrote and did
    /// not make known. At its home.
    audit at home of ino: Audit {
        /// The file.
        ino: Ino,
        /// First byte.
        from: u64,
        /// Byte behind the last.
        to: u64,
    } -> Vec<Unseen>;

    /// Returns the ranges of `[from, to)` of a file that the asked server's node wrote and did not
    /// make known.
    unseen: UnseenHere {
        /// The file.
        ino: Ino,
        /// First byte.
        from: u64,
        /// Byte behind the last.
        to: u64,
    } -> Option<Unseen>;

    /// Makes programs of the asked server's node ask the file's home for the offset of each append,
    /// as other nodes do. Returns the end of the file as the node sees it, with the bytes that are
    /// reserved for appends.
    share_appends: ShareAppends {
        /// The file.
        ino: Ino,
    } -> u64;

    /// Returns the offset for the next `length` bytes of an append. At the file's home.
    append at home of ino: Append {
        /// The file.
        ino: Ino,
        /// Bytes.
        length: u64,
        /// The end of the file as the asker's node sees it.
        at_least: u64,
        /// The range that a program of the asker's node reserved there, before it was told to ask.
        reserved: Option<u64>,
    } -> u64;

    /// Lets the asker's node write bytes of a raw file until it is told [`Revoke`]. Before that,
    /// other nodes' writes there are published, and no other node reads the file by its old
    /// knowledge. Returns the bytes that may be written; `None`: all of the file. At its home.
    grant at home of ino: Grant {
        /// The file.
        ino: Ino,
        /// The bytes that are written now.
        needed: Claim,
        /// The bytes that will be written, as far as can be guessed.
        wished: Claim,
        /// The node has given up its earlier grants.
        anew: bool,
    } -> Option<Claim>;

    /// Ends the asked server's write token of a raw file, and publishes its node's writes.
    revoke: Revoke {
        /// The file.
        ino: Ino,
    } -> ();

    /// Ends the asked server's lease; it no longer believes its knowledge of the file.
    recall: Recall {
        /// The file.
        ino: Ino,
    } -> ();

    /// If no program of the asked server's node has a file open for writing, lets none open it so.
    /// Returns the number that have it open.
    seal: Seal {
        /// The file.
        ino: Ino,
    } -> u32;

    /// Settles the extents of the asked server's slices of a file.
    settle_slices: SettleSlices {
        /// The file.
        ino: Ino,
        /// A number that the file's home has given to no other one.
        number: u64,
    } -> ();

    /// Has ranges of the asked server's slices be bytes of the file's copy; returns the bytes of logs that this
    /// frees.
    lay_copy: LayCopy {
        /// The file.
        ino: Ino,
        /// Over bytes that are older than this settling, where all are; `None`: beneath all that is there.
        settled: Option<u64>,
        /// The ranges.
        ranges: Vec<ByteRange>,
    } -> Vec<LogRange>;

    /// Returns true if the asked server's slices of a file have bytes of its copy.
    has_copy_runs: HasCopyRuns {
        /// The file.
        ino: Ino,
    } -> bool;

    /// Tells the asked server whether room can be made; see [`super::ReportRelief`].
    report_relief: ReportRelief {
        /// The number of the tree.
        tree: u16,
        /// The outlook.
        outlook: RoomOutlook,
        /// The time since the look at the tree began on which the outlook is based, ms.
        age_ms: u64,
    } -> RoomState;

    /// Returns what the asked server has renamed and removed; see [`super::GetNameHistory`].
    get_name_history: GetNameHistory {
        /// The last changes that the caller knows.
        since: HistoryPosition,
    } -> NameHistory;

    /// Returns the number of descriptions of the asked server's node that have a file open for writing.
    writers: Writers {
        /// The file.
        ino: Ino,
    } -> u32;

    /// Tells the state of a file to the nodes that have it open.
    mark: Mark {
        /// The file.
        ino: Ino,
        /// The sharing between nodes.
        policy: Policy,
        /// The progress of its lamination.
        lamination: Lamination,
        /// See [`Attr::evicted`].
        evicted: bool,
        /// It has no name any more.
        unnamed: bool,
    } -> ();

    /// A file was laminated: its attributes and all its runs.
    laminated: Laminated {
        /// The attributes.
        attr: Attr,
        /// The runs.
        runs: Vec<Run>,
    } -> ();

    /// A laminated file was removed.
    forget: Forget {
        /// The file.
        ino: Ino,
    } -> ();

    /// Lays runs over the known ones of a file, with one new stamp. At a slice's home, which takes
    /// the parts that its slices hold. Returns the bytes of logs that no slice of it refers to any
    /// more.
    put: Put {
        /// The file.
        ino: Ino,
        /// The runs, of which no two overlap.
        runs: Vec<Run>,
        /// The number of the asker's publish: one after the other, each until all servers have it.
        /// A repeated part is not laid again.
        publish: u64,
        /// The part of the publish.
        part: u32,
        /// The size to which the file was cut since: bytes behind it are free at once.
        cut: u64,
        /// All of the asker's publishes below this one have ended.
        ended_below: u64,
    } -> Vec<LogRange>;

    /// Makes everything that was [`Put`] visible: raises the size, sets the time, recalls all
    /// leases but the asker's. At the file's home.
    published at home of ino: Published {
        /// The file.
        ino: Ino,
        /// The least size of the file.
        size: u64,
        /// The time at which its bytes changed, ns since 1970.
        mtime_ns: i64,
        /// The change of its stored bytes.
        stored: i64,
        /// The same of publishes, by their numbers: each counts once, however often it is repeated.
        publishes: Vec<(u64, i64)>,
        /// The asker has given up its write token of the file, if it had one.
        ended: bool,
    } -> ();

    /// Returns the runs of `[from, to)` in the asked server's slices.
    runs: Runs {
        /// The file.
        ino: Ino,
        /// First byte.
        from: u64,
        /// Byte behind the last.
        to: u64,
    } -> Vec<Run>;

    /// Makes `[from, to)` of the asked server's slices a hole; returns the bytes of logs that this
    /// frees.
    erase: Erase {
        /// The file.
        ino: Ino,
        /// First byte.
        from: u64,
        /// Byte behind the last.
        to: u64,
    } -> Vec<LogRange>;

    /// Sets a file's size. At its home.
    truncate at home of ino: Truncate {
        /// The file.
        ino: Ino,
        /// The new size, bytes.
        size: u64,
    } -> ();

    /// A file was cut: unpublished writes of the asked server's node beyond `size` are void.
    /// Returns the end up to which the file may reach by bytes that could not be published.
    cut: Cut {
        /// The file.
        ino: Ino,
        /// The new size, bytes.
        size: u64,
        /// Greater than the number of each earlier truncation of the file: a repeated truncation
        /// must not cut later writes.
        number: u64,
    } -> u64;

    /// Publishes the asked server's node's writes to a file.
    publish: Publish {
        /// The file.
        ino: Ino,
        /// Its home says that no bytes wait for its lamination. The asked server may not have heard of
        /// that change yet.
        is_public: bool,
    } -> ();

    /// No file refers to these bytes of the asked server's log any more.
    freed: Freed {
        /// The bytes.
        ranges: Vec<LogRange>,
    } -> ();

    /// Returns bytes of the asked server's log; they come as the reply's bulk, one range behind the
    /// other.
    fetch: Fetch {
        /// The ranges.
        ranges: Vec<LogRange>,
    } -> ();

    /// Takes, changes or drops a lock for a process or description of the asker's node;
    /// `WouldBlock` if it is held by others. At the file's home.
    lock at home of ino: Lock {
        /// The file, by its own number.
        ino: Ino,
        /// The lock.
        wish: LockWish,
        /// For a lock: its number at the asker, greater than 0. For an unlock: the number of the
        /// lock that it takes back, because the asker does not know if that was granted; the asked
        /// server grants it no more. Otherwise 0.
        number: u64,
    } -> ();

    /// Returns the lock that would prevent the given one. At the file's home.
    test_lock at home of ino: TestLock {
        /// The file.
        ino: Ino,
        /// The lock.
        wish: LockWish,
    } -> Option<HeldLock>;

    /// Returns the owners, of the asked server's node, that took locks of a file and are no more.
    /// The home asks when a lock of theirs is in another owner's way.
    dead_owners: DeadOwners {
        /// The file.
        ino: Ino,
    } -> Vec<LockOwner>;

    /// Drops all locks of owners of the asker's node that are no more. At a file's home.
    drop_locks: DropLocks {
        /// The file.
        ino: Ino,
        /// The owners.
        owners: Vec<LockOwner>,
    } -> ();

    /// Returns the state of the asked server.
    status: Status {} -> ServerStatus;

    /// Ends the asked server.
    stop: Stop {} -> ServerStatus;

    /// The asker was killed and started again: its earlier grants and holdings are void.
    back: Back {} -> ();

    /// A message for the asked server, which passes it on to those `below` it, each as if the asker
    /// had sent it. Returns their combined answers.
    relay: Relay {
        /// The message.
        news: News,
        /// The other servers.
        below: Vec<Rank>,
    } -> Told;

    /// Begins a session anew: tells the asked server's files that the asker holds, and for each if
    /// it may write it. Everything else that it held, and its locks of names, are void. Returns the
    /// files that were cut meanwhile, and for each the least size to which it was cut.
    begin: Begin {
        /// The files.
        held: Vec<(Ino, bool)>,
        /// Renames of lower numbers that the asker led have ended.
        renames_since: u64,
    } -> Vec<(Ino, u64)>;

    /// Nothing but a sign of life, which renews leases.
    renew: Renew {} -> ();
}

/// The rest of a rename whose leader has done all that it can.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Left {
    /// Nothing: all steps were done, or none was begun.
    Nothing,
    /// Some steps are left, and none of them is under way.
    Some,
    /// Some steps are left, and the leader's last request may still be under way.
    Unknown,
    /// The old name of a file must still be removed, unless another operation has locked it by
    /// then.
    Later,
}

/// The purpose for which a server asks the placement of a directory.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum PlacementQuery {
    /// To look for a name, or to know if the server is the home of a name that it has locked. The
    /// answer comes at once.
    Look,
    /// A server refused because it is not the home. The answer comes once no split is under way.
    Refused,
    /// To make an entry: if there is none, the asker gets all.
    Make,
    /// The same, and the server that has all entries refused the new one: the directory is split.
    Split,
}

/// The placement of a directory's entries; see docs/design/0006-directories.md.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Placement {
    /// There are no entries.
    Unused,
    /// All entries are at one server.
    At {
        /// The server.
        rank: Rank,
        /// This may change at any moment.
        splitting: bool,
    },
    /// Each entry is at the server for the hash of its name, except those that the first server
    /// keeps.
    Spread(FirstServer),
}

/// The server that had all entries of a directory before they were spread.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct FirstServer {
    /// The server.
    pub rank: Rank,
    /// Hashes of the names that it had then, in order.
    pub names: Vec<u64>,
}

/// The name that a rename gives.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Destination {
    /// Its home.
    pub home: Rank,
    /// The directory.
    pub dir: Ino,
    /// The name.
    #[serde(with = "serde_bytes")]
    pub name: Vec<u8>,
}

/// The name that a rename removes, or exchanges.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Origin {
    /// Its home.
    pub home: Rank,
    /// The directory.
    pub dir: Ino,
    /// The name.
    #[serde(with = "serde_bytes")]
    pub name: Vec<u8>,
    /// The inode that it names afterwards.
    pub then: Option<Child>,
}

/// A message that many servers may be told at a time.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum News {
    /// See [`Recall`].
    Recall(Recall),
    /// See [`Mark`].
    Mark(Mark),
    /// See [`Cut`].
    Cut(Cut),
    /// See [`Seal`].
    Seal(Seal),
    /// See [`Writers`].
    Writers(Writers),
    /// See [`Publish`].
    Publish(Publish),
    /// See [`Revoke`].
    Revoke(Revoke),
    /// See [`Laminated`].
    Laminated(Laminated),
    /// See [`Forget`].
    Forget(Forget),
    /// See [`DropEntry`].
    DropEntry(DropEntry),
}

/// The combined answers of the servers that were told a message.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Told {
    /// To [`Seal`] and [`Writers`]: the sum.
    pub writers: u32,
    /// To [`Cut`]: the end up to which the file may reach.
    pub end: u64,
    /// The first error of a server that was reached.
    pub failed: Option<FsError>,
    /// The servers that were not reached.
    pub lost: Vec<Rank>,
}

/// The types of inode that [`Make`] makes.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum What {
    /// A regular file.
    File,
    /// A directory.
    Dir,
    /// A symbolic link to this target.
    Symlink(Vec<u8>),
    /// A fifo or a socket.
    Special(FileType),
}

/// The outcome of [`Make`].
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Made {
    /// The inode that has the name.
    pub child: Child,
    /// True if it is new.
    pub new: bool,
    /// Its attributes, if it is new or held.
    pub attr: Option<Attr>,
    /// It is new and raw, and the asker's node may write all of it: as [`Grant`].
    pub granted: bool,
}

/// A file that lost its last name by [`Unlink`], and that the asker holds. No [`Mark`] tells the
/// asker of it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Unnamed {
    /// The file.
    pub ino: Ino,
    /// Nothing of it is stored, and no other node holds it: it frees no space when the asker
    /// releases it.
    pub empty: bool,
}

/// A server's part of a directory.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct PartOfDir {
    /// Entries there that are directories.
    pub dirs: u32,
    /// The time at which an entry there last came or went, ns since 1970.
    pub changed_ns: i64,
}

/// Bytes of a server's log.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct LogRange {
    /// The server.
    pub rank: u16,
    /// The slab.
    pub slab: u32,
    /// The first byte in it.
    pub pos: u64,
    /// The number of bytes.
    pub len: u64,
}

/// The owner of a lock, as its node knows it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub enum LockOwner {
    /// A process.
    Client(u32),
    /// An open file description, in one life of its entry.
    Ofd {
        /// The entry.
        index: u32,
        /// The life of the entry.
        generation: u32,
    },
}

/// A request for a lock.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct LockWish {
    /// flock's locks of whole files, rather than fcntl's.
    pub whole: bool,
    /// The owner that it is for.
    pub owner: LockOwner,
    /// F_RDLCK, F_WRLCK or F_UNLCK.
    pub kind: u32,
    /// First byte.
    pub start: u64,
    /// Byte behind the last.
    pub end: u64,
}

/// Encodes a request.
pub fn request<O: PeerOperation>(op: O) -> Vec<u8> {
    let mut out = Vec::new();
    let request: Request = op.into();
    encode(&request, &mut out);
    out
}

/// Returns true if a reply reports that the session has ended.
pub fn is_refused(bytes: &[u8]) -> bool {
    matches!(
        postcard::from_bytes::<Result<(), FsError>>(bytes),
        Ok(Err(FsError::NewSession))
    )
}

/// Decodes the reply to an operation of kind `O`.
pub fn reply<O: PeerOperation>(bytes: &[u8]) -> Result<O::Reply, FsError> {
    postcard::from_bytes(bytes).unwrap_or(Err(FsError::Malformed))
}
