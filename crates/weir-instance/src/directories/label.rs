//! The label of a server's directories, which says what they are parts of.
//!
//! It is the last thing that a start makes and the first that an end removes; so directories without
//! one hold nothing that anybody was promised, and any start may clear them.

use std::fs::File;
use std::io::{Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};
use weir_config::{Environment, Loaded};
use weir_core::roster::{InstanceId, Roster};

use super::job::Job;
use super::life::{is_kept, lives};
use super::names::{base_name, JOURNAL};
use super::private::check_private;
use crate::roster;

/// The file of the label.
pub(super) const LABEL: &str = "label.json";
/// A label that does not count yet.
const PREPARED: &str = ".label.json";
/// The longest label that is read, bytes.
const LABEL_MOST: u64 = 1 << 20;

/// The part of a server in an instance of several.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServerPart {
    /// Which life of the instance.
    pub instance: InstanceId,
    /// The server's number.
    pub rank: u16,
    /// The name of its node.
    pub host: String,
    /// How many servers share this machine.
    pub share: u32,
}

/// The label in the directories of one server.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Label {
    /// The server's name, which is the instance's or, of several on one machine, has a number.
    pub name: String,
    /// When its first server was started, ns since 1970: those that went on with it say the same.
    pub born_ns: u64,
    /// How many servers the instance has.
    pub servers: u16,
    /// Which of them it is, of several.
    #[serde(default)]
    pub part: Option<ServerPart>,
    /// Whose data it is.
    pub job: Job,
    /// Where programs see it.
    pub mount: PathBuf,
    /// The settings it was started with, as a weir.toml.
    pub settings: String,
    /// The directory that everything in it is to be moved to at the end of its run.
    #[serde(default)]
    pub drain_to: Option<PathBuf>,
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

    /// True if the instance may hold files that are to be on the parallel file system and are nowhere else.
    pub fn awaits_drain(&self) -> bool {
        !self.drain_targets().is_empty()
    }

    /// The directories that files in it are to be moved to: that of the end of its run, and those that it elevates.
    pub fn drain_targets(&self) -> Vec<PathBuf> {
        let settings = Loaded::from_toml(&self.settings, &Environment::default());
        let elevated = settings.map_or_else(|_| Vec::new(), |it| it.config.elevated_directories());
        self.drain_to.iter().cloned().chain(elevated).collect()
    }

    /// Why no server can go on with it; `None` if one can.
    pub fn obstacle(&self) -> Option<&'static str> {
        if !has_journal(&self.memory_dir) {
            Some("its journal was given up or removed, so nothing can go on with it")
        } else if self.servers > 1 && self.roster().is_none() {
            Some("the list of its servers is gone, and only together could they go on")
        } else {
            None
        }
    }

    /// The servers of the instance, of several. They are listed beside the journal, since a directory for temporary
    /// files may be gone before the memory that belongs to it.
    pub fn roster(&self) -> Option<Roster> {
        let part = self.part.as_ref()?;
        let roster = roster::read(&self.memory_dir).ok().flatten()?;
        let is_same = roster.instance() == part.instance && roster.servers() == self.servers;
        is_same.then_some(roster)
    }

    /// True if it stays when its job is over: what it holds can be moved, and is to be.
    pub fn outlives_job(&self) -> bool {
        self.awaits_drain() && self.obstacle().is_none()
    }

    /// Its directories; the run directory last, since its name is taken as long as it is there.
    pub fn dirs(&self) -> impl Iterator<Item = &Path> {
        let data = self.storage_dirs.iter().chain([&self.memory_dir]);
        data.chain([&self.run_dir]).map(PathBuf::as_path)
    }

    /// The name of the instance.
    pub fn instance(&self) -> &str {
        match self.servers {
            0 | 1 => &self.name,
            _ => base_name(&self.name),
        }
    }

    /// True if a process has one of its directories: its server lives, or ends, or is kept to be served again.
    pub fn is_held(&self) -> bool {
        self.dirs().any(|dir| lives(dir) || is_kept(dir))
    }

    /// True if nobody serves it or keeps it to serve it again.
    pub(super) fn is_dead(&self) -> bool {
        !self.is_held()
    }
}

/// Takes the labels away: from here on the directories are nobody's.
pub(super) fn remove_labels(dirs: &[PathBuf]) {
    for dir in dirs {
        let _ = std::fs::remove_file(dir.join(LABEL));
    }
}

pub(super) fn has_journal(memory_dir: &Path) -> bool {
    check_private(memory_dir).is_ok() && memory_dir.join(JOURNAL).is_file()
}
