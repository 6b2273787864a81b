//! Visibility and lamination over several servers, and their cost in messages.

use crate::mesh::{create, Mesh};
use futures_util::future::join5;
use weir_core::extent::{Run, Source};
use weir_core::names::{Attr, LaminateOn, Lamination, Policy, Visibility};
use weir_core::node::claim::Claim;
use weir_core::proto::peer::{self, LockOwner, LockWish};
use weir_core::proto::{self, Caller, Cause, FsError, WriteState};
use weir_core::types::{Ino, Rank};

pub const LENGTH: u64 = 4096;

pub fn file(mesh: &mut Mesh, visibility: Visibility) -> Ino {
    let made = mesh.file_here("file");
    set(mesh, made, |set| {
        set.policy = Some(Policy {
            visibility,
            ..Policy::default()
        });
    })
    .unwrap();
    let home = mesh.call(0, proto::GetAttr { ino: made }).unwrap().home;
    // The creator does not use it any more.
    mesh.ask_peer(Rank(0), home.rank(), peer::Release { inos: vec![home] })
        .unwrap();
    home
}

fn set(mesh: &mut Mesh, ino: Ino, change: impl Fn(&mut proto::SetAttr)) -> Result<(), FsError> {
    let mut op = proto::SetAttr::nothing(ino);
    change(&mut op);
    mesh.call(0, op)
}

/// Opens the file at a node; returns its attributes there.
pub fn open(mesh: &mut Mesh, rank: usize, ino: Ino, write: bool) -> Attr {
    mesh.call(rank, proto::Hold { ino, write }).unwrap()
}

/// `[0, LENGTH)` of the log of `rank`, published.
pub fn publish(mesh: &mut Mesh, rank: Rank, ino: Ino) {
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
        ended: false,
    };
    mesh.ask_peer(rank, ino.rank(), published).unwrap();
}

pub fn others(ino: Ino) -> Vec<Rank> {
    (0..4)
        .map(Rank)
        .filter(|rank| *rank != ino.rank())
        .collect()
}

/// A node requests the state of a laminated file once: no lookup or lease follows, whichever node had it
/// open; and no program opens it for writing again.
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

/// The bytes that a program of server `at` may write of a raw file, when it needs `needed`.
fn token(mesh: &mut Mesh, at: Rank, ino: Ino, needed: Claim, wished: Claim) -> Claim {
    let at = usize::from(at.0);
    let local = open(mesh, at, ino, true).ino;
    let op = proto::Token {
        ino: local,
        needed,
        wished,
    };
    mesh.call_as_client(at, op).unwrap()
}

/// A writer of a raw file sends one request, until another node reads it; a reader, until another node
/// writes.
#[test]
fn a_raw_file_is_leased_or_written() {
    let mut mesh = Mesh::new(4, 4);
    let ino = file(&mut mesh, Visibility::ReadAfterWrite);
    let home = ino.rank();
    let [a, b, _] = others(ino)[..] else {
        unreachable!("three others")
    };
    let all = Claim::range(0, 1 << 20);
    let lease = |mesh: &mut Mesh, at: Rank| {
        let before = (mesh.asked(home, "lease"), mesh.asked(b, "revoke"));
        let at = usize::from(at.0);
        let ino = open(mesh, at, ino, false).ino;
        mesh.call(at, proto::Lease { ino }).unwrap();
        mesh.call(at, proto::Lease { ino }).unwrap();
        let after = (mesh.asked(home, "lease"), mesh.asked(b, "revoke"));
        (after.0 - before.0, after.1 - before.1)
    };
    assert_eq!(lease(&mut mesh, a), (1, 0), "nobody writes");
    let recalls = mesh.asked(a, "recall");
    token(&mut mesh, b, ino, all, all);
    assert_eq!(mesh.asked(a, "recall"), recalls + 1);
    let grants = mesh.asked(home, "grant");
    token(
        &mut mesh,
        b,
        ino,
        Claim::range(1 << 40, 1),
        Claim::range(1 << 40, 1),
    );
    assert_eq!(mesh.asked(home, "grant"), grants, "it may write all");
    assert_eq!(
        lease(&mut mesh, a),
        (1, 1),
        "and no more when it has published"
    );
    assert_eq!(lease(&mut mesh, a), (0, 0));
    // At the home, without a message to itself.
    token(&mut mesh, b, ino, all, all);
    let revoked = mesh.asked(b, "revoke");
    mesh.call(usize::from(home.0), proto::Lease { ino })
        .unwrap();
    assert_eq!(mesh.asked(b, "revoke"), revoked + 1);
}

/// Nodes that write bytes of their own do not hinder each other; a node hands over bytes that another
/// one wants after it has published them.
#[test]
fn tokens_of_neighbours_stay() {
    let mut mesh = Mesh::new(4, 5);
    let ino = file(&mut mesh, Visibility::ReadAfterWrite);
    let [a, b, _] = others(ino)[..] else {
        unreachable!("three others")
    };
    let of = |rank: u64| Claim {
        offset: rank * 512,
        length: 512,
        stride: 2048,
        count: 1 << 30,
    };
    for rank in [a, b] {
        open(&mut mesh, usize::from(rank.0), ino, true);
    }
    for (rank, number) in [(a, 0), (b, 1), (a, 2), (b, 3)] {
        let first = Claim::range(number * 512, 512);
        assert_eq!(token(&mut mesh, rank, ino, first, of(number)), of(number));
    }
    assert_eq!(mesh.asked(a, "revoke") + mesh.asked(b, "revoke"), 0);
    // A wish gives way to another node's token; a need does not.
    let (own, wide) = (Claim::range(10, 5), Claim::range(0, 1 << 20));
    assert_eq!(token(&mut mesh, a, ino, own, wide), of(0), "what it holds");
    assert_eq!(mesh.asked(b, "revoke"), 0);
    let (others, wide) = (Claim::range(600, 5), Claim::range(600, 1 << 20));
    assert!(token(&mut mesh, a, ino, others, wide).contains(&wide));
    assert_eq!(mesh.asked(b, "revoke"), 1);
    assert_eq!(mesh.asked(a, "revoke"), 0);
}

/// Segments that grow towards each other: a wish is granted up to where another node writes.
#[test]
fn a_wish_ends_where_another_node_writes() {
    const SEGMENT: u64 = 1 << 20;
    const PIECE: u64 = 64 << 10;
    let mut mesh = Mesh::new(4, 6);
    let ino = file(&mut mesh, Visibility::ReadAfterWrite);
    let [a, b, _] = others(ino)[..] else {
        unreachable!("three others")
    };
    for (rank, begin) in [(a, 0), (b, SEGMENT)] {
        open(&mut mesh, usize::from(rank.0), ino, true);
        let first = Claim::range(begin, PIECE);
        token(&mut mesh, rank, ino, first, first);
    }
    let first = Claim::range(0, PIECE);
    token(&mut mesh, a, ino, first, first);
    let (home, before) = (ino.rank(), mesh.asked(ino.rank(), "grant"));
    for at in (1..SEGMENT / PIECE).map(|number| number * PIECE) {
        let (needed, wished) = (Claim::range(at, PIECE), Claim::range(at, 2 * PIECE));
        let held = token(&mut mesh, a, ino, needed, wished);
        assert_eq!(held.end(), SEGMENT);
        assert!(held.contains(&Claim::range(at, SEGMENT - at)));
    }
    assert_eq!(mesh.asked(home, "grant"), before + 1);
}

/// A growing record is granted all bytes behind it, until other nodes turn out to write there, too.
#[test]
fn a_node_wishes_for_less_the_oftener_its_token_is_taken_away() {
    const PIECE: u64 = 4 << 10;
    let mut mesh = Mesh::new(4, 7);
    let ino = file(&mut mesh, Visibility::ReadAfterWrite);
    let [a, b, _] = others(ino)[..] else {
        unreachable!("three others")
    };
    for rank in [a, b] {
        open(&mut mesh, usize::from(rank.0), ino, true);
    }
    let pieces = |count: u64| 2 * PIECE * count;
    let got = [a, b]
        .repeat(4)
        .into_iter()
        .enumerate()
        .map(|(turn, rank)| {
            let at = 8 * PIECE * turn as u64;
            let wished = Claim::range(at, 2 * PIECE);
            let needed = Claim::range(at, PIECE);
            token(&mut mesh, rank, ino, needed, wished).end() - at
        });
    let got: Vec<u64> = got.collect();
    assert!(got[..2].iter().all(|length| *length > 1 << 40), "{got:?}");
    let few = [256, 256, 16, 16, 1, 1].map(pieces);
    assert_eq!(got[2..], few);
    // After a while the wide wish is tried again.
    mesh.pass(1_100_000_000);
    let (needed, wished) = (Claim::range(0, PIECE), Claim::range(0, 2 * PIECE));
    assert!(token(&mut mesh, a, ino, needed, wished).end() > pieces(16));
}

/// A program that locks a file makes it raw.
#[test]
fn a_lock_orders_data() {
    let mut mesh = Mesh::new(4, 6);
    let ino = file(&mut mesh, Visibility::ReadAfterSync);
    let at = usize::from(others(ino)[0].0);
    let attr = open(&mut mesh, at, ino, true);
    assert_eq!(attr.policy.visibility, Visibility::ReadAfterSync);
    let owner = LockOwner::Client(1);
    let wish = |kind| LockWish {
        whole: false,
        owner,
        kind,
        start: 0,
        end: 8,
    };
    let unlock = peer::Lock {
        ino,
        wish: wish(2),
        number: 0,
    };
    mesh.ask_peer(others(ino)[0], ino.rank(), unlock).unwrap();
    assert_eq!(open(&mut mesh, at, ino, true).policy, attr.policy);
    let lock = peer::Lock {
        ino,
        wish: wish(1),
        number: 1,
    };
    mesh.ask_peer(others(ino)[0], ino.rank(), lock).unwrap();
    let now = open(&mut mesh, at, ino, true).policy.visibility;
    assert_eq!(now, Visibility::ReadAfterWrite);
}

/// A lock whose owner has ended is free for the next request, also while its node is telling the file's
/// home.
#[test]
fn a_lock_ends_with_its_owner() {
    for seed in 0..100 {
        let mut mesh = Mesh::new(4, seed);
        let ino = file(&mut mesh, Visibility::ReadAfterWrite);
        let (at, other) = (usize::from(others(ino)[0].0), usize::from(others(ino)[1].0));
        let lock = proto::RecordLock {
            ino,
            ofd: None,
            kind: 1,
            start: 0,
            end: 8,
            wait: false,
        };
        let (owner, taker) = (mesh.client(at), mesh.client(other));
        let locked = mesh.ask_as(at, Caller::Client(owner), lock.clone());
        mesh.run(locked).unwrap();
        let refused = mesh.ask_as(other, Caller::Client(taker), lock.clone());
        assert_eq!(mesh.run(refused), Err(FsError::WouldBlock));
        mesh.nodes[at].borrow_mut().gone(owner, 1);
        mesh.server(at).catch_up();
        let free = mesh.ask_as(other, Caller::Client(taker), lock);
        assert_eq!(mesh.run(free), Ok(()), "seed {seed}");
    }
}

/// A node that cannot be reached is not told that a file became visible before its lamination. It asks, at the latest when a program
/// syncs the file: else that would be told that others see what they do not.
#[test]
fn a_node_that_was_cut_off_learns_that_a_file_is_visible() {
    for syncs in [false, true] {
        let mut mesh = Mesh::new(4, 9);
        let ino = file(&mut mesh, Visibility::ReadAfterLaminate);
        let (home, writer, other) = (ino.rank(), others(ino)[0], others(ino)[1]);
        let at = usize::from(writer.0);
        let local = open(&mut mesh, at, ino, true).ino;
        let opened = mesh.open_description(at, local, true);
        mesh.deafen_but_to(&[writer, home], Some(other));
        mesh.server(usize::from(home.0)).peer_gone(writer);
        mesh.server(at).peer_gone(home);
        let mut visible = proto::SetAttr::nothing(ino);
        visible.policy = Some(Policy::default());
        let made_visible = mesh.ask(usize::from(other.0), visible);
        for _ in 0..10 {
            mesh.pass(1_000_000_000);
        }
        mesh.run(made_visible).unwrap();
        let visibility = |mesh: &Mesh| mesh.attr(at, local).unwrap().policy.visibility;
        assert_eq!(visibility(&mesh), Visibility::ReadAfterLaminate);
        if syncs {
            let synced = mesh.ask(at, proto::Sync { ino: local });
            for _ in 0..10 {
                mesh.pass(1_000_000_000);
            }
            assert!(mesh.run(synced).is_err(), "nobody can say if others see it");
        }
        mesh.deafen(&[]);
        match syncs {
            true => drop(mesh.call(at, proto::Sync { ino: local }).unwrap()),
            false => mesh.go_on(),
        }
        assert_eq!(visibility(&mesh), Visibility::ReadAfterSync, "{syncs}");
        opened.close();
    }
}

/// A writer at another node delays a lamination, and its close completes it.
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

/// A file is complete once its writer, at whatever node, has closed it; asking changes nothing.
#[test]
fn a_file_is_written_when_its_last_writer_has_closed_it() {
    for visibility in [Visibility::ReadAfterWrite, Visibility::ReadAfterSync] {
        let mut mesh = Mesh::new(4, 7);
        let ino = file(&mut mesh, visibility);
        let asks = proto::GetWriteState { ino };
        assert_eq!(mesh.call(1, asks.clone()), Ok(WriteState::Written));
        let (writer, reader) = (usize::from(others(ino)[0].0), usize::from(others(ino)[1].0));
        open(&mut mesh, reader, ino, false);
        let local = open(&mut mesh, writer, ino, true).ino;
        let opened = mesh.open_description(writer, local, true);
        for asked in 0..4 {
            assert_eq!(
                mesh.call(asked, asks.clone()),
                Ok(WriteState::Open),
                "{asked}"
            );
        }
        let lamination = open(&mut mesh, reader, ino, false).lamination;
        assert_eq!(lamination, Lamination::No);
        opened.close();
        assert_eq!(
            mesh.call(reader, asks),
            Ok(WriteState::Written),
            "{visibility:?}"
        );
    }
}

/// Where other nodes see bytes after lamination only, no file is complete before it.
#[test]
fn a_file_of_ral_is_written_when_it_is_laminated() {
    let mut mesh = Mesh::new(4, 8);
    let ino = file(&mut mesh, Visibility::ReadAfterLaminate);
    assert_eq!(
        mesh.call(1, proto::GetWriteState { ino }),
        Ok(WriteState::Hidden)
    );
    let cause = Cause::Request;
    assert_eq!(mesh.call(1, proto::Laminate { ino, cause }), Ok(true));
    assert_eq!(
        mesh.call(1, proto::GetWriteState { ino }),
        Ok(WriteState::Written)
    );
}

/// While a program has the file open for writing, it may append, take tokens, truncate the file and
/// attach, also while the file's home asks all nodes if any program has it open.
#[test]
fn a_writer_goes_on_while_a_lamination_is_undecided() {
    for seed in 0..40 {
        let mut mesh = Mesh::new(4, seed);
        let ino = file(&mut mesh, Visibility::ReadAfterWrite);
        let holders = others(ino);
        for reader in &holders[1..] {
            open(&mut mesh, usize::from(reader.0), ino, false);
        }
        let writer = usize::from(holders[0].0);
        let local = open(&mut mesh, writer, ino, true).ino;
        let opened = mesh.open_description(writer, local, true);
        let client = Caller::Client(mesh.client(writer));
        let cause = Cause::Request;
        let laminated = mesh.ask(0, proto::Laminate { ino, cause });
        let append = proto::Append {
            ino: local,
            length: 10,
            reserved: None,
        };
        let range = Claim::range(0, 10);
        let token = proto::Token {
            ino: local,
            needed: range,
            wished: range,
        };
        let (ino, size) = (local, 5);
        let done = mesh.run(join5(
            laminated,
            mesh.ask_as(writer, client, append),
            mesh.ask_as(writer, client, token),
            mesh.ask_as(writer, client, proto::Attach { ino }),
            mesh.ask_as(writer, client, proto::Truncate { ino, size }),
        ));
        assert_eq!(done.0, Ok(false), "seed {seed}");
        let errors = [done.1.err(), done.2.err(), done.3.err(), done.4.err()];
        assert_eq!(errors, [None; 4], "seed {seed}");
        opened.close();
    }
}

/// The names of the policies are inherited by files created in a directory.
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

/// A home releases a file when the node that created it does not use it any more; one message tells it
/// about many files.
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
    assert_eq!(let_go(&mut mesh, 70_000_000_000), foreign.div_ceil(64));
    assert_eq!(let_go(&mut mesh, 140_000_000_000), 0, "there is none left");
}

/// A restarted home asks each node for the places of its appends, also for those that its programs know
/// and have not written yet.
#[test]
fn the_place_of_an_append_is_shown_before_it_is_written() {
    let mut mesh = Mesh::new(3, 1);
    let ino = mesh.file("file");
    let others: Vec<Rank> = (0..3)
        .map(Rank)
        .filter(|rank| *rank != ino.rank())
        .collect();
    let (one, other) = (usize::from(others[0].0), usize::from(others[1].0));
    let client = mesh.client(one);
    let local = open(&mut mesh, one, ino, true).ino;
    open(&mut mesh, other, ino, true);
    let attach = proto::Attach { ino: local };
    let attached = mesh.ask_as(one, proto::Caller::Client(client), attach);
    mesh.run(attached).unwrap();
    let append = proto::Append {
        ino: local,
        length: LENGTH,
        reserved: None,
    };
    let first = mesh.call_as_client(one, append).unwrap();
    let share = peer::ShareAppends { ino };
    let shown = mesh.ask_peer(ino.rank(), others[0], share).unwrap();
    assert_eq!(shown, first + LENGTH);
}
