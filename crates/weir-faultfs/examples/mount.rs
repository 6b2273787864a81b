//! Mounts a directory as a parallel file system with a limited rate, until standard input ends:
//!
//! ```text
//! cargo run --release -p weir-faultfs --example mount -- BACKING MOUNT_POINT BYTES_PER_SECOND
//! ```
//!
//! For benchmarks by hand, such as `weir bench --elevate MOUNT_POINT`.
#![forbid(unsafe_code)]

use std::error::Error;
use std::io::Read;
use std::path::PathBuf;

use weir_faultfs::FaultFs;

fn main() -> Result<(), Box<dyn Error>> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let [backing, mount_point, rate] = &words[..] else {
        return Err("usage: mount BACKING MOUNT_POINT BYTES_PER_SECOND".into());
    };
    let fs = FaultFs::mount(&PathBuf::from(backing), &PathBuf::from(mount_point))?;
    fs.set_write_rate(Some(rate.parse()?));
    println!("mounted");
    std::io::stdin().read_to_end(&mut Vec::new())?;
    Ok(())
}
