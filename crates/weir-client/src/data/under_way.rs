//! Bytes of other nodes on their way to one call.
//!
//! The bytes that a call wants are requested in a sliding window: at first [`WINDOW`] reads, then
//! more as soon as [`STEP`] of them are copied, always of the servers with the fewest reads under
//! way. So no server idles while another one's bytes are awaited, and a slow one delays only its
//! own. Among equal servers each node begins with the one after itself, so that nodes that read the
//! same file do not all begin at the same server.
//!
//! Invariants:
//! - A call with reads under way never waits for room in the node's pool, because others may wait for
//!   its room: further reads get room as read-ahead does, or none.
//! - Each landing is given back, whatever the result of the call.

use core::ops::Range;
use std::collections::{BTreeMap, VecDeque};

use rustix::io::Errno;
use weir_core::proto::peer::LogRange;
use weir_core::proto::Landing;
use weir_core::types::Ino;

use super::host::{release, Host};
use super::pieces::{Batch, PiecePosition, Target};

/// The number of reads under way at a time: half of the node's pool, which others want too.
const WINDOW: usize = 32;
/// The number of reads requested at a time once the first have arrived: few requests, and the
/// servers still have some to do.
const STEP: usize = 8;

/// A read that is under way.
#[derive(Debug)]
struct OnItsWay {
    landing: Landing,
    batch: Batch,
    /// The bytes of it that are copied.
    done: usize,
}

/// The reads of a call: those under way, and those not requested yet.
pub struct ReadsUnderWay<'a, H: Host> {
    host: &'a H,
    ino: Ino,
    /// The reads not requested yet, by the server's distance in rank behind this node's own.
    missing: BTreeMap<u16, VecDeque<Batch>>,
    way: Vec<OnItsWay>,
    /// More reads are requested when no more than this are under way.
    ask_at: usize,
}

impl<'a, H: Host> ReadsUnderWay<'a, H> {
    /// All reads of a call; none is requested yet.
    pub fn new(host: &'a H, ino: Ino, batches: Vec<Batch>) -> ReadsUnderWay<'a, H> {
        let mut coming = ReadsUnderWay {
            host,
            ino,
            missing: BTreeMap::new(),
            way: Vec::new(),
            ask_at: 0,
        };
        coming.add(batches);
        coming
    }

    /// Adds reads.
    pub fn add(&mut self, batches: Vec<Batch>) {
        for batch in batches {
            let behind = self.behind(&batch);
            self.missing.entry(behind).or_default().push_back(batch);
        }
    }

    fn behind(&self, batch: &Batch) -> u16 {
        batch.rank().wrapping_sub(self.host.rank())
    }

    /// Requests the first reads; at least one of them gets room.
    pub fn begin(&mut self) -> Result<(), Errno> {
        match self.missing.is_empty() {
            true => Ok(()),
            false => self.ask(true),
        }
    }

    /// Copies all bytes to their targets as they arrive.
    pub fn finish(mut self, targets: &mut [Target<'_>]) -> Result<(), Errno> {
        loop {
            if self.way.is_empty() {
                if self.missing.is_empty() {
                    return Ok(());
                }
                self.ask(true)?;
            }
            if !self.copy(targets)? {
                // The oldest is the one that its server is sending now.
                self.copy_of(0, true, targets)?;
            }
            if self.way.len() <= self.ask_at && !self.missing.is_empty() {
                self.ask(false)?;
            }
        }
    }

    /// Requests as many reads as the window has room for. With `wait`, at least one is under way
    /// afterwards.
    fn ask(&mut self, wait: bool) -> Result<(), Errno> {
        let batches = self.choose();
        let reads: Vec<Vec<LogRange>> = batches.iter().map(|b| b.ranges.clone()).collect();
        let landings = self.host.ask(self.ino, &reads, !wait)?;
        if landings.len() > batches.len() || (wait && landings.is_empty()) {
            return Err(Errno::IO);
        }
        let mut landings = landings.into_iter();
        let mut refused = Vec::new();
        for batch in batches {
            match landings
                .next()
                .filter(|landing| wait || self.claims(*landing))
            {
                Some(landing) => self.way.push(OnItsWay {
                    landing,
                    done: batch.first(),
                    batch,
                }),
                None => refused.push(batch),
            }
        }
        for batch in refused.into_iter().rev() {
            let behind = self.behind(&batch);
            self.missing.entry(behind).or_default().push_front(batch);
        }
        self.ask_at = self.way.len().saturating_sub(STEP);
        Ok(())
    }

    /// Claims a read that was requested as read-ahead; false if the server has taken it back.
    fn claims(&self, landing: Landing) -> bool {
        let slot = self.host.slot(landing);
        slot.is_some_and(|slot| slot.claim(landing.serial))
    }

    /// Takes out the reads to request next.
    fn choose(&mut self) -> Vec<Batch> {
        let mut under_way: BTreeMap<u16, usize> = BTreeMap::new();
        for read in &self.way {
            *under_way.entry(self.behind(&read.batch)).or_default() += 1;
        }
        let mut chosen = Vec::new();
        while self.way.len() + chosen.len() < WINDOW {
            let count = |behind: &u16| under_way.get(behind).copied().unwrap_or(0);
            let idlest = self.missing.keys().min_by_key(|behind| count(behind));
            let Some(behind) = idlest.copied() else {
                break;
            };
            *under_way.entry(behind).or_default() += 1;
            if let Some(batches) = self.missing.get_mut(&behind) {
                chosen.extend(batches.pop_front());
                if batches.is_empty() {
                    self.missing.remove(&behind);
                }
            }
        }
        chosen
    }

    /// Copies the bytes that have arrived; false if none have.
    fn copy(&mut self, targets: &mut [Target<'_>]) -> Result<bool, Errno> {
        let mut any = false;
        let mut number = 0;
        while number < self.way.len() {
            let count = self.way.len();
            any |= self.copy_of(number, false, targets)?;
            number += usize::from(self.way.len() == count);
        }
        Ok(any)
    }

    /// Copies the bytes of one read that have arrived, and gives it back if it is complete.
    fn copy_of(
        &mut self,
        number: usize,
        wait: bool,
        targets: &mut [Target<'_>],
    ) -> Result<bool, Errno> {
        let Some(read) = self.way.get_mut(number) else {
            return Ok(false);
        };
        let (from, end) = (read.done, read.batch.last());
        read.done = copy_some(
            self.host,
            read.landing,
            from..end,
            wait,
            &read.batch.positions,
            targets,
        )?;
        let any = read.done > from;
        if read.done == end {
            release(self.host, self.way.remove(number).landing);
            return Ok(true);
        }
        Ok(any)
    }
}

impl<H: Host> Drop for ReadsUnderWay<'_, H> {
    fn drop(&mut self) {
        for read in &self.way {
            release(self.host, read.landing);
        }
    }
}

/// Copies the positions of a read, in its order, to their targets, until all bytes have arrived.
pub fn copy_arrived<H: Host>(
    host: &H,
    landing: Landing,
    positions: &[PiecePosition],
    targets: &mut [Target<'_>],
) -> Result<(), Errno> {
    let (Some(first), Some(last)) = (positions.first(), positions.last()) else {
        return Ok(());
    };
    let mut done = first.from;
    while done < last.read_end() {
        done = copy_some(
            host,
            landing,
            done..last.read_end(),
            true,
            positions,
            targets,
        )?;
    }
    Ok(())
}

/// Copies the bytes of `part` that have arrived, and with `wait` at least some; returns the end of
/// the bytes copied.
fn copy_some<H: Host>(
    host: &H,
    landing: Landing,
    part: Range<usize>,
    wait: bool,
    positions: &[PiecePosition],
    targets: &mut [Target<'_>],
) -> Result<usize, Errno> {
    host.arrive(landing, part, wait, &mut |from, window| {
        let first = positions.partition_point(|position| position.read_end() <= from);
        for position in &positions[first..] {
            let begin = position.from.max(from);
            let end = position.read_end().min(from + window.len());
            if begin >= end {
                break;
            }
            let to = position.bytes.start + (begin - position.from);
            let to = &mut targets[position.target].bytes[to..to + (end - begin)];
            window.read(begin - from, to);
        }
    })
}
