//! The servers that keep the runs of a file, and how many records of them.
//!
//! The same as [`weir_core::placement::slices`], counted instead of made: a file of 10,000 nodes
//! has tens of millions of records. A test compares the two.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::rc::Rc;

use weir_core::extent::Run;
use weir_core::placement::slices::spans;
use weir_core::placement::{home_of_extents, slice_of};
use weir_core::types::{Ino, Rank};

/// The records of a run that each server keeps.
pub type Shares = Rc<BTreeMap<Rank, u64>>;

/// A file's slices.
#[derive(Debug)]
pub struct Spread {
    homes: Vec<Rank>,
    /// The counts of runs that touch the same slices.
    known: HashMap<(u64, u64), Shares>,
}

impl Spread {
    /// The slices of a file of `bytes`.
    pub fn new(ino: Ino, bytes: u64, servers: u16) -> Spread {
        let slices = slice_of(bytes.max(1) - 1) + 1;
        let homes = (0..slices).map(|slice| home_of_extents(ino, slice, servers));
        Spread {
            homes: homes.collect(),
            known: HashMap::new(),
        }
    }

    /// How many slices there are.
    pub fn slices(&self) -> u64 {
        self.homes.len() as u64
    }

    /// The homes of the slices `[from, to)`: the servers that a look-up of them asks.
    pub fn homes_in(&self, from: u64, to: u64) -> BTreeSet<Rank> {
        let homes = &self.homes[at(from)..at(to.min(self.slices()))];
        homes.iter().copied().collect()
    }

    /// The records that servers keep of a run.
    pub fn lay(&mut self, run: &Run) -> Shares {
        let pieces: Vec<(u64, u64)> = spans(run)
            .map(|(from, to)| (slice_of(from), slice_of(to - 1)))
            .collect();
        match pieces[..] {
            [whole] => {
                let known = self.known.get(&whole).cloned();
                known.unwrap_or_else(|| {
                    let shares = Rc::new(self.count(&pieces));
                    self.known.insert(whole, Rc::clone(&shares));
                    shares
                })
            }
            _ => Rc::new(self.count(&pieces)),
        }
    }

    fn count(&self, pieces: &[(u64, u64)]) -> BTreeMap<Rank, u64> {
        let mut parts: BTreeMap<Rank, u64> = BTreeMap::new();
        for (first, last) in pieces {
            let mut before = None;
            for home in &self.homes[at(*first)..=at(*last)] {
                if before != Some(home) {
                    *parts.entry(*home).or_default() += 1;
                }
                before = Some(home);
            }
        }
        if parts.len() == 1 {
            // All of it is one server's, which keeps it as it is.
            for count in parts.values_mut() {
                *count = 1;
            }
        }
        parts
    }
}

#[allow(clippy::cast_possible_truncation)] // a slice of a file whose slices are in a Vec
fn at(slice: u64) -> usize {
    slice as usize
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::job::{ino_at, Job, Layout};
    use weir_core::placement::slices::{clip_to_own, homes_of_run};

    #[test]
    fn counts_are_those_of_the_real_placement() {
        let layouts = [
            (Layout::Segmented, 300 << 20, 1 << 20),
            (Layout::Strided, 64 << 20, 1 << 20),
            (Layout::Strided, 512 << 20, 32 << 20),
            (Layout::Private, 512 << 20, 1 << 20),
        ];
        for (layout, bytes, transfer) in layouts {
            let job = Job {
                nodes: 7,
                processes: 3,
                bytes,
                transfer,
                layout,
            };
            job.check().unwrap();
            let ino = ino_at(Rank(3), 0);
            let mut spread = Spread::new(ino, job.file_bytes(), job.nodes);
            let tasks = match layout {
                Layout::Private => 0..1,
                _ => 0..job.tasks(),
            };
            for run in tasks.flat_map(|task| job.runs_of(task)) {
                let shares = spread.lay(&run);
                let homes: Vec<Rank> = shares.keys().copied().collect();
                let real: Vec<Rank> = homes_of_run(ino, &run, 7).into_iter().collect();
                assert_eq!(homes, real, "{layout:?} {run:?}");
                for (rank, count) in shares.iter() {
                    let mut own = Vec::new();
                    clip_to_own(ino, &run, *rank, 7, &mut own);
                    assert_eq!(own.len() as u64, *count, "{layout:?} {run:?} {rank:?}");
                }
            }
        }
    }
}
