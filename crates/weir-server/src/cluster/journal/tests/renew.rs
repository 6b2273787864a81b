//! A journal that is begun anew in steps, while changes go on.

use weir_core::extent::Run;
use weir_core::journal::Item;

use super::server::{
    admit, create, journalled, names_in, node_with, state_of, write, TestNode, CLIENT,
};
use crate::cluster::fake::restored_tables;
use crate::cluster::names::NameSteps;
use crate::node::ShowShared;

/// Takes steps of a new journal until none is left; returns the number.
fn renew(node: &mut TestNode) -> usize {
    let mut steps = 0;
    while node.renew_journal(&|_, _| None) {
        steps += 1;
        assert!(steps < 1000, "it does not end");
    }
    steps
}

#[test]
fn a_new_journal_is_begun_only_when_the_old_one_is_long_and_tidy() {
    let (mut node, journal) = journalled();
    assert_eq!(renew(&mut node), 0);
    assert_eq!(journal.take_calls(), ["tidy"]);
    journal.set(|parts| (parts.is_long, parts.to_tidy) = (true, 2));
    assert!(node.renew_journal(&|_, _| None) && node.renew_journal(&|_, _| None));
    assert_eq!(journal.take_calls(), ["tidy", "tidy"]);
    journal.set(|parts| parts.is_stuck = true);
    assert!(!node.renew_journal(&|_, _| None), "not now");
    assert_eq!(journal.take_calls(), ["tidy", "begin anew"]);
    assert!(!node.journal.is_recoverable());
    journal.set(|parts| parts.is_stuck = false);
    assert!(renew(&mut node) > 1);
    assert_eq!(journal.take_calls().last(), Some(&"tidy"));
    assert!(!journal.0.borrow().is_long, "it has taken over");
}

#[test]
fn changes_go_to_the_journal_before_the_snapshot_shows_them() {
    let (mut node, journal) = journalled();
    journal.set(|parts| parts.is_long = true);
    assert!(node.renew_journal(&|_, _| None));
    journal.take_calls();
    create(&mut node, "a");
    assert!(node.renew_journal(&|_, _| None));
    assert_eq!(journal.take_calls(), ["append", "add"]);
    // A server that is killed now has the file, and so has the next one.
    assert_eq!(state_of(&journal.records()).entries.len(), 1);
    renew(&mut node);
    assert_eq!(state_of(&journal.records()).entries.len(), 1);
}

#[test]
fn a_new_journal_that_changes_while_it_is_made_ends_as_the_old_one() {
    for most in [1, 2, 5] {
        let (mut node, journal) = journalled();
        node.set_snapshot_step(most);
        let memory = admit(&mut node);
        for number in 0..8 {
            let ino = create(&mut node, &format!("file{number}"));
            write(&mut node, ino, number * 20, 10);
        }
        journal.set(|parts| parts.is_long = true);
        let root = node.names.root();
        for step in 0.. {
            if !node.renew_journal(&|_, _| None) {
                break;
            }
            assert!(step < 200, "it does not end");
            match step {
                2 => drop(create(&mut node, "late")),
                4 => drop(node.remove_name(root, b"file0").unwrap()),
                // The snapshot shows the client's leases last.
                5 => node.gone(CLIENT, 5),
                _ => {}
            }
        }
        drop(memory);
        node.commit();
        let old = state_of(&journal.0.borrow().replaced);
        let new = state_of(&journal.records());
        assert!(new.whole && new.clients.is_empty() && new.segments.is_empty());
        assert_eq!(new.inodes, old.inodes);
        assert_eq!(new.entries, old.entries);
        assert_eq!(new.cells, old.cells);
        let restored = node_with(1, restored_tables(&new));
        let names = names_in(&restored).into_keys().collect::<Vec<_>>();
        assert_eq!(names, names_in(&node).into_keys().collect::<Vec<_>>());
    }
}

#[test]
fn a_new_journal_to_which_a_part_cannot_be_added_is_given_up_and_begun_again() {
    let (mut node, journal) = journalled();
    for number in 0..8 {
        create(&mut node, &format!("file{number}"));
    }
    for room in 0.. {
        journal.set(|parts| (parts.is_long, parts.room) = (true, room));
        let before = names_in(&node);
        renew(&mut node);
        let calls = journal.take_calls();
        let (records, is_over) = (journal.records(), calls.contains(&"take over"));
        let state = state_of(&records);
        assert!(
            state.whole,
            "the old journal goes on, or the new one is whole"
        );
        assert_eq!(names_in(&node_with(1, restored_tables(&state))), before);
        if is_over {
            assert!(room > 1, "it has several parts");
            return;
        }
        assert!(node.journal.is_recoverable(), "the old one has all changes");
    }
}

#[test]
fn the_end_of_a_snapshot_replaces_what_went_to_the_new_journal_meanwhile() {
    let (mut node, journal) = journalled();
    let ino = create(&mut node, "a");
    let under_way = Item::InFlight(ino, 5, vec![Run::extent(0, 10, 1, 0, 0, 0).unwrap()]);
    let shown = under_way.clone();
    let shared: ShowShared<'_> = &|from, visit| {
        if from.is_none() {
            visit(&shown);
        }
        None
    };
    journal.set(|parts| parts.is_long = true);
    assert!(node.renew_journal(shared));
    // A publish begins. The snapshot shows it, too, in its last step.
    node.changes.note(&under_way);
    while node.renew_journal(shared) {}
    assert!(journal.take_calls().contains(&"take over"));
    let state = state_of(&journal.records());
    assert_eq!(state.cluster.in_flight[&ino].len(), 1, "once");
}
