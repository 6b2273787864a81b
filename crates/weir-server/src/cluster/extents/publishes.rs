//! The publishes of this node that have not ended: extents that have left the index of a file and are on their way to
//! the homes of its slices.
//!
//! Left out: the messages (`publish`).

use std::collections::{BTreeMap, BTreeSet, HashMap};

use weir_core::extent::{Run, MAX_OFFSET};
use weir_core::journal::Item;
use weir_core::proto::peer::LogRange;
use weir_core::types::Ino;

use super::slices::cut_off;
use crate::node::Visit;

/// The publishes of this node that are under way.
#[derive(Debug, Default)]
pub(super) struct Publishes {
    /// The batches that this node is publishing, by file. They have left the file's index, and not
    /// all servers are known to have them.
    in_flight: BTreeMap<Ino, Vec<Batch>>,
    /// The number of the last publish.
    last: u64,
    /// The files that are being published from here, with the size to which each was cut meanwhile.
    cut_meanwhile: BTreeMap<Ino, u64>,
    /// The slabs of storage directories that hold published bytes of a file and were not synced
    /// since.
    unsynced: HashMap<Ino, BTreeSet<u32>>,
}

/// The extents that were taken from a file's index at one time. A batch is sent as a whole and
/// before the next one, so that each server can tell which parts it has. If one server does not
/// answer, all are asked again.
#[derive(Clone, Debug)]
pub(super) struct Batch {
    pub(super) publish: u64,
    pub(super) runs: Vec<Run>,
    /// The size to which the file was cut since.
    pub(super) cut: u64,
    /// Set once all servers have the batch.
    pub(super) sent: Option<SentBatch>,
}

/// The state of a batch at the servers of its slices.
#[derive(Clone, Debug)]
pub(super) struct SentBatch {
    /// The size to which the file was cut, as they know it.
    pub(super) cut: u64,
    /// The bytes that it freed.
    pub(super) freed: Vec<LogRange>,
}

impl Batch {
    fn new(publish: u64, runs: Vec<Run>) -> Batch {
        Batch {
            publish,
            runs,
            cut: MAX_OFFSET,
            sent: None,
        }
    }

    /// Returns true if all servers have the batch as it is now.
    pub(super) fn is_sent(&self) -> bool {
        self.sent.as_ref().is_some_and(|sent| sent.cut <= self.cut)
    }

    /// The runs of the batch that are not cut off.
    fn kept(&self) -> Vec<Run> {
        if self.cut == MAX_OFFSET {
            return self.runs.clone();
        }
        let mut kept = Vec::new();
        cut_off(&self.runs, self.cut, &mut kept);
        kept
    }
}

impl Publishes {
    /// Restores the batches from the journal.
    pub(super) fn take_up(&mut self, in_flight: BTreeMap<Ino, Vec<(u64, Vec<Run>)>>) {
        for (ino, batches) in in_flight {
            let batches = batches.into_iter();
            let batches = batches.map(|(publish, runs)| Batch::new(publish, runs));
            self.in_flight.insert(ino, batches.collect());
        }
    }

    /// Visits all batches, for a snapshot.
    pub(super) fn show_batches(&self, visit: Visit<'_>) {
        for (ino, batches) in &self.in_flight {
            for batch in batches {
                visit(&Item::InFlight(*ino, batch.publish, batch.runs.clone()));
            }
        }
    }

    /// The files with batches under way.
    pub(super) fn files(&self) -> impl Iterator<Item = Ino> + '_ {
        self.in_flight.keys().copied()
    }

    pub(super) fn has_file(&self, ino: Ino) -> bool {
        self.in_flight.contains_key(&ino)
    }

    fn batches_of(&self, ino: Ino) -> impl Iterator<Item = &Batch> {
        self.in_flight.get(&ino).into_iter().flatten()
    }

    /// The runs of a file that are under way and not cut off.
    pub(super) fn runs_of(&self, ino: Ino) -> Vec<Run> {
        self.batches_of(ino).flat_map(Batch::kept).collect()
    }

    /// The end of a file according to its runs under way.
    pub(super) fn end_of(&self, ino: Ino) -> u64 {
        let runs = self.batches_of(ino).flat_map(|batch| &batch.runs);
        runs.map(Run::end).max().unwrap_or(0)
    }

    /// Cuts the batches of a file.
    pub(super) fn cut(&mut self, ino: Ino, size: u64) {
        if let Some(cut) = self.cut_meanwhile.get_mut(&ino) {
            *cut = size.min(*cut);
        }
        for batch in self.in_flight.get_mut(&ino).into_iter().flatten() {
            batch.cut = batch.cut.min(size);
        }
    }

    /// Notes that a file is being published from now on.
    pub(super) fn begin_file(&mut self, ino: Ino) {
        self.cut_meanwhile.insert(ino, MAX_OFFSET);
    }

    /// Notes that a file is not being published any more.
    pub(super) fn end_file(&mut self, ino: Ino) {
        self.cut_meanwhile.remove(&ino);
    }

    /// The size to which a file was cut while it was being published.
    pub(super) fn cut_size(&self, ino: Ino) -> u64 {
        let cut = self.cut_meanwhile.get(&ino).copied();
        cut.unwrap_or(MAX_OFFSET)
    }

    /// Adds a batch; returns its number. A restarted server must not reuse the numbers of its
    /// earlier publishes, so they go on from the time.
    pub(super) fn add(&mut self, ino: Ino, runs: Vec<Run>, now_ns: i64) -> u64 {
        let now = u64::try_from(now_ns).unwrap_or(0);
        self.last = now.max(self.last + 1);
        let batch = Batch::new(self.last, runs);
        self.in_flight.entry(ino).or_default().push(batch);
        self.last
    }

    /// The batches of a file that are to be sent, in their order.
    pub(super) fn to_send(&self, ino: Ino) -> Vec<Batch> {
        self.batches_of(ino).cloned().collect()
    }

    /// Returns true if all servers have the batches of a file as they are now.
    pub(super) fn are_sent(&self, ino: Ino) -> bool {
        self.batches_of(ino).all(Batch::is_sent)
    }

    /// The current state of a batch, which may have been cut since it was taken.
    pub(super) fn as_cut(&self, ino: Ino, batch: Batch) -> Batch {
        let mut now = self.batches_of(ino);
        let now = now.find(|now| now.publish == batch.publish).cloned();
        now.unwrap_or(batch)
    }

    /// Notes that all servers have a batch.
    pub(super) fn note_sent(&mut self, ino: Ino, publish: u64, sent: &SentBatch) {
        let batches = self.in_flight.get_mut(&ino).into_iter().flatten();
        for batch in batches.filter(|batch| batch.publish == publish) {
            batch.sent = Some(sent.clone());
        }
    }

    /// Ends the publishes of a file; returns their batches.
    pub(super) fn remove_file(&mut self, ino: Ino) -> Option<Vec<Batch>> {
        self.in_flight.remove(&ino)
    }

    /// The number of the first publish that has not ended.
    pub(super) fn first_open(&self) -> u64 {
        let open = self.in_flight.values().flatten();
        let first = open.map(|batch| batch.publish).min();
        first.unwrap_or(self.last + 1)
    }

    /// Notes slabs of storage directories that hold published bytes of a file.
    pub(super) fn add_unsynced(&mut self, ino: Ino, slabs: Vec<u32>) {
        if !slabs.is_empty() {
            self.unsynced.entry(ino).or_default().extend(slabs);
        }
    }

    /// Takes out the slabs of a file that are to be synced.
    pub(super) fn take_unsynced(&mut self, ino: Ino) -> Vec<u32> {
        let slabs = self.unsynced.remove(&ino);
        slabs.into_iter().flatten().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use weir_core::types::Rank;

    const FILE: Ino = Ino(7);

    fn run(offset: u64, length: u64) -> Run {
        Run::extent(offset, length, 1, 0, 1, offset).unwrap()
    }

    #[test]
    fn numbers_rise_and_the_first_open_one_is_the_oldest() {
        let mut publishes = Publishes::default();
        assert_eq!(publishes.first_open(), 1);
        let first = publishes.add(FILE, vec![run(0, 8)], 100);
        let second = publishes.add(Ino(8), vec![run(0, 8)], 50);
        assert!(first >= 100 && second > first, "the clock went back");
        assert_eq!(publishes.first_open(), first);
        assert!(publishes.remove_file(FILE).is_some());
        assert_eq!(publishes.first_open(), second);
    }

    #[test]
    fn a_batch_is_cut_on_its_way() {
        let mut publishes = Publishes::default();
        publishes.begin_file(FILE);
        let number = publishes.add(FILE, vec![run(0, 8), run(16, 8)], 0);
        let taken = publishes.to_send(FILE).remove(0);
        publishes.cut(FILE, 4);
        publishes.cut(FILE, 20);
        assert_eq!(publishes.cut_size(FILE), 4);
        assert_eq!(publishes.as_cut(FILE, taken).cut, 4);
        let left = publishes.runs_of(FILE);
        assert_eq!(left.iter().map(Run::end).max(), Some(4));
        assert_eq!(publishes.end_of(FILE), 24, "all that may have been sent");
        let freed = [LogRange {
            rank: Rank(0).0,
            slab: 1,
            pos: 0,
            len: 8,
        }];
        let freed = freed.to_vec();
        publishes.note_sent(FILE, number, &SentBatch { cut: 4, freed });
        assert!(publishes.are_sent(FILE));
        publishes.cut(FILE, 2);
        assert!(
            !publishes.are_sent(FILE),
            "its servers have bytes behind the cut"
        );
    }
}
