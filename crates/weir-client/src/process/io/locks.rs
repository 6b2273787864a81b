//! Locks: flock(2), and the record locks of fcntl(2). The server keeps them. A waiting thread
//! sleeps on a word of the server's region, and looks again when the server has changed it.

use core::sync::atomic::Ordering;

use rustix::io::Errno;
use weir_core::proto::{Flock, Operation, RecordLock, TestLock};

use super::super::inodes::check_not_gone;
use super::super::table::{Handle, PATH, READ, WRITE};
use super::super::Outcome;
use super::IoCalls;
use crate::kernel::Fd;
use crate::session::{sleep_on, Session};
use crate::types::LockRange;

const LOCK_NB: i32 = 4;
const LOCK_UN: i32 = 8;
const F_GETLK: i32 = 5;
const F_SETLKW: i32 = 7;
const F_OFD_GETLK: i32 = 36;
const F_OFD_SETLK: i32 = 37;
const F_OFD_SETLKW: i32 = 38;
const F_RDLCK: i16 = 0;
const F_WRLCK: i16 = 1;
const F_UNLCK: i16 = 2;

impl IoCalls {
    /// flock(2).
    pub fn flock(&self, fd: Fd, operation: i32) -> Outcome<()> {
        let handle = self.descriptors.verified_handle(fd)?;
        if handle.has(PATH) {
            return Some(Err(Errno::BADF));
        }
        if let Err(error) = check_not_gone(handle.ino()) {
            return Some(Err(error));
        }
        let wait = operation & LOCK_NB == 0;
        let kind = operation & !LOCK_NB;
        if !matches!(kind, 1 | 2 | LOCK_UN) {
            return Some(Err(Errno::INVAL));
        }
        if handle.is_elsewhere() {
            return Some(self.refuse_lock());
        }
        handle.locked.store(true, Ordering::Relaxed);
        let op = Flock {
            ino: handle.ino(),
            ofd: handle.index.load(Ordering::Relaxed),
            operation: kind.unsigned_abs(),
            wait,
        };
        Some(
            self.server
                .session()
                .and_then(|session| until_granted(session, &op, wait)),
        )
    }

    /// Refuses the lock of another server's description. That server would have to keep it: taken
    /// for the anchor, it would neither be the description's nor outlive this process.
    fn refuse_lock(&self) -> Result<(), Errno> {
        self.server.count_refusal("lock-inherited");
        Err(Errno::NOLCK)
    }

    /// fcntl(2), F_GETLK, F_SETLK, F_SETLKW and their F_OFD_ kin.
    pub fn fcntl_lock(&self, fd: Fd, command: i32, lock: &mut LockRange) -> Outcome<()> {
        let handle = self.descriptors.verified_handle(fd)?;
        Some(self.record_lock(handle, command, lock))
    }

    fn record_lock(
        &self,
        handle: &'static Handle,
        command: i32,
        lock: &mut LockRange,
    ) -> Result<(), Errno> {
        let file = match handle.file.get() {
            Some(file) if !handle.has(PATH) => file,
            _ => return Err(Errno::BADF),
        };
        let of_description = matches!(command, F_OFD_GETLK | F_OFD_SETLK | F_OFD_SETLKW);
        if of_description && lock.pid != 0 {
            return Err(Errno::INVAL);
        }
        if of_description && handle.is_elsewhere() {
            return self.refuse_lock();
        }
        let ofd = of_description.then(|| handle.index.load(Ordering::Relaxed));
        let (start, end) = self.lock_bounds(handle, lock)?;
        let kind = u32::try_from(lock.kind).map_err(|_| Errno::INVAL)?;
        let ino = handle.ino();
        if matches!(command, F_GETLK | F_OFD_GETLK) {
            if lock.kind == F_UNLCK {
                return Err(Errno::INVAL);
            }
            let found = self.server.session()?.call(TestLock {
                ino,
                ofd,
                kind,
                start,
                end,
            })?;
            lock.kind = F_UNLCK;
            if let Some(held) = found {
                lock.kind = if held.kind == 0 { F_RDLCK } else { F_WRLCK };
                lock.whence = 0;
                lock.start = i64::try_from(held.start).unwrap_or(i64::MAX);
                lock.len = length_of(held.start, held.end);
                lock.pid = if held.pid == 0 {
                    -1
                } else {
                    held.pid.cast_signed()
                };
            }
            return Ok(());
        }
        match lock.kind {
            F_RDLCK if !handle.has(READ) => return Err(Errno::BADF),
            F_WRLCK if !handle.has(WRITE) => return Err(Errno::BADF),
            F_RDLCK | F_WRLCK | F_UNLCK => {}
            _ => return Err(Errno::INVAL),
        }
        if of_description {
            handle.locked.store(true, Ordering::Relaxed);
        } else {
            file.record_locks.store(true, Ordering::Relaxed);
        }
        let wait = matches!(command, F_SETLKW | F_OFD_SETLKW);
        let op = RecordLock {
            ino,
            ofd,
            kind,
            start,
            end,
            wait,
        };
        until_granted(self.server.session()?, &op, wait)
    }

    /// The bytes of a `struct flock`: first, and behind the last.
    fn lock_bounds(&self, handle: &'static Handle, lock: &LockRange) -> Result<(u64, u64), Errno> {
        let base = match lock.whence {
            0 => 0,
            1 => {
                let offset = handle
                    .ofd
                    .get()
                    .map_or(0, |o| o.offset.load(Ordering::Acquire));
                i64::try_from(offset).map_err(|_| Errno::OVERFLOW)?
            }
            2 => i64::try_from(self.size(handle)?).map_err(|_| Errno::OVERFLOW)?,
            _ => return Err(Errno::INVAL),
        };
        let start = base.checked_add(lock.start).ok_or(Errno::OVERFLOW)?;
        let (from, to) = match lock.len {
            0 => (start, None),
            len if len > 0 => (start, Some(start.checked_add(len).ok_or(Errno::OVERFLOW)?)),
            len => (start.checked_add(len).ok_or(Errno::INVAL)?, Some(start)),
        };
        let from = u64::try_from(from).map_err(|_| Errno::INVAL)?;
        Ok((from, to.map_or(u64::MAX, i64::unsigned_abs)))
    }
}

/// Asks until the lock is there, or a signal comes (EINTR).
pub(in super::super) fn until_granted<O>(session: &Session, op: &O, wait: bool) -> Result<(), Errno>
where
    O: Operation<Reply = ()> + Clone,
{
    loop {
        let seen = session.event().load(Ordering::Acquire);
        match session.call(op.clone()) {
            Err(Errno::AGAIN) if wait => {}
            done => return done,
        }
        // The nap may end early or find the word changed already; then the server is asked
        // again. Only a signal ends the waiting, even if its handler was installed with
        // SA_RESTART: the nap has a limit, to notice a dead server, and the kernel does not
        // restart such naps.
        if sleep_on(session.event(), seen) == Err(Errno::INTR) {
            return Err(Errno::INTR);
        }
        if session.server_gone() {
            return Err(Errno::SHUTDOWN);
        }
    }
}

fn length_of(start: u64, end: u64) -> i64 {
    if end == u64::MAX {
        return 0;
    }
    i64::try_from(end - start).unwrap_or(0)
}
