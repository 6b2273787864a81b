//! The names and inodes alone.

use weir_core::extent::MAX_OFFSET;
use weir_core::names::{Attr, Lamination, Owner, SetAttr};
use weir_core::proto::{Child, FsError};
use weir_core::types::{Ino, Rank};

use crate::cluster::clock::ServerClock;
use crate::cluster::fake::new_tables;
use crate::cluster::node_names::NodeNames;

/// A server at time 100, and a file of it, which was made at time 50.
fn with_file() -> (NodeNames<'static>, Ino) {
    let (_, shard) = new_tables(Rank(1));
    let mut names = NodeNames::new(shard, ServerClock::at(100));
    let (root, owner) = (names.root(), Owner { uid: 0, gid: 0 });
    let ino = names.create(root, b"f", 0o644, owner, 50).unwrap();
    (names, ino)
}

fn set(names: &mut NodeNames<'_>, ino: Ino, set: &SetAttr) {
    names.setattr(ino, set).unwrap();
}

fn attr(names: &NodeNames<'_>, ino: Ino) -> Attr {
    names.attr_of(ino).unwrap()
}

#[test]
fn a_name_in_another_server_s_directory_is_not_here_and_in_an_own_one_that_is_gone_stale() {
    let (names, ino) = with_file();
    let root = names.root();
    let found = names.find_child(root, b"f").unwrap();
    assert_eq!(found.map(|child: Child| child.ino), Some(ino));
    assert_eq!(names.find_child(root, b"g"), Ok(None));
    let elsewhere = Ino::new(Rank(2), 0, 9);
    assert_eq!(names.find_child(elsewhere, b"f"), Ok(None));
    let gone = Ino::new(Rank(1), 0, 9);
    assert_eq!(names.find_child(gone, b"f"), Err(FsError::Stale));
    assert_eq!(names.find_child(ino, b"f"), Err(FsError::NotADirectory));
    assert!(names.names_of(elsewhere).is_empty());
    assert_eq!(names.parent_and_name(ino), Some((root, b"f".to_vec())));
    assert_eq!(names.parent_and_name(root).map(|(dir, _)| dir), None);
}

#[test]
fn a_file_is_writable_until_it_is_laminated() {
    let (mut names, ino) = with_file();
    let laminate = |lamination| SetAttr {
        lamination: Some(lamination),
        ..SetAttr::default()
    };
    for lamination in [Lamination::Due, Lamination::Sealing, Lamination::No] {
        set(&mut names, ino, &laminate(lamination));
        assert!(names.writable(ino).is_ok(), "{lamination:?}");
    }
    set(&mut names, ino, &laminate(Lamination::Done));
    assert_eq!(names.writable(ino).map(drop), Err(FsError::ReadOnly));
    assert_eq!(names.check_size(ino, 0), Err(FsError::ReadOnly));
    assert!(names.regular(ino).is_ok(), "it can be read");
    assert_eq!(
        names.regular(names.root()).map(drop),
        Err(FsError::IsADirectory)
    );
}

#[test]
fn an_evicted_file_can_only_be_cut_to_nothing() {
    let (mut names, ino) = with_file();
    assert_eq!(names.check_size(ino, MAX_OFFSET), Ok(()));
    assert_eq!(names.check_size(ino, MAX_OFFSET + 1), Err(FsError::TooBig));
    names.set_evicted(ino, true).unwrap();
    assert_eq!(names.check_size(ino, 0), Ok(()));
    assert_eq!(names.check_size(ino, 1), Err(FsError::Evicted));
}

#[test]
fn the_time_of_a_write_counts_only_if_it_is_the_newest() {
    let (mut names, ino) = with_file();
    names.fold_mtime(ino, 40);
    assert_eq!(
        (attr(&names, ino).mtime_ns, attr(&names, ino).ctime_ns),
        (50, 50)
    );
    names.touch(ino, false).unwrap();
    assert_eq!(
        (attr(&names, ino).mtime_ns, attr(&names, ino).ctime_ns),
        (50, 100)
    );
    names.fold_mtime(ino, 70);
    assert_eq!(
        (attr(&names, ino).mtime_ns, attr(&names, ino).ctime_ns),
        (70, 100)
    );
    names.touch(ino, true).unwrap();
    assert_eq!(attr(&names, ino).mtime_ns, 100);
}

#[test]
fn the_size_of_an_inode_does_not_change_while_writers_have_it() {
    let (mut names, ino) = with_file();
    let before = attr(&names, ino);
    names.set_own_size(&before, 10, true);
    assert_eq!(attr(&names, ino).size, 0);
    names.set_own_size(&before, 10, false);
    assert_eq!(attr(&names, ino).size, 10);
    assert_eq!(names.own_sizes(), [(ino, 10)]);
}
