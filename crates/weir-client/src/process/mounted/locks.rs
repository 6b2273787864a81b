//! Locks of a mount: the kernel names the owner of each.
//!
//! This one process serves all programs that lock through the mount. To tell them apart, a lock
//! belongs to an entry of the table of open file descriptions that no program has: a [`LockOwner`],
//! one for each of the kernel's owners of each file.
//!
//! The FUSE protocol's crate does not tell if a lock of the whole file is flock(2)'s or fcntl(2)'s,
//! so it is taken as both. Two programs that use the two kinds on one file at the same time, one of
//! them through the mount, exclude each other, as on NFS.

use core::sync::atomic::Ordering;

use rustix::io::Errno;
use weir_core::proto::{Flock, HeldLock, Operation, RecordLock, TestLock};
use weir_core::types::Ino;

use super::Tree;
use crate::process::table::Handle;
use crate::session::sleep_on;
use crate::view::locks::{F_UNLCK, LOCK_UN};

/// F_RDLCK of fcntl(2).
const F_RDLCK: u32 = 0;
/// LOCK_SH and LOCK_EX of flock(2).
const LOCK_SH: u32 = 1;
const LOCK_EX: u32 = 2;

/// The owner of locks of one file.
#[derive(Clone, Copy, Debug)]
pub struct LockOwner {
    handle: &'static Handle,
}

/// A program's request for a lock of a file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Wish {
    /// F_RDLCK (0), F_WRLCK (1) or F_UNLCK (2).
    pub kind: u32,
    /// First byte.
    pub start: u64,
    /// Byte behind the last; `u64::MAX`: to the end of the file.
    pub end: u64,
}

impl Wish {
    fn is_of_whole(&self) -> bool {
        self.start == 0 && self.end == u64::MAX
    }
}

impl Tree {
    /// A new owner of locks of a file that is open.
    pub fn lock_owner(self, ino: Ino) -> Result<LockOwner, Errno> {
        let attr = self.parts.inodes.attr(ino)?;
        let _held = self.parts.server.lock.hold();
        let handle = self.parts.opener.show_handle(&attr, false, 0)?;
        handle.fds.store(1, Ordering::Relaxed);
        handle.locked.store(true, Ordering::Relaxed);
        Ok(LockOwner { handle })
    }

    /// Gives back all locks of an owner that is gone.
    pub fn end_locks(self, owner: LockOwner) {
        let _held = self.parts.server.lock.hold();
        // The server frees locks that it is not told of.
        let _ = self.parts.descriptors.close_handle(owner.handle, Ok(()));
    }

    /// Takes, changes or gives back a lock. EAGAIN: another owner has it. It waits for the lock
    /// while `waits` is true; then EINTR.
    pub fn set_lock(
        self,
        owner: LockOwner,
        wish: &Wish,
        waits: Option<&dyn Fn() -> bool>,
    ) -> Result<(), Errno> {
        let ino = owner.handle.ino();
        let ofd = owner.handle.index.load(Ordering::Relaxed);
        let wait = waits.is_some();
        let records = RecordLock {
            ino,
            ofd: Some(ofd),
            kind: wish.kind,
            start: wish.start,
            end: wish.end,
            wait,
        };
        if !wish.is_of_whole() {
            return self.lock_once_free(&records, waits);
        }
        let whole = |operation| Flock {
            ino,
            ofd,
            operation,
            wait,
        };
        let operation = match wish.kind {
            F_UNLCK => LOCK_UN,
            F_RDLCK => LOCK_SH,
            _ => LOCK_EX,
        };
        self.lock_once_free(&whole(operation), waits)?;
        self.lock_once_free(&records, waits).inspect_err(|_| {
            let _ = self
                .parts
                .server
                .session()
                .map(|session| session.call(whole(LOCK_UN)));
        })
    }

    fn lock_once_free<O>(self, op: &O, waits: Option<&dyn Fn() -> bool>) -> Result<(), Errno>
    where
        O: Operation<Reply = ()> + Clone,
    {
        let session = self.parts.server.session()?;
        loop {
            let seen = session.event().load(Ordering::Acquire);
            match (session.call(op.clone()), waits) {
                (Err(Errno::AGAIN), Some(waits)) if !waits() => return Err(Errno::INTR),
                (Err(Errno::AGAIN), Some(_)) => {}
                (done, _) => return done,
            }
            // Interrupted or timed out: ask again.
            let _ = sleep_on(session.event(), seen);
            if session.server_gone() {
                return Err(Errno::SHUTDOWN);
            }
        }
    }

    /// The lock that prevents a lock from being taken, if there is one.
    pub fn test_lock(self, owner: LockOwner, wish: &Wish) -> Result<Option<HeldLock>, Errno> {
        self.parts.server.session()?.call(TestLock {
            ino: owner.handle.ino(),
            ofd: Some(owner.handle.index.load(Ordering::Relaxed)),
            kind: wish.kind,
            start: wish.start,
            end: wish.end,
        })
    }
}
