//! Stopping what is used: refused unless told to, and noticed by the `weir run` that used it.

mod common;

use std::process::{Child, Stdio};

use common::{first_line, wait_until, Done, Room};

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
    let run_dir = first_line(&mut child).trim_end().to_owned();
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
        room.ok(&["start", "x", "--servers", servers]);
        let used = run(&room, &["-i", "x"]);
        let refused = room.ends(6, &["stop", "x"]);
        let by = format!("in use by weir run (process {})", used.child.id());
        assert!(refused.err.contains(&by), "{refused:?}");
        assert!(refused.err.contains("weir stop --force x"), "{refused:?}");
        used.close_input().ended(0);
        room.ends(0, &["stop", "x"]);
        assert_eq!(room.left_behind(), [""; 0]);
    }
}

#[test]
fn a_run_whose_instance_was_stopped_under_it_says_so() {
    let room = Room::new();
    room.ok(&["start", "x"]);
    let shared = run(&room, &["-i", "x"]);
    let own = [
        run(&room, &["--memory", "64M"]),
        run(&room, &["--servers", "2"]),
    ];
    for used in own.into_iter().chain([shared]) {
        room.ok(&["stop", "--force", &used.run_dir]);
        used.close_input().ended(125).complains("was stopped");
    }
    wait_until("nothing is left", || room.left_behind().is_empty());
}

#[test]
fn another_instance_of_the_same_name_is_not_the_one_that_was_used() {
    let room = Room::new();
    room.ok(&["start", "x"]);
    let used = run(&room, &["-i", "x"]);
    room.ok(&["stop", "--force", "x"]);
    room.ok(&["start", "x"]);
    used.close_input().ended(125);
    room.ok(&["stop", "x"]);
}

#[test]
fn a_run_over_a_server_that_was_started_again_goes_on() {
    let room = Room::new();
    room.ok(&["start", "x"]);
    let used = run(&room, &["-i", "x"]);
    room.kill_server("x");
    room.ok(&["start", "x"]);
    used.close_input().ended(0);
    room.ok(&["stop", "x"]);
}
