//! Times a kernel mount beside another directory, in rounds that alternate: 1 MiB reads and writes, and
//! calls on names. To measure a mount of weir against a file system that only copies (the example
//! `memory`), without the interposer:
//!
//! ```text
//! target/release/examples/memory /tmp/memory &
//! target/release/weir run -- sh -c \
//!     'LD_PRELOAD= target/release/examples/moves $(readlink $WEIR_INSTANCE/mounted-at) /tmp/memory'
//! ```

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::Instant;

const ROUNDS: usize = 9;
const PIECE: usize = 1 << 20;
const PIECES: u64 = 64;
const FILES: u32 = 400;
const NAMES: [&str; 5] = [
    "write 1 MiB",
    "read 1 MiB",
    "create+close",
    "stat",
    "unlink",
];

/// The time of one of each, in us.
type Times = [f64; NAMES.len()];

/// Runs `act` so many times; the time of one, in us.
fn each(count: u32, mut act: impl FnMut(u32) -> io::Result<()>) -> io::Result<f64> {
    let begin = Instant::now();
    (0..count).try_for_each(&mut act)?;
    Ok(begin.elapsed().as_secs_f64() * 1e6 / f64::from(count))
}

fn round(dir: &Path) -> io::Result<Times> {
    let path = dir.join("large");
    let mut bytes = vec![7; PIECE];
    let file = File::options()
        .create(true)
        .truncate(false)
        .read(true)
        .write(true)
        .open(&path)?;
    let pieces = u32::try_from(PIECES).map_err(io::Error::other)?;
    let at = |n: u32| u64::from(n) * PIECE as u64;
    let written = each(pieces, |n| file.write_all_at(&bytes, at(n)))?;
    let read = each(pieces, |n| file.read_exact_at(&mut bytes, at(n)))?;
    let name = |n: u32| dir.join(format!("f{n}"));
    let created = each(FILES, |n| File::create_new(name(n)).map(drop))?;
    let looked = each(FILES, |n| fs::metadata(name(n)).map(drop))?;
    let removed = each(FILES, |n| fs::remove_file(name(n)))?;
    Ok([written, read, created, looked, removed])
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

fn main() -> io::Result<()> {
    let dirs: Vec<PathBuf> = std::env::args_os().skip(1).map(PathBuf::from).collect();
    let [one, other] = &dirs[..] else {
        return Err(io::Error::other("usage: moves DIR DIR"));
    };
    // The first round makes the large file.
    let (_, _) = (round(one)?, round(other)?);
    let mut rounds = Vec::new();
    for _ in 0..ROUNDS {
        rounds.push((round(one)?, round(other)?));
    }
    println!(
        "{:<14}{:>12}{:>12}{:>10}",
        "us each", "first", "second", "speed"
    );
    for (at, name) in NAMES.iter().enumerate() {
        let of = |pick: fn(&(Times, Times)) -> &Times| {
            median(rounds.iter().map(|round| pick(round)[at]).collect())
        };
        let ratio = median(
            rounds
                .iter()
                .map(|(one, other)| other[at] / one[at])
                .collect(),
        );
        let (one, other) = (of(|round| &round.0), of(|round| &round.1));
        println!("{name:<14}{one:>12.1}{other:>12.1}{ratio:>10.2}");
    }
    for dir in [one, other] {
        fs::remove_file(dir.join("large"))?;
    }
    Ok(())
}
