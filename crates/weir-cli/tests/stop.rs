//! Stopping what is used: refused unless told to, and noticed by the `weir run` that used it.

mod common;

use std::io::{BufRead, BufReader};
use std::process::{Child, Stdio};

use common::{wait_until, Done, Room};

/// A `weir run` whose command says where it is, and then waits for the end of its input.
struct Run {
    child: Child,
    run_dir: String,
}

fn run(room: &Room, options: &[&str]) -> Run {
    let script = "echo $WEIR_INSTANCE; read line; exit 0";
    let mut command = room.weir(&[&["run"], options, &["sh", "-c", script]].concat());
    command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let mut line = String::new();
    let mut says = BufReader::new(child.stdout.take().unwrap());
    says.read_line(&mut line).unwrap();
    let run_dir = line.trim_end().to_owned();
    Run { child, run_dir }
}

impl Run {
    fn close_input(mut self) -> Done {
        drop(self.child.stdin.take());
        Done::from_output(&self.child.wait_with_output().unwrap())
    }
}

#[test]
fn what_is_used_is_not_stopped_unless_told_to() {
    let room = Room::new();
    for servers in ["1", "2"] {
        room.run(&["start", "x", "--servers", servers]).ok();
        let used = run(&room, &["-i", "x"]);
        let refused = room.run(&["stop", "x"]);
        assert_eq!(refused.code, Some(6), "{refused:?}");
        let by = format!("in use by weir run (process {})", used.child.id());
        assert!(refused.err.contains(&by), "{refused:?}");
        assert!(refused.err.contains("weir stop --force x"), "{refused:?}");
        let done = used.close_input();
        assert_eq!(done.code, Some(0), "{done:?}");
        let stop = room.run(&["stop", "x"]);
        assert_eq!(stop.code, Some(0), "{stop:?}");
        assert_eq!(room.left_behind(), [""; 0]);
    }
}

#[test]
fn a_run_whose_instance_was_stopped_under_it_says_so() {
    let room = Room::new();
    room.run(&["start", "x"]).ok();
    let shared = run(&room, &["-i", "x"]);
    let own = [
        run(&room, &["--memory", "64M"]),
        run(&room, &["--servers", "2"]),
    ];
    for used in own.into_iter().chain([shared]) {
        room.run(&["stop", "--force", &used.run_dir]).ok();
        let done = used.close_input();
        assert_eq!(done.code, Some(125), "{done:?}");
        assert!(done.err.contains("was stopped"), "{done:?}");
    }
    wait_until("nothing is left", || room.left_behind().is_empty());
}

#[test]
fn another_instance_of_the_same_name_is_not_the_one_that_was_used() {
    let room = Room::new();
    room.run(&["start", "x"]).ok();
    let used = run(&room, &["-i", "x"]);
    room.run(&["stop", "--force", "x"]).ok();
    room.run(&["start", "x"]).ok();
    let done = used.close_input();
    assert_eq!(done.code, Some(125), "{done:?}");
    room.run(&["stop", "x"]).ok();
}

#[test]
fn a_run_over_a_server_that_was_started_again_goes_on() {
    let room = Room::new();
    room.run(&["start", "x"]).ok();
    let used = run(&room, &["-i", "x"]);
    let status = room.run(&["status", "x", "--json"]).ok();
    let status: serde_json::Value = serde_json::from_str(&status).unwrap();
    let pid = nix::unistd::Pid::from_raw(i32::try_from(status["pid"].as_i64().unwrap()).unwrap());
    nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGKILL).unwrap();
    wait_until("it is dead", || room.run(&["status", "x"]).code == Some(5));
    room.run(&["start", "x"]).ok();
    let done = used.close_input();
    assert_eq!(done.code, Some(0), "{done:?}");
    room.run(&["stop", "x"]).ok();
}
