//! The directories of `--elevate` that are refused, and the commands that files of elevated directories are for. What programs
//! see of them is in tests/real.

mod common;

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;

use common::Room;
use weir_mover::tree::FileTree as _;
use weir_mover::InstanceTree;

#[test]
fn one_directory_is_not_elevated_under_two_names() {
    let room = Room::new();
    let top = room.path();
    fs::create_dir_all(top.join("e/below")).unwrap();
    symlink("e", top.join("link")).unwrap();
    symlink("e/below", top.join("inner")).unwrap();
    let both = |other| ["run", "--elevate", "e", "--elevate", other, "true"];
    room.says(125, "the same directory", &both("link"));
    room.says(125, "one is within the other", &both("inner"));
    room.says(125, "is named twice", &both("e/below/.."));
    fs::create_dir(top.join("other")).unwrap();
    room.ok(&both("other"));
    assert_eq!(room.left_behind(), [""; 0]);
}

#[test]
fn the_name_of_a_directory_is_taken_literally() {
    let room = Room::new();
    for name in [
        "with:colon",
        "$HOME",
        "a,b",
        "q\"uo'te",
        "new\nline",
        "e/../e2",
    ] {
        fs::create_dir(room.path().join("e")).unwrap_or_default();
        room.ok(&["run", "--elevate", name, "true"]);
        assert!(room.path().join(name).is_dir(), "{name}");
    }
    assert!(!room.path().join("with").exists());
    assert_eq!(room.left_behind(), [""; 0]);
}

#[test]
fn the_status_names_elevated_directories() {
    let room = Room::new();
    room.ok(&["start", "x", "--elevate", "e"]);
    let elevated = room.path().join("e").canonicalize().unwrap();
    let told = room.ok(&["status", "x"]);
    let line = format!("  elevated  {}; weir's own notes", elevated.display());
    assert!(told.contains(&line), "{told}");
    let json = room.ok(&["status", "x", "--json"]);
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!(json["elevated"][0], elevated.to_str().unwrap());
    room.ok(&["stop", "x"]);
    room.ok(&["start", "x"]);
    assert!(!room.ok(&["status", "x"]).contains("elevated"));
    room.ok(&["stop", "x"]);
}

#[test]
fn a_refusal_names_the_command_that_copies_elevated_files() {
    let room = Room::new();
    room.ok(&["start", "x", "--elevate", "e"]);
    let file = room.write("e/file", "content");
    let out = room.path().join("out");
    let [file, out] = [&file, &out].map(|path| path.to_str().unwrap());
    let said = room.says(
        2,
        &format!("-- cp -a {file} DESTINATION"),
        &["stage", "out", "-i", "x", file, out],
    );
    assert!(said.err.contains("weir run -i "), "{said:?}");
    room.ok(&["run", "-i", "x", "cp", "-a", file, out]);
    assert_eq!(fs::read(out).unwrap(), b"content");
    // A directory has the name of a file that is to be moved.
    fs::create_dir_all(room.path().join("drained/in/x")).unwrap();
    room.write("in", "content");
    let stages = ["--stage-in", "in", "--drain-to", "drained", "true"];
    let run = [&["run", "-i", "x"], &stages[..]].concat();
    room.says(122, "-- cp -a SOURCE DESTINATION copies files", &run);
    room.ok(&["stop", "x"]);
    assert_eq!(room.left_behind(), [""; 0]);
}

/// Of a file that is in the buffer alone, only the directory above has a real path.
#[test]
fn a_refusal_knows_a_file_that_is_not_moved_yet() {
    let room = Room::new();
    fs::create_dir(room.path().join("e")).unwrap();
    symlink("e", room.path().join("link")).unwrap();
    room.ok(&["start", "x", "--elevate", "link"]);
    let run_dir = room.status("x")["run_dir"].as_str().unwrap().to_owned();
    let instance = InstanceTree::attach(Path::new(&run_dir)).unwrap();
    let tree = instance.elevated(0).unwrap();
    tree.create_part(Path::new("/only"), 0o600).unwrap();
    for source in ["link/only", "e/only"] {
        let out = ["stage", "out", "-i", "x", source, "out"];
        room.says(2, "is in a directory that the instance elevates", &out);
    }
    room.ok(&["run", "-i", "x", "true"]);
    room.ok(&["stop", "x"]);
    assert_eq!(room.left_behind(), [""; 0]);
}

/// A file that programs have written, and that is not on the target yet, is neither missed nor taken in an older version.
#[test]
fn a_stage_takes_what_programs_see_or_nothing() {
    let room = Room::new();
    fs::create_dir_all(room.path().join("e/sub")).unwrap();
    room.write("e/sub/old", "old");
    room.write("e/new", "an older version");
    symlink("e", room.path().join("link")).unwrap();
    room.ok(&["start", "x", "--elevate", "link"]);
    let stage = |source: &'static str| ["stage", "in", "-i", "x", source, "/weir/copies/"];
    room.ok(&stage("e"));
    let run_dir = room.status("x")["run_dir"].as_str().unwrap().to_owned();
    let instance = InstanceTree::attach(Path::new(&run_dir)).unwrap();
    let tree = instance.elevated(0).unwrap();
    for name in ["/new", "/only"] {
        let file = tree.create_part(Path::new(name), 0o600).unwrap();
        tree.write_at(&file, 0, b"new").unwrap();
    }
    for source in [
        "e",
        "e/",
        "e/*",
        "e/n*",
        "link/o*",
        "e/new",
        "link/only",
        ".",
    ] {
        room.says(2, "-- cp -a", &stage(source));
    }
    for source in ["e/sub", "e/s*", "link/sub/*"] {
        room.ok(&stage(source));
    }
    // Files that --skip leaves out do not count.
    // A link is moved as a link.
    tree.make_symlink(Path::new("new"), Path::new("/latest"))
        .unwrap();
    symlink("sub/old", room.path().join("e/latest")).unwrap();
    room.says(2, "e/latest", &stage("e/latest"));
    tree.remove(Path::new("/latest")).unwrap();
    fs::remove_file(room.path().join("e/latest")).unwrap();
    let sub = [
        "stage",
        "in",
        "-i",
        "x",
        "--skip",
        "e/n*",
        "--skip",
        "e/only",
        "e",
        "/weir/sub/",
    ];
    room.ok(&sub);
    let skipped = [
        "stage",
        "in",
        "-i",
        "x",
        "--skip",
        "e/n*",
        "e",
        "/weir/sub/",
    ];
    room.says(2, "/e/only", &skipped);
    fs::write(
        room.path().join("manifest"),
        "e/sub/old /weir/a\ne/new /weir/b\n",
    )
    .unwrap();
    let manifest = ["stage", "in", "-i", "x", "--manifest", "manifest"];
    room.says(
        2,
        "manifest:2: programs of the instance see another",
        &manifest,
    );
    let out = ["stage", "out", "-i", "x", "link/only", "out"];
    room.says(2, "is in a directory that the instance elevates", &out);
    // The end of a run moves them. What wrote them here is no program that notes which file it replaces.
    fs::remove_file(room.path().join("e/new")).unwrap();
    room.ok(&["run", "-i", "x", "true"]);
    room.ok(&stage("e"));
    let copied = ["stage", "out", "-i", "x", "/weir/copies/e/new", "out"];
    room.ok(&copied);
    assert_eq!(fs::read(room.path().join("out")).unwrap(), b"new");
    room.ok(&["stop", "x"]);
    assert_eq!(room.left_behind(), [""; 0]);
}
