//! The driver of `tests/real`: compiles its check programs once and runs each on weir, or on any
//! directory, under a launcher prefix, with a time limit.
//!
//! `WEIR_TEST_TARGET` is the target: `weir` (the default) runs `weir run -- program /weir`, with an
//! instance for each test; a directory runs the program in a directory of its own below it, which tests
//! the checks themselves on tmpfs or a disk. If a program is missing on the machine, its tests fail with
//! the name of the package to install; `WEIR_TEST_ALLOW_MISSING=1` skips them instead, with a message.
//!
//! Left out: the checks themselves. They are in `tests/real`, one program for each subject; the list of
//! tests is in `tests/real.rs` of this crate.

#![forbid(unsafe_code)]

pub mod build;
pub mod launch;
pub mod mount;
pub mod needs;
pub mod trials;

use std::path::PathBuf;

use anyhow::{bail, Result};

/// The top of the source tree.
pub fn source_root() -> PathBuf {
    let manifest = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
    manifest
        .ancestors()
        .nth(2)
        .expect("the crate lies two directories below the top")
        .to_owned()
}

/// The directory of the check programs' sources.
pub fn checks_dir() -> PathBuf {
    source_root().join("tests/real")
}

/// The directory of this program's build profile, such as `target/debug`: `weir` and its client library
/// are there.
pub fn profile_dir() -> PathBuf {
    let exe = std::env::current_exe().expect("a program knows its own path");
    let dir = exe.parent().expect("a program lies in a directory");
    if dir.ends_with("deps") {
        dir.parent().expect("deps lies in a profile").to_owned()
    } else {
        dir.to_owned()
    }
}

/// The numeric value of an environment variable.
pub fn number<T: std::str::FromStr>(variable: &str) -> Result<Option<T>> {
    let Ok(text) = std::env::var(variable) else {
        return Ok(None);
    };
    match text.parse() {
        Ok(number) => Ok(Some(number)),
        Err(_) => bail!("{variable}={text} is no number"),
    }
}
