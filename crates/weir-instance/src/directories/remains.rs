//! The remains of instances whose servers were killed: which instances those are, how much they
//! hold, and clearing them away.
//!
//! A server that took clients has a *label* in each of its directories, which says what they are
//! parts of. It is the last thing that a start makes and the first that an end removes; so
//! directories without one hold nothing that anybody was promised, and any start may clear them. What
//! has a label goes only by `weir stop`, with the restart that takes it up, or once its job is
//! over ([`Job::is_over`](super::Job::is_over)).

use std::os::unix::fs::MetadataExt;
use std::path::Path;

use anyhow::{bail, Context, Result};
use weir_config::{Config, Environment};

use super::label::{remove_labels, Label, LABEL};
use super::life::lock_of_dead;
use super::parent::Parent;
use super::removal::Burial;
use crate::size::bytes;

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
    pub fn from_label(label: Label) -> Self {
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
        Some(same.unwrap_or_else(|| Self::from_label(label)))
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

    /// True if it has, or had, several servers: they go on together, by `weir recover`.
    pub fn is_of_several(&self) -> bool {
        self.first().servers > 1
    }

    /// Why nothing can go on with it; `None` if a server can.
    pub fn obstacle(&self) -> Option<&'static str> {
        let mut obstacles = self.labels.iter().map(Label::obstacle);
        let first = obstacles.next().flatten();
        first.filter(|_| obstacles.all(|obstacle| obstacle.is_some()))
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

    /// Says that it is dead, and how much it holds.
    pub fn state(&self) -> String {
        let (memory, files) = self.held_bytes();
        let (memory, files) = (bytes(memory), bytes(files));
        let killed = match self.is_of_several() {
            false => "its server was killed and left".to_owned(),
            true => format!("{} were killed; here they left", self.servers()),
        };
        format!(
            "instance {} ({}) is dead: {killed} {memory} in memory, {files} in files",
            self.name,
            self.first().job,
        )
    }

    /// How many servers it had, and on which nodes.
    fn servers(&self) -> String {
        const MOST: usize = 8;
        let label = self.first();
        let roster = label.roster();
        let members = roster.as_ref().map_or(&[][..], |roster| roster.members());
        let mut hosts: Vec<&str> = members.iter().map(|member| member.host.as_str()).collect();
        hosts.dedup();
        let more = match hosts.len().saturating_sub(MOST) {
            0 => String::new(),
            more => format!(" and {more} more"),
        };
        hosts.truncate(MOST);
        let on = if hosts.is_empty() { "" } else { " on " };
        format!(
            "its {} servers{on}{}{more}",
            label.servers,
            hosts.join(", ")
        )
    }

    /// Says what can be done with it.
    pub fn advice(&self) -> String {
        let name = &self.name;
        match (self.obstacle(), self.awaits_drain()) {
            (None, false) if self.is_of_several() => format!(
                "weir recover --drain-to DIRECTORY {name} moves what is in it to that directory, \
                 weir stop {name} clears it"
            ),
            (None, false) => {
                format!("weir start {name} goes on with it, weir stop {name} clears it")
            }
            (None, true) => format!(
                "weir recover {name} moves what is in it to the parallel file system, weir stop \
                 --no-drain {name} gives it up"
            ),
            (Some(why), false) => format!("{why}; weir stop {name} clears it"),
            (Some(why), true) if self.is_of_several() => format!(
                "{why}; weir recover on another of its nodes moves what is there; weir stop --no-drain \
                 {name} clears it"
            ),
            (Some(why), true) => format!(
                "{why}; what is not on the parallel file system yet is lost; weir stop --no-drain \
                 {name} clears it"
            ),
        }
    }

    /// True if it may hold files that are to be on the parallel file system and are nowhere else.
    pub fn awaits_drain(&self) -> bool {
        self.first().awaits_drain()
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

/// All dead instances of the user on this node that can be found with these settings.
pub fn all(config: &Config, env: &Environment) -> Vec<Remains> {
    let mut found: Vec<Remains> = Vec::new();
    for label in labels(config, env).filter(Label::is_dead) {
        let name = label.instance().to_owned();
        let at = found.iter().position(|one| {
            let other = one.first();
            one.name == name && other.run_dir.parent() == label.run_dir.parent()
        });
        match at {
            Some(at) if found[at].labels.contains(&label) => {}
            Some(at) => found[at].labels.push(label),
            None => found.push(Remains::from_label(label)),
        }
    }
    for one in &mut found {
        one.labels.sort_by(|a, b| a.name.cmp(&b.name));
    }
    found.sort_by(|a, b| a.name.cmp(&b.name));
    found
}

/// The labels of the servers of this node that live, or that a process that ends has not let go of yet.
pub fn living(config: &Config, env: &Environment) -> Vec<Label> {
    let mut living: Vec<Label> = Vec::new();
    for label in labels(config, env).filter(Label::is_held) {
        if !living.contains(&label) {
            living.push(label);
        }
    }
    living
}

/// The labels in all directories of instances on this node.
fn labels(config: &Config, env: &Environment) -> impl Iterator<Item = Label> {
    let runs = [Parent::of_runs(env), Parent::of_shared_runs(config)];
    let data = std::iter::once(Parent::of_memory(config)).chain(Parent::of_files(config));
    let dirs = runs.into_iter().chain(data).flat_map(|parent| {
        let names = parent.children().into_iter();
        let dirs = names.map(|name| parent.child(&name));
        dirs.collect::<Vec<_>>()
    });
    dirs.filter_map(|dir| Label::read(&dir))
}

/// The bytes that the files of a directory take, not their lengths: slabs are sparse.
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
