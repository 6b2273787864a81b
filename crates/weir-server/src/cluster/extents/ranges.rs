//! Operations on ranges of a file: finding extents, cutting, making holes.

use std::collections::BTreeSet;

use weir_core::extent::{Run, Source, MAX_OFFSET};
use weir_core::journal::Item;
use weir_core::names::{Attr, SetAttr};
use weir_core::node::channel::REPLY_BYTES;
use weir_core::proto::{Allocate, FsError, Located};
use weir_core::types::Ino;

use crate::cluster::extents::NodeWrites;
use crate::cluster::refusal::refusal;
use crate::node::Platform;

/// The most bytes that a run takes in a reply: five numbers, the source's kind and its four.
const RUN_BYTES: usize = 5 * 10 + 1 + 3 + 5 + 10 + 10;
/// The most runs in a reply.
pub(crate) const MAX_RUNS: usize = (REPLY_BYTES - 64) / RUN_BYTES;
/// A reply names at least this many runs of a file, even if fewer were asked for: they cost little.
pub(crate) const FEW_RUNS: usize = 32;
/// The most slabs in one reply.
const MAX_SLABS: usize = (REPLY_BYTES - 64) / 5;

impl<P: Platform> NodeWrites<'_, '_, P> {
    /// The extents of a range, up to the size of a reply, and those around it if they are few.
    pub(super) fn locate_range(
        &mut self,
        ino: Ino,
        offset: u64,
        length: u64,
    ) -> Result<Located, FsError> {
        self.names.regular(ino)?;
        if offset > MAX_OFFSET {
            return Err(FsError::Invalid);
        }
        self.harvest(ino);
        let generation = self.names.attr(ino).map_err(refusal)?.index_generation;
        let mut located = Located {
            generation,
            known_from: 0,
            known_to: u64::MAX,
            runs: Vec::new(),
        };
        if let Some(index) = self.tables.indexes.get(ino) {
            let from = match index.run_count() <= FEW_RUNS {
                true => 0,
                false => offset,
            };
            let wanted = offset.saturating_add(length.max(1));
            let known_to =
                few_or_wanted(wanted, MAX_OFFSET, &mut located.runs, |to, most, runs| {
                    index.runs_in(from, to, most, runs).hi
                });
            located.known_from = from;
            if known_to < MAX_OFFSET {
                located.known_to = known_to;
            }
            debug_assert!(length == 0 || located.known_to > offset);
            located.runs.retain(|run| run.source != Source::Hole);
        }
        Ok(located)
    }

    /// Cuts a file, or extends it with zeros. The file's home decides if it may be written.
    pub(in crate::cluster) fn set_size(&mut self, ino: Ino, size: u64) -> Result<(), FsError> {
        let attr = self.names.regular(ino)?;
        if size > MAX_OFFSET {
            return Err(FsError::TooBig);
        }
        if size < self.writers().size_of(&attr) {
            let stamp = self
                .writers()
                .shared_block(ino)
                .map(|block| block.truncate(size));
            self.make_hole(ino, size, MAX_OFFSET, stamp);
            self.names.set_own_size(&attr, size, stamp.is_some());
        } else {
            self.raise_size(&attr, size);
        }
        if attr.evicted && size == 0 {
            // The file has no bytes of its copy any more.
            self.names.set_evicted(ino, false)?;
        }
        self.writers().forget_cell_times(ino);
        self.names.touch(ino, true)
    }

    /// Frees the bytes of a file that has no writers, and leaves its attributes.
    pub(in crate::cluster) fn drop_extents(&mut self, ino: Ino) {
        self.make_hole(ino, 0, MAX_OFFSET, None);
    }

    /// Makes a range a hole, or extends the file to the end of the range.
    pub(super) fn allocate_range(&mut self, op: &Allocate) -> Result<(), FsError> {
        let Allocate {
            ino,
            offset,
            length,
            zero,
            keep_size,
        } = *op;
        let attr = self.names.writable(ino)?;
        let end = offset.checked_add(length).ok_or(FsError::TooBig)?;
        if length == 0 {
            return Err(FsError::Invalid);
        }
        if end > MAX_OFFSET {
            return Err(FsError::TooBig);
        }
        if zero {
            let stamp = self.writers().shared_block(ino).map(|block| {
                block.end_claims();
                block.stamp()
            });
            self.make_hole(ino, offset, end, stamp);
        }
        if !keep_size {
            self.raise_size(&attr, end);
        }
        self.names.touch(ino, zero || !keep_size)
    }

    /// Lays a hole over `[from, to)`. With a stamp there are writers, and the hole stays, to order
    /// the records that they wrote before it. Without a stamp the hole need not stay.
    fn make_hole(&mut self, ino: Ino, from: u64, to: u64, stamp: Option<u64>) {
        self.harvest(ino);
        if !self.tables.has_extents(ino) && stamp.is_none() {
            return;
        }
        let Ok(hole) = Run::hole(from, to, stamp.unwrap_or(1)) else {
            return; // the range is empty
        };
        self.lay_run(ino, hole, stamp.is_some());
    }

    /// Lays a run over a file whose writes before it are harvested.
    pub(super) fn lay_run(&mut self, ino: Ino, run: Run, has_writers: bool) {
        // Write the records of the cells to the journal before the run. The index forgets a hole
        // that has nothing behind it, and a journal that is begun anew then does not know the hole.
        for cell in self.writers().cells_of(ino).to_vec() {
            self.note_written(cell);
        }
        self.change(ino, |index, freed, _| {
            let laid = index.insert(run, freed);
            debug_assert!(laid.is_ok(), "the run was checked");
            if !has_writers {
                index.settle();
            }
        });
        self.changes.note(&Item::IndexRuns(ino, vec![run]));
        if !has_writers {
            self.changes.note(&Item::IndexSettled(ino));
        }
        self.announce_changes();
    }

    /// Raises a file's size to at least `size`, and its times to at least `mtime_ns` (0: leaves them).
    pub(in crate::cluster) fn raise_to(
        &mut self,
        ino: Ino,
        size: u64,
        mtime_ns: i64,
    ) -> Result<(), FsError> {
        let attr = self.names.regular(ino)?;
        self.raise_size(&attr, size);
        let set = SetAttr {
            mtime_ns: (mtime_ns != 0 && mtime_ns > attr.mtime_ns).then_some(mtime_ns),
            ctime_ns: (mtime_ns > attr.ctime_ns).then_some(mtime_ns),
            ..Default::default()
        };
        self.names.setattr(ino, &set).map(drop).map_err(refusal)
    }

    fn raise_size(&mut self, attr: &Attr, size: u64) {
        match self.writers().shared_block(attr.ino) {
            Some(block) => block.raise(size),
            None => self.names.set_own_size(attr, size.max(attr.size), false),
        }
    }

    /// The slabs of storage directories that a file has bytes in.
    pub(super) fn file_slabs(&mut self, ino: Ino) -> Result<Vec<u32>, FsError> {
        self.names.attr(ino).map_err(refusal)?;
        self.harvest(ino);
        let space = &self.segments;
        let mut slabs = BTreeSet::new();
        if let Some(index) = self.tables.indexes.get(ino) {
            index.for_each_run(&mut |run| {
                if let Source::Log { slab, .. } = run.source {
                    if space.is_file(slab) {
                        slabs.insert(slab);
                    }
                }
            });
        }
        if slabs.len() > MAX_SLABS {
            return Err(FsError::TooBig);
        }
        Ok(slabs.into_iter().collect())
    }
}

/// Appends to `out` the runs that `runs(to, most, out)` finds up to an offset: [`FEW_RUNS`] up to
/// `end`, or if those do not reach `wanted`, [`MAX_RUNS`] up to there. Returns the offset up to
/// which `out` has all runs.
pub(crate) fn few_or_wanted(
    wanted: u64,
    end: u64,
    out: &mut Vec<Run>,
    mut runs: impl FnMut(u64, usize, &mut Vec<Run>) -> u64,
) -> u64 {
    let before = out.len();
    let wanted = wanted.min(end);
    let few = runs(end, FEW_RUNS, out);
    if few >= wanted {
        return few;
    }
    out.truncate(before);
    runs(wanted, MAX_RUNS, out)
}

#[cfg(test)]
mod tests {
    use super::*;
    use weir_core::proto::encode;

    #[test]
    fn the_largest_reply_fits_the_channel() {
        let run = Run {
            offset: u64::MAX,
            length: u64::MAX,
            stride: u64::MAX,
            count: u64::MAX,
            stamp: u64::MAX,
            source: Source::Log {
                rank: u16::MAX,
                slab: u32::MAX,
                pos: u64::MAX,
                pos_stride: u64::MAX,
            },
        };
        let located = Located {
            generation: u64::MAX,
            known_from: u64::MAX,
            known_to: u64::MAX,
            runs: vec![run; MAX_RUNS],
        };
        let mut bytes = Vec::new();
        encode(&Ok::<_, FsError>(located), &mut bytes);
        assert!(bytes.len() <= REPLY_BYTES);
    }
    #[test]
    fn a_reply_has_all_runs_if_they_are_few_and_else_those_that_were_wanted() {
        let run = |offset: u64| Run::extent(offset, 1, 1, 0, 0, offset).unwrap();
        // A file with one run at each tenth byte.
        let located = |wanted: u64, end: u64| {
            let mut out = vec![run(7)];
            let upto = few_or_wanted(wanted, end, &mut out, |to, most, out| {
                let mut all = (0..to).step_by(10);
                out.extend(all.clone().take(most).map(run));
                all.nth(most).unwrap_or(to)
            });
            assert_eq!(out[0], run(7), "what was there stays");
            (upto, out.len() - 1)
        };
        assert_eq!(located(5, 100), (100, 10), "all of them");
        assert_eq!(located(5, 10_000), (320, FEW_RUNS), "some more than wanted");
        assert_eq!(located(1000, 10_000), (1000, 100), "those that are wanted");
        let most = MAX_RUNS as u64 * 10;
        assert_eq!(located(most + 1000, 1 << 20), (most, MAX_RUNS), "that fit");
        assert_eq!(located(u64::MAX, 50), (50, 5), "not behind the end");
    }
}
