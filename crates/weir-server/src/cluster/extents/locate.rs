//! Finds the extents of a range, and reads bytes of this node's log for other servers.
//!
//! A server asks all slices' homes of a file at once, and keeps the answers while the file's lease
//! lasts. It lays over them the extents that this node is publishing, and those that it has not
//! published yet.

use std::collections::BTreeSet;

use futures_util::future::join_all;
use weir_core::extent::{ExtentIndex, Run, Source, MAX_OFFSET};
use weir_core::names::Lamination;
use weir_core::placement::{slice_of, SLICE_BYTES};
use weir_core::proto::peer::{self, LogRange};
use weir_core::proto::{FsError, Locate, Located, Served};
use weir_core::types::Ino;

use super::slices::cut_off;
use crate::cluster::abilities::{NameTables, Waits};
use crate::cluster::extents::{ExtentsNeeds, PublishedExtents, WriteTables};
use crate::node::{few_or_wanted, FEW_RUNS, MAX_RUNS};

/// The most slices in one question.
const AHEAD: u64 = 1024;
/// The most bytes that one request may read from the log.
const MAX_FETCH_BYTES: u64 = 16 << 20;
/// The most files whose extents are kept before any program of this node asked for them.
const MAX_KEPT: usize = 1 << 16;

/// The known published extents of a file.
#[derive(Debug, Default)]
pub struct ExtentMap {
    index: ExtentIndex,
    slices: BTreeSet<u64>,
    /// True if all slices are known.
    whole: bool,
    /// True if the file is laminated: this map is never recalled.
    lasting: bool,
    /// A number that tells this map from other maps of the same file.
    serial: u64,
}

impl ExtentMap {
    /// The whole map of a laminated file.
    pub fn of_laminated(runs: &[Run]) -> Result<ExtentMap, FsError> {
        let mut map = ExtentMap {
            whole: true,
            lasting: true,
            ..ExtentMap::default()
        };
        map.lay(runs)?;
        Ok(map)
    }

    fn lay(&mut self, runs: &[Run]) -> Result<(), FsError> {
        for run in runs {
            let run = run.checked().map_err(|_| FsError::Malformed)?;
            let put = self.index.insert(Run { stamp: 0, ..run }, &mut |_| ());
            put.map_err(|_| FsError::Malformed)?;
        }
        Ok(())
    }

    fn knows(&self, slice: u64) -> bool {
        self.whole || self.slices.contains(&slice)
    }

    fn unknown(&self, from: u64, to: u64) -> Option<(u64, u64)> {
        if self.whole {
            return None;
        }
        let missing = |slice: &u64| !self.slices.contains(slice);
        let first = (from..to).find(missing)?;
        let last = (from..to).rev().find(missing)?;
        Some((first, last + 1))
    }
}

/// The range of a file that an answer may cover.
struct AnswerRange {
    from: u64,
    /// The offset that it must reach, if one answer has the room.
    wanted: u64,
    /// The offset from which on the slices are not known.
    end_of_known: u64,
}

impl<S: ExtentsNeeds> PublishedExtents<S> {
    /// Tells a client where the bytes of a range are.
    pub(in crate::cluster) fn locate_for_client(
        &self,
        op: Locate,
    ) -> Served<Result<Located, FsError>> {
        if op.offset > MAX_OFFSET {
            return Served::Now(Err(FsError::Invalid));
        }
        if self.server.has_all_extents() {
            return Served::Now(
                self.server
                    .node(|node| node.writes().locate_range(op.ino, op.offset, op.length)),
            );
        }
        self.later(|this| async move { this.locate_published(op).await })
    }

    async fn locate_published(&self, op: Locate) -> Result<Located, FsError> {
        let ino = self.server.resolve(op.ino)?;
        let offset = op.offset;
        let wanted = offset.saturating_add(op.length.max(1));
        loop {
            self.server.lease_here(ino).await?;
            let local = self.server.local(ino).ok_or(FsError::Stale)?;
            let size = self
                .server
                .node(|node| node.writers().attr_now(local))?
                .size;
            self.learn(ino, local, offset, size).await?;
            if let Some(located) = self.answer(ino, local, offset, wanted, size)? {
                return Ok(located);
            }
        }
    }

    /// Asks the slices' homes for the unknown slices around `offset`.
    async fn learn(&self, ino: Ino, local: Ino, offset: u64, size: u64) -> Result<(), FsError> {
        let end = slice_of(size.saturating_sub(1)) + 1;
        let from = if end <= AHEAD { 0 } else { slice_of(offset) };
        let to = end.min(from + AHEAD).max(from);
        let lasting = self
            .server
            .node(|node| node.names().attr_of(local))?
            .lamination
            == Lamination::Done;
        let (serial, unknown) = {
            let mut maps = self.state().maps.borrow_mut();
            let map = maps.entry(ino).or_insert_with(|| ExtentMap {
                lasting,
                serial: self.server.peers().token().number,
                ..ExtentMap::default()
            });
            (map.serial, map.unknown(from, to))
        };
        let Some((from, to)) = unknown else {
            return Ok(());
        };
        let range = (
            from.saturating_mul(SLICE_BYTES),
            to.saturating_mul(SLICE_BYTES).min(MAX_OFFSET),
        );
        let homes = self.homes_of(ino, range.0, range.1);
        let asked = homes.into_iter().map(|rank| {
            let (from, to) = range;
            self.server.call(rank, peer::Runs { ino, from, to })
        });
        let answers = join_all(asked).await;
        let mut maps = self.state().maps.borrow_mut();
        // The map was recalled meanwhile: the answers may be out of date.
        let Some(map) = maps.get_mut(&ino).filter(|map| map.serial == serial) else {
            return Ok(());
        };
        for answer in answers {
            map.lay(&answer?)?;
        }
        map.slices.extend(from..to);
        Ok(())
    }

    /// The answer, if everything that it needs is known. `None`: some of it was recalled.
    fn answer(
        &self,
        ino: Ino,
        local: Ino,
        offset: u64,
        wanted: u64,
        size: u64,
    ) -> Result<Option<Located>, FsError> {
        let maps = self.state().maps.borrow();
        let fresh = self.server.node(|node| node.names().attr_of(local))?.fresh;
        let Some(map) = maps.get(&ino).filter(|_| fresh) else {
            return Ok(None);
        };
        let in_slices = slice_of(offset) <= slice_of(size.saturating_sub(1));
        if in_slices && !map.knows(slice_of(offset)) {
            return Ok(None);
        }
        let mut first_unknown = slice_of(offset);
        while map.slices.contains(&first_unknown) {
            first_unknown += 1;
        }
        let end_of_known = if map.whole || first_unknown > slice_of(size.saturating_sub(1)) {
            MAX_OFFSET
        } else {
            first_unknown.saturating_mul(SLICE_BYTES).min(MAX_OFFSET)
        };
        // Runs that this node is publishing, or that programs have just written, may be many more. They can fill the answer
        // before it reaches `offset`.
        let pending = self.server.node(|node| node.writers().pending_count(local));
        let is_few = map.index.run_count() + pending <= FEW_RUNS && map.knows(0);
        let range = AnswerRange {
            from: if is_few { 0 } else { offset },
            wanted,
            end_of_known,
        };
        let mut located = self.locate_in(ino, local, map, &range)?;
        if located.known_to <= offset {
            let range = AnswerRange {
                from: offset,
                ..range
            };
            located = self.locate_in(ino, local, map, &range)?;
        }
        debug_assert!(
            located.known_to > offset,
            "known up to {}, not to {offset}",
            located.known_to
        );
        Ok(Some(located))
    }

    /// The runs of a range that are published, under way to the slices' homes, or only here, up to the size of an
    /// answer.
    fn locate_in(
        &self,
        ino: Ino,
        local: Ino,
        map: &ExtentMap,
        range: &AnswerRange,
    ) -> Result<Located, FsError> {
        let (from, wanted) = (range.from, range.wanted);
        let mut base = Vec::new();
        let mut upto = few_or_wanted(wanted, range.end_of_known, &mut base, |to, most, runs| {
            map.index.runs_in(from, to, most, runs).hi
        });
        let mut over = Vec::new();
        upto = few_or_wanted(wanted, upto, &mut over, |to, most, runs| {
            self.server
                .node(|node| node.writes().pending_runs(local, from, to, most, runs))
        })
        .min(upto);
        let mut both = ExtentIndex::new();
        let mut lay = |run: Run| {
            let laid = both.insert(run, &mut |_| ());
            laid.map(drop).map_err(|_| FsError::Io)
        };
        let erased_from = self.server.erased_from(ino);
        if erased_from < MAX_OFFSET {
            let all = std::mem::take(&mut base);
            cut_off(&all, erased_from, &mut base);
        }
        base.into_iter()
            .map(|run| Run { stamp: 0, ..run })
            .try_for_each(&mut lay)?;
        let flying = self.in_flight(ino).into_iter();
        flying
            .map(|run| Run { stamp: 1, ..run })
            .try_for_each(&mut lay)?;
        // A hole marks where this node cut its own bytes off. It must not hide bytes that others
        // have published since.
        over.into_iter()
            .filter(|run| run.source != Source::Hole)
            .map(|run| Run {
                stamp: run.stamp.saturating_add(2),
                ..run
            })
            .try_for_each(&mut lay)?;
        let mut located = Located {
            generation: self
                .server
                .node(|node| node.names().attr_of(local))?
                .index_generation,
            known_from: from,
            known_to: 0,
            runs: Vec::new(),
        };
        let known = both.runs_in(from, upto, MAX_RUNS, &mut located.runs);
        located.known_to = match known.hi.min(upto) {
            MAX_OFFSET => u64::MAX,
            hi => hi,
        };
        located.runs.retain(|run| run.source != Source::Hole);
        Ok(located)
    }

    /// Drops the known extents of a file, unless it is laminated.
    pub(in crate::cluster) fn forget_map(&self, ino: Ino) {
        let mut maps = self.state().maps.borrow_mut();
        if maps.get(&ino).is_some_and(|map| !map.lasting) {
            maps.remove(&ino);
        }
    }

    /// Drops the known extents of a file that is gone.
    pub(in crate::cluster) fn forget_here(&self, ino: Ino) {
        self.state().maps.borrow_mut().remove(&ino);
    }

    /// Removes the map of a file. Returns true if the file was laminated: then other servers may
    /// have its map too.
    pub(in crate::cluster) fn is_kept(&self, ino: Ino) -> bool {
        self.state()
            .maps
            .borrow_mut()
            .remove(&ino)
            .is_some_and(|map| map.lasting)
    }

    /// Keeps the map of a laminated file for good, if there is room.
    pub(in crate::cluster) fn keep_map(&self, ino: Ino, map: ExtentMap) {
        let mut maps = self.state().maps.borrow_mut();
        if maps.len() < MAX_KEPT || maps.contains_key(&ino) {
            maps.insert(ino, map);
        }
    }

    pub(in crate::cluster) fn runs(&self, op: &peer::Runs) -> Vec<Run> {
        let slices = self.state().slices.borrow();
        slices.runs(op.ino, op.from, op.to.min(MAX_OFFSET))
    }

    /// Reads bytes of this server's log.
    pub(in crate::cluster) fn read_log(
        &self,
        ranges: &[LogRange],
        out: &mut Vec<u8>,
    ) -> Result<(), FsError> {
        let total: u64 = ranges.iter().map(|r| r.len).fold(0, u64::saturating_add);
        if total > MAX_FETCH_BYTES {
            return Err(FsError::TooBig);
        }
        for range in ranges {
            if range.rank != self.server.rank().0 {
                return Err(FsError::Malformed);
            }
            self.server
                .log()
                .read(range.slab, range.pos, range.len, out)?;
        }
        Ok(())
    }
}
