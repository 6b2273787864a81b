//! Files of several servers: leases, and locks.

use crate::mesh::{create, pause, Mesh};
use crate::mesh_names::mkdir;
use crate::mesh_placements::{rename, unlink};
use futures_util::future::{join, LocalBoxFuture, TryFutureExt};
use weir_core::extent::{Run, Source};
use weir_core::placement::slices::homes_of;
use weir_core::proto::peer::{self, LockOwner, LockWish};
use weir_core::proto::{self, Caller, FsError};
use weir_core::types::{Ino, Rank};
use weir_server::cluster::ROOT;

/// The number of recalls that a server got.
fn recalls(mesh: &Mesh, rank: Rank) -> u64 {
    mesh.asked(rank, "recall")
}

fn put(ino: Ino, publish: u64, runs: Vec<Run>) -> peer::Put {
    peer::Put {
        ino,
        runs,
        publish,
        part: 0,
        cut: u64::MAX,
        ended_below: 0,
    }
}

fn published(ino: Ino, size: u64) -> peer::Published {
    peer::Published {
        ino,
        size,
        mtime_ns: 200,
        stored: 0,
        publishes: Vec::new(),
        ended: false,
    }
}

/// A writer that also reads keeps its lease over its own writes, and so must be told when another node
/// writes. (A defect once omitted that, and the writer read a stale size for ever.)
#[test]
fn each_publish_recalls_all_leases_but_the_writers_own() {
    let mut mesh = Mesh::new(4, 7);
    let ino = mesh.file("file");
    let home = ino.rank();
    let others: Vec<Rank> = (0..4).map(Rank).filter(|rank| *rank != home).collect();
    let (a, b) = (others[0], others[1]);
    for rank in [a, b] {
        let attr = mesh.ask_peer(rank, home, peer::Lease { ino }).unwrap();
        assert_eq!(attr.size, 0);
    }
    mesh.ask_peer(a, home, published(ino, 10)).unwrap();
    assert_eq!((recalls(&mesh, a), recalls(&mesh, b)), (0, 1));
    mesh.ask_peer(b, home, published(ino, 20)).unwrap();
    assert_eq!((recalls(&mesh, a), recalls(&mesh, b)), (1, 1));
    let attr = mesh.ask_peer(a, home, peer::Lease { ino }).unwrap();
    assert_eq!(attr.size, 20);
    // A node is not told again about a lease that it does not hold.
    mesh.ask_peer(home, home, published(ino, 5)).unwrap();
    mesh.ask_peer(home, home, published(ino, 5)).unwrap();
    assert_eq!((recalls(&mesh, a), recalls(&mesh, b)), (2, 1));
    assert_eq!(
        mesh.ask_peer(b, home, peer::GetAttr { ino, keep: false })
            .unwrap()
            .what
            .size,
        20
    );
}

/// A server sends a call again if it does not know that it arrived: after a restart, or if the call was
/// lost.
#[test]
fn what_is_stored_of_a_publish_counts_once() {
    let mut mesh = Mesh::new(3, 9);
    let ino = mesh.file("file");
    let home = ino.rank();
    let other = (0..3).map(Rank).find(|rank| *rank != home).unwrap();
    let mut say = |from, publishes: &[(u64, i64)]| {
        let said = peer::Published {
            publishes: publishes.to_vec(),
            ended: false,
            ..published(ino, 10)
        };
        mesh.ask_peer(from, home, said).unwrap();
        let attr = mesh.ask_peer(other, home, peer::GetAttr { ino, keep: false });
        attr.unwrap().what.allocated
    };
    assert_eq!(say(other, &[(5, 100)]), 100);
    assert_eq!(say(other, &[(5, 100)]), 100);
    assert_eq!(say(other, &[(5, 100), (6, -30)]), 70);
    assert_eq!(say(home, &[(5, 1000)]), 1070, "of another server");
    assert_eq!(say(other, &[(6, -30)]), 1070);
}

#[test]
fn locks_of_nodes_exclude_each_other_and_end_with_their_server() {
    let mut mesh = Mesh::new(3, 8);
    let ino = mesh.file("file");
    let home = ino.rank();
    let others: Vec<Rank> = (0..3).map(Rank).filter(|rank| *rank != home).collect();
    let lock = |kind, start, end| peer::Lock {
        ino,
        wish: LockWish {
            whole: false,
            owner: LockOwner::Client(5),
            kind,
            start,
            end,
        },
        number: 0,
    };
    let (read, write, unlock) = (0, 1, 2);
    mesh.ask_peer(others[0], home, lock(write, 0, 100)).unwrap();
    // The same number at another node is another process.
    let taken = mesh.ask_peer(others[1], home, lock(read, 50, 60));
    assert_eq!(taken, Err(FsError::WouldBlock));
    mesh.ask_peer(others[1], home, lock(read, 100, 200))
        .unwrap();
    mesh.ask_peer(others[0], home, lock(unlock, 50, 60))
        .unwrap();
    mesh.ask_peer(others[1], home, lock(read, 50, 60)).unwrap();
    let bad = mesh.ask_peer(others[1], home, lock(7, 0, 1));
    assert_eq!(bad, Err(FsError::Malformed));
    mesh.server(usize::from(home.0)).peer_gone(others[0]);
    mesh.ask_peer(others[1], home, lock(write, 0, 300)).unwrap();
}

/// A lock that a program was refused, because its home did not answer, does not stay there; the
/// program's earlier locks do.
#[test]
fn a_lock_of_which_nobody_knows_is_taken_back() {
    let mut mesh = Mesh::new(3, 11);
    let ino = mesh.file("file");
    let home = ino.rank();
    let [a, b] = (0..3)
        .map(Rank)
        .filter(|rank| *rank != home)
        .collect::<Vec<_>>()[..]
    else {
        unreachable!("two others")
    };
    let at = usize::from(a.0);
    let id = mesh.client(at);
    let local = mesh.call(at, proto::Hold { ino, write: true }).unwrap().ino;
    let (write, unlock) = (1, 2);
    let record = |kind, start, end| proto::RecordLock {
        ino: local,
        ofd: None,
        kind,
        start,
        end,
        wait: false,
    };
    let ask = |mesh: &mut Mesh, op| {
        let asked = mesh.ask_as(at, Caller::Client(id), op);
        mesh.run(asked)
    };
    let unheard = |mesh: &mut Mesh, op| {
        mesh.mute(&[home]);
        assert_eq!(ask(mesh, op), Err(FsError::Unreachable));
        mesh.mute(&[]);
        mesh.go_on();
    };
    let number = std::cell::Cell::new(0);
    let by_another = |mesh: &mut Mesh, kind, start, end| {
        number.set(number.get() + 1);
        let wish = LockWish {
            whole: false,
            owner: LockOwner::Client(5),
            kind,
            start,
            end,
        };
        let number = if kind == unlock { 0 } else { number.get() };
        mesh.ask_peer(b, home, peer::Lock { ino, wish, number })
    };
    // Granted, but only the home knows.
    unheard(&mut mesh, record(write, 0, 100));
    by_another(&mut mesh, write, 0, 100).unwrap();
    by_another(&mut mesh, unlock, 0, 100).unwrap();
    // Given back.
    ask(&mut mesh, record(write, 0, 100)).unwrap();
    let taken = by_another(&mut mesh, write, 50, 60);
    assert_eq!(taken, Err(FsError::WouldBlock));
    ask(&mut mesh, record(unlock, 0, 100)).unwrap();
    by_another(&mut mesh, write, 0, 100).unwrap();
    by_another(&mut mesh, unlock, 0, 100).unwrap();
    // A lock of bytes of which the program holds some.
    ask(&mut mesh, record(write, 0, 100)).unwrap();
    unheard(&mut mesh, record(write, 50, 150));
    assert_eq!(
        by_another(&mut mesh, write, 0, 50),
        Err(FsError::WouldBlock)
    );
    ask(&mut mesh, record(unlock, 0, 200)).unwrap();
    by_another(&mut mesh, write, 0, 200).unwrap();
}

/// Found by fuzzing: every home counted the slices between the two sizes, and was busy for minutes.
#[test]
fn a_file_of_exabytes_is_cut_at_once() {
    let mut mesh = Mesh::new(3, 9);
    // No program wrote the bytes that are published here.
    mesh.accept_invented_bytes(0..3);
    let ino = mesh.file("file");
    let run = |offset, length| Run {
        offset,
        length,
        stride: 0,
        count: 1,
        stamp: 1,
        source: Source::Log {
            rank: 1,
            slab: 0,
            pos: 0,
            pos_stride: 0,
        },
    };
    let far = 1 << 62;
    for home in (0..3).map(Rank) {
        let runs = vec![run(0, 64), run(far, 64)];
        mesh.ask_peer(Rank(1), home, put(ino, 1, runs)).unwrap();
        let runs = vec![run(0, far)];
        let refused = mesh.ask_peer(Rank(1), home, put(ino, 2, runs));
        assert_eq!(refused, Err(FsError::Malformed), "no slab is so long");
    }
    mesh.ask_peer(Rank(1), ino.rank(), published(ino, far + 64))
        .unwrap();
    let refused = mesh.ask_peer(Rank(1), ino.rank(), published(ino, 1 << 63));
    assert_eq!(refused, Err(FsError::TooBig), "no file is so long");
    let op = proto::Truncate { ino, size: 10 };
    mesh.call(usize::from(ino.rank().0), op).unwrap();
    for home in (0..3).map(Rank) {
        let (from, to) = (0, u64::MAX);
        let runs = mesh
            .ask_peer(Rank(1), home, peer::Runs { ino, from, to })
            .unwrap();
        let left: u64 = runs.iter().map(Run::total_bytes).sum();
        assert_eq!(left, if home == ino.rank() { 10 } else { 0 });
    }
}

/// Found by fuzzing: a home that was enrolled at itself notified itself of every change, for ever.
#[test]
fn a_home_does_not_enrol_at_itself() {
    let mut mesh = Mesh::new(2, 10);
    let dir = weir_server::cluster::ROOT;
    let refused = mesh.ask_peer(Rank(0), Rank(0), peer::Enrol { dir });
    assert_eq!(refused, Err(FsError::Malformed));
    let op = proto::SetAttr {
        mode: Some(0o700),
        ..proto::SetAttr::nothing(dir)
    };
    mesh.call(1, op).unwrap();
    let attr = mesh.call(1, proto::GetAttr { ino: dir }).unwrap();
    assert_eq!(attr.mode & 0o7777, 0o700);
}

/// When one of several servers did not answer, all got the publish again. Runs laid over themselves
/// freed their own bytes. And the bytes that another node had written over them in between came back, in
/// storage that belonged to another file by then. (Simulation: "freed twice".)
#[test]
fn a_publish_that_comes_again_is_not_laid_again() {
    let mut mesh = Mesh::new(3, 10);
    mesh.accept_invented_bytes(0..3);
    let ino = mesh.file("file");
    let home = ino.rank();
    let others: Vec<Rank> = (0..3).map(Rank).filter(|rank| *rank != home).collect();
    let run = |rank: Rank, pos| Run {
        offset: 0,
        length: 64,
        stride: 0,
        count: 1,
        stamp: 1,
        source: Source::Log {
            rank: rank.0,
            slab: 0,
            pos,
            pos_stride: 0,
        },
    };
    let (a, b) = (others[0], others[1]);
    let first = || put(ino, 7, vec![run(a, 0)]);
    assert_eq!(mesh.ask_peer(a, home, first()), Ok(vec![]));
    assert_eq!(mesh.ask_peer(a, home, first()), Ok(vec![]));
    let over = || put(ino, 7, vec![run(b, 640)]);
    let freed = mesh.ask_peer(b, home, over()).unwrap();
    assert_eq!(freed.len(), 1, "the number is another server's");
    assert_eq!(mesh.ask_peer(b, home, over()), Ok(freed));
    assert_eq!(mesh.ask_peer(a, home, first()), Ok(vec![]));
    let (from, to) = (0, 64);
    let runs = mesh
        .ask_peer(a, home, peer::Runs { ino, from, to })
        .unwrap();
    assert_eq!(runs.len(), 1);
    assert_eq!(runs[0].source, run(b, 640).source);
    // The next publish is.
    let next = || put(ino, 8, vec![run(a, 64)]);
    let freed = mesh.ask_peer(a, home, next()).unwrap();
    assert_eq!(freed.len(), 1);
    // A restarted server sends all that it had not finished.
    assert_eq!(mesh.ask_peer(a, home, first()), Ok(vec![]));
    assert_eq!(mesh.ask_peer(a, home, next()), Ok(freed));
}

/// A node releases a file that no program there has open, while it gets a request about the file.
#[test]
fn what_is_asked_of_a_file_that_is_let_go_of_is_answered() {
    let ask = |mesh: &Mesh,
               rank: usize,
               ino: Ino,
               which: u32|
     -> LocalBoxFuture<'static, Result<(), FsError>> {
        match which {
            0 => Box::pin(mesh.ask(rank, proto::GetAttr { ino }).map_ok(drop)),
            1 => Box::pin(
                mesh.ask(rank, proto::Hold { ino, write: false })
                    .map_ok(drop),
            ),
            2 => Box::pin(mesh.ask(rank, proto::Sync { ino }).map_ok(drop)),
            3 => Box::pin(mesh.ask(rank, proto::Truncate { ino, size: 0 })),
            _ => {
                let set = proto::SetAttr {
                    mtime_ns: Some(7),
                    ..proto::SetAttr::nothing(ino)
                };
                Box::pin(mesh.ask(rank, set))
            }
        }
    };
    for (seed, which) in (0..40).flat_map(|seed| (0..5).map(move |which| (seed, which))) {
        let mut mesh = Mesh::new(3, seed);
        let ino = mesh.file("f");
        let rank = (usize::from(ino.rank().0) + 1) % 3;
        let hold = proto::Hold { ino, write: false };
        mesh.call(rank, hold).unwrap();
        mesh.pass(6_000_000_000);
        let (asked, server) = (ask(&mesh, rank, ino, which), mesh.server(rank));
        let lets_go = async move {
            for _ in 0..seed {
                pause(1).await;
            }
            server.catch_up();
        };
        let (answer, ()) = mesh.run(join(asked, lets_go));
        assert_eq!(answer, Ok(()), "seed {seed}, {which}");
    }
}

/// A node with a full table releases the files that it asked to hold, and those that it created
/// elsewhere.
#[test]
fn a_file_that_there_is_no_room_for_is_not_held() {
    let mut mesh = Mesh::with_files(2, 1, 60);
    let made: Vec<Ino> = (0..20).map(|n| mesh.file(&format!("f{n}"))).collect();
    let theirs: Vec<Ino> = made
        .into_iter()
        .filter(|ino| ino.rank() == Rank(0))
        .collect();
    let full = (0..200).find_map(|n| {
        let op = create(ROOT, &format!("g{n}"));
        mesh.call(1, op).err()
    });
    assert_eq!(full, Some(FsError::NoSpace));
    mesh.settle();
    let before = mesh.asked(Rank(0), "release");
    for (n, ino) in (1..).zip(theirs) {
        let write = n % 2 == 0;
        let held = mesh.call(1, proto::Hold { ino, write });
        assert_eq!(held, Err(FsError::NoSpace));
        mesh.settle();
        assert_eq!(mesh.asked(Rank(0), "release") - before, n);
    }
}

/// A client may name any inode: also one of a server that does not exist, for which no call may wait.
#[test]
fn an_inode_of_no_server_is_stale_at_once() {
    let mut mesh = Mesh::new(3, 1);
    for rank in [3, 200, u16::MAX] {
        let ino = Ino::new(Rank(rank), 0, 1);
        let (size, cause) = (0, proto::Cause::Request);
        let errors = [
            mesh.call(0, proto::GetAttr { ino }).err(),
            mesh.call(0, proto::Readlink { ino }).err(),
            mesh.call(0, proto::Hold { ino, write: true }).err(),
            mesh.call(0, proto::Truncate { ino, size }).err(),
            mesh.call(0, proto::Laminate { ino, cause }).err(),
            mesh.call(0, proto::SetAttr::nothing(ino)).err(),
            mesh.call(0, proto::PathOf { ino }).err(),
            mesh.call(0, create(ino, "file")).err(),
            mesh.call_as_client(0, record_lock(ino)).err(),
        ];
        assert_eq!(errors, [Some(FsError::Stale); 9], "rank {rank}");
    }
    assert_eq!(mesh.sent.get(), 0);
}

fn record_lock(ino: Ino) -> proto::RecordLock {
    proto::RecordLock {
        ino,
        ofd: None,
        kind: 1,
        start: 0,
        end: 1,
        wait: true,
    }
}

/// The bytes of a file are free on every node when unlink(2) returns, also where the name concerns one
/// server alone; so are those of a file whose name another one gets.
#[test]
fn the_bytes_of_a_removed_file_are_erased_before_the_reply() {
    for is_replaced in [false, true] {
        let mut mesh = Mesh::new(3, 5);
        mesh.accept_invented_bytes(0..3);
        let dir = mesh.call(0, mkdir(ROOT, "d")).unwrap();
        let ino = mesh.call(0, create(dir, "f")).unwrap().ino;
        mesh.call(0, create(dir, "g")).unwrap();
        let far = 64 << 20;
        let at_far = Run {
            offset: far,
            length: 64,
            stride: 0,
            count: 1,
            stamp: 1,
            source: Source::Log {
                rank: 0,
                slab: 0,
                pos: 0,
                pos_stride: 0,
            },
        };
        let homes = homes_of(ino, far, far + 64, 3);
        let home = *homes
            .iter()
            .find(|home| **home != Rank(0))
            .expect("another server's slice");
        let laid = put(ino, 1, vec![at_far]);
        mesh.ask_peer(Rank(0), home, laid).unwrap();
        mesh.ask_peer(Rank(0), ino.rank(), published(ino, far + 64))
            .unwrap();
        assert_eq!(mesh.asked(home, "erase"), 0);
        match is_replaced {
            true => mesh.call(0, rename(dir, "g", "f")).unwrap(),
            false => mesh.call(0, unlink(dir, "f")).unwrap(),
        }
        assert_eq!(mesh.asked(home, "erase"), 1, "before the reply");
    }
}
