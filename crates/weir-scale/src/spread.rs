//! Where the runs of a file go, and how many records servers keep of them.
//!
//! The same as [`weir_core::placement::slices`], counted instead of made: a file of 10,000 nodes
//! has tens of millions of records. A test compares the two.

use std::collections::{BTreeMap, HashMap};
use std::rc::Rc;

use weir_core::extent::Run;
use weir_core::placement::slices::spans;
use weir_core::placement::{home_of_extents, slice_of};
use weir_core::types::{Ino, Rank};

/// What of a run goes where: records by server, and how many slices each of these looks at.
pub type Shares = Rc<(BTreeMap<Rank, u64>, u64)>;

/// A file's slices.
#[derive(Debug)]
pub struct Spread {
    homes: Vec<Rank>,
    /// Of each slice: how many runs, or pieces of them, touch it, and how many begin there.
    touched: Vec<(u64, u64)>,
    /// What was counted for runs that touch the same slices.
    known: HashMap<(u64, u64), Shares>,
}

impl Spread {
    /// The slices of a file of `bytes`.
    pub fn new(ino: Ino, bytes: u64, servers: u16) -> Spread {
        let slices = slice_of(bytes.max(1) - 1) + 1;
        let homes: Vec<Rank> = (0..slices)
            .map(|slice| home_of_extents(ino, slice, servers))
            .collect();
        Spread {
            touched: vec![(0, 0); homes.len()],
            homes,
            known: HashMap::new(),
        }
    }

    /// How many slices there are.
    pub fn slices(&self) -> u64 {
        self.homes.len() as u64
    }

    /// The home of a slice.
    pub fn home(&self, slice: u64) -> Rank {
        self.homes[at(slice)]
    }

    /// Lays a run: what of it goes where.
    pub fn lay(&mut self, run: &Run) -> Shares {
        let pieces: Vec<(u64, u64)> = spans(run)
            .map(|(from, to)| (slice_of(from), slice_of(to - 1)))
            .collect();
        for (first, last) in &pieces {
            self.touched[at(*first)].1 += 1;
            for slice in *first..=*last {
                self.touched[at(slice)].0 += 1;
            }
        }
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

    fn count(&self, pieces: &[(u64, u64)]) -> (BTreeMap<Rank, u64>, u64) {
        let mut parts: BTreeMap<Rank, u64> = BTreeMap::new();
        let mut looked_at = 0;
        for (first, last) in pieces {
            looked_at += last - first + 1;
            let mut before = None;
            for slice in *first..=*last {
                let home = self.home(slice);
                if before != Some(home) {
                    *parts.entry(home).or_default() += 1;
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
        (parts, looked_at)
    }

    /// Records of the slices `[from, to)` by server: what a look-up of them brings.
    pub fn records_in(&self, from: u64, to: u64) -> BTreeMap<Rank, u64> {
        let mut records = BTreeMap::new();
        let mut before = None;
        for slice in from..to.min(self.slices()) {
            let home = self.home(slice);
            let (touching, beginning) = self.touched[at(slice)];
            let new = match before == Some(home) {
                true => beginning,
                false => touching,
            };
            *records.entry(home).or_default() += new;
            before = Some(home);
        }
        records
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
            let mut kept = [0_u64; 7];
            for run in tasks.flat_map(|task| job.runs_of(task)) {
                let shares = spread.lay(&run);
                let homes: Vec<Rank> = shares.0.keys().copied().collect();
                let real: Vec<Rank> = homes_of_run(ino, &run, 7).into_iter().collect();
                assert_eq!(homes, real, "{layout:?} {run:?}");
                for (rank, count) in &shares.0 {
                    let mut own = Vec::new();
                    clip_to_own(ino, &run, *rank, 7, &mut own);
                    assert_eq!(own.len() as u64, *count, "{layout:?} {run:?} {rank:?}");
                    kept[usize::from(rank.0)] += count;
                }
            }
            let found: u64 = spread.records_in(0, spread.slices()).values().sum();
            let kept: u64 = kept.iter().sum();
            // Pieces of a run that all happen to be one server's are one record of it; a
            // look-up is reckoned as if they were not.
            let most = kept + kept / 10;
            assert!(
                (kept..=most).contains(&found),
                "{layout:?}: {found} for {kept}"
            );
        }
    }
}
