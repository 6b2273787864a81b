//! Random trees, moved by a process that dies at a random change, again and again: each name of the target
//! is always of a complete version, and the move that nothing disturbs finishes.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use crate::faults::FaultyTree;
use crate::parts::count_parts;
use crate::scratch::temporary_directory;
use proptest::prelude::*;
use weir_mover::publish::is_part;
use weir_mover::{stage, DirectoryTree, StageOptions, StagePair, StageProgress, StageSummary};

/// A name of a tree.
#[derive(Clone, Debug)]
enum Made {
    /// A file of this many bytes, with a hole before the last.
    File(u32),
    /// A further name of the first file, if there is one.
    HardLink,
    Symlink,
    EmptyDirectory,
}

fn made() -> impl Strategy<Value = Made> {
    prop_oneof![
        4 => prop_oneof![Just(0), 1..100_u32, Just(5 << 20)].prop_map(Made::File),
        1 => Just(Made::HardLink),
        1 => Just(Made::Symlink),
        1 => Just(Made::EmptyDirectory),
    ]
}

/// Names of two levels, and what has them.
fn tree() -> impl Strategy<Value = BTreeMap<(u8, u8), Made>> {
    proptest::collection::btree_map((0..3_u8, 0..4_u8), made(), 1..10)
}

fn path_of(name: (u8, u8)) -> PathBuf {
    match name {
        (0, file) => PathBuf::from(format!("n{file}")),
        (dir, file) => PathBuf::from(format!("d{dir}/n{file}")),
    }
}

/// Makes a tree. Versions differ in every byte.
fn make(at: &Path, tree: &BTreeMap<(u8, u8), Made>, version: u8) {
    let mut first = None;
    for (name, made) in tree {
        let path = at.join(path_of(*name));
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        match made {
            Made::File(size) => {
                use std::os::unix::fs::FileExt;
                let file = fs::File::create(&path).unwrap();
                file.set_len(u64::from(*size)).unwrap();
                let half = vec![version; *size as usize / 2];
                file.write_all_at(&half, 0).unwrap();
                if let Some(last) = size.checked_sub(1) {
                    file.write_all_at(&[version], u64::from(last)).unwrap();
                }
                first.get_or_insert(path);
            }
            Made::HardLink => {
                if let Some(first) = &first {
                    fs::hard_link(first, &path).unwrap();
                }
            }
            Made::Symlink => {
                std::os::unix::fs::symlink(format!("version{version}"), &path).unwrap();
            }
            Made::EmptyDirectory => fs::create_dir_all(path.with_extension("dir")).unwrap(),
        }
    }
}

/// The files and links below a directory, parts aside: each with its content, or its target.
fn contents(at: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut found = BTreeMap::new();
    let mut open = vec![at.to_owned()];
    while let Some(dir) = open.pop() {
        for entry in fs::read_dir(dir).unwrap() {
            let entry = entry.unwrap();
            let (path, kind) = (entry.path(), entry.file_type().unwrap());
            if kind.is_dir() {
                open.push(path);
            } else if !is_part(&entry.file_name()) {
                use std::os::unix::ffi::OsStringExt;
                let content = match kind.is_symlink() {
                    true => fs::read_link(&path).unwrap().into_os_string().into_vec(),
                    false => fs::read(&path).unwrap(),
                };
                found.insert(path.strip_prefix(at).unwrap().to_owned(), content);
            }
        }
    }
    found
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(150))]

    #[test]
    fn each_name_is_of_a_complete_version_whenever_the_mover_dies(
        old in tree(),
        new in tree(),
        deaths in proptest::collection::vec((0..60_i64, 1..4_usize), 0..5),
        verify: bool,
    ) {
        let dir = temporary_directory();
        let (source, target) = (dir.path().join("source"), dir.path().join("target"));
        // The target must have no file where the source has a directory.
        let clashes = |name: &(u8, u8)| {
            old.contains_key(name) && matches!(new[name], Made::EmptyDirectory | Made::HardLink)
        };
        prop_assume!(!new.keys().any(clashes));
        fs::create_dir(&target).unwrap();
        fs::create_dir(&source).unwrap();
        make(&target, &old, 1);
        make(&source, &new, 2);
        let (before, wanted) = (contents(&target), contents(&source));
        let pairs = [StagePair { source: source.clone(), target: target.clone() }];
        let move_all = |to: &dyn Fn(StageOptions) -> StageSummary, threads| {
            to(StageOptions { threads, verify, ..StageOptions::default() })
        };
        for (changes, threads) in deaths {
            let dying = FaultyTree::dying_after(changes);
            let summary = move_all(&|options| {
                stage(&DirectoryTree, &dying, &pairs, options, &StageProgress::default())
            }, threads);
            prop_assert_eq!(summary.is_complete(), !dying.has_failed(), "{:?}", summary.failed);
            for (name, content) in contents(&target) {
                let whole = [before.get(&name), wanted.get(&name)];
                prop_assert!(whole.contains(&Some(&content)), "{} is torn", name.display());
            }
            for name in before.keys() {
                prop_assert!(target.join(name).symlink_metadata().is_ok());
            }
        }
        let summary = move_all(&|options| {
            stage(&DirectoryTree, &DirectoryTree, &pairs, options, &StageProgress::default())
        }, 2);
        prop_assert!(summary.is_complete(), "{:?}", summary.failed);
        let after = contents(&target);
        for (name, content) in &wanted {
            prop_assert_eq!(after.get(name), Some(content), "{}", name.display());
        }
        for name in before.keys().filter(|name| !wanted.contains_key(*name)) {
            prop_assert_eq!(after.get(name), before.get(name));
        }
        // Parts of names that are in the source are gone.
        prop_assert_eq!(count_parts(&target), 0);
    }
}
