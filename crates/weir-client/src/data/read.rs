//! Reading: copying out of slabs what the index says is there.
//!
//! A process keeps what the server told it of a file, a [`Map`], and needs to ask
//! again only when the file's extents changed (the inode's generation) or somebody
//! wrote since (the activity of the file's cells). Nothing is locked while bytes are
//! copied. What protects them is the generation: a segment is used for other data
//! only after its extents were freed, which bumps it; so if it is the same after the
//! copy, the bytes were the file's, and if not, they are read again.

use core::sync::atomic::Ordering;

use rustix::io::Errno;
use weir_core::extent::{ExtentIndex, Piece, PieceSource};
use weir_core::node::region::{Counter, WINDOW_BYTES};
use weir_core::proto::peer::LogRange;
use weir_store::slab::SlabId;

use super::host::{at_once, FileState, Host};
use super::vnode::Vnode;

/// Pieces that are looked up at a time.
const PIECES: usize = 32;
/// How much of a file is looked up at a time, since a visit of pieces cannot be ended.
const STEP: u64 = 2 << 20;
/// A look-up asks for at least so much of the file.
const LOOK_AHEAD: u64 = 1 << 20;

/// What a process knows of where a file's bytes are.
#[derive(Debug, Default)]
pub struct Map {
    index: ExtentIndex,
    generation: u64,
    activity: u64,
    from: u64,
    to: u64,
}

impl Map {
    /// Forgets everything.
    pub fn forget(&mut self) {
        *self = Map::default();
    }

    fn knows(&self, now: &Moment, offset: u64, length: u64) -> bool {
        self.generation == now.state.generation
            && self.activity == now.activity
            && self.from <= offset
            && offset + length <= self.to
    }
}

/// The state of a file at the beginning of a read.
struct Moment {
    state: FileState,
    size: u64,
    activity: u64,
}

impl Vnode {
    /// Reads at an offset; returns how many bytes, fewer only at the end of the file.
    pub fn read_at<H: Host>(
        &self,
        host: &H,
        offset: u64,
        bytes: &mut [u8],
    ) -> Result<usize, Errno> {
        let mut now = self.moment(host)?;
        if offset >= now.size || bytes.is_empty() {
            return Ok(0);
        }
        let length = usize::try_from(now.size - offset).map_or(bytes.len(), |n| n.min(bytes.len()));
        let bytes = &mut bytes[..length];
        if let Some(done) = self.read_own(host, offset, bytes) {
            done?;
        } else {
            while !self.try_read(host, &mut now, offset, bytes)? {
                now = self.moment(host)?;
            }
        }
        host.count(Counter::BytesRead, length as u64);
        Ok(length)
    }

    fn moment<H: Host>(&self, host: &H) -> Result<Moment, Errno> {
        at_once(host, self.ino(), |state, block| match block {
            // Activity first: what is written after this look makes it differ.
            Some(block) => Moment {
                activity: block.activity(host.cells(), None),
                size: block.size(host.cells()),
                state: *state,
            },
            None => Moment {
                state: *state,
                size: state.size,
                activity: 0,
            },
        })
    }

    /// One attempt; false if the bytes may have been replaced meanwhile.
    fn try_read<H: Host>(
        &self,
        host: &H,
        now: &mut Moment,
        offset: u64,
        bytes: &mut [u8],
    ) -> Result<bool, Errno> {
        let end = offset + bytes.len() as u64;
        let mut at = offset;
        while at < end {
            let mut found = Found::new(at);
            let generation = self.find(host, now, &mut found, end)?;
            let upto = found.upto(end);
            let slice = |from: u64, to: u64| index(from - offset)..index(to - offset);
            let mut far: Vec<(LogRange, u64)> = Vec::new();
            for piece in found.pieces() {
                bytes[slice(at, piece.offset)].fill(0);
                at = (piece.offset + piece.length).min(upto);
                let target = &mut bytes[slice(piece.offset, at)];
                match piece.source {
                    PieceSource::Log { rank, slab, pos } if rank != host.rank() => {
                        let len = target.len() as u64;
                        far.push((
                            LogRange {
                                rank,
                                slab,
                                pos,
                                len,
                            },
                            piece.offset,
                        ));
                    }
                    PieceSource::Log { slab, pos, .. } => {
                        let slab = SlabId::from_raw(slab).ok_or(Errno::IO)?;
                        host.slabs().read_at(slab, pos, target)?;
                    }
                    PieceSource::Hole => target.fill(0),
                }
            }
            bytes[slice(at, upto)].fill(0);
            at = upto;
            fetch_all(host, &far, offset, bytes)?;
            if host.file(self.ino())?.generation != generation {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Looks up pieces from `found.from` to `end`, in what is known or else at the
    /// server. Returns the generation that the answer belongs to.
    fn find<H: Host>(
        &self,
        host: &H,
        now: &mut Moment,
        found: &mut Found,
        end: u64,
    ) -> Result<u64, Errno> {
        let mut map = self.map.lock().ok_or(Errno::AGAIN)?;
        let length = end - found.from;
        if !map.knows(now, found.from, 1) {
            let located = host.locate(self.ino(), found.from, length.max(LOOK_AHEAD))?;
            map.forget();
            for run in &located.runs {
                map.index.insert(*run, &mut |_| ()).map_err(|_| Errno::IO)?;
            }
            map.generation = located.generation;
            now.state.generation = located.generation;
            map.activity = now.activity;
            (map.from, map.to) = (located.known_from, located.known_to);
        }
        if !(map.from..map.to).contains(&found.from) {
            return Err(Errno::IO);
        }
        let known = end.min(map.to).min(found.from + STEP);
        found.limit = known;
        map.index
            .for_each_piece_in(found.from, known, &mut |piece| found.add(piece));
        Ok(map.generation)
    }
}

/// Brings pieces of other nodes into their places of a file's bytes from `origin` on, a
/// window at a time.
fn fetch_all<H: Host>(
    host: &H,
    mut far: &[(LogRange, u64)],
    origin: u64,
    bytes: &mut [u8],
) -> Result<(), Errno> {
    // Of the first piece so much is there already.
    let mut done = 0;
    while !far.is_empty() {
        let (mut ranges, mut places) = (Vec::new(), Vec::new());
        let mut room = WINDOW_BYTES as u64;
        while let Some(((range, at), rest)) = far.split_first() {
            // Each range begins at a word of the window.
            let len = (range.len - done).min(room);
            let pos = range.pos + done;
            ranges.push(LogRange { pos, len, ..*range });
            places.push(index(at + done - origin)..index(at + done + len - origin));
            room = room.saturating_sub(len.next_multiple_of(8));
            if done + len < range.len {
                done += len;
                break;
            }
            (far, done) = (rest, 0);
            if room == 0 {
                break;
            }
        }
        host.fetch(ranges, &mut |window| {
            let mut from = 0;
            for place in &places {
                let target = &mut bytes[place.clone()];
                for (part, word) in target.chunks_mut(8).zip(&window[from..]) {
                    let word = word.load(Ordering::Relaxed).to_ne_bytes();
                    part.copy_from_slice(&word[..part.len()]);
                }
                from += place.len().div_ceil(8);
            }
        })?;
    }
    Ok(())
}

/// Pieces that a look-up found, without allocating.
struct Found {
    from: u64,
    /// Up to here the look-up speaks.
    limit: u64,
    pieces: [Option<Piece>; PIECES],
    count: usize,
    /// Where the first piece begins that had no place.
    cut: Option<u64>,
}

impl Found {
    fn new(from: u64) -> Found {
        Found {
            from,
            limit: from,
            pieces: [None; PIECES],
            count: 0,
            cut: None,
        }
    }

    fn add(&mut self, piece: Piece) {
        if let Some(slot) = self.pieces.get_mut(self.count) {
            *slot = Some(piece);
            self.count += 1;
        } else if self.cut.is_none() {
            self.cut = Some(piece.offset);
        }
    }

    fn upto(&self, end: u64) -> u64 {
        self.cut.unwrap_or(self.limit).min(end)
    }

    fn pieces(&self) -> impl Iterator<Item = &Piece> {
        self.pieces[..self.count].iter().flatten()
    }
}

/// A distance within a buffer, which fits because the buffer does.
#[allow(clippy::cast_possible_truncation)] // at most the buffer's length, a usize
fn index(distance: u64) -> usize {
    distance as usize
}
