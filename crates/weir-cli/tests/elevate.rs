//! The directories of `--elevate` that are refused, and the commands that files of elevated directories are for. What programs
//! see of them is in tests/real.

mod common;

use std::fs;
use std::os::unix::fs::symlink;

use common::Room;

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
