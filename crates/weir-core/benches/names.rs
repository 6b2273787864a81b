//! What the namespace costs: reading it, changing it, and its memory, at a million files.
//!
//! `cargo bench -p weir-core --bench names [files]`. Times are the best of several passes,
//! in ns per operation, one thread, names of 12 bytes in random order; no messages are involved.
//! A walk over memory of the same size in the same order is measured beside them, so
//! that machines can be compared.

use std::hint::black_box;
use std::sync::atomic::{AtomicU32, AtomicU64};
use std::time::Instant;
use weir_core::names::{layout, InodeRecord, NamesHeader, Owner, SetAttr, Shard, Tables};
use weir_core::types::{Ino, Rank};

const OWNER: Owner = Owner { uid: 0, gid: 0 };
const DIRS: usize = 64;
const PASSES: usize = 3;

fn zeroed<T: Default>(len: usize) -> Vec<T> {
    std::iter::repeat_with(T::default).take(len).collect()
}

/// ns per operation.
fn time(operations: usize, run: impl FnOnce()) -> f64 {
    let start = Instant::now();
    run();
    #[allow(clippy::cast_precision_loss)] // below 2^52
    let ns = start.elapsed().as_nanos() as f64 / operations as f64;
    ns
}

fn report(what: &str, ns: f64) {
    println!("{what:<44} {ns:>9.1} ns");
}

fn best(what: &str, operations: usize, mut run: impl FnMut()) {
    let times = (0..PASSES).map(|_| time(operations, &mut run));
    report(what, times.fold(f64::INFINITY, f64::min));
}

/// The numbers below `len` in a random order.
fn shuffled(len: usize) -> Vec<usize> {
    let mut order: Vec<usize> = (0..len).collect();
    let mut random = 88_172_645_463_325_252_u64;
    for i in (1..len).rev() {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        let pick = usize::try_from(random >> 11).expect("64-bit") % (i + 1);
        order.swap(i, pick);
    }
    order
}

struct Files {
    names: Vec<(Ino, String)>,
    order: Vec<usize>,
}

impl Files {
    fn shuffled(&self) -> impl Iterator<Item = (usize, Ino, &[u8])> {
        self.order.iter().map(|i| {
            let (dir, name) = &self.names[*i];
            (*i, *dir, name.as_bytes())
        })
    }
}

fn reads(shard: &Shard<'_>, files: &Files, inos: &[Ino]) {
    let (view, count) = (shard.view(), inos.len());
    let (dir, name) = &files.names[0];
    best("lookup, one name again and again", count, || {
        for _ in 0..count {
            black_box(view.lookup(black_box(*dir), name.as_bytes()).expect("idle"));
        }
    });
    best("attr, one inode again and again", count, || {
        for _ in 0..count {
            black_box(view.attr(black_box(inos[0])).expect("idle"));
        }
    });
    let hot: Vec<usize> = files.order.iter().copied().take(1000).collect();
    best("lookup + attr among 1,000 names", count, || {
        for i in hot.iter().cycle().take(count) {
            let (dir, name) = &files.names[*i];
            let found = view.lookup(*dir, name.as_bytes()).expect("idle");
            black_box(view.attr(found.expect("is there").0).expect("idle"));
        }
    });
    best("lookup among all", count, || {
        for (i, dir, name) in files.shuffled() {
            let found = view.lookup(dir, name).expect("idle");
            assert_eq!(found.expect("is there").0, inos[i]);
        }
    });
    best("lookup of what is not there", count, || {
        for (_, dir, name) in files.shuffled() {
            assert!(view.lookup(dir, &name[..11]).expect("idle").is_none());
        }
    });
    best("attr among all", count, || {
        for i in &files.order {
            black_box(view.attr(inos[*i]).expect("idle"));
        }
    });
}

fn changes(shard: &mut Shard<'_>, files: &Files, inos: &mut [Ino]) {
    let count = inos.len();
    best("setattr (size, mtime) among all", count, || {
        for i in &files.order {
            let set = SetAttr {
                size: Some(1),
                mtime_ns: Some(2),
                ..SetAttr::default()
            };
            shard.setattr(inos[*i], &set).expect("is there");
        }
    });
    best("create + unlink + release of one name", count, || {
        for n in 0..count {
            let dir = files.names[n].0;
            let ino = shard.create(dir, b"temporary001", 0o600, OWNER, 1);
            let ino = ino.expect("there is room");
            shard.unlink(dir, b"temporary001", 2).expect("is there");
            shard.release(ino).expect("is gone");
        }
    });
    let unlink = time(count, || {
        for (i, dir, name) in files.shuffled() {
            shard.unlink(dir, name, 3).expect("is there");
            shard.release(inos[i]).expect("is gone");
        }
    });
    report("unlink + release of all, in random order", unlink);
    let create = time(count, || {
        for (i, dir, name) in files.shuffled() {
            let ino = shard.create(dir, name, 0o600, OWNER, 4);
            inos[i] = ino.expect("there is room");
        }
    });
    report("create of all again, in random order", create);
}

fn main() {
    // cargo passes flags such as `--bench`.
    let files = std::env::args().skip(1).find_map(|arg| arg.parse().ok());
    let count: usize = files.unwrap_or(1_000_000);
    let max = u32::try_from(count + 10_000).expect("tables have u32 inodes");
    let sizes = layout(max);
    let header = Box::<NamesHeader>::default();
    let inodes: Vec<InodeRecord> = zeroed(sizes.inodes.len);
    let arena: Vec<AtomicU64> = zeroed(sizes.arena.len);
    let buckets: Vec<AtomicU32> = zeroed(sizes.buckets.len);
    let tables = Tables::format(&header, &inodes, &arena, &buckets, Rank(0)).expect("fits");
    let mut shard = Shard::new(tables, 0o755, OWNER, 0).expect("there is room");
    let root = shard.root();
    let dirs: Vec<Ino> = (0..DIRS)
        .map(|d| {
            let name = format!("dir{d}");
            let dir = shard.mkdir(root, name.as_bytes(), 0o755, OWNER, 0);
            dir.expect("there is room")
        })
        .collect();
    let names = (0..count).map(|n| (dirs[n % DIRS], format!("file{n:08}")));
    let files = Files {
        names: names.collect(),
        order: shuffled(count),
    };
    println!("{count} files in {DIRS} directories");
    let walk: Vec<[u64; 16]> = vec![[1; 16]; count];
    best("(a word of each of as many 128-byte blocks)", count, || {
        let sum: u64 = files.order.iter().map(|i| walk[*i][3]).sum();
        assert_eq!(sum, count as u64);
    });
    drop(walk);
    let mut inos = Vec::with_capacity(count);
    let create = time(count, || {
        for (dir, name) in &files.names {
            let ino = shard.create(*dir, name.as_bytes(), 0o600, OWNER, 0);
            inos.push(ino.expect("there is room"));
        }
    });
    report("create, in order", create);
    let before = shard.counts();
    reads(&shard, &files, &inos);
    changes(&mut shard, &files, &mut inos);
    let after = shard.counts();
    for (when, counts) in [("when made", before), ("when all was made again", after)] {
        let count = count as u64;
        let (tables, private) = (counts.table_bytes / count, counts.private_bytes / count);
        println!("memory a file, {when}: tables {tables} B + private {private} B");
    }
}
