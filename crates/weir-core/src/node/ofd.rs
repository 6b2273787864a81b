//! The table of open file descriptions, shared by the processes of a node.
//!
//! POSIX's open file description (offset and status flags) outlives the process that
//! opened it: duplicates, forked children and executed programs share it. So it lives
//! in shared memory; the *kernel's* description behind the real descriptor (a
//! directory of the instance, opened as a placeholder, which refuses raw reads and
//! writes) carries its index in its file offset, where it survives fork, exec and
//! passing over sockets.
//!
//! The server lends entries in batches ([`BATCH`]); a client opens and closes them with no message.
//! Before a description is shared with another process (fork, exec, spawn) the client sets
//! [`Ofd::SHARED`] and takes a lock of the kernel, F_OFD_SETLK on byte [`lock_byte`] of the
//! placeholder, which lasts exactly as long as the kernel's description: so the server can ask the
//! kernel if any process still has it, in whatever order processes were killed.

use crate::sync::{AtomicU32, AtomicU64, Ordering};

/// The number of entries that the server lends at a time.
pub const BATCH: u32 = 64;

/// One open file description. One cache line.
#[repr(C, align(64))]
#[derive(Debug, Default)]
pub struct Ofd {
    /// The inode; 0: free.
    pub ino: AtomicU64,
    /// The file offset, in bytes; of a directory, the cookie of the next entry.
    pub offset: AtomicU64,
    /// Access mode and status flags, as open(2) takes them.
    pub flags: AtomicU32,
    /// See the constants of [`Ofd`].
    pub state: AtomicU32,
    /// The client that holds the entry (server).
    pub owner: AtomicU32,
    /// The life of the entry: bumped when it is freed.
    pub generation: AtomicU32,
    /// Of a directory: the last cookie that the listing has (`proto::Listing`); 0: it is not known yet.
    pub listed_until: AtomicU64,
    spare: [AtomicU64; 3],
}

impl Ofd {
    /// Bit of `state`: more than one process may hold it.
    pub const SHARED: u32 = 1;
    /// Bit of `state`: the kernel holds the lock that shows if any process holds the description.
    pub const LOCKED: u32 = 2;
    /// Both: it is marked, and lives as long as a process holds it.
    pub const BOTH: u32 = Self::SHARED | Self::LOCKED;

    /// Takes the entry for an open of `ino`.
    pub fn open(&self, ino: u64, flags: u32) {
        self.offset.store(0, Ordering::Relaxed);
        self.flags.store(flags, Ordering::Relaxed);
        self.state.store(0, Ordering::Relaxed);
        self.listed_until.store(0, Ordering::Relaxed);
        self.ino.store(ino, Ordering::SeqCst);
    }

    /// Frees the entry.
    pub fn close(&self) {
        self.state.store(0, Ordering::Relaxed);
        self.generation.fetch_add(1, Ordering::Relaxed);
        self.ino.store(0, Ordering::Release);
    }

    /// Returns the inode of a marked description. The inode is looked at first: marks of an earlier life of the
    /// entry are gone when a later one shows.
    pub fn marked_inode(&self) -> Option<u64> {
        let ino = self.ino.load(Ordering::Acquire);
        let state = self.state.load(Ordering::Acquire);
        (ino != 0 && state & Self::BOTH == Self::BOTH).then_some(ino)
    }

    /// Returns true if more than one process may hold it.
    pub fn is_shared(&self) -> bool {
        self.state.load(Ordering::Acquire) & Self::SHARED != 0
    }
}

/// Returns the byte of the placeholder whose lock shows that description `index` is alive. Far from
/// any byte that an application would lock.
pub const fn lock_byte(index: u32) -> u64 {
    (1 << 60) + index as u64
}

/// Returns the file offset that a placeholder carries for description `index`: never 0, so that it
/// differs from that of an unmarked placeholder.
pub const fn placeholder_offset(index: u32) -> u64 {
    index as u64 + 1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn format_of_a_description() {
        use crate::node::format::check_format;
        check_format!(Ofd: ino offset flags state owner generation listed_until);
    }
}
