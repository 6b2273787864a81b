//! Entries that other servers keep, directories that are removed, and directories whose home is lost.

use weir_core::proto::peer::Request;
use weir_core::proto::FsError;
use weir_core::types::Rank;

use super::world::{dir_child, file_child, NamesWorld};
use crate::cluster::abilities::{NameTables, OwnTables};
use crate::cluster::peers::calls::ServerCalls;
use crate::cluster::ROOT;

#[test]
fn a_kept_entry_is_answered_without_its_home_until_it_is_recalled() {
    let world = NamesWorld::new(2);
    let name = world.name_at(ROOT, 0, 0);
    let file = world.create(0, (ROOT, &name)).unwrap();
    let found = Ok(Some(file_child(file)));
    assert_eq!(world.find(1, (ROOT, &name)), found);
    let shown = |world: &NamesWorld| {
        world.servers[1].node(|node| node.known().entry(ROOT, &name).map(|(ino, _)| ino))
    };
    assert_eq!(shown(&world), Some(file), "programs see it");
    let again = world.begin_find(1, (ROOT, &name));
    assert!(world.fabric.waiting().is_empty(), "its home is not asked");
    assert_eq!(again.borrow_mut().take(), Some(found));
    // The home tells the keeper before the name changes.
    let unlink = weir_core::proto::Unlink {
        parent: ROOT,
        name: name.clone(),
    };
    let unlinked = world.fabric.begin(world.names(0).unlink_for_client(unlink));
    world
        .fabric
        .turn_until(|asked| matches!(asked, Request::DropEntry(_)));
    assert_eq!(world.entry_at(0, (ROOT, &name)), Some(file_child(file)));
    world.fabric.settle();
    assert_eq!(unlinked.borrow_mut().take(), Some(Ok(())));
    assert_eq!(shown(&world), None);
    assert_eq!(world.find(1, (ROOT, &name)), Ok(None));
}

#[test]
fn an_answer_that_a_recall_overtook_is_not_kept() {
    let world = NamesWorld::new(2);
    let name = world.name_at(ROOT, 0, 0);
    let file = world.create(0, (ROOT, &name)).unwrap();
    let found = world.begin_find(1, (ROOT, &name));
    // The recall of another entry arrives while the question is on its way.
    let other = crate::cluster::names::NameKey::new(ROOT, b"other".to_vec());
    world.names(1).drop_entry(&other);
    world.fabric.settle();
    assert_eq!(found.borrow_mut().take(), Some(Ok(Some(file_child(file)))));
    let again = world.begin_find(1, (ROOT, &name));
    let place = world
        .fabric
        .place_of(|asked| matches!(asked, Request::FindToKeep(_)));
    world.fabric.deliver(place);
    world.fabric.settle();
    assert_eq!(again.borrow_mut().take(), Some(Ok(Some(file_child(file)))));
}

#[test]
fn entries_of_a_server_whose_session_ended_are_not_believed() {
    let world = NamesWorld::new(2);
    let name = world.name_at(ROOT, 0, 0);
    world.create(0, (ROOT, &name)).unwrap();
    assert!(world.find(1, (ROOT, &name)).is_ok());
    let question = world.begin_find(1, (ROOT, &world.name_at(ROOT, 0, 1)));
    let place = world
        .fabric
        .place_of(|asked| matches!(asked, Request::FindToKeep(_)));
    world.fabric.lose(place);
    world.fabric.settle();
    assert_eq!(
        question.borrow_mut().take(),
        Some(Err(FsError::Unreachable))
    );
    let again = world.begin_find(1, (ROOT, &name));
    assert!(!world.fabric.waiting().is_empty(), "its home is asked");
    world.fabric.settle();
    assert!(again.borrow_mut().take().unwrap().is_ok());
}

#[test]
fn a_directory_with_an_entry_at_another_server_is_not_removed() {
    let world = NamesWorld::new(3);
    let name = world.name_at(ROOT, 1, 0);
    let dir = world.mkdir(0, (ROOT, &name));
    world.create(2, (dir, b"f")).unwrap();
    for rank in 0..3 {
        assert_eq!(world.rmdir(rank, (ROOT, &name)), Err(FsError::NotEmpty));
        assert_eq!(world.entry_at(1, (ROOT, &name)), Some(dir_child(dir)));
        world.check_no_rename(&[ROOT, dir]);
    }
    assert_eq!(world.unlink(0, (dir, b"f")), Ok(()));
    assert_eq!(world.rmdir(0, (ROOT, &name)), Ok(()));
    assert_eq!(world.entry_at(1, (ROOT, &name)), None);
    let stands_in = world.servers[2].node(|node| node.names().stands_in(dir));
    assert!(!stands_in, "its server has retired");
    let journalled = world.servers[1].journalled();
    assert!(!journalled.placed.contains_key(&dir) && !journalled.enrolled.contains_key(&dir));
    assert!(world.servers[2].journalled().has_all.is_empty());
}

#[test]
fn no_server_enrols_while_a_directory_is_removed() {
    let world = NamesWorld::new(3);
    let name = world.name_at(ROOT, 1, 0);
    let dir = world.mkdir(0, (ROOT, &name));
    world.create(2, (dir, b"f")).unwrap();
    assert_eq!(world.unlink(2, (dir, b"f")), Ok(()));
    let remove = weir_core::proto::Rmdir {
        parent: ROOT,
        name: name.clone(),
    };
    let removed = world.fabric.begin(world.names(1).rmdir_for_client(remove));
    world
        .fabric
        .turn_until(|asked| matches!(asked, Request::Retire(_)));
    let late = world.names(1).enrol(Rank(0), dir);
    assert_eq!(late, Err(FsError::WouldBlock));
    let created = world.begin_create(0, (dir, b"g"));
    world.fabric.settle();
    assert_eq!(removed.borrow_mut().take(), Some(Ok(())));
    let created = created.borrow_mut().take().map(|made| made.map(drop));
    assert!(
        matches!(created, Some(Err(FsError::NotFound | FsError::Stale))),
        "{created:?}"
    );
    assert_eq!(world.entries_of(&[dir]).len(), 0);
}

#[test]
fn a_name_below_a_lost_home_is_unknown_unless_a_server_has_all_names() {
    let world = NamesWorld::new(3);
    let name = world.name_at(ROOT, 1, 0);
    let dir = world.mkdir(0, (ROOT, &name));
    let other = world.mkdir(0, (ROOT, &world.name_at(ROOT, 1, 1)));
    let file = world.create(2, (dir, b"f")).unwrap();
    for rank in [0_u16, 2] {
        let peers = world.servers[usize::from(rank)].peers();
        peers.end_sessions(Rank(1));
        peers.give_up([Rank(1)].into_iter(), 0);
    }
    assert_eq!(world.find(0, (dir, b"f")), Ok(Some(file_child(file))));
    assert_eq!(world.find(0, (dir, b"g")), Ok(None), "rank 2 has all names");
    let unknown = world.find(0, (other, b"f"));
    assert_eq!(
        unknown,
        Err(FsError::Unreachable),
        "the lost one may have it"
    );
}
