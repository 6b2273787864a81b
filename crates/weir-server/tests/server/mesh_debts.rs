//! Debts to a server that cannot be reached: kept once for each subject, however often the call was
//! tried, bounded, and paid when the server is back.

use crate::mesh::{create, Mesh};
use weir_core::placement::home_of_entry;
use weir_core::proto::{self, FsError};
use weir_core::types::{Ino, Rank};
use weir_server::cluster::ROOT;

const SERVERS: u16 = 3;
const GONE: Rank = Rank(1);

fn name_at(rank: Rank, kind: &str, n: usize) -> String {
    let mut names = (0..).map(|salt| format!("{kind}-{n}-{salt}"));
    names
        .find(|name| home_of_entry(ROOT, name.as_bytes(), SERVERS) == rank)
        .unwrap()
}

fn rename(from: &str, to: &str) -> proto::Rename {
    proto::Rename {
        parent: ROOT,
        name: from.into(),
        new_parent: ROOT,
        new_name: to.into(),
        flags: 0,
    }
}

fn unlink(name: &str) -> proto::Unlink {
    let (parent, name) = (ROOT, name.into());
    proto::Unlink { parent, name }
}

fn counter(mesh: &Mesh, name: &str) -> u64 {
    let each = (0..SERVERS).map(|rank| mesh.server(usize::from(rank)).moved());
    let named = each.flatten().filter(|(counter, _)| counter == name);
    named.map(|(_, count)| count).sum()
}

/// A file of the server that goes away, with a second name at another server.
fn two_names(mesh: &mut Mesh, n: usize) -> (Ino, String) {
    let first = name_at(GONE, "file", n);
    let second = name_at(Rank(0), "link", n);
    let ino = mesh.call(0, create(ROOT, &first)).unwrap().ino;
    let ino = mesh.call(0, proto::GetAttr { ino }).unwrap().home;
    assert_eq!(ino.rank(), GONE);
    let link = proto::Link {
        ino,
        parent: ROOT,
        name: second.clone().into(),
    };
    mesh.call(0, link).unwrap();
    (ino, second)
}

#[test]
fn debts_are_kept_once_and_paid_when_the_server_is_back() {
    let mut mesh = Mesh::new(SERVERS, 3);
    let files: Vec<_> = (0..20).map(|n| two_names(&mut mesh, n)).collect();
    let elsewhere = name_at(Rank(2), "other", 0);
    mesh.call(2, create(ROOT, &elsewhere)).unwrap();
    mesh.deafen(&[GONE]);
    // The first call finds out that the server is gone; its effect there is unknown.
    let there = name_at(GONE, "new", 0);
    assert!(mesh.call(0, create(ROOT, &there)).is_err());
    for (_, second) in &files {
        assert_eq!(mesh.call(0, unlink(second)), Ok(()), "its home is there");
    }
    assert_eq!(counter(&mesh, "owed"), 20);
    // A call that cannot be done fails, and creates no debt however often it is tried.
    for n in 0..200 {
        let to = name_at(GONE, "new", n);
        let failed = mesh.call(0, rename(&elsewhere, &to));
        assert_eq!(failed, Err(FsError::Unreachable));
        let failed = mesh.call(0, unlink(&to));
        assert_eq!(failed, Err(FsError::Unreachable));
    }
    mesh.go_on();
    assert_eq!(counter(&mesh, "owed"), 20);
    mesh.deafen(&[]);
    mesh.go_on();
    assert_eq!(counter(&mesh, "owed"), 0);
    assert_eq!(counter(&mesh, "owed_dropped"), 0);
    for (ino, _) in files {
        let attr = mesh.call(2, proto::GetAttr { ino }).unwrap();
        assert_eq!(attr.nlink, 1, "one link was taken of each, once");
    }
    // No lock of the failed renames is left.
    let to = name_at(GONE, "new", 0);
    assert_eq!(mesh.call(2, rename(&elsewhere, &to)), Ok(()));
}

/// A file is removed while a server that keeps a part of it is gone.
#[test]
fn what_a_server_keeps_of_a_removed_file_is_erased_when_it_is_back() {
    let mut mesh = Mesh::new(SERVERS, 4);
    let name = name_at(Rank(0), "large", 0);
    let ino = mesh.call(0, create(ROOT, &name)).unwrap().ino;
    let size = 1 << 40;
    mesh.call(0, proto::Truncate { ino, size }).unwrap();
    mesh.deafen(&[GONE]);
    let there = name_at(GONE, "new", 0);
    assert!(mesh.call(0, create(ROOT, &there)).is_err());
    assert_eq!(mesh.call(0, unlink(&name)), Ok(()));
    mesh.go_on();
    assert_eq!(counter(&mesh, "owed"), 1);
    let erased = mesh.asked(GONE, "erase");
    mesh.deafen(&[]);
    mesh.go_on();
    assert_eq!(counter(&mesh, "owed"), 0);
    assert_eq!(mesh.asked(GONE, "erase") - erased, 1);
}
