//! The homes of the names of a rename: its steps are done once, or never.

use weir_core::journal::State;
use weir_core::proto::peer::{self, Left, Request};
use weir_core::proto::FsError;
use weir_core::types::{Ino, Rank};

use super::world::{dir_child, file_child, NamesWorld};
use crate::cluster::keyed::Token;
use crate::cluster::names::{NameKey, NamesNeeds, NamesState};
use crate::cluster::ROOT;

/// The number of the rename.
const NUMBER: u64 = 77;

fn lock(name: &[u8], to: Option<peer::Destination>) -> peer::LockName {
    peer::LockName {
        dir: ROOT,
        name: name.to_vec(),
        token: NUMBER,
        to,
        swaps: false,
    }
}

fn assign(name: &[u8]) -> peer::Assign {
    peer::Assign {
        dir: ROOT,
        name: name.to_vec(),
        token: NUMBER,
        was: None,
        from: None,
        to: None,
        child: None,
    }
}

fn end_move(leader: u16) -> peer::EndMove {
    peer::EndMove {
        leader,
        token: NUMBER,
        over: false,
    }
}

#[test]
fn a_rename_that_was_called_off_assigns_no_name() {
    let world = NamesWorld::new(2);
    let (name, old) = (world.name_at(ROOT, 0, 0), world.name_at(ROOT, 1, 0));
    let dir = world.mkdir(1, (ROOT, &old));
    let names = world.names(0);
    let first_step = || peer::Assign {
        from: Some(peer::Origin {
            home: Rank(1),
            dir: ROOT,
            name: old.clone(),
            then: None,
        }),
        child: Some(dir_child(dir)),
        ..assign(&name)
    };
    let locked = world
        .fabric
        .finish(names.lock_name(Rank(1), lock(&name, None)));
    assert_eq!(locked, Ok(None));
    // The old name's home asks before the leader's request arrives.
    let outcome = world.fabric.finish(names.end_move(end_move(1)));
    assert_eq!(outcome, Ok(None), "the first step was not done");
    let late = world
        .fabric
        .finish(names.assign_name(Rank(1), first_step()));
    assert_eq!(late, Err(FsError::Unreachable));
    assert_eq!(world.entry_at(0, (ROOT, &name)), None);
    assert_eq!(world.servers[0].journalled().called_off.len(), 1);
    // The restarted leader uses no number of its earlier life.
    names.forget_called_off(Rank(1));
    assert!(world.servers[0].journalled().called_off.is_empty());
}

#[test]
fn a_first_step_that_was_done_is_reported_and_the_second_one_follows() {
    let world = NamesWorld::new(2);
    let (new, old) = (world.name_at(ROOT, 0, 0), world.name_at(ROOT, 1, 0));
    let dir = world.mkdir(1, (ROOT, &old));
    let done = world.begin_rename(1, (ROOT, &old), (ROOT, &new), 0);
    let place = world
        .fabric
        .turn_until(|asked| matches!(asked, Request::Assign(_)));
    // The first step is done, but the leader's server does not learn of it, and gives the home up.
    world.fabric.deliver_and_lose_answer(place);
    world.fabric.settle();
    assert_eq!(done.borrow_mut().take(), Some(Err(FsError::Unreachable)));
    let [at_old, at_new] =
        [(1, &old), (0, &new)].map(|(at, name)| world.entry_at(at, (ROOT, name)));
    assert_eq!((at_old, at_new), (None, Some(dir_child(dir))));
    world.check_tree(&[dir]);
    world.check_no_rename(&[ROOT]);
}

#[test]
fn a_step_of_a_file_s_rename_that_comes_again_is_not_done_twice() {
    let world = NamesWorld::new(2);
    let (new, old) = (world.name_at(ROOT, 0, 0), world.name_at(ROOT, 1, 0));
    let file = world.create(1, (ROOT, &old)).unwrap();
    let names = world.names(0);
    let step = || peer::Assign {
        child: Some(file_child(file)),
        ..assign(&new)
    };
    let locked = world
        .fabric
        .finish(names.lock_name(Rank(1), lock(&new, None)));
    assert_eq!(locked, Ok(None));
    assert_eq!(
        world.fabric.finish(names.assign_name(Rank(1), step())),
        Ok(())
    );
    let token = Token {
        rank: Rank(1),
        number: NUMBER,
    };
    names.unlock_name_of(&NameKey::new(ROOT, new.clone()), token, Left::Later);
    // Another program removes the name before the leader, which had no answer, asks again.
    assert_eq!(world.unlink(0, (ROOT, &new)), Ok(()));
    assert_eq!(
        world.fabric.finish(names.assign_name(Rank(1), step())),
        Ok(())
    );
    assert_eq!(world.entry_at(0, (ROOT, &new)), None, "it was done before");
    names.forget_steps(Rank(1), NUMBER);
    assert_eq!(
        world.servers[0].journalled().changes.len(),
        1,
        "it is not over"
    );
    names.forget_steps(Rank(1), NUMBER + 1);
    assert!(world.servers[0].journalled().changes.is_empty());
}

/// Two names of a file, of which a rename is to take the old one. The lock of it was dropped.
fn old_name_without_lock() -> (NamesWorld, Vec<u8>, peer::Assign, Ino) {
    let world = NamesWorld::new(2);
    let (old, new) = (world.name_at(ROOT, 0, 0), world.name_at(ROOT, 1, 0));
    let file = world.create(0, (ROOT, &old)).unwrap();
    let to = peer::Destination {
        home: Rank(1),
        dir: ROOT,
        name: new.clone(),
    };
    let names = world.names(0);
    let asked = lock(&old, Some(to.clone()));
    let locked = world.fabric.finish(names.lock_name(Rank(1), asked));
    assert_eq!(locked, Ok(Some(file_child(file))));
    let entered = world.names(1);
    let entered = entered.enter(ROOT, &new, file_child(file));
    assert_eq!(world.fabric.finish(entered), Ok(()));
    let token = Token {
        rank: Rank(1),
        number: NUMBER,
    };
    names.unlock_name_of(&NameKey::new(ROOT, old.clone()), token, Left::Later);
    let take = peer::Assign {
        was: Some(file_child(file)),
        to: Some(to),
        ..assign(&old)
    };
    (world, old, take, file)
}

#[test]
fn the_old_name_of_a_file_is_taken_late_if_nobody_has_locked_it_since() {
    let (world, old, take, _) = old_name_without_lock();
    let taken = world.names(0);
    let taken = world.fabric.finish(taken.assign_name(Rank(1), take));
    assert_eq!(taken, Ok(()));
    assert_eq!(world.entry_at(0, (ROOT, &old)), None);
}

#[test]
fn the_old_name_of_a_file_stays_if_another_request_has_locked_it_since() {
    let (world, old, take, file) = old_name_without_lock();
    let names = world.names(0);
    let link = peer::Link {
        ino: file,
        dir: ROOT,
        name: old.clone(),
    };
    // It relies on the name that it finds.
    assert_eq!(world.fabric.finish(names.link(link)), Err(FsError::Exists));
    let taken = world.fabric.finish(names.assign_name(Rank(1), take));
    assert_eq!(taken, Err(FsError::Unreachable));
    assert_eq!(world.entry_at(0, (ROOT, &old)), Some(file_child(file)));
}

#[test]
fn the_old_name_of_a_file_stays_if_the_new_one_is_not_the_file_s_any_more() {
    let (world, old, take, file) = old_name_without_lock();
    let new = take.to.clone().expect("the new name").name;
    assert_eq!(world.unlink(1, (ROOT, &new)), Ok(()));
    let names = world.names(0);
    let taken = world.fabric.finish(names.assign_name(Rank(1), take));
    assert_eq!(
        taken,
        Err(FsError::Unreachable),
        "it would lose its last name"
    );
    assert_eq!(world.entry_at(0, (ROOT, &old)), Some(file_child(file)));
}

#[test]
fn a_lost_leader_s_locks_are_dropped_once_the_outcome_is_known() {
    let world = NamesWorld::new(3);
    let (old, new) = (world.name_at(ROOT, 0, 0), world.name_at(ROOT, 2, 0));
    let dir = world.mkdir(0, (ROOT, &old));
    let to = peer::Destination {
        home: Rank(2),
        dir: ROOT,
        name: new,
    };
    let names = world.names(0);
    let locked = world
        .fabric
        .finish(names.lock_name(Rank(1), lock(&old, Some(to))));
    assert_eq!(locked, Ok(Some(dir_child(dir))));
    names.drop_names_of(Rank(1));
    let locks = &world.servers[0].names_state().name_locks;
    let key = NameKey::new(ROOT, old.clone());
    world
        .fabric
        .turn_until(|asked| matches!(asked, Request::EndMove(_)));
    assert!(locks.is_held(&key), "the new name's home has not answered");
    world.fabric.settle();
    assert!(!locks.is_held(&key));
    assert!(world.servers[0].journalled().locked.is_empty());
    assert_eq!(world.servers[2].journalled().called_off.len(), 1);
    assert_eq!(world.rename(2, (ROOT, &old), (ROOT, b"z"), 0), Ok(()));
}

#[test]
fn renames_under_way_are_in_the_journal_and_are_taken_up_again() {
    let world = NamesWorld::new(2);
    let (old, new) = (world.name_at(ROOT, 0, 0), world.name_at(ROOT, 1, 0));
    let dir = world.mkdir(0, (ROOT, &old));
    let done = world.begin_rename(1, (ROOT, &old), (ROOT, &new), 0);
    world
        .fabric
        .turn_until(|asked| matches!(asked, Request::Leave(_)));
    let begun: Vec<usize> = [0, 1]
        .map(|rank: usize| {
            let server = &world.servers[rank];
            let mut replayed = State::new(Rank(0));
            let mut items = 0;
            server.names_state().show_renames(&mut |item| {
                replayed.apply(item).expect("an item");
                items += 1;
            });
            let journalled = server.journalled();
            assert_eq!(replayed.cluster.locked, journalled.locked);
            assert_eq!(replayed.cluster.changes, journalled.changes);
            assert_eq!(replayed.cluster.called_off, journalled.called_off);
            let taken_up = NamesState::new(Rank(0), 2);
            taken_up.take_up(&mut replayed.cluster);
            let mut again = State::new(Rank(0));
            taken_up.show_renames(&mut |item| again.apply(item).expect("an item"));
            assert_eq!(again.cluster.locked, journalled.locked);
            assert_eq!(again.cluster.changes, journalled.changes);
            items
        })
        .to_vec();
    assert_eq!(
        begun,
        [1, 1],
        "the old name's lock, and the change of the new one"
    );
    // The leader is lost now: the home of the old name learns of that.
    let changes = world.servers[1].journalled().changes;
    let (leader, number) = changes.into_keys().next().expect("the first step");
    let names = world.names(1);
    let outcome = names.end_move(peer::EndMove {
        leader: leader.0,
        token: number,
        over: false,
    });
    let outcome = world.fabric.finish(outcome);
    assert_eq!(outcome, Ok(Some((dir_child(dir), None))));
    assert_eq!(world.called_off(), 0);
    world.fabric.settle();
    assert_eq!(done.borrow_mut().take(), Some(Ok(())));
    world.check_no_rename(&[ROOT]);
}
