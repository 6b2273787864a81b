//! The current directory as this process knows it, and the real directories that stand for it.
//!
//! The kernel's current directory is a removed one while the process is in a directory of weir's;
//! `cwd` says why, and when that has a name.

use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use rustix::io::Errno;
use rustix::time::{clock_gettime, ClockId};
use weir_core::types::Ino;

use super::forks::own_pid;
use super::instance::Instance;
use crate::path::Roots;
use crate::types::Outcome;

/// The value of [`CurrentDir::ino`] for a directory of weir's that this process cannot use.
const FOREIGN: u64 = u64::MAX;

/// The current directory of the process.
#[derive(Debug)]
pub(super) struct CurrentDir {
    /// The inode, if it is weir's; else 0, or [`FOREIGN`].
    ino: AtomicU64,
    /// True if an executed program can find it out.
    is_named: AtomicBool,
    /// True if the kernel's may have changed since it was last looked at.
    is_unknown: AtomicBool,
    /// True if a path relative to the kernel's current directory may lead into a tree then.
    may_lead: AtomicBool,
    /// Counts changes of the kernel's.
    epoch: AtomicU64,
}

impl CurrentDir {
    /// One of the kernel's that was not looked at yet.
    pub(super) const fn new() -> CurrentDir {
        CurrentDir {
            ino: AtomicU64::new(0),
            is_named: AtomicBool::new(false),
            is_unknown: AtomicBool::new(true),
            may_lead: AtomicBool::new(false),
            epoch: AtomicU64::new(0),
        }
    }

    /// The inode, if it is one of weir's; ENOENT: it is one of another instance.
    #[inline]
    pub(super) fn inode(&self) -> Outcome<Ino> {
        match self.ino.load(Ordering::Relaxed) {
            0 => None,
            FOREIGN => Some(Err(Errno::NOENT)),
            ino => Some(Ok(Ino(ino))),
        }
    }

    /// True if it is a directory of weir's, of whatever instance.
    #[inline]
    pub(super) fn is_weirs(&self) -> bool {
        self.ino.load(Ordering::Relaxed) != 0
    }

    /// Notes that the process is in a directory of weir's.
    pub(super) fn set_inode(&self, ino: Ino) {
        self.ino.store(ino.0, Ordering::Relaxed);
    }

    /// Notes that the process is in a directory of weir's that it cannot use.
    pub(super) fn set_foreign(&self) {
        self.ino.store(FOREIGN, Ordering::Relaxed);
    }

    /// Notes that the process is in a directory of the kernel's.
    pub(super) fn set_kernels(&self) {
        self.ino.store(0, Ordering::Relaxed);
        self.forget_kernels();
    }

    /// Forgets the kernel's current directory: nothing reports its changes.
    pub(super) fn forget_kernels(&self) {
        self.is_unknown.store(true, Ordering::Relaxed);
        self.epoch.fetch_add(1, Ordering::Relaxed);
    }

    /// A number that changes with the kernel's current directory.
    pub(super) fn epoch(&self) -> u64 {
        self.epoch.load(Ordering::Relaxed)
    }

    /// True if a program that begins now can find it out.
    pub(super) fn is_named(&self) -> bool {
        self.is_named.load(Ordering::Relaxed)
    }

    /// Notes that a program that begins now can find it out, or cannot.
    pub(super) fn set_named(&self, is_named: bool) {
        self.is_named.store(is_named, Ordering::Relaxed);
    }

    /// True if a path without `..` from the kernel's current directory may lead into a tree.
    pub(super) fn may_lead_to(&self, roots: &Roots) -> bool {
        if self.is_unknown.swap(false, Ordering::Relaxed) {
            let may = kernel_cwd().is_some_and(|cwd| roots.may_be_reached_from(&cwd));
            self.may_lead.store(may, Ordering::Relaxed);
        }
        self.may_lead.load(Ordering::Relaxed)
    }
}

/// The kernel's current directory.
pub fn kernel_cwd() -> Option<Vec<u8>> {
    Some(rustix::process::getcwd(Vec::new()).ok()?.into_bytes())
}

/// The end of the kernel's path of a directory that was removed.
pub(super) const REMOVED: &[u8] = b" (deleted)";

/// The directory that is entered, inside of the named one: creating files by way of `..` is refused
/// too.
pub(super) const INNER: &[u8] = b"/d";

/// The directory of weir's for which a real directory stands, by its path: the directory of the
/// server's memory, and the inode.
pub(super) fn named_by(path: &[u8]) -> Option<(&[u8], Ino)> {
    let path = path.strip_suffix(REMOVED)?.strip_suffix(INNER)?;
    let slash = path.iter().rposition(|b| *b == b'/')?;
    let memory = path[..slash].strip_suffix(&b"/cwd"[..])?;
    let name = core::str::from_utf8(&path[slash + 1..]).ok()?;
    let (number, _) = name.split_once('-')?;
    let ino = u64::from_str_radix(number, 16).ok()?;
    (number.len() == 16 && ino != 0 && ino != FOREIGN).then_some((memory, Ino(ino)))
}

/// A name for a real directory that stands for a directory of weir's. It is unique: threads enter
/// directories at the same time, and a process may have the number of one that was killed.
pub(super) fn marker(instance: &Instance, ino: Ino) -> Vec<u8> {
    static ENTERED: AtomicU64 = AtomicU64::new(0);
    let time = clock_gettime(ClockId::Monotonic);
    let nth = ENTERED.fetch_add(1, Ordering::Relaxed);
    let name = format!(
        "/cwd/{:016x}-{}-{}.{}-{nth}",
        ino.0,
        own_pid(),
        time.tv_sec,
        time.tv_nsec
    );
    [&instance.shm_dir, name.as_bytes()].concat()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_is_known_by_its_inode() {
        let named = |path: &'static str| named_by(path.as_bytes());
        let known = named("/m/weir-0-memory/x.2/cwd/0003000000000002-7-1.2-3/d (deleted)");
        let memory = &b"/m/weir-0-memory/x.2"[..];
        assert_eq!(known, Some((memory, Ino(0x0003_0000_0000_0002))));
        assert_eq!(
            named("/m/x/cwd/0003000000000002-7-1.2-3"),
            None,
            "not removed"
        );
        assert_eq!(named("/m/x/cwd/3-7-1.2-3/d (deleted)"), None, "too short");
        assert_eq!(named("/m/x/cwd/000300000000000g-7/d (deleted)"), None);
        assert_eq!(named("/m/x/cwd/0000000000000000-7/d (deleted)"), None);
        assert_eq!(named("/m/x/cwd/ffffffffffffffff-7/d (deleted)"), None);
        assert_eq!(named("/m/x/cud/0003000000000002-7/d (deleted)"), None);
        assert_eq!(named("/"), None);
    }
}
