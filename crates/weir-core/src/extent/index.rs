//! [`ExtentIndex`]: the runs of one file.
//!
//! Invariant: the runs of an index share no byte of the file. The winner of a byte is decided when
//! the second of two runs arrives ([`super::overlay`]), never when reading. Runs of one piece are
//! in a sorted map, progressions in [`Strided`]. Most files have one run: those cost one small box,
//! files without data nothing.

use super::map::OffsetMap;
use super::overlay::{precedence, strides_of, InsertCounts, Precedence, Strides};
use super::plain::Extent;
use super::progression::{cut, same_bytes};
use super::run::{FreedRange, Run, RunError};
use super::strided::Strided;

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

/// The fate of the log bytes of a run that was inserted.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Inserted {
    /// Bytes that the file now refers to and did not before.
    pub live: u64,
    /// Bytes that lost to greater stamps at once. They were reported as freed.
    pub lost: u64,
}

impl ExtentIndex {
    /// An index of no runs. Allocates nothing.
    pub fn new() -> ExtentIndex {
        ExtentIndex::default()
    }

    /// Lays a run over the existing ones: where they overlap, the greater stamp wins, byte by byte.
    ///
    /// With equal stamps, bytes that are there already with the same source stay unchanged (a
    /// growing record that is harvested again), and otherwise the newcomer wins. `freed` gets every
    /// log range that the file no longer refers to: bytes replaced, and bytes of the newcomer that
    /// lost.
    ///
    /// So that no byte is freed twice, a record that may have been inserted before, in part or
    /// whole, comes through [`ExtentIndex::grow`]: this function cannot know if bytes of it that
    /// are *not* here lost earlier.
    pub fn insert(
        &mut self,
        run: Run,
        freed: &mut dyn FnMut(FreedRange),
    ) -> Result<Inserted, RunError> {
        let run = run.checked()?;
        Ok(self.overlay(run, strides_of(&run), freed))
    }

    /// Inserts the part that a growing record gained since it was inserted as `before`: longer, or
    /// with more pieces.
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
            let inserted = self.overlay(part, strides_of(&run), freed);
            sum.live += inserted.live;
            sum.lost += inserted.lost;
        }
        Ok(sum)
    }

    fn overlay(
        &mut self,
        run: Run,
        strides: Option<Strides>,
        freed: &mut dyn FnMut(FreedRange),
    ) -> Inserted {
        let mut tally = InsertCounts::new(freed);
        let settled = match &mut self.repr {
            Repr::Empty if run.count == 1 => {
                self.repr = Repr::One(Box::new(Extent::of(&run)));
                true
            }
            Repr::One(only) if run.count == 1 => replaces(only, &Extent::of(&run), &mut tally),
            _ => false,
        };
        if !settled {
            self.many().overlay(&run, strides, &mut tally);
        }
        tally.outcome(run.log_bytes())
    }

    /// Returns the general form; a smaller one is converted to it.
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

/// Lays `new` over the only extent there is, if one extent remains.
fn replaces(only: &mut Extent, new: &Extent, tally: &mut InsertCounts<'_>) -> bool {
    if only.continued_by(new) {
        only.length += new.length;
        return true;
    }
    let covers =
        |outer: &Extent, inner: &Extent| outer.offset <= inner.offset && inner.end() <= outer.end();
    match precedence(only.stamp, new.stamp, || only.same_bytes(new)) {
        Precedence::Same if covers(new, only) => tally.refuse(&only.run(), Precedence::Same),
        Precedence::Loses if covers(new, only) => tally.replace(&only.run()),
        order if order != Precedence::Loses && covers(only, new) => {
            tally.refuse(&new.run(), order);
            return true;
        }
        _ => return false,
    }
    *only = *new;
    true
}
