//! What is left of an instance whose server was killed: which instances that is, how much they
//! hold, and clearing them away.
//!
//! A server that took clients has a *label* in each of its directories, which says what they are
//! parts of. It is the last thing that a start makes and the first that an end removes; so
//! directories without one hold nothing that anybody was promised, and any start may clear them. What
//! has a label goes only by `weir stop`, with the restart that takes it up, or once its job is
//! over ([`Job::is_over`]).

use std::fs::File;
use std::io::{Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use anyhow::{bail, Context, Result};
use serde::{Deserialize, Serialize};
use weir_config::{Config, Environment};

use super::{base_name, check_private, lives, lock_of_dead, Burial, Job, Parent, JOURNAL, KEEP};
use crate::lock::Lock;
use crate::size::bytes;

/// The file of the label.
const LABEL: &str = "label.json";
/// A label that does not count yet.
const PREPARED: &str = ".label.json";
/// The longest label that is read, bytes.
const LABEL_MOST: u64 = 1 << 20;

/// What the directories of one server say of it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Label {
    /// The server's name, which is the instance's or, of several on one machine, has a number.
    pub name: String,
    /// When its first server was started, ns since 1970: those that went on with it say the same.
    pub born_ns: u64,
    /// How many servers the instance has.
    pub servers: u16,
    /// Whose data it is.
    pub job: Job,
    /// Where programs see it.
    pub mount: PathBuf,
    /// The settings it was started with, as a weir.toml.
    pub settings: String,
    /// Its directories.
    pub run_dir: PathBuf,
    /// That of the memory tier.
    pub memory_dir: PathBuf,
    /// Those of the file tier.
    pub storage_dirs: Vec<PathBuf>,
}

impl Label {
    /// The label in a directory, if there is one.
    pub fn read(dir: &Path) -> Option<Self> {
        check_private(dir).ok()?;
        let mut options = File::options();
        options.read(true).custom_flags(libc::O_NOFOLLOW);
        let file = options.open(dir.join(LABEL)).ok()?;
        let mut text = String::new();
        file.take(LABEL_MOST).read_to_string(&mut text).ok()?;
        serde_json::from_str(&text).ok()
    }

    /// Writes it into each directory, under a name that does not count yet: so that there is room
    /// for it when it does.
    pub fn prepare(&self) -> Result<()> {
        let text = serde_json::to_string(self).expect("plain data");
        for dir in self.dirs() {
            let path = dir.join(PREPARED);
            let mut options = File::options();
            options.write(true).create(true).truncate(true).mode(0o600);
            let written = options
                .open(&path)
                .and_then(|mut file| file.write_all(text.as_bytes()));
            written.with_context(|| path.display().to_string())?;
        }
        Ok(())
    }

    /// Makes it count, after [`Label::prepare`].
    pub fn put(&self) -> Result<()> {
        for dir in self.dirs() {
            let renamed = std::fs::rename(dir.join(PREPARED), dir.join(LABEL));
            renamed.with_context(|| dir.join(LABEL).display().to_string())?;
        }
        Ok(())
    }

    /// Its directories; the run directory last, since its name is taken as long as it is there.
    pub fn dirs(&self) -> impl Iterator<Item = &Path> {
        let data = self.storage_dirs.iter().chain([&self.memory_dir]);
        data.chain([&self.run_dir]).map(PathBuf::as_path)
    }

    /// What the instance is called.
    fn instance(&self) -> &str {
        match self.servers {
            0 | 1 => &self.name,
            _ => base_name(&self.name),
        }
    }

    /// Whether nobody serves it or keeps it to serve it again.
    fn is_dead(&self) -> bool {
        !self
            .dirs()
            .any(|dir| lives(dir) || Lock::is_held(&dir.join(KEEP)))
    }
}

/// Takes the labels away: from here on the directories are nobody's.
pub(super) fn remove_labels(dirs: &[PathBuf]) {
    for dir in dirs {
        let _ = std::fs::remove_file(dir.join(LABEL));
    }
}

/// A dead instance: the directories on this node of servers that were killed.
#[derive(Clone, Debug)]
pub struct Remains {
    /// The instance's name.
    pub name: String,
    /// A label for each of its servers of this node.
    pub labels: Vec<Label>,
}

impl Remains {
    /// Those of one server.
    pub fn of(label: Label) -> Self {
        Self {
            name: label.instance().to_owned(),
            labels: vec![label],
        }
    }

    /// Those of the instance that a directory is of, if its server is dead.
    pub fn at(dir: &Path, config: &Config, env: &Environment) -> Option<Self> {
        let label = Label::read(dir).filter(Label::is_dead)?;
        let all = all(config, env);
        let same = all.into_iter().find(|one| one.labels.contains(&label));
        Some(same.unwrap_or_else(|| Self::of(label)))
    }

    /// Those of an instance of this name.
    pub fn named(name: &str, config: &Config, env: &Environment) -> Option<Self> {
        all(config, env).into_iter().find(|one| {
            let server = |label: &Label| label.name == name;
            one.name == name || one.labels.iter().any(server)
        })
    }

    /// The first of its servers here.
    pub fn first(&self) -> &Label {
        &self.labels[0]
    }

    /// Why nothing can go on with it; `None` if a start can.
    pub fn obstacle(&self) -> Option<&'static str> {
        if self.first().servers > 1 {
            Some("all its servers on this node were killed with their agent, which only together could go on")
        } else if !has_journal(&self.first().memory_dir) {
            Some("its journal was given up or removed, so nothing can go on with it")
        } else {
            None
        }
    }

    /// How much it holds in memory and in files, bytes.
    pub fn held_bytes(&self) -> (u64, u64) {
        let memory = self.labels.iter().map(|label| &label.memory_dir);
        let files = self.labels.iter().flat_map(|label| &label.storage_dirs);
        (
            memory.map(|dir| allocated_bytes(dir)).sum(),
            files.map(|dir| allocated_bytes(dir)).sum(),
        )
    }

    /// One line: what it is, how much it holds, and what can be done with it.
    pub fn describe(&self) -> String {
        format!("{}; {}", self.state(), self.advice())
    }

    /// What it is, and how much it holds.
    pub fn state(&self) -> String {
        let (memory, files) = self.held_bytes();
        format!(
            "instance {} ({}) is dead: its server was killed and left {} in memory, {} in files",
            self.name,
            self.first().job,
            bytes(memory),
            bytes(files)
        )
    }

    /// What can be done with it.
    pub fn advice(&self) -> String {
        let name = &self.name;
        match self.obstacle() {
            None => format!("weir start {name} goes on with it, weir stop {name} clears it"),
            Some(why) => format!("{why}; weir stop {name} clears it"),
        }
    }

    /// Removes its directories.
    pub fn clear(&self) -> Result<()> {
        for label in &self.labels {
            clear_dirs(label.dirs())?;
        }
        Ok(())
    }
}

/// Removes directories of a server that does not live.
pub fn clear_dirs<'d>(dirs: impl Iterator<Item = &'d Path>) -> Result<()> {
    let mut burial = Burial::default();
    for dir in dirs.filter(|dir| dir.exists()) {
        // Only its own parent's guard keeps a start from claiming it meanwhile.
        let parent = Parent::holding(dir).context("a directory of no instance")?;
        let _guard = parent.guard()?;
        let Some(lock) = lock_of_dead(dir) else {
            bail!("{} is in use again", dir.display());
        };
        remove_labels(&[dir.to_owned()]);
        burial.add(dir.to_owned(), lock, None);
    }
    burial.remove();
    Ok(())
}

pub(super) fn has_journal(memory_dir: &Path) -> bool {
    check_private(memory_dir).is_ok() && memory_dir.join(JOURNAL).is_file()
}

/// All dead instances of the user on this node that can be found with these settings.
pub fn all(config: &Config, env: &Environment) -> Vec<Remains> {
    let runs = [Parent::of_runs(env), Parent::of_shared_runs(config)];
    let data = std::iter::once(Parent::of_memory(config)).chain(Parent::of_files(config));
    let mut found: Vec<Remains> = Vec::new();
    for parent in runs.into_iter().chain(data) {
        for name in parent.children() {
            let Some(label) = Label::read(&parent.child(&name)).filter(Label::is_dead) else {
                continue;
            };
            let name = label.instance().to_owned();
            let at = found.iter().position(|one| {
                let other = one.first();
                one.name == name && other.run_dir.parent() == label.run_dir.parent()
            });
            match at {
                Some(at) if found[at].labels.contains(&label) => {}
                Some(at) => found[at].labels.push(label),
                None => found.push(Remains::of(label)),
            }
        }
    }
    for one in &mut found {
        one.labels.sort_by(|a, b| a.name.cmp(&b.name));
    }
    found.sort_by(|a, b| a.name.cmp(&b.name));
    found
}

/// What the files of a directory take, not what they are long: slabs are sparse.
fn allocated_bytes(dir: &Path) -> u64 {
    let Ok(entries) = std::fs::read_dir(dir) else {
        return 0;
    };
    entries
        .flatten()
        .filter(|entry| entry.file_name() != LABEL)
        .filter_map(|entry| entry.metadata().ok())
        .map(|meta| meta.blocks() * 512)
        .sum()
}
