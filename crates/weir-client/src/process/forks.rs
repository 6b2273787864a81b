//! The process that runs on this memory: the one that its tables are of, or a child of that.
//!
//! Announced forks are counted while they are under way. A child that nothing announced (a raw
//! clone) is detected by a page that the kernel wipes for it.

use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use crate::kernel::{self, Slot};

/// The process that runs on this memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum MemoryUser {
    /// The process that the state is of.
    Owner,
    /// A child of vfork: its own descriptors on its parent's memory.
    VforkChild,
    /// A forked child with a copy of its parent's state, which nothing announced.
    UnannouncedChild,
}

/// The owner of this process's state, and its forks.
#[derive(Debug)]
pub(super) struct ForkWatch {
    /// The number of the process that the state is of.
    owner: AtomicU32,
    /// The number of forks under way: only within one can a child run on this memory.
    under_way: AtomicU32,
    /// 1, until a fork wipes it.
    unforked: Slot<AtomicU64>,
}

impl ForkWatch {
    /// Of no process yet.
    pub(super) const fn new() -> ForkWatch {
        ForkWatch {
            owner: AtomicU32::new(0),
            under_way: AtomicU32::new(0),
            unforked: Slot::empty(),
        }
    }

    /// The number of the process that the state is of.
    pub(super) fn owner_pid(&self) -> u32 {
        self.owner.load(Ordering::Relaxed)
    }

    /// True if the calling process is the owner, or if the state is nobody's yet.
    pub(super) fn is_owner(&self) -> bool {
        [0, own_pid()].contains(&self.owner_pid())
    }

    /// Makes the calling process the owner.
    pub(super) fn become_owner(&self) {
        self.owner.store(own_pid(), Ordering::Relaxed);
        if let Some(unforked) = self.unforked.get() {
            unforked.store(1, Ordering::Relaxed);
        }
    }

    /// Starts to detect unannounced forks: from the first session on, and the first fork. Most
    /// programs have neither.
    pub(super) fn detect_forks(&self) {
        if self.unforked.get().is_none() {
            self.unforked.set(kernel::page_wiped_on_fork());
            self.become_owner();
        }
    }

    /// An announced fork begins.
    pub(super) fn begin_fork(&self) {
        self.under_way.fetch_add(1, Ordering::Relaxed);
    }

    /// An announced fork is over in the parent.
    pub(super) fn finish_fork(&self) {
        self.under_way.fetch_sub(1, Ordering::Relaxed);
    }

    /// In a forked child: the forks of the parent are not its own.
    pub(super) fn forget_forks(&self) {
        self.under_way.store(0, Ordering::Relaxed);
    }

    /// The process that is calling.
    pub(super) fn memory_user(&self) -> MemoryUser {
        // Between announced forks, no other process runs on this memory; asking the kernel costs as
        // much as the rest of an open.
        let wiped = self
            .unforked
            .get()
            .map(|page| page.load(Ordering::Relaxed) == 0);
        if wiped == Some(false) && self.under_way.load(Ordering::Relaxed) == 0 {
            return MemoryUser::Owner;
        }
        if own_pid() == self.owner_pid() {
            return MemoryUser::Owner;
        }
        match wiped {
            Some(false) => MemoryUser::VforkChild,
            _ => MemoryUser::UnannouncedChild,
        }
    }
}

/// The number of the calling process, from the kernel.
pub fn own_pid() -> u32 {
    rustix::process::getpid()
        .as_raw_nonzero()
        .get()
        .unsigned_abs()
}
