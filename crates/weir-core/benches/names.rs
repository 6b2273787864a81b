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

/// The files' names, made up when they are needed: so no memory but the tables' is waited for.
struct Files {
    dirs: Vec<Ino>,
    order: Vec<usize>,
}

impl Files {
    fn name(&self, n: usize) -> (Ino, [u8; 12]) {
        let mut name = *b"file00000000";
        let mut rest = n;
        for byte in name[4..].iter_mut().rev() {
            *byte = b"0123456789"[rest % 10];
            rest /= 10;
        }
        (self.dirs[n % self.dirs.len()], name)
    }

    fn ordered(&self) -> impl Iterator<Item = (Ino, [u8; 12])> + '_ {
        (0..self.order.len()).map(|n| self.name(n))
    }

    fn shuffled(&self) -> impl Iterator<Item = (usize, (Ino, [u8; 12]))> + '_ {
        self.order.iter().map(|n| (*n, self.name(*n)))
    }
}

fn reads(shard: &Shard<'_>, files: &Files, inos: &[Ino]) {
    let (view, count) = (shard.view(), inos.len());
    let (dir, name) = files.name(0);
    best("lookup, one name again and again", count, || {
        for _ in 0..count {
            black_box(view.lookup(black_box(dir), &name).expect("idle"));
        }
    });
    best("attr, one inode again and again", count, || {
        for _ in 0..count {
            black_box(view.attr(black_box(inos[0])).expect("idle"));
        }
    });
    best("lookup + attr, 1,000 names in turn", count, || {
        for n in 0..count {
            let (dir, name) = files.name(n % 1000);
            let found = view.lookup(dir, &name).expect("idle");
            black_box(view.attr(found.expect("is there").0).expect("idle"));
        }
    });
    best("lookup of all, in order", count, || {
        for (dir, name) in files.ordered() {
            assert!(view.lookup(dir, &name).expect("idle").is_some());
        }
    });
    best("lookup of all, at random", count, || {
        for (_, (dir, name)) in files.shuffled() {
            assert!(view.lookup(dir, &name).expect("idle").is_some());
        }
    });
    best("lookup of what is not there", count, || {
        for (_, (dir, name)) in files.shuffled() {
            assert!(view.lookup(dir, &name[..11]).expect("idle").is_none());
        }
    });
    best("attr of all, at random", count, || {
        for i in &files.order {
            black_box(view.attr(inos[*i]).expect("idle"));
        }
    });
}

fn unlink(shard: &mut Shard<'_>, dir: Ino, name: &[u8]) {
    let gone = shard.unlink(dir, name, 3).expect("is there");
    shard.release(gone.ino).expect("is gone");
}

fn create(shard: &mut Shard<'_>, dir: Ino, name: &[u8]) {
    shard
        .create(dir, name, 0o600, OWNER, 4)
        .expect("there is room");
}

fn changes(shard: &mut Shard<'_>, files: &Files, inos: &[Ino]) {
    let count = inos.len();
    best("setattr (size, mtime) of all, at random", count, || {
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
            let dir = files.name(n).0;
            create(shard, dir, b"temporary001");
            unlink(shard, dir, b"temporary001");
        }
    });
    let ns = time(count, || {
        for (_, (dir, name)) in files.shuffled() {
            unlink(shard, dir, &name);
        }
    });
    report("unlink + release of all, at random", ns);
    let ns = time(count, || {
        for (dir, name) in files.ordered() {
            create(shard, dir, &name);
        }
    });
    report("create of all again, in order", ns);
    let ns = time(count, || {
        for (dir, name) in files.ordered() {
            unlink(shard, dir, &name);
        }
    });
    report("unlink + release of all, in order", ns);
    let ns = time(count, || {
        for (_, (dir, name)) in files.shuffled() {
            create(shard, dir, &name);
        }
    });
    report("create of all again, at random", ns);
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
    let mut mkdir = |d: usize| {
        let name = format!("dir{d}");
        let dir = shard.mkdir(root, name.as_bytes(), 0o755, OWNER, 0);
        dir.expect("there is room")
    };
    let files = Files {
        dirs: (0..DIRS).map(&mut mkdir).collect(),
        order: shuffled(count),
    };
    println!("{count} files in {DIRS} directories");
    reference(&files);
    let mut inos = Vec::with_capacity(count);
    let ns = time(count, || {
        for (dir, name) in files.ordered() {
            let ino = shard.create(dir, &name, 0o600, OWNER, 0);
            inos.push(ino.expect("there is room"));
        }
    });
    report("create, in order, the table growing", ns);
    let before = shard.counts();
    reads(&shard, &files, &inos);
    changes(&mut shard, &files, &inos);
    let after = shard.counts();
    for (when, counts) in [("when made", before), ("when all was made again", after)] {
        let count = count as u64;
        let (tables, private) = (counts.table_bytes / count, counts.private_bytes / count);
        println!("memory a file, {when}: tables {tables} B + private {private} B");
    }
}

/// What one dependent access to memory of the tables' size costs on this machine.
fn reference(files: &Files) {
    let count = files.order.len();
    let mut next: Vec<[usize; 16]> = vec![[0; 16]; count];
    for pair in files.order.windows(2) {
        next[pair[0]][3] = pair[1];
    }
    best("(memory access, each waiting for the last)", count, || {
        let mut here = files.order[0];
        for _ in 0..count {
            here = next[here][3];
        }
        black_box(here);
    });
}
