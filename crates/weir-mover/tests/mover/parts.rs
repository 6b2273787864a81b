//! The parts that interrupted moves leave on a target.

use std::fs;
use std::path::Path;

use weir_mover::publish::is_part;

/// The number of parts below a directory.
pub fn count_parts(at: &Path) -> usize {
    let entries = fs::read_dir(at).unwrap().map(Result::unwrap);
    entries
        .map(|entry| match entry.file_type().unwrap().is_dir() {
            true => count_parts(&entry.path()),
            false => usize::from(is_part(&entry.file_name())),
        })
        .sum()
}
