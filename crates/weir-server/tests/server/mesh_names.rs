//! The namespace of several servers.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use crate::mesh::{create, pause, Dice, Mesh, OneServer};
use futures_util::future::{join, FutureExt};
use futures_util::task::LocalSpawnExt;
use proptest::prelude::*;
use weir_core::names::FileType;
use weir_core::placement::home_of_entry;
use weir_core::proto::{self, Caller, FsError};
use weir_core::types::{Ino, Rank};

const ROOT: Ino = weir_server::cluster::ROOT;

pub fn mkdir(parent: Ino, name: &str) -> proto::Mkdir {
    proto::Mkdir {
        parent,
        name: name.into(),
        mode: 0o755,
        uid: 0,
        gid: 0,
    }
}

/// All names below the root, with the type and the number of links of each inode.
fn tree(mesh: &mut Mesh, rank: usize) -> BTreeMap<String, (FileType, u32)> {
    let mut found = BTreeMap::new();
    let mut dirs = vec![(String::new(), ROOT)];
    while let Some((path, dir)) = dirs.pop() {
        for entry in list(mesh, rank, dir) {
            let path = format!("{path}/{}", String::from_utf8(entry.name).unwrap());
            let attr = mesh.call(rank, proto::GetAttr { ino: entry.ino }).unwrap();
            let kind = attr.file_type();
            if kind == FileType::Dir {
                dirs.push((path.clone(), entry.ino));
            }
            assert!(found.insert(path, (kind, attr.nlink)).is_none());
        }
    }
    found
}

pub fn list(mesh: &mut Mesh, rank: usize, dir: Ino) -> Vec<proto::Entry> {
    let (mut all, mut cookie, mut until) = (Vec::new(), 0, 0);
    loop {
        let op = proto::Readdir {
            ino: dir,
            cookie,
            until: Some(until),
            budget_bytes: 100,
        };
        let some = mesh.call(rank, op).unwrap();
        match some.entries.last() {
            Some(last) => cookie = last.cookie,
            None => return all,
        }
        until = some.until;
        all.extend(some.entries);
    }
}

#[test]
fn what_one_server_makes_all_see() {
    let mut mesh = Mesh::new(4, 1);
    let dir = mesh.call(0, mkdir(ROOT, "d")).unwrap();
    for i in 0..40 {
        let name = format!("f{i}");
        mesh.call(i % 4, create(dir, &name)).unwrap();
    }
    for rank in 0..4 {
        assert_eq!(list(&mut mesh, rank, dir).len(), 40);
        let found = mesh.call(
            rank,
            proto::Find {
                dir,
                name: b"f7".to_vec(),
            },
        );
        assert!(found.unwrap().is_some());
    }
    let again = mesh.call(3, create(dir, "f7"));
    assert_eq!(again.unwrap_err(), FsError::Exists);
    let unlink = |name: &str| proto::Unlink {
        parent: dir,
        name: name.into(),
    };
    let rmdir = || proto::Rmdir {
        parent: ROOT,
        name: b"d".to_vec(),
    };
    assert_eq!(mesh.call(2, rmdir()).unwrap_err(), FsError::NotEmpty);
    for i in 0..40 {
        mesh.call((i + 1) % 4, unlink(&format!("f{i}"))).unwrap();
    }
    mesh.call(1, rmdir()).unwrap();
    let late = mesh.call(1, create(dir, "late")).unwrap_err();
    assert!(matches!(late, FsError::NotFound | FsError::Stale), "{late}");
    assert!(tree(&mut mesh, 2).is_empty());
}

pub fn find(dir: Ino, name: &str) -> proto::Find {
    let name = name.into();
    proto::Find { dir, name }
}

#[test]
fn a_name_is_looked_for_once_a_server() {
    let mut mesh = Mesh::new(4, 3);
    let dir = mesh.call(0, mkdir(ROOT, "d")).unwrap();
    for round in 0..3 {
        let before = mesh.sent.get();
        for rank in 0..4 {
            let found = mesh.call(rank, find(ROOT, "d")).unwrap().unwrap();
            assert_eq!((found.ino, found.kind), (dir, FileType::Dir));
        }
        let asked = mesh.sent.get() - before;
        assert_eq!(asked, if round == 0 { 3 } else { 0 });
    }
    // So is a file; free names are requested each time.
    mesh.call(0, create(ROOT, "f")).unwrap();
    for (name, asked) in [("f", [3, 0]), ("none", [3, 3])] {
        for asked in asked {
            let before = mesh.sent.get();
            for rank in 0..4 {
                mesh.call(rank, find(ROOT, name)).unwrap();
            }
            assert_eq!(mesh.sent.get() - before, asked, "{name}");
        }
    }
    // After the loss of a server names are requested from it again: earlier answers do not count.
    let home = (0..4).find(|rank| {
        let before = mesh.sent.get();
        mesh.call(*rank, find(ROOT, "none")).unwrap();
        mesh.sent.get() == before
    });
    assert!(home.is_some());
    for rank in 0..4 {
        for gone in 0..4 {
            mesh.server(rank).peer_gone(weir_core::types::Rank(gone));
        }
    }
    let before = mesh.sent.get();
    for rank in 0..4 {
        assert!(mesh.call(rank, find(ROOT, "d")).unwrap().is_some());
    }
    // Each server that sends requests also starts a session.
    assert_eq!(mesh.sent.get() - before, 6);
}

/// Looks like a client, which sends a request only for names unknown at its node; also returns true if
/// the name was known.
fn look(
    mesh: &mut Mesh,
    (rank, dir, name): (usize, Ino, &'static str),
) -> (Option<(Ino, FileType)>, bool) {
    let known = mesh.known(rank).entry(dir, name.as_bytes());
    if known.is_some() {
        return (known, true);
    }
    let found = mesh.call(rank, find(dir, name)).unwrap();
    (found.map(|child| (child.ino, child.kind)), false)
}

#[test]
fn what_became_of_a_name_all_see_at_once() {
    const NAMES: [&str; 4] = ["a", "b", "c", "d"];
    for seed in 0..40 {
        let mut mesh = Mesh::new(4, seed);
        let dice = Dice::new(1000 + seed);
        let mut hits = [0, 0];
        let mut parents = vec![ROOT];
        for rank in 0..2 {
            parents.push(mesh.call(rank, mkdir(ROOT, &format!("p{rank}"))).unwrap());
        }
        let mut truth: BTreeMap<(Ino, &str), (Ino, FileType)> = BTreeMap::new();
        let pick = |most: usize| usize::try_from(dice.roll(most as u64)).unwrap() % most;
        for _ in 0..60 {
            // A lookup always runs; it sees the state before, during or after the change.
            for rank in 0..4 {
                let (dir, name) = (parents[pick(3)], NAMES[pick(4)]);
                let asked = mesh.ask(rank, find(dir, name));
                let look = async move {
                    let _ = asked.await;
                };
                mesh.pool.spawner().spawn_local(look).unwrap();
            }
            let (rank, dir, name) = (pick(4), parents[pick(3)], NAMES[pick(4)]);
            let (new_parent, new_name) = (parents[pick(3)], NAMES[pick(4)]);
            match pick(6) {
                0 => {
                    if let Ok(made) = mesh.call(rank, mkdir(dir, name)) {
                        truth.insert((dir, name), (made, FileType::Dir));
                    }
                }
                4 => {
                    if let Ok(made) = mesh.call(rank, create(dir, name)) {
                        let made = mesh.call(rank, proto::GetAttr { ino: made.ino });
                        truth.insert((dir, name), (made.unwrap().home, FileType::File));
                    }
                }
                1 => {
                    let op = proto::Rmdir {
                        parent: dir,
                        name: name.into(),
                    };
                    if mesh.call(rank, op).is_ok() {
                        truth.remove(&(dir, name));
                    }
                }
                5 => {
                    let op = proto::Unlink {
                        parent: dir,
                        name: name.into(),
                    };
                    if mesh.call(rank, op).is_ok() {
                        truth.remove(&(dir, name));
                    }
                }
                exchange => {
                    let flags = if exchange == 2 { 2 } else { 0 };
                    let op = proto::Rename {
                        parent: dir,
                        name: name.into(),
                        new_parent,
                        new_name: new_name.into(),
                        flags,
                    };
                    if mesh.call(rank, op).is_ok() && (dir, name) != (new_parent, new_name) {
                        let old = truth.remove(&(new_parent, new_name));
                        let moved = truth.remove(&(dir, name)).unwrap();
                        truth.insert((new_parent, new_name), moved);
                        if flags == 2 {
                            truth.insert((dir, name), old.unwrap());
                        }
                    }
                }
            }
            for rank in 0..4 {
                for dir in &parents {
                    for name in NAMES {
                        let (found, hit) = look(&mut mesh, (rank, *dir, name));
                        let expected = truth.get(&(*dir, name)).copied();
                        assert_eq!(
                            found, expected,
                            "seed {seed}, {name} at {rank}, kept: {hit}"
                        );
                        let is_file = found.is_some_and(|found| found.1 == FileType::File);
                        hits[usize::from(is_file)] += u32::from(hit);
                    }
                }
            }
        }
        assert!(hits.iter().all(|hits| *hits > 0), "{hits:?}");
    }
}

#[test]
fn who_may_pass_a_directory_is_kept_until_that_changes() {
    let mut mesh = Mesh::new(4, 5);
    let dir = mesh.call(0, mkdir(ROOT, "d")).unwrap();
    for i in 0..32 {
        // Now every server has entries of it.
        mesh.call(i % 2, create(dir, &format!("f{i}"))).unwrap();
    }
    for rank in 0..4 {
        mesh.call(rank, proto::Passage { ino: dir }).unwrap();
        let home = usize::from(dir.rank().0) == rank;
        let known = mesh.known(rank).guard(dir);
        assert_eq!(
            known.is_some(),
            !home,
            "at its home clients look themselves"
        );
    }
    let set = proto::SetAttr {
        mode: Some(0o711),
        ..proto::SetAttr::nothing(dir)
    };
    mesh.call(2, set).unwrap();
    for rank in 0..4 {
        assert_eq!(mesh.known(rank).guard(dir), None, "at {rank}");
        let told = mesh.call(rank, proto::Passage { ino: dir }).unwrap();
        assert_eq!(told.mode & 0o7777, 0o711);
    }
}

/// A listing shows the entries that were there when it began, and ends, though each part of it finds the directory larger.
#[test]
fn a_listing_ends_though_the_directory_grows() {
    const FIRST: usize = 60;
    for servers in [1, 3_u16] {
        let mut mesh = Mesh::new(servers, 7);
        let mut made = 0;
        let mut make = |mesh: &mut Mesh| {
            let name = format!("file{made}");
            made += 1;
            mesh.call(made % usize::from(servers), create(ROOT, &name))
                .unwrap();
            name
        };
        let old: BTreeSet<String> = (0..FIRST).map(|_| make(&mut mesh)).collect();
        let (mut seen, mut cookie, mut until) = (Vec::new(), 0, 0);
        let mut has_ended = false;
        for _ in 0..100 * FIRST {
            let op = proto::Readdir {
                ino: ROOT,
                cookie,
                until: Some(until),
                budget_bytes: 100,
            };
            let part = mesh.call(usize::from(servers) - 1, op).unwrap();
            // The caller asks once more at the end.
            until = part.until;
            let Some(last) = part.entries.last() else {
                if has_ended {
                    break;
                }
                has_ended = true;
                continue;
            };
            assert!(!has_ended);
            cookie = last.cookie;
            let names = part.entries.into_iter().map(|entry| entry.name);
            seen.extend(names.map(|name| String::from_utf8(name).unwrap()));
            // Enough that each server gets some.
            for _ in 0..2 * servers {
                make(&mut mesh);
            }
        }
        assert!(has_ended, "{} entries seen", seen.len());
        let all: BTreeSet<String> = seen.iter().cloned().collect();
        assert_eq!(all.len(), seen.len());
        assert!(old.is_subset(&all));
    }
}

#[test]
fn paths_and_dates_of_directories_come_from_wherever_they_are() {
    let mut mesh = Mesh::new(3, 2);
    let (mut at, mut path) = (ROOT, String::new());
    for name in ["a", "b", "c", "d"] {
        at = mesh.call(1, mkdir(at, name)).unwrap();
        path = format!("{path}/{name}");
    }
    let found = mesh.call(2, proto::PathOf { ino: at }).unwrap();
    assert_eq!((found.root, &found.path[..]), (ROOT, path.as_bytes()));
    let before = mesh.call(0, proto::GetAttr { ino: at }).unwrap();
    for i in 0..9 {
        mesh.call(i % 3, mkdir(at, &format!("sub{i}"))).unwrap();
    }
    let after = mesh.call(0, proto::GetAttr { ino: at }).unwrap();
    assert_eq!((before.nlink, after.nlink), (2, 11));
    assert!(after.mtime_ns > before.mtime_ns);
}

#[derive(Clone, Debug)]
enum Step {
    Create(usize, usize),
    Mkdir(usize, usize),
    Symlink(usize, usize),
    Link(usize, usize, usize, usize),
    Unlink(usize, usize),
    Rmdir(usize, usize),
    Rename(usize, usize, usize, usize, u32),
}

const DIRS: usize = 5;
const NAMES: usize = 4;

fn step() -> impl Strategy<Value = Step> {
    let (dir, name) = (0..DIRS, 0..NAMES);
    prop_oneof![
        3 => (dir.clone(), name.clone()).prop_map(|(d, n)| Step::Create(d, n)),
        3 => (dir.clone(), name.clone()).prop_map(|(d, n)| Step::Mkdir(d, n)),
        1 => (dir.clone(), name.clone()).prop_map(|(d, n)| Step::Symlink(d, n)),
        2 => (dir.clone(), name.clone(), dir.clone(), name.clone())
            .prop_map(|(a, b, c, d)| Step::Link(a, b, c, d)),
        2 => (dir.clone(), name.clone()).prop_map(|(d, n)| Step::Unlink(d, n)),
        2 => (dir.clone(), name.clone()).prop_map(|(d, n)| Step::Rmdir(d, n)),
        5 => (dir.clone(), name.clone(), dir, name, 0..3u32)
            .prop_map(|(a, b, c, d, flags)| Step::Rename(a, b, c, d, flags)),
    ]
}

/// Directories by the order of their creation, in both worlds; their numbers differ.
struct Both {
    mesh: Mesh,
    one: OneServer,
    dirs: Vec<(Ino, Ino)>,
}

impl Both {
    /// Sends both worlds the same request, about directories that are the same in both.
    fn ask<O: proto::Operation + 'static>(
        &mut self,
        rank: usize,
        op: impl Fn(bool) -> O,
    ) -> (Result<O::Reply, FsError>, Result<O::Reply, FsError>) {
        let several = self.mesh.call(rank, op(true));
        (several, self.one.call(Caller::Control, op(false)))
    }

    /// Does a step in both worlds and compares the results.
    fn step(&mut self, rank: usize, step: &Step) {
        let dirs = self.dirs.clone();
        let dir = |at: &usize, several: bool| {
            let (ours, theirs) = dirs[at % dirs.len()];
            if several {
                ours
            } else {
                theirs
            }
        };
        let name = |at: &usize| format!("n{at}").into_bytes();
        let done = match step {
            Step::Create(at, to) => {
                let made = self.ask(rank, |s| create(dir(at, s), &format!("n{to}")));
                (made.0.map(drop), made.1.map(drop))
            }
            Step::Mkdir(at, to) => {
                let made = self.ask(rank, |s| mkdir(dir(at, s), &format!("n{to}")));
                if let (Ok(ours), Ok(theirs)) = made {
                    self.dirs.push((ours, theirs));
                }
                (made.0.map(drop), made.1.map(drop))
            }
            Step::Symlink(at, to) => {
                let made = self.ask(rank, |s| proto::Symlink {
                    parent: dir(at, s),
                    name: name(to),
                    target: b"to/where".to_vec(),
                    uid: 0,
                    gid: 0,
                });
                (made.0.map(drop), made.1.map(drop))
            }
            Step::Link(old_at, old, at, to) => {
                let found = self.ask(rank, |s| proto::Find {
                    dir: dir(old_at, s),
                    name: name(old),
                });
                let found = [found.0, found.1].map(|f| f.ok().flatten());
                let [Some(ours), Some(theirs)] = found else {
                    assert_eq!(found[0].is_some(), found[1].is_some());
                    return;
                };
                self.ask(rank, |s| proto::Link {
                    ino: if s { ours.ino } else { theirs.ino },
                    parent: dir(at, s),
                    name: name(to),
                })
            }
            Step::Unlink(at, old) => self.ask(rank, |s| proto::Unlink {
                parent: dir(at, s),
                name: name(old),
            }),
            Step::Rmdir(at, old) => self.ask(rank, |s| proto::Rmdir {
                parent: dir(at, s),
                name: name(old),
            }),
            Step::Rename(old_at, old, at, to, flags) => self.ask(rank, |s| proto::Rename {
                parent: dir(old_at, s),
                name: name(old),
                new_parent: dir(at, s),
                new_name: name(to),
                flags: *flags,
            }),
        };
        let (ours, theirs) = done;
        // If there are two reasons to refuse, one server and several may find a different one first.
        assert_eq!(
            ours.is_ok(),
            theirs.is_ok(),
            "{step:?}: {ours:?} {theirs:?}"
        );
        self.forget_dead();
    }

    /// Forgets removed directories: the two worlds may report different errors for them.
    fn forget_dead(&mut self) {
        let (mesh, one) = (&mut self.mesh, &mut self.one);
        self.dirs.retain(|(dir, dir_of_one)| {
            let ours = mesh.call(0, proto::PathOf { ino: *dir });
            let op = proto::PathOf { ino: *dir_of_one };
            let theirs = one.call(Caller::Control, op);
            assert_eq!(ours.as_ref().ok(), theirs.as_ref().ok());
            ours.is_ok()
        });
    }

    fn compare(&mut self) {
        let (mut ours, mut theirs) = (BTreeMap::new(), BTreeMap::new());
        for (dir, dir_of_one) in self.dirs.clone() {
            let path = self.mesh.call(1, proto::PathOf { ino: dir }).unwrap().path;
            for entry in list(&mut self.mesh, 1, dir) {
                let attr = self
                    .mesh
                    .call(1, proto::GetAttr { ino: entry.ino })
                    .unwrap();
                ours.insert((path.clone(), entry.name), (attr.mode, attr.nlink));
            }
            let op = proto::Readdir {
                ino: dir_of_one,
                cookie: 0,
                until: Some(0),
                budget_bytes: 60_000,
            };
            for entry in self.one.call(Caller::Control, op).unwrap().entries {
                let op = proto::GetAttr { ino: entry.ino };
                let attr = self.one.call(Caller::Control, op).unwrap();
                theirs.insert((path.clone(), entry.name), (attr.mode, attr.nlink));
            }
        }
        assert_eq!(ours, theirs);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn several_servers_are_as_one(
        seed in any::<u64>(),
        servers in 2..5u16,
        steps in proptest::collection::vec((0..8usize, step()), 1..60),
    ) {
        let mut both = Both {
            mesh: Mesh::new(servers, seed),
            one: OneServer::new(16),
            dirs: vec![(ROOT, ROOT)],
        };
        for (rank, step) in &steps {
            both.step(rank % usize::from(servers), step);
        }
        both.compare();
    }
}

/// Many renames at once: in the end every name refers to an inode, once, and the links are right.
#[test]
fn many_renames_at_once_lose_and_double_nothing() {
    for seed in 0..40 {
        let mut mesh = Mesh::new(4, seed);
        let mut dirs = vec![ROOT];
        for i in 0..4 {
            dirs.push(mesh.call(i, mkdir(ROOT, &format!("d{i}"))).unwrap());
        }
        let made = Rc::new(RefCell::new(BTreeSet::new()));
        for task in 0..8_usize {
            let dice = Dice::new(seed * 100 + task as u64);
            let (rank, dirs) = (task % 4, dirs.clone());
            let mesh_ref = (mesh.server(rank), Rc::clone(&made));
            let spawner = mesh.pool.spawner();
            spawner
                .spawn_local(async move {
                    let (server, made) = mesh_ref;
                    for _ in 0..30 {
                        busy_step(&server, &dice, &dirs, &made).await;
                    }
                })
                .unwrap();
        }
        mesh.settle();
        let found = tree(&mut mesh, 0);
        let is_file = |(kind, _): &&(FileType, u32)| *kind == FileType::File;
        let files = found.values().filter(is_file).count();
        assert!(files > 0, "seed {seed}");
        for (path, (kind, nlink)) in &found {
            if *kind == FileType::File {
                assert_eq!(*nlink, 1, "seed {seed}: {path}");
            }
        }
        assert!(files <= made.borrow().len(), "seed {seed}");
        for rank in 1..4 {
            assert_eq!(tree(&mut mesh, rank), found, "seed {seed}");
        }
    }
}

async fn busy_step(
    server: &weir_server::cluster::Cluster<impl weir_server::node::Platform>,
    dice: &Dice,
    dirs: &[Ino],
    made: &RefCell<BTreeSet<u64>>,
) {
    async fn ask<O: proto::Operation, P: weir_server::node::Platform>(
        server: &weir_server::cluster::Cluster<P>,
        op: O,
    ) -> Result<O::Reply, FsError> {
        let mut request = Vec::new();
        proto::request(op, &mut request);
        proto::reply::<O>(&server.serve(Caller::Control, &request).await)
    }
    let pick = |n: usize| usize::try_from(dice.roll(n as u64)).unwrap();
    let dir = dirs[pick(dirs.len())];
    let name = format!("x{}", dice.roll(6));
    match dice.roll(10) {
        0..3 => {
            if let Ok(file) = ask(server, create(dir, &name)).await {
                made.borrow_mut().insert(file.ino.0);
            }
        }
        3 => {
            let _ = ask(server, mkdir(dir, &name)).await;
        }
        4 => {
            let op = proto::Unlink {
                parent: dir,
                name: name.into(),
            };
            let _ = ask(server, op).await;
        }
        5 => {
            let op = proto::Rmdir {
                parent: dir,
                name: name.into(),
            };
            let _ = ask(server, op).await;
        }
        _ => {
            let op = proto::Rename {
                parent: dir,
                name: name.into(),
                new_parent: dirs[pick(dirs.len())],
                new_name: format!("x{}", dice.roll(6)).into(),
                flags: u32::try_from(dice.roll(3)).unwrap(),
            };
            let _ = ask(server, op).await;
        }
    }
}

/// A move that is refused changes no location: another one at the same time, which would make a
/// loop only after the first, is done. All that the second needs is at its server, and nothing that
/// the first must take back.
#[test]
fn a_refused_move_of_a_directory_refuses_no_other() {
    const SERVERS: u16 = 4;
    let name_at = |dir, rank| {
        let mut names = (0..).map(|n| format!("name-{n}"));
        let name = names.find(|name| home_of_entry(dir, name.as_bytes(), SERVERS) == Rank(rank));
        name.unwrap()
    };
    for seed in 0..100 {
        let mut mesh = Mesh::new(SERVERS, seed);
        let (a_name, b_name) = (name_at(ROOT, 0), name_at(ROOT, 1));
        let a = mesh.call(0, mkdir(ROOT, &a_name)).unwrap();
        let b = mesh.call(3, mkdir(ROOT, &b_name)).unwrap();
        let (full_name, a_in_b) = (name_at(a, 2), name_at(b, 0));
        let full = mesh.call(2, mkdir(a, &full_name)).unwrap();
        mesh.call(3, mkdir(full, "x")).unwrap();
        let rename = |name: &str, new_parent, new_name: &str| proto::Rename {
            parent: ROOT,
            name: name.into(),
            new_parent,
            new_name: new_name.into(),
            flags: 0,
        };
        let refused = mesh.ask(0, rename(&b_name, a, &full_name));
        let done = mesh.ask(0, rename(&a_name, b, &a_in_b));
        let wait = Dice::new(seed).roll(60);
        let both = async move { join(refused, pause(wait).then(|()| done)).await };
        let (refused, done) = mesh.run(both);
        assert_eq!(done, Ok(()), "seed {seed}");
        // The second may have been done first.
        let is_refused = matches!(refused, Err(FsError::NotEmpty | FsError::WouldLoop));
        assert!(is_refused, "seed {seed}: {refused:?}");
        let path = mesh.call(1, proto::PathOf { ino: full }).unwrap().path;
        let expected = format!("/{b_name}/{a_in_b}/{full_name}");
        assert_eq!(path, expected.as_bytes(), "seed {seed}");
    }
}
