//! Unsupported calls: each gets the errno that a careful program expects, and is counted by name
//! for the report.

use core::sync::atomic::Ordering;

use rustix::io::Errno;

use super::descriptors::Descriptors;
use super::first_call::FirstCall;
use super::outcome::ours;
use super::paths::PathLookup;
use super::server_link::ServerLink;
use super::{Outcome, ProcessState};
use crate::kernel::{Fd, AT_FDCWD};

/// Requests of ioctl(2) that concern the descriptor; the kernel handles them.
const FIONCLEX: u64 = 0x5450;
const FIOCLEX: u64 = 0x5451;
const FIONBIO: u64 = 0x5421;
/// The second byte of the requests to terminals.
const OF_TERMINALS: u64 = 0x54;

/// The calls that weir does not support. They may touch the look-up of paths and descriptors, to know if a call
/// concerns weir, and the server, which counts it.
#[derive(Debug)]
pub struct RefusedCalls {
    first_call: FirstCall,
    paths: PathLookup,
    descriptors: Descriptors,
    server: &'static ServerLink,
}

impl RefusedCalls {
    pub(super) const fn over(state: &'static ProcessState) -> RefusedCalls {
        RefusedCalls {
            first_call: FirstCall::over(state),
            paths: PathLookup::over(state),
            descriptors: Descriptors::over(state),
            server: &state.server,
        }
    }

    /// Counts a call that the interposer itself refuses.
    pub fn note_refusal(&self, name: &'static str) {
        self.server.count_refusal(name);
    }

    /// splice(2), vmsplice(2), tee(2): EINVAL.
    pub fn splice(&self, from: Fd, to: Fd) -> Outcome<usize> {
        if self.descriptors.handle(from).is_none() && self.descriptors.handle(to).is_none() {
            return None;
        }
        self.server.count_refusal("splice");
        Some(Err(Errno::INVAL))
    }

    /// ioctl(2): ENOTTY, except for requests that concern the descriptor, which the kernel handles.
    pub fn ioctl(&self, fd: Fd, request: u64) -> Outcome<i32> {
        self.descriptors.handle(fd)?;
        match request {
            FIONCLEX | FIOCLEX | FIONBIO => None,
            // Asks for a terminal, which no file is, on any file system.
            _ if request >> 8 & 0xff == OF_TERMINALS => Some(Err(Errno::NOTTY)),
            _ => {
                self.server.count_refusal("ioctl");
                Some(Err(Errno::NOTTY))
            }
        }
    }

    /// inotify_add_watch, fanotify_mark, name_to_handle_at, bind of a Unix socket,
    /// acct, swapon, mount, chroot and so on: refused and counted as `name`.
    pub fn refuse_path(&self, dirfd: Fd, path: &[u8], name: &'static str) -> Outcome<()> {
        let _ = ours!(self.paths.resolve_existing(dirfd, path, true, false));
        Some(self.server.refuse(name))
    }

    /// io_uring_setup(2), unless the settings allow it: ENOSYS. A ring's requests bypass weir;
    /// without a ring, programs use calls that do not.
    pub fn io_uring(&self) -> Outcome<()> {
        self.first_call.instance()?;
        let allowed = self
            .server
            .node()
            .is_ok_and(|node| node.hub().io_uring.load(Ordering::Relaxed) != 0);
        if allowed {
            return None;
        }
        self.server.count_refusal("io_uring");
        Some(Err(Errno::NOSYS))
    }

    /// umount2(2): EINVAL, because nothing is mounted within weir.
    pub fn not_mounted(&self, path: &[u8]) -> Outcome<()> {
        let _ = ours!(self.paths.resolve_existing(AT_FDCWD, path, true, false));
        Some(Err(Errno::INVAL))
    }
}
