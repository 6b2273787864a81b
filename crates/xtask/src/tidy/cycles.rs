//! No files of a folder use each other in a circle.
//!
//! Each folder of modules is checked by itself. Its *subjects* are its files, and its folders with
//! all that is below them; subject A uses subject B if a file of A names, in a `use` item or in a
//! path, an item that a file of B defines. Re-exports are looked through ([`super::modules`]): a file
//! that takes a neighbour's type by way of `super` uses the neighbour. If A uses B, directly or by
//! others of the folder, B must not use A. So whoever reads a folder can read it in an order in which each
//! subject builds on those before it.
//!
//! A parent (`mod.rs`, `lib.rs`) is no subject of its own folder: it may use its children, and they
//! may use what it defines. That is how Rust spreads one type over several files, and there is no
//! order to be found in it. One folder up, the parent is part of the folder's subject, so this
//! exemption never reaches across folders.
//!
//! Left out: tests; calls of methods, because finding a method's file takes the types of a compiler.
//!
//! Known cycles are in `crates/xtask/tidy.toml`, which may only shrink ([`super::ratchet`]).

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use anyhow::Result;

use super::modules::Crate;
use super::ratchet::FaultCount;

/// Why one subject uses another: a line that names an item.
#[derive(Debug, Clone)]
pub struct Reason {
    /// The file and its line.
    pub at: String,
    /// The path as it stands there.
    pub path: String,
}

/// Which subjects of a folder use which.
#[derive(Debug, Default)]
pub struct Folder {
    /// Of each subject those that it uses, each with the first line that does.
    pub uses: BTreeMap<String, BTreeMap<String, Reason>>,
}

impl Folder {
    /// The cycles, the longest first: groups of subjects each of which uses, in the end, each other.
    pub fn cycles(&self) -> Vec<Vec<String>> {
        let reached: BTreeMap<&str, BTreeSet<&str>> = self
            .uses
            .keys()
            .map(|from| (from.as_str(), self.reached_from(from)))
            .collect();
        let mut cycles: Vec<Vec<String>> = Vec::new();
        for (from, to) in &reached {
            let is_new = !cycles.iter().flatten().any(|known| known == from);
            if is_new && to.contains(from) {
                let back = |other: &&&str| {
                    reached
                        .get(**other)
                        .is_some_and(|reached| reached.contains(from))
                };
                cycles.push(to.iter().filter(back).map(ToString::to_string).collect());
            }
        }
        cycles.sort_by_key(|cycle| std::cmp::Reverse(cycle.len()));
        cycles
    }

    /// The uses among the members of a cycle, each as a line to print.
    pub fn uses_within(&self, cycle: &[String]) -> Vec<String> {
        let mut lines = Vec::new();
        for from in cycle {
            for (to, reason) in self.uses.get(from).into_iter().flatten() {
                if cycle.contains(to) {
                    lines.push(format!("{from} -> {to} ({}: {})", reason.at, reason.path));
                }
            }
        }
        lines
    }

    /// The members of a cycle, and their uses of each other.
    fn describe(&self, cycle: &[String]) -> String {
        let uses = self.uses_within(cycle).join("\n        ");
        format!("a cycle of {}:\n        {uses}", cycle.join(", "))
    }

    fn used_by<'a>(&'a self, subject: &str) -> impl Iterator<Item = &'a str> {
        let used = self.uses.get(subject);
        used.into_iter()
            .flat_map(BTreeMap::keys)
            .map(String::as_str)
    }

    fn reached_from(&self, start: &str) -> BTreeSet<&str> {
        let mut reached = BTreeSet::new();
        let mut next: Vec<&str> = self.used_by(start).collect();
        while let Some(subject) = next.pop() {
            if reached.insert(subject) {
                next.extend(self.used_by(subject));
            }
        }
        reached
    }
}

/// The cycles of each folder of the crate in the folder `path`.
pub fn count(root: &Path, path: &Path) -> Result<Vec<FaultCount>> {
    let read = |file: &Path| std::fs::read_to_string(root.join(file)).ok();
    let below = path.strip_prefix(root).unwrap_or(path).join("src");
    let mut roots = ["lib.rs", "main.rs"].iter().map(|name| below.join(name));
    let Some(head) = roots.find(|head| root.join(head).is_file()) else {
        return Ok(Vec::new());
    };
    let folders = folders(&Crate::read(&head, &read)?);
    Ok(folders
        .into_iter()
        .map(|(path, folder)| (path, folder.cycles(), folder))
        .filter(|(_, cycles, _)| !cycles.is_empty())
        .map(|(path, cycles, folder)| FaultCount {
            rule: "cycles",
            key: path.display().to_string(),
            numbers: cycles.iter().map(Vec::len).collect(),
            faults: cycles.iter().map(|cycle| folder.describe(cycle)).collect(),
        })
        .collect())
}

/// The folders of a crate in which subjects use each other.
pub fn folders(krate: &Crate) -> BTreeMap<PathBuf, Folder> {
    let mut folders: BTreeMap<PathBuf, Folder> = BTreeMap::new();
    for (index, module) in krate.modules.iter().enumerate() {
        for named in &module.named {
            let Some(target) = krate.resolve(index, &named.path) else {
                continue;
            };
            let Some((parent, user, used)) = siblings(krate, index, target) else {
                continue;
            };
            let reason = Reason {
                at: format!("{}:{}", module.file.display(), named.line),
                path: named.path.join("::"),
            };
            folders
                .entry(folder_of(&krate.modules[parent].file))
                .or_default()
                .uses
                .entry(subject(krate, user))
                .or_default()
                .entry(subject(krate, used))
                .or_insert(reason);
        }
    }
    folders
}

/// Two modules as subjects of the innermost folder that holds both: the folder's parent, the subject
/// of `user`, that of `used`. `None` if they are one, or one is above the other.
fn siblings(krate: &Crate, user: usize, used: usize) -> Option<(usize, usize, usize)> {
    let (above_user, above_used) = (files_above(krate, user), files_above(krate, used));
    let common = above_user
        .iter()
        .zip(&above_used)
        .take_while(|(a, b)| a == b)
        .count();
    let parent = *above_user.get(common.checked_sub(1)?)?;
    Some((parent, *above_user.get(common)?, *above_used.get(common)?))
}

/// The modules with files from the root down to the one that holds `module`.
fn files_above(krate: &Crate, module: usize) -> Vec<usize> {
    let mut files = Vec::new();
    let mut next = Some(module);
    while let Some(module) = next {
        let with_file = krate.with_file(module);
        files.push(with_file);
        next = krate.modules[with_file].parent;
    }
    files.reverse();
    files
}

/// Where the children of the module in `file` lie.
fn folder_of(file: &Path) -> PathBuf {
    let is_head =
        |name: &std::ffi::OsStr| name == "mod.rs" || name == "lib.rs" || name == "main.rs";
    if file.file_name().is_some_and(is_head) {
        file.parent().unwrap_or(Path::new("")).to_owned()
    } else {
        file.with_extension("")
    }
}

/// How a subject is shown: `read.rs`, or `agent/`.
fn subject(krate: &Crate, module: usize) -> String {
    let file = &krate.modules[module].file;
    if file.ends_with("mod.rs") {
        let folder = folder_of(file);
        return format!("{}/", folder.file_name().unwrap_or_default().display());
    }
    file.file_name().unwrap_or_default().display().to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The cycles of a crate that is made of the given sources, folder by folder.
    fn cycles(files: &[(&str, &str)]) -> Vec<(String, Vec<Vec<String>>)> {
        let files: BTreeMap<PathBuf, String> = files
            .iter()
            .map(|(path, text)| (PathBuf::from(path), (*text).to_owned()))
            .collect();
        let krate = Crate::read(Path::new("lib.rs"), &|path| files.get(path).cloned()).unwrap();
        folders(&krate)
            .into_iter()
            .map(|(path, folder)| (path.display().to_string(), folder.cycles()))
            .filter(|(_, cycles)| !cycles.is_empty())
            .collect()
    }

    fn of_root(subjects: &[&str]) -> Vec<(String, Vec<Vec<String>>)> {
        let cycle = subjects.iter().map(ToString::to_string).collect();
        vec![(String::new(), vec![cycle])]
    }

    #[test]
    fn an_arrow_is_no_cycle() {
        let files = [
            ("lib.rs", "mod a; mod b;"),
            ("a.rs", "use crate::b::B; pub struct A(B);"),
            ("b.rs", "pub struct B;"),
        ];
        assert_eq!(cycles(&files), []);
    }

    #[test]
    fn siblings_that_use_each_other_are_one() {
        let files = [
            ("lib.rs", "mod a; mod b; mod c;"),
            ("a.rs", "use super::b::B; pub struct A(B);"),
            ("b.rs", "pub struct B; fn f() { super::c::g() }"),
            ("c.rs", "pub fn g() -> Option<crate::a::A> { None }"),
        ];
        assert_eq!(cycles(&files), of_root(&["a.rs", "b.rs", "c.rs"]));
    }

    #[test]
    fn a_parent_may_use_its_children_and_they_it() {
        let files = [
            ("lib.rs", "mod a; pub struct Root { a: a::A }"),
            (
                "a.rs",
                "use super::Root; pub struct A; impl A { fn f(_: &Root) {} }",
            ),
        ];
        assert_eq!(cycles(&files), []);
    }

    #[test]
    fn a_re_export_is_looked_through() {
        let files = [
            (
                "lib.rs",
                "mod a; mod b; pub use a::A; pub use self::b::B as Other;",
            ),
            ("a.rs", "use super::Other; pub struct A(Other);"),
            ("b.rs", "pub struct B(Option<Box<crate::A>>);"),
        ];
        assert_eq!(cycles(&files), of_root(&["a.rs", "b.rs"]));
    }

    #[test]
    fn globs_are_looked_through() {
        let files = [
            ("lib.rs", "mod a; mod b; pub use a::*; use b::B;"),
            ("a.rs", "use super::*; pub struct A(B);"),
            ("b.rs", "use super::*; pub struct B(Option<Box<A>>);"),
        ];
        assert_eq!(cycles(&files), of_root(&["a.rs", "b.rs"]));
    }

    #[test]
    fn a_folder_is_one_subject_outside_and_several_inside() {
        let files = [
            ("lib.rs", "mod a; mod folder;"),
            ("a.rs", "pub struct A; fn f() { crate::folder::y::g() }"),
            ("folder/mod.rs", "mod x; pub mod y;"),
            (
                "folder/x.rs",
                "pub struct X(crate::a::A); fn f() { super::y::g() }",
            ),
            ("folder/y.rs", "pub fn g() {} fn f(_: super::x::X) {}"),
        ];
        let inside = vec![vec!["x.rs".to_owned(), "y.rs".to_owned()]];
        let mut expected = of_root(&["a.rs", "folder/"]);
        expected.push(("folder".to_owned(), inside));
        assert_eq!(cycles(&files), expected);
    }

    #[test]
    fn the_parent_of_a_folder_is_part_of_it_outside() {
        let files = [
            ("lib.rs", "mod a; mod b;"),
            ("a.rs", "mod x; pub struct A;"),
            ("a/x.rs", "use crate::b::B; fn f(_: B) {}"),
            ("b.rs", "use crate::a::A; pub struct B(A);"),
        ];
        assert_eq!(cycles(&files), of_root(&["a.rs", "b.rs"]));
    }

    #[test]
    fn macros_and_inline_modules_are_looked_into() {
        let files = [
            ("lib.rs", "mod a; mod b;"),
            (
                "a.rs",
                "mod inner { fn f() { println!(\"{}\", super::super::b::B); } } pub fn a() {}",
            ),
            (
                "b.rs",
                "pub const B: u8 = 1; macro_rules! call { () => { $crate::a::a() } }",
            ),
        ];
        assert_eq!(cycles(&files), of_root(&["a.rs", "b.rs"]));
    }

    #[test]
    fn tests_and_visibilities_use_nothing() {
        let files = [
            ("lib.rs", "mod a; mod b; mod c;"),
            ("a.rs", "use crate::b::B; pub struct A(B);"),
            (
                "b.rs",
                "pub struct B; #[cfg(test)] mod tests { use crate::a::A; } #[cfg(test)] mod more;",
            ),
            (
                "c.rs",
                "pub(in crate::a) struct C; fn local(a: u8) -> u8 { a }",
            ),
        ];
        assert_eq!(cycles(&files), []);
    }

    #[test]
    fn a_module_may_be_in_a_file_of_another_name() {
        let files = [
            ("lib.rs", "mod a; mod b;"),
            ("a.rs", "use crate::b::B; pub struct A;"),
            ("b.rs", "#[path = \"elsewhere.rs\"] mod x; pub struct B;"),
            ("elsewhere.rs", "use crate::a::A; fn f(_: A) {}"),
        ];
        assert_eq!(cycles(&files), of_root(&["a.rs", "b.rs"]));
    }

    #[test]
    fn uses_name_lines() {
        let files: BTreeMap<PathBuf, String> = [
            ("lib.rs", "mod a; mod b;"),
            ("a.rs", "\nuse crate::b::B; pub struct A(B);"),
            ("b.rs", "pub struct B(Option<Box<super::a::A>>);"),
        ]
        .map(|(path, text)| (path.into(), text.to_owned()))
        .into();
        let krate = Crate::read(Path::new("lib.rs"), &|path| files.get(path).cloned()).unwrap();
        let folder = &folders(&krate)[Path::new("")];
        assert_eq!(
            folder.uses_within(&folder.cycles()[0]),
            [
                "a.rs -> b.rs (a.rs:2: crate::b::B)",
                "b.rs -> a.rs (b.rs:1: super::a::A)"
            ]
        );
    }
}
