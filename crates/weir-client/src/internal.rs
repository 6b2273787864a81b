//! Descriptors that are weir's own, in the midst of the application's.
//!
//! They sit at high numbers, where programs that count on the lowest free number, or
//! close "everything up to 256", do not meet them. A program that closes one is told
//! that it is not open; a program that claims the number (dup2) gets it, and ours moves.

use core::sync::atomic::{AtomicI32, AtomicU32, Ordering};

use rustix::io::Errno;
use rustix::process::{getrlimit, Resource};

use crate::kernel::{self, Fd};

/// How many there can be: a socket, a bell and the placeholder directory, a placeholder for each
/// description of another server, and as many as tests need that have several sessions in a
/// process.
const SLOTS: usize = 48;
/// Numbers from here on are not tracked in descriptor tables.
pub const MAX_FDS: usize = 65_536;
/// How far below the limit to begin looking for a free number.
const BELOW_LIMIT: i32 = 64;
/// F_DUPFD_CLOEXEC.
const DUPFD_CLOEXEC: i32 = 1030;

static NUMBERS: [AtomicI32; SLOTS] = [const { AtomicI32::new(-1) }; SLOTS];

/// A descriptor of ours; closed by [`Internal::close`], not by dropping.
#[derive(Clone, Copy, Debug)]
pub struct Internal(usize);

/// Holds a descriptor of ours, or none.
#[derive(Debug, Default)]
pub struct InternalSlot(AtomicU32);

impl InternalSlot {
    /// Lets it hold `held`.
    pub fn set(&self, held: Internal) {
        let slot = u32::try_from(held.0).unwrap_or(u32::MAX);
        self.0.store(slot.saturating_add(1), Ordering::Release);
    }

    /// What it holds.
    pub fn get(&self) -> Option<Internal> {
        as_internal(self.0.load(Ordering::Acquire))
    }

    /// Takes out what it holds.
    pub fn take(&self) -> Option<Internal> {
        as_internal(self.0.swap(0, Ordering::AcqRel))
    }
}

fn as_internal(word: u32) -> Option<Internal> {
    let slot = usize::try_from(word.checked_sub(1)?).ok()?;
    (slot < SLOTS).then_some(Internal(slot))
}

impl Internal {
    /// Takes over the open descriptor `fd`: moves it to a high number.
    pub fn adopt(fd: Fd) -> Result<Internal, Errno> {
        let moved = move_high(fd);
        let slot = NUMBERS.iter().position(|number| {
            number
                .compare_exchange(-1, moved, Ordering::AcqRel, Ordering::Relaxed)
                .is_ok()
        });
        slot.map(Internal).ok_or_else(|| {
            let _ = kernel::close(moved);
            Errno::MFILE
        })
    }

    /// Its number now; -1 once closed.
    pub fn number(self) -> Fd {
        NUMBERS[self.0].load(Ordering::Acquire)
    }

    /// Closes it.
    pub fn close(self) {
        let number = NUMBERS[self.0].swap(-1, Ordering::AcqRel);
        if number >= 0 {
            let _ = kernel::close(number);
        }
    }
}

/// Whether `fd` is one of ours.
#[inline]
pub fn is_internal(fd: Fd) -> bool {
    fd >= 0 && NUMBERS.iter().any(|n| n.load(Ordering::Relaxed) == fd)
}

/// Makes the number `fd` free for the application, if it is one of ours.
pub fn give_way(fd: Fd) -> Result<(), Errno> {
    for number in NUMBERS.iter().filter(|n| n.load(Ordering::Relaxed) == fd) {
        let from = if fd > 256 { fd - BELOW_LIMIT } else { 3 };
        let moved = kernel::fcntl(fd, DUPFD_CLOEXEC, from)?;
        number.store(moved, Ordering::Release);
        kernel::close(fd)?;
    }
    Ok(())
}

/// All numbers of ours, in order.
pub fn numbers() -> Vec<Fd> {
    let open = |n: &AtomicI32| Some(n.load(Ordering::Acquire)).filter(|fd| *fd >= 0);
    let mut all: Vec<Fd> = NUMBERS.iter().filter_map(open).collect();
    all.sort_unstable();
    all
}

/// Moves `fd` to a number near the process's limit; where there is none free, it stays.
fn move_high(fd: Fd) -> Fd {
    let most = MAX_FDS as u64;
    let limit = getrlimit(Resource::Nofile)
        .current
        .unwrap_or(most)
        .min(most);
    let limit = i32::try_from(limit).unwrap_or(1024);
    let from = (limit - BELOW_LIMIT).max(limit / 2);
    match kernel::fcntl(fd, DUPFD_CLOEXEC, from) {
        Ok(high) => {
            let _ = kernel::close(fd);
            high
        }
        Err(_) => fd,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fs::{open, Mode, OFlags};

    #[test]
    fn ours_sits_high_moves_away_and_is_known() {
        let fd = kernel::into_number(open("/", OFlags::DIRECTORY, Mode::empty()).unwrap());
        let ours = Internal::adopt(fd).unwrap();
        let number = ours.number();
        assert!(number > fd && is_internal(number) && !is_internal(fd));
        give_way(number).unwrap();
        assert!(ours.number() != number && !is_internal(number));
        assert_eq!(kernel::fcntl(ours.number(), 1, 0), Ok(1));
        assert!(numbers().contains(&ours.number()));
        let slot = InternalSlot::default();
        assert!(slot.take().is_none());
        slot.set(ours);
        assert_eq!(slot.get().unwrap().number(), ours.number());
        assert!(slot.take().is_some() && slot.get().is_none());
        ours.close();
        assert_eq!(ours.number(), -1);
        assert!(!is_internal(-1));
    }
}
