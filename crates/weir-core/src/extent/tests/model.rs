//! The index against a model that knows every byte: its owner, and the log bytes that were freed.

use core::ops::ControlFlow;

use std::collections::BTreeSet;

use proptest::prelude::*;

use super::super::*;

/// Bytes in the model's file. Small, so that everything meets everything.
const FILE: usize = 480;

/// A byte of the log: (slab, position).
type LogByte = (u32, u64);

/// The content of a byte of the file: its stamp, and the log byte, or none in a hole.
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

    /// Lays `run` over the file, except the bytes that `before` had already.
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

    /// Returns true if all bytes of `run` are where it put them.
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

/// The index and the model, changed together.
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

    /// Lays a run again by inserting it whole; its state `before` is there already.
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
            for most in [1, 3] {
                let mut first = Vec::new();
                let ended = self.index.try_for_each_piece_in(start, end, &mut |piece| {
                    first.push(piece);
                    match first.len() < most {
                        true => ControlFlow::Continue(()),
                        false => ControlFlow::Break(()),
                    }
                });
                assert_eq!(
                    first,
                    pieces[..pieces.len().min(most)],
                    "a visit that ends early"
                );
                assert_eq!(ended.is_break(), pieces.len() >= most);
            }
            if let index::Repr::Many(runs) = &self.index.repr {
                let mut stepped = Vec::new();
                let _ = runs.visit_stepwise(start, end, &mut |piece| {
                    stepped.push(piece);
                    ControlFlow::Continue(())
                });
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

/// Shapes whose strides are few, so that progressions of one stride and of strides in small ratios
/// meet often.
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
    /// The record after `step` of its steps.
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

/// A step of a history: record `which` is harvested when it has grown to `step`; if `again`, its
/// earlier state is offered once more, too.
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

/// `PROPTEST_CASES` sets a higher number.
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
