//! Prefetch: files of elevated directories that are taken into the instance before the command of `weir run`
//! begins, by the rules with which the instance was started.
//!
//! A process of its own does it, since a call of the parallel file system may hang; and several, since each takes
//! one file at a time. They take files while the instance has room that eviction would not free again. A file that
//! is not taken is read where it is. The transfer service takes files while the command works, too (`weir_prefetch`).

use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use anyhow::{Context, Result};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};
use weir_core::elevate_rule::ElevateRule;
use weir_core::elevated::is_part;
use weir_instance::errln;
use weir_instance::size::bytes;
use weir_mover::drain::PrefetchedFile;
use weir_mover::tree::FileTree;
use weir_mover::InstanceTree;

use crate::args::PrefetchProcessArgs;
use crate::drain::process_args::PREFETCHED_FILE;
use crate::exit::Failure;
use crate::locate::elevated_directories;
use crate::run_stages::rule_of;
use crate::supervise;

/// The processes that take files.
const PROCESSES: usize = 4;
/// The most reasons that a process tells: what it writes must fit into a pipe.
const MOST_REASONS: usize = 5;

/// The files that a process has taken.
#[derive(Debug, Default, Serialize, Deserialize)]
struct PrefetchSummary {
    files: u64,
    bytes: u64,
    /// Files for which there was no room.
    no_room: u64,
    /// The first reasons why others were not taken.
    failed: Vec<String>,
}

/// A signal has ended a process that prefetched.
#[derive(Debug, thiserror::Error)]
#[error("stopped by a signal while files were prefetched, so the command was not started")]
struct Stopped;

/// Takes the files that the rules of an instance name. `evict_percent`: the part of the storage that may be used. From
/// the main thread, as [`supervise::run`].
pub fn prefetch(run_dir: &Path, evict_percent: u32) -> Result<(), Failure> {
    let total = match take_all(run_dir, evict_percent) {
        Ok(Some(total)) => total,
        Ok(None) => return Ok(()),
        Err(error) if error.is::<Stopped>() => return Err(error.into()),
        Err(error) => {
            errln!("weir: prefetch: {error:#}; the command reads files where they are");
            return Ok(());
        }
    };
    let no_room = match total.no_room {
        0 => String::new(),
        files => format!("; {files} others stay where they are, since they find no room"),
    };
    errln!(
        "weir: {} files ({}) prefetched{no_room}",
        total.files,
        bytes(total.bytes)
    );
    for reason in &total.failed {
        errln!("weir: prefetch: {reason}");
    }
    Ok(())
}

/// The sum of all processes; `None`: no rule prefetches.
fn take_all(run_dir: &Path, evict_percent: u32) -> Result<Option<PrefetchSummary>> {
    let directories = 0..elevated_directories(run_dir).len();
    let mut rules = directories.map(|number| rule_of(run_dir, number));
    if rules.all(|rule| rule.prefetch.is_empty()) {
        return Ok(None);
    }
    let start = |share| -> Result<Child> {
        let args = PrefetchProcessArgs {
            share,
            shares: PROCESSES,
            evict_percent,
            run_dir: run_dir.to_owned(),
        };
        let mut command = Command::new(std::env::current_exe()?);
        command.arg("prefetch-process").args(args.words());
        command.env("LD_PRELOAD", "").stdin(Stdio::null());
        command.stdout(Stdio::piped());
        Ok(supervise::spawn(&mut command, &[])?)
    };
    let children = (0..PROCESSES).map(start).collect::<Result<Vec<_>>>()?;
    let mut total = PrefetchSummary::default();
    for child in children {
        let status = supervise::wait_for(&child)?;
        if status.signal().is_some() {
            return Err(Stopped.into());
        }
        anyhow::ensure!(
            status.success(),
            "a process that prefetched ended with {status}"
        );
        let output = child.stdout.context("its output")?;
        let part: PrefetchSummary = serde_json::from_reader(output).context("its summary")?;
        total.files += part.files;
        total.bytes += part.bytes;
        total.no_room += part.no_room;
        total.failed.extend(part.failed);
    }
    Ok(Some(total))
}

/// `weir prefetch-process`.
pub fn take_share(args: &PrefetchProcessArgs) -> Result<()> {
    let instance = InstanceTree::attach(&args.run_dir)
        .with_context(|| format!("cannot reach the server of {}", args.run_dir.display()))?;
    let mut summary = PrefetchSummary::default();
    for (number, target) in elevated_directories(&args.run_dir).iter().enumerate() {
        let files = files_of(&rule_of(&args.run_dir, number), target);
        if files.is_empty() {
            continue;
        }
        let tree = PrefetchedTree::open(&args.run_dir, instance, number, target)?;
        for (path, size) in files.iter().skip(args.share).step_by(args.shares.max(1)) {
            summary.note(
                path,
                *size,
                tree.take_file(path, *size, args.evict_percent)?,
            );
        }
    }
    serde_json::to_writer(std::io::stdout(), &summary)?;
    Ok(())
}

impl PrefetchSummary {
    fn note(&mut self, path: &Path, size: u64, outcome: PrefetchOutcome) {
        match outcome {
            PrefetchOutcome::Taken => {
                self.files += 1;
                self.bytes += size;
            }
            PrefetchOutcome::NoRoom => self.no_room += 1,
            PrefetchOutcome::Failed(error) if self.failed.len() < MOST_REASONS => {
                self.failed.push(format!("{}: {error}", path.display()));
            }
            PrefetchOutcome::There | PrefetchOutcome::Failed(_) => {}
        }
    }
}

/// The result for a file that was to be taken.
#[derive(Debug)]
pub enum PrefetchOutcome {
    Taken,
    /// The instance has the name, or the job has removed it.
    There,
    NoRoom,
    Failed(io::Error),
}

/// An elevated tree that takes files.
pub struct PrefetchedTree<'a> {
    instance: InstanceTree,
    tree: InstanceTree,
    target: &'a Path,
    rule: ElevateRule,
    /// The files that it has taken, for the drain.
    notes: File,
}

impl PrefetchedTree<'_> {
    /// The tree of this number, over its target.
    pub fn open<'a>(
        run_dir: &Path,
        instance: InstanceTree,
        number: usize,
        target: &'a Path,
    ) -> Result<PrefetchedTree<'a>> {
        let notes = run_dir.join(format!("{PREFETCHED_FILE}{number}"));
        let notes = File::options().append(true).create(true).open(&notes);
        Ok(PrefetchedTree {
            instance,
            tree: instance.elevated(number).context("no such elevated tree")?,
            target,
            rule: rule_of(run_dir, number),
            notes: notes.context("the notes of what is prefetched")?,
        })
    }

    /// The size of a file that a program wants, if it is one that can be taken.
    pub fn check_file(&self, path: &Path) -> io::Result<u64> {
        let below = below(self.target, path);
        if let Ok(Some(stat)) = self.tree.look_up(Path::new(OsStr::from_bytes(&below))) {
            return Ok(stat.size);
        }
        let metadata = path.symlink_metadata()?;
        let refused = match () {
            () if metadata.is_dir() => Errno::ISDIR,
            () if !metadata.is_file() => Errno::INVAL,
            // Its other names would stay with the old file.
            () if metadata.nlink() != 1 => Errno::MLINK,
            () if !self.rule.new_files.takes(&below) => Errno::OPNOTSUPP,
            () => return Ok(metadata.len()),
        };
        Err(refused.into())
    }

    /// Takes a file of this size, if there is room. An error is the instance's.
    pub fn take_file(&self, path: &Path, size: u64, evict_percent: u32) -> Result<PrefetchOutcome> {
        let below = below(self.target, path);
        let below = Path::new(OsStr::from_bytes(&below));
        // An earlier run has taken it, or its command has made it anew.
        if matches!(self.tree.look_up(below), Ok(Some(_))) {
            return Ok(PrefetchOutcome::There);
        }
        if !has_room(&self.instance, size, evict_percent)? {
            return Ok(PrefetchOutcome::NoRoom);
        }
        match self.instance.take_up(path) {
            Ok(true) => {}
            Ok(false) => return Ok(PrefetchOutcome::There),
            Err(error) => return Ok(PrefetchOutcome::Failed(error)),
        }
        if let Ok(Some(stat)) = self.tree.look_up(below) {
            let name = below.strip_prefix("/").unwrap_or(below);
            // Without it the drain compares the bytes.
            let _ = PrefetchedFile::new(name, &stat).append_to(&self.notes);
        }
        Ok(PrefetchOutcome::Taken)
    }
}

/// The files below a directory that a rule prefetches, in the order of their paths, and their sizes.
fn files_of(rule: &ElevateRule, target: &Path) -> Vec<(PathBuf, u64)> {
    let mut found = Vec::new();
    if rule.prefetch.is_empty() {
        return found;
    }
    let mut open = vec![target.to_owned()];
    while let Some(dir) = open.pop() {
        // The program could not list such a directory either.
        for entry in std::fs::read_dir(&dir).into_iter().flatten().flatten() {
            let path = entry.path();
            let Ok(metadata) = entry.metadata() else {
                continue;
            };
            if metadata.is_dir() {
                open.push(path);
                continue;
            }
            let below = below(target, &path);
            let is_meant = metadata.is_file()
                // Its other names would stay with the old file.
                && metadata.nlink() == 1
                && !is_part(entry.file_name().as_bytes())
                && rule.takes_ahead(&below, metadata.len());
            if is_meant {
                found.push((path, metadata.len()));
            }
        }
    }
    found.sort();
    found
}

/// The path below the root of a tree, with a slash before it.
fn below(target: &Path, path: &Path) -> Vec<u8> {
    let rest = path
        .strip_prefix(target)
        .map_or(OsStr::new(""), Path::as_os_str);
    [b"/", rest.as_bytes()].concat()
}

/// True if a file of this size leaves the instance with the room from which on nothing is evicted.
fn has_room(instance: &InstanceTree, size: u64, evict_percent: u32) -> Result<bool> {
    let (whole, free) = instance
        .room()
        .context("asking for the room of the instance")?;
    let percent = match evict_percent {
        0 => 100,
        percent => percent.min(100),
    };
    let most = u128::from(whole) * u128::from(percent) / 100;
    Ok(u128::from(whole - free.min(whole)) + u128::from(size) <= most)
}

#[cfg(test)]
mod tests {
    use super::*;
    use weir_core::elevate_rule::PrefetchRule;
    use weir_core::path_globs::{PathChoice, PathGlobs};

    #[test]
    fn files_are_those_of_a_rule_and_of_its_sizes() {
        let dir = tempfile::tempdir().unwrap();
        let write =
            |name: &str, size| std::fs::write(dir.path().join(name), vec![0; size]).unwrap();
        std::fs::create_dir(dir.path().join("in")).unwrap();
        for (name, size) in [
            ("in/a.h5", 3),
            ("in/b.h5", 11),
            ("in/small.h5", 1),
            ("in/c", 1),
            (".d.h5.weir-part", 1),
        ] {
            write(name, size);
        }
        write("linked.h5", 1);
        std::fs::hard_link(dir.path().join("linked.h5"), dir.path().join("in/again.h5")).unwrap();
        std::os::unix::fs::symlink("a.h5", dir.path().join("in/link.h5")).unwrap();
        let rule = ElevateRule {
            prefetch: vec![PrefetchRule {
                files: PathChoice {
                    only: PathGlobs::new(["/**/*.h5"]),
                    ..PathChoice::default()
                },
                sizes: 2..=10,
            }],
            ..ElevateRule::default()
        };
        let found = files_of(&rule, dir.path());
        assert_eq!(found, [(dir.path().join("in/a.h5"), 3)]);
        assert_eq!(files_of(&ElevateRule::default(), dir.path()), []);
    }
}
