//! A `weir run` that drains an instance, for tests.

use std::fs;
use std::path::PathBuf;
use std::process::{Child, Stdio};

use nix::sys::signal::{kill, Signal};
use nix::unistd::Pid;

use super::{pid_of, wait_until, Room};

/// A `weir run --drain-to out` whose command lives until its standard input is closed.
pub struct Drained<'r> {
    pub room: &'r Room,
    pub run: Child,
}

impl<'r> Drained<'r> {
    /// `set`: settings of the run; rounds follow each other unless it says otherwise.
    pub fn start(room: &'r Room, set: &[&str]) -> Drained<'r> {
        Drained::start_on(room, "1", set)
    }

    /// Of an instance of several servers.
    pub fn start_on(room: &'r Room, servers: &str, set: &[&str]) -> Drained<'r> {
        room.ok(&["start", "x", "--servers", servers]);
        let rounds = ["--set", "drain.interval_s=0"];
        let words = ["-i", "x", "--drain-to", "out", "cat"];
        let mut run = room.weir_with_all_signals(&[&["run"], &rounds[..], set, &words].concat());
        let run = run.stdin(Stdio::piped()).stderr(Stdio::piped());
        let run = run.spawn().unwrap();
        Drained { room, run }
    }

    /// Writes a file in the instance.
    pub fn write(&self, name: &str, content: &str) {
        let file = self.room.write("to-write", content);
        let target = format!("/weir/{name}");
        let words = ["stage", "in", "-i", "x", file.to_str().unwrap(), &target];
        self.room.ok(&words);
    }

    pub fn out(&self, name: &str) -> PathBuf {
        self.room.path().join("out").join(name)
    }

    pub fn waits_for(&self, name: &str, content: &str) {
        let path = self.out(name);
        wait_until(name, || {
            fs::read(&path).is_ok_and(|found| found == content.as_bytes())
        });
    }

    /// The state of the drain, once there is one.
    pub fn status(&self) -> serde_json::Value {
        let ask = ["drain", "-i", "x", "--status", "--json"];
        wait_until("the drain", || self.room.run(&ask).code != Some(1));
        let all: serde_json::Value = serde_json::from_str(&self.room.run(&ask).out).unwrap();
        all[0].clone()
    }

    pub fn process(&self) -> Pid {
        Pid::from_raw(i32::try_from(self.status()["pid"].as_i64().unwrap()).unwrap())
    }

    /// Ends the command; what the run said.
    pub fn ends(mut self, code: i32) -> String {
        drop(self.run.stdin.take());
        self.wait_for(code)
    }

    /// Sends a signal to the run, which passes it on to the command; what the run said.
    pub fn ends_by(mut self, signal: Signal, code: i32) -> String {
        // The end of its input could end the command before the signal does.
        let input = self.run.stdin.take();
        kill(pid_of(&self.run), signal).unwrap();
        let said = self.wait_for(code);
        drop(input);
        said
    }

    fn wait_for(self, code: i32) -> String {
        let done = self.run.wait_with_output().unwrap();
        let said = String::from_utf8_lossy(&done.stderr).into_owned();
        assert_eq!(done.status.code(), Some(code), "{said}");
        said
    }
}
