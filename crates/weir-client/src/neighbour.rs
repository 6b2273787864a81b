//! The memory of another server of this machine, from which a program inherited an open file or
//! its current directory.
//!
//! ```text
//! MEMORY/NAME/open, names       this process's server
//! MEMORY/NAME.2/open, names     a neighbour: same user, same instance
//! ```
//!
//! Its open file descriptions are used in place, so that offset and flags stay shared by all
//! processes that have the description. The instance-wide number of an inode is read in its tables.
//! Nothing else of it is touched, and its server gets no requests.
//!
//! The memory is found by a descriptor or a directory that came from outside of the process, so
//! nothing is believed before [`Neighbour::map`] has seen that only the instance's user has access
//! to the directory and that the memory has the instance's identity. It stays mapped until the
//! process ends, across fork.

use core::sync::atomic::Ordering;

use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::fs::{Mode, OFlags, Stat};
use rustix::io::Errno;
use rustix::path::Arg;
use weir_core::names::{FileType, NamesView};
use weir_core::node::ofd::Ofd;
use weir_core::node::region::{open_layout, Hub, MAGIC};
use weir_core::types::{Ino, Rank};
use weir_store::map::{open_shared, Access, Mapping};

use crate::kernel::Slot;
use crate::node::{broken, names_of, Node};

/// The part of the magic number that is the same in all versions.
const ANY_VERSION: u64 = !0xFFFF_FFFF;
/// Bits of a mode that let others than the owner in.
const FOR_OTHERS: u32 = 0o067;

/// The memory of another server of this machine.
pub struct Neighbour {
    /// The directory of its memory.
    place: KernelIdentity,
    hub: &'static Hub,
    rank: Rank,
    ofds: &'static [Ofd],
    names: NamesView<'static>,
    next: Slot<Neighbour>,
}

/// An open file description of a neighbour.
#[derive(Clone, Copy, Debug)]
pub struct Description {
    /// Its offset and flags.
    pub ofd: &'static Ofd,
    /// The inode's instance-wide number.
    pub ino: Ino,
    /// The inode's type; `None`: the inode is another server's, which knows its type.
    pub kind: Option<FileType>,
}

/// Identifies a file to the kernel: device and inode.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct KernelIdentity(u64, u64);

impl KernelIdentity {
    /// The identity of a file, from its attributes.
    #[allow(clippy::unnecessary_cast)] // other widths on other architectures
    pub fn from_stat(stat: &Stat) -> KernelIdentity {
        KernelIdentity(stat.st_dev as u64, stat.st_ino as u64)
    }

    /// Device and inode.
    pub fn parts(self) -> [u64; 2] {
        [self.0, self.1]
    }

    /// From device and inode.
    pub fn from_parts([device, inode]: [u64; 2]) -> KernelIdentity {
        KernelIdentity(device, inode)
    }
}

/// All neighbours that this process has met.
#[derive(Debug)]
pub struct Neighbours(Slot<Neighbour>);

impl core::fmt::Debug for Neighbour {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        let mut fields = f.debug_struct("Neighbour");
        fields.field("rank", &self.rank).finish_non_exhaustive()
    }
}

impl Neighbours {
    /// An empty list.
    pub const fn new() -> Neighbours {
        Neighbours(Slot::empty())
    }

    /// Returns the neighbour whose memory is in `dir`; maps it if need be. EPROTO: `dir` is not of
    /// a server of the same instance as `node`; ESHUTDOWN: that server has stopped. One caller at a
    /// time.
    pub fn at(&self, dir: BorrowedFd<'_>, node: &Node) -> Result<&'static Neighbour, Errno> {
        let place = KernelIdentity::from_stat(&rustix::fs::fstat(dir)?);
        let known = core::iter::successors(self.0.get(), |known| known.next.get())
            // A server that was started again has new memory, in the same directory.
            .find(|known| known.place == place && !is_stopped(known.hub));
        if let Some(known) = known {
            return Ok(known);
        }
        let new = Neighbour::map(dir, place, node)?;
        new.next.set(self.0.get());
        let new: &'static Neighbour = Box::leak(Box::new(new));
        self.0.set(Some(new));
        Ok(new)
    }
}

impl Neighbour {
    fn map(dir: BorrowedFd<'_>, place: KernelIdentity, node: &Node) -> Result<Neighbour, Errno> {
        check_owner(dir, node)?;
        let open = open_shared(dir, "open", Access::ReadWrite).map_err(|e| e.errno())?;
        let head = Mapping::new(&open, size_of::<Hub>()).map_err(broken)?;
        let hub: &Hub = &head.slice(0, 1).map_err(broken)?[0];
        check_kinship(hub, node.hub())?;
        // Only the memory of a server that passed the checks is mapped for good.
        let ofds = hub.ofds.load(Ordering::Relaxed) as usize;
        let layout = open_layout(ofds, 0, 0);
        let open = Mapping::new(&open, layout.bytes).map_err(broken)?;
        let names = open_shared(dir, "names", Access::ReadOnly).map_err(|e| e.errno())?;
        let names = names_of(&names)?;
        let rank = names.root().rank();
        if u32::from(rank.0) != hub.rank.load(Ordering::Relaxed) {
            return Err(Errno::PROTO);
        }
        let open = open.leak();
        Ok(Neighbour {
            place,
            hub: open.record(0).map_err(broken)?,
            rank,
            ofds: open.slice(layout.ofds, ofds).map_err(broken)?,
            names,
            next: Slot::empty(),
        })
    }

    /// Its open file description `index`, which must be one that several processes may have: then
    /// it lives as long as the descriptor that led to it. EIO: there is none.
    pub fn description(&self, index: u32) -> Result<Description, Errno> {
        let ofd = self.ofds.get(index as usize).ok_or(Errno::IO)?;
        let ino = Ino(ofd.marked_inode().ok_or(Errno::IO)?);
        if ino.rank() != self.rank {
            let kind = None;
            return Ok(Description { ofd, ino, kind });
        }
        // If its server is just changing it, that is soon over.
        let attr = (0..TRIES).find_map(|_| self.names.attr(ino).ok());
        let attr = attr.flatten().ok_or(Errno::IO)?;
        Ok(Description {
            ofd,
            ino: attr.home,
            kind: Some(attr.file_type()),
        })
    }
}

/// The number of looks at a table that is being changed: each look itself waits for a while.
const TRIES: u32 = 1000;

/// Fails unless only the user of this process's own server has access to `dir`.
fn check_owner(dir: BorrowedFd<'_>, node: &Node) -> Result<(), Errno> {
    let (own, other) = (rustix::fs::stat(node.shm_dir())?, rustix::fs::fstat(dir)?);
    #[allow(clippy::unnecessary_cast)] // other widths on other architectures
    let open_to_others = other.st_mode as u32 & FOR_OTHERS != 0;
    if other.st_uid != own.st_uid || open_to_others {
        return Err(Errno::PROTO);
    }
    Ok(())
}

/// Fails unless `hub` is of a living server of the same instance as this process's own.
fn check_kinship(hub: &Hub, own: &Hub) -> Result<(), Errno> {
    if hub.magic.load(Ordering::Acquire) != MAGIC || !hub.is_of_instance(own) {
        return Err(Errno::PROTO);
    }
    if is_stopped(hub) {
        return Err(Errno::SHUTDOWN);
    }
    Ok(())
}

fn is_stopped(hub: &Hub) -> bool {
    hub.stopped.load(Ordering::Acquire) != 0
}

/// Opens the directory of a server's memory, which lies `up` from the directory `from`. ENOENT:
/// there is no memory of a server.
pub fn memory_of(from: impl AsFd, up: impl Arg) -> Result<OwnedFd, Errno> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let dir = rustix::fs::openat(&from, up, flags, Mode::empty())?;
    is_memory(&dir).then_some(dir).ok_or(Errno::NOENT)
}

/// True if `dir` has the memory of a server, of any instance and version.
fn is_memory(dir: impl AsFd) -> bool {
    // Opening must not wait for something else of that name, such as a pipe.
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let mut magic = [0; 8];
    let read = rustix::fs::openat(dir, c"open", flags, Mode::empty())
        .and_then(|open| rustix::io::pread(open, &mut magic, 0));
    read == Ok(8) && u64::from_le_bytes(magic) & ANY_VERSION == MAGIC & ANY_VERSION
}
