//! Telling many servers the same: each is told, no server sends many messages, and a server that does
//! not answer keeps no other from being told.

use crate::mesh::Mesh;
use weir_core::journal::Item;
use weir_core::proto::peer;
use weir_core::proto::{self, FsError};
use weir_core::types::{Ino, Rank};
use weir_server::cluster::enclose;

const SERVERS: u16 = 40;

/// A file that all nodes have open and lease; its global inode number.
fn shared(mesh: &mut Mesh) -> Ino {
    let ino = mesh.file("shared");
    for rank in 0..usize::from(SERVERS) {
        mesh.call(rank, proto::Hold { ino, write: false }).unwrap();
        mesh.call(rank, proto::Lease { ino }).unwrap();
    }
    ino
}

/// The nodes that hold a lease of the file.
fn believers(mesh: &mut Mesh, ino: Ino) -> Vec<Rank> {
    let ranks = (0..SERVERS).map(Rank).filter(|rank| *rank != ino.rank());
    let believes = |mesh: &mut Mesh, rank: Rank| {
        let before = mesh.asked(ino.rank(), "lease");
        let lease = proto::Lease { ino };
        mesh.call(usize::from(rank.0), lease).unwrap();
        mesh.asked(ino.rank(), "lease") == before
    };
    ranks.filter(|rank| believes(mesh, *rank)).collect()
}

fn told(mesh: &Mesh, what: &str) -> u64 {
    let all = (0..SERVERS).map(|rank| mesh.asked(Rank(rank), what));
    all.sum::<u64>()
}

#[test]
fn all_are_told_by_few_messages_each() {
    let mut mesh = Mesh::new(SERVERS, 7);
    let ino = shared(&mut mesh);
    let home = usize::from(ino.rank().0);
    assert_eq!(believers(&mut mesh, ino).len(), usize::from(SERVERS) - 1);
    let by_home = mesh.sent_by(home);
    let (recalls, relays) = (told(&mesh, "recall"), told(&mesh, "relay"));
    let size = 0;
    mesh.call(home, proto::Truncate { ino, size }).unwrap();
    // A cut and a recall to eight servers each, and nothing more.
    assert_eq!(mesh.sent_by(home) - by_home, 16);
    let relays = told(&mesh, "relay") - relays;
    assert_eq!(relays, 16);
    let recalls = told(&mesh, "recall") - recalls;
    assert_eq!(recalls, u64::from(SERVERS) - 1 - 8);
    assert_eq!(believers(&mut mesh, ino), []);
}

#[test]
fn who_does_not_answer_keeps_nobody_from_hearing() {
    for (seed, fan_out) in [(1, 1), (2, 2), (3, 3), (4, 8)] {
        let mut mesh = Mesh::new(SERVERS, seed);
        for rank in 0..SERVERS {
            mesh.server(usize::from(rank)).set_fan_out(fan_out);
        }
        let ino = shared(&mut mesh);
        let home = usize::from(ino.rank().0);
        let deaf: Vec<Rank> = (0..SERVERS)
            .map(Rank)
            .filter(|rank| rank.0 % 5 == 1 && *rank != ino.rank())
            .collect();
        mesh.deafen(&deaf);
        let size = 0;
        mesh.call(home, proto::Truncate { ino, size }).unwrap();
        mesh.deafen(&[]);
        // A server that was not told had dropped its lease by itself before the others went on.
        assert_eq!(believers(&mut mesh, ino), [], "fan-out {fan_out}");
    }
}

/// A server that its parent does not reach may hold a lease from the root, which then tries it directly.
#[test]
fn who_is_reached_by_the_root_alone_is_told() {
    let mut mesh = Mesh::new(SERVERS, 5);
    let ino = shared(&mut mesh);
    let home = usize::from(ino.rank().0);
    let far: Vec<Rank> = (0..SERVERS)
        .map(Rank)
        .filter(|rank| rank.0 % 3 == 2 && *rank != ino.rank())
        .collect();
    mesh.deafen_but_to(&far, Some(ino.rank()));
    let size = 0;
    mesh.call(home, proto::Truncate { ino, size }).unwrap();
    mesh.deafen(&[]);
    assert_eq!(believers(&mut mesh, ino), []);
}

/// A truncation that arrives again, by another way, cuts nothing written after it.
#[test]
fn a_truncation_acts_once() {
    let mut mesh = Mesh::new(3, 1);
    let ino = mesh.file("f");
    let other = (usize::from(ino.rank().0) + 1) % 3;
    mesh.call(other, proto::Hold { ino, write: true }).unwrap();
    let cut = |size, number| peer::request(peer::Cut { ino, size, number });
    let size_there = |mesh: &Mesh| {
        let mut size = None;
        mesh.nodes[other]
            .borrow()
            .for_each_item(&mut |item| match item {
                Item::Inode(image) if image.home == ino => size = Some(image.size),
                _ => {}
            });
        size
    };
    let tell = |mesh: &mut Mesh, request: Vec<u8>| {
        let server = mesh.server(other);
        let request = enclose(0, 30_000, &request);
        let answer = mesh
            .pool
            .run_until(async move { server.handle(ino.rank(), &request).await });
        peer::reply::<peer::Cut>(&answer.body)
    };
    tell(&mut mesh, cut(100, 7)).unwrap();
    assert_eq!(size_there(&mesh), Some(100));
    tell(&mut mesh, cut(500, 8)).unwrap();
    tell(&mut mesh, cut(100, 7)).unwrap();
    assert_eq!(size_there(&mesh), Some(500));
    let nowhere = peer::Relay {
        news: peer::News::Recall(peer::Recall { ino }),
        below: vec![Rank(3)],
    };
    let request = peer::request(nowhere);
    assert_eq!(tell(&mut mesh, request), Err(FsError::Malformed));
}
