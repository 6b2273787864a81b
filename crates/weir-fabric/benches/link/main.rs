//! The speed of the fabric over a link, beside plain blocking TCP in the same run: `cargo bench -p
//! weir-fabric --bench link`, or one line of it (`-- echo`).
//!
//! Each round measures the plain link and then the fabric, so that both run under the same load of
//! the machine. The table has the medians of both, and the median of the rounds' ratios.
//!
//! | line | plain | fabric |
//! | --- | --- | --- |
//! | `echo 64 B` | write and read back, both ends blocked in read(2) | call and reply, both ends blocked |
//! | `read 1 MiB, 16 MiB` | one end writes, the other reads, as iperf3 does | reads of so many bytes, one after the other |
//!
//! "4 streams" are four threads: four connections of the plain link, four readers of one fabric.

mod ends;
mod plain;
#[path = "../../tests/slabs/mod.rs"]
mod slabs;

use std::time::Instant;

/// Pairs of measurements of each line.
const ROUNDS: usize = 9;
/// Round trips of one measurement.
const TRIPS: u32 = 4000;
/// Bytes of one measurement, in all streams.
const BYTES: usize = 1 << 30;
/// The write and read size of plain TCP: iperf3's default.
const STEP: usize = 128 << 10;

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// Measures both in turn; medians of both and of the ratio fabric : plain.
fn pairs(mut plain: impl FnMut() -> f64, mut fabric: impl FnMut() -> f64) -> [f64; 3] {
    let rounds: Vec<(f64, f64)> = (0..ROUNDS).map(|_| (plain(), fabric())).collect();
    [
        median(rounds.iter().map(|r| r.0).collect()),
        median(rounds.iter().map(|r| r.1).collect()),
        median(rounds.iter().map(|r| r.1 / r.0).collect()),
    ]
}

/// Seconds that `act` takes.
pub fn timed(act: impl FnOnce()) -> f64 {
    let begin = Instant::now();
    act();
    begin.elapsed().as_secs_f64()
}

fn main() {
    let load = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    println!("load before: {}", load.trim());
    let wanted: Vec<String> = std::env::args()
        .skip(1)
        .filter(|word| word != "--bench")
        .collect();
    let skips =
        |name: &str| !wanted.is_empty() && !wanted.iter().any(|word| name.contains(word.as_str()));
    let pair = ends::Pair::new();
    if !skips("echo") {
        echo(&pair);
    }
    for streams in [1, 4] {
        for size in [1_usize << 20, 16 << 20] {
            let name = format!("read {} MiB, {streams} streams", size >> 20);
            if !skips(&name) {
                reads(&pair, &name, (streams, size));
            }
        }
    }
}

fn echo(pair: &ends::Pair) {
    let mut echo = plain::Echo::new();
    let [a, b, ratio] = pairs(
        || echo.trips(TRIPS) / f64::from(TRIPS) * 1e6,
        || pair.trips(TRIPS) / f64::from(TRIPS) * 1e6,
    );
    println!(
        "{:<28} plain {a:8.2} us    fabric {b:8.2} us    ratio {ratio:.2}",
        "echo 64 B"
    );
}

/// Reads of `size` by `streams` threads.
fn reads(pair: &ends::Pair, name: &str, (streams, size): (usize, usize)) {
    let gb = |seconds: f64| {
        #[allow(clippy::cast_precision_loss)] // a rate
        let bytes = BYTES as f64;
        bytes / seconds / 1e9
    };
    for (kind, file, buffer) in [("cache", STEP, STEP), ("memory", ends::FILE, size)] {
        let [a, b, ratio] = pairs(
            || gb(plain::stream(streams, BYTES, file, buffer)),
            || gb(pair.read(streams, size, BYTES)),
        );
        println!(
            "{name:<24} plain ({kind:<6}) {a:6.2} GB/s  fabric {b:6.2} GB/s  ratio {ratio:.2}"
        );
    }
}
