//! The descriptor table, and the handles and files behind it.
//!
//! ```text
//! descriptor --> Handle (per open file description) --> Ofd (shared memory: offset, flags)
//!                                                   \-> File (per inode) -> Vnode (bytes)
//! ```
//!
//! A description that was inherited from a program at another server of this machine is in that
//! server's memory. The own server does not look there, so the handle also has an *anchor*: an
//! entry of the own table and a placeholder of it, as if this process had opened the file itself.
//!
//! Handles and files are never given back to the allocator: a reader that holds one a moment too
//! long (its descriptor was closed by another thread, which is a race of the program) meets an
//! unused or another file, never freed memory. They are reused in the order in which they became
//! free, so that this takes as long as possible. A free handle keeps its entry of the shared table,
//! so that opening needs no request for one.
//!
//! Lists are changed under the lock of the process; the table is read without it.

use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};

use rustix::io::Errno;
use weir_core::node::ofd::Ofd;
use weir_core::types::Ino;

use crate::data::Vnode;
use crate::internal::{InternalSlot, MAX_FDS};
use crate::kernel::{Fd, Slot};

/// Bit of [`Handle::access`]: reading is allowed.
pub const READ: u32 = 1;
/// Writing is allowed.
pub const WRITE: u32 = 2;
/// It is a directory.
pub const DIR: u32 = 4;
/// It was opened with O_PATH.
pub const PATH: u32 = 8;
/// It was inherited and cannot be used: its instance is another one, or is gone.
pub const GONE: u32 = 16;

/// An open file description, as this process knows it. One cache line.
#[derive(Debug, Default)]
#[repr(align(64))]
pub struct Handle {
    /// The shared part; it may be of another server.
    pub ofd: Slot<Ofd>,
    /// The entry of the own table, if it is of another server.
    pub anchor: Slot<Ofd>,
    /// The file, if it is a regular one.
    pub file: Slot<File>,
    /// The inode.
    pub ino: AtomicU64,
    /// See the constants of this module.
    pub access: AtomicU32,
    /// The index of its entry in the own table.
    pub index: AtomicU32,
    /// The placeholder of `anchor`.
    pub anchor_fd: InternalSlot,
    /// Descriptors of this process that refer to it.
    pub fds: AtomicU32,
    /// True if a lock was taken through this description.
    pub locked: AtomicBool,
    next: Slot<Handle>,
}

/// A file that this process has open.
#[derive(Debug, Default)]
pub struct File {
    /// Its bytes.
    pub vnode: Vnode,
    /// Handles that refer to it.
    pub handles: AtomicU32,
    /// True if this process took record locks of it, which end when it closes any descriptor of it.
    pub record_locks: AtomicBool,
    /// See [`super::Descriptors::write_life`].
    pub write_life: AtomicU32,
    next: Slot<File>,
}

impl Handle {
    /// The inode.
    #[inline]
    pub fn ino(&self) -> Ino {
        Ino(self.ino.load(Ordering::Relaxed))
    }

    /// Its entry in the own server's table.
    pub fn entry(&self) -> Option<&'static Ofd> {
        self.anchor.get().or_else(|| self.ofd.get())
    }

    /// True if the description is another server's.
    #[inline]
    pub fn is_elsewhere(&self) -> bool {
        self.anchor.get().is_some()
    }

    /// Fails with EIO if an assertion of ours failed in a call on the file, see [`crate::bugs`].
    pub fn intact(&self) -> Result<(), Errno> {
        self.file.get().map_or(Ok(()), |file| file.vnode.check())
    }

    /// True if all of `bits` are set.
    #[inline]
    pub fn has(&self, bits: u32) -> bool {
        self.access.load(Ordering::Relaxed) & bits == bits
    }
}

static TABLE: [Slot<Handle>; MAX_FDS] = [const { Slot::empty() }; MAX_FDS];

/// One more than the greatest descriptor that was ever weir's.
static HIGH: AtomicUsize = AtomicUsize::new(0);

/// The handle of the descriptor, if it is weir's.
#[inline]
pub fn get(fd: Fd) -> Option<&'static Handle> {
    #[allow(clippy::cast_sign_loss)] // a negative number is beyond the table
    TABLE.get(fd as usize)?.get()
}

/// Makes a descriptor refer to `handle`; returns its earlier handle.
pub fn set(fd: Fd, handle: Option<&'static Handle>) -> Option<&'static Handle> {
    #[allow(clippy::cast_sign_loss)] // a negative number is beyond every table
    let slot = TABLE.get(fd as usize)?;
    if handle.is_some() {
        #[allow(clippy::cast_sign_loss)] // a negative number is beyond every table
        HIGH.fetch_max(fd as usize + 1, Ordering::Relaxed);
    }
    slot.swap(handle)
}

/// All descriptors of weir's with their handles.
pub fn all() -> impl Iterator<Item = (Fd, &'static Handle)> {
    (0..)
        .zip(&TABLE[..HIGH.load(Ordering::Relaxed)])
        .filter_map(|(fd, slot)| Some((fd, slot.get()?)))
}

/// A queue of unused items, linked through themselves.
#[derive(Debug)]
pub struct UnusedQueue<T: Linked + 'static> {
    first: Slot<T>,
    last: Slot<T>,
}

/// An item of an [`UnusedQueue`].
pub trait Linked: Default {
    /// The link.
    fn next(&self) -> &Slot<Self>;
}

impl Linked for Handle {
    fn next(&self) -> &Slot<Handle> {
        &self.next
    }
}

impl Linked for File {
    fn next(&self) -> &Slot<File> {
        &self.next
    }
}

/// The number of items allocated at a time.
const CHUNK: usize = 32;

impl<T: Linked> UnusedQueue<T> {
    /// Empty.
    pub const fn new() -> UnusedQueue<T> {
        UnusedQueue {
            first: Slot::empty(),
            last: Slot::empty(),
        }
    }

    /// Puts one at the end.
    pub fn put(&self, item: &'static T) {
        item.next().set(None);
        match self.last.swap(Some(item)) {
            Some(last) => last.next().set(Some(item)),
            None => self.first.set(Some(item)),
        }
    }

    /// Takes the oldest.
    pub fn take_oldest(&self) -> Option<&'static T> {
        let item = self.first.get()?;
        let next = item.next().swap(None);
        self.first.set(next);
        if next.is_none() {
            self.last.set(None);
        }
        Some(item)
    }

    /// Takes one; makes new ones if it is empty.
    pub fn take_or_make(&self) -> &'static T {
        self.take_oldest().unwrap_or_else(|| {
            let chunk: Vec<T> = (0..CHUNK).map(|_| T::default()).collect();
            let (first, rest) = chunk.leak().split_first().expect("a chunk is not empty");
            for item in rest {
                self.put(item);
            }
            first
        })
    }

    /// All items of the queue.
    pub fn iter(&self) -> impl Iterator<Item = &'static T> {
        core::iter::successors(self.first.get(), |item| item.next().get())
    }
}

/// Files by inode.
#[derive(Debug)]
pub struct FilesByInode {
    buckets: [Slot<File>; BUCKETS],
    unused: UnusedQueue<File>,
}

const BUCKETS: usize = 256;

impl FilesByInode {
    /// None.
    pub const fn new() -> FilesByInode {
        FilesByInode {
            buckets: [const { Slot::empty() }; BUCKETS],
            unused: UnusedQueue::new(),
        }
    }

    fn bucket(&self, ino: Ino) -> &Slot<File> {
        &self.buckets[ino.index() as usize % BUCKETS]
    }

    /// Adds a reference to the file `ino`, which is made if it is not here.
    pub fn open(&self, ino: Ino) -> &'static File {
        let found = self.find(ino);
        let file = found.unwrap_or_else(|| {
            let file = self.unused.take_or_make();
            file.vnode.open(ino);
            file.record_locks.store(false, Ordering::Relaxed);
            file.write_life.store(0, Ordering::Relaxed);
            file.next.set(self.bucket(ino).get());
            self.bucket(ino).set(Some(file));
            file
        });
        file.handles.fetch_add(1, Ordering::Relaxed);
        file
    }

    /// The file `ino`, if it is open.
    pub fn find(&self, ino: Ino) -> Option<&'static File> {
        core::iter::successors(self.bucket(ino).get(), |file| file.next.get())
            .find(|file| file.vnode.ino() == ino)
    }

    /// Removes a reference; true if it was the last. Then the caller detaches the vnode and calls
    /// [`FilesByInode::retire`].
    pub fn close(&self, file: &'static File) -> bool {
        if file.handles.fetch_sub(1, Ordering::Relaxed) > 1 {
            return false;
        }
        let bucket = self.bucket(file.vnode.ino());
        let next = file.next.get();
        if bucket.get().is_some_and(|first| core::ptr::eq(first, file)) {
            bucket.set(next);
        } else {
            let before = core::iter::successors(bucket.get(), |f| f.next.get())
                .find(|f| f.next.get().is_some_and(|n| core::ptr::eq(n, file)));
            if let Some(before) = before {
                before.next.set(next);
            }
        }
        true
    }

    /// Lets the file be used for another inode.
    pub fn retire(&self, file: &'static File) {
        self.unused.put(file);
    }

    /// All open files.
    pub fn iter(&self) -> impl Iterator<Item = &'static File> + '_ {
        self.buckets
            .iter()
            .flat_map(|bucket| core::iter::successors(bucket.get(), |file| file.next.get()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use weir_core::types::Rank;

    #[test]
    fn what_became_free_first_is_used_first() {
        static QUEUE: UnusedQueue<Handle> = UnusedQueue::new();
        let first = QUEUE.take_or_make();
        QUEUE.put(first);
        assert_eq!(QUEUE.iter().count(), CHUNK);
        for _ in 1..CHUNK {
            let other = QUEUE.take_oldest().unwrap();
            assert!(!core::ptr::eq(other, first));
        }
        assert!(core::ptr::eq(QUEUE.take_oldest().unwrap(), first));
        assert!(QUEUE.take_oldest().is_none());
        QUEUE.put(first);
        assert!(core::ptr::eq(QUEUE.take_oldest().unwrap(), first));
    }

    #[test]
    fn a_file_is_one_as_long_as_it_is_open() {
        static FILES: FilesByInode = FilesByInode::new();
        let ino = |index: u32| Ino::new(Rank(0), 0, index);
        let bucket = u32::try_from(BUCKETS).unwrap();
        // Three that share a bucket, closed in the middle first.
        let all = [1, 1 + bucket, 1 + 2 * bucket].map(|i| FILES.open(ino(i)));
        assert!(core::ptr::eq(FILES.open(ino(1 + bucket)), all[1]));
        assert!(!FILES.close(all[1]));
        assert!(FILES.close(all[1]));
        FILES.retire(all[1]);
        assert!(FILES.find(ino(1 + bucket)).is_none());
        assert!(core::ptr::eq(FILES.find(ino(1)).unwrap(), all[0]));
        assert!(FILES.close(all[2]));
        assert!(FILES.close(all[0]));
        assert_eq!(FILES.iter().count(), 0);
    }

    #[test]
    fn numbers_beyond_the_table_are_not_ours() {
        static HANDLE: std::sync::OnceLock<Handle> = std::sync::OnceLock::new();
        let handle = HANDLE.get_or_init(Handle::default);
        assert!(get(-1).is_none() && get(i32::MAX).is_none());
        assert!(set(i32::MAX, Some(handle)).is_none());
        assert!(set(60_000, Some(handle)).is_none());
        assert!(all().any(|(fd, _)| fd == 60_000));
        assert!(set(60_000, None).is_some());
        assert!(get(60_000).is_none());
    }
}
