//! A writer's cell, and the ring behind it: at every instant they show exactly the finished writes.
//!
//! The writer fills the copy of the record that is not in force and then bumps the version; a write ends
//! with one store to `committed`. Before another record begins, the old one is in the ring. The server
//! reads the cell first and the ring after it.

use std::sync::Arc;

use loom::thread;
use weir_core::node::cell::{Cell, State};
use weir_core::node::ring::{Record, RecordRing, RecordSlot, RingEnds};

use super::{explore, explore_kills};

fn state(stamp: u64, mark: u64) -> State {
    State {
        offset: stamp * 100,
        stamp,
        mark,
        ..State::default()
    }
}

/// Ends the record of 3 bytes; one of 2 follows, and one without any, in the copy of the first.
fn write(cell: &Cell) {
    cell.replace(&state(2, 3));
    cell.commit(5);
    cell.replace(&state(3, 5));
}

fn assert_finished(seen: (State, u64)) {
    let begun = [(state(2, 3), 0), (state(3, 5), 0)];
    let finished = [(state(1, 0), 3), begun[0], (state(2, 3), 2), begun[1]];
    assert!(finished.contains(&seen), "{seen:?}");
}

fn begun() -> Cell {
    let cell = Cell::default();
    cell.replace(&state(1, 0));
    cell.commit(3);
    cell
}

#[test]
fn a_reader_sees_a_finished_write() {
    explore(1, || {
        let cell = Arc::new(begun());
        let writer = thread::spawn({
            let cell = Arc::clone(&cell);
            move || write(&cell)
        });
        assert_finished(cell.state());
        writer.join().unwrap();
        assert_eq!(cell.state(), (state(3, 5), 0));
    });
}

#[test]
fn a_killed_writer_leaves_a_finished_write() {
    explore_kills(1, |victim| {
        let cell = begun();
        let done = victim.run(|| write(&cell));
        let seen = cell.state();
        assert_finished(seen);
        assert!(done.is_none() || seen.0.stamp == 3);
    });
}

/// The server reads at any moment: what the cell shows no more is in the ring.
#[test]
fn the_first_record_is_in_the_cell_or_in_the_ring() {
    explore(1, || {
        let shared = Arc::new((begun(), RingEnds::default(), [RecordSlot::default()]));
        let writer = thread::spawn({
            let shared = Arc::clone(&shared);
            move || {
                let (cell, ends, slots) = &*shared;
                let ring = RecordRing { ends, slots };
                let closed = Record {
                    stamp: 1,
                    length: 3,
                    ..Record::default()
                };
                ring.push(&closed).unwrap();
                cell.replace(&state(2, 3));
            }
        });
        let (cell, ends, slots) = &*shared;
        let (shown, _) = cell.state();
        let closed = RecordRing { ends, slots }.peek(0);
        assert!(
            shown.stamp == 1
                || closed.is_some_and(|closed| (closed.stamp, closed.length) == (1, 3))
        );
        writer.join().unwrap();
    });
}
