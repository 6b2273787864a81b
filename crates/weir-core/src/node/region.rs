//! The layout of the two regions that clients write.
//!
//! ```text
//! open:         Hub | Ofd x ofds | FileBlock x blocks | Cell x cells | KnownSlot x KNOWN_SLOTS
//! client-<id>:  ClientHeader | RecordSlot x RECORD_SLOTS | NoteSlot x NOTE_SLOTS | LandingSlot x LANDINGS | Channel x CHANNELS
//! ```
//!
//! Every part begins at a multiple of 4096. The files are sparse: unused parts cost nothing.

use crate::sync::{AtomicU32, AtomicU64, Ordering};
use core::mem::size_of;

use super::block::FileBlock;
use super::cell::Cell;
use super::channel::{Channel, CHANNELS};
use super::known::{KnownSlot, KNOWN_SLOTS};
use super::landing::{LandingSlot, LANDINGS};
use super::ofd::Ofd;
use super::ring::{NoteSlot, RecordSlot, RingEnds};
use super::tail::TailWords;
use crate::names::Attr;

/// Marks a region of weir's, and this version of its layout.
pub const MAGIC: u64 = 0x5745_4952_0000_000a;
/// Slots of a client's ring of records.
pub const RECORD_SLOTS: usize = 2048;
/// Slots of a client's ring of notes.
pub const NOTE_SLOTS: usize = 1024;
/// Clients that a server can have at a time.
pub const MAX_CLIENTS: usize = 4096;
/// The number of kernel mounts of one instance that a node can have, besides the programs.
pub const MAX_MOUNTS: usize = 64;

/// The head of the `open` region.
#[repr(C, align(64))]
#[derive(Debug)]
pub struct Hub {
    /// [`MAGIC`].
    pub magic: AtomicU64,
    /// The number of this start of the server.
    pub incarnation: AtomicU64,
    /// Entries of each table.
    pub ofds: AtomicU32,
    /// See `ofds`.
    pub blocks: AtomicU32,
    /// See `ofds`.
    pub cells: AtomicU32,
    /// 1 once the server has stopped: requests fail, nothing waits.
    pub stopped: AtomicU32,
    /// The server's rank, and the number of servers.
    pub rank: AtomicU32,
    /// See `rank`; 0 before the server has set it. Clients may not come before that.
    pub servers: AtomicU32,
    /// 1: reads are audited.
    pub audit: AtomicU32,
    /// The time within which one call of a program ends its requests to servers, in ms; 0: there is
    /// no other server.
    pub deadline_ms: AtomicU32,
    /// Changes whenever the knowledge of other servers' names may no longer hold: see
    /// [`super::known`].
    pub recalls: AtomicU64,
    /// The time, ns since 1970, until which the knowledge of other servers' files and directories,
    /// in these tables and at clients, is believed without asking the server, which may have been
    /// killed or stopped since; 0: no knowledge that can end is believed.
    pub believed_until_ns: AtomicU64,
    /// [`SLEEPS_HERE`] or [`SLEEPS_AT_BELL`] while the server sleeps (or is about to); a futex.
    pub server_sleeps: AtomicU32,
    /// The CPU that the server ran on last.
    pub server_cpu: AtomicU32,
    /// The instance's identity, by which servers of one instance know each other's memory; zeros
    /// if there is one server. Valid once `servers` is.
    pub instance: [AtomicU64; 2],
    /// Slots of the table of known names that have memory: all of them, or 0.
    pub known: AtomicU32,
    /// 1 once bytes may lie in the file tier. Until then a sync of an instance of one server has nothing
    /// to do, and clients do not ask for it.
    pub uses_files: AtomicU32,
    /// 1: programs may use io_uring, which bypasses weir.
    pub io_uring: AtomicU32,
    spare_line: [AtomicU64; 3],
    /// Bit c % 64 of word c / 64: client c has asked for something.
    pub doorbells: [AtomicU64; (MAX_CLIENTS + MAX_MOUNTS) / 64],
}

/// The server sleeps on the word itself.
pub const SLEEPS_HERE: u32 = 1;
/// The server waits for the sockets of other servers too: a byte to the named pipe [`BELL`] wakes
/// it.
pub const SLEEPS_AT_BELL: u32 = 2;
/// The named pipe beside the region.
pub const BELL: &str = "bell";

impl Hub {
    /// Sets the instance's identity.
    pub fn set_instance(&self, identity: [u8; 16]) {
        let (low, high) = identity.split_at(8);
        for (word, bytes) in self.instance.iter().zip([low, high]) {
            let bytes = <[u8; 8]>::try_from(bytes).unwrap_or_default();
            word.store(u64::from_le_bytes(bytes), Ordering::Relaxed);
        }
    }

    /// Returns true if this memory and `other` are of servers of one instance that has several.
    pub fn is_of_instance(&self, other: &Hub) -> bool {
        let identity = |hub: &Hub| {
            let servers = hub.servers.load(Ordering::Acquire);
            let words = [0, 1].map(|at: usize| hub.instance[at].load(Ordering::Relaxed));
            (servers, words)
        };
        let (servers, words) = identity(self);
        servers > 1 && words != [0, 0] && identity(other) == (servers, words)
    }

    /// Returns true if this server must be asked before knowledge of other servers is believed.
    #[inline]
    pub fn is_in_doubt(&self, now_ns: impl FnOnce() -> u64) -> bool {
        let until_ns = self.believed_until_ns.load(Ordering::SeqCst);
        until_ns != 0 && now_ns() > until_ns
    }

    /// The same for an inode: this server's own are never in doubt.
    #[inline]
    pub fn doubts(&self, attr: &Attr, now_ns: impl FnOnce() -> u64) -> bool {
        attr.home != attr.ino && self.is_in_doubt(now_ns)
    }

    /// Rings for client `id`; returns true if the server sleeps and must be woken.
    pub fn ring(&self, id: u32) -> bool {
        if let Some(word) = self.doorbells.get(id as usize / 64) {
            word.fetch_or(1 << (id % 64), Ordering::SeqCst);
        }
        self.server_sleeps.load(Ordering::SeqCst) != 0
    }
}

/// The head of a `client-<id>` region.
#[repr(C, align(64))]
#[derive(Debug)]
pub struct ClientHeader {
    /// [`MAGIC`].
    pub magic: AtomicU64,
    /// The client's number.
    pub id: AtomicU32,
    /// The client's process, as the server saw it.
    pub pid: AtomicU32,
    /// The rest of the segment that the client takes from.
    pub tail: TailWords,
    /// Bit c: there is a request in channel c, of [`CHANNELS`]; and [`super::channel::WIDEN`].
    pub asked: AtomicU64,
    /// Bumped by the server when a lock that this client waits for may be free; a futex.
    pub event: AtomicU32,
    /// The channels that may be used, as set by the server: `FIRST_CHANNEL`, `ALL_CHANNELS` or
    /// `NO_MORE_CHANNELS` of [`super::channel`]; a futex.
    pub channels: AtomicU32,
    /// 1: the client is a kernel mount. Written by the server, which reads it again when it is
    /// started anew.
    pub mount: AtomicU64,
    spare: [AtomicU64; 1],
    /// The counters of the ring of records.
    pub records: RingEnds,
    /// The counters of the ring of notes.
    pub notes: RingEnds,
    /// The client's counters, for the report; see [`Counter`].
    pub counters: [AtomicU64; COUNTERS],
    /// Calls refused, one counter for each name of [`REFUSALS`](super::region::REFUSAL_NAMES).
    pub refused: [AtomicU64; 64],
}

/// The number of [`Counter`]s that there is room for.
pub const COUNTERS: usize = 32;

/// Makes the counters and their names of the same lines.
macro_rules! counters {
    ($( $(#[$doc:meta])* $counter:ident = $name:literal, )*) => {
        /// The counters of a client.
        #[derive(Clone, Copy, PartialEq, Eq, Debug)]
        #[repr(usize)]
        pub enum Counter { $( $(#[$doc])* $counter, )* }

        /// The names of [`Counter`]s in reports, in their order.
        pub const COUNTER_NAMES: &[&str] = &[$( $name, )*];
    };
}

counters! {
    /// Bytes that write calls accepted.
    BytesWritten = "bytes_written",
    /// Bytes that read calls returned.
    BytesRead = "bytes_read",
    /// Opens of files and directories.
    Opens = "opens",
    /// Requests to the server.
    Requests = "requests",
    /// Extent records begun.
    Records = "records",
    /// Claims that conflicted with another writer's.
    Conflicts = "conflicts",
    /// The time for which writes waited for room, us.
    RoomWaitUs = "room_wait_us",
}

const _: () = assert!(COUNTER_NAMES.len() <= COUNTERS);

/// Calls that weir does not support (yet) and so refuses, by name. A call's position in this list
/// is its counter in [`ClientHeader::refused`].
pub const REFUSAL_NAMES: &[&str] = &[
    "mmap-shared-write",
    "mmap-shared-read",
    "xattr",
    "ioctl",
    "mknod",
    "inotify",
    "posix_spawn",
    "splice",
    "chroot",
    "name_to_handle",
    "fallocate-mode",
    "fcntl-lease",
    "lock-inherited",
    "other-instance",
    "fanotify",
    "io_uring",
    "libaio",
    "other-process",
    "mount",
    "other",
];

/// The directory, beside the regions, of the kernel's files for fifos and sockets of the instance:
/// each named by its inode's number, 16 hexadecimal digits.
pub const SPECIAL: &str = "special";

/// Returns the numbers of the bits that are set in a word of [`Hub::doorbells`] or
/// [`ClientHeader::asked`].
pub fn set_bits(mut word: u64) -> impl Iterator<Item = u32> {
    core::iter::from_fn(move || {
        let bit = (word != 0).then(|| word.trailing_zeros())?;
        word &= word - 1;
        Some(bit)
    })
}

/// Byte offsets of the parts of a region, and its size.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct OpenLayout {
    /// Offset of the OFD table.
    pub ofds: usize,
    /// Offset of the file blocks.
    pub blocks: usize,
    /// Offset of the cells.
    pub cells: usize,
    /// Offset of the table of known names.
    pub known: usize,
    /// Bytes in all.
    pub bytes: usize,
}

/// Byte offsets of the parts of a client's region, and its size.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ClientLayout {
    /// Offset of the ring of records.
    pub records: usize,
    /// Offset of the ring of notes.
    pub notes: usize,
    /// Offset of the slots of arriving bytes.
    pub landings: usize,
    /// Offset of the channels.
    pub channels: usize,
    /// Bytes up to the end of the first channel: enough for a client with one thread.
    pub first_bytes: usize,
    /// Bytes in all.
    pub bytes: usize,
}

/// Returns the layout of an `open` region with tables of these numbers of entries.
pub const fn open_layout(ofds: usize, blocks: usize, cells: usize) -> OpenLayout {
    let at_ofds = page(size_of::<Hub>());
    let at_blocks = page(at_ofds + ofds * size_of::<Ofd>());
    let at_cells = page(at_blocks + blocks * size_of::<FileBlock>());
    let at_known = page(at_cells + cells * size_of::<Cell>());
    OpenLayout {
        ofds: at_ofds,
        blocks: at_blocks,
        cells: at_cells,
        known: at_known,
        bytes: page(at_known + KNOWN_SLOTS * size_of::<KnownSlot>()),
    }
}

/// Returns the layout of a client's region.
pub const fn client_layout() -> ClientLayout {
    let records = page(size_of::<ClientHeader>());
    let notes = page(records + RECORD_SLOTS * size_of::<RecordSlot>());
    let landings = page(notes + NOTE_SLOTS * size_of::<NoteSlot>());
    let channels = page(landings + LANDINGS * size_of::<LandingSlot>());
    ClientLayout {
        records,
        notes,
        landings,
        channels,
        first_bytes: channels + size_of::<Channel>(),
        bytes: page(channels + CHANNELS * size_of::<Channel>()),
    }
}

const fn page(bytes: usize) -> usize {
    (bytes + 4095) & !4095
}

#[cfg(test)]
impl Hub {
    pub(crate) fn for_tests() -> Hub {
        Hub {
            magic: AtomicU64::default(),
            incarnation: AtomicU64::default(),
            ofds: AtomicU32::default(),
            blocks: AtomicU32::default(),
            cells: AtomicU32::default(),
            stopped: AtomicU32::default(),
            rank: AtomicU32::default(),
            servers: AtomicU32::default(),
            audit: AtomicU32::default(),
            deadline_ms: AtomicU32::default(),
            recalls: AtomicU64::default(),
            believed_until_ns: AtomicU64::default(),
            server_sleeps: AtomicU32::new(1),
            server_cpu: AtomicU32::default(),
            instance: Default::default(),
            known: AtomicU32::default(),
            uses_files: AtomicU32::default(),
            io_uring: AtomicU32::default(),
            spare_line: Default::default(),
            doorbells: [const { AtomicU64::new(0) }; (MAX_CLIENTS + MAX_MOUNTS) / 64],
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_records_have_the_sizes_that_the_format_draws() {
        assert_eq!(size_of::<Ofd>(), 64);
        assert_eq!(size_of::<FileBlock>(), 128);
        assert_eq!(size_of::<Cell>(), 384);
        assert_eq!((size_of::<Hub>(), size_of::<KnownSlot>()), (704, 128));
        assert_eq!(size_of::<RecordSlot>(), 64);
        assert_eq!(size_of::<NoteSlot>(), 16);
        assert!(REFUSAL_NAMES.len() <= 64);
    }

    #[test]
    fn servers_of_one_instance_have_one_identity() {
        let (one, two) = (Hub::for_tests(), Hub::for_tests());
        assert!(!one.is_of_instance(&two), "nothing is known yet");
        for hub in [&one, &two] {
            hub.servers.store(4, Ordering::Release);
        }
        assert!(!one.is_of_instance(&two), "no identity");
        one.set_instance([1; 16]);
        two.set_instance([1; 16]);
        assert!(one.is_of_instance(&two) && two.is_of_instance(&one));
        let mut other = [1; 16];
        other[15] = 2;
        two.set_instance(other);
        assert!(!one.is_of_instance(&two));
        two.set_instance([1; 16]);
        two.servers.store(3, Ordering::Release);
        assert!(!one.is_of_instance(&two));
    }

    #[test]
    fn ringing_sets_the_bit_of_the_client() {
        let hub = Hub::for_tests();
        assert!(hub.ring(65));
        assert!(hub.ring(1_000_000), "a mad number rings nothing");
        assert_eq!(hub.doorbells[1].load(Ordering::Relaxed), 2);
    }

    #[test]
    fn bits_are_numbered_from_the_lowest() {
        let bits: Vec<u32> = set_bits(1 | 1 << 5 | 1 << 63).collect();
        assert_eq!(bits, [0, 5, 63]);
        assert_eq!(set_bits(0).next(), None);
    }

    #[test]
    fn format_of_the_heads() {
        use crate::node::format::check_format;
        check_format!(Hub: magic incarnation ofds blocks cells stopped rank servers audit deadline_ms recalls believed_until_ns server_sleeps server_cpu instance known uses_files io_uring doorbells);
        check_format!(ClientHeader: magic id pid tail asked event channels mount records notes counters refused);
    }
}
