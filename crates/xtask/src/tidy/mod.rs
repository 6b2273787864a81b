//! The tidy check: what the compiler, rustfmt and clippy do not look at.
//!
//! - crates depend on each other only along the arrows of the design ([`arrows`]);
//! - files of a folder do not use each other in a circle ([`cycles`]);
//! - documents and comments name files that exist ([`mod@documents`]);
//! - types, functions and comments use the glossary's words ([`words`]);
//! - every source opens with what it is, is ASCII, is not too long, and gives a reason for each
//!   lint it silences ([`source`]);
//! - a crate without `unsafe` forbids it.
//!
//! Rules that some sources do not follow yet count their faults, which may only get fewer ([`ratchet`]).
//!
//! Left out: taste.

pub mod arrows;
pub mod cycles;
pub mod documents;
pub mod modules;
pub mod ratchet;
pub mod source;
pub mod words;

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use crate::CRATE_PLACES;
use documents::RepositoryPaths;
use ratchet::{FaultCount, Ratchet};
use words::{Glossary, WordFaults};

/// The result of a check.
#[derive(Debug, Default)]
pub struct Untidy {
    /// Faults that fail the check; `path:line: fault`.
    pub errors: Vec<String>,
    /// Faults that do not.
    pub warnings: Vec<String>,
    /// How many files were looked at.
    pub files: usize,
}

/// Checks the workspace at `root`.
pub fn check(root: &Path) -> Result<Untidy> {
    let mut untidy = check_files(root)?;
    let ratchet = Ratchet::parse(&read(&root.join(ratchet::FILE))?).context(ratchet::FILE)?;
    untidy.errors.extend(ratchet.check(&count(root)?));
    Ok(untidy)
}

/// Checks the workspace at `root`, and prints its faults. Returns true if there are none that fail it.
pub fn print(root: &Path) -> Result<bool> {
    let untidy = check(root)?;
    for warning in &untidy.warnings {
        eprintln!("warning: {warning}");
    }
    for error in &untidy.errors {
        eprintln!("error: {error}");
    }
    println!(
        "tidy: {} files, {} errors, {} warnings",
        untidy.files,
        untidy.errors.len(),
        untidy.warnings.len()
    );
    Ok(untidy.errors.is_empty())
}

/// Lowers the numbers of known faults to what is left of them.
pub fn lower(root: &Path) -> Result<()> {
    let path = root.join(ratchet::FILE);
    let ratchet = Ratchet::parse(&read(&path)?).context(ratchet::FILE)?;
    let lowered = ratchet.lowered(&count(root)?);
    std::fs::write(&path, lowered.text()).context(ratchet::FILE)
}

/// Counts the faults of rules that some of the sources do not follow yet.
fn count(root: &Path) -> Result<Vec<FaultCount>> {
    let glossary = Glossary::parse(&read(&root.join("docs/glossary.md"))?)?;
    let mut counts = Vec::new();
    let mut all = Vec::new();
    for krate in crates(root)? {
        counts.extend(cycles::count(root, &krate)?);
        let mut words = WordFaults::default();
        for path in sources(&krate)? {
            words.add_source(&glossary, Path::new(&shown(root, &path)), &read(&path)?)?;
        }
        let name = krate.file_name().unwrap_or_default().to_string_lossy();
        counts.extend(words.counts(&name));
        all.push(words);
    }
    counts.extend(words::same_names(&all));
    let mut words = WordFaults::default();
    for path in documents(root)? {
        for (index, line) in read(&path)?.lines().enumerate() {
            words.add_comment(&glossary, Path::new(&shown(root, &path)), index + 1, line);
        }
    }
    counts.extend(words.counts("docs"));
    counts.extend(long_rows(root)?);
    Ok(counts)
}

/// The rows of the specification that are too long.
fn long_rows(root: &Path) -> Result<Option<FaultCount>> {
    let path = "docs/SPECIFICATION.md";
    let text = read(&root.join(path))?;
    let rows = text
        .lines()
        .enumerate()
        .filter(|(_, row)| row.starts_with('|') && row.chars().count() > documents::LONGEST_ROW);
    let faults: Vec<String> = rows
        .map(|(index, row)| format!("{path}:{}: {} characters", index + 1, row.chars().count()))
        .collect();
    let count = FaultCount::of_each("long-rows", path.to_owned(), faults);
    Ok(Some(count).filter(|count| !count.faults.is_empty()))
}

fn check_files(root: &Path) -> Result<Untidy> {
    let mut untidy = Untidy::default();
    for krate in workspace_crates(root)? {
        let manifest = krate.join("Cargo.toml");
        if manifest.is_file() {
            let text = read(&manifest)?;
            let problems = arrows::check(&text).with_context(|| shown(root, &manifest))?;
            let place = |what| format!("{}: {what}", shown(root, &manifest));
            untidy.errors.extend(problems.into_iter().map(place));
        }
    }
    let tree = tree(root)?;
    for krate in crates(root)? {
        let mut has_unsafe = false;
        for path in sources(&krate)? {
            let (name, text) = (shown(root, &path), read(&path)?);
            let found = source::check(Path::new(&name), &text);
            untidy.errors.extend(found.errors);
            untidy.warnings.extend(found.warnings);
            untidy.files += 1;
            has_unsafe |= path.starts_with(krate.join("src")) && source::has_unsafe(&text);
            let comments = text
                .lines()
                .map(|line| words::comment_of(line.trim_start()));
            for (index, comment) in comments.enumerate() {
                for missing in tree.missing_in_comment(comment.unwrap_or_default()) {
                    let error = format!("{name}:{}: {missing} does not exist", index + 1);
                    untidy.errors.push(error);
                }
            }
        }
        let top = krate.join("src/lib.rs");
        if !has_unsafe && top.is_file() && !read(&top)?.contains(source::FORBIDS_UNSAFE) {
            let fault = "has no unsafe code and does not forbid it";
            untidy
                .errors
                .push(format!("{}:1: {fault}", shown(root, &top)));
        }
    }
    for path in ["README.md", "CONTRIBUTING.md", "docs/ARCHITECTURE.md"] {
        for (index, line) in read(&root.join(path))?.lines().enumerate() {
            for missing in tree.missing_in_document(line) {
                let error = format!("{path}:{}: {missing} does not exist", index + 1);
                untidy.errors.push(error);
            }
        }
    }
    Ok(untidy)
}

/// Every file of the repository.
fn tree(root: &Path) -> Result<RepositoryPaths> {
    let mut files = Vec::new();
    find_files(root, &|_| true, &mut files)?;
    let mut tree = RepositoryPaths::default();
    for path in files {
        tree.add(path.strip_prefix(root).unwrap_or(&path));
    }
    Ok(tree)
}

/// The folders of the workspace's crates.
fn workspace_crates(root: &Path) -> Result<Vec<PathBuf>> {
    let mut crates = Vec::new();
    for place in CRATE_PLACES.map(|place| root.join(place)) {
        if place.is_dir() {
            crates.extend(entries(&place)?);
        }
    }
    Ok(crates)
}

/// The folders of the crates: those of the workspace, and the fuzz targets.
fn crates(root: &Path) -> Result<Vec<PathBuf>> {
    let mut crates = workspace_crates(root)?;
    crates.extend(Some(root.join("fuzz")).filter(|fuzz| fuzz.is_dir()));
    Ok(crates)
}

/// Every source of a crate.
fn sources(krate: &Path) -> Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    find_files(krate, &|path| has_extension(path, "rs"), &mut files)?;
    Ok(files)
}

/// The documents, but for the glossary, which has to name the words.
fn documents(root: &Path) -> Result<Vec<PathBuf>> {
    let mut files = vec![root.join("README.md"), root.join("CONTRIBUTING.md")];
    find_files(
        &root.join("docs"),
        &|path| has_extension(path, "md"),
        &mut files,
    )?;
    files.retain(|path| !path.ends_with("glossary.md"));
    Ok(files)
}

fn shown(root: &Path, path: &Path) -> String {
    path.strip_prefix(root)
        .unwrap_or(path)
        .display()
        .to_string()
}

fn read(path: &Path) -> Result<String> {
    std::fs::read_to_string(path).with_context(|| path.display().to_string())
}

/// The entries of a directory, sorted so that every run reports in one order.
fn entries(dir: &Path) -> Result<Vec<PathBuf>> {
    let read = std::fs::read_dir(dir).with_context(|| dir.display().to_string())?;
    let mut paths: Vec<PathBuf> = read
        .map(|entry| Ok(entry?.path()))
        .collect::<std::io::Result<_>>()?;
    paths.sort();
    Ok(paths)
}

fn has_extension(path: &Path, extension: &str) -> bool {
    path.extension().is_some_and(|e| e == extension)
}

/// Finds the files below a folder that the condition holds for.
fn find_files(
    dir: &Path,
    is_wanted: &dyn Fn(&Path) -> bool,
    found: &mut Vec<PathBuf>,
) -> Result<()> {
    for path in entries(dir)? {
        let name = path.file_name().unwrap_or_default();
        if path.is_dir() {
            let is_made = ["target", "build", ".git"].iter().any(|made| name == *made);
            if !is_made {
                find_files(&path, is_wanted, found)?;
            }
        } else if is_wanted(&path) {
            found.push(path);
        }
    }
    Ok(())
}
