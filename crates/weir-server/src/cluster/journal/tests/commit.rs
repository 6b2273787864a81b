//! Changes are committed together, and taken up again from a journal that ends after any of its records.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;

use weir_core::journal::Item;
use weir_core::proto;
use weir_core::types::Rank;

use super::server::{admit, create, journalled, names_in, node_with, state_of, write, TestNode};
use crate::cluster::fake::{new_tables, restored_tables, MappedMemory};
use crate::cluster::names::NameSteps;
use crate::node::ClientMemory;

#[test]
fn changes_since_the_last_commit_are_one_record() {
    let (mut node, journal) = journalled();
    let ino = create(&mut node, "a");
    create(&mut node, "b");
    node.changes.note(&Item::IndexSettled(ino));
    assert_eq!(journal.take_calls(), [""; 0], "nobody was told");
    node.commit();
    assert_eq!(journal.take_calls(), ["append"]);
    let state = state_of(&journal.records());
    assert!(state.inodes.contains_key(&ino) && state.entries.len() == 2);
    node.commit();
    assert_eq!(journal.take_calls(), [""; 0], "nothing changed");
}

#[test]
fn a_server_without_a_journal_keeps_no_changes() {
    let mut node = node_with(1, new_tables(Rank(0)));
    let ino = create(&mut node, "a");
    node.changes.note(&Item::IndexSettled(ino));
    node.commit();
    assert!(node.changes.items().is_empty());
    assert!(!node.journal.is_recoverable());
    assert!(!node.renew_journal(&|_, _| None));
}

#[test]
fn entries_of_a_ring_are_given_back_after_their_records_are_in_the_journal() {
    let (mut node, journal) = journalled();
    let memory = admit(&mut node);
    let ino = create(&mut node, "a");
    let waiting = |memory: &MappedMemory| {
        let ring = memory.records();
        ring.ends.waiting(ring.slots.len())
    };
    write(&mut node, ino, 0, 10);
    assert_eq!(waiting(&memory), 1, "it is in the index alone");
    let (seen, watched) = (Rc::new(Cell::new(0)), Arc::clone(&memory));
    let shown = Rc::clone(&seen);
    journal.set(|parts| {
        parts.on_append = Some(Box::new(move || shown.set(waiting(&watched))));
    });
    node.commit();
    assert_eq!(seen.get(), 1, "while the journal is written");
    assert_eq!(waiting(&memory), 0);
    assert_eq!(state_of(&journal.records()).extents.len(), 1);
}

#[test]
fn a_server_takes_up_what_was_committed_when_the_journal_ends_after_any_record() {
    let (mut node, journal) = journalled();
    admit(&mut node);
    let mut wanted = vec![BTreeMap::new()];
    let mut commit = |node: &mut TestNode| {
        node.commit();
        wanted.resize(journal.records().len(), names_in(node));
    };
    let root = node.names.root();
    for number in 0..6_u64 {
        let ino = create(&mut node, &format!("file{number}"));
        commit(&mut node);
        let cell = write(&mut node, ino, number * 20, 10);
        // The size of a file that is open for writing is in shared memory, which is gone here.
        node.writes().detach_cell(cell);
        commit(&mut node);
    }
    for number in [1, 3] {
        node.remove_name(root, format!("file{number}").as_bytes())
            .unwrap();
        commit(&mut node);
    }
    let rename = proto::Rename {
        parent: root,
        name: b"file0".to_vec(),
        new_parent: root,
        new_name: b"file5".to_vec(),
        flags: 0,
    };
    node.rename_entry(&rename).unwrap();
    commit(&mut node);
    let records = journal.records();
    assert!(records.len() > 9 && wanted.len() == records.len());
    for (count, wanted) in (1..).zip(&wanted) {
        let mut state = state_of(&records[..count]);
        let mut restored = node_with(1, restored_tables(&state));
        let clients = state.clients.len();
        let counts = restored.take_up(&mut state, |_| None, 20).unwrap();
        assert_eq!(counts.clients, clients);
        assert_eq!(names_in(&restored), *wanted, "after {count} records");
    }
}
