//! Visibility and lamination over several servers, and what they cost in messages.

use crate::mesh::{create, Mesh};
use weir_core::extent::{Run, Source};
use weir_core::names::{Attr, LaminateOn, Lamination, Policy, Visibility};
use weir_core::proto::peer;
use weir_core::proto::{self, Cause, FsError};
use weir_core::types::{Ino, Rank};

const LENGTH: u64 = 4096;

fn file(mesh: &mut Mesh, visibility: Visibility) -> Ino {
    let made = mesh.file_here("file");
    set(mesh, made, |set| {
        set.policy = Some(Policy {
            visibility,
            ..Policy::default()
        });
    })
    .unwrap();
    let home = mesh.call(0, proto::GetAttr { ino: made }).unwrap().home;
    // The maker is done with it.
    mesh.ask_peer(Rank(0), home.rank(), peer::Release { inos: vec![home] })
        .unwrap();
    home
}

fn set(mesh: &mut Mesh, ino: Ino, change: impl Fn(&mut proto::SetAttr)) -> Result<(), FsError> {
    let mut op = proto::SetAttr {
        ino,
        mode: None,
        uid: None,
        gid: None,
        atime_ns: None,
        mtime_ns: None,
        policy: None,
    };
    change(&mut op);
    mesh.call(0, op)
}

/// Opens the file at a node: its number there.
fn open(mesh: &mut Mesh, rank: usize, ino: Ino, write: bool) -> Attr {
    mesh.call(rank, proto::Hold { ino, write }).unwrap()
}

/// `[0, LENGTH)` of the log of `rank`, published.
fn publish(mesh: &mut Mesh, rank: Rank, ino: Ino) {
    let run = Run {
        offset: 0,
        length: LENGTH,
        stride: 0,
        count: 1,
        stamp: 1,
        source: Source::Log {
            rank: rank.0,
            slab: 0,
            pos: 0,
            pos_stride: 0,
        },
    };
    for home in 0..4 {
        let put = peer::Put {
            ino,
            runs: vec![run],
            publish: 1,
            part: 0,
            cut: u64::MAX,
            ended_below: 0,
        };
        mesh.ask_peer(rank, Rank(home), put).unwrap();
    }
    let published = peer::Published {
        ino,
        size: LENGTH,
        mtime_ns: 7,
        stored: 4096,
        publishes: Vec::new(),
    };
    mesh.ask_peer(rank, ino.rank(), published).unwrap();
}

fn others(ino: Ino) -> Vec<Rank> {
    (0..4)
        .map(Rank)
        .filter(|rank| *rank != ino.rank())
        .collect()
}

/// What is known of a laminated file is asked for once: neither a look-up nor a lease
/// follows, whoever had it open; and nobody opens it for writing again.
#[test]
fn a_laminated_file_is_looked_up_without_a_message() {
    let mut mesh = Mesh::new(4, 3);
    let ino = file(&mut mesh, Visibility::ReadAfterSync);
    let readers = others(ino);
    for reader in &readers[..2] {
        open(&mut mesh, usize::from(reader.0), ino, false);
    }
    publish(&mut mesh, readers[0], ino);
    set(&mut mesh, ino, |set| set.mode = Some(0o444)).unwrap();
    mesh.settle();
    // The third did not have it open: it was told, too.
    for reader in readers {
        let at = usize::from(reader.0);
        let attr = open(&mut mesh, at, ino, false);
        assert_eq!((attr.lamination, attr.size), (Lamination::Done, LENGTH));
        let locate = proto::Locate {
            ino: attr.ino,
            offset: 0,
            length: LENGTH,
        };
        mesh.call(at, locate.clone()).unwrap();
        let sent = mesh.sent.get();
        let found = mesh.call(at, locate).unwrap();
        assert_eq!((found.runs.len(), found.known_to), (1, u64::MAX));
        assert_eq!(mesh.sent.get(), sent, "server {at} asked again");
    }
    let runs: u64 = (0..4).map(|rank| mesh.asked(Rank(rank), "runs")).sum();
    assert!(runs <= 4, "the home asked each server once: {runs}");
    let cut = proto::Truncate { ino, size: 0 };
    assert_eq!(mesh.call(1, cut), Err(FsError::ReadOnly));
    let again = set(&mut mesh, ino, |set| set.mode = Some(0o644));
    assert_eq!(again, Err(FsError::ReadOnly));
}

/// Which nodes ask before they read a file whose writes are seen at once: all but the writer's,
/// while there is one.
#[test]
fn readers_ask_only_while_others_write() {
    let mut mesh = Mesh::new(4, 4);
    let ino = file(&mut mesh, Visibility::ReadAfterWrite);
    let [a, b, _] = others(ino)[..] else {
        unreachable!("three others")
    };
    let (at_a, at_b) = (usize::from(a.0), usize::from(b.0));
    let read = |mesh: &mut Mesh, at: usize, ino: Ino| {
        let before = mesh.asked(ino.rank(), "pull");
        let local = open(mesh, at, ino, false).ino;
        mesh.call(at, proto::Lease { ino: local }).unwrap();
        mesh.call(at, proto::Lease { ino: local }).unwrap();
        mesh.asked(ino.rank(), "pull") - before
    };
    assert_eq!(read(&mut mesh, at_a, ino), 0, "nobody writes");
    open(&mut mesh, at_b, ino, true);
    assert_eq!(read(&mut mesh, at_a, ino), 2, "each time");
    assert_eq!(read(&mut mesh, at_b, ino), 0, "the writer's own node");
    let flushed = mesh.asked(b, "flush");
    let home = usize::from(ino.rank().0);
    mesh.call(home, proto::Lease { ino }).unwrap();
    assert_eq!(mesh.asked(b, "flush"), flushed + 1, "the home asks, too");
    mesh.ask_peer(b, ino.rank(), peer::Release { inos: vec![ino] })
        .unwrap();
    mesh.settle();
    assert_eq!(read(&mut mesh, at_a, ino), 0, "nobody writes any more");
}

/// A writer elsewhere keeps a lamination due, and its close brings it.
#[test]
fn a_writer_elsewhere_is_waited_for() {
    let mut mesh = Mesh::new(4, 5);
    let ino = file(&mut mesh, Visibility::ReadAfterLaminate);
    let writer = others(ino)[0];
    let local = open(&mut mesh, usize::from(writer.0), ino, true).ino;
    let opened = mesh.open_description(usize::from(writer.0), local, true);
    let cause = Cause::Request;
    let laminate = proto::Laminate { ino, cause };
    assert_eq!(mesh.call(0, laminate.clone()), Ok(false));
    let attr = open(&mut mesh, usize::from(writer.0), ino, true);
    assert_eq!(attr.lamination, Lamination::Due);
    opened.close();
    mesh.server(usize::from(writer.0)).catch_up();
    mesh.settle();
    let attr = open(&mut mesh, usize::from(writer.0), ino, false);
    assert_eq!(attr.lamination, Lamination::Done);
    assert_eq!(mesh.call(0, laminate), Ok(true));
}

/// The names of the policies travel with what is made in a directory.
#[test]
fn files_take_over_the_policy_of_their_directory_at_any_server() {
    let mut mesh = Mesh::new(4, 6);
    let dir = proto::Mkdir {
        parent: weir_server::cluster::ROOT,
        name: b"dir".to_vec(),
        mode: 0o755,
        uid: 0,
        gid: 0,
    };
    let dir = mesh.call(0, dir).unwrap();
    let make = |name: String| create(dir, &name);
    // Some servers have a stand-in of the directory already.
    for n in 0..4 {
        mesh.call(0, make(format!("before{n}"))).unwrap();
    }
    let policy = Policy {
        visibility: Visibility::ReadAfterLaminate,
        laminate_on: LaminateOn::Close,
    };
    set(&mut mesh, dir, |set| set.policy = Some(policy)).unwrap();
    for n in 0..16 {
        let ino = mesh.call(n % 4, make(format!("after{n}"))).unwrap().ino;
        let attr = mesh.call(n % 4, proto::GetAttr { ino }).unwrap();
        assert_eq!(attr.policy, policy);
    }
}

/// What a node made and does not use any more its home keeps for it no longer; it is told of many
/// files at once.
#[test]
fn a_home_is_told_of_many_files_at_once() {
    let mut mesh = Mesh::new(2, 7);
    let made: Vec<Ino> = (0..300).map(|n| mesh.file(&format!("f{n}"))).collect();
    let foreign = made.iter().filter(|ino| ino.rank() == Rank(1));
    let foreign = u64::try_from(foreign.count()).unwrap();
    assert!(foreign > 100);
    let maker = mesh.server(0);
    let let_go = |mesh: &mut Mesh, now_ns: i64| {
        let before = mesh.asked(Rank(1), "release");
        maker.tick(now_ns);
        maker.catch_up();
        mesh.settle();
        mesh.asked(Rank(1), "release") - before
    };
    assert_eq!(
        let_go(&mut mesh, 1_000_000_000),
        0,
        "they may be used again"
    );
    assert_eq!(let_go(&mut mesh, 60_000_000_000), foreign.div_ceil(64));
    assert_eq!(let_go(&mut mesh, 120_000_000_000), 0, "there is none left");
}
