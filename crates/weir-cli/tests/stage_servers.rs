//! `weir stage` of an instance of several servers: the movers beside all of them take part, and what becomes of the
//! files if one of them is lost.

mod common;

use std::fs::{self, File};
use std::os::unix::fs::{symlink, FileExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{Output, Stdio};
use std::time::Duration;

use common::trees::{assert_same, parts};
use common::{movers_of, pid_of, wait_until, Room};
use nix::sys::signal::{kill, Signal};
use nix::unistd::Pid;
use rustix::fs::{getxattr, setxattr, XattrFlags};
use serde_json::Value;

const SMALL: usize = 600;
const MIDDLE: usize = 8;
/// Of small and middle ones, the one with holes, and the large one.
const FILES: usize = SMALL + MIDDLE + 2;
const ATTRIBUTE: &str = "user.test";

/// Bytes that are those of no other seed.
fn content(seed: usize, length: usize) -> Vec<u8> {
    let mut state = (seed as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let mut bytes = Vec::with_capacity(length + 8);
    while bytes.len() < length {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        bytes.extend(state.to_le_bytes());
    }
    bytes.truncate(length);
    bytes
}

/// A directory with files of all sizes, links, and attributes; one is large enough to be cut into pieces.
fn source(room: &Room) -> PathBuf {
    let dir = room.path().join("source");
    for number in 0..SMALL {
        let below = dir.join(format!("d{}", number % 5));
        fs::create_dir_all(&below).unwrap();
        fs::write(below.join(number.to_string()), content(number, number * 7)).unwrap();
    }
    for number in 0..MIDDLE {
        let path = dir.join(format!("middle.{number}"));
        fs::write(&path, content(1000 + number, 4 << 20)).unwrap();
        setxattr(&path, ATTRIBUTE, b"kept", XattrFlags::empty()).unwrap();
        fs::set_permissions(&path, PermissionsExt::from_mode(0o604)).unwrap();
    }
    let hole = File::create(dir.join("hole")).unwrap();
    hole.set_len(32 << 20).unwrap();
    let large = File::create(dir.join("large")).unwrap();
    large.set_len(300 << 20).unwrap();
    for at in [0_u64, 63, 64, 150, 299] {
        let bytes = content(usize::try_from(at).unwrap() + 5000, 1 << 20);
        large.write_all_at(&bytes, at << 20).unwrap();
    }
    fs::hard_link(dir.join("d1/1"), dir.join("again")).unwrap();
    symlink("d1/1", dir.join("link")).unwrap();
    dir
}

fn summary_of(output: &Output) -> Value {
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{:?}: {said}", output.status);
    serde_json::from_slice(&output.stdout).unwrap()
}

/// Checks that each file and byte was counted once. Returns the shares of the servers.
#[track_caller]
fn shares(summary: &Value) -> Vec<(u64, u64, u64)> {
    let number = |node: &Value, key: &str| node[key].as_u64().unwrap();
    let nodes = summary["nodes"].as_array().unwrap().iter();
    let shares = nodes.map(|node| {
        assert_eq!(node["host"], "localhost");
        (
            number(node, "server"),
            number(node, "files"),
            number(node, "bytes"),
        )
    });
    let shares: Vec<_> = shares.collect();
    let files: u64 = shares.iter().map(|share| share.1).sum();
    let bytes: u64 = shares.iter().map(|share| share.2).sum();
    assert_eq!(files, number(summary, "files"), "{summary}");
    assert_eq!(bytes, number(summary, "bytes"), "{summary}");
    shares
}

#[test]
fn each_server_moves_a_part_in_and_out() {
    let room = Room::new();
    let source = source(&room);
    room.ok(&["start", "x", "--servers", "3"]);
    let stage = |words: &[&str]| {
        let command = [&["stage"], words, &["-i", "x", "--json"]].concat();
        let output = room.weir(&command).output().unwrap();
        summary_of(&output)
    };
    for (round, verify) in [("first", &[][..]), ("second", &["--verify"])] {
        let (inside, outside) = (format!("/weir/{round}/"), format!("{round}/"));
        let brought = stage(&[&["in", "source", &*inside], verify].concat());
        assert_eq!(brought["files"], FILES, "{brought}");
        let moved = stage(&[&["out", &*format!("{inside}source"), &*outside], verify].concat());
        assert_eq!(moved["files"], FILES, "{moved}");
        for summary in [&brought, &moved] {
            let shares = shares(summary);
            let servers: Vec<_> = shares.iter().map(|share| share.0).collect();
            assert_eq!(servers, [0, 1, 2], "{summary}");
            // Pieces of a file that another one began are bytes, and no file.
            assert!(
                shares.iter().all(|share| share.1 + share.2 > 0),
                "{summary}"
            );
            assert_eq!(
                (&summary["hard_links"], &summary["symlinks"]),
                (&1.into(), &1.into())
            );
            assert_eq!(summary["xattrs_not_kept"], 0);
        }
        let out = room.path().join(round).join("source");
        assert_same(&source, &out);
        assert_eq!(parts(&out), 0);
        let mut kept = [0; 8];
        let length = getxattr(out.join("middle.3"), ATTRIBUTE, &mut kept).unwrap();
        assert_eq!(&kept[..length], b"kept");
        let again = stage(&["out", &format!("{inside}source"), &outside]);
        assert_eq!(
            (&again["files"], &again["unchanged"]),
            (&0.into(), &FILES.into())
        );
        let again = stage(&["in", "source", &inside]);
        assert_eq!(
            (&again["files"], &again["unchanged"]),
            (&0.into(), &FILES.into())
        );
    }
    wait_until("the movers' end", || movers_of(&room).is_empty());
    room.ok(&["stop", "x"]);
    assert_eq!(room.left_behind(), [""; 0]);
}

/// A stage in the background, of which something is killed.
fn stage_and_kill(room: &Room, words: &[&str], killed: impl Fn() -> Option<Pid>) -> Output {
    let command = [&["stage"], words, &["-i", "x", "--json"]].concat();
    let mut command = room.weir(&command);
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut stage = command.spawn().unwrap();
    while stage.try_wait().unwrap().is_none() {
        if let Some(pid) = killed() {
            // It may have ended by itself.
            let _ = kill(pid, Signal::SIGKILL);
            break;
        }
    }
    stage.wait_with_output().unwrap()
}

/// The bytes that a process has read and written by system calls.
fn moved_bytes(pid: Pid) -> u64 {
    let counters = fs::read_to_string(format!("/proc/{pid}/io")).unwrap_or_default();
    let counters = counters
        .lines()
        .filter_map(|line| line.split_once("char: "));
    counters
        .map(|(_, bytes)| bytes.parse::<u64>().unwrap())
        .sum()
}

#[test]
fn a_mover_that_is_killed_at_any_moment_is_missed_by_nobody() {
    let room = Room::new();
    let source = source(&room);
    room.ok(&["start", "x", "--servers", "3"]);
    let mut losses = 0;
    for round in 0..8 {
        let inside = format!("/weir/{}/", round / 2);
        let out = room.path().join("out");
        let least = [0, 1 << 20, 2 << 20, 4 << 20][round / 2];
        let kill_late = || {
            let mut movers = movers_of(&room).into_iter();
            movers.find(|mover| moved_bytes(*mover) >= least)
        };
        let held = format!("{inside}source");
        let words = match round % 2 {
            0 => ["in", "source", &*inside],
            _ => ["out", &*held, "out/"],
        };
        let output = stage_and_kill(&room, &words, kill_late);
        let summary = summary_of(&output);
        shares(&summary);
        let moved = summary["files"].as_u64().unwrap() + summary["unchanged"].as_u64().unwrap();
        assert_eq!(moved, FILES as u64, "{summary}");
        losses += u32::from(String::from_utf8_lossy(&output.stderr).contains("it was lost"));
        if round % 2 == 1 {
            assert_same(&source, &out.join("source"));
            fs::remove_dir_all(&out).unwrap();
        }
    }
    assert!(
        losses > 0,
        "no mover was killed while it had something to do"
    );
    room.ok(&["stop", "x"]);
}

/// The server that is killed is started again, and has what it had.
#[test]
fn a_server_that_is_killed_in_the_middle_is_waited_for_or_done_without() {
    let room = Room::new();
    let source = source(&room);
    room.ok(&["start", "x", "--servers", "3"]);
    let server = |rank: usize| {
        let pid = room.status("x")["each"][rank]["pid"].as_i64();
        pid.map(|pid| Pid::from_raw(pid.try_into().unwrap()))
    };
    for (rank, words) in [
        (1, ["in", "source", "/weir/all/"]),
        (2, ["out", "/weir/all/source", "out/"]),
    ] {
        let killed = server(rank);
        let kill_server = || killed.filter(|_| !movers_of(&room).is_empty());
        let output = stage_and_kill(&room, &words, kill_server);
        wait_until("the server is back", || {
            server(rank).is_some_and(|pid| Some(pid) != killed)
        });
        let output = match output.status.code() {
            // The command names the files that it has not moved, and moves them when it runs again.
            Some(7) => {
                let said = String::from_utf8_lossy(&output.stderr);
                assert!(said.contains("the same command goes on"), "{said}");
                let again = [&["stage"], &words[..], &["-i", "x", "--json"]].concat();
                room.weir(&again).output().unwrap()
            }
            _ => output,
        };
        shares(&summary_of(&output));
    }
    assert_same(&source, &room.path().join("out/source"));
    assert_eq!(parts(&room.path().join("out")), 0);
    room.ok(&["stop", "x"]);
}

#[test]
fn a_stage_that_is_stopped_or_killed_takes_its_movers_with_it() {
    let room = Room::new();
    let source = source(&room);
    room.ok(&["start", "x", "--servers", "3"]);
    let words = ["stage", "in", "-i", "x", "source", "/weir/all/"];
    for signal in [Signal::SIGTERM, Signal::SIGKILL] {
        let mut stage = room.weir_with_all_signals(&words);
        let mut stage = stage.stderr(Stdio::null()).spawn().unwrap();
        while movers_of(&room).is_empty() && stage.try_wait().unwrap().is_none() {
            std::thread::sleep(Duration::from_millis(1));
        }
        let _ = kill(pid_of(&stage), signal);
        let code = stage.wait().unwrap().code();
        assert!([Some(0), Some(7), None].contains(&code), "{code:?}");
        wait_until("the movers' end", || movers_of(&room).is_empty());
    }
    let again = room.ends(0, &words);
    assert!(!again.err.contains("does not help"), "{again:?}");
    room.ok(&["stage", "out", "-i", "x", "/weir/all/source", "out/"]);
    assert_same(&source, &room.path().join("out/source"));
    room.ok(&["stop", "x"]);
}

/// A target that the other nodes' processes cannot write: each file is tried here, and named once.
#[test]
fn each_failure_is_named_once() {
    let room = Room::new();
    source(&room);
    room.ok(&["start", "x", "--servers", "3"]);
    room.ok(&["stage", "in", "-i", "x", "source", "/weir/all/"]);
    let out = room.path().join("out/source");
    for number in 0..40 {
        // Directories in the place of files.
        let name = number * 5;
        fs::create_dir_all(out.join(format!("d0/{name}"))).unwrap();
    }
    let done = room.ends(
        7,
        &[
            "stage",
            "out",
            "-i",
            "x",
            "--json",
            "/weir/all/source",
            "out/",
        ],
    );
    let summary: Value = serde_json::from_str(&done.out).unwrap();
    let failed = summary["failed"].as_array().unwrap();
    let mut targets: Vec<_> = failed
        .iter()
        .map(|failed| failed["target"].as_str())
        .collect();
    targets.sort_unstable();
    targets.dedup();
    assert_eq!((failed.len(), targets.len()), (40, 40), "{summary}");
    assert_eq!(summary["files"], FILES - 40);
    shares(&summary);
    let is_named = |path: &Path| targets.contains(&path.to_str());
    assert!(is_named(&out.join("d0/195")));
    assert!(out.join("d1/1").metadata().unwrap().size() == 7);
    room.ok(&["stop", "x"]);
}
