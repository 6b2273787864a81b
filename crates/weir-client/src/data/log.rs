//! A process's log: the segments lent to it, and the reservations of its files in them.
//!
//! Files get *reservations*, pieces of the current segment, so that each file's bytes are
//! contiguous although several files are written by turns. The first reservation of a file is as
//! long as its first write; later ones grow with the file, so small files waste little. A segment
//! goes back to the server when no reservation in it is in use and it is not the current one. The
//! tail of the current one is a word that the server sees, and can shorten when others need room
//! ([`weir_core::node::tail`]).

use std::sync::Arc;

use rustix::io::Errno;
use weir_core::node::ring::Note;
use weir_core::node::tail::{Tail, TailWords};
use weir_core::proto::{Lent, Tier};
use weir_store::slab::SlabId;
use weir_store::slabmap::{SegmentWriter, SlabMap};

use crate::kernel::block_signals;
use crate::siglock::SigLock;

/// The least segment that the server lends.
const MIN_SEGMENT: u64 = 1 << 20;
/// The greatest.
const MAX_SEGMENT: u64 = 64 << 20;
/// Reservations begin at cache lines, so that whole lines are stored.
const ALIGN: u64 = 64;

/// Lends segments and takes them back. The process around the data path is one.
pub trait SegmentSource {
    /// The word that shows the tail of the current segment to the server; `None`: the server does
    /// not look.
    fn tail(&self) -> Option<&TailWords> {
        None
    }
    /// Asks for a segment.
    fn segment(&self, min_bytes: u64, want_bytes: u64) -> Result<Lent, Errno>;
    /// Sends the server a note, without waiting.
    fn note(&self, note: Note);
    /// The node's slabs.
    fn slabs(&self) -> &SlabMap;
}

/// The segments of one process. Locked only with signals blocked, so that no handler
/// finds its own thread holding the lock.
#[derive(Debug, Default)]
pub struct Log(SigLock<State>);

#[derive(Debug, Default)]
struct State {
    segments: Vec<Lease>,
    /// The size of the next segment to request.
    want: u64,
    /// The tail, if no server looks at it.
    own_tail: TailWords,
}

/// A segment lent to this process. The last one is the current one.
#[derive(Debug)]
struct Lease {
    segment: u32,
    slab: SlabId,
    tier: Tier,
    /// The writer to use where pages may be missing; `None` for warm memory and for files.
    cold: Option<Arc<SegmentWriter>>,
    /// The number of reservations in use.
    active: u32,
}

/// A piece of a segment for one file.
#[derive(Clone, Debug)]
pub struct Reservation {
    /// The segment, for giving it back.
    pub segment: u32,
    /// The slab.
    pub slab: SlabId,
    /// True if it is memory whose pages all exist, so that stores into a mapping of it are correct.
    pub warm: bool,
    /// The writer to use where pages may be missing.
    pub cold: Option<Arc<SegmentWriter>>,
    /// Its offset in the slab.
    pub pos: u64,
    /// Its length, bytes.
    pub len: u64,
}

impl Log {
    /// A log without segments.
    pub const fn new() -> Log {
        Log(SigLock::new(State {
            segments: Vec::new(),
            want: 0,
            own_tail: TailWords::none(),
        }))
    }

    /// Reserves at least `min` bytes, and `want` if that is cheap; `ENOSPC` if the server has no
    /// segment of `min` bytes.
    pub fn reserve<H: SegmentSource>(
        &self,
        host: &H,
        min: u64,
        want: u64,
    ) -> Result<Reservation, Errno> {
        let _quiet = block_signals();
        let mut state = self.0.lock().ok_or(Errno::DEADLK)?;
        let wish = want.max(min).next_multiple_of(ALIGN);
        let (pos, len) = if let Some(taken) = state.allocate(host, min, wish) {
            taken
        } else {
            state.renew(host, min)?;
            // If little room is left, the server lent less than `min`.
            state.allocate(host, 1, wish).ok_or(Errno::NOSPC)?
        };
        let lease = state.segments.last_mut().ok_or(Errno::NOSPC)?;
        lease.active += 1;
        Ok(Reservation {
            segment: lease.segment,
            slab: lease.slab,
            warm: lease.tier == Tier::Memory && lease.cold.is_none(),
            cold: lease.cold.clone(),
            pos,
            len,
        })
    }

    /// Lengthens a reservation by up to `want` bytes, if the bytes behind it are free. Returns its
    /// length, changed or not.
    pub fn lengthen<H: SegmentSource>(
        &self,
        host: &H,
        reservation: &Reservation,
        want: u64,
    ) -> u64 {
        let _quiet = block_signals();
        let Some(state) = self.0.lock() else {
            return reservation.len;
        };
        if state.current() != Some(reservation.segment) {
            return reservation.len;
        }
        let end = reservation.pos + reservation.len;
        let longer = state.tail(host).update(|tail| {
            let pos = end.saturating_add(want).next_multiple_of(ALIGN);
            (tail.pos == end && tail.room() > 0).then_some(Tail {
                pos: pos.min(tail.end),
                ..tail
            })
        });
        longer.map_or(reservation.len, |tail| tail.pos - reservation.pos)
    }

    /// Gives a reservation back, of which the first `used` bytes hold data. The rest is used again
    /// if nothing behind it was reserved since.
    pub fn give_back<H: SegmentSource>(&self, host: &H, reservation: &Reservation, used: u64) {
        let _quiet = block_signals();
        let Some(mut state) = self.0.lock() else {
            return;
        };
        let last = state.segments.len().wrapping_sub(1);
        let Some(at) = state
            .segments
            .iter()
            .position(|l| l.segment == reservation.segment)
        else {
            return;
        };
        let lease = &mut state.segments[at];
        lease.active = lease.active.saturating_sub(1);
        let (segment, in_use) = (lease.segment, lease.active > 0);
        if at == last {
            let end = reservation.pos + reservation.len;
            let used = used.next_multiple_of(ALIGN).min(reservation.len);
            state.tail(host).update(|tail| {
                let unused = tail.pos == end && !tail.gone;
                let pos = if unused {
                    end - reservation.len + used
                } else {
                    tail.pos
                };
                Some(Tail {
                    pos,
                    in_use,
                    ..tail
                })
            });
        } else if !in_use {
            host.note(Note::Release(segment));
            state.segments.remove(at);
        }
    }

    /// Tells the server that a segment has no room for its pages, and reserves nothing more of it.
    pub fn refuse<H: SegmentSource>(&self, host: &H, segment: u32) {
        let _quiet = block_signals();
        let Some(state) = self.0.lock() else {
            return;
        };
        host.note(Note::Refused(segment));
        if state.current() == Some(segment) {
            state.tail(host).update(|tail| {
                Some(Tail {
                    end: tail.pos,
                    ..tail
                })
            });
        }
    }

    /// Forgets all segments: in a child after fork, which was lent none.
    pub fn forget(&self) {
        // SAFETY: the parent's other threads do not exist here; no guard of theirs is used again.
        unsafe { self.0.break_after_fork() };
        if let Some(mut state) = self.0.lock() {
            *state = State::default();
        }
    }
}

impl State {
    /// The segment that reservations are taken from.
    fn current(&self) -> Option<u32> {
        self.segments.last().map(|lease| lease.segment)
    }

    /// The tail of it.
    fn tail<'a, H: SegmentSource>(&'a self, host: &'a H) -> &'a TailWords {
        host.tail().unwrap_or(&self.own_tail)
    }

    /// Takes at least `min` and at most `wish` bytes of it; returns their offset and number.
    fn allocate<H: SegmentSource>(&self, host: &H, min: u64, wish: u64) -> Option<(u64, u64)> {
        self.current()?;
        let mut taken = None;
        self.tail(host).update(|tail| {
            let room = tail.room();
            taken = (room >= min.max(1)).then_some((tail.pos, wish.min(room)));
            let (pos, len) = taken?;
            Some(Tail {
                pos: pos + len,
                in_use: true,
                ..tail
            })
        });
        taken
    }

    /// Makes a new segment the current one.
    fn renew<H: SegmentSource>(&mut self, host: &H, min: u64) -> Result<(), Errno> {
        let want = self.want.clamp(MIN_SEGMENT, MAX_SEGMENT).max(min);
        let lent = host.segment(min, want)?;
        self.want = (want * 2).min(MAX_SEGMENT);
        if let Some(old) = self.segments.last() {
            if old.active == 0 {
                if !self.tail(host).load().gone {
                    host.note(Note::Release(old.segment));
                }
                self.segments.pop();
            }
        }
        let slab = SlabId::from_raw(lent.slab).ok_or(Errno::IO)?;
        let cold = match lent.tier {
            Tier::Memory if !lent.warm => {
                let writer = host.slabs().writer(slab, lent.pos, lent.len, false)?;
                Some(Arc::new(writer))
            }
            _ => None,
        };
        let end = lent.pos.saturating_add(lent.len);
        self.tail(host).begin(lent.segment.0, lent.pos, end);
        self.segments.push(Lease {
            segment: lent.segment.0,
            slab,
            tier: lent.tier,
            cold,
            active: 0,
        });
        Ok(())
    }
}
