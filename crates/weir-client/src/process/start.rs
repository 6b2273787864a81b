//! The first call of a process: finding the instance, mapping its memory, connecting.
//!
//! Each step is done when it is first needed: a process that uses nothing of weir reads two links
//! and its list of descriptors; one that only looks at files maps the tables; one that opens files
//! connects.

use core::sync::atomic::Ordering;

use rustix::fs::Mode;

use super::environment::{variable, INSTANCE_VARIABLE};
use super::first_call::{ABSENT, READY, UNKNOWN};
use super::inherit::Inheritance;
use super::instance::Instance;
use super::{Process, ProcessState};

impl ProcessState {
    /// Finds the instance, and adopts what the process has inherited.
    #[cold]
    pub(super) fn start(&'static self) {
        // A call from within (an allocator that opens files) is the kernel's.
        if self.server.lock.is_mine() {
            return;
        }
        let _held = self.server.lock.hold();
        if self.progress.load(Ordering::Acquire) != UNKNOWN {
            return;
        }
        let Some(named) = named_instance() else {
            self.progress.store(ABSENT, Ordering::Release);
            return;
        };
        self.server.forks.become_owner();
        let found = self
            .server
            .connection
            .find_instance(named.clone(), &self.server.forks);
        let instance = found.unwrap_or_else(|| Instance::ended(named));
        let mask = rustix::process::umask(Mode::empty());
        rustix::process::umask(mask);
        self.user.set_umask(mask.bits());
        self.user.read_credentials();
        let instance = self.server.connection.set_instance(instance);
        Inheritance::over(self).adopt(Some(instance));
        self.progress.store(READY, Ordering::Release);
    }
}

impl Process {
    /// Initialises, unless that has happened already: adopts the descriptors inherited over exec.
    pub fn init(&'static self) {
        self.first_call.ensure();
    }

    /// True if there is an instance.
    pub fn is_active(&'static self) -> bool {
        self.first_call.instance().is_some()
    }
}

/// The run directory that the environment names.
fn named_instance() -> Option<Vec<u8>> {
    variable(INSTANCE_VARIABLE)
}
