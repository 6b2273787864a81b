//! Processes that wait in a call when their server, or the server that they wait for, is killed.

use std::io::{BufRead, BufReader};
use std::process::{Child, Stdio};
use std::time::{SystemTime, UNIX_EPOCH};

use weir_cluster::guard::{self, wait_until};
use weir_tests::build::Compiler;

use super::probes::Place;
use super::room::{program, Room};

fn blocked(room: &Room, node: usize, what: &str) -> Child {
    let program = program("blocked.c", Compiler::C).display().to_string();
    let mut command = room.run(node, &program, &["/weir/locked", what]);
    let command = command.stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let mut line = String::new();
    let mut out = BufReader::new(child.stdout.as_mut().unwrap());
    out.read_line(&mut line).unwrap();
    assert_eq!(line, "ready\n");
    child
}

/// The time in ms since 1970 when a waiting call ended, and its result.
fn ended(child: Child) -> (i32, u128) {
    let output = guard::wait_for_output(child);
    let text = String::from_utf8(output.stdout).unwrap();
    let words: Vec<&str> = text.split_whitespace().collect();
    assert_eq!(words[0], "ended", "{text}");
    (words[1].parse().unwrap(), words[3].parse().unwrap())
}

fn now_ms() -> u128 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap()
        .as_millis()
}

#[test]
fn who_waits_for_a_lock_hears_of_its_servers_end() {
    let Some(room) = Room::up("waiting for a lock", 2, &[]) else {
        return;
    };
    // The file's home is the first server or the second: there is a waiter at each.
    let holder = blocked(&room, 0, "hold");
    let waiters = ["lock", "flock"].map(|what| blocked(&room, 1, what));
    let pid = room.server_pid(1);
    room.signal(1, "-KILL", pid);
    let killed = now_ms();
    for waiter in waiters {
        let (errno, at) = ended(waiter);
        assert!([5, 108].contains(&errno), "errno {errno}");
        assert!(at < killed + 2_000, "{} ms", at - killed);
    }
    wait_until("it is back", || room.status(0)["each"][1]["restarts"] == 1);
    // Later processes wait as usual, and get the lock when the holder ends.
    let waiter = blocked(&room, 1, "lock");
    drop(finish_holder(holder));
    let (errno, _) = ended(waiter);
    assert_eq!(errno, 0);
    room.stop();
}

fn finish_holder(mut holder: Child) -> std::process::Output {
    drop(holder.stdin.take());
    guard::wait_for_output(holder)
}
