//! What a process's calls mean: its descriptors, its current directory, its files.
//!
//! Every method is one call of POSIX or Linux and returns [`Outcome`]: `None` where the
//! call concerns nothing of weir and the kernel shall do it as if weir were not there.
//! Without an instance (no `WEIR_INSTANCE`) that is the answer to everything.
//!
//! Paths are bytes without a NUL; flags and modes are Linux's numbers.

mod pending;

/// The state of this process. There is one, [`process`].
#[derive(Debug)]
pub struct Process {
    pub(crate) state: core::sync::atomic::AtomicU32,
}

static PROCESS: Process = Process {
    state: core::sync::atomic::AtomicU32::new(0),
};

/// This process.
#[inline]
pub fn process() -> &'static Process {
    &PROCESS
}
