//! Reading: copying bytes from the slabs in which the index finds them.
//!
//! A process keeps the server's answers about a file, a [`Map`]. It asks again only if the file's
//! extents changed (the inode's generation) or a process wrote since (the activity of the file's
//! cells). Nothing is locked while bytes are copied; the generation protects them. A segment is
//! used for other data only after its extents were freed, which changes the generation. If it is
//! the same after the copy, the bytes were the file's; if not, they are read again.

use core::ops::ControlFlow;
use core::sync::atomic::Ordering;

use rustix::io::Errno;
use weir_core::extent::{Piece, PieceSource, COPY_RANK};
use weir_core::node::region::Counter;
use weir_core::proto::peer::LogRange;
use weir_store::slab::SlabId;

use super::ahead::{Plan, PrefetchedRead, Reading};
use super::host::{at_once, Host};
use super::map::{Map, Moment, Part};
use super::pieces::{index, Target};
use super::remote::{Own, RemotePieces};
use super::vnode::Vnode;
use crate::beneath::Transfer;
use crate::operation;

/// Pieces that are looked up at a time.
const PIECES: usize = 32;
/// The least number of bytes in the first look-up of a state of the file.
const LOOK_AHEAD: u64 = 256 << 10;

impl Vnode {
    /// Reads at an offset; returns how many bytes, fewer only at the end of the file.
    pub fn read_at<H: Host>(
        &self,
        host: &H,
        offset: u64,
        bytes: &mut [u8],
    ) -> Result<usize, Errno> {
        self.check()?;
        let mut target = [Target { offset, bytes }];
        let _call = host.is_one_of_several().then(operation::begin);
        self.audit(host, &target)?;
        let [Target { bytes, .. }] = &mut target;
        // The bytes of this process's live piece lie before the end of the file, and need no look at
        // its state, which may need a lease.
        if let Some(done) = self.read_own(host, offset, bytes) {
            host.count(Counter::BytesRead, bytes.len() as u64);
            return done.map(|()| bytes.len());
        }
        let end = offset.saturating_add(bytes.len() as u64);
        let now = self.moment(host)?;
        if now.state.mapped {
            let [Target { bytes, .. }] = &mut target;
            if let Some(done) = self.read_mapped(host, offset, bytes) {
                return done;
            }
        }
        let is_cut = now.size < end;
        self.read_targets(host, now, &mut target, is_cut)?;
        Ok(target[0].bytes.len())
    }

    /// Reads several ranges, with one look-up of the file's state for all; each other node is asked
    /// once for all its bytes. Each target's bytes are cut to the part that was read.
    pub fn read_all<H: Host>(&self, host: &H, targets: &mut [Target<'_>]) -> Result<(), Errno> {
        self.check()?;
        let _call = host.is_one_of_several().then(operation::begin);
        self.audit(host, targets)?;
        let now = self.moment(host)?;
        if now.state.mapped && host.is_mapped(self.ino()) {
            for target in targets {
                let Some(done) = self.read_mapped(host, target.offset, target.bytes) else {
                    return Err(Errno::IO);
                };
                let got = done?;
                target.bytes = &mut std::mem::take(&mut target.bytes)[..got];
            }
            return Ok(());
        }
        self.read_targets(host, now, targets, true)
    }

    /// Reads through the kernel mount, if the kernel keeps pages of the file: `None` if it does not,
    /// or the mount is gone.
    fn read_mapped<H: Host>(
        &self,
        host: &H,
        offset: u64,
        bytes: &mut [u8],
    ) -> Option<Result<usize, Errno>> {
        if !host.is_mapped(self.ino()) {
            return None;
        }
        host.move_mapped(
            self.ino(),
            &self.beneath_reads,
            Transfer::Read(offset, bytes),
        )
    }

    /// Lets the server check if others wrote the bytes that are about to be read, if it audits.
    fn audit<H: Host>(&self, host: &H, targets: &[Target<'_>]) -> Result<(), Errno> {
        if host.audits() {
            for target in targets {
                host.audit(self.ino(), target.offset, target.bytes.len() as u64)?;
            }
        }
        Ok(())
    }

    /// `own` is false if it is known that this process's live piece does not hold all that is to be read.
    fn read_targets<H: Host>(
        &self,
        host: &H,
        mut now: Moment,
        targets: &mut [Target<'_>],
        mut own: bool,
    ) -> Result<(), Errno> {
        let mut length = 0;
        for target in targets.iter_mut() {
            let left = now.size.saturating_sub(target.offset);
            let left = usize::try_from(left).unwrap_or(usize::MAX);
            if left < target.bytes.len() {
                target.bytes = &mut std::mem::take(&mut target.bytes)[..left];
            }
            if target.bytes.is_empty() {
                continue;
            }
            length += target.bytes.len() as u64;
            own = own
                && match self.read_own(host, target.offset, target.bytes) {
                    Some(done) => done.map(|()| true)?,
                    None => false,
                };
        }
        if !own {
            while !self.read_once(host, &mut now, targets)? {
                now = self.moment(host)?;
            }
        }
        if self.reads_far.load(Ordering::Relaxed) {
            self.followed(host, targets);
        }
        if length > 0 {
            host.count(Counter::BytesRead, length);
        }
        Ok(())
    }

    pub(super) fn moment<H: Host>(&self, host: &H) -> Result<Moment, Errno> {
        at_once(host, self.ino(), |state, block| match block {
            // Activity first: a write after this look makes it differ.
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

    /// As [`Vnode::try_read`]. An eviction that is called off leaves no copy: then the file is looked at again.
    fn read_once<H: Host>(
        &self,
        host: &H,
        now: &mut Moment,
        targets: &mut [Target<'_>],
    ) -> Result<bool, Errno> {
        match self.try_read(host, now, targets) {
            Err(Errno::STALE) if self.is_past(host, now.state.generation, now.state.evicted) => {
                Ok(false)
            }
            read => read,
        }
    }

    /// One attempt; false if bytes may have been replaced meanwhile.
    fn try_read<H: Host>(
        &self,
        host: &H,
        now: &mut Moment,
        targets: &mut [Target<'_>],
    ) -> Result<bool, Errno> {
        let alone = targets.len() == 1;
        let evicted = now.state.evicted;
        let mut far = RemotePieces::default();
        // The state in which the pieces in `far` were looked up.
        let mut looked = None;
        for number in 0..targets.len() {
            let offset = targets[number].offset;
            let end = offset + targets[number].bytes.len() as u64;
            let mut at = offset;
            while at < end {
                let mut found = FoundPieces::new(at);
                // All that is wanted is looked up at once, as far as one answer of the server
                // reaches, so that a read does not see half of a write.
                let needed = if at == offset { end } else { at + 1 };
                let generation = self.find(host, now, &mut found, needed, end)?;
                if far.is_full() || looked.is_some_and(|looked| looked != generation) {
                    if let Some(looked) = looked.take() {
                        self.bring(host, now, &mut far, looked, targets)?;
                        if self.is_past(host, looked, evicted) {
                            return Ok(false);
                        }
                    }
                }
                let upto = found.upto(end);
                let bytes = &mut *targets[number].bytes;
                let slice = |from: u64, to: u64| index(from - offset)..index(to - offset);
                let fill = |from: u64, to: u64, bytes: &mut [u8]| {
                    if evicted && from < to {
                        return self.copy.read(host, self.ino(), generation, from, bytes);
                    }
                    bytes.fill(0);
                    Ok(())
                };
                let mut near = false;
                for piece in found.pieces() {
                    fill(at, piece.offset, &mut bytes[slice(at, piece.offset)])?;
                    at = (piece.offset + piece.length).min(upto);
                    let target = slice(piece.offset, at);
                    match piece.source {
                        PieceSource::Log { rank, pos, .. } if rank == COPY_RANK => {
                            let copied = &mut bytes[target];
                            self.copy.read(host, self.ino(), generation, pos, copied)?;
                        }
                        PieceSource::Log { rank, slab, pos } if rank != host.rank() => {
                            let len = at - piece.offset;
                            let range = LogRange {
                                rank,
                                slab,
                                pos,
                                len,
                            };
                            far.add(range, number, target.start);
                            looked = Some(generation);
                        }
                        PieceSource::Log { slab, pos, .. } => {
                            let slab = SlabId::from_raw(slab).ok_or(Errno::IO)?;
                            if alone && far.is_empty() {
                                host.slabs().read_at(slab, pos, &mut bytes[target])?;
                                near = true;
                            } else {
                                let own = Own {
                                    slab,
                                    pos,
                                    target: number,
                                    bytes: target,
                                };
                                far.copy_meanwhile(own);
                                looked = Some(generation);
                            }
                        }
                        PieceSource::Hole => fill(piece.offset, at, &mut bytes[target])?,
                    }
                }
                fill(at, upto, &mut bytes[slice(at, upto)])?;
                at = upto;
                if (near || far.is_empty()) && self.is_past(host, generation, evicted) {
                    return Ok(false);
                }
            }
        }
        let Some(looked) = looked else {
            return Ok(true);
        };
        self.bring(host, now, &mut far, looked, targets)?;
        Ok(!self.is_past(host, looked, evicted))
    }

    /// Fetches bytes of other nodes that were looked up at a generation, and requests those that a
    /// sequential reader will want next.
    fn bring<H: Host>(
        &self,
        host: &H,
        now: &Moment,
        far: &mut RemotePieces,
        generation: u64,
        targets: &mut [Target<'_>],
    ) -> Result<(), Errno> {
        let range = match &targets[..] {
            [one] => one.offset..one.offset + one.bytes.len() as u64,
            _ => return far.bring(host, self.ino(), targets, None, || ()),
        };
        self.reads_far.store(true, Ordering::Relaxed);
        let mut reading = self.ahead.lock().and_then(|mut ahead| {
            self.change(&mut *ahead, |ahead| {
                ahead.begin_read(host, range.clone(), now.size, generation)
            })
        });
        let plan = reading.as_ref().and_then(|reading| reading.plan);
        let mut more = None;
        let brought = far.bring(host, self.ino(), targets, reading.as_mut(), || {
            more = plan.and_then(|plan| self.fetch_ahead(host, plan, generation));
        });
        if let Some(reading) = reading {
            match self.ahead.lock() {
                Some(mut ahead) => self.change(&mut *ahead, |ahead| {
                    ahead.put_back(host, reading, range.end, more);
                }),
                None => reading.drop_all(host, more),
            }
        }
        brought
    }

    /// Requests bytes of other nodes ahead of a reader; `None`: not now.
    fn fetch_ahead<H: Host>(
        &self,
        host: &H,
        mut plan: Plan,
        generation: u64,
    ) -> Option<(Vec<PrefetchedRead>, u64)> {
        let mut far = RemotePieces::default();
        {
            let map = self.map.lock()?;
            if map.generation != generation {
                return None;
            }
            plan = plan.known_part(|range| map.knows(range.start, range.end))?;
            for (range, place) in plan.ranges() {
                let mut add = |piece: Piece| match piece.source {
                    PieceSource::Log { rank, slab, pos }
                        if rank != host.rank() && rank != COPY_RANK =>
                    {
                        let len = piece.length;
                        let wanted = LogRange {
                            rank,
                            slab,
                            pos,
                            len,
                        };
                        far.add(wanted, 0, index(place + piece.offset - range.start));
                    }
                    _ => {}
                };
                for (from, to, part) in map.parts_of(range.start, range.end) {
                    part.index.for_each_piece_in(from, to, &mut add);
                }
            }
        }
        Reading::ask(host, self.ino(), plan, far.batches())
    }

    /// Notes for the read-ahead that a read of a file with bytes of other nodes has ended.
    fn followed<H: Host>(&self, host: &H, targets: &[Target<'_>]) {
        if let ([one], Some(mut ahead)) = (targets, self.ahead.lock()) {
            if !one.bytes.is_empty() {
                let read = one.offset..one.offset + one.bytes.len() as u64;
                self.change(&mut *ahead, |ahead| ahead.finish_read(host, read));
            }
        }
    }

    /// True if a look-up at `generation` no longer holds, of a file that was evicted or not: the mark is set
    /// before the extents go.
    fn is_past<H: Host>(&self, host: &H, generation: u64, evicted: bool) -> bool {
        host.file(self.ino()).map_or(true, |state| {
            (state.generation, state.evicted) != (generation, evicted)
        })
    }

    /// Looks up pieces from `found.from` to `end`, in what is known, or at the server if that does not
    /// reach to `needed`. Returns the generation that the answer belongs to.
    fn find<H: Host>(
        &self,
        host: &H,
        now: &mut Moment,
        found: &mut FoundPieces,
        needed: u64,
        end: u64,
    ) -> Result<u64, Errno> {
        let mut map = self.map.lock().ok_or(Errno::AGAIN)?;
        self.change(&mut *map, |map| {
            let part = self.know(host, now, map, found.from, needed, end)?;
            let known = end.min(part.known_to());
            found.limit = known;
            let _ = part
                .index
                .try_for_each_piece_in(found.from, known, &mut |piece| found.add(piece));
            Ok(now.state.generation)
        })
    }

    /// Returns the answer that speaks of `from`, as of now or later. If the map does not reach to `needed`,
    /// this asks the server for what is there up to `end`, or more.
    pub(super) fn know<'m, H: Host>(
        &self,
        host: &H,
        now: &mut Moment,
        map: &'m mut Map,
        from: u64,
        needed: u64,
        end: u64,
    ) -> Result<&'m Part, Errno> {
        if !map.is_of(now) || !map.knows(from, needed) {
            let twice = match map.is_of(now) {
                true => map.asked.saturating_mul(2),
                false => 0,
            };
            let asked = twice.max(end - from).max(LOOK_AHEAD);
            let located = host.locate(self.ino(), from, asked)?;
            now.state.generation = located.generation;
            if !map.is_of(now) {
                map.forget();
                map.generation = located.generation;
                map.activity = now.activity;
            }
            map.asked = asked;
            map.learn(&located)?;
        }
        map.part_at(from).ok_or(Errno::IO)
    }
}

/// Pieces that a look-up found, without allocating.
struct FoundPieces {
    from: u64,
    /// The offset up to which the look-up is complete.
    limit: u64,
    pieces: [Option<Piece>; PIECES],
    count: usize,
    /// The offset of the first piece that had no room here.
    cut: Option<u64>,
}

impl FoundPieces {
    fn new(from: u64) -> FoundPieces {
        FoundPieces {
            from,
            limit: from,
            pieces: [None; PIECES],
            count: 0,
            cut: None,
        }
    }

    /// Takes in the next piece; breaks off if there is no room for it.
    fn add(&mut self, piece: Piece) -> ControlFlow<()> {
        let Some(slot) = self.pieces.get_mut(self.count) else {
            self.cut = Some(piece.offset);
            return ControlFlow::Break(());
        };
        *slot = Some(piece);
        self.count += 1;
        ControlFlow::Continue(())
    }

    fn upto(&self, end: u64) -> u64 {
        self.cut.unwrap_or(self.limit).min(end)
    }

    fn pieces(&self) -> impl Iterator<Item = &Piece> {
        self.pieces[..self.count].iter().flatten()
    }
}
