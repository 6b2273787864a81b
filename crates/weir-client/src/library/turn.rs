//! The words that a fork wipes: a child of an attached process is not attached.
//!
//! Each of the two words is on a page that a forked child finds zeroed. The library waits on
//! nothing else, so a child never waits for a thread that it does not have.

use core::sync::atomic::{AtomicU64, Ordering};
use core::time::Duration;

use rustix::io::Errno;
use rustix::thread::nanosleep;
use rustix::time::Timespec;

use crate::kernel::{page_wiped_on_fork, Slot};

/// The number of attaches without a detach.
static USERS: Slot<AtomicU64> = Slot::empty();
/// [`HELD`] and [`LIVED`].
static TURN: Slot<AtomicU64> = Slot::empty();

/// A thread attaches or detaches.
const HELD: u64 = 1;
/// This process has attached before.
const LIVED: u64 = 2;

/// The time to sleep before the next look; attaching takes a few hundred us.
const AGAIN: Duration = Duration::from_micros(50);

/// The count of users. ENOSYS: the kernel cannot wipe memory on fork.
pub fn users() -> Result<&'static AtomicU64, Errno> {
    wiped(&USERS)
}

fn wiped(slot: &Slot<AtomicU64>) -> Result<&'static AtomicU64, Errno> {
    match slot.get() {
        Some(word) => Ok(word),
        // If two threads come first at once, one has mapped a page in vain.
        None => Ok(slot.get_or_set(page_wiped_on_fork().ok_or(Errno::NOSYS)?)),
    }
}

/// The turn to attach or detach; given back when dropped.
#[derive(Debug)]
pub struct Turn {
    word: &'static AtomicU64,
    first: bool,
}

impl Turn {
    /// Waits for it.
    pub fn wait_for() -> Result<Turn, Errno> {
        let word = wiped(&TURN)?;
        loop {
            let before = word.fetch_or(HELD | LIVED, Ordering::AcqRel);
            if before & HELD == 0 {
                let first = before & LIVED == 0;
                return Ok(Turn { word, first });
            }
            let nap = Timespec {
                tv_sec: 0,
                tv_nsec: AGAIN.subsec_nanos().into(),
            };
            // A signal only makes the next look earlier.
            let _ = nanosleep(&nap);
        }
    }

    /// True if it is the first turn in this process.
    pub fn is_first(&self) -> bool {
        self.first
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        self.word.fetch_and(!HELD, Ordering::AcqRel);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn turns_are_taken_one_by_one_and_the_first_is_known() {
        let first = Turn::wait_for().unwrap();
        assert!(first.is_first());
        let other = std::thread::spawn(|| Turn::wait_for().unwrap().is_first());
        drop(first);
        assert!(!other.join().unwrap());
        assert!(!Turn::wait_for().unwrap().is_first());
    }
}
