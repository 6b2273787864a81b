//! A room for one test: directories of its own, an environment of its own, and the weir command
//! in it. Nothing of the machine's own weir instances is seen or touched.

#![allow(dead_code)] // Each test program uses its part.

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

pub struct Room {
    dir: tempfile::TempDir,
    memory: tempfile::TempDir,
}

impl Room {
    pub fn new() -> Self {
        Self {
            dir: tempfile::tempdir().unwrap(),
            memory: tempfile::tempdir_in("/dev/shm").unwrap(),
        }
    }

    pub fn path(&self) -> &Path {
        self.dir.path()
    }

    pub fn memory(&self) -> &Path {
        self.memory.path()
    }

    /// A file in the room.
    pub fn write(&self, name: &str, text: &str) -> PathBuf {
        let path = self.path().join(name);
        std::fs::write(&path, text).unwrap();
        path
    }

    /// The command, with a clean environment and small budgets. What is injected is the C library
    /// itself, which every program has anyway: these tests are about the command.
    pub fn weir(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_weir"));
        Self::prepare(&mut command, arguments);
        command
            .current_dir(self.path())
            .env("HOME", self.path())
            .env("TMPDIR", self.path())
            .env("WEIR_LAUNCH_DIRECTORY", self.path())
            .env("WEIR_MEMORY_DIRECTORY", self.memory());
        command
    }

    /// Makes `command`, whose program is weir, the same on a node of a cluster.
    pub fn prepare(command: &mut Command, arguments: &[&str]) {
        command
            .args(arguments)
            .env_clear()
            .env("PATH", std::env::var_os("PATH").unwrap())
            .env("WEIR_PRELOAD", c_library())
            .env("WEIR_MEMORY_BUDGET", "128M")
            .env("WEIR_FILE_BUDGET", "128M")
            .env("WEIR_MEMORY_WARM", "0")
            .env("WEIR_SERVER_MAX_FILES", "10000")
            .env("WEIR_SERVER_MAX_CLIENTS", "16")
            .stdin(Stdio::null());
    }

    /// Runs it to its end.
    pub fn run(&self, arguments: &[&str]) -> Done {
        Done::from_output(&self.weir(arguments).output().unwrap())
    }

    /// Names below the directories in which instances live, locks aside.
    pub fn left_behind(&self) -> Vec<String> {
        let tops = [self.path(), self.memory()].into_iter().flat_map(children);
        let parents = tops.filter(|path| name_of(path).starts_with("weir-") && path.is_dir());
        let mut left: Vec<String> = parents
            .flat_map(|path| children(&path))
            .map(|path| name_of(&path))
            .collect();
        left.retain(|name| !name.ends_with("guard.lock"));
        left.sort();
        left
    }
}

fn children(dir: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(dir).unwrap();
    entries.map(|entry| entry.unwrap().path()).collect()
}

fn name_of(path: &Path) -> String {
    path.file_name().unwrap().to_string_lossy().into_owned()
}

/// Where this program's C library is mapped from.
fn c_library() -> PathBuf {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let path = maps.lines().find_map(|line| {
        let path = &line[line.find('/')?..];
        path.contains("/libc.so").then(|| PathBuf::from(path))
    });
    path.expect("a dynamically linked test")
}

/// Waits for a condition, without end but that of the patience of a person.
#[track_caller]
pub fn wait_until(what: &str, met: impl Fn() -> bool) {
    let start = std::time::Instant::now();
    while !met() {
        assert!(start.elapsed().as_secs() < 60, "not after a minute: {what}");
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
}

/// How a command ended.
#[derive(Debug)]
pub struct Done {
    pub code: Option<i32>,
    pub out: String,
    pub err: String,
}

impl Done {
    pub fn from_output(output: &Output) -> Self {
        Self {
            code: output.status.code(),
            out: String::from_utf8_lossy(&output.stdout).into_owned(),
            err: String::from_utf8_lossy(&output.stderr).into_owned(),
        }
    }

    /// Standard output, of a command that must have ended well.
    #[track_caller]
    pub fn ok(self) -> String {
        assert_eq!(self.code, Some(0), "{self:?}");
        self.out
    }
}
