//! The view of programs on files of other nodes while their own server does not respond.

use std::time::Duration;

use super::room::Room;
use super::talk::Talk;

/// A completed write is visible; a call waits 2 s for a server that does not respond.
const SETTINGS: [(&str, &str); 2] = [
    ("WEIR_VISIBILITY_DEFAULT", "raw"),
    ("WEIR_FABRIC_DEADLINE_S", "2"),
];
/// The number of files; about half of them have the first node as their home.
const FILES: usize = 12;
/// The time after which readers need no requests: no other program writes.
const SETTLED: Duration = Duration::from_secs(3);

#[test]
fn nothing_old_is_read_while_the_own_server_is_stopped() {
    let Some(room) = Room::up("a server that is stopped", 2, &SETTINGS) else {
        return;
    };
    // Their bytes are on the second node, and its programs read them without a request.
    let made = room.make_files(1, FILES);
    // Files of the first node: the second one relies on its leases of them.
    let files: Vec<&str> = made.of_home(0).into_iter().take(2).collect();
    assert!(!files.is_empty(), "{made:?}");
    let mut watch = Talk::start(&room, 1, "watch.c", &files);
    let line = |what: &str| format!("{}\n", what.repeat(files.len()));
    for _ in 0..SETTLED.as_millis() / 500 {
        watch.send_line();
        assert_eq!(watch.read_line(), line("a"));
        std::thread::sleep(Duration::from_millis(500));
    }
    let pid = room.server_pid(1);
    room.signal(1, "-STOP", pid);
    for file in &files {
        room.shell(0, &format!("printf b 1<> {file}"));
    }
    watch.send_line();
    std::thread::sleep(Duration::from_millis(500));
    room.signal(1, "-CONT", pid);
    assert_eq!(watch.read_line(), line("b"));
    watch.wait_for_end();
    room.stop();
}
