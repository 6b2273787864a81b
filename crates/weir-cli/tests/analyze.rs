//! Analysis in transit: `weir analyze` beside a `weir run` that moves files. The commands here look at files by `weir
//! stage out`; injected ones, in elevated directories, are in tests/real.

mod common;

use std::fs;
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};

use common::drained::Drained;
use common::{pid_of, wait_until, Done, Room};
use nix::sys::signal::{kill, Signal};
use serde_json::Value;

/// A command that says which file it has got, copies it out of the instance, and waits until a file `go` is there.
/// Files of some names fail.
const SCRIPT: &str = r#"#!/bin/sh
"$WEIR" stage out -i x "$1" "$PWD/seen/" > stage.log 2>&1
echo "$1" >> begun
tries=0
while [ ! -e go ] && [ $((tries += 1)) -lt 3000 ]; do sleep 0.02; done
case $1 in
*bad*) exit 3 ;;
esac
"#;

/// A `weir analyze` of [`SCRIPT`].
struct Analyzed {
    child: Child,
}

impl Analyzed {
    /// Starts it, and waits until the drain knows it.
    fn start(drained: &Drained<'_>, options: &[&str]) -> Analyzed {
        let room = drained.room;
        let script = room.write("analysis", SCRIPT);
        fs::set_permissions(&script, PermissionsExt::from_mode(0o700)).unwrap();
        fs::create_dir_all(room.path().join("seen")).unwrap();
        let command = [script.to_str().unwrap(), "{}"];
        let words = [&["analyze", "-i", "x"], options, &["--"], &command].concat();
        let mut start = room.weir_with_all_signals(&words);
        start.env("WEIR", env!("CARGO_BIN_EXE_weir"));
        let start = start.stdout(Stdio::piped()).stderr(Stdio::piped());
        let child = start.spawn().unwrap();
        wait_until("the analyzer", || drained.status()["analyzers"] == 1);
        Analyzed { child }
    }

    fn ends(self, code: i32) -> Done {
        Done::from_output(&self.child.wait_with_output().unwrap()).ended(code)
    }

    fn signal(&self, signal: Signal) {
        kill(pid_of(&self.child), signal).unwrap();
    }
}

fn begun(room: &Room) -> Vec<String> {
    let begun = fs::read_to_string(room.path().join("begun")).unwrap_or_default();
    begun.lines().map(str::to_owned).collect()
}

fn go(room: &Room) -> PathBuf {
    room.write("go", "")
}

fn waits_for_analysis(drained: &Drained<'_>, files: u64) {
    wait_until("files in analysis", || {
        drained.status()["analysis_files"] == files
    });
}

#[test]
fn a_file_is_moved_after_its_analysis_whether_or_not_that_succeeds() {
    let room = Room::new();
    let drained = Drained::start(&room, &[]);
    let analyzed = Analyzed::start(
        &drained,
        &["--on", "/weir/**/*.h5", "--on=ckpt.*", "--json"],
    );
    drained.write("dir/a file.h5", "first");
    drained.write("ckpt.1", "second");
    drained.write("ckpt.bad", "third");
    drained.write("other", "nobody wants it");
    drained.waits_for("other", "nobody wants it");
    waits_for_analysis(&drained, 3);
    let status = drained.status();
    let states = status["pending"].as_array().unwrap();
    assert!(
        states.iter().all(|file| file["state"] == "analysis"),
        "{status}"
    );
    room.ends(8, &["drain", "-i", "x", "/weir/ckpt.1"]);
    wait_until("an analysis", || !begun(&room).is_empty());
    assert_eq!(begun(&room).len(), 1, "one at a time");
    let moved = fs::read_dir(room.path().join("out")).unwrap();
    let names = moved.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let mut names: Vec<String> = names.collect();
    names.sort_unstable();
    assert_eq!(names, ["dir", "other"]);
    go(&room);
    drained.waits_for("dir/a file.h5", "first");
    drained.waits_for("ckpt.1", "second");
    drained.waits_for("ckpt.bad", "third");
    for (name, content) in [
        ("a file.h5", "first"),
        ("ckpt.1", "second"),
        ("ckpt.bad", "third"),
    ] {
        let seen = fs::read(room.path().join("seen").join(name)).unwrap();
        assert_eq!(seen, content.as_bytes());
    }
    // The end of a run waits for the analysis of the last files, and of a new version.
    drained.write("ckpt.1", "the second version");
    drained.write("ckpt.2", "last");
    let said = drained.ends(0);
    assert!(
        said.contains("4 files analysed before they were moved, 1 analyses failed"),
        "{said}"
    );
    let done = analyzed.ends(9);
    done.complains("/weir/ckpt.bad: exit code 3")
        .complains("4 files analysed, 1 analyses failed");
    let mut all = begun(&room);
    all.sort_unstable();
    let paths = [
        "/weir/ckpt.1",
        "/weir/ckpt.1",
        "/weir/ckpt.2",
        "/weir/ckpt.bad",
        "/weir/dir/a file.h5",
    ];
    assert_eq!(all, paths);
    assert_eq!(fs::read(room.path().join("out/ckpt.2")).unwrap(), b"last");
    room.ok(&["stop", "x"]);
    assert_eq!(room.left_behind(), [""; 0]);
}

#[test]
fn each_result_is_a_line_for_scripts() {
    let room = Room::new();
    go(&room);
    let drained = Drained::start(&room, &[]);
    let analyzed = Analyzed::start(&drained, &["--json", "--jobs", "4"]);
    for number in 0..20 {
        drained.write(&format!("file.{number}"), "content");
    }
    drained.ends(0);
    let done = analyzed.ends(0);
    let lines = done
        .out
        .lines()
        .map(|line| serde_json::from_str::<Value>(line).unwrap());
    let lines: Vec<Value> = lines.collect();
    assert_eq!(lines.len(), 20, "{done:?}");
    let is_good = |line: &Value| line["outcome"] == "analysed" && line["exit_code"] == 0;
    assert!(lines.iter().all(is_good), "{lines:?}");
    room.ok(&["stop", "x"]);
}

#[test]
fn an_analyzer_that_is_gone_holds_nothing_back() {
    for signal in [Signal::SIGKILL, Signal::SIGTERM] {
        let room = Room::new();
        let drained = Drained::start(&room, &[]);
        let analyzed = Analyzed::start(&drained, &[]);
        drained.write("one", "first");
        drained.write("two", "second");
        waits_for_analysis(&drained, 2);
        wait_until("an analysis", || begun(&room).len() == 1);
        assert!(!drained.out("one").exists() && !drained.out("two").exists());
        analyzed.signal(signal);
        drained.waits_for("one", "first");
        drained.waits_for("two", "second");
        let status = drained.status();
        assert_eq!(
            (&status["analyzers"], &status["failed_analyses"]),
            (&0.into(), &0.into())
        );
        match signal {
            Signal::SIGTERM => drop(analyzed.ends(143)),
            _ => drop(analyzed.child.wait_with_output().unwrap()),
        }
        drained.ends(0);
        // The command of one that was killed ends, too.
        room.ok(&["stop", "x"]);
        assert_eq!(room.left_behind(), [""; 0]);
    }
}

#[test]
fn a_command_that_takes_too_long_is_killed_and_its_file_moved() {
    let room = Room::new();
    let drained = Drained::start(&room, &[]);
    let analyzed = Analyzed::start(&drained, &["--timeout", "0.5"]);
    drained.write("one", "first");
    drained.waits_for("one", "first");
    drained.ends(0);
    analyzed.ends(9).complains("/weir/one: killed after 0.5 s");
    room.ok(&["stop", "x"]);
}

/// The end of a job does not wait for an analysis.
#[test]
fn a_signal_that_ends_the_job_lets_everything_move() {
    let room = Room::new();
    let drained = Drained::start(&room, &[]);
    let analyzed = Analyzed::start(&drained, &[]);
    drained.write("one", "first");
    drained.write("two", "second");
    waits_for_analysis(&drained, 2);
    wait_until("an analysis", || begun(&room).len() == 1);
    let said = drained.ends_by(Signal::SIGTERM, 128 + Signal::SIGTERM as i32);
    for (name, content) in [("one", "first"), ("two", "second")] {
        let moved = fs::read(room.path().join("out").join(name)).unwrap();
        assert_eq!(moved, content.as_bytes(), "{said}");
    }
    go(&room);
    analyzed
        .ends(9)
        .complains("1 files analysed, 2 files moved before their analysis");
    room.ok(&["stop", "x"]);
}

#[test]
fn a_drain_that_is_killed_is_told_and_everything_is_moved() {
    let room = Room::new();
    let drained = Drained::start(&room, &[]);
    let analyzed = Analyzed::start(&drained, &[]);
    drained.write("one", "first");
    waits_for_analysis(&drained, 1);
    wait_until("an analysis", || begun(&room).len() == 1);
    kill(drained.process(), Signal::SIGKILL).unwrap();
    go(&room);
    analyzed
        .ends(1)
        .complains("was lost")
        .complains("1 files analysed");
    drained.ends(0);
    assert_eq!(fs::read(room.path().join("out/one")).unwrap(), b"first");
    room.ok(&["stop", "x"]);
}

#[test]
fn an_analyzer_without_a_drain_ends() {
    let room = Room::new();
    let analyze = ["analyze", "-i", "x", "--wait", "0.1", "--", "true"];
    room.says(4, "no instance", &analyze);
    room.ok(&["start", "x"]);
    room.says(1, "nothing drains the instance", &analyze);
    room.says(2, "--on: ", &["analyze", "-i", "x", "--on=a[", "true"]);
    room.ends(2, &["analyze", "-i", "x"]);
    room.ends(2, &["analyze", "-i", "x", "--jobs=0", "true"]);
    room.ok(&["stop", "x"]);
}

/// A file whose bytes are seen after its lamination only is laminated by the end, and analysed then.
#[test]
fn what_the_end_laminates_is_analysed() {
    let room = Room::new();
    room.write("one", "first");
    let script = r#"
        ("$0" analyze --json -- true > results; echo $? > code) &
        until "$0" drain --status --json | grep -q '"analyzers":1'; do sleep 0.02; done
    "#;
    let weir = env!("CARGO_BIN_EXE_weir");
    let run = [
        "run",
        "--servers=2",
        "--set=visibility.default=ral",
        "--stage-in=one",
    ];
    room.ok(&[&run[..], &["--drain-to=out", "sh", "-c", script, weir]].concat());
    assert_eq!(fs::read(room.path().join("out/one")).unwrap(), b"first");
    let read = |name: &str| fs::read_to_string(room.path().join(name)).unwrap_or_default();
    wait_until("the analyzer's end", || read("code") == "0\n");
    let result: Value = serde_json::from_str(&read("results")).unwrap();
    assert_eq!(
        (&result["path"], &result["outcome"]),
        (&"/weir/one".into(), &"analysed".into())
    );
}

/// Whatever comes from an analyzer, nothing is held back once it is gone.
#[test]
fn garbage_of_an_analyzer_does_not_hold_files_back() {
    let room = Room::new();
    let drained = Drained::start(&room, &[]);
    let status = room.status("x");
    let run_dir = Path::new(status["run_dir"].as_str().unwrap());
    let socket = run_dir.join(format!("drain-{}.socket", drained.process()));
    let arrival =
        br#"{"begin":false,"wait":false,"paths":[],"analyzer":{"id":7,"patterns":PATTERNS}}"#;
    let arrival = |patterns: &str| {
        let text = String::from_utf8_lossy(arrival).replace("PATTERNS", patterns);
        text + "\n"
    };
    let mut streams = Vec::new();
    for garbage in [
        arrival("[\"a[\"]"),
        arrival("[]") + "garbage\n",
        arrival("[]") + "\"begin\"\n",
        arrival("[]") + "\"ready\"\n\"ready\"\n{\"ended\":{\"succeeded\":7}}\n",
        // It ends a command that was never begun.
        arrival("[]") + "\"alive\"\n{\"ended\":{\"succeeded\":true}}\n",
    ] {
        let mut stream = UnixStream::connect(&socket).unwrap();
        stream.write_all(garbage.as_bytes()).unwrap();
        streams.push(stream);
    }
    drained.write("one", "first");
    drop(streams);
    drained.waits_for("one", "first");
    drained.ends(0);
    room.ok(&["stop", "x"]);
}
