//! What the extent index costs: time an operation, and memory a run, as the allocator sees it.
//!
//! `cargo bench -p weir-core --bench extent_index` prints a table. Times are means over many operations in random
//! order, so that they contain the cache misses that a big index has, and of this thread's CPU time, so that they do not
//! contain others' work. The standard library's map, asked the same in the same run, is the yardstick. With `--check` the promises are asserted: 96 bytes a
//! run, 1 us an insertion and 200 ns a query at a million extents (times three, for a busy machine).

use std::alloc::{GlobalAlloc, Layout, System};
use std::collections::BTreeMap;
use std::hint::black_box;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use rustix::time::{clock_gettime, ClockId};
use weir_core::extent::{ExtentIndex, Run, Source};

/// Bytes that are allocated now, as they were asked for.
static ALLOCATED: AtomicUsize = AtomicUsize::new(0);

struct Counting;

// SAFETY: all calls go to the system's allocator unchanged; counting does not touch the memory.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATED.fetch_add(layout.size(), Relaxed);
        // SAFETY: the caller upholds the contract of `alloc`, which is that of `System.alloc`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        ALLOCATED.fetch_sub(layout.size(), Relaxed);
        // SAFETY: the pointer came from `System` by `alloc` above, with this layout.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

const MANY: u64 = 1_000_000;
const PIECE: u64 = 4096;

/// A permutation of `0..n` without a table or a pattern: bijective mixing modulo a power of two, repeated where it lands
/// outside.
fn scattered(n: u64) -> impl Iterator<Item = u64> {
    let bits = n.next_power_of_two().trailing_zeros();
    let mask = (1 << bits) - 1;
    let mix = move |mut i: u64| {
        for _ in 0..3 {
            i = i.wrapping_mul(0x9E37_79B9_7F4A_7C15) & mask;
            i ^= i >> (bits / 2);
        }
        i
    };
    (0..=mask).map(mix).filter(move |i| *i < n)
}

/// Extent number `i`, with a gap behind it, so that none joins another.
fn extent(i: u64, stamp: u64) -> Run {
    let slab = u32::try_from(i >> 14).unwrap();
    Run::extent(i * 2 * PIECE, PIECE, stamp, 0, slab, (i & 0x3fff) * PIECE).unwrap()
}

fn insert(index: &mut ExtentIndex, run: Run) {
    black_box(
        index
            .insert(run, &mut |range| _ = black_box(range))
            .unwrap(),
    );
}

/// CPU time of this thread.
#[allow(clippy::cast_precision_loss, reason = "2^53 ns are a hundred days")]
fn cpu_ns() -> f64 {
    let now = clock_gettime(ClockId::ThreadCPUTime);
    now.tv_sec as f64 * 1e9 + now.tv_nsec as f64
}

struct Report {
    check: bool,
}

impl Report {
    #[allow(clippy::cast_precision_loss, reason = "a printed mean")]
    fn time(&self, what: &str, operations: u64, limit_ns: f64, work: impl FnOnce()) {
        let start = cpu_ns();
        work();
        let each = (cpu_ns() - start) / operations as f64;
        println!("{what:<64} {each:>10.1} ns");
        assert!(
            !self.check || each < 3.0 * limit_ns,
            "{what}: {each} ns, promised {limit_ns}"
        );
    }

    fn memory(&self, what: &str, things: u64, before: usize, limit: u64) {
        let each = (ALLOCATED.load(Relaxed) - before) as u64 / things;
        println!("{what:<64} {each:>10} bytes");
        assert!(
            !self.check || each <= limit,
            "{what}: {each} bytes, promised {limit}"
        );
    }
}

/// The yardstick: the same million extents in the standard library's map.
fn baseline(report: &Report) {
    let before = ALLOCATED.load(Relaxed);
    let mut map = BTreeMap::new();
    report.time(
        "(std BTreeMap: insert, random, up to a million)",
        MANY,
        f64::MAX,
        || {
            for (stamp, i) in scattered(MANY).enumerate() {
                map.insert(
                    i * 2 * PIECE,
                    (PIECE, stamp as u64, i * PIECE, 0_u32, 0_u16),
                );
            }
        },
    );
    report.memory(
        "(std BTreeMap: memory an entry, random)",
        MANY,
        before,
        u64::MAX,
    );
    report.time(
        "(std BTreeMap: range query of one, random)",
        MANY,
        f64::MAX,
        || {
            for i in scattered(MANY) {
                black_box(map.range(..=i * 2 * PIECE).next_back());
            }
        },
    );
}

fn plain(report: &Report, order: &str, offsets: impl Iterator<Item = u64>) -> ExtentIndex {
    let before = ALLOCATED.load(Relaxed);
    let mut index = ExtentIndex::new();
    report.time(
        &format!("insert an extent, {order}, up to a million"),
        MANY,
        1000.0,
        || {
            for (stamp, i) in offsets.enumerate() {
                insert(&mut index, extent(i, stamp as u64));
            }
        },
    );
    report.memory(&format!("memory a run, {order}"), MANY, before, 96);
    index
}

fn queries(report: &Report, index: &ExtentIndex) {
    let mut pieces = Vec::new();
    report.time("query one piece of a million, random", MANY, 200.0, || {
        for i in scattered(MANY) {
            pieces.clear();
            index.query(i * 2 * PIECE, i * 2 * PIECE + PIECE, &mut pieces);
            black_box(&pieces);
        }
    });
    report.time("visit one piece of a million, random", MANY, 200.0, || {
        for i in scattered(MANY) {
            index.for_each_piece_in(i * 2 * PIECE, i * 2 * PIECE + PIECE, &mut |piece| {
                _ = black_box(piece);
            });
        }
    });
    report.time(
        "visit one piece of a million, in order",
        MANY,
        200.0,
        || {
            for i in 0..MANY {
                index.for_each_piece_in(i * 2 * PIECE, i * 2 * PIECE + PIECE, &mut |piece| {
                    _ = black_box(piece);
                });
            }
        },
    );
}

fn overwrites(report: &Report, mut index: ExtentIndex) {
    report.time(
        "overwrite an extent of a million, random",
        MANY,
        1000.0,
        || {
            for i in scattered(MANY) {
                insert(&mut index, extent(i, MANY + 1));
            }
        },
    );
    report.time(
        "overwrite the middle of an extent, random",
        MANY,
        1000.0,
        || {
            for i in scattered(MANY) {
                insert(
                    &mut index,
                    Run::extent(i * 2 * PIECE + 100, 100, MANY + 2, 1, 0, i * 100).unwrap(),
                );
            }
        },
    );
    report.time(
        "settle three million extents (each)",
        3 * MANY,
        2000.0,
        || index.settle(),
    );
    report.time("clear them (each)", 3 * MANY, 1000.0, || {
        index.clear(&mut |range| _ = black_box(range));
    });
}

fn in_turns(writer: u64, writers: u64, count: u64) -> Run {
    let source = Source::Log {
        rank: 0,
        slab: u32::try_from(writer).unwrap(),
        pos: 0,
        pos_stride: PIECE,
    };
    let stride = if count == 1 { 0 } else { writers * PIECE };
    Run {
        offset: writer * PIECE,
        length: PIECE,
        stride,
        count,
        stamp: writer + 1,
        source,
    }
}

fn strided(report: &Report, writers: u64) {
    const ROUNDS: u64 = 1000;
    let mut index = ExtentIndex::new();
    for writer in 0..writers {
        insert(&mut index, in_turns(writer, writers, 4));
    }
    report.time(
        &format!("grow one of {writers} interleaved runs"),
        writers * ROUNDS,
        1e5,
        || {
            for count in 4..ROUNDS + 4 {
                for writer in 0..writers {
                    let (before, run) = (
                        in_turns(writer, writers, count),
                        in_turns(writer, writers, count + 1),
                    );
                    black_box(index.grow(&before, run, &mut |_| ()).unwrap());
                }
            }
        },
    );
    assert_eq!(index.run_count() as u64, writers);
    let pieces = writers * ROUNDS;
    report.time(
        &format!("visit one piece of {writers} interleaved runs"),
        pieces,
        1e5,
        || {
            for i in scattered(pieces) {
                index.for_each_piece_in(i * PIECE, (i + 1) * PIECE, &mut |piece| {
                    _ = black_box(piece);
                });
            }
        },
    );
    report.time(
        &format!("query 16 pieces of {writers} interleaved runs"),
        pieces,
        1e5,
        || {
            let mut found = Vec::new();
            for i in scattered(pieces) {
                found.clear();
                index.query(i * PIECE, (i + 16) * PIECE, &mut found);
                black_box(&found);
            }
        },
    );
}

fn small_files(report: &Report) {
    let before = ALLOCATED.load(Relaxed);
    let mut files = vec![ExtentIndex::new(); usize::try_from(MANY).unwrap()];
    report.memory("memory a file without data", MANY, before, 16);
    for (i, index) in (0..).zip(&mut files) {
        insert(index, extent(i, 1));
    }
    report.memory("memory a file of one extent", MANY, before, 80);
}

fn main() {
    let report = Report {
        check: std::env::args().any(|argument| argument == "--check"),
    };
    baseline(&report);
    drop(plain(&report, "descending", (0..MANY).rev()));
    drop(plain(&report, "ascending", 0..MANY));
    let index = plain(&report, "random", scattered(MANY));
    queries(&report, &index);
    overwrites(&report, index);
    for writers in [4, 64, 256] {
        strided(&report, writers);
    }
    small_files(&report);
}
