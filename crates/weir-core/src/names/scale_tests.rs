//! Many entries: long scans of a directory that changes meanwhile, and memory that is allocated and
//! given back.

use super::concurrency_tests::{entry, unlink, Random};
use super::memory::Memory;
use super::{Owner, RenameMode, Shard};
use crate::types::Rank;
use std::collections::{HashMap, HashSet};
use std::ops::ControlFlow;

const OWNER: Owner = Owner { uid: 0, gid: 0 };

#[test]
fn a_scan_under_churn_meets_all_that_stay_exactly_once() {
    const STAY: u64 = 100_000;
    let memory = Memory::new(150_000);
    let mut shard = Shard::new(memory.format(Rank(0)), 0o755, OWNER, 0).unwrap();
    let root = shard.root();
    let dir = shard.mkdir(root, b"big", 0o755, OWNER, 0).unwrap();
    let mut random = Random(7);
    let mut passing = Vec::new();
    for n in 0..STAY {
        let name = format!("stay{n}");
        shard.create(dir, name.as_bytes(), 0o600, OWNER, 0).unwrap();
        if n % 5 == 0 {
            let name = format!("go{n}");
            shard.create(dir, name.as_bytes(), 0o600, OWNER, 0).unwrap();
            passing.push(name);
        }
    }
    let mut met: HashMap<Vec<u8>, u32> = HashMap::new();
    let (mut cookie, mut last, mut fresh) = (0, Vec::new(), 0);
    loop {
        let shown = shard.readdir(dir, cookie, 700, |entry| {
            *met.entry(entry.name.to_vec()).or_default() += 1;
            (cookie, last) = (entry.cookie, entry.name.to_vec());
            ControlFlow::Continue(())
        });
        if shown.unwrap() == 0 {
            break;
        }
        // The entry at the cookie goes, and others before and behind it.
        if last.starts_with(b"go") {
            unlink(&mut shard, dir, &last);
        }
        for _ in 0..passing.len().min(200) {
            let pick = usize::try_from(random.below(passing.len() as u64)).unwrap();
            let old = passing.swap_remove(pick);
            fresh += 1;
            let new = format!("new{fresh}");
            if random.below(2) == 0 {
                let (old, new) = (entry(dir, old.as_bytes()), entry(dir, new.as_bytes()));
                let _ = shard.rename(old, new, RenameMode::Replace, 1);
            } else {
                unlink(&mut shard, dir, old.as_bytes());
                shard.create(dir, new.as_bytes(), 0o600, OWNER, 1).unwrap();
            }
            if fresh < 20_000 {
                passing.push(new);
            }
        }
    }
    let stay = (0..STAY).filter(|n| met.get(format!("stay{n}").as_bytes()) == Some(&1));
    assert_eq!(stay.count() as u64, STAY);
    assert!(met.values().all(|times| *times == 1));
}

#[test]
fn a_million_creates_and_removes_leave_no_trace() {
    const LIVE: u64 = 5000;
    let memory = Memory::new(200_000);
    let mut shard = Shard::new(memory.format(Rank(0)), 0o755, OWNER, 0).unwrap();
    let root = shard.root();
    let mut high = HashSet::new();
    for n in 0..1_000_000_u64 {
        // Names of changing length, so that memory changes its size class.
        let width = 1 + usize::try_from(n / 100_000 * 11).unwrap();
        let name = format!("{n:0width$}");
        shard
            .create(root, name.as_bytes(), 0o600, OWNER, 0)
            .unwrap();
        if n >= LIVE {
            let old = n - LIVE;
            let width = 1 + usize::try_from(old / 100_000 * 11).unwrap();
            unlink(&mut shard, root, format!("{old:0width$}").as_bytes());
        }
        // Per name length the mark moves, as blocks get larger; then it stays.
        if n % 100_000 == 50_000 || n % 100_000 == 99_999 {
            high.insert(shard.counts().table_bytes);
        }
    }
    let counts = shard.counts();
    assert_eq!((counts.files, counts.entries), (LIVE, LIVE));
    assert!(high.len() <= 10, "{high:?}");
    let names = LIVE * (32 + 112) * 2;
    let bound = (LIVE + 1024 + 2) * (96 + 4) + names + (1 << 17);
    assert!(counts.table_bytes < bound, "{counts:?} above {bound}");
    assert!(counts.private_bytes < 200_000, "{counts:?}");
}

#[test]
fn a_file_costs_less_than_its_share() {
    const FILES: u64 = 200_000;
    let memory = Memory::new(200_010);
    let mut shard = Shard::new(memory.format(Rank(0)), 0o755, OWNER, 0).unwrap();
    let root = shard.root();
    for n in 0..FILES {
        let name = format!("file{n:08}");
        shard
            .create(root, name.as_bytes(), 0o600, OWNER, 0)
            .unwrap();
    }
    let counts = shard.counts();
    let each = (counts.table_bytes + counts.private_bytes) / FILES;
    assert!((150..170).contains(&each), "{each} bytes a file");
}
