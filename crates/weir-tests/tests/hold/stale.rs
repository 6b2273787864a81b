//! What programs see of files of other nodes while their own server says nothing.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Stdio};
use std::time::Duration;

use weir_tests::build::Compiler;

use super::probes::Place;
use super::room::{finish, program, Room};

/// A write that has returned is seen; a call waits 2 s for a server that says nothing.
const SETTINGS: [(&str, &str); 2] = [
    ("WEIR_VISIBILITY_DEFAULT", "raw"),
    ("WEIR_FABRIC_DEADLINE_S", "2"),
];
/// Of so many files about half have the first node as their home.
const FILES: usize = 12;
/// Readers need not ask by then: nobody else writes.
const SETTLED: Duration = Duration::from_secs(3);

/// A program that has files open and reads them when it is asked to.
struct Watch {
    child: Child,
    ask: ChildStdin,
    told: BufReader<ChildStdout>,
}

impl Watch {
    fn of(room: &Room, node: usize, files: &[String]) -> Watch {
        let program = program("watch.c", Compiler::C).display().to_string();
        let words: Vec<&str> = files.iter().map(String::as_str).collect();
        let mut command = room.run(node, &program, &words);
        let command = command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let ask = child.stdin.take().unwrap();
        let told = BufReader::new(child.stdout.take().unwrap());
        Watch { child, ask, told }
    }

    fn ask(&mut self) {
        self.ask.write_all(b"\n").unwrap();
    }

    fn told(&mut self) -> String {
        let mut line = String::new();
        self.told.read_line(&mut line).unwrap();
        line
    }
}

#[test]
fn nothing_old_is_read_while_the_own_server_is_stopped() {
    let Some(room) = Room::up("a server that is stopped", 2, &SETTINGS) else {
        return;
    };
    let make = format!(
        "cd /weir; for i in $(seq {FILES}); do printf a > f$i; done; \
         for i in $(seq {FILES}); do echo f$i $(stat -c %i f$i); done"
    );
    // Their bytes are on the second node, and programs of it read them without a request.
    let made = room.shell(1, &make);
    // Of the first node: the second believes what it was leased of them.
    let files: Vec<String> = made
        .lines()
        .filter_map(|line| line.split_once(' '))
        .filter(|(_, ino)| ino.parse::<u64>().unwrap() >> 48 == 0)
        .map(|(name, _)| format!("/weir/{name}"))
        .take(2)
        .collect();
    assert!(!files.is_empty(), "{made}");
    let mut watch = Watch::of(&room, 1, &files);
    let line = |what: &str| format!("{}\n", what.repeat(files.len()));
    for _ in 0..SETTLED.as_millis() / 500 {
        watch.ask();
        assert_eq!(watch.told(), line("a"));
        std::thread::sleep(Duration::from_millis(500));
    }
    let pid = room.server_pid(1);
    room.signal(1, "-STOP", pid);
    for file in &files {
        room.shell(0, &format!("printf b 1<> {file}"));
    }
    watch.ask();
    std::thread::sleep(Duration::from_millis(500));
    room.signal(1, "-CONT", pid);
    assert_eq!(watch.told(), line("b"));
    drop(watch.ask);
    assert!(finish(watch.child, Duration::from_secs(10))
        .status
        .success());
    room.stop();
}
