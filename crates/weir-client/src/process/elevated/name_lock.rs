//! The lock of a name that only the PFS has, for what is done in several steps: so that one process takes
//! the file up, or removes it, and the others find it taken up or gone. The lock of an evicted file is that of
//! its link's name.
//!
//! It is a record lock of weir's, on a byte of the directory that the name's hash gives. The
//! server ends it with its process. Names of one hash wait for each other.

use core::sync::atomic::{AtomicBool, Ordering};

use rustix::io::Errno;
use rustix::thread::nanosleep;
use rustix::time::Timespec;
use weir_core::names::hash_of_bytes;
use weir_core::proto::RecordLock;
use weir_core::types::Ino;

use super::super::io::until_granted;
use crate::session::Session;
use crate::view::locks::{F_UNLCK, F_WRLCK};

/// The time between two looks for another thread's lock.
const NAP: Timespec = Timespec {
    tv_sec: 0,
    tv_nsec: 200_000,
};

/// Set while a thread of this process has such a lock: the server knows processes only.
static IS_HELD: AtomicBool = AtomicBool::new(false);

/// A held lock.
pub(in super::super) struct NameLock {
    session: &'static Session,
    dir: Ino,
    byte: u64,
}

impl NameLock {
    /// Waits for the lock of a name in a directory.
    pub(in super::super) fn hold(
        session: &'static Session,
        dir: Ino,
        name: &[u8],
    ) -> Result<NameLock, Errno> {
        while IS_HELD.swap(true, Ordering::Acquire) {
            // A signal ends the nap, not the wait.
            let _ = nanosleep(&NAP);
        }
        // From here on dropping it gives back what there is.
        let lock = NameLock {
            session,
            dir,
            byte: hash_of_bytes(0, name) >> 2,
        };
        loop {
            match until_granted(session, &lock.record(F_WRLCK), true) {
                Err(Errno::INTR) => {}
                granted => return granted.map(|()| lock),
            }
        }
    }

    fn record(&self, kind: u32) -> RecordLock {
        RecordLock {
            ino: self.dir,
            ofd: None,
            kind,
            start: self.byte,
            end: self.byte + 1,
            wait: kind == F_WRLCK,
        }
    }
}

impl Drop for NameLock {
    fn drop(&mut self) {
        // The server ends it if it cannot be asked.
        let _ = self.session.call(self.record(F_UNLCK));
        IS_HELD.store(false, Ordering::Release);
    }
}
