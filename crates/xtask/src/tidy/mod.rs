//! The tidy check: what the compiler, rustfmt and clippy do not look at.
//!
//! - crates depend on each other only along the arrows of the design ([`arrows`]);
//! - every source opens with what it is, is ASCII, is not too long, and gives a reason for each
//!   lint it silences ([`source`]).
//!
//! Left out: taste.

pub mod arrows;
pub mod source;

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

/// What was found.
#[derive(Debug, Default)]
pub struct Untidy {
    /// What must be put right; `path:line: what`.
    pub errors: Vec<String>,
    /// What should be.
    pub warnings: Vec<String>,
    /// How many files were looked at.
    pub files: usize,
}

/// Checks the workspace at `root`.
pub fn check(root: &Path) -> Result<Untidy> {
    let mut untidy = Untidy::default();
    let crates = root.join("crates");
    for krate in entries(&crates)? {
        let manifest = krate.join("Cargo.toml");
        if manifest.is_file() {
            let text = read(&manifest)?;
            let problems = arrows::check(&text).with_context(|| shown(root, &manifest))?;
            let place = |what| format!("{}: {what}", shown(root, &manifest));
            untidy.errors.extend(problems.into_iter().map(place));
        }
    }
    let mut files = Vec::new();
    find_sources(&crates, &mut files)?;
    if root.join("fuzz").is_dir() {
        find_sources(&root.join("fuzz"), &mut files)?;
    }
    for path in &files {
        let found = source::check(Path::new(&shown(root, path)), &read(path)?);
        untidy.errors.extend(found.errors);
        untidy.warnings.extend(found.warnings);
    }
    untidy.files = files.len();
    Ok(untidy)
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

fn find_sources(dir: &Path, found: &mut Vec<PathBuf>) -> Result<()> {
    for path in entries(dir)? {
        let name = path.file_name().unwrap_or_default();
        if path.is_dir() && name != "target" && name != "build" {
            find_sources(&path, found)?;
        } else if path.extension().is_some_and(|e| e == "rs") {
            found.push(path);
        }
    }
    Ok(())
}
