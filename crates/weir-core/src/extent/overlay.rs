//! Inserting a run over those that are there.
//!
//! Intuition: the runs of an index share no byte, so the new run competes with each of them
//! separately. Where the new run wins, the old run is removed and its remaining parts are inserted
//! again; where it loses, only the new run loses those bytes. The progressions come first, then the
//! extents, over which the rest of the new run is swept from left to right.
//!
//! Edge case: the surviving parts are inserted ([`super::adopt`]) only after all comparisons.
//! Joining them to earlier harvests of their record turns extents into progressions, which the
//! sweep has already passed.

use super::index::{Inserted, Runs};
use super::map::At;
use super::plain::Extent;
use super::progression::{cut, cut_by_range, same_bytes, Place};
use super::run::{FreedRange, Run};

/// The strides of a fragment's record in the file and the log. The rest of the record is found by
/// them.
pub(super) type Strides = (u64, u64);

/// Counts the log bytes that an insertion replaces, loses or finds present.
pub(super) struct InsertCounts<'a> {
    freed: &'a mut dyn FnMut(FreedRange),
    /// Bytes of older runs that were replaced.
    replaced: u64,
    /// Bytes of the new run that lost.
    lost: u64,
    /// Bytes of the new run that were there already.
    known: u64,
}

/// The order of an old run relative to the new one.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Precedence {
    /// The old run is older: the new one replaces it.
    Loses,
    /// The old run is newer: the new one's bytes are freed.
    Wins,
    /// The old run is the new one, harvested before.
    Same,
}

pub(super) fn precedence(
    old_stamp: u64,
    new_stamp: u64,
    same: impl FnOnce() -> bool,
) -> Precedence {
    match old_stamp.cmp(&new_stamp) {
        std::cmp::Ordering::Greater => Precedence::Wins,
        std::cmp::Ordering::Equal if same() => Precedence::Same,
        std::cmp::Ordering::Equal | std::cmp::Ordering::Less => Precedence::Loses,
    }
}

impl<'a> InsertCounts<'a> {
    pub(super) fn new(freed: &'a mut dyn FnMut(FreedRange)) -> InsertCounts<'a> {
        InsertCounts {
            freed,
            replaced: 0,
            lost: 0,
            known: 0,
        }
    }

    pub(super) fn replace(&mut self, old: &Run) {
        self.replaced += old.log_bytes();
        old.for_each_log_range(self.freed);
    }

    /// Counts bytes of the new run that are not inserted, because of `order`.
    pub(super) fn refuse(&mut self, part: &Run, order: Precedence) {
        if order == Precedence::Same {
            self.known += part.log_bytes();
        } else {
            self.lost += part.log_bytes();
            part.for_each_log_range(self.freed);
        }
    }

    pub(super) fn outcome(&self, offered: u64) -> Inserted {
        Inserted {
            live: offered - self.lost - self.known,
            lost: self.lost,
        }
    }
}

/// The strides of a progression.
pub(super) fn strides_of(run: &Run) -> Option<Strides> {
    (run.count > 1).then(|| (run.stride, run.source.pos_stride()))
}

impl Runs {
    pub(super) fn overlay(
        &mut self,
        run: &Run,
        strides: Option<Strides>,
        tally: &mut InsertCounts<'_>,
    ) {
        if self.strided.is_empty() && run.count == 1 && strides.is_none() {
            self.overlay_extent(Extent::of(run), None, tally);
        } else {
            let mut live = Vec::new();
            for part in self.overlay_on_strided(run, tally) {
                if part.count == 1 {
                    self.overlay_extent(Extent::of(&part), Some(&mut live), tally);
                } else {
                    self.overlay_progression(part, &mut live, tally);
                }
            }
            for part in live {
                self.adopt(part, strides);
            }
        }
        self.allocated += run.log_bytes() - tally.lost - tally.known;
        self.allocated -= tally.replaced;
    }

    /// Compares the new run with the progressions; returns the rest of it.
    fn overlay_on_strided(&mut self, run: &Run, tally: &mut InsertCounts<'_>) -> Vec<Run> {
        let mut pending = vec![*run];
        for old in self.strided.meeting(run) {
            let order = precedence(old.stamp, run.stamp, || same_bytes(&old, run));
            if order == Precedence::Loses {
                self.strided.remove(&old);
                self.keep_outside(&old, run, tally);
                continue;
            }
            let mut rest = Vec::with_capacity(pending.len());
            for part in pending {
                cut(&part, &old, &mut |inside, part| {
                    if inside {
                        tally.refuse(&part, order);
                    } else {
                        rest.push(part);
                    }
                });
            }
            pending = rest;
        }
        pending
    }

    /// Inserts the parts of `old`, which was removed, that lie outside `run`.
    fn keep_outside(&mut self, old: &Run, run: &Run, tally: &mut InsertCounts<'_>) {
        cut(old, run, &mut |inside, part| {
            if inside {
                tally.replace(&part);
            } else {
                self.place(part);
            }
        });
    }

    /// Lays an extent that meets no progression over the other extents, from left to right. The
    /// surviving parts go to `live`, or without that straight into the index.
    fn overlay_extent(
        &mut self,
        extent: Extent,
        mut live: Option<&mut Vec<Run>>,
        tally: &mut InsertCounts<'_>,
    ) {
        let mut rest = extent;
        loop {
            let first = self.plain.seek(rest.offset);
            let (standing, replaces) = self.first_standing(first, &rest);
            let (old_start, old_end) =
                standing.map_or((rest.end(), rest.end()), |(old, _)| (old.offset, old.end()));
            if rest.offset < old_start {
                let free = rest.part(rest.offset, old_start);
                match &mut live {
                    None if replaces => self.replace_extents(first, free, tally),
                    None => self.plain.join_at(first, free),
                    Some(live) => {
                        self.plain.clear_range(free.offset, free.end(), &mut |old| {
                            tally.replace(&old.run());
                        });
                        live.push(free.run());
                    }
                }
            }
            if let Some((_, order)) = standing {
                let met = rest.part(rest.offset.max(old_start), rest.end().min(old_end));
                tally.refuse(&met.run(), order);
            }
            if old_end >= rest.end() {
                return;
            }
            rest = rest.part(old_end, rest.end());
        }
    }

    /// Returns the first extent from `at` on that overlaps `new` and does not give way, and whether
    /// any before it does.
    fn first_standing(&self, mut at: At, new: &Extent) -> (Option<(Extent, Precedence)>, bool) {
        let mut replaces = false;
        while let Some(old) = self.plain.get(at).filter(|old| old.offset < new.end()) {
            match precedence(old.stamp, new.stamp, || old.same_bytes(new)) {
                Precedence::Loses => replaces = true,
                standing => return (Some((*old, standing)), replaces),
            }
            at = self.plain.next(at);
        }
        (None, replaces)
    }

    /// Inserts an extent in place of those in its range, of which `first` is the first.
    fn replace_extents(&mut self, first: At, extent: Extent, tally: &mut InsertCounts<'_>) {
        let range = |extent: &Extent| (extent.offset, extent.length);
        let old = self
            .plain
            .get(first)
            .copied()
            .filter(|old| range(old) == range(&extent));
        if let Some(old) = old {
            if self.plain.exchange(first, extent) {
                tally.replace(&old.run());
                return;
            }
        }
        self.plain
            .clear_range(extent.offset, extent.end(), &mut |old| {
                tally.replace(&old.run());
            });
        self.plain.join(extent);
    }

    /// Lays a progression that meets no other progression over the extents. The surviving parts go
    /// to `live`.
    fn overlay_progression(&mut self, run: Run, live: &mut Vec<Run>, tally: &mut InsertCounts<'_>) {
        // In order of the file: `rest` (its next part last) lies behind the extents that were looked at.
        let mut rest = vec![run];
        for old in self.extents_meeting(&run) {
            let order = precedence(old.stamp, run.stamp, || same_bytes(&old.run(), &run));
            if order == Precedence::Loses {
                let at = self.plain.seek(old.offset);
                self.plain.remove(at);
                self.keep_outside(&old.run(), &run, tally);
                continue;
            }
            while rest.last().is_some_and(|part| part.offset < old.end()) {
                let Some(part) = rest.pop() else { break };
                let mut behind = Vec::new();
                cut_by_range(
                    &part,
                    old.offset,
                    old.end(),
                    &mut |place, part| match place {
                        Place::Before => live.push(part),
                        Place::Inside => tally.refuse(&part, order),
                        Place::After => behind.push(part),
                    },
                );
                rest.extend(behind.into_iter().rev());
            }
        }
        rest.reverse();
        live.append(&mut rest);
    }

    /// Copies of the extents that share bytes with `run`, in order; the walk skips what the other side skips.
    fn extents_meeting(&self, run: &Run) -> Vec<Extent> {
        let mut met = Vec::new();
        let mut at = self.plain.seek(run.offset);
        while let Some(extent) = self.plain.get(at) {
            let index = run.ending_after(extent.offset);
            if index == run.count {
                break;
            }
            if run.start_of(index) < extent.end() {
                met.push(*extent);
                at = self.plain.next(at);
            } else {
                let next = self.plain.next(at);
                let skips = self
                    .plain
                    .get(next)
                    .is_some_and(|next| next.end() <= run.start_of(index));
                at = if skips {
                    self.plain.seek(run.start_of(index))
                } else {
                    next
                };
            }
        }
        met
    }
}
