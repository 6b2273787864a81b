//! An instance on this machine, without privileges or namespaces.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{MutexGuard, PoisonError};

use serde_json::Value;
use weir_tests::launch::weir_binary;

use super::probes::Place;
use super::room::{said, ONE_AT_A_TIME};

/// The directories of an instance on this machine; dropping it stops the instance.
pub struct Local {
    name: &'static str,
    dir: tempfile::TempDir,
    memory: tempfile::TempDir,
    settings: Vec<(&'static str, &'static str)>,
    _alone: MutexGuard<'static, ()>,
}

impl Local {
    pub fn start(
        name: &'static str,
        words: &[&str],
        settings: &[(&'static str, &'static str)],
    ) -> Self {
        Self::start_by(&[], name, words, settings)
    }

    /// Started by another program, which changes the server's environment.
    pub fn start_by(
        by: &[&str],
        name: &'static str,
        words: &[&str],
        settings: &[(&'static str, &'static str)],
    ) -> Self {
        let alone = ONE_AT_A_TIME.lock();
        let alone = alone.unwrap_or_else(PoisonError::into_inner);
        let local = Local {
            name,
            dir: tempfile::tempdir().unwrap(),
            memory: tempfile::tempdir_in("/dev/shm").unwrap(),
            settings: settings.to_vec(),
            _alone: alone,
        };
        let weir = weir_binary().unwrap().display().to_string();
        let all = [by, &[&weir, "start", name], words].concat();
        let mut command = Command::new(all[0]);
        said(local.environment(command.args(&all[1..])));
        local
    }

    pub fn environment<'c>(&self, command: &'c mut Command) -> &'c mut Command {
        command
            .env("TMPDIR", self.dir.path())
            .env_remove("XDG_RUNTIME_DIR")
            .env("WEIR_LAUNCH_DIRECTORY", self.dir.path())
            .env("WEIR_MEMORY_DIRECTORY", self.memory.path())
            .env("WEIR_MEMORY_BUDGET", "2G")
            .env("WEIR_FILE_BUDGET", "2G")
            .env("WEIR_MEMORY_WARM", "0")
            .envs(self.settings.iter().copied())
            .stdin(Stdio::null())
    }

    pub fn weir(&self, words: &[&str]) -> Command {
        let mut command = Command::new(weir_binary().unwrap());
        self.environment(command.args(words));
        command
    }

    pub fn status(&self) -> Value {
        let text = said(&mut self.weir(&["status", self.name, "--json"]));
        serde_json::from_str(&text).unwrap()
    }

    /// The directory of a server's socket.
    pub fn run_dir(&self, rank: usize) -> PathBuf {
        let first = PathBuf::from(self.status()["run_dir"].as_str().unwrap());
        match rank {
            0 => first,
            rank => first.with_file_name(format!("{}.{rank}", self.name)),
        }
    }

    /// The directory of shared memory.
    pub fn memory(&self) -> &Path {
        self.memory.path()
    }

    pub fn log(&self) -> String {
        std::fs::read_to_string(self.run_dir(0).join("server.log")).unwrap()
    }
}

impl Drop for Local {
    fn drop(&mut self) {
        let _ = self.weir(&["stop", self.name]).output();
    }
}

impl Place for Local {
    fn run(&self, rank: usize, program: &str, words: &[&str]) -> Command {
        let rank = rank.to_string();
        let mut command = self.weir(&["run", "-i", self.name, "--rank", &rank, "--", program]);
        command.args(words);
        command
    }
}
