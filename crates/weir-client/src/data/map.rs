//! The server's answers to where a file's bytes are, which a process keeps ([`Map`]), and the state of
//! a file with which they must agree ([`Moment`]). Nothing here asks the server.

use std::collections::BTreeMap;

use rustix::io::Errno;
use weir_core::extent::ExtentIndex;
use weir_core::proto::Located;

use super::host::FileState;

/// The approximate number of runs that a map holds at most.
const MOST_RUNS: usize = 1 << 15;

/// Keeps the server's answers to where a file's bytes are. All are of one
/// state of the file. A program that reads a fragmented file here and there soon knows all of it.
#[derive(Debug, Default)]
pub struct Map {
    /// The answers by their first offset; they do not overlap.
    parts: BTreeMap<u64, Part>,
    /// The number of runs in all parts.
    runs: usize,
    pub(super) generation: u64,
    pub(super) activity: u64,
    /// The length of the last look-up. Each one asks for twice as much while the state holds: an
    /// answer takes time for each of its runs, and the next write voids it.
    pub(super) asked: u64,
}

/// An answer of the server.
#[derive(Debug)]
pub(super) struct Part {
    pub(super) index: ExtentIndex,
    to: u64,
}

impl Part {
    /// The end of the bytes that it tells of.
    pub(super) fn known_to(&self) -> u64 {
        self.to
    }

    /// The first offset at or behind `from` that is known to hold data.
    pub(super) fn next_data(&self, from: u64) -> Option<u64> {
        self.index.next_data(from)
    }

    /// The first offset at or behind `from` that holds no data; it may be one that is unknown.
    pub(super) fn next_hole(&self, from: u64) -> u64 {
        self.index.next_hole(from)
    }
}

impl Map {
    /// Forgets everything.
    pub fn forget(&mut self) {
        *self = Map::default();
    }

    pub(super) fn part_at(&self, at: u64) -> Option<&Part> {
        let (_, part) = self.parts.range(..=at).next_back()?;
        (at < part.to).then_some(part)
    }

    /// The parts of a range, each with its begin and end in the range, up to the first unknown
    /// byte.
    pub(super) fn parts_of(&self, from: u64, to: u64) -> impl Iterator<Item = (u64, u64, &Part)> {
        let mut at = from;
        core::iter::from_fn(move || {
            let part = self.part_at(at).filter(|_| at < to)?;
            let begin = core::mem::replace(&mut at, part.to.min(to));
            Some((begin, at, part))
        })
    }

    pub(super) fn knows(&self, from: u64, to: u64) -> bool {
        let end = self.parts_of(from, to).last();
        end.map_or(from, |(_, end, _)| end) >= to
    }

    pub(super) fn is_of(&self, now: &Moment) -> bool {
        self.generation == now.state.generation && self.activity == now.activity
    }

    /// Takes in an answer, in place of what was known of its range. EIO: the answer is malformed.
    pub(super) fn learn(&mut self, located: &Located) -> Result<(), Errno> {
        let (from, to) = (located.known_from, located.known_to);
        let mut index = ExtentIndex::new();
        for run in &located.runs {
            index.insert(*run, &mut |_| ()).map_err(|_| Errno::IO)?;
        }
        if let Some((_, before)) = self.parts.range_mut(..from).next_back() {
            before.to = before.to.min(from);
        }
        while let Some((&start, _)) = self.parts.range(from..to.max(from)).next() {
            if let Some(behind) = self.remove(start).filter(|part| part.to > to) {
                self.insert(to, behind);
            }
        }
        while self.runs + index.run_count() > MOST_RUNS {
            let Some((&first, _)) = self.parts.first_key_value() else {
                break;
            };
            self.remove(first);
            self.asked = 0;
        }
        self.insert(from, Part { index, to });
        Ok(())
    }

    fn insert(&mut self, from: u64, part: Part) {
        self.runs += part.index.run_count();
        self.parts.insert(from, part);
    }

    fn remove(&mut self, from: u64) -> Option<Part> {
        let part = self.parts.remove(&from)?;
        self.runs -= part.index.run_count();
        Some(part)
    }
}

/// The state of a file at the beginning of a read.
pub(super) struct Moment {
    pub(super) state: FileState,
    pub(super) size: u64,
    pub(super) activity: u64,
}
