//! Lookups of files of other nodes: once by a request, then in shared memory, until the file changes.

use crate::mesh::{create, Mesh};
use weir_core::names::{Attr, Policy, Visibility};
use weir_core::node::claim::Claim;
use weir_core::placement::home_of_entry;
use weir_core::proto::peer;
use weir_core::proto::{self, FsError};
use weir_core::types::{Ino, Rank};
use weir_server::cluster::ROOT;

const SERVERS: u16 = 3;
/// A minute, and a bit.
const LATER_NS: i64 = 70_000_000_000;

const HOME: Rank = Rank(0);
const WRITER: usize = 2;
/// The server of the programs that look.
const OTHER: usize = 1;

/// A raw file, and its name in the root.
fn raw_file() -> (Mesh, Ino, Vec<u8>) {
    let mut mesh = Mesh::new(SERVERS, 3);
    let mut names = (0..).map(|i| format!("file{i}"));
    let is_there = |name: &String| home_of_entry(ROOT, name.as_bytes(), SERVERS) == HOME;
    let name = names.find(is_there).unwrap();
    let ino = mesh.file(&name);
    let mut set = proto::SetAttr::nothing(ino);
    set.policy = Some(Policy {
        visibility: Visibility::ReadAfterWrite,
        ..Policy::default()
    });
    mesh.call(0, set).unwrap();
    (mesh, ino, name.into_bytes())
}

/// Looks like a client; also returns true if it had to send a request.
fn look(mesh: &mut Mesh, rank: usize, ino: Ino) -> (Result<Attr, FsError>, bool) {
    if let Some(local) = mesh.known(rank).stand_in(ino) {
        let attr = mesh.attr(rank, local);
        if let Some(attr) = attr.filter(|attr| attr.is_leased_copy_of(ino)) {
            return (Ok(attr), false);
        }
    }
    (mesh.call(rank, proto::GetAttr { ino }), true)
}

#[test]
fn a_file_is_looked_at_again_without_a_request_until_it_changes() {
    let (mut mesh, ino, name) = raw_file();
    let (first, asked) = look(&mut mesh, OTHER, ino);
    assert_eq!((first.unwrap().home, asked), (ino, true));
    assert!(!look(&mut mesh, OTHER, ino).1);
    // A client that finds its slot taken sends a request to its own server, which sends none.
    let sent = mesh.sent.get();
    mesh.call(OTHER, proto::GetAttr { ino }).unwrap();
    mesh.call(OTHER, proto::Hold { ino, write: false }).unwrap();
    assert_eq!(mesh.sent.get(), sent);

    for (who, mode) in [(0, 0o600), (WRITER, 0o640), (OTHER, 0o604)] {
        let mut set = proto::SetAttr::nothing(ino);
        set.mode = Some(mode);
        mesh.call(who, set).unwrap();
        for asks in [true, false] {
            let (attr, asked) = look(&mut mesh, OTHER, ino);
            assert_eq!((attr.unwrap().mode & 0o777, asked), (mode, asks));
        }
    }

    let (parent, new_name) = (ROOT, b"link".to_vec());
    let link = proto::Link {
        ino,
        parent,
        name: new_name.clone(),
    };
    mesh.call(WRITER, link).unwrap();
    assert_eq!(look(&mut mesh, OTHER, ino).0.unwrap().nlink, 2);
    for name in [name, new_name] {
        mesh.call(0, proto::Unlink { parent, name }).unwrap();
    }
    let gone = look(&mut mesh, OTHER, ino).0;
    assert!(gone.as_ref().is_err() || gone.is_ok_and(|attr| attr.nlink == 0));
    assert_eq!(mesh.known(OTHER).stand_in(ino), None, "nobody has it open");
}

#[test]
fn a_file_that_another_node_writes_is_looked_at_by_a_request() {
    let (mut mesh, ino, _) = raw_file();
    mesh.call(WRITER, proto::Hold { ino, write: true }).unwrap();
    let grant = peer::Grant {
        ino,
        needed: Claim::range(0, 10),
        wished: Claim::range(0, 10),
        anew: false,
    };
    mesh.ask_peer(Rank(2), HOME, grant).unwrap();
    for _ in 0..2 {
        assert!(look(&mut mesh, OTHER, ino).1);
    }
    assert_eq!(mesh.asked(Rank(2), "revoke"), 0, "it goes on writing");
    let left = peer::Release { inos: vec![ino] };
    mesh.ask_peer(Rank(2), HOME, left).unwrap();
    assert!(look(&mut mesh, OTHER, ino).1 && !look(&mut mesh, OTHER, ino).1);
}

/// A program that opens a file without a request at the moment when the node releases it either finds
/// that the lease is gone, or is noticed.
#[test]
fn who_opens_a_file_without_a_request_keeps_it() {
    let (mut mesh, ino, _) = raw_file();
    look(&mut mesh, OTHER, ino).0.unwrap();
    let local = mesh.known(OTHER).stand_in(ino).unwrap();
    let description = mesh.open_description(OTHER, local, false);
    let later = |mesh: &mut Mesh, now_ns: i64| {
        let server = mesh.server(OTHER);
        server.tick(now_ns);
        server.catch_up();
        mesh.settle();
    };
    later(&mut mesh, LATER_NS);
    assert!(mesh.attr(OTHER, local).is_some(), "it is open");
    assert_eq!(mesh.asked(HOME, "release"), 0);
    description.close();
    later(&mut mesh, 2 * LATER_NS);
    assert!(mesh.attr(OTHER, local).is_none());
    assert_eq!(mesh.known(OTHER).stand_in(ino), None);
    assert_eq!(mesh.asked(HOME, "release"), 1);
}

#[test]
fn names_of_files_are_known_until_they_change() {
    let mut mesh = Mesh::new(SERVERS, 4);
    for i in 0..40 {
        mesh.call(0, create(ROOT, &format!("f{i}"))).unwrap();
    }
    let find = |name: &str| proto::Find {
        dir: ROOT,
        name: name.into(),
    };
    let mut known = 0;
    for i in 0..40 {
        let name = format!("f{i}");
        let found = mesh.call(1, find(&name)).unwrap().unwrap();
        if let Some((ino, _)) = mesh.known(1).entry(ROOT, name.as_bytes()) {
            assert_eq!(ino, found.ino);
            known += 1;
        }
        let unlink = proto::Unlink {
            parent: ROOT,
            name: name.clone().into(),
        };
        mesh.call(i % 3, unlink).unwrap();
        assert_eq!(mesh.known(1).entry(ROOT, name.as_bytes()), None);
        assert_eq!(mesh.call(1, find(&name)), Ok(None));
    }
    assert!(known > 15, "{known}");
}
