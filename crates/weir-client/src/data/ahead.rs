//! Read-ahead: bytes of other nodes that a sequential reader will want next.
//!
//! A file's reads are followed as [`SEQUENCES`] sequences: a read that begins where one of them
//! ended continues it; any other read begins a new one in place of the one that was idle longest.
//! So several descriptors, and several readers of one, are each followed, and random reads fetch
//! nothing ahead. The second read of a sequence fetches two reads ahead. When half of that is used
//! up, twice as much is requested, up to the bytes that the reader uses in [`HORIZON_US`] and to
//! [`WINDOW_MOST`]: more would hide no more latency, and would waste the link if the reader stops.
//!
//! The bytes lie in the node's pool until they are read, dropped with their sequence, or taken back
//! by the server ([`weir_core::node::landing`]). They are identified by log and position in it.
//!
//! Invariant: bytes fetched ahead are returned only if the file's generation is still that of their
//! look-up; the reader checks it once more after copying ([`super::read`]). Published bytes are
//! never written in place (see [`super::stream`]), so each change that makes them stale first
//! changes the generation.
//!
//! Left out: strided readers, whose lists are one transfer anyway.

use core::ops::Range;
use std::collections::VecDeque;

use weir_core::proto::peer::LogRange;
use weir_core::proto::{Landing, FETCH_BYTES};
use weir_core::types::Ino;

use super::host::{release, Host};
use super::pieces::{index, Batch, PiecePosition, WantedPiece};

/// Sequences of a file that are followed.
const SEQUENCES: usize = 4;
/// The least that is fetched ahead at first, in bytes: two transfers of half of this.
const WINDOW_LEAST: u64 = 256 << 10;
/// The most that is fetched ahead of one sequence, in bytes.
const WINDOW_MOST: u64 = 8 << 20;
/// The most while the reader's pace is unknown.
const WINDOW_UNKNOWN: u64 = 2 << 20;
/// The time for which the bytes fetched ahead last the reader, in us: far longer than a request
/// takes.
const HORIZON_US: u64 = 8_000;

/// A read that was requested ahead.
#[derive(Debug)]
pub struct PrefetchedRead {
    landing: Landing,
    ranges: Vec<LogRange>,
    /// The end of its bytes in the file; a reader behind it has no use for them.
    end: u64,
    /// The index of the range that was wanted last; the next one wanted is this or a later one.
    range: usize,
    /// The offset of that range in the read.
    from: usize,
}

impl PrefetchedRead {
    /// Returns the offset of a piece in the read, and how much of the piece the read holds.
    fn find(&mut self, wanted: &LogRange) -> Option<(usize, u64)> {
        if self.ranges.first()?.rank != wanted.rank {
            return None;
        }
        let (mut number, mut from) = (self.range, self.from);
        while let Some(range) = self.ranges.get(number) {
            let skipped = wanted.pos.checked_sub(range.pos).unwrap_or(range.len);
            if range.slab == wanted.slab && skipped < range.len {
                (self.range, self.from) = (number, from);
                return Some((from + index(skipped), (range.len - skipped).min(wanted.len)));
            }
            from += index(range.len);
            number += 1;
        }
        None
    }
}

/// Reads that each begin where the one before ended.
#[derive(Debug, Default)]
struct Sequence {
    /// The offset at which the next one is expected; 0: there was none.
    next: u64,
    /// The end of the bytes that were requested.
    upto: u64,
    /// The number of bytes to request ahead.
    window: u64,
    /// The generation of their look-up.
    generation: u64,
    kept: VecDeque<PrefetchedRead>,
    used: u64,
    pace: Pace,
}

/// The pace at which a sequence is read.
#[derive(Debug, Default)]
struct Pace {
    /// The time at which its last read ended.
    ended_us: u64,
    /// The bytes read lately, and the time that took.
    bytes: u64,
    took_us: u64,
}

impl Pace {
    /// A sequence begins.
    fn begin(now_us: u64) -> Pace {
        Pace {
            ended_us: now_us,
            ..Pace::default()
        }
    }

    /// A read of it ended.
    fn note_read(&mut self, now_us: u64, bytes: u64) {
        self.took_us += now_us.saturating_sub(self.ended_us);
        self.bytes += bytes;
        self.ended_us = now_us;
        while self.took_us > 4 * HORIZON_US {
            (self.took_us, self.bytes) = (self.took_us / 2, self.bytes / 2);
        }
    }

    /// The most that is to be fetched ahead of reads of `len` bytes.
    fn window(&self, len: u64) -> u64 {
        let least = len.clamp(WINDOW_LEAST, FETCH_BYTES / 2);
        let used = match (self.bytes, self.took_us) {
            (0, _) => WINDOW_UNKNOWN,
            (_, 0) => WINDOW_MOST,
            (bytes, us) => bytes.saturating_mul(HORIZON_US) / us,
        };
        used.clamp(least, WINDOW_MOST)
    }
}

impl Sequence {
    fn drop_all<H: Host>(&mut self, host: &H) {
        for kept in self.kept.drain(..) {
            release(host, kept.landing);
        }
        (self.upto, self.window) = (0, 0);
    }
}

/// The sequences of a file, as one process reads it.
#[derive(Debug, Default)]
pub struct Ahead {
    sequences: [Sequence; SEQUENCES],
    clock: u64,
}

/// Bytes of a file that are to be requested ahead.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    /// The first offset.
    pub from: u64,
    /// The offset behind the last.
    pub to: u64,
}

/// One read's share in a sequence.
#[derive(Debug, Default)]
pub struct Reading {
    sequence: usize,
    kept: VecDeque<PrefetchedRead>,
    /// The bytes to request ahead.
    pub plan: Option<Plan>,
}

impl Ahead {
    /// Begins a read of the bytes `read` of a file of `size` bytes, looked up at `generation`: takes
    /// out the bytes that were fetched ahead for it. `None`: it continues no sequence.
    pub fn begin_read<H: Host>(
        &mut self,
        host: &H,
        read: Range<u64>,
        size: u64,
        generation: u64,
    ) -> Option<Reading> {
        let (from, to) = (read.start, read.end);
        let goes_on = |s: &Sequence| s.next == from && from > 0;
        let number = self.sequences.iter().position(goes_on)?;
        let sequence = &mut self.sequences[number];
        if sequence.generation != generation {
            sequence.drop_all(host);
            sequence.generation = generation;
        }
        let least = (2 * (to - from)).max(WINDOW_LEAST);
        let most = sequence.pace.window(to - from);
        let window = (2 * sequence.window).max(least).min(most);
        let begin = sequence.upto.max(to);
        let end = (to + window).min(size);
        let is_time = end > begin && (end - begin >= window / 2 || end == size);
        if is_time {
            sequence.window = window;
        }
        Some(Reading {
            sequence: number,
            kept: std::mem::take(&mut sequence.kept),
            plan: is_time.then_some(Plan {
                from: begin,
                to: end,
            }),
        })
    }

    /// Puts back the bytes that the reads up to `to` left, with the reads that the plan requested
    /// and the offset up to which they reach: `None` if the server had no room for them.
    pub fn put_back<H: Host>(
        &mut self,
        host: &H,
        mut reading: Reading,
        to: u64,
        more: Option<(Vec<PrefetchedRead>, u64)>,
    ) {
        let sequence = &mut self.sequences[reading.sequence];
        let plan = reading.plan.take();
        match (plan, more) {
            (Some(_), Some((more, upto))) => {
                sequence.upto = upto;
                reading.kept.extend(more);
            }
            // It is not asked for a while, and begins small again.
            (Some(plan), None) => (sequence.upto, sequence.window) = (plan.to, 0),
            (None, _) => {}
        }
        // Another thread may have put back its own meanwhile.
        sequence.kept.extend(reading.kept);
        sequence.kept.retain(|kept| {
            let needed = kept.end > to;
            if !needed {
                release(host, kept.landing);
            }
            needed
        });
    }

    /// A read of the bytes `read` is over.
    pub fn finish_read<H: Host>(&mut self, host: &H, read: Range<u64>) {
        let (from, to) = (read.start, read.end);
        self.clock += 1;
        let goes_on = |s: &Sequence| s.next == from && from > 0;
        let number = self.sequences.iter().position(goes_on);
        let number = number.unwrap_or_else(|| {
            let idle = self
                .sequences
                .iter()
                .enumerate()
                .min_by_key(|(_, s)| s.used);
            let idle = idle.map_or(0, |(number, _)| number);
            self.sequences[idle].drop_all(host);
            self.sequences[idle].pace = Pace::begin(host.now_us());
            idle
        });
        let sequence = &mut self.sequences[number];
        if sequence.used > 0 && sequence.next == from {
            sequence.pace.note_read(host.now_us(), to - from);
        }
        (sequence.next, sequence.used) = (to, self.clock);
    }

    /// Drops everything: nobody reads the file any more.
    pub fn drop_all<H: Host>(&mut self, host: &H) {
        for sequence in &mut self.sequences {
            sequence.drop_all(host);
        }
        *self = Ahead::default();
    }

    /// Forgets the reads of another process.
    pub fn forget(&mut self) {
        *self = Ahead::default();
    }
}

/// A read that was fetched ahead and is now in use: its positions, and the pieces that they belong to.
pub struct InUse {
    pub landing: Landing,
    pub positions: Vec<PiecePosition>,
    pub wanted: Vec<WantedPiece>,
}

impl Reading {
    /// Splits pieces into those that were fetched ahead, which are now in use, and the others.
    pub fn cover<H: Host>(
        &mut self,
        host: &H,
        pieces: Vec<WantedPiece>,
    ) -> (Vec<InUse>, Vec<WantedPiece>) {
        let mut found: Vec<(usize, PiecePosition, WantedPiece)> = Vec::new();
        let mut missing = Vec::new();
        let mut claimed = vec![None; self.kept.len()];
        for piece in pieces {
            let mut rest = piece;
            while rest.range.len > 0 {
                let hit = self.find(host, &mut claimed, &rest.range);
                let Some((number, from, len)) = hit else {
                    missing.push(rest);
                    break;
                };
                let (part, after) = rest.split(len);
                let position = PiecePosition::in_read(from, &part);
                found.push((number, position, part));
                rest = after;
            }
        }
        let mut used: Vec<InUse> = Vec::new();
        found.sort_by_key(|(number, position, _)| (*number, position.from));
        let mut last = None;
        for (number, position, part) in found {
            if last != Some(number) {
                last = Some(number);
                used.push(InUse {
                    landing: self.kept[number].landing,
                    positions: Vec::new(),
                    wanted: Vec::new(),
                });
            }
            if let Some(used) = used.last_mut() {
                used.positions.push(position);
                used.wanted.push(part);
            }
        }
        let mut number = 0;
        self.kept.retain(|_| {
            number += 1;
            claimed[number - 1] != Some(false) // taken back
        });
        (used, missing)
    }

    /// Finds the read that has the beginning of a piece: its index, the offset in it, and the
    /// length.
    fn find<H: Host>(
        &mut self,
        host: &H,
        claimed: &mut [Option<bool>],
        wanted: &LogRange,
    ) -> Option<(usize, usize, u64)> {
        for (number, kept) in self.kept.iter_mut().enumerate() {
            if claimed[number] == Some(false) {
                continue;
            }
            let Some((from, len)) = kept.find(wanted) else {
                continue;
            };
            let landing = kept.landing;
            let ours = *claimed[number].get_or_insert_with(|| {
                let slot = host.slot(landing);
                slot.is_some_and(|slot| slot.claim(landing.serial))
            });
            if ours {
                return Some((number, from, len));
            }
        }
        None
    }

    /// Gives all back.
    pub fn drop_all<H: Host>(self, host: &H, more: Option<(Vec<PrefetchedRead>, u64)>) {
        let more = more.into_iter().flat_map(|(kept, _)| kept);
        for kept in self.kept.into_iter().chain(more) {
            release(host, kept.landing);
        }
    }

    /// Requests reads ahead. Returns those that were granted, and the offset in the file up to
    /// which they reach; `None` if none was.
    pub fn ask<H: Host>(
        host: &H,
        ino: Ino,
        plan: Plan,
        batches: Vec<Batch>,
    ) -> Option<(Vec<PrefetchedRead>, u64)> {
        if batches.is_empty() {
            return Some((Vec::new(), plan.to));
        }
        let reads: Vec<Vec<LogRange>> = batches.iter().map(|b| b.ranges.clone()).collect();
        let landings = host.ask(ino, &reads, true).ok()?;
        let refused = batches.iter().skip(landings.len());
        let refused = refused.map(|batch| plan.from + batch.target_begin() as u64);
        let upto = refused.min().unwrap_or(plan.to);
        let kept = |(landing, batch): (Landing, Batch)| PrefetchedRead {
            landing,
            end: plan.from + batch.target_end() as u64,
            ranges: batch.ranges,
            range: 0,
            from: 0,
        };
        let granted = !landings.is_empty();
        granted.then(|| (landings.into_iter().zip(batches).map(kept).collect(), upto))
    }
}
