//! Rings: each entry comes out whole, once and in its order; of records also if the server is killed.
//!
//! The client fills a slot and then raises `head`; the server reads the slot and then raises `tail`, of
//! records only after it has stored them. So the client never writes to a slot that the server reads.

use std::sync::Arc;

use loom::thread;
use weir_core::node::ring::{
    Full, Note, NoteRing, NoteSlot, Record, RecordRing, RecordSlot, RingEnds,
};

use super::{explore, explore_kills};

#[derive(Default)]
struct Shared {
    ends: RingEnds,
    records: [RecordSlot; 2],
    notes: [NoteSlot; 2],
}

impl Shared {
    fn records(&self) -> RecordRing<'_> {
        RecordRing {
            ends: &self.ends,
            slots: &self.records,
        }
    }

    fn notes(&self) -> NoteRing<'_> {
        NoteRing {
            ends: &self.ends,
            slots: &self.notes,
        }
    }
}

fn record(number: u64) -> Record {
    Record {
        offset: number,
        pos: number,
        stamp: number,
        ..Record::default()
    }
}

#[test]
fn records_come_out_whole_and_in_order() {
    explore(1, || {
        let shared = Arc::new(Shared::default());
        shared.records().push(&record(1)).unwrap();
        shared.records().push(&record(2)).unwrap();
        let client = thread::spawn({
            let shared = Arc::clone(&shared);
            move || shared.records().push(&record(3))
        });
        let ring = shared.records();
        let mut stored = Vec::new();
        for _ in 0..2 {
            stored.extend(ring.peek(0));
            ring.ends.consumed(1);
        }
        let last = ring.peek(0);
        let pushed = client.join().unwrap();
        assert_eq!(stored, [record(1), record(2)]);
        assert!(last.is_none_or(|last| last == record(3)));
        assert_eq!(ring.peek(0), pushed.is_ok().then(|| record(3)));
    });
}

#[test]
fn notes_come_out_whole_and_in_order() {
    explore(2, || {
        let shared = Arc::new(Shared::default());
        let client = thread::spawn({
            let shared = Arc::clone(&shared);
            move || [1, 2, 3].map(|number| shared.notes().push(Note::Detach(number)))
        });
        let mut came = vec![shared.notes().pop(), shared.notes().pop()];
        let pushed = client.join().unwrap();
        came.extend((0..3).map(|_| shared.notes().pop()));
        let came: Vec<_> = came.into_iter().flatten().map(Option::unwrap).collect();
        assert!(pushed[..2] == [Ok(()), Ok(())]);
        let all = [1, 2, 3].map(Note::Detach);
        let last = if pushed[2] == Err(Full) { 2 } else { 3 };
        assert_eq!(came, all[..last]);
    });
}

/// A server that is killed before it stored a record, and one after it, which reads it again.
#[test]
fn a_server_that_starts_again_finds_what_the_killed_one_had_not_stored() {
    explore_kills(1, |victim| {
        let shared = Arc::new(Shared::default());
        for number in [1, 2] {
            shared.records().push(&record(number)).unwrap();
        }
        let mut stored = Vec::new();
        victim.run(|| {
            let ring = shared.records();
            for place in 0..2 {
                stored.extend(ring.peek(place));
            }
            ring.ends.consumed(stored.len());
        });
        let ring = shared.records();
        let left: Vec<_> = (0..2).filter_map(|place| ring.peek(place)).collect();
        assert!(stored.len() == 2 || left.len() == 2);
        assert!(left.is_empty() || left == [record(1), record(2)]);
    });
}

/// A client that is killed within a push: the server finds the entry whole, or not at all.
#[test]
fn a_client_that_is_killed_leaves_no_half_record() {
    explore_kills(1, |victim| {
        let shared = Arc::new(Shared::default());
        let pushed = victim.run(|| shared.records().push(&record(1)));
        let found = shared.records().peek(0);
        assert_eq!(found.is_some(), pushed.is_some());
        assert!(found.is_none_or(|found| found == record(1)));
    });
}
