//! Threads of one process do not wait for each other's requests.

use super::room::Room;
use super::talk::Talk;

/// Longer than the test takes.
const SETTINGS: [(&str, &str); 1] = [("WEIR_FABRIC_DEADLINE_S", "60")];
/// The number of files; about half of them have the first node as their home.
const FILES: usize = 24;
/// The number of calls that wait at a time.
const WAIT: usize = 8;

#[test]
fn a_thread_goes_on_while_others_wait_for_a_server() {
    let Some(room) = Room::up("threads of one process", 2, &SETTINGS) else {
        return;
    };
    let made = room.make_files(1, FILES);
    let (own, far) = (made.of_home(0), made.of_home(1));
    assert!(own.len() >= 2 && far.len() >= WAIT, "{made:?}");
    // With nothing of them elsewhere.
    let again = own[..2].join(" ");
    room.shell(
        0,
        &format!("rm {again}; for f in {again}; do printf a > $f; done"),
    );
    let words = [&own[..2], &["--"], &far[..WAIT]].concat();
    let mut program = Talk::start(&room, 0, "threads.c", &words);
    assert_eq!(program.read_line(), "ready\n");
    let pid = room.server_pid(1);
    room.signal(1, "-STOP", pid);
    program.send_line();
    assert_eq!(program.read_line(), format!("0 of {WAIT}\n"));
    room.signal(1, "-CONT", pid);
    let rest = program.wait_for_end();
    assert_eq!(rest, format!("{WAIT} of {WAIT}\n"));
    room.stop();
}
