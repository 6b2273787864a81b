//! What servers ask of each other.
//!
//! Declared once, as the operations of clients are; a handler is asynchronous, for it
//! may have to ask others before it answers. Every call has an id of the fabric's, which
//! repeats it if need be and lets it act once.
//!
//! Who is asked: the *entry's home* ([`crate::placement::home_of_entry`]) for a name, the
//! inode's *home* ([`Ino::rank`]) for attributes, sizes, leases and locks, the *slice's
//! home* ([`crate::placement::home_of_extents`]) for extents, and the server whose log has
//! them for bytes. The asking server is known to the handler as `from`.

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::audit::Unseen;
use super::table::{messages, peer_operations};
use super::{encode, encoded, Cause, Child, Entry, FsError, HeldLock, Kept, ServerStatus};
use crate::extent::Run;
use crate::names::{Attr, FileType, Lamination, Policy};
use crate::node::claim::Claim;
use crate::types::{Ino, Rank};
use crate::xattr::SetFlags;

/// An operation between servers: a message with its kind of reply.
pub trait PeerOperation: Into<Request> {
    /// What comes back when it was done.
    type Reply: Serialize + DeserializeOwned;
    /// Its name, for counters and logs.
    const NAME: &'static str;

    /// Has it done where it is asked for.
    #[allow(async_fn_in_trait)] // one thread: futures need not be Send
    async fn perform<H: Handler>(self, handler: &H, from: Rank) -> Result<Self::Reply, FsError>;
}

peer_operations! {
    /// What a name names. At the entry's home.
    find: Find {
        /// The directory.
        dir: Ino,
        /// The name.
        name: Vec<u8>,
    } -> Option<Child>;

    /// The same, and the asker may believe what there is until [`DropEntry`].
    find_to_keep: FindToKeep {
        /// The directory.
        dir: Ino,
        /// The name.
        name: Vec<u8>,
    } -> Kept<Option<Child>>;

    /// An entry is to change that the asked server may have kept.
    drop_entry: DropEntry {
        /// The directory.
        dir: Ino,
        /// The name.
        name: Vec<u8>,
    } -> ();

    /// Where the entries of a directory are. At the directory's home.
    place_entries at home of dir: PlaceEntries {
        /// The directory.
        dir: Ino,
        /// The purpose of the request.
        query: PlacementQuery,
    } -> Placement;

    /// The asked server, which has all entries of a directory, is no longer to be the home of new
    /// ones. Hashes of the names that it keeps, in order ([`crate::placement::hash_of_name`]);
    /// `None`: they stay together, and others' new ones come to them.
    split_dir: SplitDir {
        /// The directory.
        dir: Ino,
    } -> Option<Vec<u64>>;

    /// Kind, mode and owner of a directory. At its home.
    passage at home of dir: Passage {
        /// The directory.
        dir: Ino,
    } -> Attr;

    /// Makes a file, directory or link and its name. At the entry's home, which becomes
    /// the inode's. If the name is taken and `exclusive` is not set: what has it, which, if it
    /// is a file of that server, is held for the asker.
    make: Make {
        /// The directory.
        dir: Ino,
        /// The new name.
        name: Vec<u8>,
        /// What to make.
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

    /// Lets the asker hold entries of a directory; its attributes. At its home.
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

    /// Ends the asked server's holding of entries of a directory, which it refuses
    /// (`NotEmpty`) while there are any.
    retire: Retire {
        /// The directory.
        dir: Ino,
    } -> ();

    /// Removes a directory that has no entries anywhere; its name is the asker's to take.
    /// At its home.
    bury at home of dir: Bury {
        /// The directory.
        dir: Ino,
    } -> ();

    /// Which servers may hold entries of a directory. At its home.
    enrolled at home of dir: Enrolled {
        /// The directory.
        dir: Ino,
    } -> Vec<u16>;

    /// The asked server's part of a directory.
    part: Part {
        /// The directory.
        dir: Ino,
    } -> PartOfDir;

    /// Entries of a directory at the asked server, as [`super::Readdir`].
    list: List {
        /// The directory.
        dir: Ino,
        /// The cookie of the last entry seen, without its rank.
        cookie: u64,
        /// About how long the reply may be.
        budget_bytes: u32,
    } -> Vec<Entry>;

    /// Takes a name from a file or link. At the entry's home.
    unlink: Unlink {
        /// The directory.
        dir: Ino,
        /// The name.
        name: Vec<u8>,
    } -> Option<Unnamed>;

    /// Removes an empty directory and its name. At the entry's home.
    rmdir: Rmdir {
        /// The directory it is in.
        dir: Ino,
        /// The name.
        name: Vec<u8>,
    } -> ();

    /// Gives a file one more name. At the entry's home.
    link: Link {
        /// The file.
        ino: Ino,
        /// The directory.
        dir: Ino,
        /// The new name.
        name: Vec<u8>,
    } -> ();

    /// Adds a link to an inode, or takes one. At its home.
    relink at home of ino: Relink {
        /// The inode.
        ino: Ino,
        /// Add, or take.
        add: bool,
    } -> FileType;

    /// Locks a name against all but the asker's operation `token`; what it names. Waits
    /// for others' locks. At the entry's home.
    lock_name: LockName {
        /// The directory.
        dir: Ino,
        /// The name.
        name: Vec<u8>,
        /// Who locks: unique at the asker.
        token: u64,
        /// Of the name that a rename takes away: the one that it gives.
        to: Option<Destination>,
        /// Two names are exchanged, of which this is one.
        swaps: bool,
    } -> Option<Child>;

    /// Drops the lock of a name, after it was given another inode, taken away, or left.
    unlock_name: UnlockName {
        /// The directory.
        dir: Ino,
        /// The name.
        name: Vec<u8>,
        /// See [`LockName`].
        token: u64,
        /// What the home has to find out before the name is free.
        left: Left,
    } -> ();

    /// Lets a locked name name something, or nothing. Links of inodes are the asker's to
    /// count. If the lock is gone because its holder seemed lost, the name must be as it was, and
    /// of a file's rename the old one not locked by others since, and the new one as it was
    /// given; `Unreachable`: it is not.
    assign: Assign {
        /// The directory.
        dir: Ino,
        /// The name.
        name: Vec<u8>,
        /// See [`LockName`].
        token: u64,
        /// What it named under the lock.
        was: Option<Child>,
        /// Of a rename with two steps, of which this is the first: the asked server has the other
        /// one done ([`Leave`]), should the asker be lost before it has. If the old name goes by
        /// it, a directory that this one names is buried first.
        from: Option<Origin>,
        /// Of the second step of a file's rename: the new name.
        to: Option<Destination>,
        /// What it is to name.
        child: Option<Child>,
    } -> ();

    /// The second step of a rename: the old name names what it is to. Not done again if it was
    /// done. At the old name's home.
    leave: Leave {
        /// The directory.
        dir: Ino,
        /// The old name.
        name: Vec<u8>,
        /// The leader.
        leader: u16,
        /// See [`LockName`].
        token: u64,
        /// What the name named under the lock.
        was: Child,
        /// What it is to name.
        then: Option<Child>,
    } -> ();

    /// What a rename has done of which its leader does not say so: what its new name was let name,
    /// and what the old one is to name. `None`: nothing, and nothing comes of it any more. At the
    /// new name's home.
    end_move: EndMove {
        /// The leader.
        leader: u16,
        /// See [`LockName`].
        token: u64,
        /// Nothing that the leader has asked for is under way any more.
        over: bool,
    } -> Option<(Child, Option<Child>)>;

    /// Says where an inode's name will be by a rename. At its home.
    moved at home of ino: Moved {
        /// The inode.
        ino: Ino,
        /// The directory.
        parent: Ino,
        /// Its name there.
        name: Vec<u8>,
        /// See [`LockName`].
        token: u64,
    } -> ();

    /// Says where an inode's name still is, for that rename has come to nothing. At its home.
    stayed at home of ino: Stayed {
        /// The inode.
        ino: Ino,
        /// The directory.
        parent: Ino,
        /// Its name there.
        name: Vec<u8>,
        /// The leader of the rename.
        leader: u16,
        /// See [`LockName`].
        token: u64,
        /// As in [`EndMove`].
        over: bool,
    } -> ();

    /// The one permit for moving directories to other parents; waits for it. At rank 0.
    lock_moves: LockMoves {
        /// As in [`LockName`].
        token: u64,
    } -> ();

    /// Gives the permit back.
    unlock_moves: UnlockMoves {
        /// See [`LockMoves`].
        token: u64,
    } -> ();

    /// Where an inode is: its directory, and its name there. `None`: the root, or it has
    /// no name. At its home.
    whereabouts at home of ino: Whereabouts {
        /// The inode.
        ino: Ino,
    } -> Option<(Ino, Vec<u8>)>;

    /// The attributes of an inode. At its home. A file that nobody writes the asker may hold and
    /// keep, as if it had asked for [`Hold`] and [`Lease`]; then `may_keep` is set.
    get_attr at home of ino: GetAttr {
        /// The inode.
        ino: Ino,
        /// True if the asker has room for another file.
        keep: bool,
    } -> Kept<Attr>;

    /// Sets attributes, as [`super::SetAttr`]. At the inode's home.
    set_attr: SetAttr {
        /// What to set, of which inode.
        set: super::SetAttr,
    } -> ();

    /// The value of an extended attribute. At the inode's home.
    get_xattr at home of ino: GetXattr {
        /// The inode.
        ino: Ino,
        /// The attribute.
        name: Vec<u8>,
    } -> Vec<u8>;

    /// The names of all extended attributes, a NUL behind each. At the inode's home.
    list_xattrs at home of ino: ListXattrs {
        /// The inode.
        ino: Ino,
    } -> Vec<u8>;

    /// Sets an extended attribute. At the inode's home.
    set_xattr at home of ino: SetXattr {
        /// The inode.
        ino: Ino,
        /// The attribute.
        name: Vec<u8>,
        /// All of the value.
        value: Vec<u8>,
        /// Whether it must be there, or must not.
        flags: SetFlags,
    } -> ();

    /// Removes an extended attribute. At the inode's home.
    remove_xattr at home of ino: RemoveXattr {
        /// The inode.
        ino: Ino,
        /// The attribute.
        name: Vec<u8>,
    } -> ();

    /// The target of a symbolic link. At its home.
    readlink at home of ino: Readlink {
        /// The link.
        ino: Ino,
    } -> Vec<u8>;

    /// Keeps a file alive while the asker's node has it open; its attributes. At its home.
    hold at home of ino: Hold {
        /// The file.
        ino: Ino,
        /// Whether the node may write it.
        write: bool,
    } -> Attr;

    /// Ends [`Hold`] and any lease. At the home of all of them.
    release: Release {
        /// The files.
        inos: Vec<Ino>,
    } -> ();

    /// The attributes of a file, which hold until the asker is sent [`Recall`]. Of a raw file,
    /// all other nodes have published what they wrote, and write no more until then. At its home.
    lease at home of ino: Lease {
        /// The file.
        ino: Ino,
    } -> Attr;

    /// What nodes other than the asker's wrote to `[from, to)` of a file and did not make
    /// known. At its home.
    audit at home of ino: Audit {
        /// The file.
        ino: Ino,
        /// First byte.
        from: u64,
        /// Byte behind the last.
        to: u64,
    } -> Vec<Unseen>;

    /// What the asked server's node wrote to `[from, to)` of a file and did not make known.
    unseen: UnseenHere {
        /// The file.
        ino: Ino,
        /// First byte.
        from: u64,
        /// Byte behind the last.
        to: u64,
    } -> Option<Unseen>;

    /// Lets programs of the asked server's node, and of others, append to a file where its home
    /// says; the end of the file as the node sees it, with what is reserved for appends.
    share_appends: ShareAppends {
        /// The file.
        ino: Ino,
    } -> u64;

    /// Where the next `length` bytes of an append go. At the file's home.
    append at home of ino: Append {
        /// The file.
        ino: Ino,
        /// Bytes.
        length: u64,
        /// The end of the file as the asker's node sees it.
        at_least: u64,
        /// What a program of the asker's node reserved there, before it was told to ask.
        reserved: Option<u64>,
    } -> u64;

    /// Lets the asker's node write bytes of a raw file until it is told [`Revoke`]. What other
    /// nodes wrote there is published before, and nobody else reads the file by what he knew.
    /// What may be written; `None`: all of the file. At its home.
    grant at home of ino: Grant {
        /// The file.
        ino: Ino,
        /// What is written now.
        needed: Claim,
        /// What will be written, as far as can be guessed.
        wished: Claim,
        /// The node has given up what it was granted before.
        anew: bool,
    } -> Option<Claim>;

    /// Ends what the asked server's node may write of a raw file, and publishes what it wrote.
    revoke: Revoke {
        /// The file.
        ino: Ino,
    } -> ();

    /// Ends the asked server's lease; it no longer believes what it knows of the file.
    recall: Recall {
        /// The file.
        ino: Ino,
    } -> ();

    /// Laminates a file once nobody has it open for writing; whether it is so now. At its
    /// home.
    laminate at home of ino: Laminate {
        /// The file.
        ino: Ino,
        /// What asks for it.
        cause: Cause,
    } -> bool;

    /// If nobody at the asked server's node has a file open for writing, lets nobody open
    /// it so. How many have it open.
    seal: Seal {
        /// The file.
        ino: Ino,
    } -> u32;

    /// What the nodes that have a file open are to know of it.
    mark: Mark {
        /// The file.
        ino: Ino,
        /// How it is shared.
        policy: Policy,
        /// How far its lamination is.
        lamination: Lamination,
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

    /// A laminated file is no more.
    forget: Forget {
        /// The file.
        ino: Ino,
    } -> ();

    /// Lays runs over what is known of a file, with one new stamp. At a slice's home,
    /// which takes of them what its slices hold. The bytes of logs that no slice of it
    /// refers to any more.
    put: Put {
        /// The file.
        ino: Ino,
        /// The runs, of which no two overlap.
        runs: Vec<Run>,
        /// Which publish of the asker's this is: one after the other, each until all servers
        /// have it. What comes again of the same is not laid again.
        publish: u64,
        /// Which part of it.
        part: u32,
        /// The file was cut to this since: what lies behind is free at once.
        cut: u64,
        /// All of the asker's publishes below this one have come to their end.
        ended_below: u64,
    } -> Vec<LogRange>;

    /// Says that all that was [`Put`] is to be seen: raises the size, sets the time,
    /// recalls all leases but the asker's. At the file's home.
    published at home of ino: Published {
        /// The file.
        ino: Ino,
        /// Its size is at least so many bytes.
        size: u64,
        /// Its bytes changed then, ns since 1970.
        mtime_ns: i64,
        /// So many bytes more of it are stored, or less.
        stored: i64,
        /// The same of publishes, by their numbers: each counts once, however often it is said.
        publishes: Vec<(u64, i64)>,
        /// The asker has given up its write token of the file, if it had one.
        ended: bool,
    } -> ();

    /// The runs of `[from, to)` in the asked server's slices.
    runs: Runs {
        /// The file.
        ino: Ino,
        /// First byte.
        from: u64,
        /// Byte behind the last.
        to: u64,
    } -> Vec<Run>;

    /// Makes `[from, to)` of the asked server's slices a hole; the bytes of logs that are
    /// free by it.
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

    /// A file was cut: what the asked server's node wrote and did not publish beyond
    /// `size` is void. Up to where the file may reach by what could not be published.
    cut: Cut {
        /// The file.
        ino: Ino,
        /// The new size, bytes.
        size: u64,
        /// Greater than that of each truncation of the file before: one that comes a second
        /// time must not cut what was written since.
        number: u64,
    } -> u64;

    /// Publishes what the asked server's node wrote to a file.
    flush: Flush {
        /// The file.
        ino: Ino,
    } -> ();

    /// No file refers to these bytes of the asked server's log any more.
    freed: Freed {
        /// Which.
        ranges: Vec<LogRange>,
    } -> ();

    /// Bytes of the asked server's log; they come as the reply's bulk, one range behind
    /// the other.
    fetch: Fetch {
        /// Which.
        ranges: Vec<LogRange>,
    } -> ();

    /// Takes, changes or drops a lock for a process or description of the asker's node;
    /// `WouldBlock` if it is held by others. At the file's home.
    lock at home of ino: Lock {
        /// Of which file, by its own number.
        ino: Ino,
        /// What.
        wish: LockWish,
        /// Of a lock: its number at the asker, greater than 0. Of an unlock: the number of the lock
        /// that it takes back, for nobody knows whether that was granted; the asked server grants
        /// it no more. Otherwise 0.
        number: u64,
    } -> ();

    /// Which lock would prevent the given one. At the file's home.
    test_lock at home of ino: TestLock {
        /// Of which file.
        ino: Ino,
        /// What.
        wish: LockWish,
    } -> Option<HeldLock>;

    /// Which owners of the asked server's node that took locks of a file are no more: asked
    /// by its home when a lock of theirs is in somebody's way.
    dead_owners: DeadOwners {
        /// Of which file.
        ino: Ino,
    } -> Vec<LockOwner>;

    /// Drops all locks of owners of the asker's node that are no more. At a file's home.
    drop_locks: DropLocks {
        /// Of which file.
        ino: Ino,
        /// Whose.
        owners: Vec<LockOwner>,
    } -> ();

    /// The state of the asked server.
    status: Status {} -> ServerStatus;

    /// Ends the asked server.
    stop: Stop {} -> ServerStatus;

    /// The asker was killed and is back: what it had given or was given before is void.
    back: Back {} -> ();

    /// Something for the asked server, which it is to tell those `below` it too, each as if the
    /// asker had: what they answered together.
    relay: Relay {
        /// What.
        news: News,
        /// Whom else.
        below: Vec<Rank>,
    } -> Told;

    /// Begins a session anew: what of the asked server's files the asker holds, and whether it may
    /// write each. All else that it held, and its locks of names, are void. Which of the files
    /// were cut meanwhile, and to what size at least.
    begin: Begin {
        /// The files.
        held: Vec<(Ino, bool)>,
        /// Renames of lower numbers that the asker led have ended.
        renames_since: u64,
    } -> Vec<(Ino, u64)>;

    /// Nothing but a sign of life, which renews leases.
    renew: Renew {} -> ();
}

/// What is left of a rename whose leader has done what it can.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Left {
    /// Nothing: all steps were done, or none was begun.
    Nothing,
    /// Something, of which nothing is under way.
    Some,
    /// Something, and what the leader asked for last may still be under way.
    Unknown,
    /// The old name of a file is still to be taken, if nobody has had it until then.
    Later,
}

/// The purpose for which a server asks the placement of a directory.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum PlacementQuery {
    /// To look for a name, or to know whether it is the home of one that it has locked. Is
    /// answered at once.
    Look,
    /// The server that the asker took for the home is not: is answered once no split is under way.
    Refused,
    /// To make an entry: if there is none, the asker gets all.
    Make,
    /// The same, and the server that has all entries refused the new one: they are split.
    Split,
}

/// Where the entries of a directory are; see docs/design/0006-directories.md.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Placement {
    /// There are none.
    Unused,
    /// All at one server.
    At {
        /// The server.
        rank: Rank,
        /// That may change any moment.
        splitting: bool,
    },
    /// Each at the server that the hash of its name says, but for those that the first server keeps.
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
    pub name: Vec<u8>,
}

/// The name that a rename takes away, or exchanges.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Origin {
    /// Its home.
    pub home: Rank,
    /// The directory.
    pub dir: Ino,
    /// The name.
    pub name: Vec<u8>,
    /// What it names afterwards.
    pub then: Option<Child>,
}

/// What many servers may be told at a time.
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
    /// See [`Flush`].
    Flush(Flush),
    /// See [`Revoke`].
    Revoke(Revoke),
    /// See [`Laminated`].
    Laminated(Laminated),
    /// See [`Forget`].
    Forget(Forget),
    /// See [`DropEntry`].
    DropEntry(DropEntry),
}

/// What servers that were told something answered, together.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Told {
    /// To [`Seal`]: the sum.
    pub writers: u32,
    /// To [`Cut`]: up to where the file may reach.
    pub end: u64,
    /// The first error of one that was reached.
    pub failed: Option<FsError>,
    /// Who was not reached.
    pub lost: Vec<Rank>,
}

/// What [`Make`] makes.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum What {
    /// A regular file.
    File,
    /// A directory.
    Dir,
    /// A symbolic link to this.
    Symlink(Vec<u8>),
    /// A fifo or a socket.
    Special(FileType),
}

/// What [`Make`] made or found.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Made {
    /// What has the name.
    pub child: Child,
    /// Whether it is new.
    pub new: bool,
    /// Its attributes, if it is new or held.
    pub attr: Option<Attr>,
    /// It is new and raw, and the asker's node may write all of it: as [`Grant`].
    pub granted: bool,
}

/// A file that lost its last name by [`Unlink`], and that the asker holds: it is not told by a
/// [`Mark`].
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Unnamed {
    /// The file.
    pub ino: Ino,
    /// Nothing of it is stored, and nobody else holds it: no space is free when the asker lets go.
    pub empty: bool,
}

/// A server's part of a directory.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct PartOfDir {
    /// Entries there that are directories.
    pub dirs: u32,
    /// When an entry there came or went, ns since 1970.
    pub changed_ns: i64,
}

/// Bytes of a server's log.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct LogRange {
    /// The server.
    pub rank: u16,
    /// The slab.
    pub slab: u32,
    /// Where in it.
    pub pos: u64,
    /// How many bytes.
    pub len: u64,
}

/// Who holds a lock, as its node knows it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub enum LockOwner {
    /// A process.
    Client(u32),
    /// An open file description, in one life of its entry.
    Ofd {
        /// The entry.
        index: u32,
        /// Which life.
        generation: u32,
    },
}

/// What lock is asked for.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct LockWish {
    /// flock's locks of whole files, rather than fcntl's.
    pub whole: bool,
    /// Whose it is to be.
    pub owner: LockOwner,
    /// F_RDLCK, F_WRLCK or F_UNLCK.
    pub kind: u32,
    /// First byte.
    pub start: u64,
    /// Behind the last.
    pub end: u64,
}

/// Encodes a request.
pub fn request<O: PeerOperation>(op: O) -> Vec<u8> {
    let mut out = Vec::new();
    let request: Request = op.into();
    encode(&request, &mut out);
    out
}

/// Whether a reply says that the session has ended.
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
