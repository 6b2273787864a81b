//! Mounts a directory as a parallel file system with a limited rate, until standard input ends:
//!
//! ```text
//! cargo run --release -p weir-faultfs --example mount -- BACKING MOUNT_POINT BYTES_PER_SECOND [LATENCY_MS]
//! ```
//!
//! With a latency each request waits so long. At a line of standard input it prints how many write requests came since the last
//! line. For benchmarks by hand, such as `weir bench --elevate MOUNT_POINT`.
#![forbid(unsafe_code)]

use std::error::Error;
use std::io::BufRead;
use std::path::PathBuf;
use std::time::Duration;

use weir_faultfs::{FaultFs, FsOperation};

fn main() -> Result<(), Box<dyn Error>> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let (backing, mount_point, rate, latency) = match &words[..] {
        [backing, mount_point, rate] => (backing, mount_point, rate, "0"),
        [backing, mount_point, rate, latency] => (backing, mount_point, rate, latency.as_str()),
        _ => return Err("usage: mount BACKING MOUNT_POINT BYTES_PER_SECOND [LATENCY_MS]".into()),
    };
    let fs = FaultFs::mount(&PathBuf::from(backing), &PathBuf::from(mount_point))?;
    fs.set_write_rate(Some(rate.parse()?));
    fs.set_latency(Duration::from_millis(latency.parse()?));
    println!("mounted");
    for line in std::io::stdin().lock().lines() {
        line?;
        println!(
            "{} write requests",
            fs.requests_of(FsOperation::Write).len()
        );
        fs.forget_requests();
    }
    Ok(())
}
