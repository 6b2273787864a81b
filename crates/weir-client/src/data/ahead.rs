//! Read-ahead: bytes of other nodes that a sequential or strided reader will want next.
//!
//! A file's reads are followed as [`SEQUENCES`] contiguous sequences: a read that begins where one of
//! them ended continues it; any other read begins a new one in place of the one that was idle
//! longest. So several descriptors, and several readers of one, are each followed, and random reads
//! fetch nothing ahead. A read that continues none is looked for among [`STRIDED`] strided sequences
//! as well: reads of one length at equal distances. Two reads begin such a one.
//!
//! The second read of a contiguous sequence, and the third one of a strided one, fetches two reads
//! ahead. When half of that is used up, twice as much is requested, up to the bytes that the reader
//! uses in [`HORIZON_US`] and to [`WINDOW_MOST`]: more would hide no more latency, and would waste
//! the link if the reader stops.
//!
//! The bytes lie in the node's pool until they are read, dropped with their sequence, or taken back
//! by the server ([`weir_core::node::landing`]). They are identified by log and position in it.
//!
//! Invariant: bytes fetched ahead are returned only if the file's generation is still that of their
//! look-up; the reader checks it once more after copying ([`super::read`]). Published bytes are
//! never written in place (see [`super::stream`]), so each change that makes them stale first
//! changes the generation.
//!
//! Left out: a read that is a list; it is one transfer anyway.

use core::ops::Range;
use std::collections::VecDeque;

use weir_core::proto::peer::LogRange;
use weir_core::proto::{Landing, FETCH_BYTES};
use weir_core::types::Ino;

use super::host::{release, Host};
use super::pieces::{index, Batch, PiecePosition, WantedPiece};

/// Contiguous sequences of a file that are followed.
const SEQUENCES: usize = 4;
/// Strided sequences of a file that are followed.
const STRIDED: usize = 2;
/// The least that is fetched ahead of a contiguous sequence at first, in bytes: two transfers of half
/// of this. Strided ones are often short (some rows of a plane): two pieces, then twice as many each
/// time.
const WINDOW_LEAST: u64 = 256 << 10;
/// The most that is fetched ahead of one sequence, in bytes.
const WINDOW_MOST: u64 = 8 << 20;
/// The most pieces of a strided sequence that are fetched ahead.
const PIECES_MOST: u64 = 1024;
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

/// Reads that each begin where the one before ended, or at equal distances.
#[derive(Debug, Default)]
struct Sequence {
    /// The offset at which the next one is expected; 0: there was none.
    next: u64,
    /// The length of each read of a strided sequence, and their distance; 0 and 0: it is contiguous.
    length: u64,
    stride: u64,
    /// The offset of the next bytes to be requested.
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
    /// True if a read continues the sequence.
    fn expects(&self, read: &Range<u64>) -> bool {
        let is_long = self.length == 0 || self.length == length(read);
        is_long && self.next == read.start && self.next > 0
    }

    /// Begins anew with a read.
    fn restart<H: Host>(&mut self, host: &H) {
        self.drop_all(host);
        self.pace = Pace::begin(host.now_us());
    }

    fn drop_all<H: Host>(&mut self, host: &H) {
        for kept in self.kept.drain(..) {
            release(host, kept.landing);
        }
        (self.upto, self.window) = (0, 0);
    }
}

fn length(read: &Range<u64>) -> u64 {
    read.end - read.start
}

/// The sequences of a file, as one process reads it.
#[derive(Debug, Default)]
pub struct Ahead {
    /// The contiguous ones, then the strided ones.
    sequences: [Sequence; SEQUENCES + STRIDED],
    /// The read that ended last, of whichever sequence.
    last: Range<u64>,
    clock: u64,
}

/// Bytes of a file that are to be requested ahead: pieces at equal distances.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    /// The offset of the first piece.
    from: u64,
    /// Bytes of a piece; the end of the file may cut the last one.
    length: u64,
    /// The distance of two pieces.
    stride: u64,
    /// One or more.
    pieces: u64,
    /// The end of the last piece.
    to: u64,
}

impl Plan {
    /// The ranges of the file, each with its place in a memory that holds them one after the other.
    pub fn ranges(&self) -> impl Iterator<Item = (Range<u64>, u64)> {
        let plan = *self;
        (0..plan.pieces).map(move |piece| {
            let begin = plan.from + piece * plan.stride;
            let end = (begin + plan.length).min(plan.to);
            (begin..end, piece * plan.length)
        })
    }

    /// The pieces before the first one that is not known; `None`: there are none.
    pub fn known_part(self, is_known: impl Fn(&Range<u64>) -> bool) -> Option<Plan> {
        let known = self.ranges().take_while(|(range, _)| is_known(range));
        let (last, at) = known.last()?;
        Some(Plan {
            pieces: at / self.length + 1,
            to: last.end,
            ..self
        })
    }

    /// The offset behind the last piece, from where the next plan goes on.
    fn next(&self) -> u64 {
        self.piece_at(self.pieces * self.length)
    }

    /// The offset in the file of the piece that has byte `at` of that memory.
    fn piece_at(&self, at: u64) -> u64 {
        self.from + at / self.length * self.stride
    }

    /// The end in the file of the bytes up to `at` in that memory.
    fn end_at(&self, at: u64) -> u64 {
        match at.checked_sub(1) {
            Some(last) => self.piece_at(last) + last % self.length + 1,
            None => self.from,
        }
    }
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
        let number = self.sequences.iter().position(|s| s.expects(&read))?;
        let sequence = &mut self.sequences[number];
        if sequence.generation != generation {
            sequence.drop_all(host);
            sequence.generation = generation;
        }
        let mut least = 2 * length(&read);
        let mut most = sequence.pace.window(length(&read));
        if sequence.stride > 0 {
            most = most.min(PIECES_MOST.saturating_mul(length(&read)));
        } else {
            least = least.max(WINDOW_LEAST);
        }
        let window = (2 * sequence.window).max(least).min(most);
        let plan = match sequence.stride {
            0 => contiguous(sequence.upto.max(read.end), read.end + window, size),
            stride => strided(sequence.upto, &read, stride, window, size),
        };
        let is_time = |plan: &Plan| plan.pieces * plan.length >= window / 2 || plan.next() >= size;
        let plan = plan.filter(is_time);
        if plan.is_some() {
            sequence.window = window;
        }
        Some(Reading {
            sequence: number,
            kept: std::mem::take(&mut sequence.kept),
            plan,
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
            (Some(plan), None) => (sequence.upto, sequence.window) = (plan.next(), 0),
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
        self.clock += 1;
        let now_us = host.now_us();
        let before = std::mem::replace(&mut self.last, read.clone());
        let (contiguous, strided) = self.sequences.split_at_mut(SEQUENCES);
        let (sequence, is_continued) = find_or_idle(contiguous, &read);
        match is_continued {
            true => sequence.pace.note_read(now_us, length(&read)),
            false => sequence.restart(host),
        }
        (sequence.next, sequence.used) = (read.end, self.clock);
        if is_continued {
            return;
        }
        let (sequence, is_continued) = find_or_idle(strided, &read);
        let stride = read.start.saturating_sub(before.start);
        if is_continued {
            sequence.pace.note_read(now_us, length(&read));
        } else if length(&before) == length(&read) && stride > length(&read) {
            sequence.restart(host);
            (sequence.length, sequence.stride) = (length(&read), stride);
        } else {
            return;
        }
        (sequence.next, sequence.used) = (read.start + sequence.stride, self.clock);
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

/// The sequence that a read continues, or the one that was idle longest and false.
fn find_or_idle<'a>(sequences: &'a mut [Sequence], read: &Range<u64>) -> (&'a mut Sequence, bool) {
    let continued = sequences.iter().position(|s| s.expects(read));
    let idle = || (0..sequences.len()).min_by_key(|number| sequences[*number].used);
    let number = continued.or_else(idle).unwrap_or(0);
    (&mut sequences[number], continued.is_some())
}

/// The plan for the bytes from `from` to `to`, as far as the file has them.
fn contiguous(from: u64, to: u64, size: u64) -> Option<Plan> {
    let to = to.min(size);
    (from < to).then(|| Plan {
        from,
        length: to - from,
        stride: to - from,
        pieces: 1,
        to,
    })
}

/// The plan for pieces as long as a read, `window` bytes of them behind it, of which those before
/// `upto` were requested already.
fn strided(upto: u64, read: &Range<u64>, stride: u64, window: u64, size: u64) -> Option<Plan> {
    let length = length(read);
    let from = upto.max(read.start + stride);
    // The last piece: of the window, and of the file.
    let last = read.start + (window / length).max(1).saturating_mul(stride);
    let last = last.min(size.checked_sub(1)?);
    let pieces = last.checked_sub(from)? / stride + 1;
    let end = from + (pieces - 1) * stride + length;
    Some(Plan {
        from,
        length,
        stride,
        pieces,
        to: end.min(size),
    })
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
            return Some((Vec::new(), plan.next()));
        }
        let reads: Vec<Vec<LogRange>> = batches.iter().map(|b| b.ranges.clone()).collect();
        let landings = host.ask(ino, &reads, true).ok()?;
        let refused = batches.iter().skip(landings.len());
        let refused = refused.map(|batch| batch.target_begin() as u64).min();
        let upto = match refused {
            // A strided plan goes on with a whole piece.
            Some(at) if plan.pieces > 1 => plan.piece_at(at),
            Some(at) => plan.from + at,
            None => plan.next(),
        };
        let kept = |(landing, batch): (Landing, Batch)| PrefetchedRead {
            landing,
            end: plan.end_at(batch.target_end() as u64),
            ranges: batch.ranges,
            range: 0,
            from: 0,
        };
        let granted = !landings.is_empty();
        granted.then(|| (landings.into_iter().zip(batches).map(kept).collect(), upto))
    }
}
