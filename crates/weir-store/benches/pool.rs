//! Warming, and writing into warm and cold segments: `cargo bench -p weir-store --bench pool`.
//!
//! Argument: how many slabs (default 8, that is 512 MiB). Prints GiB/s: what one and two
//! warmers make; then, for writers that map the slabs anew as another process would, the
//! first and the second pass over warm segments, the first over cold ones, and write() to
//! a fresh tmpfs file beside them.

use std::io::Write;
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use weir_core::types::ClientId;
use weir_store::backing::DirBacking;
use weir_store::pool::WarmPool;
use weir_store::slab::SLAB_BYTES;
use weir_store::slabmap::{SegmentWriter, SlabMap};
use weir_store::tier::{Grant, TierConfig, Tiers};

const WRITE_SIZES: [usize; 4] = [1 << 10, 4 << 10, 64 << 10, 1 << 20];

fn main() {
    let slabs = std::env::args()
        .find_map(|word| word.parse().ok())
        .unwrap_or(8);
    for warmers in [1, 2] {
        let seconds = in_fresh_dir(|dir| {
            let tiers = storage(dir, slabs, true);
            warm(dir, &tiers, warmers)
        });
        report(&format!("{warmers} warmer(s)"), slabs, seconds);
    }
    for size in WRITE_SIZES {
        let source = vec![1; size];
        in_fresh_dir(|dir| {
            let mut tiers = storage(dir, slabs, true);
            warm(dir, &tiers, 2);
            let grants = all(&mut tiers, true);
            let map = SlabMap::new(dir, slabs, &[]);
            for pass in ["first", "second"] {
                let seconds = fill(&map, &grants, &source);
                report(&format!("{size} B, warm, {pass} pass"), slabs, seconds);
            }
        });
        in_fresh_dir(|dir| {
            let mut tiers = storage(dir, slabs, false);
            let grants = all(&mut tiers, false);
            let seconds = fill(&SlabMap::new(dir, slabs, &[]), &grants, &source);
            report(&format!("{size} B, cold"), slabs, seconds);
        });
        let seconds = in_fresh_dir(|dir| {
            let mut file = std::fs::File::create(dir.join("plain")).expect("a file");
            let start = Instant::now();
            for _ in 0..u64::from(slabs) * SLAB_BYTES / size as u64 {
                file.write_all(&source).expect("room on tmpfs");
            }
            start.elapsed().as_secs_f64()
        });
        report(&format!("{size} B, write() to tmpfs"), slabs, seconds);
    }
}

fn in_fresh_dir<T>(run: impl FnOnce(&Path) -> T) -> T {
    let dir = format!("/dev/shm/weir-pool-bench-{}", std::process::id());
    std::fs::create_dir(&dir).expect("a directory on tmpfs");
    let result = run(Path::new(&dir));
    std::fs::remove_dir_all(&dir).expect("it can be removed");
    result
}

fn storage(dir: &Path, slabs: u32, warm: bool) -> Tiers<DirBacking> {
    let bytes = u64::from(slabs) * SLAB_BYTES;
    let config = TierConfig {
        memory_budget_bytes: bytes,
        warm_bytes: if warm { bytes } else { 0 },
        storage_budgets_bytes: vec![],
    };
    Tiers::new(&config, DirBacking::open(dir, &[]).expect("its directory"))
}

/// Seconds until all slabs are warm.
fn warm(dir: &Path, tiers: &Tiers<DirBacking>, warmers: usize) -> f64 {
    let board = tiers.board();
    let start = Instant::now();
    let pool = WarmPool::start(dir, Arc::clone(board), warmers).expect("threads");
    while tiers.usage()[0].warm_bytes < tiers.usage()[0].capacity_bytes {
        assert_eq!(board.last_error(), None);
        std::thread::sleep(std::time::Duration::from_micros(200));
    }
    let seconds = start.elapsed().as_secs_f64();
    if let Some(errno) = board.small_pages() {
        println!("pages are small: {errno}");
    }
    pool.stop();
    seconds
}

fn all(tiers: &mut Tiers<DirBacking>, warm: bool) -> Vec<Grant> {
    let grants: Vec<_> =
        std::iter::from_fn(|| tiers.grant(SLAB_BYTES, SLAB_BYTES, ClientId(0)).ok()).collect();
    assert!(grants.iter().all(|grant| grant.warm == warm));
    grants
}

/// Seconds to fill all segments.
fn fill(map: &SlabMap, grants: &[Grant], source: &[u8]) -> f64 {
    let start = Instant::now();
    for grant in grants {
        let writer: SegmentWriter = map
            .writer(grant.slab, grant.pos, grant.len, grant.warm)
            .expect("the slab can be mapped");
        for at in (0..writer.len()).step_by(source.len()) {
            writer.write(map, at, source).expect("room on tmpfs");
        }
    }
    start.elapsed().as_secs_f64()
}

fn report(what: &str, slabs: u32, seconds: f64) {
    let gib = f64::from(slabs) / 16.0;
    println!("{what:36} {:7.2} GiB/s", gib / seconds);
}
