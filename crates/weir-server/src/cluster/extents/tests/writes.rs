//! Writes of this server's clients: taken into the index, cut, published, and taken up again.

use proptest::prelude::*;
use weir_core::extent::Source;
use weir_core::node::ring::Record;
use weir_core::proto::peer::{EvictRanges, LogRange};
use weir_core::proto::{Allocate, ByteRange, CopyUse, FsError};
use weir_core::types::Ino;

use super::writer::{ByteMap, HandWriter, WriterTables};
use crate::cluster::clock::ServerClock;
use crate::cluster::extents::WriteTables;

fn tables() -> WriterTables {
    WriterTables::new(0, ServerClock::at(10))
}

/// The bytes of a file as a reader finds them.
fn located(tables: &mut WriterTables, ino: Ino) -> ByteMap {
    let located = tables.writes().locate_range(ino, 0, 1 << 20).unwrap();
    let mut bytes = ByteMap::new();
    for run in located.runs {
        for index in 0..run.count {
            let piece = run.piece(index);
            let Source::Log {
                rank, slab, pos, ..
            } = piece.into_run().source
            else {
                panic!("{piece:?}");
            };
            for at in 0..piece.length {
                bytes.insert(piece.offset + at, (rank, slab, pos + at));
            }
        }
    }
    bytes
}

#[derive(Clone, Debug)]
enum Step {
    Write {
        writer: usize,
        offset: u64,
        len: u64,
    },
    Truncate(u64),
    Hole {
        offset: u64,
        len: u64,
    },
    Harvest,
    Commit,
    /// The journal is begun anew.
    Renew,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let write = || (0..2_usize, 0..60_u64, 1..20_u64);
    let write = || {
        write().prop_map(|(writer, offset, len)| Step::Write {
            writer,
            offset,
            len,
        })
    };
    let step = prop_oneof![
        write(),
        write(),
        write(),
        (0..60_u64).prop_map(Step::Truncate),
        (0..60_u64, 1..20_u64).prop_map(|(offset, len)| Step::Hole { offset, len }),
        Just(Step::Harvest),
        Just(Step::Commit),
        Just(Step::Renew),
    ];
    proptest::collection::vec(step, 1..40)
}

/// Does the steps; returns the bytes that the file has then.
fn run(tables: &mut WriterTables, ino: Ino, steps: &[Step]) -> ByteMap {
    let mut writers = [0, 1].map(|client| HandWriter::new(tables, client, ino, 0));
    let mut bytes = ByteMap::new();
    for (number, step) in steps.iter().enumerate() {
        match *step {
            Step::Write {
                writer,
                offset,
                len,
            } => {
                let (slab, pos) = writers[writer].write(tables, offset, len);
                bytes.extend((0..len).map(|at| (offset + at, (0, slab, pos + at))));
            }
            Step::Truncate(size) => {
                tables.writes().set_size(ino, size).unwrap();
                bytes.retain(|at, _| *at < size);
                // A server may be killed before it commits one, and clients go on to write.
                let mut rest = steps[number + 1..].iter();
                if !rest.all(|step| matches!(step, Step::Write { .. })) {
                    tables.commit();
                }
            }
            Step::Hole { offset, len } => {
                let hole = Allocate {
                    ino,
                    offset,
                    length: len,
                    zero: true,
                    keep_size: false,
                };
                tables.writes().allocate_range(&hole).unwrap();
                bytes.retain(|at, _| !(offset..offset + len).contains(at));
                tables.commit();
            }
            Step::Harvest => {
                tables.writes().harvest(ino);
                assert_eq!(tables.space.living(), tables.bytes_of_all());
            }
            Step::Commit => tables.commit(),
            Step::Renew => tables.renew_journal(),
        }
    }
    bytes
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn the_bytes_of_a_log_that_live_are_the_newest_of_a_file(steps in steps()) {
        let mut tables = tables();
        let ino = tables.create("f");
        let wanted = run(&mut tables, ino, &steps);
        prop_assert_eq!(&located(&mut tables, ino), &wanted);
        let living = wanted.values().map(|(_, slab, pos)| (*slab, *pos)).collect();
        prop_assert_eq!(tables.space.living(), living);
        prop_assert_eq!(tables.stats.rejected(), []);
        for id in tables.clients.ids() {
            tables.writes().detach_cells_of(id);
        }
        prop_assert_eq!(&located(&mut tables, ino), &wanted, "without writers");
        tables.writes().clear_extents(ino);
        prop_assert!(tables.space.living().is_empty());
    }

    /// Whatever was committed: the rest is in the rings and cells.
    #[test]
    fn a_new_server_has_all_writes_whenever_the_last_commit_was(steps in steps()) {
        let mut tables = tables();
        let ino = tables.create("f");
        let wanted = run(&mut tables, ino, &steps);
        let mut tables = tables.restarted();
        prop_assert_eq!(&located(&mut tables, ino), &wanted);
        prop_assert_eq!(tables.stats.rejected(), []);
        let living = wanted.values().map(|(_, slab, pos)| (*slab, *pos)).collect();
        prop_assert_eq!(tables.space.living(), living);
    }
}

#[test]
fn a_hole_over_a_record_that_only_a_cell_shows_is_one_for_a_new_server() {
    for is_renewed in [false, true] {
        let mut tables = tables();
        let ino = tables.create("f");
        let mut writer = HandWriter::new(&mut tables, 0, ino, 0);
        writer.write(&tables, 0, 10);
        let hole = Allocate {
            ino,
            offset: 0,
            length: 10,
            zero: true,
            keep_size: true,
        };
        tables.writes().allocate_range(&hole).unwrap();
        tables.commit();
        if is_renewed {
            tables.renew_journal();
        }
        let mut tables = tables.restarted();
        assert_eq!(located(&mut tables, ino).len(), 0, "{is_renewed}");
    }
}

#[test]
fn a_new_server_does_not_take_extents_that_were_taken_to_be_published() {
    for number in 0..3 {
        let mut tables = tables();
        let ino = tables.create("f");
        let mut writer = HandWriter::new(&mut tables, 0, ino, 0);
        writer.write(&tables, 0, 10);
        assert_eq!(tables.writes().take_pending(ino).unwrap().runs.len(), 1);
        if number == 1 {
            writer.write(&tables, 5, 10);
        }
        if number == 2 {
            tables.writes().detach_cell(writer.attached.cell);
        }
        tables.commit();
        let mut tables = tables.restarted();
        let left = if number == 1 { 10 } else { 0 };
        assert_eq!(located(&mut tables, ino).len(), left, "{number}");
        assert_eq!(tables.journal.cluster.in_flight.len(), 1);
    }
}

#[test]
fn a_record_that_its_client_may_not_show_changes_nothing() {
    let mut tables = tables();
    let ino = tables.create("f");
    let mut writer = HandWriter::new(&mut tables, 0, ino, 0);
    let other = HandWriter::new(&mut tables, 1, ino, 0);
    writer.write(&tables, 0, 10);
    let good = writer.shown();
    let stamp = good.stamp;
    let bad = [
        ("a slab that it was not lent", Record { slab: 1, ..good }),
        ("behind its segment", Record { pos: 4090, ..good }),
        (
            "a stamp of the future",
            Record {
                stamp: stamp + 5,
                ..good
            },
        ),
        ("a stamp of nothing", Record { stamp: 0, ..good }),
        (
            "the cell of another client",
            Record {
                cell: other.attached.cell,
                ..good
            },
        ),
        (
            "the cell and the bytes of another client",
            Record {
                cell: other.attached.cell,
                slab: 1,
                ..good
            },
        ),
        ("no cell", Record { cell: 9, ..good }),
        ("no bytes", Record { count: 0, ..good }),
        (
            "too many bytes",
            Record {
                count: u64::MAX,
                ..good
            },
        ),
        (
            "behind the greatest offset",
            Record {
                offset: u64::MAX - 5,
                ..good
            },
        ),
    ];
    for (number, (why, record)) in (1..).zip(bad) {
        writer.push(&tables, &record);
        tables.writes().harvest_ring(weir_core::types::ClientId(0));
        assert!(tables.space.living().is_empty(), "{why}");
        let rejected = tables.stats.rejected();
        assert_eq!(rejected, [("record".to_owned(), number)], "{why}");
    }
    // Only the cell's own record counts, once.
    writer.push(&tables, &good);
    tables.writes().harvest(ino);
    assert_eq!(tables.space.living().len(), 10);
}

#[test]
fn extents_that_were_taken_to_be_published_live_on_and_later_writes_are_not_among_them() {
    let mut tables = tables();
    let ino = tables.create("f");
    let mut writer = HandWriter::new(&mut tables, 0, ino, 0);
    writer.write(&tables, 0, 10);
    let pending = tables.writes().take_pending(ino).unwrap();
    assert_eq!(pending.size, 10);
    let ends: Vec<_> = pending
        .runs
        .iter()
        .map(|run| (run.offset, run.end()))
        .collect();
    assert_eq!(ends, [(0, 10)]);
    assert!(tables.bytes_of(ino).is_empty());
    assert_eq!(tables.space.living().len(), 10, "of the published file");
    writer.write(&tables, 5, 10);
    assert_eq!(located(&mut tables, ino).len(), 10);
    assert_eq!(tables.space.living().len(), 20);
    let again = tables.writes().take_pending(ino).unwrap();
    let ends: Vec<_> = again
        .runs
        .iter()
        .map(|run| (run.offset, run.end()))
        .collect();
    assert_eq!(
        ends,
        [(5, 15)],
        "the record that was taken does not come again"
    );
    let freed = LogRange {
        rank: 0,
        slab: 0,
        pos: 5,
        len: 5,
    };
    tables.writes().free_bytes(&freed);
    assert_eq!(tables.space.living().len(), 15);
    tables.commit();
    let published: u64 = tables
        .journal
        .published_log
        .iter()
        .map(|(_, _, len)| len)
        .sum();
    assert_eq!(published, 15, "as a new server counts them");
}

#[test]
fn readers_see_another_generation_when_bytes_become_free() {
    let mut tables = tables();
    let ino = tables.create("f");
    let mut writer = HandWriter::new(&mut tables, 0, ino, 0);
    writer.write(&tables, 0, 10);
    tables.writes().harvest(ino);
    let generation = |tables: &WriterTables| tables.names.attr_of(ino).unwrap().index_generation;
    let before = generation(&tables);
    tables.writes().harvest(ino);
    assert_eq!(generation(&tables), before, "nothing changed");
    writer.write(&tables, 0, 10);
    tables.writes().harvest(ino);
    assert_eq!(tables.space.living().len(), 10, "the first bytes are free");
    assert!(generation(&tables) > before);
    let before = generation(&tables);
    tables.writes().set_size(ino, 3).unwrap();
    assert_eq!(tables.space.living().len(), 3);
    assert!(generation(&tables) > before);
}

#[test]
fn only_bytes_that_nobody_wrote_since_their_copy_are_evicted() {
    let mut tables = tables();
    let ino = tables.create("f");
    let mut writer = HandWriter::new(&mut tables, 0, ino, 0);
    writer.write(&tables, 0, 10);
    writer.write(&tables, 10, 10);
    let settled = tables.writes().settle_extents(ino).unwrap();
    // After the copy was made.
    writer.write(&tables, 12, 2);
    let (start, end) = (0, 10);
    let evict = |start: u64, end: u64| EvictRanges {
        ino,
        settled,
        ranges: vec![ByteRange { start, end }],
    };
    assert_eq!(tables.writes().evict_ranges(&evict(10, 20)), Ok(0));
    assert_eq!(tables.writes().evict_ranges(&evict(0, 11)), Ok(11));
    assert_eq!(
        tables.writes().evict_ranges(&evict(start, end)),
        Ok(0),
        "they are not here"
    );
    assert_eq!(tables.writers().copy_use(ino), Ok(CopyUse::Part));
    assert_eq!(tables.space.living().len(), 9);
    // A later settling makes the earlier one void.
    let again = tables.writes().settle_extents(ino).unwrap();
    assert_eq!(tables.writes().evict_ranges(&evict(14, 20)), Ok(0));
    let whole = EvictRanges {
        settled: again,
        ..evict(11, 20)
    };
    assert_eq!(tables.writes().evict_ranges(&whole), Ok(9));
    assert!(tables.space.living().is_empty());
}

#[test]
fn a_directory_has_no_extents() {
    let mut tables = tables();
    let root = tables.names.root();
    let refused = tables
        .writes()
        .take_pending(root)
        .map(|pending| pending.size);
    assert_eq!(refused, Err(FsError::IsADirectory));
    assert_eq!(
        tables.writes().set_size(root, 0),
        Err(FsError::IsADirectory)
    );
}
