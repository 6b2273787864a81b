//! An instance of several nodes, one server each.
//!
//! One at a time: each of them uses the whole machine.

use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};

use serde_json::Value;
use weir_cluster::{can_test_with, missing, Cluster, Spec};
use weir_tests::build::{program_in, Compiler};
use weir_tests::launch::weir_binary;
use weir_tests::source_root;

use super::probes::Place;

/// The name of the instance.
const NAME: &str = "hold";

/// Held by a test with an instance.
pub static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

/// A running instance on a cluster of its own.
pub struct Room {
    pub cluster: Cluster,
    settings: Vec<(String, String)>,
    _alone: MutexGuard<'static, ()>,
}

/// The program of a source in tests/hold.
pub fn program(source: &str, compiler: Compiler) -> PathBuf {
    program_in(&source_root().join("tests/hold"), source, compiler).unwrap()
}

/// Runs a command to its end, which must be a good one; returns its output.
#[track_caller]
pub fn said(command: &mut Command) -> String {
    let output = command.output().unwrap();
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).unwrap()
}

impl Room {
    /// Starts an instance with these settings (variables); `None` if this machine cannot.
    pub fn up(what: &str, nodes: usize, settings: &[(&str, &str)]) -> Option<Room> {
        if !can_test_with(what, &missing(true)) {
            return None;
        }
        let alone = ONE_AT_A_TIME.lock();
        let alone = alone.unwrap_or_else(PoisonError::into_inner);
        let own = |(key, value): &(&str, &str)| ((*key).to_owned(), (*value).to_owned());
        let room = Room {
            cluster: Cluster::up(&Spec::with_ssh(nodes)).unwrap(),
            settings: settings.iter().map(own).collect(),
            _alone: alone,
        };
        let hosts = room.cluster.host_list();
        said(&mut room.weir(0, &["start", NAME, "--hosts", &hosts]));
        Some(room)
    }

    /// The command `weir` on a node.
    pub fn weir(&self, node: usize, words: &[&str]) -> Command {
        let mut command = self.cluster.node(node).command(weir_binary().unwrap());
        command
            .args(words)
            .env("WEIR_MEMORY_BUDGET", "256M")
            .env("WEIR_FILE_BUDGET", "128M")
            .env("WEIR_MEMORY_WARM", "0")
            .envs(self.settings.iter().map(|(key, value)| (key, value)))
            .stdin(Stdio::null());
        command
    }

    /// Runs a shell's commands on a node, with the instance; returns their output.
    #[track_caller]
    pub fn shell(&self, node: usize, script: &str) -> String {
        said(&mut self.run(node, "bash", &["-c", script]))
    }

    /// Makes files of one byte, by a program of a node.
    #[track_caller]
    pub fn make_files(&self, node: usize, count: usize) -> Made {
        let script = format!(
            "cd /weir; for i in $(seq {count}); do printf a > f$i; done; \
             for i in $(seq {count}); do echo $(stat -c %i f$i) /weir/f$i; done"
        );
        let said = self.shell(node, &script);
        let files = said.lines().map(|line| {
            let (ino, path) = line.split_once(' ').unwrap();
            // The home of a name creates the file, and its inode number tells the home's rank.
            (ino.parse::<u64>().unwrap() >> 48, path.to_owned())
        });
        Made(files.collect())
    }

    /// A node's report about all servers.
    pub fn status(&self, node: usize) -> Value {
        let text = said(&mut self.weir(node, &["status", NAME, "--json"]));
        serde_json::from_str(&text).unwrap()
    }

    /// The process of a server, by its number on its node.
    pub fn server_pid(&self, rank: usize) -> u64 {
        self.status(rank)["each"][rank]["pid"].as_u64().unwrap()
    }

    /// The agent that started a server.
    pub fn agent_pid(&self, rank: usize) -> u64 {
        let file = format!("/proc/{}/status", self.server_pid(rank));
        let mut command = self.cluster.node(rank).command("grep");
        let line = said(command.args(["PPid:", &file]));
        line.split_whitespace().nth(1).unwrap().parse().unwrap()
    }

    /// Sends a signal to a process of a node.
    #[track_caller]
    pub fn signal(&self, node: usize, signal: &str, pid: u64) {
        let mut kill = self.cluster.node(node).command("kill");
        said(kill.args([signal, &pid.to_string()]));
    }

    /// The log of a node's server.
    pub fn log(&self, node: usize) -> String {
        let dir = self.cluster.node(node).dir().join("tmp/weir-0");
        std::fs::read_to_string(dir.join(NAME).join("server.log")).unwrap_or_default()
    }

    /// Ends the instance in order; returns the output.
    pub fn stop(self) -> String {
        let output = self.weir(0, &["stop", NAME]).output().unwrap();
        assert!(output.status.success(), "{output:?}");
        String::from_utf8_lossy(&output.stderr).into_owned()
    }
}

impl Place for Room {
    fn run(&self, node: usize, program: &str, words: &[&str]) -> Command {
        let mut command = self.weir(node, &["run", "-i", NAME, "--", program]);
        command.args(words);
        command
    }
}

/// Files, each with the server that is its home.
#[derive(Debug)]
pub struct Made(Vec<(u64, String)>);

impl Made {
    /// The paths of the files with this home.
    pub fn of_home(&self, home: u64) -> Vec<&str> {
        let at_home = self.0.iter().filter(|(rank, _)| *rank == home);
        at_home.map(|(_, path)| path.as_str()).collect()
    }
}
