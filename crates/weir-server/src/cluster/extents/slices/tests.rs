//! The slices alone, against a model that keeps the source of each byte.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;
use weir_core::extent::COPY_RANK;
use weir_core::journal::State;

use super::*;

const FILE: Ino = Ino(7);

/// A byte of a log: its server, and its position in slab 1.
type LogByte = (u16, u64);

fn run(rank: u16, offset: u64, length: u64) -> Run {
    Run::extent(offset, length, 0, rank, 1, offset).unwrap()
}

fn put(slices: &mut SliceExtents, from: u16, publish: u64, cut: u64, run: Run) -> Vec<LogRange> {
    let op = peer::Put {
        ino: FILE,
        runs: vec![run],
        publish,
        part: 0,
        cut,
        ended_below: 0,
    };
    slices.put(Rank(from), &op, vec![run], &mut |_| ()).unwrap()
}

fn ends(slices: &SliceExtents) -> Vec<(u64, u64)> {
    let left = slices.runs(FILE, 0, MAX_OFFSET);
    left.iter().map(|run| (run.offset, run.end())).collect()
}

#[test]
fn a_part_that_comes_again_with_a_cut_withdraws_its_bytes_alone() {
    let mut slices = SliceExtents::default();
    let own = run(1, 0, 100);
    assert_eq!(put(&mut slices, 1, 5, MAX_OFFSET, own), []);
    // Written by another node after the truncation that node 1 has not heard of.
    let others = run(2, 60, 10);
    let covered = put(&mut slices, 2, 1, MAX_OFFSET, others);
    assert_eq!(covered.iter().map(|range| range.len).sum::<u64>(), 10);
    assert_eq!(put(&mut slices, 1, 5, MAX_OFFSET, own), [], "as it is");
    for _ in 0..2 {
        let freed = put(&mut slices, 1, 5, 40, own);
        assert_eq!(freed.iter().map(|range| range.len).sum::<u64>(), 50);
        assert_eq!(ends(&slices), [(0, 40), (60, 70)]);
    }
}

#[test]
fn bytes_of_a_copy_are_beneath_all_others_until_these_are_settled() {
    let mut slices = SliceExtents::default();
    let copy = || vec![Run::of_copy(0, 30, 0).unwrap()];
    assert_eq!(put(&mut slices, 1, 5, MAX_OFFSET, run(1, 10, 10)), []);
    let lost = slices.lay_copy(FILE, None, copy(), &mut |_| ());
    assert!(
        lost.iter().all(|range| range.rank == COPY_RANK),
        "no log has them"
    );
    assert_eq!(ends(&slices), [(0, 10), (10, 20), (20, 30)]);
    slices.settle(FILE, 3);
    let part = || vec![Run::of_copy(10, 20, 0).unwrap()];
    let laid = |slices: &mut SliceExtents, number| {
        let freed = slices.lay_copy(FILE, Some(number), part(), &mut |_| ());
        let of_logs = freed.iter().filter(|range| range.rank != COPY_RANK);
        of_logs.map(|range| range.len).sum::<u64>()
    };
    assert_eq!(laid(&mut slices, 2), 0, "another settling");
    // Written after the copy was made, so the copy does not have it.
    put(&mut slices, 1, 6, MAX_OFFSET, run(1, 12, 2));
    assert_eq!(laid(&mut slices, 3), 0);
    slices.settle(FILE, 4);
    assert_eq!(laid(&mut slices, 4), 10);
    assert!(slices.has_copy_runs(FILE));
}

#[derive(Clone, Debug)]
enum Step {
    Publish {
        from: u16,
        offset: u64,
        len: u64,
        cut: u64,
    },
    Repeat {
        which: prop::sample::Index,
        cut: u64,
    },
    /// All publishes of a server have ended.
    End(u16),
    Erase {
        from: u64,
        len: u64,
    },
    /// The server is killed, and takes the state up from its journal.
    Restart,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let cut = || prop_oneof![3 => Just(MAX_OFFSET), 1 => 0..80_u64];
    let publish = (1..3_u16, 0..60_u64, 1..20_u64, cut());
    let step = prop_oneof![
        5 => publish.prop_map(|(from, offset, len, cut)| Step::Publish { from, offset, len, cut }),
        4 => (any::<prop::sample::Index>(), cut())
            .prop_map(|(which, cut)| Step::Repeat { which, cut }),
        1 => (1..3_u16).prop_map(Step::End),
        2 => (0..60_u64, 1..30_u64).prop_map(|(from, len)| Step::Erase { from, len }),
        1 => Just(Step::Restart),
    ];
    proptest::collection::vec(step, 1..40)
}

/// A publish that may come again.
#[derive(Clone)]
struct SentPublish {
    from: u16,
    op: peer::Put,
    /// The bytes that it has freed, by its answers.
    freed: BTreeSet<LogByte>,
}

/// The slices, the same bytes as the model has them, and the journal.
struct Modelled {
    slices: SliceExtents,
    bytes: BTreeMap<u64, LogByte>,
    journal: State,
    /// Publishes that have not ended, and the number of the last one.
    sent: Vec<SentPublish>,
    last: u64,
    ended_below: BTreeMap<u16, u64>,
    /// The next free byte of each log.
    next: BTreeMap<u16, u64>,
    /// All bytes that were freed.
    freed: BTreeSet<LogByte>,
}

fn log_bytes(ranges: &[LogRange]) -> Vec<LogByte> {
    let mut bytes = Vec::new();
    for range in ranges {
        bytes.extend((range.pos..range.pos + range.len).map(|pos| (range.rank, pos)));
    }
    bytes.sort_unstable();
    bytes
}

impl Modelled {
    fn new() -> Modelled {
        Modelled {
            slices: SliceExtents::default(),
            bytes: BTreeMap::new(),
            journal: State::new(Rank(0)),
            sent: Vec::new(),
            last: 0,
            ended_below: BTreeMap::new(),
            next: BTreeMap::new(),
            freed: BTreeSet::new(),
        }
    }

    fn put(&mut self, sent: &SentPublish) -> BTreeSet<LogByte> {
        let (journal, runs) = (&mut self.journal, sent.op.runs.clone());
        let note: Visit<'_> = &mut |item| journal.apply(item).expect("an item");
        let freed = self.slices.put(Rank(sent.from), &sent.op, runs, note);
        let freed = log_bytes(&freed.expect("it is valid"));
        let set: BTreeSet<LogByte> = freed.iter().copied().collect();
        assert_eq!(set.len(), freed.len(), "a byte twice in one answer");
        set
    }

    /// Notes bytes that are free from now on.
    fn note_freed(&mut self, freed: impl Iterator<Item = LogByte>) {
        for byte in freed {
            assert!(self.freed.insert(byte), "{byte:?} is freed twice");
        }
    }

    fn step(&mut self, step: &Step) {
        match *step {
            Step::Publish {
                from,
                offset,
                len,
                cut,
            } => {
                let pos = *self.next.entry(from).or_default();
                self.next.insert(from, pos + len);
                self.last += 1;
                let run = Run::extent(offset, len, 9, from, 1, pos).unwrap();
                let op = peer::Put {
                    ino: FILE,
                    runs: vec![run],
                    publish: self.last,
                    part: 0,
                    cut,
                    ended_below: self.ended_below.get(&from).copied().unwrap_or(0),
                };
                let freed = BTreeSet::new();
                let mut sent = SentPublish { from, op, freed };
                sent.freed = self.put(&sent);
                let mut wanted = BTreeSet::new();
                for at in 0..len {
                    let byte = (from, pos + at);
                    match offset + at < cut {
                        true => wanted.extend(self.bytes.insert(offset + at, byte)),
                        false => drop(wanted.insert(byte)),
                    }
                }
                assert_eq!(sent.freed, wanted);
                self.note_freed(wanted.into_iter());
                self.sent.push(sent);
            }
            Step::Repeat { ref which, cut } => {
                if self.sent.is_empty() {
                    return;
                }
                let place = which.index(self.sent.len());
                let mut sent = self.sent[place].clone();
                sent.op.cut = sent.op.cut.min(cut);
                let said = self.put(&sent);
                assert!(
                    said.is_superset(&sent.freed),
                    "its answer is the earlier one, or more"
                );
                let new: BTreeSet<LogByte> = said.difference(&sent.freed).copied().collect();
                let (first, cut) = (sent.op.runs[0], sent.op.cut);
                let Source::Log { pos, .. } = first.source else {
                    panic!("{first:?}");
                };
                let is_its = |(rank, at): LogByte| {
                    rank == sent.from && (pos..pos + first.length).contains(&at)
                };
                let is_cut = |at: u64, byte: LogByte| at >= cut && is_its(byte);
                let all = self.bytes.iter().map(|(at, byte)| (*at, *byte));
                let wanted = all.filter(|(at, byte)| is_cut(*at, *byte));
                let wanted: BTreeSet<LogByte> = wanted.map(|(_, byte)| byte).collect();
                assert_eq!(new, wanted, "its bytes behind the cut that were left");
                self.bytes.retain(|at, byte| !is_cut(*at, *byte));
                self.note_freed(new.into_iter());
                sent.freed = said;
                self.sent[place] = sent;
            }
            Step::End(from) => {
                self.sent.retain(|sent| sent.from != from);
                self.ended_below.insert(from, self.last + 1);
            }
            Step::Erase { from, len } => {
                let op = peer::Erase {
                    ino: FILE,
                    from,
                    to: from + len,
                };
                let journal = &mut self.journal;
                let note: Visit<'_> = &mut |item| journal.apply(item).expect("an item");
                let freed = log_bytes(&self.slices.erase(&op, note));
                let mut wanted = BTreeSet::new();
                for at in from..from + len {
                    wanted.extend(self.bytes.remove(&at));
                }
                assert_eq!(freed, wanted.iter().copied().collect::<Vec<_>>());
                self.note_freed(wanted.into_iter());
            }
            Step::Restart => self.slices = self.taken_up(),
        }
    }

    /// The slices of a server that begins with the journal as it is now.
    fn taken_up(&self) -> SliceExtents {
        let state = self.journal.cluster.clone();
        let mut slices = SliceExtents::default();
        slices.take_up(state.slices, state.slices_stamp, state.answered);
        slices
    }

    fn check(&self) {
        assert_eq!(bytes_in(&self.slices), self.bytes);
        let (before, after) = (&self.slices, self.taken_up());
        assert_eq!(bytes_in(&after), self.bytes, "the journal has them");
        assert_eq!(shown(&after), shown(before), "and the answers");
        assert!(
            after.last_stamp >= newest(&after),
            "the next publish will be the newest"
        );
    }
}

fn bytes_in(slices: &SliceExtents) -> BTreeMap<u64, LogByte> {
    let mut bytes = BTreeMap::new();
    if let Some(index) = slices.indexes.get(&FILE) {
        index.for_each_piece_in(0, MAX_OFFSET, &mut |piece| {
            if let PieceSource::Log { rank, pos, .. } = piece.source {
                bytes.extend((0..piece.length).map(|at| (piece.offset + at, (rank, pos + at))));
            }
        });
    }
    bytes
}

fn newest(slices: &SliceExtents) -> u64 {
    let runs = slices.runs(FILE, 0, MAX_OFFSET);
    runs.iter().map(|run| run.stamp).max().unwrap_or(0)
}

/// The answers that publishes which come again get.
fn shown(slices: &SliceExtents) -> BTreeMap<(Rank, u64), Vec<LogByte>> {
    let mut answers = BTreeMap::new();
    slices.show_answers(&mut |item| {
        if let Item::PublishAnswered {
            from,
            publish,
            freed,
            ..
        } = item
        {
            answers.insert((*from, *publish), log_bytes(freed));
        }
    });
    answers
}

proptest! {
    /// The newest publish wins, whatever comes again; each byte that goes is told once as free; and a server that is
    /// killed between any two messages has all of that.
    #[test]
    fn slices_are_as_the_model_whatever_comes_again(steps in steps()) {
        let mut modelled = Modelled::new();
        for step in &steps {
            modelled.step(step);
            modelled.check();
        }
    }

    #[test]
    fn a_snapshot_in_steps_shows_all_extents(steps in steps(), most in 1..6_usize) {
        let mut modelled = Modelled::new();
        for step in &steps {
            modelled.step(step);
        }
        let mut replayed = State::new(Rank(0));
        let mut from = Some(SnapshotPosition::FIRST);
        while let Some(position) = from {
            let show: Visit<'_> = &mut |item| replayed.apply(item).expect("an item");
            from = modelled.slices.show_extents(position, most, show);
        }
        let mut slices = SliceExtents::default();
        let cluster = replayed.cluster;
        slices.take_up(cluster.slices, cluster.slices_stamp, cluster.answered);
        prop_assert_eq!(bytes_in(&slices), modelled.bytes);
    }
}
