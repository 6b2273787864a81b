//! [`ExtentIndex`]: the runs of one file, and how a new one is laid over them.
//!
//! Invariant: the runs of an index share no byte of the file. Who wins a byte is decided when the second of two runs
//! arrives, never when reading. Runs of one piece stand in a sorted map, progressions in [`Strided`]. Most files have one
//! run: those cost one small box, files without data nothing.

use super::map::{At, OffsetMap};
use super::plain::Extent;
use super::progression::{cut, cut_by_range, same_bytes, Place};
use super::run::{FreedRange, Run, RunError};
use super::strided::{Strided, FEW};

/// The runs of one file, each byte of it belonging to at most one. See [the module](super) for the idea.
#[derive(Clone, Debug, Default)]
pub struct ExtentIndex {
    pub(super) repr: Repr,
}

#[derive(Clone, Debug, Default)]
pub(super) enum Repr {
    #[default]
    Empty,
    One(Box<Extent>),
    Many(Box<Runs>),
}

/// The runs of a file that has several, or a progression.
#[derive(Clone, Debug, Default)]
pub(super) struct Runs {
    pub(super) plain: OffsetMap<Extent>,
    pub(super) strided: Strided,
    /// Log bytes of all runs.
    pub(super) allocated: u64,
}

/// What became of the log bytes of a run that was inserted.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Inserted {
    /// Bytes that the file now refers to and did not before.
    pub live: u64,
    /// Bytes that lost to greater stamps at once. They were reported as freed.
    pub lost: u64,
}

/// Strides of the record that a fragment comes from: where to look for the rest of it.
type Beat = (u64, u64);

/// Collects what an insertion does to the log.
struct Tally<'a> {
    freed: &'a mut dyn FnMut(FreedRange),
    /// Bytes of older runs that were replaced.
    replaced: u64,
    /// Bytes of the new run that lost.
    lost: u64,
    /// Bytes of the new run that were there already.
    known: u64,
}

/// What a run in the index means to one that arrives.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Verdict {
    /// It is older: the newcomer replaces it.
    Loses,
    /// It is newer: the newcomer's bytes are freed.
    Wins,
    /// It is the newcomer, harvested before.
    Same,
}

fn verdict(old_stamp: u64, new_stamp: u64, same: impl FnOnce() -> bool) -> Verdict {
    match old_stamp.cmp(&new_stamp) {
        std::cmp::Ordering::Greater => Verdict::Wins,
        std::cmp::Ordering::Equal if same() => Verdict::Same,
        std::cmp::Ordering::Equal | std::cmp::Ordering::Less => Verdict::Loses,
    }
}

impl<'a> Tally<'a> {
    fn new(freed: &'a mut dyn FnMut(FreedRange)) -> Tally<'a> {
        Tally {
            freed,
            replaced: 0,
            lost: 0,
            known: 0,
        }
    }

    fn replace(&mut self, old: &Run) {
        self.replaced += old.log_bytes();
        old.for_each_log_range(self.freed);
    }

    /// Bytes of the newcomer that stay out, for the reason given by `verdict`.
    fn refuse(&mut self, part: &Run, verdict: Verdict) {
        if verdict == Verdict::Same {
            self.known += part.log_bytes();
        } else {
            self.lost += part.log_bytes();
            part.for_each_log_range(self.freed);
        }
    }

    fn outcome(&self, offered: u64) -> Inserted {
        Inserted {
            live: offered - self.lost - self.known,
            lost: self.lost,
        }
    }
}

impl ExtentIndex {
    /// An index of no runs. Allocates nothing.
    pub fn new() -> ExtentIndex {
        ExtentIndex::default()
    }

    /// Lays a run over what is there: where they overlap, the greater stamp wins, byte by byte.
    ///
    /// With equal stamps, bytes that are there already with the same source stay as they are (a growing record that is
    /// harvested again), and otherwise the newcomer wins. `freed` is told every log range that the file no longer
    /// refers to: bytes replaced, and bytes of the newcomer that lost.
    ///
    /// So that no byte is freed twice, a record that may have been inserted before, in part or whole, comes through
    /// [`ExtentIndex::grow`]: of its bytes that are *not* here this function cannot know whether they lost earlier.
    pub fn insert(
        &mut self,
        run: Run,
        freed: &mut dyn FnMut(FreedRange),
    ) -> Result<Inserted, RunError> {
        let run = run.checked()?;
        Ok(self.overlay(run, beat_of(&run), freed))
    }

    /// Inserts what a growing record gained since it was inserted as `before`: longer, or with more pieces.
    ///
    /// The pieces join those that are here, so that a record harvested a thousand times is still one run.
    pub fn grow(
        &mut self,
        before: &Run,
        run: Run,
        freed: &mut dyn FnMut(FreedRange),
    ) -> Result<Inserted, RunError> {
        let (before, run) = (before.checked()?, run.checked()?);
        let origin = |run: &Run| (run.stamp, run.offset, run.source_at(run.offset));
        if origin(&before) != origin(&run)
            || !same_bytes(&before, &run)
            || before.total_bytes() > run.total_bytes()
        {
            return Err(RunError::NotGrown {
                offset: run.offset,
                stamp: run.stamp,
            });
        }
        if before.count == 1 && run.count == 1 {
            // The common case, without a detour through a list.
            let gained = run.length - before.length;
            return Ok(match gained {
                0 => Inserted::default(),
                _ => self.overlay(run.within(before.length, gained), None, freed),
            });
        }
        let mut gained = Vec::new();
        cut(&run, &before, &mut |inside, part| {
            if !inside {
                gained.push(part);
            }
        });
        let mut sum = Inserted::default();
        for part in gained {
            let inserted = self.overlay(part, beat_of(&run), freed);
            sum.live += inserted.live;
            sum.lost += inserted.lost;
        }
        Ok(sum)
    }

    fn overlay(
        &mut self,
        run: Run,
        beat: Option<Beat>,
        freed: &mut dyn FnMut(FreedRange),
    ) -> Inserted {
        let mut tally = Tally::new(freed);
        let settled = match &mut self.repr {
            Repr::Empty if run.count == 1 => {
                self.repr = Repr::One(Box::new(Extent::of(&run)));
                true
            }
            Repr::One(only) if run.count == 1 => replaces(only, &Extent::of(&run), &mut tally),
            _ => false,
        };
        if !settled {
            self.many().overlay(&run, beat, &mut tally);
        }
        tally.outcome(run.log_bytes())
    }

    /// The general form, into which smaller ones are turned.
    pub(super) fn many(&mut self) -> &mut Runs {
        if !matches!(self.repr, Repr::Many(_)) {
            let mut runs = Box::<Runs>::default();
            if let Repr::One(only) = &self.repr {
                runs.plain.insert(**only);
                runs.allocated = only.log_bytes();
            }
            self.repr = Repr::Many(runs);
        }
        match &mut self.repr {
            Repr::Many(runs) => runs,
            _ => unreachable!("just made"),
        }
    }

    /// Goes back to the small forms where they suffice.
    pub(super) fn simplify(&mut self) {
        let Repr::Many(runs) = &mut self.repr else {
            return;
        };
        if !runs.strided.is_empty() {
            return;
        }
        match runs.plain.len() {
            0 => self.repr = Repr::Empty,
            1 => {
                let only = runs.plain.iter().next().copied();
                self.repr = only.map_or(Repr::Empty, |only| Repr::One(Box::new(only)));
            }
            _ => {}
        }
    }
}

fn beat_of(run: &Run) -> Option<Beat> {
    (run.count > 1).then(|| (run.stride, run.source.pos_stride()))
}

/// Lays `new` over the only extent there is, if one extent remains.
fn replaces(only: &mut Extent, new: &Extent, tally: &mut Tally<'_>) -> bool {
    if only.continued_by(new) {
        only.length += new.length;
        return true;
    }
    let covers =
        |outer: &Extent, inner: &Extent| outer.offset <= inner.offset && inner.end() <= outer.end();
    match verdict(only.stamp, new.stamp, || only.same_bytes(new)) {
        Verdict::Same if covers(new, only) => tally.known += only.log_bytes(),
        Verdict::Loses if covers(new, only) => tally.replace(&only.run()),
        verdict if verdict != Verdict::Loses && covers(only, new) => {
            tally.refuse(&new.run(), verdict);
            return true;
        }
        _ => return false,
    }
    *only = *new;
    true
}

impl Runs {
    fn overlay(&mut self, run: &Run, beat: Option<Beat>, tally: &mut Tally<'_>) {
        if self.strided.is_empty() && run.count == 1 && beat.is_none() {
            self.overlay_extent(Extent::of(run), None, tally);
        } else {
            for part in self.overlay_on_strided(run, tally) {
                if part.count == 1 {
                    self.overlay_extent(Extent::of(&part), beat, tally);
                } else {
                    self.overlay_progression(part, beat, tally);
                }
            }
        }
        self.allocated += run.log_bytes() - tally.lost - tally.known;
        self.allocated -= tally.replaced;
    }

    /// Settles the newcomer's dispute with the progressions; returns what is left of it.
    fn overlay_on_strided(&mut self, run: &Run, tally: &mut Tally<'_>) -> Vec<Run> {
        let mut pending = vec![*run];
        for old in self.strided.meeting(run) {
            let verdict = verdict(old.stamp, run.stamp, || same_bytes(&old, run));
            if verdict == Verdict::Loses {
                self.strided.remove(&old);
                let mut kept = Vec::new();
                cut(&old, run, &mut |inside, part| {
                    if inside {
                        tally.replace(&part);
                    } else {
                        kept.push(part);
                    }
                });
                for part in kept {
                    self.place(part);
                }
                continue;
            }
            let mut rest = Vec::with_capacity(pending.len());
            for part in pending {
                cut(&part, &old, &mut |inside, part| {
                    if inside {
                        tally.refuse(&part, verdict);
                    } else {
                        rest.push(part);
                    }
                });
            }
            pending = rest;
        }
        pending
    }

    /// Lays an extent that meets no progression over the other extents, from left to right.
    fn overlay_extent(&mut self, extent: Extent, beat: Option<Beat>, tally: &mut Tally<'_>) {
        let mut rest = extent;
        loop {
            let first = self.plain.seek(rest.offset);
            let mut at = first;
            let mut replaces = false;
            let standing = loop {
                let Some(old) = self.plain.get(at).filter(|old| old.offset < rest.end()) else {
                    break None;
                };
                match verdict(old.stamp, rest.stamp, || old.same_bytes(&rest)) {
                    Verdict::Loses => replaces = true,
                    standing => break Some((*old, standing)),
                }
                at = self.plain.next(at);
            };
            let (old_start, old_end) =
                standing.map_or((rest.end(), rest.end()), |(old, _)| (old.offset, old.end()));
            if rest.offset < old_start {
                let free = rest.part(rest.offset, old_start);
                match (replaces, beat) {
                    (false, None) => self.plain.join_at(first, free),
                    (false, _) => self.adopt(free.run(), beat),
                    (true, _) => self.replace_extents(first, free, beat, tally),
                }
            }
            if let Some((_, verdict)) = standing {
                let met = rest.part(rest.offset.max(old_start), rest.end().min(old_end));
                tally.refuse(&met.run(), verdict);
            }
            if old_end >= rest.end() {
                return;
            }
            rest = rest.part(old_end, rest.end());
        }
    }

    /// Puts in an extent in place of those in its range, of which `first` is the first.
    fn replace_extents(
        &mut self,
        first: At,
        extent: Extent,
        beat: Option<Beat>,
        tally: &mut Tally<'_>,
    ) {
        let range = |extent: &Extent| (extent.offset, extent.length);
        let only = self
            .plain
            .get(first)
            .copied()
            .filter(|old| range(old) == range(&extent));
        if let Some(old) = only.filter(|_| beat.is_none()) {
            if self.plain.exchange(first, extent) {
                tally.replace(&old.run());
                return;
            }
        }
        self.plain
            .clear_range(extent.offset, extent.end(), &mut |old| {
                tally.replace(&old.run())
            });
        self.adopt(extent.run(), beat);
    }

    /// Lays a progression that meets no other progression over the extents.
    fn overlay_progression(&mut self, run: Run, beat: Option<Beat>, tally: &mut Tally<'_>) {
        // In order of the file: `done` lies before the extent at hand, `rest` (its next part last) behind.
        let mut done = Vec::new();
        let mut rest = vec![run];
        for old in self.extents_meeting(&run) {
            let verdict = verdict(old.stamp, run.stamp, || same_bytes(&old.run(), &run));
            if verdict == Verdict::Loses {
                let at = self.plain.seek(old.offset);
                self.plain.remove(at);
                let mut kept = Vec::new();
                cut(&old.run(), &run, &mut |inside, part| {
                    if inside {
                        tally.replace(&part);
                    } else {
                        kept.push(part);
                    }
                });
                for part in kept {
                    self.place(part);
                }
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
                        Place::Before => done.push(part),
                        Place::Inside => tally.refuse(&part, verdict),
                        Place::After => behind.push(part),
                    },
                );
                rest.extend(behind.into_iter().rev());
            }
        }
        rest.reverse();
        for part in done.into_iter().chain(rest) {
            self.adopt(part, beat);
        }
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

    /// Puts in a run where nothing is.
    pub(super) fn place(&mut self, run: Run) {
        if run.count >= FEW {
            self.strided.insert(run);
        } else {
            (0..run.count).for_each(|index| self.plain.insert(Extent::of(&run.sub(index, 1))));
        }
    }

    /// Puts in a run where nothing is, and joins it to the other fragments of its record.
    fn adopt(&mut self, mut run: Run, beat: Option<Beat>) {
        let fits = |beat: Beat| run.count == 1 || beat_of(&run) == Some(beat);
        let Some((stride, pos_stride)) = beat.filter(|beat| fits(*beat)) else {
            self.join(run);
            return;
        };
        while let Some(before) = self.piece_run_before(&run, stride, pos_stride) {
            self.take(&before);
            run = chained(&before, &run, stride, pos_stride);
        }
        while let Some(after) = self.piece_run_after(&run, stride, pos_stride) {
            self.take(&after);
            run = chained(&run, &after, stride, pos_stride);
        }
        self.join(run);
    }

    /// Puts in a run where nothing is, and joins it to its neighbours.
    fn join(&mut self, run: Run) {
        if run.count == 1 {
            self.plain.join(Extent::of(&run));
        } else {
            self.place(run);
        }
    }

    /// The run of the same record whose last piece is one stride before the first of `run`.
    fn piece_run_before(&self, run: &Run, stride: u64, pos_stride: u64) -> Option<Run> {
        let at = run.offset.checked_sub(stride)?;
        let plain = self.plain.find(at).map(Extent::run);
        let found = plain.or_else(|| self.strided.ending_at(at).copied())?;
        chains(&found, run, stride, pos_stride).then_some(found)
    }

    /// The run of the same record whose first piece is one stride behind the last of `run`.
    fn piece_run_after(&self, run: &Run, stride: u64, pos_stride: u64) -> Option<Run> {
        let at = run.start_of(run.count - 1) + stride;
        let plain = self.plain.find(at).map(Extent::run);
        let found = plain.or_else(|| self.strided.starting_at(at).copied())?;
        chains(run, &found, stride, pos_stride).then_some(found)
    }

    /// Takes out a run that is in here.
    fn take(&mut self, run: &Run) {
        if run.count == 1 {
            let at = self.plain.seek(run.offset);
            self.plain.remove(at);
        } else {
            self.strided.remove(run);
        }
    }
}

/// Whether `next` goes on where `run` ends, as a progression of the given strides, as the same write.
pub(super) fn chains(run: &Run, next: &Run, stride: u64, pos_stride: u64) -> bool {
    let fits =
        |run: &Run| run.count == 1 || (run.stride, run.source.pos_stride()) == (stride, pos_stride);
    let last = run.piece(run.count - 1);
    fits(run)
        && fits(next)
        && (run.length, run.stamp) == (next.length, next.stamp)
        && last.offset + stride == next.offset
        && last.source.advanced(pos_stride) == next.piece(0).source
}

/// Two runs that [`chains`] as one.
pub(super) fn chained(run: &Run, next: &Run, stride: u64, pos_stride: u64) -> Run {
    let mut joined = *run;
    joined.count += next.count;
    joined.stride = stride;
    if let super::run::Source::Log {
        pos_stride: own, ..
    } = &mut joined.source
    {
        *own = pos_stride;
    }
    joined
}
