//! Trees of files, as tests compare them.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// Checks that two trees are the same to a program.
#[track_caller]
pub fn assert_same(one: &Path, other: &Path) {
    let (a, b) = (fs::symlink_metadata(one), fs::symlink_metadata(other));
    let (a, b) = (a.unwrap(), b.unwrap());
    assert_eq!(a.mode(), b.mode(), "{}", other.display());
    if a.is_symlink() {
        assert_eq!(fs::read_link(one).unwrap(), fs::read_link(other).unwrap());
        return;
    }
    assert_eq!(
        a.modified().unwrap(),
        b.modified().unwrap(),
        "{}",
        other.display()
    );
    if a.is_dir() {
        let names = |dir| {
            let entries = fs::read_dir(dir).unwrap();
            let mut names: Vec<_> = entries.map(|entry| entry.unwrap().file_name()).collect();
            names.sort();
            names
        };
        assert_eq!(names(one), names(other));
        for name in names(one) {
            assert_same(&one.join(&name), &other.join(&name));
        }
    } else {
        assert!(
            fs::read(one).unwrap() == fs::read(other).unwrap(),
            "{}",
            other.display()
        );
        assert_eq!(a.nlink(), b.nlink(), "{}", other.display());
        assert!(b.blocks() <= a.blocks() + 64, "{}: holes", other.display());
    }
}

/// Parts below a directory.
pub fn parts(dir: &Path) -> usize {
    let entries = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap());
    entries
        .map(|entry| match entry.file_type().unwrap().is_dir() {
            true => parts(&entry.path()),
            false => usize::from(entry.file_name().to_string_lossy().ends_with(".weir-part")),
        })
        .sum()
}
