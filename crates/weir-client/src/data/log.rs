//! A process's log: the segments it was lent, and who of its files writes where.
//!
//! Files get *reservations*, pieces of the current segment, so that each file's bytes
//! lie one behind the other although several files are written by turns. The first
//! reservation of a file is what its first write needs; later ones grow with the
//! file, so little files waste little. A segment goes back to the server when no
//! reservation in it is in use and it is not the current one.

use std::sync::Arc;

use rustix::io::Errno;
use weir_core::node::ring::Note;
use weir_core::proto::Tier;
use weir_store::slab::SlabId;
use weir_store::slabmap::SegmentWriter;

use super::host::Host;
use crate::kernel::block_signals;
use crate::siglock::SigLock;

/// The least segment that the server lends.
const MIN_SEGMENT: u64 = 1 << 20;
/// The greatest.
const MAX_SEGMENT: u64 = 64 << 20;
/// Reservations begin at cache lines, so that whole lines are stored.
const ALIGN: u64 = 64;

/// The segments of one process. Locked only with signals blocked, so that no handler
/// finds its own thread holding the lock.
#[derive(Debug, Default)]
pub struct Log(SigLock<State>);

#[derive(Debug, Default)]
struct State {
    segments: Vec<Lease>,
    /// What to ask for next.
    want: u64,
}

/// A segment we hold. The last one is the current one.
#[derive(Debug)]
struct Lease {
    segment: u32,
    slab: SlabId,
    tier: Tier,
    /// How to write where pages may be missing; `None` for warm memory and for files.
    cold: Option<Arc<SegmentWriter>>,
    pos: u64,
    end: u64,
    /// Reservations in use.
    active: u32,
}

/// A piece of a segment for one file.
#[derive(Clone, Debug)]
pub struct Reservation {
    /// The segment, for giving it back.
    pub segment: u32,
    /// The slab.
    pub slab: SlabId,
    /// Whether it is memory whose pages are all there: stores into a mapping of it are
    /// right.
    pub warm: bool,
    /// How to write where pages may be missing.
    pub cold: Option<Arc<SegmentWriter>>,
    /// Where it begins in the slab.
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
        }))
    }

    /// Reserves at least `min` bytes, if it is cheap `want`; `ENOSPC` if the server
    /// has no segment of `min` bytes.
    pub fn reserve<H: Host>(&self, host: &H, min: u64, want: u64) -> Result<Reservation, Errno> {
        let _quiet = block_signals();
        let mut state = self.0.lock().ok_or(Errno::DEADLK)?;
        if state.current_room() < min {
            state.renew(host, min)?;
        }
        let lease = state.segments.last_mut().ok_or(Errno::NOSPC)?;
        let room = lease.end - lease.pos;
        let len = want.max(min).next_multiple_of(ALIGN).min(room);
        let reservation = Reservation {
            segment: lease.segment,
            slab: lease.slab,
            warm: lease.tier == Tier::Memory && lease.cold.is_none(),
            cold: lease.cold.clone(),
            pos: lease.pos,
            len,
        };
        lease.pos += len;
        lease.active += 1;
        Ok(reservation)
    }

    /// Makes a reservation longer by up to `want` bytes, if what is behind it is free.
    /// Returns its length, which may be what it was.
    pub fn lengthen(&self, reservation: &Reservation, want: u64) -> u64 {
        let _quiet = block_signals();
        let Some(mut state) = self.0.lock() else {
            return reservation.len;
        };
        let end = reservation.pos + reservation.len;
        match state.segments.last_mut() {
            Some(lease) if lease.segment == reservation.segment && lease.pos == end => {
                lease.pos = end
                    .saturating_add(want)
                    .next_multiple_of(ALIGN)
                    .min(lease.end);
                lease.pos - reservation.pos
            }
            _ => reservation.len,
        }
    }

    /// Gives a reservation back, of which the first `used` bytes hold data. What is
    /// behind them is used again if nobody reserved since.
    pub fn give_back<H: Host>(&self, host: &H, reservation: &Reservation, used: u64) {
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
        if lease.pos == reservation.pos + reservation.len {
            lease.pos = reservation.pos + used.next_multiple_of(ALIGN).min(reservation.len);
        }
        if at != last && lease.active == 0 {
            host.note(Note::Release(lease.segment));
            state.segments.remove(at);
        }
    }

    /// Forgets all segments: in a child after fork, to which nothing was lent.
    pub fn forget(&self) {
        self.0.break_after_fork();
        if let Some(mut state) = self.0.lock() {
            *state = State::default();
        }
    }
}

impl State {
    fn current_room(&self) -> u64 {
        self.segments.last().map_or(0, |l| l.end - l.pos)
    }

    /// Makes a new segment the current one.
    fn renew<H: Host>(&mut self, host: &H, min: u64) -> Result<(), Errno> {
        let want = self.want.clamp(MIN_SEGMENT, MAX_SEGMENT).max(min);
        let lent = host.segment(min, want)?;
        self.want = (want * 2).min(MAX_SEGMENT);
        if let Some(old) = self.segments.last() {
            if old.active == 0 {
                host.note(Note::Release(old.segment));
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
        self.segments.push(Lease {
            segment: lent.segment.0,
            slab,
            tier: lent.tier,
            cold,
            pos: lent.pos,
            end: lent.pos.saturating_add(lent.len),
            active: 0,
        });
        Ok(())
    }
}
