//! The driver of `tests/real`: compiles its check programs once and runs each on weir, or on any
//! directory, under a launcher prefix, with a time limit.
//!
//! `WEIR_TEST_TARGET` says where: `weir` (the default) runs `weir run -- program /weir`, an
//! instance a test; a directory runs the program on a directory of its own below it, which proves
//! the checks themselves on tmpfs or a disk. A program that is missing on the machine makes
//! its tests fail with the name of the package to install; `WEIR_TEST_ALLOW_MISSING=1` skips
//! them instead, and says so.
//!
//! Left out: what the checks are. They are in `tests/real`, one program a subject; the list of
//! tests is in `tests/real.rs` of this crate.

#![forbid(unsafe_code)]

pub mod build;
pub mod launch;
pub mod mount;
pub mod needs;

use std::path::PathBuf;

/// The top of the source tree.
pub fn source_root() -> PathBuf {
    let manifest = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
    manifest
        .ancestors()
        .nth(2)
        .expect("the crate lies two directories below the top")
        .to_owned()
}

/// Where the check programs' sources are.
pub fn checks_dir() -> PathBuf {
    source_root().join("tests/real")
}

/// The directory of the profile that this very program was built in, such as `target/debug`:
/// `weir` and its client library lie there.
pub fn profile_dir() -> PathBuf {
    let exe = std::env::current_exe().expect("a program knows its own path");
    let dir = exe.parent().expect("a program lies in a directory");
    if dir.ends_with("deps") {
        dir.parent().expect("deps lies in a profile").to_owned()
    } else {
        dir.to_owned()
    }
}
