//! The operations that a client may ask of its server, each declared once.
//!
//! The table ([`table`]) makes of one line the message, its place in [`Request`], its dispatch
//! ([`perform`]) and its client stub ([`request`], [`reply`]). Messages are postcard (a compact,
//! documented serde format); the wire format is the order of the fields. They pass through a
//! client's channel ([`crate::node::channel`]) or, for control, in frames of a Unix socket. The
//! operations between servers are in [`peer`], the parts of messages in `parts`, the beginning of a
//! connection in `greeting`. Names and targets are bytes, as in POSIX.
//!
//! A reply is `Result<Reply, FsError>`: an operation either did everything that it describes, or
//! changed nothing.

pub mod audit;
pub mod beneath;
mod error;
mod greeting;
mod parts;
pub mod peer;
pub mod table;

use postcard::ser_flavors::Flavor;
use serde::{Deserialize, Serialize};

use crate::names::{Attr, FileType, Policy};
use crate::node::claim::Claim;
use crate::types::{ClientId, Ino};
use crate::xattr::SetFlags;
pub use error::FsError;
pub use greeting::{ClientKind, Hello, Role, Welcome, NO_CLIENT, NO_ROOM, PREFIX_LINK, SHM_LINK};
pub use parts::{
    Attached, ByteRange, Cause, Child, ContentVersion, CopyUse, Created, Entry, FsStat, HeldLock,
    HistoryPosition, Kept, Landing, Lent, Listing, Located, NameHistory, NameRemoval, PathInTree,
    RoomOutlook, RoomState, ServerStatus, SettledExtents, Tier, TierStatus, WriteState,
};
use table::{messages, operation, operations};
pub use table::{Caller, Control, FromCaller, Operation, OperationObject, Served};

/// The version of this protocol; both sides must have the same.
pub const VERSION: u32 = 19;

operations! {
    local {
        /// Checks that the server is alive.
        ping(Caller, Open): Ping {} -> ();

        /// Harvests the closed records of the caller's ring.
        harvest_ring(ClientId, Open): HarvestRing {} -> ();

        /// Lends the caller entries of the table of open file descriptions: the first of
        /// [`crate::node::ofd::BATCH`].
        ofd_batch(ClientId, Open): OfdBatch {} -> u32;

        /// Space and tables, for statvfs(3).
        statfs(Caller, Open): Statfs {} -> FsStat;

        /// From a kernel mount: tells whether the kernel keeps pages of a file, which programs of
        /// this node have mapped. Programs read and write the file through the mount as long as it
        /// does.
        set_mapped(ClientId, Open): SetMapped {
            /// The file, by its number in this node's table.
            ino: Ino,
            /// True if it does.
            mapped: bool,
        } -> ();

        /// Lets programs of another user be clients (for control): `NotSupported` where a directory of the
        /// server keeps no access control lists.
        admit(Control, Open): Admit {
            /// The user.
            uid: u32,
        } -> ();
    }

    home {
        /// The target of a symbolic link.
        readlink(Caller, Named): Readlink {
            /// The link.
            ino: Ino,
        } -> Vec<u8>;

        /// Makes a file read-only for good, everywhere, once no program has it open for writing;
        /// returns whether it is so now.
        laminate(Caller, Named): Laminate {
            /// The file.
            ino: Ino,
            /// The cause of the lamination.
            cause: Cause,
        } -> bool;

        /// Returns how far the writing of a file is, on all nodes. If it is written, all nodes see its
        /// bytes.
        get_write_state(Caller, Named): GetWriteState {
            /// The file.
            ino: Ino,
        } -> WriteState;

        /// Frees the storage of a file of an elevated tree whose bytes are on the parallel file system: its
        /// link in [`crate::elevated::EVICTED`] says where. False: it is not the version that is named, or a
        /// program has it open for writing, or another node has it open; then nothing was done.
        evict(Caller, Named): Evict {
            /// The file.
            ino: Ino,
            /// The version that is on the parallel file system.
            version: ContentVersion,
        } -> bool;

        /// Returns the part of a file that is on the parallel file system alone.
        get_copy_use(Caller, Named): GetCopyUse {
            /// The file.
            ino: Ino,
        } -> CopyUse;

        /// Has all that was written to a file be in extents of its own: what programs write from now on is in
        /// others. `None`: ranges of it cannot be evicted now.
        settle_extents(Caller, Named): SettleExtents {
            /// The file.
            ino: Ino,
        } -> Option<SettledExtents>;

        /// Frees the storage of ranges of a file that the parallel file system has: its link in
        /// [`crate::elevated::EVICTED`] says where. Ranges that have holes, or that were written since the
        /// extents were settled, stay; so do all, if another request has settled them since, or if programs began or
        /// ended writing. Returns the number of bytes freed.
        evict_ranges(Caller, Named): EvictRanges {
            /// The file.
            ino: Ino,
            /// The moment before their bytes were copied.
            settled: SettledExtents,
            /// The ranges, at most [`MOST_RANGES`].
            ranges: Vec<ByteRange>,
        } -> u64;

        /// Prepares an evicted file for being written: its extents say from now on that its bytes are those of its
        /// copy.
        begin_update(Caller, Named): BeginUpdate {
            /// The file.
            ino: Ino,
        } -> ();
    }
    shared {
        /// Creates a regular file, or finds it if `exclusive` is not set and it exists
        /// (also as another kind of file: the caller looks). With `attach` a new file is
        /// attached for writing at once.
        create(Caller, Named): Create {
            /// The directory.
            parent: Ino,
            /// The new name.
            #[serde(with = "serde_bytes")]
            name: Vec<u8>,
            /// Permission bits.
            mode: u32,
            /// Owner.
            uid: u32,
            /// Group.
            gid: u32,
            /// Refuse if the name is taken.
            exclusive: bool,
            /// Attach the new file for writing.
            attach: bool,
        } -> Created;

        /// Creates a regular file without a name (`O_TMPFILE`), attached for writing. It exists as
        /// long as a program has it open.
        create_unnamed(ClientId, Named): CreateUnnamed {
            /// The directory whose policy and, if it is set-group-id, group the file takes over.
            dir: Ino,
            /// Permission bits.
            mode: u32,
            /// Owner.
            uid: u32,
            /// Group.
            gid: u32,
            /// [`Link`] may give it a name, once.
            linkable: bool,
        } -> Created;

        /// Makes a directory.
        mkdir(Caller, Named): Mkdir {
            /// The directory to make it in.
            parent: Ino,
            /// The new name.
            #[serde(with = "serde_bytes")]
            name: Vec<u8>,
            /// Permission bits.
            mode: u32,
            /// Owner.
            uid: u32,
            /// Group.
            gid: u32,
        } -> Ino;

        /// Makes a symbolic link.
        symlink(Caller, Named): Symlink {
            /// The directory to make it in.
            parent: Ino,
            /// The new name.
            #[serde(with = "serde_bytes")]
            name: Vec<u8>,
            /// Its target, 1 to 4095 bytes.
            #[serde(with = "serde_bytes")]
            target: Vec<u8>,
            /// Owner.
            uid: u32,
            /// Group.
            gid: u32,
        } -> Ino;

        /// Makes a fifo or a socket: its name and attributes. The kernel of each node keeps the
        /// data.
        make_special(Caller, Named): MakeSpecial {
            /// The directory to make it in.
            parent: Ino,
            /// The new name.
            #[serde(with = "serde_bytes")]
            name: Vec<u8>,
            /// The type: fifo or socket.
            kind: FileType,
            /// Permission bits.
            mode: u32,
            /// Owner.
            uid: u32,
            /// Group.
            gid: u32,
        } -> Ino;

        /// Gives a file one more name.
        link(Caller, Named): Link {
            /// The file; not a directory.
            ino: Ino,
            /// The directory of the new name.
            parent: Ino,
            /// The new name.
            #[serde(with = "serde_bytes")]
            name: Vec<u8>,
        } -> ();

        /// Removes a name of a file that is no directory.
        unlink(Caller, Named): Unlink {
            /// The directory.
            parent: Ino,
            /// The name.
            #[serde(with = "serde_bytes")]
            name: Vec<u8>,
        } -> ();

        /// Removes an empty directory.
        rmdir(Caller, Named): Rmdir {
            /// The directory it is in.
            parent: Ino,
            /// Its name.
            #[serde(with = "serde_bytes")]
            name: Vec<u8>,
        } -> ();

        /// Renames, as renameat2(2); flags are RENAME_NOREPLACE (1) or RENAME_EXCHANGE (2).
        rename(Caller, Named): Rename {
            /// The directory of the old name.
            parent: Ino,
            /// The old name.
            #[serde(with = "serde_bytes")]
            name: Vec<u8>,
            /// The directory of the new name.
            new_parent: Ino,
            /// The new name.
            #[serde(with = "serde_bytes")]
            new_name: Vec<u8>,
            /// 0, 1 or 2.
            flags: u32,
        } -> ();

        /// Sets attributes; those that are `None` stay.
        set_attr(Caller, Named): SetAttr {
            /// The file.
            ino: Ino,
            /// Permission bits.
            mode: Option<u32>,
            /// Owner.
            uid: Option<u32>,
            /// Group.
            gid: Option<u32>,
            /// Access time, ns since 1970.
            atime_ns: Option<i64>,
            /// Modification time, ns since 1970.
            mtime_ns: Option<i64>,
            /// The sharing between nodes, of the file or of the files made in it.
            policy: Option<Policy>,
        } -> ();

        /// Returns the value of an extended attribute.
        get_xattr(Caller, Named): GetXattr {
            /// The inode.
            ino: Ino,
            /// The attribute.
            #[serde(with = "serde_bytes")]
            name: Vec<u8>,
        } -> Vec<u8>;

        /// Returns the names of all extended attributes, a NUL behind each.
        list_xattrs(Caller, Named): ListXattrs {
            /// The inode.
            ino: Ino,
        } -> Vec<u8>;

        /// Sets an extended attribute. A value that is longer than a request comes in parts of at
        /// most [`XATTR_PART_BYTES`], one behind the other; the last one sets it.
        set_xattr(Caller, Named): SetXattr {
            /// The inode.
            ino: Ino,
            /// The attribute.
            #[serde(with = "serde_bytes")]
            name: Vec<u8>,
            /// This part of the value.
            part: Vec<u8>,
            /// Bytes of the value before it.
            before: u32,
            /// Bytes of the value behind it.
            after: u32,
            /// The number of the caller's call: no other one under way has it.
            call: u64,
            /// The conditions on its existence.
            flags: SetFlags,
        } -> ();

        /// Removes an extended attribute.
        remove_xattr(Caller, Named): RemoveXattr {
            /// The inode.
            ino: Ino,
            /// The attribute.
            #[serde(with = "serde_bytes")]
            name: Vec<u8>,
        } -> ();

        /// Returns once there may be room for a write to an elevated tree that found none, or after some
        /// time. `NoSpace`: nothing makes room.
        await_room(ClientId, Open): AwaitRoom {
            /// The file.
            ino: Ino,
            /// The time for which this write has waited, ms.
            waited_ms: u64,
        } -> ();

        /// From the process that moves an elevated tree: tells a server whether room can be made, and
        /// returns how much there is.
        report_relief(Caller, Open): ReportRelief {
            /// The rank of the server.
            rank: u16,
            /// The number of the tree.
            tree: u16,
            /// The outlook.
            outlook: RoomOutlook,
            /// The time since the look at the tree began on which the outlook is based, ms.
            age_ms: u64,
            /// The longest time for which the reply waits until a write waits for room, ms. The caller's own
            /// server alone does that.
            wait_ms: u32,
        } -> RoomState;

        /// Returns what a server has renamed and removed, for a process that walks the tree.
        get_name_history(Caller, Open): GetNameHistory {
            /// The rank of the server.
            rank: u16,
            /// The last changes that the caller knows.
            since: HistoryPosition,
        } -> NameHistory;

        /// Sets the size: cuts, or extends with zeros. `Evicted`: a file that was evicted, to another size
        /// than 0.
        truncate(Caller, Named): Truncate {
            /// The file.
            ino: Ino,
            /// The new size, bytes.
            size: u64,
        } -> ();

        /// Makes `[offset, offset + length)` a hole (fallocate's PUNCH_HOLE and
        /// ZERO_RANGE), or only extends the size to its end.
        allocate(Caller, Open): Allocate {
            /// The file.
            ino: Ino,
            /// First byte.
            offset: u64,
            /// Bytes.
            length: u64,
            /// True if the range becomes zeros.
            zero: bool,
            /// True if the size stays.
            keep_size: bool,
        } -> ();

        /// Returns entries of a directory after `cookie` (0: from the beginning), without "." and
        /// "..", as many as fit `budget_bytes` of names and 24 bytes an entry.
        readdir(Caller, Named): Readdir {
            /// The directory.
            ino: Ino,
            /// The cookie of the last entry seen.
            cookie: u64,
            /// The last cookie that is listed, as an earlier reply of the same listing says it; 0: that of the
            /// last entry that is there now. `None`: all, so that a file which is renamed meanwhile is met under
            /// one of its names; while programs make files, such a listing may not end.
            until: Option<u64>,
            /// The approximate length limit of the reply.
            budget_bytes: u32,
        } -> Listing;

        /// Attaches the caller for writing to a file.
        attach(ClientId, Open): Attach {
            /// The file.
            ino: Ino,
        } -> Attached;

        /// Returns the offset for the next `length` bytes of an append to a file that several nodes
        /// write.
        append(ClientId, Open): Append {
            /// The file, by its number in this node's table.
            ino: Ino,
            /// Bytes.
            length: u64,
            /// The range that the caller has reserved on this node, if it has.
            reserved: Option<u64>,
        } -> u64;

        /// Lends the caller a segment of at least `min_bytes`, if possible `want_bytes`.
        segment(ClientId, Open): Segment {
            /// The least that is of use.
            min_bytes: u64,
            /// The most that is of use.
            want_bytes: u64,
        } -> Lent;

        /// Returns the location of the bytes of `[offset, offset + length)`, and of as much of the
        /// file around them as is cheap.
        locate(Caller, Open): Locate {
            /// The file.
            ino: Ino,
            /// First byte.
            offset: u64,
            /// Bytes.
            length: u64,
        } -> Located;

        /// Makes a file's written bytes as durable as their tier allows: the reply names the
        /// file-tier slabs, which the caller syncs.
        sync(Caller, Open): Sync {
            /// The file.
            ino: Ino,
        } -> Vec<u32>;

        /// Lets this node write bytes of a raw file until another node wants them. The reply is a claim
        /// that contains `needed`, and perhaps more than `wished`. It holds for a write that begins
        /// after the call, and as long as [`crate::node::block::FileBlock::revocations`] is what it
        /// was before the call. If that has changed, the writer asks again once its bytes are in place.
        token(ClientId, Open): Token {
            /// The file, by its number in this node's table.
            ino: Ino,
            /// The bytes that are written now.
            needed: Claim,
            /// The bytes that will be written, as far as can be guessed.
            wished: Claim,
        } -> Claim;

        /// Takes, changes or drops a BSD lock (flock): operation is LOCK_SH (1), LOCK_EX
        /// (2) or LOCK_UN (8). If it is held by others: `WouldBlock`, and with `wait` the
        /// caller's channel event is bumped when it may be free.
        flock(ClientId, Open): Flock {
            /// The file.
            ino: Ino,
            /// The open file description that owns the lock.
            ofd: u32,
            /// The operation: see above.
            operation: u32,
            /// True if the caller will wait.
            wait: bool,
        } -> ();

        /// Takes, changes or drops a record lock (fcntl); as [`Flock`].
        record_lock(ClientId, Open): RecordLock {
            /// The file.
            ino: Ino,
            /// The open file description that owns it (F_OFD_SETLK), or the process.
            ofd: Option<u32>,
            /// F_RDLCK (0), F_WRLCK (1) or F_UNLCK (2).
            kind: u32,
            /// First byte.
            start: u64,
            /// Byte behind the last; `u64::MAX`: to the end of the file.
            end: u64,
            /// True if the caller will wait.
            wait: bool,
        } -> ();

        /// Returns the lock that would prevent the given one (F_GETLK).
        test_lock(ClientId, Open): TestLock {
            /// The file.
            ino: Ino,
            /// As in [`RecordLock`].
            ofd: Option<u32>,
            /// F_RDLCK or F_WRLCK.
            kind: u32,
            /// First byte.
            start: u64,
            /// Byte behind the last.
            end: u64,
        } -> Option<HeldLock>;

        /// Returns the inode that a name of a directory names. (With several servers only: a client
        /// of one server looks into the shared tables. The same holds for the following
        /// operations.)
        find(Caller, Named): Find {
            /// The directory.
            dir: Ino,
            /// The name.
            #[serde(with = "serde_bytes")]
            name: Vec<u8>,
        } -> Option<Child>;

        /// Returns the attributes of an inode, with the changes by this node's writers.
        get_attr(Caller, Named): GetAttr {
            /// The inode, by its number in this node's table or its own.
            ino: Ino,
        } -> Attr;

        /// Returns the attributes of a directory that a path walk needs: its kind, mode and owner.
        /// Its times, size, number of links and parent are not valid.
        passage(Caller, Named): Passage {
            /// The directory, by its number in this node's table or its own.
            ino: Ino,
        } -> Attr;

        /// The path of a directory from the root of its tree; "/" for a root.
        path_of(Caller, Named): PathOf {
            /// The directory.
            ino: Ino,
        } -> PathInTree;

        /// Prepares a file for being open at this node: its attributes, with the number that
        /// it has in this node's table (`ino`).
        hold(Caller, Named): Hold {
            /// The file.
            ino: Ino,
            /// True if it may be written.
            write: bool,
        } -> Attr;

        /// Brings a file's stand-in up to date, and keeps it so until another node writes.
        lease(Caller, Named): Lease {
            /// The file, by its number in this node's table.
            ino: Ino,
        } -> ();

        /// Requests bytes of other servers' logs; they arrive asynchronously. Each read goes to its
        /// own position in the node's pool, and a slot of the caller
        /// ([`crate::node::landing::LandingSlot`]) shows its progress. The server starts as many of
        /// the reads as there is room for, from the first one on, and at least that; of reads ahead
        /// of a reader it may start none.
        fetch(ClientId, Open): Fetch {
            /// The file that they belong to. If it is laminated, they are kept for others of the
            /// node.
            ino: Ino,
            /// The reads, each of one server, of at most [`FETCH_BYTES`].
            reads: Vec<Vec<peer::LogRange>>,
            /// No reader waits for them yet: they get room only while there is plenty.
            ahead: bool,
        } -> Vec<Landing>;

        /// Makes this node's writes to a file visible to the others, and durable as [`Sync`] does.
        publish(Caller, Open): Publish {
            /// The file.
            ino: Ino,
        } -> ();

        /// Checks, before a read, if other nodes wrote these bytes and did not make them known. The
        /// report shows the findings.
        audit(ClientId, Open): Audit {
            /// The file, by its number in this node's table.
            ino: Ino,
            /// First byte.
            offset: u64,
            /// Bytes.
            length: u64,
        } -> ();

        /// The state of the server, for `weir status` and the report.
        status(Caller, Open): Status {} -> ServerStatus;

        /// Looks up an absolute path below the mount, component by component, following no
        /// links (for control; clients walk the shared tables).
        lookup(Caller, Open): Lookup {
            /// The path's components below the root.
            components: Vec<Vec<u8>>,
        } -> Entry;

        /// Ends the instance: the reply is sent, then the server stops.
        stop(Control, Open): Stop {} -> ServerStatus;
    }
}

/// The most bytes of one part of a [`SetXattr`].
pub const XATTR_PART_BYTES: usize = 7 << 10;
/// The most bytes of one read of a [`Fetch`].
pub const FETCH_BYTES: u64 = 1 << 20;
/// The most pieces of all reads of a [`Fetch`]: as many as fit a request.
pub const FETCH_PIECES: usize = 400;
/// The most ranges of an [`EvictRanges`], which fits a channel.
pub const MOST_RANGES: usize = 256;

/// Encodes a request.
pub fn request<O: Operation>(op: O, out: &mut Vec<u8>) {
    let request: Request = op.into();
    encode(&request, out);
}

/// Decodes the reply to an operation of kind `O`.
pub fn reply<O: Operation>(bytes: &[u8]) -> Result<O::Reply, FsError> {
    postcard::from_bytes(bytes).unwrap_or(Err(FsError::Malformed))
}

/// Appends a message in postcard.
pub fn encode<T: Serialize>(message: &T, out: &mut Vec<u8>) {
    // Only a sequence of unknown length cannot be encoded, and no message has one.
    if let Err(error) = postcard::serialize_with_flavor(message, Appending(out)) {
        unreachable!("a message that cannot be encoded: {error}");
    }
}

/// Appends encoded bytes to a buffer that the caller keeps; postcard's own flavors move theirs in
/// and out, which costs as much as a short message.
struct Appending<'a>(&'a mut Vec<u8>);

impl Flavor for Appending<'_> {
    type Output = ();

    fn try_extend(&mut self, bytes: &[u8]) -> postcard::Result<()> {
        self.0.extend_from_slice(bytes);
        Ok(())
    }

    fn try_push(&mut self, byte: u8) -> postcard::Result<()> {
        self.0.push(byte);
        Ok(())
    }

    fn finalize(self) -> postcard::Result<()> {
        Ok(())
    }
}

/// Returns the reply to a refused request of any kind.
pub fn refusal(error: FsError) -> Vec<u8> {
    encoded(&Err::<(), _>(error))
}

fn encoded<T: Serialize>(reply: &Result<T, FsError>) -> Vec<u8> {
    encoded_in(Vec::new(), reply)
}

fn encoded_in<T: Serialize>(mut out: Vec<u8>, reply: &Result<T, FsError>) -> Vec<u8> {
    encode(reply, &mut out);
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_request_survives_the_wire() {
        let op = Create {
            parent: Ino(1),
            name: b"a\xff\0".to_vec(),
            mode: 0o644,
            uid: 1,
            gid: 2,
            exclusive: true,
            attach: false,
        };
        let mut bytes = Vec::new();
        request(op.clone(), &mut bytes);
        assert_eq!(
            postcard::from_bytes::<Request>(&bytes).unwrap(),
            Request::Create(op)
        );
    }

    /// `serde_bytes` copies a name at once, where serde visits each byte; the bytes of a message are the same.
    #[test]
    fn names_look_like_other_lists_of_bytes() {
        let name = b"a\xff\0".to_vec();
        let op = Find {
            dir: Ino(1),
            name: name.clone(),
        };
        assert_eq!(
            postcard::to_allocvec(&op),
            postcard::to_allocvec(&(Ino(1), name))
        );
    }

    /// The types of fields are known by their names alone: a change of what is in `parts` passes.
    #[test]
    fn changed_operations_have_another_version() {
        let declared: String = DECLARATIONS.split_whitespace().collect();
        assert_eq!(
            (VERSION, crc32c::crc32c(declared.as_bytes())),
            (19, 1_956_743_717),
            "the operations have changed: raise VERSION, and put both numbers here"
        );
    }

    #[test]
    fn a_reply_or_an_error_comes_back() {
        for said in [Ok(64), Err(FsError::NoSpace)] {
            assert_eq!(reply::<OfdBatch>(&encoded(&said)), said);
        }
    }

    proptest! {
        #[test]
        fn garbage_is_refused_or_means_what_it_means_when_sent_again(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            if let Ok(request) = postcard::from_bytes::<Request>(&bytes) {
                let mut again = Vec::new();
                encode(&request, &mut again);
                prop_assert!(again.len() <= bytes.len(), "bytes that did not come");
                prop_assert_eq!(postcard::from_bytes::<Request>(&again), Ok(request));
            }
            let status = reply::<Status>(&bytes);
            prop_assert_eq!(reply::<Status>(&encoded(&status)), status);
            let located = reply::<Locate>(&bytes);
            prop_assert_eq!(reply::<Locate>(&encoded(&located)), located);
        }
    }
}
