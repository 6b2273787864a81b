//! The journal of one server of several, renewed in steps while its tables change: a server that is
//! killed at any step keeps everything, and each effect counts once. Also the later publishes of a
//! killed server's files.

use crate::mesh::{create, Dice, Mesh};
use crate::twins::{Bytes, Shared};
use crate::world::UNIT;
use weir_core::extent::{Run, Source};
use weir_core::journal::{encode, Cluster, Item};
use weir_core::node::cell::State;
use weir_core::placement::home_of_entry;
use weir_core::proto::peer::{self, PeerOperation};
use weir_core::proto::{self, Caller, FsError};
use weir_core::types::{Ino, Rank};
use weir_server::cluster::{enclose, ROOT};

const SERVERS: u16 = 3;
/// The server whose journal is checked: rank 0 has the root, so files and directories of its own.
const OURS: usize = 0;
const WHOSE: (Rank, u16) = (Rank(0), SERVERS);
/// More entries of each table than a step covers.
const MANY: u32 = 5000;

/// A journal that starts with all items of a server.
fn snapshot(mesh: &Mesh, rank: Rank) -> Bytes {
    let mut bytes = Bytes::new((rank, SERVERS));
    let mut items = Vec::new();
    let mut visit = |item: &Item<'_>| encode(item, &mut items);
    let number = usize::from(rank.0);
    mesh.nodes[number].borrow().for_each_item(&mut visit);
    mesh.server(number).for_each_item(&mut visit);
    encode(&Item::SnapshotEnd, &mut items);
    bytes.append(&items);
    bytes
}

/// The items in a journal that concern several servers, in one order.
fn said(journal: &Bytes) -> Vec<String> {
    let state = journal.state();
    // Without `..`, so that new state does not compile before it is compared.
    let Cluster {
        in_flight,
        answered,
        slices,
        slices_stamp: _, // of the slices
        published,
        counted,
        enrolled,
        moved,
        locked,
        changes,
        called_off,
        placed,
        has_all,
        lost,
    } = &state.cluster;
    let mut lines = Vec::new();
    for (ino, index) in slices {
        index.for_each_run(&mut |run| lines.push(format!("kept {ino:?} {run:?}")));
    }
    lines.extend(in_flight.iter().map(|batch| format!("{batch:?}")));
    lines.extend(answered.iter().map(|all| format!("{all:?}")));
    lines.extend(published.iter().map(|file| format!("published {file:?}")));
    lines.extend(counted.iter().map(|last| format!("counted {last:?}")));
    lines.extend(enrolled.iter().map(|dir| format!("enrolled {dir:?}")));
    lines.extend(moved.iter().map(|dir| format!("moved {dir:?}")));
    lines.extend(locked.iter().map(|name| format!("locked {name:?}")));
    lines.extend(changes.iter().map(|change| format!("changing {change:?}")));
    lines.extend(
        called_off
            .iter()
            .map(|rename| format!("called off {rename:?}")),
    );
    lines.extend(placed.iter().map(|dir| format!("placed {dir:?}")));
    lines.extend(lost.iter().map(|name| format!("lost {name:?}")));
    lines.extend(has_all.iter().map(|dir| format!("has all {dir:?}")));
    lines.extend(state.inodes.iter().map(|inode| format!("{inode:?}")));
    lines.extend(state.entries.iter().map(|entry| format!("{entry:?}")));
    lines.sort();
    lines
}

#[track_caller]
fn compare(journal: &Bytes, now: &Bytes) {
    let (journal, now) = (said(journal), said(now));
    let differs = journal.iter().zip(&now).find(|(a, b)| a != b);
    assert_eq!(differs, None);
    assert_eq!(journal.len(), now.len());
}

fn run(offset: u64, length: u64) -> Run {
    Run {
        offset,
        length,
        stride: 0,
        count: 1,
        stamp: 1,
        source: Source::Log {
            rank: 1,
            slab: 0,
            pos: offset,
            pos_stride: 0,
        },
    }
}

/// Files and directories of the server, and files of others whose slices it keeps.
struct Known {
    files: Vec<Ino>,
    dirs: Vec<Ino>,
    foreign: Vec<Ino>,
    publishes: u64,
}

fn put(mesh: &mut Mesh, known: &mut Known, ino: Ino, (offset, length): (u64, u64)) {
    known.publishes += 1;
    let put = peer::Put {
        ino,
        runs: vec![run(offset, length)],
        publish: known.publishes,
        part: 0,
        cut: u64::MAX,
        ended_below: 0,
    };
    mesh.ask_peer(Rank(1), WHOSE.0, put).unwrap();
}

fn publish(mesh: &mut Mesh, known: &mut Known, ino: Ino, size: u64) {
    known.publishes += 1;
    let published = peer::Published {
        ino,
        size,
        mtime_ns: 200,
        stored: 0,
        publishes: vec![(known.publishes, 64)],
        ended: false,
    };
    mesh.ask_peer(Rank(1), WHOSE.0, published).unwrap();
}

fn fill(mesh: &mut Mesh) -> Known {
    mesh.accept_invented_bytes(0..mesh.stores.len());
    let mut known = Known {
        files: Vec::new(),
        dirs: Vec::new(),
        foreign: (1..=MANY)
            .map(|number| Ino::new(Rank(2), 0, 5 + number))
            .collect(),
        publishes: 0,
    };
    let mut number = 0;
    while known.files.len() < MANY as usize || known.dirs.len() < 40 {
        number += 1;
        let name = format!("n{number}");
        if home_of_entry(ROOT, name.as_bytes(), SERVERS) != WHOSE.0 {
            continue;
        }
        let op = peer::Make {
            dir: ROOT,
            name: name.into(),
            what: match number % 18 {
                0 => peer::What::Dir,
                _ => peer::What::File,
            },
            mode: 0o755,
            uid: 0,
            gid: 0,
            exclusive: true,
            write: false,
            path: None,
        };
        let made = mesh.ask_peer(Rank(1), WHOSE.0, op).unwrap().child.ino;
        match number % 18 {
            0 => known.dirs.push(made),
            _ => known.files.push(made),
        }
    }
    for at in 0..MANY as usize {
        let (file, foreign) = (known.files[at], known.foreign[at]);
        put(mesh, &mut known, foreign, (at as u64 * 100, 100));
        publish(mesh, &mut known, file, 10);
    }
    // And a file that has more runs than a step covers.
    for at in 0..u64::from(MANY) {
        let large = known.foreign[0];
        put(mesh, &mut known, large, (at * 200, 100));
    }
    known
}

fn change(mesh: &mut Mesh, known: &mut Known, dice: &Dice) {
    let pick = |list: &[Ino]| list[usize::try_from(dice.roll(list.len() as u64)).unwrap()];
    let (file, dir, foreign) = (pick(&known.files), pick(&known.dirs), pick(&known.foreign));
    match dice.roll(8) {
        0 | 1 => put(mesh, known, foreign, (dice.roll(9000), 1 + dice.roll(900))),
        2 => {
            let (from, to) = (dice.roll(5000), 9000);
            let ino = foreign;
            let erase = peer::Erase { ino, from, to };
            mesh.ask_peer(Rank(2), WHOSE.0, erase).unwrap();
        }
        3 => publish(mesh, known, file, dice.roll(1 << 20)),
        4 => {
            let size = dice.roll(1000);
            let cut = peer::Truncate { ino: file, size };
            mesh.ask_peer(Rank(1), WHOSE.0, cut).unwrap();
        }
        5 => {
            let from = Rank(1 + u16::try_from(dice.roll(2)).unwrap());
            mesh.ask_peer(from, WHOSE.0, peer::Enrol { dir }).unwrap();
        }
        6 => {
            let moved = peer::Moved {
                ino: dir,
                parent: ROOT,
                name: format!("d{}", dice.roll(1000)).into(),
                token: 1,
            };
            mesh.ask_peer(Rank(2), WHOSE.0, moved).unwrap();
        }
        _ => {
            let op = create(ROOT, &format!("new{}", dice.roll(1 << 40)));
            mesh.call(OURS, op).unwrap();
        }
    }
    mesh.settle();
}

/// A step of the renewal, as the service thread makes one.
fn renew(mesh: &Mesh) {
    let server = mesh.server(OURS);
    let mut node = mesh.nodes[OURS].borrow_mut();
    node.renew_journal(&|at, visit| {
        let Some(at) = at else {
            server.show_publishing(visit);
            return None;
        };
        server.show_some(at, visit)
    });
}

#[test]
fn tables_of_several_servers_change_between_the_steps() {
    for seed in 1..=2 {
        let mut mesh = Mesh::with_files(SERVERS, seed, 8000);
        let mut known = fill(&mut mesh);
        let twins = Shared::new(WHOSE, snapshot(&mesh, WHOSE.0));
        mesh.nodes[OURS]
            .borrow_mut()
            .keep_journal(Box::new(twins.clone()));
        let dice = Dice::new(seed + 70);
        let (mut steps, mut compared) = (0, 0);
        while twins.0.borrow().renewals < 2 {
            for _ in 0..dice.roll(8) {
                change(&mut mesh, &mut known, &dice);
            }
            // A server that is killed now finds all of it in the journal that has the name.
            if steps % 4 == 0 || twins.0.borrow().renewals > compared {
                compared = twins.0.borrow().renewals;
                let now = twins.0.borrow().now.clone();
                compare(&now, &snapshot(&mesh, WHOSE.0));
            }
            renew(&mesh);
            steps += 1;
        }
        let now = twins.0.borrow().now.clone();
        compare(&now, &snapshot(&mesh, WHOSE.0));
        assert!(steps > 2 * 12, "in steps: {steps}");
    }
}

/// The session of all requests to a server after its restart.
const SESSION: u64 = 7;
/// The flag in a session's number: it starts.
const BEGINS: u64 = 1 << 63;

/// Sends a request from one server to another within a session.
fn ask_in<O: PeerOperation>(
    mesh: &mut Mesh,
    number: u64,
    (from, to): (Rank, Rank),
    op: O,
) -> Result<O::Reply, FsError> {
    let server = mesh.server(usize::from(to.0));
    let request = enclose(number, 30_000, &peer::request(op));
    let asked = async move { server.handle(from, &request).await };
    let answer = mesh.pool.run_until(asked);
    peer::reply::<O>(&answer.body)
}

/// Reports the bytes that these publishes stored; returns the number that the file's home then counts.
fn say(mesh: &mut Mesh, number: u64, (ino, from): (Ino, Rank), publishes: &[(u64, i64)]) -> u64 {
    let way = (from, ino.rank());
    let said = peer::Published {
        ino,
        size: 10,
        mtime_ns: 200,
        stored: 0,
        publishes: publishes.to_vec(),
        ended: false,
    };
    ask_in(mesh, number, way, said).unwrap();
    let attr = ask_in(mesh, number, way, peer::GetAttr { ino, keep: false });
    attr.unwrap().what.allocated
}

/// A new incarnation of the servers: the same tables of names, in which the file has no bytes yet.
fn next_life(ino: Ino) -> Mesh {
    let mut mesh = Mesh::new(SERVERS, 5);
    assert_eq!(mesh.file("file"), ino);
    mesh
}

fn others_than(home: Rank) -> Vec<Rank> {
    (0..SERVERS)
        .map(Rank)
        .filter(|rank| *rank != home)
        .collect()
}

/// A server takes over the state of a killed one, and the others start their sessions with it.
fn come_after(mesh: &mut Mesh, home: Rank, journal: &Bytes) {
    mesh.server(usize::from(home.0))
        .take_up(journal.state().cluster);
    for other in others_than(home) {
        let begin = peer::Begin {
            held: Vec::new(),
            renames_since: 0,
        };
        ask_in(mesh, SESSION | BEGINS, (other, home), begin).unwrap();
    }
}

/// The answer to a publish is lost with the server that counted it: a repeated report does not count
/// again, a new one does.
#[test]
fn what_is_stored_counts_once_over_a_restart() {
    let mut mesh = Mesh::new(SERVERS, 5);
    let ino = mesh.file("file");
    let home = ino.rank();
    let others = others_than(home);
    let (one, two) = ((ino, others[0]), (ino, others[1]));
    assert_eq!(say(&mut mesh, 0, one, &[(5, 100), (6, 20)]), 120);
    let journal = snapshot(&mesh, home);
    let mut mesh = next_life(ino);
    come_after(&mut mesh, home, &journal);
    assert_eq!(say(&mut mesh, SESSION, one, &[(5, 100), (6, 20)]), 120);
    assert_eq!(say(&mut mesh, SESSION, one, &[(6, 20), (7, 3)]), 123);
    assert_eq!(say(&mut mesh, SESSION, two, &[(5, 1)]), 124, "of another");
}

fn truncate(mesh: &mut Mesh, ino: Ino, size: u64) {
    let cut = peer::Truncate { ino, size };
    mesh.ask_peer(ino.rank(), ino.rank(), cut).unwrap();
}

/// The size of a file, and the number of its bytes that are stored: at its home's node, and at another
/// one.
fn seen(mesh: &mut Mesh, ino: Ino) -> [(u64, u64); 2] {
    let home = ino.rank();
    let here = mesh.attr(usize::from(home.0), ino).unwrap();
    let way = (others_than(home)[0], home);
    let there = ask_in(mesh, SESSION, way, peer::GetAttr { ino, keep: false });
    let there = there.unwrap().what;
    [here, there].map(|attr| (attr.size, attr.allocated))
}

/// Sets the size of a file in its home's tables only.
fn truncate_in_tables(mesh: &Mesh, ino: Ino, size: u64) {
    let mut node = mesh.nodes[usize::from(ino.rank().0)].borrow_mut();
    node.set_size(ino, size).unwrap();
}

/// A server is killed while it changes a file's size: shared memory has one size, and the journal
/// another one.
#[test]
fn all_nodes_see_one_size_after_a_restart() {
    for (in_journal, in_memory) in [(None, 100), (Some(10), 100), (Some(100), 10)] {
        let mut mesh = Mesh::new(SERVERS, 5);
        let ino = mesh.file("file");
        let home = ino.rank();
        let mut stored = 0;
        if let Some(size) = in_journal {
            truncate(&mut mesh, ino, size);
            stored = say(&mut mesh, 0, (ino, home), &[(5, 70)]);
        }
        let journal = snapshot(&mesh, home);
        let mut mesh = next_life(ino);
        truncate_in_tables(&mesh, ino, in_memory);
        come_after(&mut mesh, home, &journal);
        assert_eq!(
            seen(&mut mesh, ino),
            [(100, stored); 2],
            "{in_journal:?} and {in_memory}"
        );
    }
}

/// A program of the file's home writes the first bytes of the file and ends. Nothing is published.
fn write_at_home(mesh: &mut Mesh, ino: Ino, length: u64) {
    let home = usize::from(ino.rank().0);
    mesh.accept_invented_bytes(home..home + 1);
    let client = mesh.client(home);
    let attached = mesh.ask_as(home, Caller::Client(client), proto::Attach { ino });
    let attached = mesh.run(attached).unwrap();
    let segment = proto::Segment {
        min_bytes: UNIT,
        want_bytes: UNIT,
    };
    let lent = mesh.ask_as(home, Caller::Client(client), segment);
    let lent = mesh.run(lent).unwrap();
    let open = mesh.opens[home];
    let block = &open.blocks[attached.block as usize];
    let cell = &open.cells[attached.cell as usize];
    let before = (State::default(), 0);
    cell.replace(&State::begin(
        0,
        lent.slab,
        lent.pos,
        block.stamp(),
        &before,
        block,
    ));
    cell.commit(length);
    mesh.nodes[home].borrow_mut().gone(client, 200);
}

/// The size of a file that its home says is published.
fn published_size(mesh: &Mesh, ino: Ino) -> Option<u64> {
    let state = snapshot(mesh, ino.rank()).state();
    state.cluster.published.get(&ino).map(|(size, _)| *size)
}

/// Other nodes see the size of unpublished writes only together with the bytes.
#[test]
fn what_was_not_published_before_a_restart_is_not_published_by_it() {
    let mut mesh = Mesh::new(SERVERS, 5);
    let ino = mesh.file("file");
    truncate(&mut mesh, ino, 10);
    let journal = snapshot(&mesh, ino.rank());
    let mut mesh = next_life(ino);
    write_at_home(&mut mesh, ino, 100);
    come_after(&mut mesh, ino.rank(), &journal);
    assert_eq!(published_size(&mesh, ino), Some(10));
    mesh.server(usize::from(ino.rank().0)).catch_up();
    mesh.go_on();
    assert_eq!(published_size(&mesh, ino), Some(100));
    assert_eq!(seen(&mut mesh, ino), [(100, 100); 2]);
}
