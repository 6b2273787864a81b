//! Weir's own descriptors, among the application's.
//!
//! They have high numbers, so that programs that count on the lowest free number, or close
//! "everything up to 256", do not meet them. A program that closes one is told that it is not open;
//! a program that claims the number (dup2) gets it, and ours moves. If one was closed behind weir's
//! back, that is found out before its use ([`Internal::sure`]): weir does not write to another file
//! that has its number.

use core::sync::atomic::{AtomicI32, AtomicU32, AtomicU64, Ordering};

use rustix::fs::{AtFlags, StatxFlags};
use rustix::io::Errno;
use rustix::process::{getrlimit, Resource};

use crate::kernel::{self, Fd};
use crate::neighbour::KernelIdentity;

/// The greatest number of them: a socket, a bell and the placeholder directory, a placeholder for
/// each description of another server, a few files of the kernel mount that are mapped
/// ([`crate::beneath`]), and as many as tests with several sessions in a process need.
const SLOTS: usize = 64;
/// Numbers from here on are not tracked in descriptor tables.
pub const MAX_FDS: usize = 65_536;
/// Ours lie around this number where the limit allows more: at each fork the kernel copies its table of
/// descriptors up to the highest one.
const HIGHEST: u64 = 1024;
/// The distance below the limit at which the search for a free number begins.
const BELOW_LIMIT: i32 = 64;
/// The number of one that was closed behind our back. Its slot is taken until it is closed here.
const LOST: Fd = -2;
/// F_DUPFD_CLOEXEC.
const DUPFD_CLOEXEC: i32 = 1030;

static NUMBERS: [AtomicI32; SLOTS] = [const { AtomicI32::new(-1) }; SLOTS];
/// Their files: device and inode.
static FILES: [[AtomicU64; 2]; SLOTS] = [const { [const { AtomicU64::new(0) }; 2] }; SLOTS];

/// A descriptor of ours; closed by [`Internal::close`], not by dropping.
#[derive(Clone, Copy, Debug)]
pub struct Internal(usize);

/// Holds a descriptor of ours, or none.
#[derive(Debug, Default)]
pub struct InternalSlot(AtomicU32);

impl InternalSlot {
    /// Holds none.
    pub const fn new() -> InternalSlot {
        InternalSlot(AtomicU32::new(0))
    }

    /// A slot that holds `held`.
    pub fn holding(held: Internal) -> InternalSlot {
        let slot = InternalSlot::default();
        slot.set(held);
        slot
    }

    /// Lets it hold `held`.
    pub fn set(&self, held: Internal) {
        let slot = u32::try_from(held.0).unwrap_or(u32::MAX);
        self.0.store(slot.saturating_add(1), Ordering::Release);
    }

    /// Makes it hold `held`; returns the descriptor that it held before.
    pub fn replace(&self, held: Internal) -> Option<Internal> {
        let slot = u32::try_from(held.0).unwrap_or(u32::MAX);
        as_internal(self.0.swap(slot.saturating_add(1), Ordering::AcqRel))
    }

    /// The descriptor that it holds.
    pub fn get(&self) -> Option<Internal> {
        as_internal(self.0.load(Ordering::Acquire))
    }

    /// Takes out the descriptor that it holds.
    pub fn take_descriptor(&self) -> Option<Internal> {
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
        Self::remember(moved).ok_or_else(|| {
            let _ = kernel::close(moved);
            Errno::MFILE
        })
    }

    /// Like [`Internal::adopt`], for a descriptor that weir can do without. While less than half of
    /// the slots are free, `Err` gives it back, open, maybe with another number.
    pub fn adopt_spare(fd: Fd) -> Result<Internal, Fd> {
        let is_free = |number: &&AtomicI32| number.load(Ordering::Relaxed) == -1;
        if NUMBERS.iter().filter(is_free).count() < SLOTS / 2 {
            return Err(fd);
        }
        let moved = move_high(fd);
        Self::remember(moved).ok_or(moved)
    }

    /// `None`: no slot is free.
    fn remember(moved: Fd) -> Option<Internal> {
        let identity = identity_of(moved);
        let slot = NUMBERS.iter().position(|number| {
            number
                .compare_exchange(-1, moved, Ordering::AcqRel, Ordering::Relaxed)
                .is_ok()
        })?;
        for (part, is) in FILES[slot].iter().zip(identity.unwrap_or_default().parts()) {
            part.store(is, Ordering::Relaxed);
        }
        Some(Internal(slot))
    }

    /// The identity that the kernel gave when it was taken over.
    pub fn identity(self) -> KernelIdentity {
        let parts = FILES[self.0].each_ref();
        KernelIdentity::from_parts(parts.map(|part| part.load(Ordering::Relaxed)))
    }

    /// Its number, if that still refers to the same file.
    pub fn sure(self) -> Option<Fd> {
        let number = self.number();
        if number >= 0 && identity_of(number) == Some(self.identity()) {
            return Some(number);
        }
        disown(number);
        None
    }

    /// Its number now; negative once closed.
    pub fn number(self) -> Fd {
        NUMBERS[self.0].load(Ordering::Acquire)
    }

    /// Closes it.
    pub fn close(self) {
        let number = self.sure();
        NUMBERS[self.0].store(-1, Ordering::Release);
        if let Some(number) = number {
            let _ = kernel::close(number);
        }
    }
}

/// True if `fd` is one of ours.
#[inline]
pub fn is_internal(fd: Fd) -> bool {
    fd >= 0 && NUMBERS.iter().any(|n| n.load(Ordering::Relaxed) == fd)
}

/// Notes that a number is not ours any more: it was closed behind our back.
pub fn disown(fd: Fd) {
    for number in NUMBERS.iter().filter(|_| fd >= 0) {
        let _ = number.compare_exchange(fd, LOST, Ordering::AcqRel, Ordering::Relaxed);
    }
}

/// Only attributes that the kernel knows itself: for others it would ask the process of a kernel
/// mount.
fn identity_of(fd: Fd) -> Option<KernelIdentity> {
    let flags = AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC;
    let borrowed = kernel::borrow(fd).ok()?;
    let stat = rustix::fs::statx(borrowed, c"", flags, StatxFlags::INO).ok()?;
    let device = rustix::fs::makedev(stat.stx_dev_major, stat.stx_dev_minor);
    Some(KernelIdentity::from_parts([device, stat.stx_ino]))
}

/// Makes the number `fd` free for the application, if it is one of ours.
pub fn give_way(fd: Fd) -> Result<(), Errno> {
    let held = (0..SLOTS).map(Internal);
    for ours in held.filter(|ours| ours.number() == fd) {
        if ours.sure().is_none() {
            continue;
        }
        let from = if fd > 256 { fd - BELOW_LIMIT } else { 3 };
        let moved = kernel::fcntl(fd, DUPFD_CLOEXEC, from)?;
        NUMBERS[ours.0].store(moved, Ordering::Release);
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

/// Moves `fd` to a number near the process's limit, but not beyond [`HIGHEST`]; if none is free
/// there, it stays.
fn move_high(fd: Fd) -> Fd {
    let most = HIGHEST;
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
        assert!(slot.take_descriptor().is_none());
        assert_eq!(ours.sure(), Some(ours.number()));
        slot.set(ours);
        assert_eq!(slot.get().unwrap().number(), ours.number());
        assert!(slot.take_descriptor().is_some() && slot.get().is_none());
        ours.close();
        assert_eq!(ours.number(), -1);
        assert!(!is_internal(-1));
    }

    #[test]
    fn what_was_closed_unseen_is_not_used() {
        let dir = |path| open(path, OFlags::DIRECTORY, Mode::empty()).unwrap();
        let ours = Internal::adopt(kernel::into_number(dir("/"))).unwrap();
        let number = ours.number();
        kernel::close(number).unwrap();
        let other = kernel::into_number(dir("/proc"));
        assert_eq!(kernel::dup3(other, number, 0), Ok(number));
        assert_eq!(ours.sure(), None);
        assert!(!is_internal(number));
        ours.close();
        assert!(kernel::fcntl(number, 1, 0).is_ok(), "it is another's");
        kernel::close(number).unwrap();
        kernel::close(other).unwrap();
    }

    #[test]
    fn what_can_be_done_without_leaves_room_and_is_given_back_open() {
        let open = || kernel::into_number(open("/", OFlags::DIRECTORY, Mode::empty()).unwrap());
        let mut kept = Vec::new();
        let refused = loop {
            match Internal::adopt_spare(open()) {
                Ok(one) => kept.push(one),
                Err(fd) => break fd,
            }
        };
        assert!(kept.len() <= SLOTS / 2 + 1);
        assert!(identity_of(refused).is_some() && !is_internal(refused));
        kernel::close(refused).unwrap();
        kept.into_iter().for_each(Internal::close);
    }
}
