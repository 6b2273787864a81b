//! Listing a directory of an elevated tree and the one that it covers: first the names of the tree, then
//! those of the PFS.
//!
//! A directory that was taken up is listed with the names of the PFS, as before: so a listing that is
//! under way does not miss it.
//!
//! A position among the names of the PFS is their count, since the kernel's positions take all bits. So
//! the descriptor of a listing is kept, if there is room, for its next part.

use core::mem::MaybeUninit;
use core::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

use rustix::fd::{AsFd, BorrowedFd};
use rustix::fs::{Mode, OFlags, RawDir, SeekFrom};
use rustix::io::Errno;
use weir_core::elevated::is_part;
use weir_core::names::FileType;
use weir_core::types::Ino;

use super::super::dirents::DirentList;
use super::super::inodes::InodeOperations;
use crate::internal::{Internal, InternalSlot};
use crate::kernel;
use crate::path::walk::Names;

/// Positions from here on are among the names of the PFS. Those of the tree are below.
pub(in super::super) const BELOW: u64 = 1 << 62;
/// The most listings whose descriptors are kept.
const SLOTS: usize = 16;
/// The bytes of the kernel's listing that are read at a time.
const BUFFER: usize = 16 << 10;

/// Listings whose descriptors are kept.
#[derive(Debug)]
pub(in super::super) struct LowerListings([LowerListing; SLOTS]);

#[derive(Debug)]
struct LowerListing {
    is_busy: AtomicBool,
    /// The address of the handle that lists.
    handle: AtomicUsize,
    dir: AtomicU64,
    /// Names that were read.
    count: AtomicU64,
    /// The kernel's position behind them.
    position: AtomicU64,
    descriptor: InternalSlot,
}

impl LowerListing {
    const fn new() -> LowerListing {
        LowerListing {
            is_busy: AtomicBool::new(false),
            handle: AtomicUsize::new(0),
            dir: AtomicU64::new(0),
            count: AtomicU64::new(0),
            position: AtomicU64::new(0),
            descriptor: InternalSlot::new(),
        }
    }

    /// False: another thread uses it.
    fn occupy(&self) -> bool {
        !self.is_busy.swap(true, Ordering::Acquire)
    }
}

/// A listing that this thread uses.
struct TakenListing(&'static LowerListing);

impl Drop for TakenListing {
    fn drop(&mut self) {
        self.0.is_busy.store(false, Ordering::Release);
    }
}

impl LowerListings {
    pub(in super::super) const fn new() -> LowerListings {
        LowerListings([const { LowerListing::new() }; SLOTS])
    }

    /// The listing of a handle, or else any that no thread uses.
    fn take_listing(&'static self, handle: usize) -> Option<TakenListing> {
        let is_of = |one: &&LowerListing| one.handle.load(Ordering::Relaxed) == handle;
        let own = self.0.iter().filter(is_of);
        let mut any = own.chain(self.0.iter().cycle().skip(handle / 64 % SLOTS).take(SLOTS));
        any.find(|one| one.occupy()).map(TakenListing)
    }
}

/// A part of a listing: the directory of the tree, the one that it covers, and the handle that lists.
pub(in super::super) struct ListingBelow<'a> {
    pub(in super::super) dir: Ino,
    pub(in super::super) covered: &'a [u8],
    pub(in super::super) handle: usize,
}

impl InodeOperations {
    /// Appends names of the directory that one of the tree covers from the position `at` on, which begins
    /// at [`BELOW`].
    pub(in super::super) fn list_below(
        self,
        listings: &'static LowerListings,
        what: &ListingBelow<'_>,
        at: &mut u64,
        list: &mut DirentList<'_>,
    ) -> Result<(), Errno> {
        let taken = listings.take_listing(what.handle);
        let kept = taken.as_ref().and_then(|taken| {
            let one = taken.0;
            let same = one.handle.load(Ordering::Relaxed) == what.handle
                && one.dir.load(Ordering::Relaxed) == what.dir.0
                && one.count.load(Ordering::Relaxed) == *at - BELOW;
            let number = one.descriptor.get().filter(|_| same)?.sure()?;
            Some((number, one.position.load(Ordering::Relaxed)))
        });
        if let Some((number, position)) = kept {
            let fd = kernel::borrow(number)?;
            rustix::fs::seek(fd, SeekFrom::Start(position))?;
            let after = self.list_from(fd, what, at, list)?;
            if let Some(TakenListing(one)) = &taken {
                one.count.store(*at - BELOW, Ordering::Relaxed);
                one.position
                    .store(after.unwrap_or(position), Ordering::Relaxed);
            }
            return Ok(());
        }
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let opened = match rustix::fs::open(what.covered, flags, Mode::empty()) {
            // It was never there, or the drain has removed it.
            Err(Errno::NOENT) => return Ok(()),
            opened => opened?,
        };
        let skipped = skip(&opened, *at - BELOW)?;
        if skipped < *at - BELOW {
            return Ok(());
        }
        let position = self.list_from(opened.as_fd(), what, at, list)?;
        let Some((TakenListing(one), position)) = taken.as_ref().zip(position) else {
            return Ok(());
        };
        if let Some(before) = one.descriptor.take_descriptor() {
            before.close();
        }
        match Internal::adopt_spare(kernel::into_number(opened)) {
            Ok(descriptor) => {
                one.handle.store(what.handle, Ordering::Relaxed);
                one.dir.store(what.dir.0, Ordering::Relaxed);
                one.count.store(*at - BELOW, Ordering::Relaxed);
                one.position.store(position, Ordering::Relaxed);
                one.descriptor.set(descriptor);
            }
            Err(fd) => kernel::close(fd)?,
        }
        Ok(())
    }

    /// Lists from the descriptor's position on; returns the kernel's position behind the last name, if a
    /// name was read.
    fn list_from(
        self,
        fd: BorrowedFd<'_>,
        what: &ListingBelow<'_>,
        at: &mut u64,
        list: &mut DirentList<'_>,
    ) -> Result<Option<u64>, Errno> {
        let mut buffer = vec![MaybeUninit::uninit(); BUFFER];
        let mut entries = RawDir::new(fd, &mut buffer);
        let mut position = None;
        while let Some(entry) = entries.next() {
            let entry = entry?;
            let name = entry.file_name().to_bytes();
            if let Some(ino) = self.shown_as(what.dir, name, entry.ino())? {
                let kind = kind_of(entry.file_type());
                match list.put(ino, *at + 1, kind, name) {
                    Err(error) if list.is_empty() => return Err(error),
                    Err(_) => return Ok(position),
                    Ok(()) => {}
                }
            }
            *at += 1;
            position = Some(entry.next_entry_cookie());
        }
        Ok(position)
    }

    /// The inode with which a name of the PFS is listed; `None`: it is not, or with those of the tree.
    fn shown_as(self, dir: Ino, name: &[u8], ino: u64) -> Result<Option<Ino>, Errno> {
        if matches!(name, b"." | b"..") || is_part(name) {
            return Ok(None);
        }
        match self.view()?.lookup(dir, name)? {
            Some((taken_up, FileType::Dir)) if self.covers(taken_up)? => Ok(Some(taken_up)),
            Some(_) => Ok(None),
            None if self.is_whited_out(dir, name)? => Ok(None),
            None => Ok(Some(Ino(ino))),
        }
    }

    /// True if the union shows a name because the PFS has it.
    pub(super) fn shows_below(self, dir: Ino, name: &[u8]) -> Result<bool, Errno> {
        Ok(self.view()?.lookup(dir, name)?.is_none() && !self.is_whited_out(dir, name)?)
    }
}

/// Reads past this many names; returns the number that there were.
fn skip(dir: &rustix::fd::OwnedFd, count: u64) -> Result<u64, Errno> {
    let (mut skipped, mut position) = (0, 0);
    let mut buffer = vec![MaybeUninit::uninit(); BUFFER];
    let mut entries = RawDir::new(dir, &mut buffer);
    while skipped < count {
        let Some(entry) = entries.next() else { break };
        position = entry?.next_entry_cookie();
        skipped += 1;
    }
    rustix::fs::seek(dir, SeekFrom::Start(position))?;
    Ok(skipped)
}

/// The names in a directory of the PFS, without those of files that a mover writes.
pub(super) fn names_in(path: &[u8]) -> Result<Vec<Vec<u8>>, Errno> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let dir = match rustix::fs::open(path, flags, Mode::empty()) {
        Err(Errno::NOENT) => return Ok(Vec::new()),
        dir => dir?,
    };
    let mut buffer = vec![MaybeUninit::uninit(); BUFFER];
    let mut entries = RawDir::new(&dir, &mut buffer);
    let mut names = Vec::new();
    while let Some(entry) = entries.next() {
        let entry = entry?;
        let name = entry.file_name().to_bytes();
        if !matches!(name, b"." | b"..") && !is_part(name) {
            names.push(name.to_vec());
        }
    }
    Ok(names)
}

/// `d_type`.
fn kind_of(kind: rustix::fs::FileType) -> u8 {
    use rustix::fs::FileType as Kind;
    match kind {
        Kind::Fifo => 1,
        Kind::CharacterDevice => 2,
        Kind::Directory => 4,
        Kind::BlockDevice => 6,
        Kind::RegularFile => 8,
        Kind::Symlink => 10,
        Kind::Socket => 12,
        Kind::Unknown => 0,
    }
}
