//! Chores of the repository: the tidy check, the check of changes, test clusters, and runs of the simulation.

#![forbid(unsafe_code)]

pub mod check;
pub mod cluster;
pub mod simulate;
pub mod tidy;

use std::path::{Path, PathBuf};

/// The folders with the crates of the workspace.
pub(crate) const CRATE_PLACES: [&str; 2] = ["crates", "connectors"];

/// The root of the workspace this program was built from.
pub fn workspace_root() -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.ancestors()
        .nth(2)
        .expect("crates/xtask is two below the root")
        .to_owned()
}
