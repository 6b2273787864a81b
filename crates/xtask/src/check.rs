//! `cargo xtask check`: a quick answer about the changes that are not on main yet.
//!
//! The changes are those since the merge base with main, or on main those of its last commit; files
//! that are not committed are among them. Formatting and the tidy check look at the whole repository,
//! as both take seconds. Clippy looks at the crates that changed and at all that depend on them, since
//! a change of an interface breaks those. Unit tests run in the crates that changed.
//!
//! It is meant to take less than three minutes on two cores, with a target directory in which
//! most is built. What it leaves out it prints; `make test` is the whole.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::{Command, ExitCode};
use std::time::{Duration, Instant};

use anyhow::{ensure, Context, Result};

use crate::CRATE_PLACES;

/// Files of the root that every crate is built by.
const OF_ALL: [&str; 5] = [
    "Cargo.toml",
    "Cargo.lock",
    "clippy.toml",
    "rust-toolchain.toml",
    ".cargo/config.toml",
];

/// Crates whose tests need a build of their own: of the interposer's symbols, and of all programs.
const NOT_TESTED: [&str; 2] = ["weir-preload", "weir-tests"];

/// The crates that a change concerns.
#[derive(Debug, Default, PartialEq, Eq)]
struct Scope {
    /// Those with a changed file.
    changed: BTreeSet<String>,
    /// Those and all that depend on them.
    concerned: BTreeSet<String>,
    /// Has a fuzz target changed?
    fuzz: bool,
}

impl Scope {
    /// `depends` has, of each crate, those of the workspace that it depends on.
    fn new(files: &[String], depends: &BTreeMap<String, BTreeSet<String>>) -> Self {
        let mut scope = Scope::default();
        for file in files {
            let mut parts = file.split('/');
            match (parts.next(), parts.next()) {
                (Some(place), Some(krate))
                    if CRATE_PLACES.contains(&place) && depends.contains_key(krate) =>
                {
                    scope.changed.insert(krate.to_owned());
                }
                (Some("fuzz"), _) => scope.fuzz = true,
                _ if OF_ALL.contains(&file.as_str()) => {
                    scope.concerned.extend(depends.keys().cloned());
                }
                _ => {}
            }
        }
        scope.concerned.extend(scope.changed.iter().cloned());
        loop {
            let before = scope.concerned.len();
            for (krate, on) in depends {
                if !on.is_disjoint(&scope.concerned) {
                    scope.concerned.insert(krate.clone());
                }
            }
            if scope.concerned.len() == before {
                return scope;
            }
        }
    }
}

/// The steps that ran, each with its time and its success.
#[derive(Default)]
struct Steps {
    done: Vec<(String, Duration, bool)>,
}

impl Steps {
    fn run(&mut self, name: &str, step: impl FnOnce() -> Result<bool>) -> Result<()> {
        eprintln!("check: {name}");
        let begin = Instant::now();
        let is_good = step().with_context(|| name.to_owned())?;
        self.done.push((name.to_owned(), begin.elapsed(), is_good));
        Ok(())
    }

    fn cargo(&mut self, root: &Path, arguments: &[&str]) -> Result<()> {
        let name = format!("cargo {}", arguments.join(" "));
        let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
        self.run(&name, || {
            let mut command = Command::new(cargo);
            let status = command.args(arguments).current_dir(root).status()?;
            Ok(status.success())
        })
    }
}

/// Checks the changes, and prints each step with its time, and the steps that were left out.
pub fn run(root: &Path) -> Result<ExitCode> {
    let base = base(root)?;
    let scope = Scope::new(&changed_files(root, &base)?, &dependencies(root)?);
    let mut left_out = vec![
        "integration tests and tests of documentation".to_owned(),
        "real programs, simulation, fuzzing, aarch64, licences (make test)".to_owned(),
    ];
    let mut steps = Steps::default();
    steps.cargo(root, &["fmt", "--all", "--check"])?;
    steps.run("tidy", || crate::tidy::print(root))?;
    if !scope.concerned.is_empty() {
        let mut arguments = vec!["clippy", "--quiet", "--all-targets"];
        arguments.extend(packages(&scope.concerned));
        arguments.extend(["--", "-D", "warnings"]);
        steps.cargo(root, &arguments)?;
    }
    let (untested, tested): (BTreeSet<String>, BTreeSet<String>) = scope
        .changed
        .iter()
        .cloned()
        .partition(|krate| NOT_TESTED.contains(&krate.as_str()));
    let has_library = |krate: &&String| {
        let mut places = CRATE_PLACES.iter().map(|place| root.join(place));
        places.any(|place| place.join(krate).join("src/lib.rs").is_file())
    };
    let libraries: BTreeSet<String> = tested.iter().filter(has_library).cloned().collect();
    if !libraries.is_empty() {
        let mut arguments = vec!["test", "--quiet", "--lib"];
        arguments.extend(packages(&libraries));
        steps.cargo(root, &arguments)?;
    }
    if scope.fuzz {
        let manifest = ["--manifest-path", "fuzz/Cargo.toml"];
        steps.cargo(root, &[&["fmt", "--check"], &manifest[..]].concat())?;
        let target = ["--target-dir", "build/fuzz", "--example", "seeds"];
        steps.cargo(
            root,
            &[&["check", "--quiet"], &manifest[..], &target].concat(),
        )?;
    }
    let dependents = scope.concerned.difference(&scope.changed);
    let not_run: Vec<String> = dependents.chain(&untested).cloned().collect();
    if !not_run.is_empty() {
        left_out.insert(0, format!("unit tests of {}", not_run.join(", ")));
    }
    println!("\nchanges since {base}:");
    let mut all = Duration::ZERO;
    for (name, took, is_good) in &steps.done {
        let verdict = if *is_good { "ok" } else { "FAILED" };
        println!("check: {:6.1} s  {verdict:6}  {name}", took.as_secs_f64());
        all += *took;
    }
    println!("check: {:6.1} s  in all", all.as_secs_f64());
    for step in left_out {
        println!("check: left out: {step}");
    }
    let is_good = steps.done.iter().all(|(_, _, is_good)| *is_good);
    Ok(ExitCode::from(u8::from(!is_good)))
}

/// The commit on which the changes are based.
fn base(root: &Path) -> Result<String> {
    let head = git(root, &["rev-parse", "HEAD"])?;
    let of_main = ["origin/main", "main"]
        .iter()
        .find_map(|main| git(root, &["merge-base", "HEAD", main]).ok());
    Ok(match of_main {
        Some(base) if base != head => base,
        _ => git(root, &["rev-parse", "HEAD~1"])?,
    })
}

/// The files that differ from the commit `base`, those that git does not know yet among them.
fn changed_files(root: &Path, base: &str) -> Result<Vec<String>> {
    let differ = git(root, &["diff", "--name-only", base])?;
    let new = git(root, &["ls-files", "--others", "--exclude-standard"])?;
    Ok(differ
        .lines()
        .chain(new.lines())
        .map(str::to_owned)
        .collect())
}

/// Of each crate, those of the workspace that it depends on, be it for tests alone.
fn dependencies(root: &Path) -> Result<BTreeMap<String, BTreeSet<String>>> {
    let mut depends = BTreeMap::new();
    let mut folders = Vec::new();
    for place in CRATE_PLACES {
        for entry in std::fs::read_dir(root.join(place))? {
            folders.push(entry?.path());
        }
    }
    for folder in folders {
        let path = folder.join("Cargo.toml");
        if !path.is_file() {
            continue;
        }
        let manifest: toml::Table = std::fs::read_to_string(&path)?.parse()?;
        let name = manifest["package"]["name"].as_str().context("a name")?;
        let on = ["dependencies", "build-dependencies", "dev-dependencies"]
            .iter()
            .filter_map(|table| manifest.get(*table)?.as_table())
            .flat_map(|table| table.keys().cloned())
            .collect();
        depends.insert(name.to_owned(), on);
    }
    Ok(depends)
}

fn packages(crates: &BTreeSet<String>) -> impl Iterator<Item = &str> {
    crates.iter().flat_map(|krate| ["--package", krate])
}

fn git(root: &Path, arguments: &[&str]) -> Result<String> {
    let output = Command::new("git")
        .args(arguments)
        .current_dir(root)
        .output()?;
    ensure!(output.status.success(), "git {}", arguments.join(" "));
    Ok(String::from_utf8(output.stdout)?.trim_end().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scope(files: &[&str]) -> Scope {
        let depends =
            [("core", &[][..]), ("store", &["core"]), ("cli", &["store"])].map(|(krate, on)| {
                (
                    krate.to_owned(),
                    on.iter().map(ToString::to_string).collect(),
                )
            });
        let files: Vec<String> = files.iter().map(ToString::to_string).collect();
        Scope::new(&files, &depends.into())
    }

    fn set(crates: &[&str]) -> BTreeSet<String> {
        crates.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn a_change_concerns_all_that_depend_on_it() {
        let found = scope(&["crates/store/src/lib.rs", "crates/gone/src/lib.rs"]);
        assert_eq!(found.changed, set(&["store"]));
        assert_eq!(found.concerned, set(&["cli", "store"]));
        assert!(!found.fuzz);
    }

    #[test]
    fn documents_concern_no_crate() {
        assert_eq!(scope(&["docs/FORMAT.md", "README.md"]), Scope::default());
    }

    #[test]
    fn the_workspace_concerns_all_and_changes_none() {
        let found = scope(&["Cargo.lock", "fuzz/src/lib.rs"]);
        assert_eq!(found.changed, set(&[]));
        assert_eq!(found.concerned, set(&["cli", "core", "store"]));
        assert!(found.fuzz);
    }
}
