//! The user that this process acts as, and its umask.

use core::sync::atomic::{AtomicU32, Ordering};

use crate::kernel::Slot;
use crate::limits;
use crate::path::Credentials;

/// The credentials before anything was looked at.
static NOBODY: Credentials = Credentials {
    uid: 0,
    gid: 0,
    groups: Vec::new(),
};

/// The user that this process acts as, and the umask of the files that it makes.
#[derive(Debug)]
pub(super) struct ProcessUser {
    credentials: Slot<Credentials>,
    /// All users that this process has been: never freed, as threads may still look at one.
    seen: Slot<SeenUser>,
    umask: AtomicU32,
    /// The user that the server was told to admit last; 0: none.
    admitted: AtomicU32,
}

#[derive(Debug)]
struct SeenUser {
    credentials: Credentials,
    next: Slot<SeenUser>,
}

impl ProcessUser {
    /// Not looked at yet.
    pub(super) const fn new() -> ProcessUser {
        ProcessUser {
            credentials: Slot::empty(),
            seen: Slot::empty(),
            umask: AtomicU32::new(0o022),
            admitted: AtomicU32::new(0),
        }
    }

    /// The credentials with which this process acts.
    #[inline]
    pub(super) fn credentials(&self) -> &'static Credentials {
        self.credentials.get().unwrap_or(&NOBODY)
    }

    /// Asks the kernel for the credentials. Under the lock of the process.
    pub(super) fn read_credentials(&self) {
        let groups = rustix::process::getgroups().unwrap_or_default();
        let credentials = self.remember(Credentials {
            uid: rustix::process::geteuid().as_raw(),
            gid: rustix::process::getegid().as_raw(),
            groups: groups.iter().map(|group| group.as_raw()).collect(),
        });
        self.credentials.set(Some(credentials));
        limits::set_writer(credentials);
        limits::look();
    }

    /// The user that is equal to `credentials`. A server that switches between users needs no more
    /// memory for it.
    fn remember(&self, credentials: Credentials) -> &'static Credentials {
        let mut all = core::iter::successors(self.seen.get(), |seen| seen.next.get());
        if let Some(seen) = all.find(|seen| seen.credentials == credentials) {
            return &seen.credentials;
        }
        let next = Slot::empty();
        next.set(self.seen.get());
        let seen: &'static SeenUser = Box::leak(Box::new(SeenUser { credentials, next }));
        self.seen.set(Some(seen));
        &seen.credentials
    }

    /// The mode of a new file without the bits that the umask takes away.
    #[inline]
    pub(super) fn apply_umask(&self, mode: u32) -> u32 {
        mode & !self.umask.load(Ordering::Relaxed)
    }

    /// Notes the umask of the process.
    pub(super) fn set_umask(&self, mask: u32) {
        self.umask.store(mask, Ordering::Relaxed);
    }

    /// True if `uid` is the user that the server was told to admit last.
    pub(super) fn is_admitted(&self, uid: u32) -> bool {
        self.admitted.load(Ordering::Relaxed) == uid
    }

    /// Notes that the server admits `uid`.
    pub(super) fn set_admitted(&self, uid: u32) {
        self.admitted.store(uid, Ordering::Relaxed);
    }
}
