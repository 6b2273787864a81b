//! A tmpfs that other programs fill to the last page: a first access to a page of shared memory that
//! cannot be allocated would kill the server or program that makes it (`tests/hold/full.py`).

use std::process::{Command, Output, Stdio};

use weir_cluster::guard;
use weir_tests::launch::weir_binary;
use weir_tests::source_root;

/// The size of the tmpfs: the need of two servers and two programs, and little more.
const SIZE: &str = "144m";

/// Runs the program on two servers, with their memory on a tmpfs of its own.
fn run() -> Output {
    let dir = tempfile::tempdir_in("/var/tmp").unwrap();
    let script = r#"
        mount -t tmpfs -o size="$SIZE" tmpfs "$ROOM" && mkdir "$ROOM/shm" || exit 77
        export WEIR_MEMORY_DIRECTORY="$ROOM/shm" WEIR_MEMORY_BUDGET=48M WEIR_MEMORY_WARM=0
        export WEIR_FILE_ENABLED=false
        exec "$WEIR" run --servers 2 -- python3 "$PROGRAM" /weir "$ROOM/fill"
    "#;
    let mut command = Command::new("unshare");
    command
        .args(["--mount", "bash", "-c", script])
        .env("SIZE", SIZE)
        .env("ROOM", dir.path())
        .env("WEIR", weir_binary().unwrap())
        .env("PROGRAM", source_root().join("tests/hold/full.py"))
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    guard::wait_for_output(command.spawn().unwrap())
}

#[test]
fn nobody_dies_of_a_full_tmpfs_and_all_goes_on_when_there_is_room() {
    if !rustix::process::geteuid().is_root() {
        weir_cluster::skip("a full tmpfs", "root's rights");
        return;
    }
    let output = run();
    if output.status.code() == Some(77) {
        let refused = String::from_utf8_lossy(&output.stderr);
        weir_cluster::skip_for_kernel("a full tmpfs", &refused);
        return;
    }
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{output:?}");
    let line = said.lines().find(|line| line.starts_with("held:")).unwrap();
    eprintln!("{line}");
    let full: u64 = line.split_whitespace().nth(3).unwrap().parse().unwrap();
    assert!(full > 0, "it was never full: {line}");
}
