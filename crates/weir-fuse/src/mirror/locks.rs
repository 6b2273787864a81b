//! Record locks of a mirror's programs (fcntl(2)): each owner that the kernel names has a descriptor of its own, whose
//! description holds its locks (F_OFD_SETLK); two, if it locks by a file that is open for reading alone and by one that is not.
//!
//! The FUSE protocol's crate does not tell flock(2) from a record lock of the whole file. So both are taken for either: they
//! exclude each other here, as on NFS.
//!
//! A request that waits has a thread of its own, for the one that releases the lock must be served, too.

use std::collections::{BTreeSet, HashMap};
use std::fs::{File, OpenOptions, TryLockError};
use std::io;
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use fuser::ReplyEmpty;
use nix::errno::Errno;
use nix::fcntl::{fcntl, FcntlArg};
use nix::libc::{self, flock};

use super::{errno_of, link_to, raw_errno, OpenMirrorFile};
use crate::locks::{last_byte, LockWaiters, F_UNLCK};
use crate::requester::is_interrupted;

/// The time after which a lock that another owner holds is asked for again, at first and at most.
const ASK_AGAIN: Duration = Duration::from_millis(1);
const ASK_AGAIN_AT_MOST: Duration = Duration::from_millis(50);

/// A lock on a range of a file, as fcntl(2) has it.
#[derive(Clone, Copy, Debug)]
pub struct RecordLock {
    pub kind: i32,
    pub start: u64,
    /// The last byte.
    pub last: u64,
}

impl RecordLock {
    fn to_flock(self) -> io::Result<flock> {
        let signed = |number: u64| i64::try_from(number).map_err(|_| Errno::EOVERFLOW);
        // A length of 0 is up to the end.
        let length = match self.last {
            last if last >= i64::MAX.unsigned_abs() => 0,
            last => (last + 1).checked_sub(self.start).ok_or(Errno::EINVAL)?,
        };
        Ok(flock {
            l_type: libc::c_short::try_from(self.kind).map_err(|_| Errno::EINVAL)?,
            l_whence: libc::c_short::try_from(libc::SEEK_SET).expect("a small number"),
            l_start: signed(self.start)?,
            l_len: signed(length)?,
            l_pid: 0,
        })
    }
}

/// An owner of locks on a file, by the kernel's numbers of both.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
struct FileOwner {
    node: u64,
    owner: u64,
}

impl OpenMirrorFile {
    fn lock_owners(&self) -> MutexGuard<'_, BTreeSet<u64>> {
        self.lock_owners
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    fn owner(&self, owner: u64) -> FileOwner {
        FileOwner {
            node: self.node.0,
            owner,
        }
    }
}

/// The descriptors of an owner. Each of its locks is on one of them.
#[derive(Clone, Debug, Default)]
struct OwnerFiles {
    /// For locks by a file that is open for reading alone.
    reading: Option<Arc<File>>,
    /// For those by one that is open for writing.
    writing: Option<Arc<File>>,
}

impl OwnerFiles {
    fn slot(&mut self, may_write: bool) -> &mut Option<Arc<File>> {
        match may_write {
            true => &mut self.writing,
            false => &mut self.reading,
        }
    }
}

/// The owners of locks, and their descriptors.
#[derive(Clone, Debug, Default)]
pub struct MirrorLocks {
    owners: Arc<Mutex<HashMap<FileOwner, OwnerFiles>>>,
    waiters: LockWaiters,
}

impl MirrorLocks {
    fn owners(&self) -> MutexGuard<'_, HashMap<FileOwner, OwnerFiles>> {
        self.owners.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The descriptor of an owner for locks by an open file, and the other one, if it has one.
    fn descriptors(&self, open: &OpenMirrorFile, owner: u64) -> io::Result<OwnDescriptors> {
        let owner = open.owner(owner);
        let known = |owners: &mut HashMap<FileOwner, OwnerFiles>, new: Option<File>| {
            let files = owners.entry(owner).or_default();
            if let Some(new) = new {
                // Another thread may have been faster.
                files
                    .slot(open.may_write)
                    .get_or_insert_with(|| Arc::new(new));
            }
            Some(OwnDescriptors {
                used: files.slot(open.may_write).clone()?,
                other: files.slot(!open.may_write).clone(),
            })
        };
        if let Some(known) = known(&mut self.owners(), None) {
            return Ok(known);
        }
        // Without the lock: of a file of the PFS this may take its time.
        let mut options = OpenOptions::new();
        options.read(open.may_read).write(open.may_write);
        let new = options.open(link_to(&open.file))?;
        Ok(known(&mut self.owners(), Some(new)).expect("it is there now"))
    }

    /// True if a descriptor is still its owner's: another thread may have closed the file, and so ended the owner's locks.
    fn is_current(&self, open: &OpenMirrorFile, owner: u64, used: &Arc<File>) -> bool {
        let mut owners = self.owners();
        let files = owners.get_mut(&open.owner(owner));
        let known = files.and_then(|files| files.slot(open.may_write).as_ref());
        known.is_some_and(|known| Arc::ptr_eq(known, used))
    }

    /// Releases all locks of a process on a file of which it closes a descriptor.
    pub fn end_closer(&self, open: &OpenMirrorFile, owner: u64) {
        // The number may be another process's by the time that the last descriptor is closed.
        open.lock_owners().remove(&owner);
        self.end_owner(open, owner);
    }

    /// Releases all locks that an owner has on a file.
    fn end_owner(&self, open: &OpenMirrorFile, owner: u64) {
        // Its last descriptors are closed without the lock.
        let ended = self.owners().remove(&open.owner(owner));
        drop(ended);
    }

    /// Releases the locks that came by an open file, whose last descriptor was closed: also those whose owner it is itself
    /// (flock(2), F_OFD_SETLK).
    pub fn end_handle(&self, open: &OpenMirrorFile) {
        for owner in &*open.lock_owners() {
            self.end_owner(open, *owner);
        }
    }

    /// F_GETLK: the lock that is in the way; one of kind F_UNLCK if there is none.
    pub fn test(
        &self,
        open: &OpenMirrorFile,
        owner: u64,
        lock: RecordLock,
    ) -> io::Result<RecordLock> {
        let own = self.descriptors(open, owner)?;
        let found = own.find_obstacle(lock.to_flock()?)?;
        let start = found.l_start.unsigned_abs();
        let end = match found.l_len {
            0 => u64::MAX,
            length => start.saturating_add(length.unsigned_abs()),
        };
        Ok(match i32::from(found.l_type) {
            F_UNLCK => RecordLock {
                kind: F_UNLCK,
                start: 0,
                last: 0,
            },
            kind => RecordLock {
                kind,
                start,
                last: last_byte(end),
            },
        })
    }

    /// F_SETLK. `waiter`: the thread for which to wait for the lock.
    pub fn set(
        &self,
        open: &OpenMirrorFile,
        owner: u64,
        lock: RecordLock,
        waiter: Option<u32>,
        reply: ReplyEmpty,
    ) {
        open.lock_owners().insert(owner);
        let wanted = match lock.to_flock() {
            Err(error) => return reply.error(errno_of(&error)),
            Ok(range) => WantedLock {
                range,
                // flock(2) needs no right to write, or to read.
                has_range: match lock.kind {
                    libc::F_WRLCK => open.may_write,
                    libc::F_RDLCK => open.may_read,
                    _ => true,
                },
            },
        };
        match (self.try_set(open, owner, &wanted), waiter) {
            (Err(Errno::EAGAIN), Some(tid)) => {
                let locks = self.clone();
                let open = open.clone();
                self.waiters.wait(reply, move || {
                    let set = ask_again(tid, || locks.try_set(&open, owner, &wanted));
                    set.map_err(|error| errno_of(&error.into()))
                });
            }
            (done, _) => answer(reply, done),
        }
    }

    /// EAGAIN: another owner has a lock that is in the way.
    fn try_set(&self, open: &OpenMirrorFile, owner: u64, wanted: &WantedLock) -> nix::Result<()> {
        loop {
            let own = self
                .descriptors(open, owner)
                .map_err(|error| raw_errno(&error))?;
            wanted.set(&own)?;
            if self.is_current(open, owner, &own.used) {
                return Ok(());
            }
        }
    }
}

/// Calls `set` until the lock is granted, or the waiter has a signal (EINTR).
fn ask_again(tid: u32, set: impl Fn() -> nix::Result<()>) -> nix::Result<()> {
    let mut pause = ASK_AGAIN;
    loop {
        match set() {
            Err(Errno::EAGAIN) if is_interrupted(tid) => return Err(Errno::EINTR),
            Err(Errno::EAGAIN) => std::thread::sleep(pause),
            done => return done,
        }
        pause = (pause * 2).min(ASK_AGAIN_AT_MOST);
    }
}

/// The descriptors of an owner, as a request finds them.
#[derive(Debug)]
struct OwnDescriptors {
    /// The one that is to have the lock.
    used: Arc<File>,
    other: Option<Arc<File>>,
}

impl OwnDescriptors {
    /// The lock that is in the way of one of the owner (F_OFD_GETLK); one of kind F_UNLCK if there is none.
    ///
    /// By each descriptor the locks on the other one look like another owner's. No byte is locked by both: so a lock that
    /// `used` finds is another owner's if `other` finds one there, too.
    fn find_obstacle(&self, wanted: flock) -> nix::Result<flock> {
        let ask = |file: &File, range: &Range<i64>| {
            let mut found = flock {
                l_start: range.start,
                l_len: if range.end == i64::MAX {
                    0
                } else {
                    range.end - range.start
                },
                ..wanted
            };
            fcntl(file, FcntlArg::F_OFD_GETLK(&mut found))?;
            Ok((i32::from(found.l_type) != F_UNLCK).then_some(found))
        };
        let mut ranges = vec![range_of(&wanted)];
        while let Some(range) = ranges.pop() {
            let Some(found) = ask(&self.used, &range)? else {
                continue;
            };
            let Some(other) = &self.other else {
                return Ok(found);
            };
            let held = range_of(&found);
            let held = held.start.max(range.start)..held.end.min(range.end);
            if let Some(found) = ask(other, &held)? {
                return Ok(found);
            }
            let rest = [range.start..held.start, held.end..range.end];
            ranges.extend(rest.into_iter().filter(|range| !range.is_empty()));
        }
        Ok(unlocked(wanted))
    }
}

/// The same bytes without a lock.
fn unlocked(range: flock) -> flock {
    flock {
        l_type: libc::c_short::try_from(F_UNLCK).expect("a small number"),
        ..range
    }
}

/// The bytes of a lock; up to `i64::MAX`: all that follow.
fn range_of(lock: &flock) -> Range<i64> {
    let end = match lock.l_len {
        0 => i64::MAX,
        length => lock.l_start.saturating_add(length),
    };
    lock.l_start..end
}

/// A lock that an owner asks for.
#[derive(Debug)]
struct WantedLock {
    range: flock,
    has_range: bool,
}

impl WantedLock {
    /// EAGAIN: another owner has a lock that is in the way.
    fn set(&self, own: &OwnDescriptors) -> nix::Result<()> {
        let is_release = i32::from(self.range.l_type) == F_UNLCK;
        let is_whole = self.range.l_start == 0 && self.range.l_len == 0;
        if let Some(other) = &own.other {
            let is_obstructed = !is_release
                && self.has_range
                && i32::from(own.find_obstacle(self.range)?.l_type) != F_UNLCK;
            if is_obstructed {
                return Err(Errno::EAGAIN);
            }
            // The new lock replaces the one that the owner has there.
            set_range(other, &unlocked(self.range))?;
            if is_whole || is_release {
                let _ = other.unlock();
            }
        }
        // A part of a whole lock is released: what remains excludes others by its range.
        if is_whole || is_release {
            self.set_whole(&own.used)?;
        }
        if !self.has_range {
            return Ok(());
        }
        let set = set_range(&own.used, &self.range);
        if set.is_err() && is_whole {
            let _ = own.used.unlock();
        }
        set
    }

    fn set_whole(&self, file: &File) -> nix::Result<()> {
        let set = match i32::from(self.range.l_type) {
            libc::F_WRLCK => file.try_lock(),
            libc::F_RDLCK => file.try_lock_shared(),
            _ => file.unlock().map_err(TryLockError::Error),
        };
        set.map_err(|error| match error {
            TryLockError::WouldBlock => Errno::EAGAIN,
            TryLockError::Error(error) => raw_errno(&error),
        })
    }
}

fn set_range(file: &File, range: &flock) -> nix::Result<()> {
    match fcntl(file, FcntlArg::F_OFD_SETLK(range)) {
        // POSIX has either for a lock that is in the way.
        Err(Errno::EACCES) => Err(Errno::EAGAIN),
        done => done.map(drop),
    }
}

fn answer(reply: ReplyEmpty, done: nix::Result<()>) {
    match done {
        Ok(()) => reply.ok(),
        Err(error) => reply.error(errno_of(&error.into())),
    }
}
