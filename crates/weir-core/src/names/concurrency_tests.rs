//! Readers on threads of their own while the writer churns: each answer that they get must have
//! been true.
//!
//! A reader may be told [`ViewError::Unsettled`] (the writer lost its CPU in the middle of a change);
//! then it asks again, as a client would ask the server.

use super::memory::Memory;
use super::{
    EntryName, FileType, NamesView, Owner, RenameMode, SetAttr, Shard, ViewError, NAME_MAX,
    SYMLINK_MAX,
};
use crate::types::{Ino, Rank};
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

const OWNER: Owner = Owner { uid: 0, gid: 0 };
/// Names `f0` .. `f63` come and go; the group of the file called `f<n>` is always `n % 8`.
const NAMES: u64 = 64;
const CLASSES: u64 = 8;
const ROUNDS: u64 = 60_000;

pub(super) struct Random(pub(super) u64);

impl Random {
    pub(super) fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) % bound
    }
}

fn settled<T>(mut ask: impl FnMut() -> Result<T, ViewError>) -> T {
    loop {
        match ask() {
            Ok(answer) => return answer,
            Err(ViewError::Unsettled) => thread::yield_now(),
            Err(error) => panic!("{error}"),
        }
    }
}

fn name(n: u64) -> Vec<u8> {
    format!("f{n}").into_bytes()
}

/// The fixed points of the churned tree.
#[derive(Clone, Copy)]
struct Tree {
    root: Ino,
    /// A directory that moves between `/a` and `/b`, with `leaf` in it.
    moving: Ino,
    leaf: Ino,
    swapped: [Ino; 2],
}

fn plant(shard: &mut Shard<'_>) -> Tree {
    let root = shard.root();
    let mut dir = |parent, name: &[u8]| shard.mkdir(parent, name, 0o755, OWNER, 0).unwrap();
    let a = dir(root, b"a");
    dir(root, b"b");
    let moving = dir(a, b"moving");
    let leaf = dir(moving, b"leaf");
    let swapped = [b"x", b"y"].map(|n| shard.create(root, n, 0o600, OWNER, 0).unwrap());
    shard.create(root, b"steady", 0o600, OWNER, 0).unwrap();
    shard.symlink(root, b"link", b"0", OWNER, 0).unwrap();
    Tree {
        root,
        moving,
        leaf,
        swapped,
    }
}

pub(super) fn unlink(shard: &mut Shard<'_>, dir: Ino, name: &[u8]) {
    if let Ok(gone) = shard.unlink(dir, name, 1) {
        if gone.nlink == 0 {
            shard.release(gone.ino).unwrap();
        }
    }
}

/// One round of everything; `kept` counts the permanent names `keep<n>`.
fn churn(shard: &mut Shard<'_>, tree: &Tree, random: &mut Random, kept: &AtomicU64, round: u64) {
    let root = tree.root;
    let n = random.below(NAMES);
    let class = Owner {
        uid: 0,
        gid: u32::try_from(n % CLASSES).unwrap(),
    };
    match random.below(3) {
        0 => unlink(shard, root, &name(n)),
        1 => {
            // A file's times begin at 0, like its size: see `check_file`.
            if let Ok(ino) = shard.create(root, &name(n), 0o600, class, 0) {
                set_all(shard, ino, round);
            }
        }
        _ => {
            let other = (n + CLASSES * random.below(NAMES / CLASSES)) % NAMES;
            let (from, to) = (name(n), name(other));
            let (from, to) = (entry(root, &from), entry(root, &to));
            if let Ok(done) = shard.rename(from, to, RenameMode::Replace, 1) {
                set_all(shard, done.moved, round);
                if let Some(lost) = done.replaced {
                    shard.release(lost.ino).unwrap();
                }
            }
        }
    }
    if round.is_multiple_of(4) {
        let next = kept.load(Ordering::Relaxed);
        let name = format!("keep{next}");
        shard
            .create(root, name.as_bytes(), 0o600, OWNER, 0)
            .unwrap();
        kept.store(next + 1, Ordering::Release);
    }
    move_fixed_points(shard, tree, round);
}

/// A name in a directory.
pub(super) fn entry(parent: Ino, name: &[u8]) -> EntryName<'_> {
    EntryName { parent, name }
}

fn move_fixed_points(shard: &mut Shard<'_>, tree: &Tree, round: u64) {
    let root = tree.root;
    let [a, b] = [b"a", b"b"].map(|n| shard.lookup(root, n).unwrap().0);
    let (from, to) = if round.is_multiple_of(2) {
        (a, b)
    } else {
        (b, a)
    };
    let (from, to) = (entry(from, b"moving"), entry(to, b"moving"));
    shard.rename(from, to, RenameMode::NoReplace, 1).unwrap();
    let (x, y) = (entry(root, b"x"), entry(root, b"y"));
    shard.rename(x, y, RenameMode::Exchange, 1).unwrap();

    shard.create(root, b"tmp", 0o600, OWNER, 0).unwrap();
    let (tmp, steady) = (entry(root, b"tmp"), entry(root, b"steady"));
    let done = shard.rename(tmp, steady, RenameMode::Replace, 1).unwrap();
    shard.release(done.replaced.unwrap().ino).unwrap();

    let letter = b'a' + u8::try_from(round % 26).unwrap();
    let target = vec![letter; 1 + usize::try_from(round).unwrap() % 300];
    unlink(shard, root, b"link");
    shard.symlink(root, b"link", &target, OWNER, 1).unwrap();
}

fn set_all(shard: &mut Shard<'_>, ino: Ino, value: u64) {
    let set = SetAttr {
        size: Some(value),
        allocated: Some(value),
        mtime_ns: Some(i64::try_from(value).unwrap()),
        ..SetAttr::default()
    };
    shard.setattr(ino, &set).unwrap();
}

/// Looks at everything once; returns true if the file was there.
fn look(view: NamesView<'_>, tree: &Tree, random: &mut Random, kept: &AtomicU64) -> bool {
    let root = tree.root;
    let known = kept.load(Ordering::Acquire);
    if known > 0 {
        let name = format!("keep{}", random.below(known));
        assert!(settled(|| view.lookup(root, name.as_bytes())).is_some());
        let never = format!("never{}", random.below(known));
        assert_eq!(settled(|| view.lookup(root, never.as_bytes())), None);
    }
    for name in [b"x", b"y"] {
        let (ino, _) = settled(|| view.lookup(root, name)).expect("exchanged, never gone");
        assert!(tree.swapped.contains(&ino));
    }
    let steady = settled(|| view.lookup(root, b"steady"));
    assert_eq!(steady.expect("replaced, never gone").1, FileType::File);
    check_paths(view, tree);
    if let Some((link, kind)) = settled(|| view.lookup(root, b"link")) {
        assert_eq!(kind, FileType::Symlink);
        let mut buf = [0; SYMLINK_MAX];
        if let Some(len) = settled(|| view.symlink_target(link, &mut buf)) {
            assert!(len > 0 && buf[..len].iter().all(|b| *b == buf[0]));
        }
    }
    let n = random.below(NAMES);
    check_file(view, root, n)
}

fn check_file(view: NamesView<'_>, root: Ino, n: u64) -> bool {
    let Some((ino, kind)) = settled(|| view.lookup(root, &name(n))) else {
        return false;
    };
    assert_eq!(kind, FileType::File);
    // It may be gone by now, but then its number must not show another file.
    let Some(attr) = settled(|| view.attr(ino)) else {
        return false;
    };
    assert_eq!(u64::from(attr.gid), n % CLASSES, "another file's inode");
    assert_eq!((attr.size, attr.allocated), (attr.allocated, attr.size));
    assert_eq!(attr.mtime_ns, i64::try_from(attr.size).unwrap(), "torn");
    let mut found = [0; NAME_MAX];
    if let Some((parent, len)) = settled(|| view.parent_and_name(ino, &mut found)) {
        assert_eq!(parent, root);
        let found: u64 = std::str::from_utf8(&found[1..len])
            .unwrap()
            .parse()
            .unwrap();
        assert_eq!(found % CLASSES, n % CLASSES);
    }
    true
}

fn check_paths(view: NamesView<'_>, tree: &Tree) {
    let mut buf = [0; 64];
    let path = settled(|| {
        Ok(view
            .path_of(tree.leaf, &mut buf)?
            .map(|(_, path)| path.to_vec()))
    });
    let path = path.expect("moved, never gone");
    assert!([&b"/a/moving/leaf"[..], b"/b/moving/leaf"].contains(&&path[..]));
    let attr = settled(|| view.attr(tree.moving)).unwrap();
    assert_eq!(attr.nlink, 3);
}

#[test]
fn readers_are_told_the_truth_under_churn() {
    let memory = Memory::new(20_000);
    let mut shard = Shard::new(memory.format(Rank(0)), 0o755, OWNER, 0).unwrap();
    let tree = plant(&mut shard);
    let view = shard.view();
    let kept = AtomicU64::new(0);
    let done = AtomicU64::new(0);
    thread::scope(|scope| {
        let readers: Vec<_> = (0..3)
            .map(|seed| {
                let (kept, done, tree) = (&kept, &done, &tree);
                scope.spawn(move || {
                    let mut random = Random(0x9E37_79B9 + seed);
                    let (mut looks, mut hits) = (0, 0_u64);
                    while done.load(Ordering::Acquire) == 0 || hits == 0 {
                        hits += u64::from(look(view, tree, &mut random, kept));
                        looks += 1;
                    }
                    (looks, hits)
                })
            })
            .collect();
        let mut random = Random(42);
        for round in 0..ROUNDS {
            churn(&mut shard, &tree, &mut random, &kept, round);
        }
        // So that a reader that only now gets a CPU still finds files.
        for n in 0..NAMES {
            let gid = u32::try_from(n % CLASSES).unwrap();
            let _ = shard.create(tree.root, &name(n), 0o600, Owner { uid: 0, gid }, 0);
        }
        done.store(1, Ordering::Release);
        for reader in readers {
            let (looks, hits) = reader.join().expect("a reader was told something wrong");
            assert!(looks >= hits && hits > 0);
        }
    });
    assert_eq!(kept.load(Ordering::Relaxed), ROUNDS / 4);
}
