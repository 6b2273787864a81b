//! Record locks of a mirror's programs (fcntl(2)): each owner that the kernel names has a descriptor of its own, whose
//! description holds its locks (F_OFD_SETLK).
//!
//! The FUSE protocol's crate does not tell flock(2) from a record lock of the whole file. So both are taken for either: they
//! exclude each other here, as on NFS.
//!
//! A request that waits has a thread of its own, for the one that releases the lock must be served, too.

use std::collections::HashMap;
use std::fs::{File, OpenOptions, TryLockError};
use std::io;
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use fuser::ReplyEmpty;
use nix::errno::Errno;
use nix::fcntl::{fcntl, FcntlArg};
use nix::libc::{self, flock};

use super::{errno_of, OpenMirrorFile};
use crate::locks::{last_byte, F_UNLCK, MAX_WAITING};
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
    fn owner(&self, owner: u64) -> FileOwner {
        FileOwner {
            node: self.node.0,
            owner,
        }
    }
}

/// The owners of locks, and their descriptors.
#[derive(Clone, Debug, Default)]
pub struct MirrorLocks {
    owners: Arc<Mutex<HashMap<FileOwner, Arc<File>>>>,
    waiting: Arc<AtomicUsize>,
}

impl MirrorLocks {
    /// The descriptor of an owner, which is opened as the program's was.
    fn descriptor(&self, open: &OpenMirrorFile, owner: u64) -> io::Result<Arc<File>> {
        let mut owners = self.owners.lock().unwrap_or_else(PoisonError::into_inner);
        let owner = open.owner(owner);
        if let Some(known) = owners.get(&owner) {
            return Ok(Arc::clone(known));
        }
        let same = format!("/proc/thread-self/fd/{}", open.file.as_raw_fd());
        let mut options = OpenOptions::new();
        options.read(open.may_read).write(open.may_write);
        let own = Arc::new(options.open(same)?);
        owners.insert(owner, Arc::clone(&own));
        Ok(own)
    }

    /// Releases all locks that an owner has on a file.
    pub fn end_owner(&self, open: &OpenMirrorFile, owner: u64) {
        let mut owners = self.owners.lock().unwrap_or_else(PoisonError::into_inner);
        // Its last descriptor is closed without the lock.
        let ended = owners.remove(&open.owner(owner));
        drop(owners);
        drop(ended);
    }

    /// F_GETLK: the lock that is in the way; one of kind F_UNLCK if there is none.
    pub fn test(
        &self,
        open: &OpenMirrorFile,
        owner: u64,
        lock: RecordLock,
    ) -> io::Result<RecordLock> {
        let own = self.descriptor(open, owner)?;
        let mut found = lock.to_flock()?;
        fcntl(&*own, FcntlArg::F_OFD_GETLK(&mut found))?;
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
        let asked = self.descriptor(open, owner).and_then(|file| {
            Ok(WantedLock {
                file,
                range: lock.to_flock()?,
                // flock(2) needs no right to write, or to read.
                has_range: match lock.kind {
                    libc::F_WRLCK => open.may_write,
                    libc::F_RDLCK => open.may_read,
                    _ => true,
                },
            })
        });
        let wanted = match asked {
            Ok(wanted) => wanted,
            Err(error) => return reply.error(errno_of(&error)),
        };
        match (wanted.set(), waiter) {
            (Err(Errno::EAGAIN), Some(tid)) => self.wait(wanted, tid, reply),
            (done, _) => answer(reply, done),
        }
    }

    /// Waits for a lock on a thread of its own, until it is granted or the waiter has a signal.
    fn wait(&self, wanted: WantedLock, tid: u32, reply: ReplyEmpty) {
        if self.waiting.fetch_add(1, Ordering::Relaxed) >= MAX_WAITING {
            self.waiting.fetch_sub(1, Ordering::Relaxed);
            return answer(reply, Err(Errno::ENOLCK));
        }
        let waiting = Arc::clone(&self.waiting);
        let wait = move || {
            let mut pause = ASK_AGAIN;
            let done = loop {
                match wanted.set() {
                    Err(Errno::EAGAIN) if is_interrupted(tid) => break Err(Errno::EINTR),
                    Err(Errno::EAGAIN) => std::thread::sleep(pause),
                    done => break done,
                }
                pause = (pause * 2).min(ASK_AGAIN_AT_MOST);
            };
            answer(reply, done);
            waiting.fetch_sub(1, Ordering::Relaxed);
        };
        let thread = std::thread::Builder::new().name("lock".to_owned());
        if let Err(error) = thread.spawn(wait) {
            // The closure was dropped and replied with EIO.
            self.waiting.fetch_sub(1, Ordering::Relaxed);
            tracing::warn!("no thread to wait for a lock: {error}");
        }
    }
}

/// A lock that an owner asks for.
#[derive(Debug)]
struct WantedLock {
    /// The descriptor of the owner.
    file: Arc<File>,
    range: flock,
    has_range: bool,
}

impl WantedLock {
    /// EAGAIN: another owner has a lock that is in the way.
    fn set(&self) -> nix::Result<()> {
        let is_whole = self.range.l_start == 0 && self.range.l_len == 0;
        if is_whole {
            self.set_whole()?;
        }
        if !self.has_range {
            return Ok(());
        }
        let set = match fcntl(&*self.file, FcntlArg::F_OFD_SETLK(&self.range)) {
            // POSIX has either for a lock that is in the way.
            Err(Errno::EACCES) => Err(Errno::EAGAIN),
            done => done.map(drop),
        };
        if set.is_err() && is_whole {
            let _ = self.file.unlock();
        }
        set
    }

    fn set_whole(&self) -> nix::Result<()> {
        let set = match i32::from(self.range.l_type) {
            libc::F_WRLCK => self.file.try_lock(),
            libc::F_RDLCK => self.file.try_lock_shared(),
            _ => self.file.unlock().map_err(TryLockError::Error),
        };
        set.map_err(|error| match error {
            TryLockError::WouldBlock => Errno::EAGAIN,
            TryLockError::Error(error) => {
                Errno::from_raw(error.raw_os_error().unwrap_or(libc::EIO))
            }
        })
    }
}

fn answer(reply: ReplyEmpty, done: nix::Result<()>) {
    match done {
        Ok(()) => reply.ok(),
        Err(error) => reply.error(errno_of(&error.into())),
    }
}
