//! Owners of locks, and waiting for locks.
//!
//! A request that waits for a lock has a thread of its own, so that it does not block a serving
//! thread: the request that releases the lock must be served, too.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use fuser::{ReplyEmpty, ReplyLock};
use rustix::io::Errno;
use weir_client::process::mounted::Ino;
use weir_client::process::mounted::{LockOwner, OpenFile, Tree, Wish};

use crate::convert::errno;
use crate::requester::is_interrupted;

/// The most requests that wait for locks at a time; more get ENOLCK.
const MAX_WAITING: usize = 4096;
/// The kind that releases a lock: fcntl(2).
pub const F_UNLCK: i32 = 2;

/// The owners of locks of all files.
#[derive(Clone, Debug)]
pub struct Locks {
    tree: Tree,
    owners: Arc<Mutex<HashMap<(Ino, u64), LockOwner>>>,
    waiters: LockWaiters,
}

impl Locks {
    /// Creates a table without locks.
    pub fn new(tree: Tree) -> Locks {
        Locks {
            tree,
            owners: Arc::default(),
            waiters: LockWaiters::default(),
        }
    }

    /// The owner with the kernel's number `owner`, created if it is new.
    fn owner(&self, file: OpenFile, owner: u64) -> Result<LockOwner, Errno> {
        let mut owners = self.owners.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = owners.get(&(file.ino(), owner)) {
            return Ok(*known);
        }
        let new = self.tree.lock_owner(file.ino())?;
        owners.insert((file.ino(), owner), new);
        Ok(new)
    }

    /// Releases all locks that an owner has on a file.
    pub fn end_owner(&self, file: OpenFile, owner: u64) {
        let mut owners = self.owners.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(ended) = owners.remove(&(file.ino(), owner)) {
            self.tree.end_locks(ended);
        }
    }

    /// F_GETLK of fcntl(2).
    pub fn test(&self, file: OpenFile, owner: u64, wish: Wish, reply: ReplyLock) {
        let tested = self
            .owner(file, owner)
            .and_then(|owner| self.tree.test_lock(owner, &wish));
        match tested {
            Err(error) => reply.error(errno(error)),
            Ok(None) => reply.locked(0, 0, F_UNLCK, 0),
            Ok(Some(held)) => {
                let kind = i32::try_from(held.kind).unwrap_or(F_UNLCK);
                reply.locked(held.start, last_byte(held.end), kind, held.pid);
            }
        }
    }

    /// F_SETLK and flock(2). `waiter`: the thread for which to wait for the lock.
    pub fn set(
        &self,
        file: OpenFile,
        owner: u64,
        wish: Wish,
        waiter: Option<u32>,
        reply: ReplyEmpty,
    ) {
        let owner = match self.owner(file, owner) {
            Ok(owner) => owner,
            Err(error) => return reply.error(errno(error)),
        };
        match (self.tree.set_lock(owner, &wish, None), waiter) {
            (Err(Errno::AGAIN), Some(tid)) => self.wait(owner, wish, tid, reply),
            (done, _) => answer(reply, done),
        }
    }

    /// Waits for a lock, until it is granted or the waiter has a signal.
    fn wait(&self, owner: LockOwner, wish: Wish, tid: u32, reply: ReplyEmpty) {
        let tree = self.tree;
        self.waiters.wait(reply, move || {
            let waits = || !is_interrupted(tid);
            tree.set_lock(owner, &wish, Some(&waits)).map_err(errno)
        });
    }
}

/// The requests that wait for locks, each on a thread of its own.
#[derive(Clone, Debug, Default)]
pub struct LockWaiters(Arc<AtomicUsize>);

impl LockWaiters {
    /// Calls `wait` on a thread of its own, and replies with its result.
    pub fn wait(
        &self,
        reply: ReplyEmpty,
        wait: impl FnOnce() -> Result<(), fuser::Errno> + Send + 'static,
    ) {
        if self.0.fetch_add(1, Ordering::Relaxed) >= MAX_WAITING {
            self.0.fetch_sub(1, Ordering::Relaxed);
            return reply.error(errno(Errno::NOLCK));
        }
        let waiting = Arc::clone(&self.0);
        let thread = std::thread::Builder::new().name("lock".to_owned());
        let spawned = thread.spawn(move || {
            match wait() {
                Ok(()) => reply.ok(),
                Err(error) => reply.error(error),
            }
            waiting.fetch_sub(1, Ordering::Relaxed);
        });
        if let Err(error) = spawned {
            // The closure was dropped and replied with EIO.
            self.0.fetch_sub(1, Ordering::Relaxed);
            tracing::warn!("no thread to wait for a lock: {error}");
        }
    }
}

fn answer(reply: ReplyEmpty, done: Result<(), Errno>) {
    match done {
        Ok(()) => reply.ok(),
        Err(error) => reply.error(errno(error)),
    }
}

/// The last byte of a range, as the protocol has it.
pub fn last_byte(end: u64) -> u64 {
    match end {
        u64::MAX => i64::MAX.unsigned_abs(),
        end => end.saturating_sub(1),
    }
}
