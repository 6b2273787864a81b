//! Cases by hand: the contents, costs and refusals of an index; and cases that the properties
//! found.

use super::super::*;

/// An index over which runs were laid, with the log ranges that this freed.
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

// The following were found by properties of the model.

#[test]
fn regression_late_extent_under_a_newer_progression() {
    // The gaps that are left of a contiguous newcomer are a progression although the newcomer had
    // no stride.
    let late = Run::extent(79, 60, 1, 0, 1, 0).unwrap();
    let (index, freed) = index_of(&[strided(0, 1, 18, 8, 2, 0), late]);
    assert_eq!(index.allocated_bytes(), 8 + 60 - 3);
    assert_eq!(freed.len(), 3);
}

#[test]
fn regression_a_record_offered_again_beside_a_newer_one() {
    // The newer progression leaves several parts of the record. The first of them, put in at once,
    // turned the pieces that were there into a progression, which the next part did not look for
    // among the extents.
    let record = |count| strided(226, 1, 12, count, 1, 5);
    let (mut index, _) = index_of(&[strided(280, 1, 18, 9, 2, 6), record(3)]);
    let inserted = index.insert(record(17), &mut |_| {}).unwrap();
    assert_eq!(inserted.live + inserted.lost, 14);
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

#[test]
fn a_run_is_clipped_to_exactly_the_bytes_of_a_range() {
    for (length, stride, count) in [(7, 0, 1), (7, 7, 5), (7, 10, 6), (1, 3, 9)] {
        let source = Source::Log {
            rank: 1,
            slab: 2,
            pos: 1000,
            pos_stride: if count > 1 { length } else { 0 },
        };
        let run = Run {
            offset: 20,
            length,
            stride,
            count,
            stamp: 3,
            source,
        };
        for from in 15..90 {
            for to in from..90 {
                let mut parts = Vec::new();
                run.clip_to(from, to, &mut parts);
                assert!(parts.len() <= 3);
                let bytes = |run: &Run| -> Vec<(u64, PieceSource)> {
                    let pieces = run.pieces_in(from, to);
                    let of =
                        |p: Piece| (0..p.length).map(move |i| (p.offset + i, p.source.advanced(i)));
                    pieces.flat_map(of).collect()
                };
                let clipped: Vec<_> = parts.iter().flat_map(bytes).collect();
                assert_eq!(clipped, bytes(&run), "{run:?} {from} {to}");
                assert!(parts.iter().all(|p| p.offset >= from && p.end() <= to));
            }
        }
    }
}

#[test]
fn all_runs_of_a_range_may_be_asked_for() {
    let mut index = ExtentIndex::new();
    for at in [0, 10] {
        let run = Run::hole(at, at + 4, 5).unwrap();
        index.insert(run, &mut |_| ()).unwrap();
    }
    let mut runs = Vec::new();
    index.runs_in(0, 100, usize::MAX, &mut runs);
    assert_eq!(runs.len(), 2);
}
