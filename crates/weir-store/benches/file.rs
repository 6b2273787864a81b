//! The file tier beside the disk's own rate: `cargo bench -p weir-store --bench file`.
//!
//! Arguments: MiB (default 1024), rounds (default 3); the directory is `TMPDIR`'s. Each
//! round writes slabs in pieces of 1 MiB and syncs them, as a client of the file tier
//! does, and a file of the same size with `O_DIRECT`, also synced; prints GiB/s of each.

use std::fs::OpenOptions;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::time::Instant;

use weir_core::types::ClientId;
use weir_store::backing::DirBacking;
use weir_store::slab::{SLAB_BYTES, UNIT_BYTES};
use weir_store::slabmap::SlabMap;
use weir_store::tier::{TierConfig, Tiers};

const PIECE: usize = 1 << 20;

fn main() {
    let mut numbers = std::env::args().filter_map(|word| word.parse().ok());
    let mib: u64 = numbers.next().unwrap_or(1024);
    let rounds = numbers.next().unwrap_or(3);
    let dir = std::env::temp_dir().join(format!("weir-file-bench-{}", std::process::id()));
    let mut memory = vec![0u8; PIECE + 4096];
    for (at, byte) in memory.iter_mut().enumerate() {
        *byte = u8::try_from(at * 2_654_435_761 % 251).expect("below 256");
    }
    let skip = memory.as_ptr().align_offset(4096);
    let piece = &memory[skip..skip + PIECE];
    for _ in 0..rounds {
        for (what, run) in [
            ("file tier", file_tier as fn(&Path, u64, &[u8]) -> f64),
            ("O_DIRECT", direct),
        ] {
            std::fs::create_dir(&dir).expect("a directory");
            let seconds = run(&dir, mib, piece);
            std::fs::remove_dir_all(&dir).expect("it can be removed");
            #[allow(clippy::cast_precision_loss)] // far below 2^53
            let gib = mib as f64 / 1024.0;
            println!("{what:12} {:6.2} GiB/s", gib / seconds);
        }
    }
}

fn file_tier(dir: &Path, mib: u64, piece: &[u8]) -> f64 {
    let config = TierConfig {
        memory_budget_bytes: 0,
        warm_bytes: 0,
        storage_budgets_bytes: vec![mib * UNIT_BYTES],
    };
    let mut tiers = Tiers::new(
        &config,
        DirBacking::open(dir, &[dir]).expect("its directory"),
    );
    let map = SlabMap::new(dir, 0, &[(dir, tiers.max_slabs()[1])]);
    let start = Instant::now();
    let mut slabs = Vec::new();
    while let Ok(grant) = tiers.grant(UNIT_BYTES, SLAB_BYTES, ClientId(0)) {
        for at in (0..grant.len).step_by(PIECE) {
            map.write_at(grant.slab, grant.pos + at, piece)
                .expect("a write");
        }
        slabs.push(grant.slab);
    }
    for slab in slabs {
        map.sync(slab).expect("fdatasync");
    }
    start.elapsed().as_secs_f64()
}

fn direct(dir: &Path, mib: u64, piece: &[u8]) -> f64 {
    let file = OpenOptions::new()
        .write(true)
        .create_new(true)
        .custom_flags(libc::O_DIRECT)
        .open(dir.join("direct"))
        .expect("a file that can be written directly");
    let start = Instant::now();
    for at in 0..mib {
        file.write_all_at(piece, at * UNIT_BYTES).expect("a write");
    }
    file.sync_data().expect("fdatasync");
    start.elapsed().as_secs_f64()
}
