//! The state of the memory tier's slabs that the service thread and the warmers share.
//!
//! The service thread creates slabs and queues them. Warmers take queued ones, newest first (the
//! newest is the one still to be written), and note each piece as it becomes warm, so that a slab
//! can be lent before all of it is warm. The board is made of atomics: warmers run at the lowest priority and
//! may be stopped anywhere for long, so the service thread must never wait for one, as it might at a mutex.
//!
//! Invariant: only the service thread queues slabs and marks units as busy; only the
//! warmer that took a slab sets its warm bits, and none is ever cleared.

use std::sync::atomic::{AtomicI32, AtomicU32, AtomicU64, AtomicU8, Ordering};
use std::time::{Duration, Instant};

use rustix::fs::Timespec;
use rustix::io::Errno;
use rustix::thread::futex;

/// Nothing to do: not created yet, or done.
const IDLE: u8 = 0;
/// Waits for a warmer.
const QUEUED: u8 = 1;
/// A warmer works on it.
const TAKEN: u8 = 2;

#[derive(Debug, Default)]
struct SlabState {
    state: AtomicU8,
    /// The units that exist (short slabs have fewer than 64).
    usable: AtomicU64,
    /// The units that are warm.
    warm: AtomicU64,
    /// The units that a client is writing by pwrite. Warmers skip them meanwhile, because the
    /// client would wait for the locks of pages that a warmer is moving.
    busy: AtomicU64,
}

/// The board that the service thread and the warmers share.
#[derive(Debug)]
pub struct WarmBoard {
    slabs: Box<[SlabState]>,
    /// Counts the events that warmers wait for: queued slabs and the order to stop. A futex word.
    signal: AtomicU32,
    stop: AtomicU8,
    /// The last errno that stopped a warmer's work; 0 for none.
    last_error: AtomicI32,
    /// The errno that kept pages from becoming huge; 0 for none.
    small_pages: AtomicI32,
}

impl WarmBoard {
    /// A board for slabs 0 to `slabs`.
    pub fn new(slabs: u32) -> WarmBoard {
        WarmBoard {
            slabs: (0..slabs).map(|_| SlabState::default()).collect(),
            signal: AtomicU32::new(0),
            stop: AtomicU8::new(0),
            last_error: AtomicI32::new(0),
            small_pages: AtomicI32::new(0),
        }
    }

    /// Queues slab `index`, whose file exists, to have its `usable` units warmed.
    pub fn queue(&self, index: u32, usable: u64) {
        let entry = &self.slabs[index as usize];
        entry.usable.store(usable, Ordering::Relaxed);
        let queued =
            entry
                .state
                .compare_exchange(IDLE, QUEUED, Ordering::AcqRel, Ordering::Relaxed);
        if queued.is_ok() {
            self.wake();
        }
    }

    /// Returns the warm units of a slab, a bit each.
    pub fn warm(&self, index: u32) -> u64 {
        self.slabs[index as usize].warm.load(Ordering::Acquire)
    }

    /// True if a slab is warm or will become so without further action.
    pub fn is_under_way(&self, index: u32) -> bool {
        let entry = &self.slabs[index as usize];
        entry.state.load(Ordering::Relaxed) != IDLE
    }

    /// Sets the units of a slab that are lent cold. Returns the earlier ones.
    pub fn set_busy(&self, index: u32, units: u64) -> u64 {
        let busy = &self.slabs[index as usize].busy;
        busy.swap(units, Ordering::AcqRel)
    }

    /// The last error that stopped warmers' work (`ENOSPC`: tmpfs is full).
    pub fn last_error(&self) -> Option<Errno> {
        errno(&self.last_error)
    }

    /// The reason for small pages, if there are any: the error of `MADV_COLLAPSE`.
    pub fn small_pages(&self) -> Option<Errno> {
        errno(&self.small_pages)
    }

    /// Orders all warmers to end.
    pub(crate) fn stop(&self) {
        self.stop.store(1, Ordering::Release);
        self.wake();
    }

    /// True if warmers are to end.
    pub(crate) fn is_stopping(&self) -> bool {
        self.stop.load(Ordering::Acquire) != 0
    }

    /// Returns the number for [`WarmBoard::wait`]. A thread reads it before it looks for work, so that it
    /// does not sleep through work that is queued in between.
    pub(crate) fn signal(&self) -> u32 {
        self.signal.load(Ordering::Acquire)
    }

    /// Blocks until something was queued since `signal` was read.
    pub(crate) fn wait(&self, signal: u32) {
        let _ = futex::wait(&self.signal, futex::Flags::PRIVATE, signal, None);
    }

    /// Blocks for `pause`, or until warmers are to end.
    pub(crate) fn pause(&self, pause: Duration) {
        let over = Instant::now() + pause;
        loop {
            let signal = self.signal();
            let left = over.saturating_duration_since(Instant::now());
            if self.is_stopping() || left.is_zero() {
                return;
            }
            let left = Timespec::try_from(left).expect("a pause is short");
            let _ = futex::wait(&self.signal, futex::Flags::PRIVATE, signal, Some(&left));
        }
    }

    /// Takes the newest queued slab; returns its index and its units.
    pub(crate) fn take_slab(&self) -> Option<(u32, u64)> {
        for (index, entry) in self.slabs.iter().enumerate().rev() {
            let taken =
                entry
                    .state
                    .compare_exchange(QUEUED, TAKEN, Ordering::AcqRel, Ordering::Relaxed);
            if taken.is_ok() {
                let index = u32::try_from(index).expect("as many as were asked for");
                return Some((index, entry.usable.load(Ordering::Relaxed)));
            }
        }
        None
    }

    /// Returns the units of a slab that warmers skip now.
    pub(crate) fn busy(&self, index: u32) -> u64 {
        self.slabs[index as usize].busy.load(Ordering::Acquire)
    }

    /// Notes `units` of a taken slab as warm. `Err` gives the reason for small pages.
    pub(crate) fn note_warm(&self, index: u32, units: u64, huge: Result<(), Errno>) {
        if let Err(errno) = huge {
            self.small_pages
                .store(errno.raw_os_error(), Ordering::Relaxed);
        }
        self.slabs[index as usize]
            .warm
            .fetch_or(units, Ordering::Release);
    }

    /// Ends the work on a taken slab.
    pub(crate) fn finish_slab(&self, index: u32, outcome: Result<(), Errno>) {
        if let Err(errno) = outcome {
            self.last_error
                .store(errno.raw_os_error(), Ordering::Relaxed);
        }
        self.slabs[index as usize]
            .state
            .store(IDLE, Ordering::Release);
    }

    fn wake(&self) {
        self.signal.fetch_add(1, Ordering::AcqRel);
        let _ = futex::wake(&self.signal, futex::Flags::PRIVATE, u32::MAX >> 1);
    }
}

fn errno(number: &AtomicI32) -> Option<Errno> {
    let number = number.load(Ordering::Relaxed);
    (number != 0).then(|| Errno::from_raw_os_error(number))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_queued_slab_is_taken_once() {
        let board = WarmBoard::new(4);
        let before = board.signal();
        board.queue(1, u64::MAX);
        board.queue(2, 0b111);
        board.queue(2, 0b111);
        assert_eq!(board.signal(), before + 2);
        assert_eq!(board.take_slab(), Some((2, 0b111)));
        assert!(board.is_under_way(2));
        assert_eq!(board.take_slab(), Some((1, u64::MAX)));
        assert_eq!(board.take_slab(), None);
        board.note_warm(2, 0b11, Ok(()));
        board.note_warm(2, 0b100, Err(Errno::INVAL));
        board.finish_slab(2, Ok(()));
        assert_eq!((board.warm(2), board.is_under_way(2)), (0b111, false));
        assert_eq!(board.small_pages(), Some(Errno::INVAL));
        board.finish_slab(1, Err(Errno::NOSPC));
        assert_eq!(board.last_error(), Some(Errno::NOSPC));
    }
}
