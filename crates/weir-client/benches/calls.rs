//! The time of calls, beside that of the same calls on tmpfs.
//!
//! `cargo bench -p weir-client --bench calls`: ns a call, the best of several rounds,
//! without the few ns that the interposer adds.

#[path = "../tests/common/mod.rs"]
mod common;

use std::hint::black_box;
use std::sync::atomic::AtomicU8;
use std::time::Instant;

use common::Served;
use weir_client::process::process;

const CWD: i32 = -100;
const O_RDWR_CREAT: i32 = 0o102;
const ROUNDS: usize = 7;

/// The best time of a call in ns.
fn best(calls: u32, mut call: impl FnMut(u32)) -> f64 {
    let mut least = f64::INFINITY;
    for _ in 0..ROUNDS {
        let begin = Instant::now();
        for i in 0..calls {
            call(i);
        }
        let ns = begin.elapsed().as_secs_f64() * 1e9 / f64::from(calls);
        least = least.min(ns);
    }
    least
}

fn row(name: &str, weir: f64, tmpfs: f64) {
    println!(
        "{name:<28} {weir:>10.1} ns {tmpfs:>10.1} ns {:>8.2} x",
        tmpfs / weir
    );
}

fn open(path: &[u8]) -> i32 {
    process()
        .opening
        .openat(CWD, path, O_RDWR_CREAT, 0o600)
        .unwrap()
        .unwrap()
}

fn calls(tmp: &std::path::Path) {
    use rustix::fs::{Mode, OFlags};
    let p = process();
    let fd = open(b"/weir/f");
    let file = tmp.join("f");
    let flags = OFlags::CREATE | OFlags::RDWR;
    let other = rustix::fs::open(&file, flags, Mode::RWXU).unwrap();
    println!(
        "{:<28} {:>13} {:>13} {:>10}",
        "call", "weir", "tmpfs", "ratio"
    );
    for (bytes, calls) in [(64, 200_000u32), (1024, 100_000), (65_536, 2_000)] {
        let buffer = vec![1u8; bytes];
        let at = |i: u32| u64::from(i) * bytes as u64;
        let ours = best(calls, |i| {
            assert!(p.io.pwrite(fd, &buffer, at(i).cast_signed()) == Some(Ok(bytes)));
        });
        let theirs = best(calls, |i| {
            rustix::io::pwrite(&other, &buffer, at(i)).unwrap();
        });
        row(&format!("pwrite {bytes} B in order"), ours, theirs);
        let mut buffer = vec![1u8; bytes];
        let ours = best(calls, |i| {
            assert!(p.io.pread(fd, &mut buffer, at(i).cast_signed()) == Some(Ok(bytes)));
        });
        let theirs = best(calls, |i| {
            rustix::io::pread(&other, &mut buffer[..], at(i)).unwrap();
        });
        row(&format!("pread {bytes} B in order"), ours, theirs);
    }
    let ours = best(50_000, |_| {
        let _ = black_box(p.attributes.fstat(fd));
    });
    row(
        "fstat",
        ours,
        best(50_000, |_| {
            let _ = black_box(rustix::fs::fstat(&other));
        }),
    );
    let ours = best(20_000, |_| {
        let _ = black_box(p.attributes.fstatat(CWD, b"/weir/f", 0));
    });
    row(
        "stat",
        ours,
        best(20_000, |_| {
            let _ = black_box(rustix::fs::stat(&file));
        }),
    );
    let ours = best(5_000, |_| {
        p.descriptors.close(open(b"/weir/f")).unwrap().unwrap();
    });
    let theirs = best(5_000, |_| {
        drop(rustix::fs::open(&file, OFlags::RDWR, Mode::empty()));
    });
    row("open + close", ours, theirs);
    let ours = best(500, |_| {
        p.descriptors.close(open(b"/weir/new")).unwrap().unwrap();
        p.names.unlinkat(CWD, b"/weir/new", 0).unwrap().unwrap();
    });
    let new = tmp.join("new");
    let theirs = best(500, |_| {
        drop(rustix::fs::open(&new, flags, Mode::RWXU));
        rustix::fs::unlink(&new).unwrap();
    });
    row("create + close + unlink", ours, theirs);
    let path = b"/usr/lib/python3/dist-packages/numpy/core/__init__.py";
    let ours = best(200_000, |_| {
        assert!(p.attributes.faccessat(CWD, path, 0, 0).is_none());
    });
    println!("{:<28} {ours:>10.1} ns", "a path that is not weir's");
}

fn main() {
    let served = Served::start(|options| {
        options.storage.clear();
        options.memory_budget_bytes = 512 << 20;
        options.warm_bytes = 256 << 20;
        options.max_files = 100_000;
    });
    served.name_in_environment();
    process().init();
    // Only this thread uses files of weir, as in a program of one thread.
    #[allow(clippy::items_after_statements)] // beside its only use
    static ALONE: AtomicU8 = AtomicU8::new(1);
    // SAFETY: a static.
    unsafe { weir_client::sys::set_single_threaded_flag(ALONE.as_ptr()) };
    calls(served.dir.path());
    served.stop();
}
