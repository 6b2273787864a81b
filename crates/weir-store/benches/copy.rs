//! Copies into and out of warm memory against memcpy: `cargo bench -p weir-store --bench copy`.
//!
//! The working set is 512 MiB of tmpfs, in huge pages where the kernel gives them; the
//! application's buffer is reused, as an application does. Arguments: the number of
//! threads (default 1), and where in a page the buffer begins (default 16, as malloc gives
//! large ones). Prints ns an operation and GiB/s (of all threads), best of four.

use std::sync::Barrier;
use std::time::Instant;

use weir_store::copy::{copy_in, copy_out};
use weir_store::map::{create_sparse, Mapping, Region};

const SET_BYTES: usize = 512 << 20;
const PAGE: usize = 4096;
const SIZES: [usize; 10] = [
    64,
    256,
    1 << 10,
    4 << 10,
    8 << 10,
    47_008,
    64 << 10,
    256 << 10,
    1 << 20,
    16 << 20,
];

type Copy = unsafe fn(*mut u8, *const u8, usize);

/// What it is measured against.
///
/// # Safety
///
/// As `copy_in`.
unsafe fn memcpy(dst: *mut u8, src: *const u8, len: usize) {
    // SAFETY: `len` bytes are readable at `src` and writable at `dst`, and do not overlap, by the
    // caller.
    unsafe { std::ptr::copy_nonoverlapping(src, dst, len) }
}

fn main() {
    let mut numbers = std::env::args().filter_map(|word| word.parse().ok());
    let threads = numbers.next().unwrap_or(1);
    let buffer_offset = numbers.next().unwrap_or(16);
    let slab = warm_region();
    print!("{threads} thread(s)\n{:12}", "");
    for size in SIZES {
        print!("{size:>20}");
    }
    println!();
    let rows: [(&str, Copy, bool); 4] = [
        ("copy_in", copy_in, true),
        ("memcpy in", memcpy, true),
        ("copy_out", copy_out, false),
        ("memcpy out", memcpy, false),
    ];
    for (name, copy, inward) in rows {
        print!("{name:12}");
        for size in SIZES {
            let best_ns = (0..4)
                .map(|_| round(copy, inward, size, slab, threads, buffer_offset))
                .fold(f64::MAX, f64::min);
            let gib = to_f64(size * threads) / best_ns * 1e9 / f64::from(1 << 30);
            print!("{best_ns:>11.1}ns{gib:>6.1}G");
        }
        println!();
    }
}

/// One pass over the working set by all threads: ns an operation of the slowest.
fn round(
    copy: Copy,
    inward: bool,
    size: usize,
    slab: Region,
    threads: usize,
    offset: usize,
) -> f64 {
    let barrier = Barrier::new(threads);
    let share = SET_BYTES / threads;
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..threads)
            .map(|index| {
                let barrier = &barrier;
                scope.spawn(move || {
                    let mut memory = vec![1u8; size + 2 * PAGE];
                    let skip = memory.as_ptr().align_offset(PAGE) + offset % PAGE;
                    let buffer = &mut memory[skip..skip + size];
                    // SAFETY: each thread has a share of the region.
                    let base = unsafe { slab.base().as_ptr().add(index * share) };
                    barrier.wait();
                    let start = Instant::now();
                    for at in (0..=share - size).step_by(size) {
                        // SAFETY: `at + size` is within the share, and the buffer holds
                        // `size` bytes.
                        unsafe {
                            if inward {
                                copy(base.add(at), buffer.as_ptr(), size);
                            } else {
                                copy(buffer.as_mut_ptr(), base.add(at), size);
                            }
                        }
                    }
                    start.elapsed().as_secs_f64() * 1e9 / to_f64(share / size)
                })
            })
            .collect();
        workers
            .into_iter()
            .map(|worker| worker.join().expect("a copying thread"))
            .fold(0.0, f64::max)
    })
}

/// 512 MiB of tmpfs, present and in huge pages if the kernel can.
fn warm_region() -> Region {
    let path = format!("/dev/shm/weir-copy-bench-{}", std::process::id());
    let file = create_sparse(rustix::fs::CWD, path.as_str(), SET_BYTES as u64).expect("a file");
    rustix::fs::unlink(path.as_str()).expect("unlink");
    let slab = Mapping::new_huge_aligned(&file, SET_BYTES).expect("a mapping");
    weir_store::warm::warm(&slab, &file, 0..SET_BYTES).expect("warm memory");
    slab.leak()
}

#[allow(clippy::cast_precision_loss)] // sizes far below 2^53
fn to_f64(count: usize) -> f64 {
    count as f64
}
