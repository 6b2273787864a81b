//! The first call of a process, for the calls that need what it finds.
//!
//! Whichever call comes first, it finds the instance and adopts the descriptors that the process has
//! inherited. That goes through most of the state, the current directory included, whatever the call
//! itself is about. So calls get it as a type that gives out only its result.

use core::sync::atomic::Ordering;

use super::instance::Instance;
use super::table::{self, Handle};
use super::ProcessState;
use crate::kernel::Fd;

/// Nothing was looked at yet.
pub(super) const UNKNOWN: u32 = 0;
/// There is no instance.
pub(super) const ABSENT: u32 = 1;
/// There is one.
pub(super) const READY: u32 = 2;

/// The first call of a process. It may touch all of the state, and gives out the instance, and the
/// handles of descriptors.
#[derive(Clone, Copy, Debug)]
pub(super) struct FirstCall {
    state: &'static ProcessState,
}

impl FirstCall {
    pub(super) const fn over(state: &'static ProcessState) -> FirstCall {
        FirstCall { state }
    }

    /// True if nothing more is to be looked for.
    #[inline]
    pub(super) fn is_done(self) -> bool {
        self.state.progress.load(Ordering::Acquire) != UNKNOWN
    }

    /// Looks for the instance, and for inherited descriptors of it, unless that has happened already.
    #[inline]
    pub(super) fn ensure(self) {
        if !self.is_done() {
            self.state.start();
        }
    }

    /// The instance, if there is one.
    #[inline]
    pub(super) fn instance(self) -> Option<&'static Instance> {
        self.ensure();
        self.state.server.connection.instance()
    }

    /// The handle of the descriptor, if it is weir's.
    #[inline]
    pub(super) fn handle(self, fd: Fd) -> Option<&'static Handle> {
        match table::get(fd) {
            Some(handle) => Some(handle),
            // An inherited descriptor, before anything was initialised?
            None if self.is_done() => None,
            None => self.handle_slowly(fd),
        }
    }

    #[cold]
    fn handle_slowly(self, fd: Fd) -> Option<&'static Handle> {
        self.state.start();
        table::get(fd)
    }
}
