//! The index against a model that knows every byte: who owns it, and which log bytes were freed.

use std::collections::BTreeSet;

use proptest::prelude::*;

use super::*;

/// Bytes in the model's file. Small, so that everything meets everything.
const FILE: usize = 480;

/// A byte of the log: (slab, position).
type LogByte = (u32, u64);

/// What a byte of the file holds: its stamp, and the log byte, or none in a hole.
type Owner = Option<(u64, Option<LogByte>)>;

struct Model {
    file: Vec<Owner>,
    offered: BTreeSet<LogByte>,
    freed: BTreeSet<LogByte>,
}

impl Model {
    fn new() -> Model {
        Model {
            file: vec![None; FILE],
            offered: BTreeSet::default(),
            freed: BTreeSet::default(),
        }
    }

    /// Lays `run` over the file, but for the bytes that `before` had already.
    fn lay(&mut self, run: &Run, before: Option<&Run>) {
        let known: Vec<u64> = before
            .map(bytes_of)
            .unwrap_or_default()
            .into_iter()
            .map(|byte| byte.0)
            .collect();
        for (at, log) in bytes_of(run) {
            if known.contains(&at) {
                continue;
            }
            self.offered.extend(log);
            let owner = &mut self.file[usize::try_from(at).unwrap()];
            match *owner {
                Some((stamp, _)) if stamp > run.stamp => {}
                _ => *owner = Some((run.stamp, log)),
            }
        }
    }

    /// Whether all bytes of `run` are where it put them.
    fn holds(&self, run: &Run) -> bool {
        let owner = |at: u64| self.file[usize::try_from(at).unwrap()];
        bytes_of(run)
            .into_iter()
            .all(|(at, log)| owner(at) == Some((run.stamp, log)))
    }

    fn live(&self) -> BTreeSet<LogByte> {
        self.file
            .iter()
            .filter_map(|owner| owner.and_then(|(_, log)| log))
            .collect()
    }
}

/// The file offset and the log byte of every byte of a run.
fn bytes_of(run: &Run) -> Vec<(u64, Option<LogByte>)> {
    (0..run.count)
        .flat_map(|index| bytes_of_piece(&run.piece(index)))
        .collect()
}

fn bytes_of_piece(piece: &Piece) -> Vec<(u64, Option<LogByte>)> {
    let log = |k: u64| match piece.source {
        PieceSource::Log { slab, pos, .. } => Some((slab, pos + k)),
        PieceSource::Hole => None,
    };
    (0..piece.length)
        .map(|k| (piece.offset + k, log(k)))
        .collect()
}

/// Both, changed together.
struct Pair {
    index: ExtentIndex,
    model: Model,
}

impl Pair {
    fn new() -> Pair {
        Pair {
            index: ExtentIndex::new(),
            model: Model::new(),
        }
    }

    fn lay(&mut self, run: Run, before: Option<&Run>) {
        self.lay_by(run, before, before.is_none());
    }

    /// Lays a run of which `before` is there already, by inserting it whole.
    fn lay_again(&mut self, run: Run, before: &Run) {
        self.lay_by(run, Some(before), true);
    }

    fn lay_by(&mut self, run: Run, before: Option<&Run>, whole: bool) {
        let mut freed = Vec::new();
        let mut note = |range: FreedRange| freed.push(range);
        let inserted = match before {
            Some(before) if !whole => self.index.grow(before, run, &mut note),
            _ => self.index.insert(run, &mut note),
        };
        let inserted = inserted.unwrap();
        let offered = self.model.offered.len();
        self.model.lay(&run, before);
        let offered = (self.model.offered.len() - offered) as u64;
        assert_eq!(
            inserted.live + inserted.lost,
            offered,
            "what is offered lives or is lost"
        );
        self.note(&freed);
    }

    fn note(&mut self, freed: &[FreedRange]) {
        for range in freed {
            for pos in range.pos..range.pos + range.len {
                assert!(
                    self.model.offered.contains(&(range.slab, pos)),
                    "freed but never offered"
                );
                assert!(
                    self.model.freed.insert((range.slab, pos)),
                    "{:?} freed twice",
                    (range.slab, pos)
                );
            }
        }
    }

    fn check(&self) {
        self.check_ranges(&[(0, FILE as u64)]);
        let live = self.model.live();
        assert!(live.is_disjoint(&self.model.freed), "live and freed");
        assert_eq!(
            live.len() + self.model.freed.len(),
            self.model.offered.len(),
            "each is live or freed"
        );
        assert_eq!(self.index.allocated_bytes(), live.len() as u64);
        self.check_seeks();
        if let index::Repr::Many(runs) = &self.index.repr {
            runs.plain.check();
        }
    }

    fn check_ranges(&self, ranges: &[(u64, u64)]) {
        for &(start, end) in ranges {
            let mut pieces = Vec::new();
            self.index.query(start, end, &mut pieces);
            self.check_pieces(&pieces, start, end);
            let mut visited = Vec::new();
            self.index
                .for_each_piece_in(start, end, &mut |piece| visited.push(piece));
            assert_eq!(visited, pieces, "a visit sees what a query sees");
            if let index::Repr::Many(runs) = &self.index.repr {
                let mut stepped = Vec::new();
                runs.visit_stepwise(start, end, &mut |piece| stepped.push(piece));
                assert_eq!(stepped, pieces, "so does a visit step by step");
            }
            for max in [1, 2, 5, 1000] {
                self.check_runs(start, end, max);
            }
        }
    }

    fn check_pieces(&self, pieces: &[Piece], start: u64, end: u64) {
        let mut seen: Vec<Owner> = vec![None; FILE];
        let mut last = start;
        for piece in pieces {
            assert!(
                piece.offset >= last && piece.end() <= end && piece.length > 0,
                "in order and clipped"
            );
            last = piece.end();
            for (at, log) in bytes_of_piece(piece) {
                seen[usize::try_from(at).unwrap()] = Some((piece.stamp, log));
            }
        }
        let range = usize::try_from(start).unwrap()..usize::try_from(end).unwrap();
        assert_eq!(seen[range.clone()], self.model.file[range]);
    }

    fn check_runs(&self, start: u64, end: u64, max: usize) {
        let mut runs = Vec::new();
        let known = self.index.runs_in(start, end, max, &mut runs);
        assert!(runs.len() <= max && known.lo == start && known.hi <= end);
        assert!(
            start == end || known.hi > known.lo,
            "at least one run's worth is known"
        );
        let mut copy = ExtentIndex::new();
        for run in runs {
            assert!(
                run.pieces_in(start, end).next().is_some(),
                "only runs that meet the range"
            );
            copy.insert(run, &mut |_| panic!("runs share no byte"))
                .unwrap();
        }
        let mut pieces = Vec::new();
        copy.query(known.lo, known.hi, &mut pieces);
        self.check_pieces(&pieces, known.lo, known.hi);
    }

    fn check_seeks(&self) {
        let data: Vec<bool> = self
            .model
            .file
            .iter()
            .map(|owner| owner.is_some_and(|byte| byte.1.is_some()))
            .collect();
        let first = |from: usize, want: bool| (from..FILE).find(|at| data[*at] == want);
        for from in 0..FILE {
            assert_eq!(
                self.index.next_data(from as u64),
                first(from, true).map(|at| at as u64),
                "data from {from}"
            );
            let hole = first(from, false).unwrap_or(FILE) as u64;
            assert_eq!(self.index.next_hole(from as u64), hole, "hole from {from}");
        }
        let last = (0..FILE).rev().find(|at| data[*at]).map_or(0, |at| at + 1);
        assert_eq!(self.index.last_data(), last as u64);
    }
}

/// The record number `slab` in its final state, made to fit into the file.
#[derive(Clone, Debug)]
struct Shape {
    offset: u64,
    length: u64,
    gap: u64,
    count: u64,
    log_gap: u64,
    stamp: u64,
    hole: bool,
}

fn shape() -> impl Strategy<Value = Shape> {
    let length = prop_oneof![1_u64..10, 1_u64..80];
    let gap = prop_oneof![Just(0_u64), Just(3), Just(9), 0_u64..40];
    let count = prop_oneof![2 => Just(1_u64), 3 => 2_u64..30];
    let log_gap = prop_oneof![4 => Just(0_u64), 1 => 1_u64..5];
    (
        0..FILE as u64,
        length,
        gap,
        count,
        log_gap,
        1_u64..10,
        prop::bool::weighted(0.1),
    )
        .prop_map(|(offset, length, gap, count, log_gap, stamp, hole)| Shape {
            offset,
            length,
            gap,
            count,
            log_gap,
            stamp,
            hole,
        })
}

/// Shapes whose strides are few, so that progressions of one stride and of strides in small ratios meet often.
fn rhythmic() -> impl Strategy<Value = Shape> {
    let stride = prop_oneof![Just(12_u64), Just(24), Just(18), Just(8)];
    (stride, 1_u64..24, shape()).prop_map(|(stride, length, shape)| {
        let length = length.min(stride);
        Shape {
            length,
            gap: stride - length,
            ..shape
        }
    })
}

impl Shape {
    /// The record after `step` of its [`Shape::steps`].
    fn at(&self, slab: u32, step: u64) -> Run {
        let room = FILE as u64 - self.offset;
        let length = self.length.min(room);
        let stride = length + self.gap;
        let count = self.count.min((room - length) / stride + 1);
        let (length, count) = if step < 3 {
            ((length * (step + 1)).div_ceil(3), 1)
        } else {
            (length, count.min(step - 1))
        };
        let pos_stride = self.length.min(room) + self.log_gap;
        let source = if self.hole {
            Source::Hole
        } else {
            Source::Log {
                rank: 3,
                slab,
                pos: 7,
                pos_stride,
            }
        };
        Run {
            offset: self.offset,
            length,
            stride,
            count,
            stamp: self.stamp,
            source,
        }
    }
}

fn shapes() -> impl Strategy<Value = Vec<Shape>> {
    prop_oneof![
        prop::collection::vec(shape(), 1..12),
        prop::collection::vec(rhythmic(), 1..12)
    ]
}

/// A step of a history: record `which` is harvested when it has grown to `step`; if `again`, what it had before is
/// offered once more, too.
type Harvest = (usize, u64, bool);

/// Harvests records in the given order.
fn harvest(pair: &mut Pair, shapes: &[Shape], first_slab: u32, harvests: &[Harvest], check: bool) {
    let mut seen: Vec<Option<(u64, Run)>> = vec![None; shapes.len()];
    for &(which, step, again) in harvests {
        let which = which % shapes.len();
        let slab = first_slab + u32::try_from(which).unwrap();
        let run = shapes[which].at(slab, step);
        match seen[which] {
            Some((before, _)) if before > step => continue,
            Some((_, before)) if again && pair.model.holds(&before) => pair.lay_again(run, &before),
            Some((_, before)) => pair.lay(run, Some(&before)),
            None => pair.lay(run, None),
        }
        seen[which] = Some((step, run));
        if check {
            pair.check();
        }
    }
}

fn harvests() -> impl Strategy<Value = Vec<Harvest>> {
    let step = prop_oneof![0_u64..5, 0_u64..30];
    prop::collection::vec((0_usize..12, step, prop::bool::weighted(0.3)), 1..40)
}

/// `PROPTEST_CASES` asks for more.
fn cases() -> ProptestConfig {
    match std::env::var_os("PROPTEST_CASES") {
        Some(_) => ProptestConfig::default(),
        None => ProptestConfig::with_cases(600),
    }
}

proptest! {
    #![proptest_config(cases())]

    #[test]
    fn agrees_with_the_model(shapes in shapes(), harvests in harvests(), a in 0..=FILE as u64, b in 0..=FILE as u64) {
        let mut pair = Pair::new();
        harvest(&mut pair, &shapes, 0, &harvests, true);
        pair.check_ranges(&[(a.min(b), a.max(b))]);
        let mut freed = Vec::new();
        pair.index.clear(&mut |range| freed.push(range));
        pair.note(&freed);
        prop_assert_eq!(pair.model.freed.len(), pair.model.offered.len(), "all is freed in the end");
        prop_assert!(pair.index.is_empty());
    }

    #[test]
    fn settles_to_the_same_bytes(old in shapes(), first in harvests(), new in shapes(), then in harvests(), limit in 1_u64..12) {
        let mut pair = Pair::new();
        harvest(&mut pair, &old, 0, &first, false);
        let runs = pair.index.run_count();
        pair.index.coalesce_before(limit);
        prop_assert!(pair.index.run_count() <= runs);
        for owner in &mut pair.model.file {
            *owner = match *owner {
                Some((stamp, None)) if stamp < limit => None,
                Some((stamp, log)) if stamp < limit => Some((0, log)),
                other => other,
            };
        }
        pair.check();
        let new: Vec<Shape> = new.into_iter().map(|shape| Shape { stamp: shape.stamp + limit, ..shape }).collect();
        harvest(&mut pair, &new, 100, &then, true);
        pair.index.drop_holes();
        pair.model.file.iter_mut().for_each(|owner| *owner = owner.filter(|(_, log)| log.is_some()));
        pair.check();
    }

    #[test]
    fn refuses_or_takes_hostile_runs(offset: u64, length: u64, stride: u64, count: u64, pos: u64, pos_stride: u64, shift in 0_u32..64) {
        let source = Source::Log { rank: 0, slab: 0, pos: pos >> shift, pos_stride: pos_stride >> shift };
        let run = Run { offset: offset >> shift, length: length >> shift, stride: stride >> shift, count: count >> shift, stamp: 1, source };
        let mut index = ExtentIndex::new();
        let taken = index.insert(run, &mut |_| {});
        prop_assert_eq!(taken.is_ok(), run.validate().is_ok());
        prop_assert_eq!(index.allocated_bytes(), if taken.is_ok() { run.total_bytes() } else { 0 });
    }
}

/// An index over which runs were laid with what they freed.
fn index_of(runs: &[Run]) -> (ExtentIndex, Vec<FreedRange>) {
    let mut index = ExtentIndex::new();
    let mut freed = Vec::new();
    for run in runs {
        index.insert(*run, &mut |range| freed.push(range)).unwrap();
    }
    (index, freed)
}

fn strided(offset: u64, length: u64, stride: u64, count: u64, stamp: u64, slab: u32) -> Run {
    let source = Source::Log {
        rank: 0,
        slab,
        pos: 0,
        pos_stride: length,
    };
    Run {
        offset,
        length,
        stride,
        count,
        stamp,
        source,
    }
}

fn runs_of(index: &ExtentIndex) -> Vec<Run> {
    let mut runs = Vec::new();
    index.for_each_run(&mut |run| runs.push(run));
    runs.sort_by_key(|run| run.offset);
    runs
}

// The following were found by the properties above.

#[test]
fn regression_late_extent_under_a_newer_progression() {
    // The gaps that are left of a contiguous newcomer are a progression though the newcomer had no stride.
    let late = Run::extent(79, 60, 1, 0, 1, 0).unwrap();
    let (index, freed) = index_of(&[strided(0, 1, 18, 8, 2, 0), late]);
    assert_eq!(index.allocated_bytes(), 8 + 60 - 3);
    assert_eq!(freed.len(), 3);
}

#[test]
fn writers_in_turns_are_one_run_each() {
    const WRITERS: u64 = 64;
    const PIECE: u64 = 47_008;
    let mut index = ExtentIndex::new();
    let harvests = [0, 1, 2, 3, 7, 8, 5000, 1_000_000];
    for (before, pieces) in harvests.into_iter().zip(harvests.into_iter().skip(1)) {
        for writer in 0..WRITERS {
            let slab = u32::try_from(writer).unwrap();
            let run = |count| {
                strided(
                    writer * PIECE,
                    PIECE,
                    WRITERS * PIECE,
                    count,
                    writer + 1,
                    slab,
                )
            };
            if pieces == 1 {
                index
                    .insert(run(1), &mut |_| panic!("nothing is freed"))
                    .unwrap();
            } else {
                index
                    .grow(&run(before), run(pieces), &mut |_| {
                        panic!("nothing is freed")
                    })
                    .unwrap();
            }
        }
    }
    assert_eq!(index.run_count() as u64, WRITERS);
    let all = WRITERS * PIECE * 1_000_000;
    assert_eq!(index.allocated_bytes(), all);
    assert_eq!(
        (index.next_hole(5), index.last_data(), index.next_data(all)),
        (all, all, None)
    );
    let mut pieces = Vec::new();
    index.query(all / 2, all / 2 + 10 * PIECE, &mut pieces);
    assert_eq!(pieces.len(), 10);
    let mut known = Vec::new();
    assert_eq!(
        index.runs_in(0, all, 1000, &mut known),
        Known { lo: 0, hi: all }
    );
    assert_eq!(known.len() as u64, WRITERS);
    // One write over a piece in the middle costs the piece and two halves.
    let again = Run::extent(PIECE * WRITERS * 500_000, PIECE, 1000, 0, 99, 0).unwrap();
    let mut freed = Vec::new();
    index.insert(again, &mut |range| freed.push(range)).unwrap();
    assert_eq!(
        freed,
        [FreedRange {
            rank: 0,
            slab: 0,
            pos: PIECE * 500_000,
            len: PIECE
        }]
    );
    assert_eq!(index.run_count() as u64, WRITERS + 2);
}

#[test]
fn the_same_record_again_changes_nothing() {
    let record = strided(0, 10, 30, 1000, 5, 1);
    let (mut index, _) = index_of(&[record]);
    for count in [1, 2, 500, 1000] {
        let shorter = Run { count, ..record };
        let inserted = index
            .insert(shorter, &mut |_| panic!("nothing is freed"))
            .unwrap();
        assert_eq!(inserted, Inserted::default());
    }
    let longer = Run {
        count: 2000,
        ..record
    };
    let inserted = index
        .insert(longer, &mut |_| panic!("nothing is freed"))
        .unwrap();
    assert_eq!((inserted.live, runs_of(&index)), (10_000, vec![longer]));
}

#[test]
fn a_growing_extent_stays_one() {
    let extent = |length| Run::extent(100, length, 3, 0, 1, 50).unwrap();
    let (mut index, _) = index_of(&[Run::extent(0, 100, 2, 0, 2, 0).unwrap(), extent(1)]);
    for length in 2..1000 {
        let inserted = index
            .grow(&extent(length - 1), extent(length), &mut |_| {
                panic!("nothing is freed")
            })
            .unwrap();
        assert_eq!(inserted.live, 1);
        index
            .insert(extent(length), &mut |_| panic!("nothing is freed"))
            .unwrap();
    }
    assert_eq!(runs_of(&index)[1], extent(999));
    assert_eq!(index.run_count(), 2);
}

#[test]
fn what_did_not_grow_is_refused() {
    let run = Run::extent(0, 10, 1, 0, 0, 0).unwrap();
    let mut index = ExtentIndex::new();
    for other in [
        Run { stamp: 2, ..run },
        Run { offset: 1, ..run },
        Run { length: 9, ..run },
    ] {
        let refused = index.grow(&run, other, &mut |_| {});
        assert!(
            matches!(refused, Err(RunError::NotGrown { .. })),
            "{refused:?}"
        );
    }
    assert!(index.is_empty());
}

#[test]
fn progressions_take_progressions_apart_as_such() {
    const MANY: u64 = 1_000_000;
    let base = Run::extent(0, 100 * MANY, 1, 0, 0, 0).unwrap();
    let comb = strided(10, 30, 100, MANY, 2, 1);
    // Over a contiguous run: head, gaps and tail are left.
    assert_eq!(index_of(&[base, comb]).0.run_count(), 4);
    // The same the other way round.
    assert_eq!(index_of(&[comb, base]).0.run_count(), 4);
    // A contiguous run over the middle of a progression: two halves.
    let middle = Run::extent(30 * MANY, 40 * MANY, 3, 0, 2, 0).unwrap();
    assert_eq!(index_of(&[comb, middle]).0.run_count(), 3);
    // One of the same stride: what is left of each piece.
    assert_eq!(
        index_of(&[comb, strided(20, 5, 100, MANY, 3, 2)])
            .0
            .run_count(),
        3
    );
    // Of twice the stride: every second piece is left whole, the others in two.
    assert_eq!(
        index_of(&[comb, strided(20, 5, 200, MANY / 2, 3, 2)])
            .0
            .run_count(),
        4
    );
    // Of a stride without a ratio, in the same place but nowhere the same byte.
    assert_eq!(
        index_of(&[
            strided(0, 1, 100, MANY, 1, 0),
            strided(1, 1, 300, MANY / 3, 1, 1)
        ])
        .0
        .run_count(),
        2
    );
}

#[test]
fn a_file_at_rest_is_small() {
    const WRITERS: u64 = 4;
    const PIECES: u64 = 1000;
    let mut index = ExtentIndex::new();
    for piece in 0..PIECES {
        for writer in 0..WRITERS {
            let slab = u32::try_from(writer).unwrap();
            let extent = Run::extent(
                (piece * WRITERS + writer) * 64,
                64,
                piece + 1,
                0,
                slab,
                piece * 64,
            )
            .unwrap();
            index.insert(extent, &mut |_| {}).unwrap();
        }
    }
    assert_eq!(index.run_count() as u64, WRITERS * PIECES);
    let before = index.memory_bytes();
    index.settle();
    assert_eq!(index.run_count() as u64, WRITERS);
    assert!(
        index.memory_bytes() * 100 < before,
        "{} of {before}",
        index.memory_bytes()
    );
}

#[test]
fn small_files_cost_little() {
    assert!(size_of::<ExtentIndex>() <= 16);
    let (mut index, _) = index_of(&[Run::extent(0, 4096, 1, 0, 0, 0).unwrap()]);
    assert_eq!(index.memory_bytes(), 56);
    index
        .insert(Run::hole(0, MAX_OFFSET, 2).unwrap(), &mut |_| {})
        .unwrap();
    index
        .insert(Run::extent(0, 10, 3, 0, 0, 5000).unwrap(), &mut |_| {})
        .unwrap();
    assert_eq!(index.run_count(), 2);
    index.drop_holes();
    assert_eq!((index.run_count(), index.memory_bytes()), (1, 56));
}

#[test]
fn random_writes_do_not_become_wide_progressions() {
    let (index, _) = index_of(&[strided(0, 4096, 1 << 40, 2, 1, 0)]);
    let index::Repr::Many(runs) = &index.repr else {
        panic!("two pieces")
    };
    assert!(runs.strided.is_empty());
}
