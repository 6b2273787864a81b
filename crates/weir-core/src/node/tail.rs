//! The tail of a client's current segment: the part that none of its files has reserved yet.
//!
//! A client takes from it without asking. The server takes back the rest when others need room,
//! even if the client sleeps or was stopped. Both change one word by compare-and-swap, so that no
//! byte ever belongs to both. The part before the tail stays the client's as long as any of its
//! files has a reservation there; when none has, the server may take all of the segment.
//!
//! ```text
//! bit   63     62      61..54  53..27                 26..0
//!      +------+-------+-------+----------------------+---------------------------+
//!      | gone | taken | count | where it ends (slab) | where the rest begins     |
//!      +------+-------+-------+----------------------+---------------------------+
//! gone: the server took the segment; taken: files have reservations in it;
//! count: differs between a segment and the next one
//! ```

use crate::sync::{AtomicU64, Ordering};

const POS_BITS: u32 = 27;
const MASK: u64 = (1 << POS_BITS) - 1;
const COUNT_SHIFT: u32 = 2 * POS_BITS;
const COUNT: u64 = 0xff;
const IN_USE: u64 = 1 << 62;
const GONE: u64 = 1 << 63;

/// The meaning of the words at one moment.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Tail {
    /// The position of the rest in the slab, bytes.
    pub pos: u64,
    /// The end of the segment in the slab, bytes.
    pub end: u64,
    /// True if files have reservations in the segment.
    pub in_use: bool,
    /// True if the server took the segment back.
    pub gone: bool,
    /// Tells it from the tail of the segment before.
    pub count: u64,
}

impl Tail {
    /// Bytes that may be reserved.
    pub fn room(&self) -> u64 {
        self.end.saturating_sub(self.pos)
    }

    fn of(word: u64) -> Tail {
        Tail {
            pos: word & MASK,
            end: (word >> POS_BITS) & MASK,
            in_use: word & IN_USE != 0,
            gone: word & GONE != 0,
            count: (word >> COUNT_SHIFT) & COUNT,
        }
    }

    fn word(&self) -> u64 {
        debug_assert!(self.pos <= MASK && self.end <= MASK);
        let flags = (u64::from(self.in_use) * IN_USE) | (u64::from(self.gone) * GONE);
        let places = ((self.end & MASK) << POS_BITS) | (self.pos & MASK);
        flags | (self.count << COUNT_SHIFT) | places
    }
}

/// The two words: the tail, and its segment.
#[repr(C)]
#[derive(Debug, Default)]
pub struct TailWords {
    word: AtomicU64,
    /// The segment's number + 1; 0: none.
    segment: AtomicU64,
}

impl TailWords {
    /// No segment.
    #[cfg(not(feature = "explore"))]
    pub const fn none() -> TailWords {
        TailWords {
            word: AtomicU64::new(0),
            segment: AtomicU64::new(0),
        }
    }

    /// No segment (server, before the region is lent).
    pub fn reset(&self) {
        self.segment.store(0, Ordering::Relaxed);
        self.word.store(0, Ordering::Release);
    }

    /// Returns its current state.
    pub fn load(&self) -> Tail {
        Tail::of(self.word.load(Ordering::Acquire))
    }

    /// Goes on with `segment`, `[pos, end)` of its slab (client).
    pub fn begin(&self, segment: u32, pos: u64, end: u64) {
        let count = (self.load().count + 1) & COUNT;
        let none = Tail {
            count,
            ..Tail::default()
        };
        // Release: a reader that sees the new tail sees the new number.
        self.word.store(none.word(), Ordering::Release);
        self.segment
            .store(u64::from(segment) + 1, Ordering::Release);
        let tail = Tail { pos, end, ..none };
        self.word.store(tail.word(), Ordering::Release);
    }

    /// Changes the tail by `change`, which is called again if the server was faster; returns `None`
    /// as soon as `change` does.
    pub fn update(&self, mut change: impl FnMut(Tail) -> Option<Tail>) -> Option<Tail> {
        loop {
            let now = self.load();
            let new = change(now)?;
            let new = Tail {
                count: now.count,
                ..new
            };
            let swapped = self.word.compare_exchange(
                now.word(),
                new.word(),
                Ordering::AcqRel,
                Ordering::Acquire,
            );
            if swapped.is_ok() {
                return Some(new);
            }
        }
    }

    /// Returns the tail's segment and its state (server); `None` also while the client goes on with
    /// another segment. The client may have written anything there.
    pub fn current(&self) -> Option<(u32, Tail)> {
        let segment = self.segment.load(Ordering::Acquire);
        let tail = self.load();
        let same = self.segment.load(Ordering::Acquire) == segment;
        let number = u32::try_from(segment.checked_sub(1)?).ok()?;
        // A tail that is neither the old segment's nor the new one's: what the server took of it would
        // be the client's again with the next word that `begin` stores.
        let begins = tail.end == 0 && !tail.gone;
        (same && !begins).then_some((number, tail))
    }

    /// Forgets the number of a segment that was taken back (server). Before the server lends the client
    /// the same one again: until the client goes on with it, the tail is that of the earlier lending.
    pub fn forget_taken(&self) {
        if self.load().gone {
            self.segment.store(0, Ordering::Release);
        }
    }

    /// Takes the part behind `end` away from the client, and with `gone` the segment, if the tail
    /// is still as it was `seen`.
    pub fn take(&self, seen: &Tail, end: u64, gone: bool) -> bool {
        let new = Tail { end, gone, ..*seen };
        self.word
            .compare_exchange(seen.word(), new.word(), Ordering::AcqRel, Ordering::Acquire)
            .is_ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SLAB: u64 = 64 << 20;

    #[test]
    fn what_the_server_takes_the_client_does_not_get() {
        let tail = TailWords::default();
        assert_eq!(tail.current(), None);
        tail.begin(7, 0, SLAB);
        let reserve = |len| {
            tail.update(|t| {
                (t.room() >= len).then_some(Tail {
                    pos: t.pos + len,
                    in_use: true,
                    ..t
                })
            })
        };
        assert_eq!(reserve(1000).map(|t| t.pos), Some(1000));
        let (segment, seen) = tail.current().unwrap();
        assert_eq!((segment, seen.room(), seen.in_use), (7, SLAB - 1000, true));
        reserve(1).unwrap();
        assert!(!tail.take(&seen, 1 << 20, false), "the client was faster");
        let (_, seen) = tail.current().unwrap();
        assert!(tail.take(&seen, 1 << 20, false));
        assert_eq!(reserve(1 << 20), None);
        assert_eq!(tail.load().room(), (1 << 20) - 1001);
    }

    #[test]
    fn the_tail_of_one_segment_is_not_taken_for_that_of_the_next() {
        let tail = TailWords::default();
        tail.begin(7, 0, SLAB);
        let (_, seen) = tail.current().unwrap();
        tail.begin(8, 0, SLAB);
        assert!(!tail.take(&seen, 0, true));
        tail.reset();
        assert_eq!(tail.current(), None);
    }

    #[test]
    fn a_tail_between_two_segments_is_not_taken() {
        let tail = TailWords::default();
        tail.begin(7, 0, SLAB);
        // The states that `begin` passes through.
        let none = Tail {
            count: 2,
            ..Tail::default()
        };
        tail.word.store(none.word(), Ordering::Relaxed);
        assert_eq!(tail.current(), None);
        tail.segment.store(9, Ordering::Relaxed);
        assert_eq!(tail.current(), None);
    }

    #[test]
    fn a_taken_segment_that_is_lent_again_is_not_taken_by_its_old_tail() {
        let tail = TailWords::default();
        tail.begin(7, 0, SLAB);
        tail.forget_taken();
        let (_, seen) = tail.current().unwrap();
        assert!(tail.take(&seen, 0, true));
        assert_eq!(tail.current().map(|(segment, _)| segment), Some(7));
        tail.forget_taken();
        assert_eq!((tail.current(), tail.load().gone), (None, true));
        tail.begin(7, 0, SLAB);
        assert_eq!(tail.load().room(), SLAB);
    }
}
