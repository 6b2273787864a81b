//! The tidy check: what the compiler, rustfmt and clippy do not look at.
//!
//! - crates depend on each other only along the arrows of the design ([`arrows`]);
//! - files of a folder do not use each other in a circle ([`cycles`]);
//! - every source opens with what it is, is ASCII, is not too long, and gives a reason for each
//!   lint it silences ([`source`]).
//!
//! Rules that some sources do not follow yet count their faults, which may only get fewer ([`ratchet`]).
//!
//! Left out: taste.

pub mod arrows;
pub mod cycles;
pub mod modules;
pub mod ratchet;
pub mod source;

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use ratchet::{Count, Ratchet};

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

/// Lowers the numbers of known faults to what is left of them.
pub fn lower(root: &Path) -> Result<()> {
    let path = root.join(ratchet::FILE);
    let ratchet = Ratchet::parse(&read(&path)?).context(ratchet::FILE)?;
    let lowered = ratchet.lowered(&count(root)?);
    std::fs::write(&path, lowered.text()).context(ratchet::FILE)
}

/// Counts the faults of rules that some of the sources do not follow yet.
fn count(root: &Path) -> Result<Vec<Count>> {
    let mut counts = Vec::new();
    for krate in entries(&root.join("crates"))? {
        counts.extend(cycles::count(root, &krate)?);
    }
    Ok(counts)
}

fn check_files(root: &Path) -> Result<Untidy> {
    let mut untidy = Untidy::default();
    for krate in entries(&root.join("crates"))? {
        let manifest = krate.join("Cargo.toml");
        if manifest.is_file() {
            let text = read(&manifest)?;
            let problems = arrows::check(&text).with_context(|| shown(root, &manifest))?;
            let place = |what| format!("{}: {what}", shown(root, &manifest));
            untidy.errors.extend(problems.into_iter().map(place));
        }
    }
    let files = sources(root)?;
    for path in &files {
        let found = source::check(Path::new(&shown(root, path)), &read(path)?);
        untidy.errors.extend(found.errors);
        untidy.warnings.extend(found.warnings);
    }
    untidy.files = files.len();
    Ok(untidy)
}

/// Every source of the workspace, and those of the fuzz targets.
fn sources(root: &Path) -> Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    for folder in [root.join("crates"), root.join("fuzz")] {
        if folder.is_dir() {
            find_sources(&folder, &mut files)?;
        }
    }
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
