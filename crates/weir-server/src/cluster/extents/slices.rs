//! The published extents of the slices that live here, of any server's files.
//!
//! The newest publish wins: each of its parts is laid with a new stamp. A part that comes again gets its earlier
//! answer; the only change then is that bytes behind a later cut are withdrawn.
//!
//! Left out: the publisher's side (`publishes`), and the messages (`publish`).

use std::collections::{BTreeMap, HashMap};

use weir_core::extent::{ExtentIndex, FreedRange, Piece, PieceSource, Run, Source, MAX_OFFSET};
use weir_core::journal::{Item, PublishAnswers};
use weir_core::proto::peer::{self, LogRange};
use weir_core::proto::FsError;
use weir_core::types::{Ino, Rank};

use crate::node::{SnapshotPosition, Visit};

/// The most files whose settlings are known.
const MOST_SETTLED: usize = 4096;

/// The published extents of this server's slices.
#[derive(Debug, Default)]
pub(super) struct SliceExtents {
    indexes: BTreeMap<Ino, ExtentIndex>,
    last_stamp: u64,
    /// The answered publishes of each server that may come again, by file, until that server says
    /// that they have ended. A restarted server sends all publishes of a file once more. Laying a
    /// part a second time would hide what was laid in between, and would refer to bytes that were
    /// freed then.
    answered: BTreeMap<(Ino, Rank), PublishAnswers>,
    /// The files of those publishes.
    by_publish: BTreeMap<(Rank, u64), Ino>,
    /// The number of the last settling of a file, and the last stamp then.
    settled: BTreeMap<Ino, (u64, u64)>,
}

impl SliceExtents {
    /// Restores the state from the journal.
    pub(super) fn take_up(
        &mut self,
        indexes: HashMap<Ino, ExtentIndex>,
        last_stamp: u64,
        answered: BTreeMap<(Ino, Rank), PublishAnswers>,
    ) {
        self.indexes = indexes.into_iter().collect();
        self.last_stamp = last_stamp;
        for ((ino, from), answered) in &answered {
            for publish in answered.keys() {
                self.by_publish.insert((*from, *publish), *ino);
            }
        }
        self.answered = answered;
    }

    /// Visits some of the extents; returns the position to go on from.
    pub(super) fn show_extents(
        &self,
        from: SnapshotPosition,
        most: usize,
        visit: Visit<'_>,
    ) -> Option<SnapshotPosition> {
        let (mut left, mut offset) = (most, from.offset);
        for (ino, index) in self.indexes.range(from.ino..) {
            let (ino, table) = (*ino, from.table);
            if left == 0 {
                return Some(SnapshotPosition { table, ino, offset });
            }
            let mut runs = Vec::new();
            // The offset is of the file that the position names. If that file is gone, begin at 0.
            let begin = if ino == from.ino { offset } else { 0 };
            let known = index.runs_in(begin, MAX_OFFSET, left, &mut runs);
            left = left.saturating_sub(runs.len().max(1));
            visit(&Item::SliceRuns(ino, runs));
            offset = 0;
            if known.hi < MAX_OFFSET {
                let offset = known.hi;
                return Some(SnapshotPosition { table, ino, offset });
            }
        }
        None
    }

    /// Visits the answers to publishes that may come again.
    pub(super) fn show_answers(&self, visit: Visit<'_>) {
        for ((ino, from), answered) in &self.answered {
            for (publish, parts) in answered {
                for (part, freed) in parts {
                    visit(&Item::PublishAnswered {
                        ino: *ino,
                        from: *from,
                        publish: *publish,
                        part: *part,
                        freed: freed.clone(),
                    });
                }
            }
        }
    }

    /// Lays a part of a server's publish: `laid`, the runs of it in slices of this server. Returns the bytes that
    /// nothing refers to any more.
    pub(super) fn put(
        &mut self,
        from: Rank,
        op: &peer::Put,
        mut laid: Vec<Run>,
        note: Visit<'_>,
    ) -> Result<Vec<LogRange>, FsError> {
        for ino in self.forget_below(from, op.ended_below) {
            note(&Item::AnswersForgotten(ino, from));
        }
        self.by_publish.insert((from, op.publish), op.ino);
        let answered = self.answered.entry((op.ino, from)).or_default();
        let parts = answered.entry(op.publish).or_default();
        let index = self.indexes.entry(op.ino).or_default();
        self.last_stamp += 1;
        let stamp = self.last_stamp;
        let before = parts.get(&op.part);
        let mut freed = before.cloned().unwrap_or_default();
        if before.is_some() {
            laid = withdraw(index, &laid, op.cut, stamp, &mut freed);
        } else {
            if op.cut < MAX_OFFSET {
                let whole = std::mem::take(&mut laid);
                freed = cut_off(&whole, op.cut, &mut laid);
            }
            for run in &mut laid {
                run.stamp = stamp;
                let put = index.insert(*run, &mut |range| freed.push(log_range(range)));
                put.map_err(|_| FsError::Malformed)?;
            }
        }
        let is_known = before.is_some() && laid.is_empty();
        index.drop_holes();
        if index.is_empty() {
            self.indexes.remove(&op.ino);
        }
        if is_known {
            return Ok(freed);
        }
        parts.insert(op.part, freed.clone());
        note(&Item::SliceRuns(op.ino, laid));
        note(&Item::PublishAnswered {
            ino: op.ino,
            from,
            publish: op.publish,
            part: op.part,
            freed: freed.clone(),
        });
        Ok(freed)
    }

    /// Makes a range a hole. The index has only extents of this server's slices, so the range need not be cut into
    /// slices. (A file may be 8 EiB long.) Returns the bytes that become free.
    pub(super) fn erase(&mut self, op: &peer::Erase, note: Visit<'_>) -> Vec<LogRange> {
        self.last_stamp += 1;
        let mut freed = Vec::new();
        let Some(index) = self.indexes.get_mut(&op.ino) else {
            return freed;
        };
        if let Ok(hole) = Run::hole(op.from, op.to.min(MAX_OFFSET), self.last_stamp) {
            let _ = index.insert(hole, &mut |range| freed.push(log_range(range)));
            note(&Item::SliceRuns(op.ino, vec![hole]));
        }
        index.drop_holes();
        if index.is_empty() {
            self.indexes.remove(&op.ino);
        }
        freed
    }

    /// Notes that the present extents of a file are settled.
    pub(super) fn settle(&mut self, ino: Ino, number: u64) {
        if self.settled.len() >= MOST_SETTLED {
            // Those files are settled once more.
            self.settled.clear();
        }
        self.settled.insert(ino, (number, self.last_stamp));
    }

    /// Lays runs of a file's copy in slices of this server. Without `settled` they go beneath all that is there, so
    /// that a late request hides nothing. With the number of a settling, a run replaces the bytes of its range if all
    /// of them are in logs and not newer than the settling. Returns the bytes that nothing refers to any more.
    pub(super) fn lay_copy(
        &mut self,
        ino: Ino,
        settled: Option<u64>,
        mut own: Vec<Run>,
        note: Visit<'_>,
    ) -> Vec<LogRange> {
        let index = self.indexes.entry(ino).or_default();
        if let Some(number) = settled {
            let known = self.settled.get(&ino).copied();
            let stamp = known.and_then(|(of, stamp)| (of == number).then_some(stamp));
            own.retain(|run| {
                let is_settled = |piece: &Piece| {
                    let is_of_copy = piece.into_run().is_of_copy();
                    stamp.is_some_and(|stamp| piece.stamp <= stamp) && !is_of_copy
                };
                is_covered_by(index, run.offset, run.end(), &is_settled)
            });
        }
        self.last_stamp += 1;
        let mut freed = Vec::new();
        for run in &mut own {
            run.stamp = settled.map_or(0, |_| self.last_stamp);
            let _ = index.insert(*run, &mut |range| freed.push(log_range(range)));
        }
        if index.is_empty() {
            self.indexes.remove(&ino);
        }
        if !own.is_empty() {
            note(&Item::SliceRuns(ino, own));
        }
        freed
    }

    /// Returns true if a file has bytes of its copy in slices of this server.
    pub(super) fn has_copy_runs(&self, ino: Ino) -> bool {
        self.indexes.get(&ino).is_some_and(has_copy_runs)
    }

    /// Forgets the publishes of a server to a file: they will not come again.
    pub(super) fn forget_answers(&mut self, ino: Ino, from: Rank) {
        self.answered.remove(&(ino, from));
    }

    /// Forgets publishes that will not come again. Returns their files.
    fn forget_below(&mut self, from: Rank, ended_below: u64) -> Vec<Ino> {
        let ended = self.by_publish.range((from, 0)..(from, ended_below));
        let ended: Vec<((Rank, u64), Ino)> = ended.map(|(key, ino)| (*key, *ino)).collect();
        let mut forgotten = Vec::new();
        for (key, ino) in ended {
            self.by_publish.remove(&key);
            let Some(answered) = self.answered.get_mut(&(ino, from)) else {
                continue;
            };
            answered.remove(&key.1);
            if answered.is_empty() {
                self.answered.remove(&(ino, from));
                forgotten.push(ino);
            }
        }
        forgotten
    }

    /// The runs of `[from, to)`.
    pub(super) fn runs(&self, ino: Ino, from: u64, to: u64) -> Vec<Run> {
        let mut out = Vec::new();
        if let Some(index) = self.indexes.get(&ino) {
            index.runs_in(from, to, usize::MAX, &mut out);
        }
        out.retain(|run| run.source != Source::Hole);
        out
    }

    /// The number of extent runs held.
    pub(super) fn run_count(&self) -> usize {
        self.indexes.values().map(ExtentIndex::run_count).sum()
    }
}

/// Returns true if a file has bytes of its copy.
pub(super) fn has_copy_runs(index: &ExtentIndex) -> bool {
    let mut is_found = false;
    index.for_each_run(&mut |run| is_found |= run.is_of_copy());
    is_found
}

/// Returns true if pieces of this kind cover a range, which is not empty.
pub(super) fn is_covered_by(
    index: &ExtentIndex,
    from: u64,
    to: u64,
    is_of_kind: &dyn Fn(&Piece) -> bool,
) -> bool {
    let mut at = from;
    index.for_each_piece_in(from, to, &mut |piece| {
        let is_log = matches!(piece.source, PieceSource::Log { .. });
        if piece.offset == at && is_log && is_of_kind(&piece) {
            at = piece.end();
        }
    });
    from < to && at == to
}

/// Makes the rest of `runs` behind `cut` a hole; returns the holes. Bytes that were laid over the runs since stay. Adds
/// the bytes that become free to `freed`.
fn withdraw(
    index: &mut ExtentIndex,
    runs: &[Run],
    cut: u64,
    stamp: u64,
    freed: &mut Vec<LogRange>,
) -> Vec<Run> {
    let mut holes = Vec::new();
    for run in runs.iter().filter(|run| run.end() > cut) {
        let Source::Log {
            rank, slab, pos, ..
        } = run.source
        else {
            continue;
        };
        let log = pos..run.log_end().unwrap_or(u64::MAX);
        index.for_each_piece_in(run.offset.max(cut), run.end(), &mut |piece| {
            let PieceSource::Log {
                rank: owner,
                slab: own_slab,
                pos: own_pos,
            } = piece.source
            else {
                return;
            };
            if (owner, own_slab) == (rank, slab) && log.contains(&own_pos) {
                holes.extend(Run::hole(piece.offset, piece.end(), stamp));
            }
        });
    }
    for hole in &holes {
        let _ = index.insert(*hole, &mut |range| freed.push(log_range(range)));
    }
    holes
}

/// Appends the parts of `runs` before `cut` to `kept`, and returns the bytes of the rest. No two
/// runs overlap.
pub(super) fn cut_off(runs: &[Run], cut: u64, kept: &mut Vec<Run>) -> Vec<LogRange> {
    let (mut index, mut freed) = (ExtentIndex::new(), Vec::new());
    for run in runs {
        // The run was checked when it was received or made.
        let _ = index.insert(Run { stamp: 1, ..*run }, &mut |_| ());
    }
    if let Ok(hole) = Run::hole(cut, MAX_OFFSET, 2) {
        let _ = index.insert(hole, &mut |range| freed.push(log_range(range)));
    }
    index.drop_holes();
    index.for_each_run(&mut |run| kept.push(run));
    freed
}

fn log_range(range: FreedRange) -> LogRange {
    LogRange {
        rank: range.rank,
        slab: range.slab,
        pos: range.pos,
        len: range.len,
    }
}

#[cfg(test)]
mod tests;
