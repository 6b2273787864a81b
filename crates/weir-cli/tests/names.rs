//! Names that are not UTF-8: files keep them on all ways, and scripts that read JSON can tell them apart.

mod common;

use std::ffi::{OsStr, OsString};
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

use common::drained::Drained;
use common::{wait_until, Done, Room};

/// Two names that are one if their bytes are replaced.
const NAMES: [&[u8]; 2] = [b"a\xff", b"a\xfe"];

fn name(bytes: &[u8]) -> OsString {
    OsStr::from_bytes(bytes).to_owned()
}

/// A directory of the room with files of these names.
fn source(room: &Room) -> PathBuf {
    let dir = room.path().join("source");
    fs::create_dir(&dir).unwrap();
    for bytes in NAMES {
        fs::write(dir.join(name(bytes)), bytes).unwrap();
    }
    dir
}

/// Checks that a directory has these files, and removes it.
fn has_all(dir: &std::path::Path) {
    for bytes in NAMES {
        assert_eq!(fs::read(dir.join(name(bytes))).unwrap(), bytes);
    }
    assert_eq!(fs::read_dir(dir).unwrap().count(), NAMES.len());
    fs::remove_dir_all(dir).unwrap();
}

/// The values of a key, in order.
fn values(list: &serde_json::Value, key: &str) -> Vec<String> {
    let objects = list.as_array().unwrap().iter();
    let mut found: Vec<String> = objects
        .map(|object| object[key].as_str().unwrap().to_owned())
        .collect();
    found.sort();
    found
}

#[test]
fn files_keep_their_names_through_stages_and_drains() {
    let room = Room::new();
    source(&room);
    let target = room.path().join(name(b"out\xff"));
    let run = |arguments: &[&str]| {
        let mut weir = room.weir(arguments);
        Done::from_output(&weir.arg(&target).output().unwrap()).ended(0)
    };
    room.ok(&["start", "x"]);
    room.ok(&["stage", "in", "-i", "x", "source", "/weir"]);
    run(&["stage", "out", "-i", "x", "/weir/source"]);
    has_all(&target.join("source"));
    run(&["stop", "x", "--drain-to"]);
    has_all(&target.join("source"));

    room.ok(&["start", "x"]);
    room.ok(&["stage", "in", "-i", "x", "source", "/weir"]);
    room.kill_server("x");
    run(&["recover", "x", "--drain-to"]);
    has_all(&target.join("source"));
    assert_eq!(room.left_behind(), [""; 0]);
}

/// Patterns are text, so they cannot name such a directory: a choice that nothing fits would leave out everything.
#[test]
fn patterns_of_a_directory_of_such_a_name_are_refused() {
    let room = Room::new();
    let dir = room.path().join(name(b"here\xff"));
    fs::create_dir(&dir).unwrap();
    fs::write(dir.join("file"), "content").unwrap();
    room.ok(&["start", "x"]);
    let stage = |pattern: &str| {
        let words = ["stage", "in", "-i", "x", "--only", pattern, "file", "/weir"];
        Done::from_output(&room.weir(&words).current_dir(&dir).output().unwrap())
    };
    stage("file").ended(2).complains("is not UTF-8");
    stage("/**/file").ended(0).complains("1 files (7 B) moved");
    room.ok(&["stop", "x"]);
}

#[test]
fn json_tells_names_apart() {
    let room = Room::new();
    let source = source(&room);
    let fifo = room.path().join("fifo");
    let made = std::process::Command::new("mkfifo").arg(&fifo).status();
    assert!(made.unwrap().success());
    fs::rename(&fifo, source.join(name(b"fifo\xff"))).unwrap();
    room.ok(&["start", "x"]);
    let stage = ["stage", "in", "-i", "x", "--json", "source", "/weir"];
    let summary: serde_json::Value = serde_json::from_str(&room.ok(&stage)).unwrap();
    assert_eq!(summary["files"], 2, "{summary}");
    let skipped = summary["skipped_bytes"][0].as_str().unwrap();
    assert!(skipped.ends_with("/source/fifo\\xff"), "{summary}");

    // Files that cannot be moved: directories have their names.
    for bytes in NAMES {
        fs::create_dir_all(room.path().join("out").join(name(bytes)).join("x")).unwrap();
    }
    let stage = ["stage", "out", "-i", "x", "--json", "/weir/source/", "out"];
    let failed = room.ends(7, &stage);
    let summary: serde_json::Value = serde_json::from_str(&failed.out).unwrap();
    let sources = values(&summary["failed"], "source_bytes");
    assert_eq!(sources, ["/source/a\\xfe", "/source/a\\xff"], "{summary}");
    assert!(!failed.err.contains("/./"), "{failed:?}");
    room.ok(&["stop", "x"]);
}

#[test]
fn the_state_of_a_drain_tells_names_apart() {
    let room = Room::new();
    source(&room);
    for bytes in NAMES {
        fs::create_dir_all(room.path().join("out/source").join(name(bytes)).join("x")).unwrap();
    }
    let drained = Drained::start(&room, &[]);
    room.ok(&["stage", "in", "-i", "x", "source", "/weir"]);
    wait_until("both have failed", || drained.status()["failed_files"] == 2);
    let status = drained.status();
    let pending = values(&status["pending"], "path_bytes");
    assert_eq!(pending, ["source/a\\xfe", "source/a\\xff"], "{status}");
    let said = drained.ends(122);
    assert!(!said.contains("/./"), "{said}");
    room.ok(&["stop", "--no-drain", "x"]);
}
