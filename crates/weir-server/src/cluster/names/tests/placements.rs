//! The home of each name, while directories are used by one server and then by several.

use weir_core::placement::hash_of_name;
use weir_core::proto::peer::{self, FirstServer, Placement, PlacementQuery, Request};
use weir_core::proto::FsError;
use weir_core::types::{Ino, Rank};

use super::world::{file_child, NamesWorld};
use crate::cluster::names::placements::NameUse;
use crate::cluster::names::{NameKey, NamesNeeds};
use crate::cluster::ROOT;

/// Three servers; the directory is of rank 1, and rank 2 has made a file in it.
fn used_by_one() -> (NamesWorld, Ino, Ino) {
    let world = NamesWorld::new(3);
    let name = world.name_at(ROOT, 1, 0);
    let dir = world.mkdir(0, (ROOT, &name));
    let file = world.create(2, (dir, b"first")).unwrap();
    (world, dir, file)
}

fn home_of(world: &NamesWorld, at: u16, dir: Ino, name: &[u8]) -> Option<Rank> {
    let names = world.names(at);
    let home = names.find_home(dir, name, NameUse::Existing, None);
    let home = world.fabric.finish(home).unwrap();
    home.map(|home| home.rank)
}

#[test]
fn the_first_maker_has_all_entries_until_another_server_makes_one() {
    let (world, dir, file) = used_by_one();
    assert_eq!(file.rank(), Rank(2), "its inode is with its entry");
    assert!(world.names(2).has_all_entries(dir));
    // Another server that looks for names leaves it so.
    assert_eq!(world.find(0, (dir, b"first")), Ok(Some(file_child(file))));
    assert_eq!(world.find(0, (dir, b"none")), Ok(None));
    assert!(world.names(2).has_all_entries(dir));
    // The names whose hash is of another server are at this one, too.
    let elsewhere = world.name_at(dir, 0, 0);
    let second = world.create(2, (dir, &elsewhere)).unwrap();
    assert_eq!(second.rank(), Rank(2));
    let third = world.create(0, (dir, &world.name_at(dir, 1, 0))).unwrap();
    assert_eq!(third.rank(), Rank(1), "by its hash");
    assert!(!world.names(2).has_all_entries(dir));
    for (rank, server) in world.servers.iter().enumerate() {
        assert!(server.journalled().has_all.is_empty(), "rank {rank}");
    }
    let mut kept = vec![hash_of_name(dir, b"first"), hash_of_name(dir, &elsewhere)];
    kept.sort_unstable();
    let first = FirstServer {
        rank: Rank(2),
        names: kept,
    };
    let placed = world.servers[1].journalled().placed;
    assert_eq!(placed.get(&dir), Some(&Placement::Spread(first)));
    for rank in 0..3 {
        assert_eq!(
            home_of(&world, rank, dir, &elsewhere),
            Some(Rank(2)),
            "it did not move"
        );
        assert_eq!(
            world.find(rank, (dir, &elsewhere)),
            Ok(Some(file_child(second)))
        );
    }
}

#[test]
fn a_name_that_the_first_server_has_lost_goes_to_its_hash() {
    let (world, dir, _) = used_by_one();
    let name = world.name_at(dir, 0, 0);
    let before = world.create(2, (dir, &name)).unwrap();
    world.create(0, (dir, &world.name_at(dir, 1, 0))).unwrap();
    assert_eq!(world.unlink(1, (dir, &name)), Ok(()));
    let again = world.create(1, (dir, &name)).unwrap();
    assert_eq!((before.rank(), again.rank()), (Rank(2), Rank(0)));
    for rank in 0..3 {
        assert_eq!(world.find(rank, (dir, &name)), Ok(Some(file_child(again))));
    }
    let entries = world.entries_of(&[dir]);
    let its = entries.keys().filter(|(_, other, _)| *other == name);
    assert_eq!(its.count(), 1, "no other server has the name");
}

#[test]
fn a_directory_is_split_only_while_no_name_of_it_is_locked() {
    let (world, dir, file) = used_by_one();
    let lock = peer::LockName {
        dir,
        name: b"first".to_vec(),
        token: 9,
        to: None,
        swaps: false,
    };
    let locked = world.names(2);
    let locked = world.fabric.finish(locked.lock_name(Rank(0), lock));
    assert_eq!(locked, Ok(Some(file_child(file))));
    let name = world.name_at(dir, 0, 0);
    let created = world.begin_create(0, (dir, &name));
    world
        .fabric
        .turn_until(|asked| matches!(asked, Request::SplitDir(_)));
    world.fabric.settle();
    assert!(created.borrow().is_none(), "it waits");
    assert!(world.servers[2].journalled().has_all.contains(&dir));
    assert!(
        !world.names(2).has_all_entries(dir),
        "nothing is made at once"
    );
    let unlock = peer::UnlockName {
        dir,
        name: b"first".to_vec(),
        token: 9,
        left: peer::Left::Nothing,
    };
    let token = crate::cluster::keyed::Token {
        rank: Rank(0),
        number: unlock.token,
    };
    let key = NameKey::new(dir, unlock.name.clone());
    world.names(2).unlock_name_of(&key, token, unlock.left);
    world.fabric.settle();
    let made = created.borrow_mut().take().expect("it waits no more");
    assert_eq!(made.unwrap().ino.rank(), Rank(0));
    assert!(!world.servers[2].names_state().splitting.is_held(&dir));
}

#[test]
fn two_servers_that_make_the_same_name_at_once_make_one_file() {
    let (world, dir, _) = used_by_one();
    for number in 0..6 {
        let name = world.name_at(dir, number % 3, usize::from(number));
        let makers = [0, 1, 2].map(|rank| world.begin_create(rank, (dir, &name)));
        world.fabric.settle();
        let made = makers.map(|made| made.borrow_mut().take().expect("an answer"));
        let made: Vec<_> = made.iter().flatten().map(|created| created.ino).collect();
        assert_eq!(made.len(), 1, "one was the first");
        let entries = world.entries_of(&[dir]);
        let its: Vec<_> = entries
            .iter()
            .filter(|((_, its, _), _)| *its == name)
            .collect();
        assert_eq!(its.len(), 1);
        assert_eq!(*its[0].1, made[0]);
    }
}

#[test]
fn an_answer_that_a_split_overtook_does_not_give_a_server_all_entries() {
    let world = NamesWorld::new(3);
    let name = world.name_at(ROOT, 1, 0);
    let dir = world.mkdir(0, (ROOT, &name));
    let first = world.begin_create(2, (dir, b"first"));
    let place = world.fabric.turn_until(
        |asked| matches!(asked, Request::PlaceEntries(op) if op.query == PlacementQuery::Make),
    );
    // The request to split it arrives before the answer that rank 2 has all entries.
    let split = world.names(2);
    let split = world
        .fabric
        .begin(weir_core::proto::Served::later(async move {
            split.split_dir(dir).await
        }));
    assert_eq!(split.borrow_mut().take(), Some(Ok(Some(Vec::new()))));
    world.fabric.deliver(place);
    world.fabric.run_tasks();
    assert!(!world.names(2).has_all_entries(dir));
    world.fabric.settle();
    drop(first);
}

#[test]
fn a_server_that_is_not_the_home_of_a_name_refuses_it() {
    let (world, dir, _) = used_by_one();
    for (rank, name) in [(0, &b"first"[..]), (0, b"new"), (1, b"new")] {
        let find = peer::Find {
            dir,
            name: name.to_vec(),
        };
        let names = world.names(rank);
        let found = world.fabric.finish(names.find(find));
        assert_eq!(found, Err(FsError::Elsewhere), "rank {rank}");
    }
}
