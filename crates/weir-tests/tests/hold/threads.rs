//! Threads of one process do not wait for each other's requests.

use std::io::{BufRead, BufReader, Write};
use std::process::Stdio;
use std::time::Duration;

use weir_tests::build::Compiler;

use super::probes::Place;
use super::room::{finish, program, Room};

/// Longer than the test takes.
const SETTINGS: [(&str, &str); 1] = [("WEIR_FABRIC_DEADLINE_S", "60")];
/// Of so many files about half have the first node as their home.
const FILES: usize = 24;
/// Calls that wait at a time.
const WAIT: usize = 8;

#[test]
fn a_thread_goes_on_while_others_wait_for_a_server() {
    let Some(room) = Room::up("threads of one process", 2, &SETTINGS) else {
        return;
    };
    let make = format!(
        "cd /weir; for i in $(seq {FILES}); do printf a > f$i; done; \
         for i in $(seq {FILES}); do echo $(stat -c %i f$i) /weir/f$i; done"
    );
    let made = room.shell(1, &make);
    // The home of a name makes the file, and says so in its number.
    let of_home = |home: u64| {
        let files = made.lines().filter_map(|line| line.split_once(' '));
        let at_home = files.filter(|(ino, _)| ino.parse::<u64>().unwrap() >> 48 == home);
        at_home.map(|(_, path)| path).collect::<Vec<&str>>()
    };
    let (own, far) = (of_home(0), of_home(1));
    assert!(own.len() >= 2 && far.len() >= WAIT, "{made}");
    // With nothing of them elsewhere.
    let again = own[..2].join(" ");
    room.shell(
        0,
        &format!("rm {again}; for f in {again}; do printf a > $f; done"),
    );
    let words = [&own[..2], &["--"], &far[..WAIT]].concat();
    let program = program("threads.c", Compiler::C).display().to_string();
    let mut command = room.run(0, &program, &words);
    let command = command.stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let mut ask = child.stdin.take().unwrap();
    let mut told = BufReader::new(child.stdout.take().unwrap());
    let mut line = || {
        let mut line = String::new();
        told.read_line(&mut line).unwrap();
        line
    };
    assert_eq!(line(), "ready\n");
    let pid = room.server_pid(1);
    room.signal(1, "-STOP", pid);
    ask.write_all(b"\n").unwrap();
    assert_eq!(line(), format!("0 of {WAIT}\n"));
    room.signal(1, "-CONT", pid);
    drop(ask);
    assert_eq!(line(), format!("{WAIT} of {WAIT}\n"));
    assert!(finish(child, Duration::from_secs(60)).status.success());
    room.stop();
}
