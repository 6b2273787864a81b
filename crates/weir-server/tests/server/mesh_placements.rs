//! The placement of directories' entries: at their creator, until another server creates some.

use std::collections::BTreeSet;

use crate::mesh::{create, pause, Dice, Mesh};
use crate::mesh_names::{find, list, mkdir};
use futures_util::future::join_all;
use weir_core::names::FileType;
use weir_core::placement::home_of_entry;
use weir_core::proto::{self, FsError};
use weir_core::types::{Ino, Rank};
use weir_server::cluster::ROOT;

pub fn unlink(parent: Ino, name: &str) -> proto::Unlink {
    let name = name.into();
    proto::Unlink { parent, name }
}

pub fn rename(parent: Ino, name: &str, new_name: &str) -> proto::Rename {
    proto::Rename {
        parent,
        name: name.into(),
        new_parent: parent,
        new_name: new_name.into(),
        flags: 0,
    }
}

fn names(mesh: &mut Mesh, rank: usize, dir: Ino) -> BTreeSet<String> {
    let listed = list(mesh, rank, dir);
    let count = listed.len();
    let names = listed
        .into_iter()
        .map(|entry| String::from_utf8(entry.name).unwrap());
    let names: BTreeSet<String> = names.collect();
    assert_eq!(names.len(), count, "none is there twice");
    names
}

/// The number of requests of a kind that all servers got.
fn asked(mesh: &Mesh, what: &str) -> u64 {
    (0..4).map(|rank| mesh.asked(Rank(rank), what)).sum()
}

#[test]
fn who_has_a_directory_to_itself_asks_nobody() {
    for rank in 0..4 {
        let mut mesh = Mesh::new(4, 3);
        let dir = mesh.call(rank, mkdir(ROOT, "d")).unwrap();
        mesh.call(rank, create(dir, "first")).unwrap();
        let sent = mesh.sent.get();
        for i in 0..20 {
            let name = format!("f{i}");
            mesh.call(rank, create(dir, &name)).unwrap();
            let found = mesh.call(rank, find(dir, &name)).unwrap();
            assert_eq!(found.unwrap().kind, FileType::File);
            let none = mesh.call(rank, find(dir, "none")).unwrap();
            assert_eq!(none, None);
            assert!(mesh.known(rank).all_here(dir).is_some());
            mesh.call(rank, rename(dir, &name, "g")).unwrap();
            let below = mesh.call(rank, mkdir(dir, &name)).unwrap();
            mesh.call(rank, create(below, "deep")).unwrap();
            mesh.call(rank, unlink(dir, "g")).unwrap();
        }
        assert_eq!(mesh.sent.get(), sent, "server {rank}");
        for other in 0..4 {
            assert_eq!(names(&mut mesh, other, dir).len(), 21);
            assert!(mesh.call(other, find(dir, "f3")).unwrap().is_some());
            assert!(mesh.call(other, find(dir, "none")).unwrap().is_none());
        }
        assert_eq!(asked(&mesh, "split_dir"), 0, "who only looks takes nothing");
    }
}

#[test]
fn a_directory_is_spread_for_the_second_maker_and_no_entry_moves() {
    for seed in 0..20 {
        let mut mesh = Mesh::new(4, seed);
        let dir = mesh.call(0, mkdir(ROOT, "d")).unwrap();
        for i in 0..12 {
            mesh.call(1, create(dir, &format!("first{i}"))).unwrap();
        }
        assert_eq!(mesh.call(1, find(dir, "none")), Ok(None));
        let known = mesh.call(2, create(dir, "first3"));
        assert_eq!(known.unwrap_err(), FsError::Exists);
        assert_eq!(asked(&mesh, "split_dir"), 0);
        assert!(mesh.known(1).all_here(dir).is_some());
        for i in 0..40 {
            mesh.call(2, create(dir, &format!("second{i}"))).unwrap();
        }
        assert_eq!(asked(&mesh, "split_dir"), 1);
        let all_here = mesh.known(1).all_here(dir);
        assert!(all_here.is_none(), "clients of the first were told");
        let makers = (0..4).filter(|rank| mesh.asked(Rank(*rank), "make") > 0);
        assert_eq!(makers.count(), 4, "new names are everywhere");
        for rank in 0..4 {
            assert_eq!(names(&mut mesh, rank, dir).len(), 52);
            for name in ["first0", "first11", "second0", "second39"] {
                let found = mesh.call(rank, find(dir, name)).unwrap();
                assert!(found.is_some(), "{name} at {rank}");
                let again = mesh.call(rank, create(dir, name));
                assert_eq!(again.unwrap_err(), FsError::Exists, "{name} at {rank}");
            }
        }
        // A name at the first server is removed; created again, it goes to its home by hash.
        for i in 0..12 {
            let name = format!("first{i}");
            mesh.call(i % 4, unlink(dir, &name)).unwrap();
            assert!(mesh.call((i + 1) % 4, find(dir, &name)).unwrap().is_none());
            mesh.call((i + 2) % 4, create(dir, &name)).unwrap();
            mesh.call((i + 3) % 4, rename(dir, &name, "second0"))
                .unwrap();
        }
        assert_eq!(names(&mut mesh, 3, dir).len(), 40);
    }
}

#[test]
fn makers_who_come_at_once_double_no_name() {
    let mut splits = 0;
    for seed in 0..200 {
        let mut mesh = Mesh::new(4, seed);
        let dir = mesh.call(0, mkdir(ROOT, "d")).unwrap();
        let dice = Dice::new(seed);
        let tries = (0..32).map(|i| {
            let name = format!("f{}", i / 4);
            let made = mesh.ask(i % 4, create(dir, &name));
            // The directory's home needs no message to place its own entries: if it always began first, it would make
            // all of them before another server asks.
            let turns = dice.roll(16);
            async move {
                pause(turns).await;
                (name, made.await)
            }
        });
        let tries = join_all(tries.collect::<Vec<_>>());
        let made: Vec<String> = mesh
            .run(tries)
            .into_iter()
            .filter_map(|(name, made)| match made {
                Ok(_) => Some(name),
                Err(error) => {
                    assert_eq!(error, FsError::Exists, "seed {seed}");
                    None
                }
            })
            .collect();
        let once: BTreeSet<String> = made.iter().cloned().collect();
        assert_eq!((made.len(), once.len()), (8, 8), "seed {seed}");
        assert_eq!(names(&mut mesh, 2, dir), once, "seed {seed}");
        splits += asked(&mesh, "split_dir");
    }
    assert!(splits > 0);
}

/// A name in the root whose home is this server.
fn name_at(rank: u16) -> String {
    let mut names = (0..).map(|n| format!("name-{n}"));
    let is_there = |name: &String| home_of_entry(ROOT, name.as_bytes(), 4) == Rank(rank);
    names.find(is_there).unwrap()
}

/// The result of a rename is unknown, and its name stays locked: meanwhile the directory cannot be
/// split, and no call waits for that for ever.
#[test]
fn a_locked_name_of_which_nobody_knows_keeps_its_directory_together() {
    let mut mesh = Mesh::new(4, 1);
    let dir = mesh.call(1, mkdir(ROOT, &name_at(0))).unwrap();
    mesh.call(1, create(dir, "first")).unwrap();
    let below = name_at(2);
    mesh.call(1, mkdir(ROOT, &below)).unwrap();
    let into = proto::Rename {
        parent: ROOT,
        new_parent: dir,
        ..rename(dir, &below, "x")
    };
    mesh.call(1, into).unwrap();
    mesh.deafen(&[Rank(2)]);
    let moved = mesh.call(1, rename(dir, "x", "y"));
    assert_eq!(moved, Err(FsError::Unreachable));
    mesh.pass(40_000_000_000);
    let found = mesh.call(1, create(dir, "x"));
    assert_eq!(found.unwrap_err(), FsError::Unreachable, "it is locked");
    let made = mesh.call(3, create(dir, "new"));
    assert_eq!(made.unwrap_err(), FsError::Unreachable);
    mesh.call(1, create(dir, "second")).unwrap();
    mesh.deafen(&[]);
    mesh.go_on();
    mesh.call(3, create(dir, "new")).unwrap();
    let all = ["first", "new", "second", "x"].map(str::to_owned);
    assert_eq!(names(&mut mesh, 0, dir), BTreeSet::from(all));
}

#[test]
fn a_directory_of_many_names_stays_where_it_is() {
    const MANY: usize = 4097;
    let mut mesh = Mesh::with_files(2, 1, 9000);
    let dir = mesh.call(0, mkdir(ROOT, "d")).unwrap();
    for i in 0..MANY {
        mesh.call(1, create(dir, &format!("f{i}"))).unwrap();
    }
    let before = mesh.asked(Rank(1), "make");
    for i in 0..8 {
        mesh.call(0, create(dir, &format!("g{i}"))).unwrap();
    }
    assert_eq!(mesh.asked(Rank(1), "make") - before, 8);
    assert_eq!(names(&mut mesh, 0, dir).len(), MANY + 8);
    let none = mesh.call(1, find(dir, "none")).unwrap();
    assert_eq!(none, None);
    assert!(mesh.known(1).all_here(dir).is_some(), "it still has all");
}

#[test]
fn whoever_removes_what_its_node_made_is_told_in_the_reply() {
    let mut mesh = Mesh::with_files(4, 5, 1024);
    let dir = mesh.call(0, mkdir(ROOT, "d")).unwrap();
    mesh.call(1, create(dir, "first")).unwrap();
    // More than the tables can hold at a time.
    for round in 0..10 {
        for i in 0..200 {
            let name = format!("f{round}.{i}");
            mesh.call(2, create(dir, &name)).unwrap();
            mesh.call(2, unlink(dir, &name)).unwrap();
        }
        assert_eq!(names(&mut mesh, 3, dir).len(), 1);
    }
    mesh.pass(10_000_000);
    assert_eq!(asked(&mesh, "mark"), 0);
    let told = asked(&mesh, "release");
    assert!((1..=200).contains(&told), "{told} messages for 2000 files");
    mesh.call(2, create(dir, "another")).unwrap();
    mesh.call(3, unlink(dir, "another")).unwrap();
    assert_eq!(asked(&mesh, "mark"), 1, "others' nodes are told");
}
