//! The limit of address space, RLIMIT_AS: servers and clients map tables that are far larger than what
//! of them takes memory, so a limit that looks generous makes calls fail with ENOMEM.

use std::path::Path;

use nix::sys::resource::{getrlimit, Resource, RLIM_INFINITY};
use weir_core::proto::SHM_LINK;
use weir_instance::size::bytes;

/// The bytes that a client maps beside the tables: its own region, and some slabs.
const BESIDE_BYTES: u64 = 512 << 20;
/// The tables that it maps whole.
const TABLES: [&str; 2] = ["open", "names"];

/// The remedy.
const REMEDY: &str = "ulimit -v unlimited, or fewer files (server.max_files)";

/// The limit, if there is one.
fn limit() -> Option<u64> {
    let (soft, _) = getrlimit(Resource::RLIMIT_AS).ok()?;
    (soft != RLIM_INFINITY).then_some(soft)
}

/// Why programs that this process starts will not be able to use the instance in `run_dir`.
pub fn too_small_for(run_dir: &Path) -> Option<String> {
    let limit = limit()?;
    let shm_dir = std::fs::read_link(run_dir.join(SHM_LINK)).ok()?;
    let sizes = TABLES.map(|name| std::fs::metadata(shm_dir.join(name)).map_or(0, |m| m.len()));
    let needed = sizes.iter().sum::<u64>() + BESIDE_BYTES;
    (limit < needed).then(|| {
        format!(
            "the limit of address space (ulimit -v) is {}, and programs map about {} to use weir: \
             their calls below it may fail with ENOMEM; {REMEDY}",
            bytes(limit),
            bytes(needed)
        )
    })
}

/// An error of a server that started, with what the limit has to do with it.
pub fn explained(why: String) -> String {
    let is_no_memory = why.contains("os error 12") || why.contains("Cannot allocate memory");
    match limit().filter(|_| is_no_memory) {
        Some(limit) => format!(
            "{why}; the limit of address space (ulimit -v) is {}, too small for weir's tables: \
             {REMEDY}",
            bytes(limit)
        ),
        None => why,
    }
}
