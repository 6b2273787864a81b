//! A room for one test: directories of its own, an environment of its own, and the weir command
//! in it. Nothing of the machine's own weir instances is seen or touched.

#![allow(dead_code)] // Each test program uses its part.

pub mod drained;
pub mod trees;

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

use nix::sys::signal::{kill, Signal};
use nix::unistd::Pid;

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

    /// The same with no signal ignored: nohup, and shells for what runs in the background, make the tests
    /// ignore some, and weir leaves those alone.
    pub fn weir_with_all_signals(&self, arguments: &[&str]) -> Command {
        let weir = self.weir(arguments);
        let mut command = Command::new("env");
        command.env_clear();
        command.arg("--default-signal").arg(weir.get_program());
        command.args(weir.get_args()).current_dir(self.path());
        for (name, value) in weir.get_envs() {
            match value {
                Some(value) => command.env(name, value),
                None => command.env_remove(name),
            };
        }
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

    /// Runs it to its end, which must be a good one; returns its standard output.
    #[track_caller]
    pub fn ok(&self, arguments: &[&str]) -> String {
        self.ends(0, arguments).out
    }

    /// Runs it to its end, which must be with this code.
    #[track_caller]
    pub fn ends(&self, code: i32, arguments: &[&str]) -> Done {
        self.run(arguments).ended(code)
    }

    /// The same, and it must say these words on standard error.
    #[track_caller]
    pub fn says(&self, code: i32, words: &str, arguments: &[&str]) -> Done {
        self.ends(code, arguments).complains(words)
    }

    /// The status of an instance, as `weir status --json` prints it.
    #[track_caller]
    pub fn status(&self, name: &str) -> serde_json::Value {
        serde_json::from_str(&self.ok(&["status", name, "--json"])).unwrap()
    }

    /// The process of an instance of one server.
    #[track_caller]
    pub fn server(&self, name: &str) -> Pid {
        pid_in(&self.status(name))
    }

    /// Kills the server of an instance and waits until it is dead.
    #[track_caller]
    pub fn kill_server(&self, name: &str) {
        kill(self.server(name), Signal::SIGKILL).unwrap();
        wait_until("the server is gone", || self.is_dead(name));
    }

    /// True if the server of an instance was killed.
    pub fn is_dead(&self, name: &str) -> bool {
        self.run(&["status", name]).code == Some(5)
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

pub use weir_cluster::guard::wait_until;

/// The first line that a program writes to its standard output, which is a pipe.
pub fn first_line(child: &mut Child) -> String {
    let mut line = String::new();
    let mut out = BufReader::new(child.stdout.take().unwrap());
    out.read_line(&mut line).unwrap();
    line
}

/// The number of a process that was started.
pub fn pid_of(child: &Child) -> Pid {
    Pid::from_raw(i32::try_from(child.id()).unwrap())
}

/// The process in the status of a server.
pub fn pid_in(status: &serde_json::Value) -> Pid {
    Pid::from_raw(i32::try_from(status["pid"].as_i64().unwrap()).unwrap())
}

/// The process that started another one.
pub fn parent_of(pid: Pid) -> Pid {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("PPid:"));
    Pid::from_raw(line.unwrap().trim().parse().unwrap())
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

    /// Itself, of a command that must have ended with this code.
    #[track_caller]
    pub fn ended(self, code: i32) -> Self {
        assert_eq!(self.code, Some(code), "{self:?}");
        self
    }

    /// Itself, of a command that must have said these words on standard error.
    #[track_caller]
    pub fn complains(self, words: &str) -> Self {
        assert!(self.err.contains(words), "{words}: {self:?}");
        self
    }

    /// Standard output, of a command that must have ended well.
    #[track_caller]
    pub fn ok(self) -> String {
        self.ended(0).out
    }
}

/// The movers whose environment is that of the room.
pub fn movers_of(room: &Room) -> Vec<Pid> {
    let processes = std::fs::read_dir("/proc").unwrap().map_while(Result::ok);
    let numbers = processes.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    let is_mover = |number: &i32| {
        let words = std::fs::read(format!("/proc/{number}/cmdline")).unwrap_or_default();
        let environment = std::fs::read(format!("/proc/{number}/environ")).unwrap_or_default();
        let home = format!("HOME={}", room.path().display());
        let mut variables = environment.split(|byte| *byte == 0);
        words.ends_with(b"\0mover\0") && variables.any(|variable| variable == home.as_bytes())
    };
    numbers.filter(is_mover).map(Pid::from_raw).collect()
}
