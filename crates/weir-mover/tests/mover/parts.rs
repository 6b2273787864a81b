//! The parts that interrupted moves leave on a target.

use std::fs;
use std::path::{Path, PathBuf};

use weir_mover::publish::is_part;

/// The parts below a directory.
pub fn parts(at: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(at).unwrap().map(Result::unwrap) {
        match entry.file_type().unwrap().is_dir() {
            true => found.append(&mut parts(&entry.path())),
            false if is_part(&entry.file_name()) => found.push(entry.path()),
            false => {}
        }
    }
    found
}

/// The number of them.
pub fn count_parts(at: &Path) -> usize {
    parts(at).len()
}
