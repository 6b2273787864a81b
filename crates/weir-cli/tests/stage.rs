//! Moving files into an instance and out of it: `weir stage`, and the stages of `weir run`. What a mover
//! does with each kind of file, and after each fault, is in the tests of weir-mover.

mod common;

use std::fs;
use std::os::unix::fs::{symlink, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::time::Duration;

use common::trees::{assert_same, parts};
use common::{first_line, parent_of, pid_of, wait_until, Room};
use nix::sys::signal::{kill, Signal};
use nix::unistd::Pid;

/// A directory of the room with a few files, a link and a hole.
fn source(room: &Room) -> PathBuf {
    let dir = room.path().join("source");
    fs::create_dir_all(dir.join("sub")).unwrap();
    fs::write(dir.join("one"), "first").unwrap();
    fs::write(dir.join("sub/two words"), vec![7; 3 << 20]).unwrap();
    fs::set_permissions(dir.join("one"), PermissionsExt::from_mode(0o640)).unwrap();
    fs::hard_link(dir.join("one"), dir.join("sub/again")).unwrap();
    symlink("../one", dir.join("sub/link")).unwrap();
    let hole = fs::File::create(dir.join("hole")).unwrap();
    hole.set_len(32 << 20).unwrap();
    dir
}

#[test]
fn what_is_staged_in_comes_out_the_same() {
    for servers in ["1", "3"] {
        let room = Room::new();
        let source = source(&room);
        room.ok(&["start", "x", "--servers", servers]);
        room.ok(&["stage", "in", "-i", "x", "source", "/weir/new/dir/"]);
        let listed = room.ok(&["ls", "-i", "x", "/new/dir/source"]);
        assert!(
            listed.contains("hole") && listed.contains("one"),
            "{listed}"
        );
        fs::create_dir(room.path().join("out")).unwrap();
        let json = room.ok(&[
            "stage",
            "out",
            "-i",
            "x",
            "--verify",
            "--json",
            "--summary",
            "summary",
            "/weir/new/dir/*",
            "out",
        ]);
        let summary: serde_json::Value = serde_json::from_str(&json).unwrap();
        let kept = fs::read_to_string(room.path().join("summary")).unwrap();
        assert_eq!(kept, json.trim_end());
        assert_eq!(summary["files"], 3, "{summary}");
        assert_eq!(summary["hard_links"], 1, "{summary}");
        assert_same(&source, &room.path().join("out/source"));
        let again = room.ends(
            0,
            &["stage", "out", "-i", "x", "/weir/new/dir/source", "out"],
        );
        again.complains("0 files (0 B) moved, 3 there already");
        room.ok(&["stop", "x"]);
        assert_eq!(room.left_behind(), [""; 0]);
    }
}

/// Bytes that other nodes see after a lamination only are moved after it, or the file is refused.
#[test]
fn what_awaits_its_lamination_is_not_moved_in_part() {
    let room = Room::new();
    fs::write(room.path().join("one"), "first").unwrap();
    let set = ["--set", "visibility.default=ral"];
    room.ok(&["start", "x", "--servers", "2", set[0], set[1]]);
    room.ok(&["stage", "in", "-i", "x", "one", "/weir"]);
    let out = ["stage", "out", "-i", "x", "--laminate", "/weir/one", "out"];
    let refused = room.ends(7, &[&out[..4], &out[5..]].concat());
    refused.complains("/one is not laminated");
    assert!(!room.path().join("out").exists());
    room.ok(&out);
    assert_eq!(fs::read(room.path().join("out")).unwrap(), b"first");
    room.ok(&["stop", "x"]);
    assert_eq!(room.left_behind(), [""; 0]);
}

#[test]
fn a_run_brings_in_and_drains() {
    for servers in ["1", "2"] {
        let room = Room::new();
        let source = source(&room);
        let run = [
            "run",
            "--servers",
            servers,
            "--stage-in",
            "source:/weir/in",
            "--drain-to",
            "out",
            "true",
        ];
        room.says(0, "weir: in out: 4 files", &run);
        assert_same(&source, &room.path().join("out/in"));
        // The command's own failure is what counts, and does not hold the data back.
        fs::remove_dir_all(room.path().join("out")).unwrap();
        let mut failing = run;
        failing[7] = "false";
        room.ends(1, &failing);
        assert_same(&source, &room.path().join("out/in"));
        assert_eq!(room.left_behind(), [""; 0]);
    }
    // Names that look like options.
    let room = Room::new();
    fs::write(room.path().join("-i"), "dash").unwrap();
    room.ok(&["run", "--stage-in=-i", "--drain-to=--verify", "true"]);
    assert_eq!(fs::read(room.path().join("--verify/-i")).unwrap(), b"dash");
}

#[test]
fn what_could_only_fail_is_refused_before_the_command_runs() {
    let room = Room::new();
    source(&room);
    let cases: [(&[&str], &str); 5] = [
        (&["--stage-in", "none"], "--stage-in none: No such file"),
        (
            &["--stage-in", "source:/elsewhere"],
            "the destination is not below /weir",
        ),
        (&["--drain-to", "/weir/x"], "that is in the instance"),
        (
            &["--drain-to", "no/such/parent"],
            "--drain-to no/such/parent: No such file",
        ),
        (&["--drain-to", "source/one"], "--drain-to source/one: "),
    ];
    for (options, words) in cases {
        let ran = room.path().join("ran");
        let command = ["touch", ran.to_str().unwrap()];
        room.says(125, words, &[&["run"], options, &command].concat());
        assert!(!ran.exists(), "{options:?}");
    }
    assert_eq!(room.left_behind(), [""; 0]);
}

#[test]
fn data_that_is_not_safe_has_an_exit_code_and_stays() {
    for servers in ["1", "2"] {
        let room = Room::new();
        let source = source(&room);
        // A directory of the user's has the name of a file.
        fs::create_dir_all(room.path().join("out/source/one")).unwrap();
        let run = [
            "run",
            "--servers",
            servers,
            "--stage-in",
            "source",
            "--drain-to",
            "out",
            "true",
        ];
        let ended = room.ends(122, &run);
        assert!(
            ended
                .err
                .contains("out/source/one is in the way: a directory"),
            "{ended:?}"
        );
        let name = ended.err.split("weir stop ").nth(1).unwrap();
        let name = name.split_whitespace().next().unwrap();
        // All but that file is there, and the instance has it.
        assert!(room.path().join("out/source/sub/two words").exists());
        fs::create_dir(room.path().join("second")).unwrap();
        room.ok(&["stage", "out", "-i", name, "/weir/source", "second"]);
        assert_same(&source, &room.path().join("second/source"));
        // It ends with its data somewhere, or not at all.
        room.says(
            7,
            "the instance stays",
            &["stop", name, "--drain-to", "out"],
        );
        room.says(
            0,
            "weir: in third: ",
            &["stop", name, "--drain-to", "third"],
        );
        assert_same(&source, &room.path().join("third/source"));
        assert_eq!(room.left_behind(), [""; 0]);
    }
}

#[test]
fn all_bad_lines_of_a_manifest_are_named_before_anything_moves() {
    let room = Room::new();
    source(&room);
    room.ok(&["start", "x"]);
    let manifest = b"source/one /weir/a\n# comment\nsource/none /weir/b\nsource/one\n\
                    source/one /tmp/c\n/weir/x /weir/d\nsource/hole '/weir/a'\nsource/one \xff\n\
                    source/one /weir/e\n";
    fs::write(room.path().join("bad"), manifest).unwrap();
    let refused = room.ends(2, &["stage", "in", "-i", "x", "--manifest", "bad"]);
    for words in [
        "bad:3: ",
        "bad:4: ",
        "bad:5: ",
        "bad:6: ",
        "bad:7: /a is the destination of line 1, too",
        "bad:8: it is not UTF-8",
        "nothing was moved",
    ] {
        assert!(refused.err.contains(words), "{words}: {refused:?}");
    }
    room.write(
        "below",
        "source/sub/two /weir/s/none\nsource/one /weir/s/one\nsource /weir/s\nsource/one /weir/s/one/x\n",
    );
    let refused = room.ends(2, &["stage", "in", "-i", "x", "--manifest", "below"]);
    for words in [
        "below:1: source/sub/two: no such file",
        "below:2: line 3 has something else for /s/one, too",
        "below:4: line 2 has something else for /s/one/x, too",
    ] {
        assert!(refused.err.contains(words), "{words}: {refused:?}");
    }
    assert_eq!(room.ok(&["ls", "-i", "x"]), "");
    room.write(
        "good",
        "source/one /weir/deep/er/a\n'source/sub/two words' \"/weir/b b\"\n",
    );
    room.ok(&["stage", "in", "-i", "x", "--manifest", "good"]);
    room.write("out", "\"/weir/b b\" copied\n");
    room.ok(&["stage", "out", "-i", "x", "--manifest", "out"]);
    assert_eq!(
        fs::metadata(room.path().join("copied")).unwrap().len(),
        3 << 20
    );
    room.ok(&["stop", "x"]);
}

#[test]
fn paths_of_the_wrong_side_are_refused() {
    let room = Room::new();
    source(&room);
    room.ok(&["start", "x"]);
    let cases = [
        (
            2,
            "is not in the instance",
            ["in", "x", "source", "/elsewhere"],
        ),
        (2, "is in the instance", ["out", "x", "/weir/.", "/weir/y"]),
        (2, "no such file", ["out", "x", "/weir/none", "."]),
        (2, "create it first", ["out", "x", "/weir/.", "no/such/dir"]),
        (4, "no instance runs", ["out", "y", "/weir/.", "."]),
    ];
    for (code, words, [direction, name, from, to]) in cases {
        room.says(code, words, &["stage", direction, "-i", name, from, to]);
    }
    room.ok(&["stop", "x"]);
}

#[test]
fn a_stage_that_is_killed_or_stopped_at_any_moment_leaves_whole_files_and_goes_on() {
    let room = Room::new();
    let dir = room.path().join("source");
    fs::create_dir(&dir).unwrap();
    for number in 0..200_u32 {
        let content = vec![u8::try_from(number % 251).unwrap(); 40_000 + number as usize];
        fs::write(dir.join(number.to_string()), content).unwrap();
    }
    room.ok(&["start", "x"]);
    room.ok(&["stage", "in", "-i", "x", "source", "/weir"]);
    let out = room.path().join("out");
    let stage = ["stage", "out", "-i", "x", "/weir/source/", "out"];
    let mut interrupted = 0;
    for round in 0..12 {
        if round % 4 == 0 {
            let _ = fs::remove_dir_all(&out);
        }
        let mut command = room.weir(&stage);
        let mut child = command.stderr(Stdio::null()).spawn().unwrap();
        let signal = match round % 2 {
            0 => Signal::SIGKILL,
            _ => Signal::SIGTERM,
        };
        let some = 10 * (round + 1);
        while count(&out) < some && child.try_wait().unwrap().is_none() {
            std::thread::sleep(Duration::from_micros(200));
        }
        let _ = kill(pid_of(&child), signal);
        interrupted += usize::from(!child.wait().unwrap().success());
        for entry in fs::read_dir(&out).unwrap() {
            let name = entry.unwrap().file_name();
            if !name.to_string_lossy().ends_with(".weir-part") {
                assert_eq!(
                    fs::read(out.join(&name)).unwrap(),
                    fs::read(dir.join(&name)).unwrap()
                );
            }
        }
    }
    assert!(interrupted >= 6, "{interrupted} of 12");
    // The client's place of a killed stage is free again.
    wait_until("the last stage", || room.run(&stage).code == Some(0));
    assert_eq!(parts(&out), 0);
    assert_eq!(
        fs::metadata(&out).unwrap().mode(),
        fs::metadata(&dir).unwrap().mode()
    );
    for number in 0..200 {
        let name = number.to_string();
        assert_same(&dir.join(&name), &out.join(&name));
    }
    room.ok(&["stop", "x"]);
}

#[test]
fn a_run_that_is_told_to_end_drains_all_the_same() {
    let room = Room::new();
    let source = source(&room);
    let command = ["sh", "-c", "echo running; exec sleep 100"];
    let options = ["run", "--stage-in", "source", "--drain-to", "out"];
    let mut run = room.weir(&[&options[..], &command].concat());
    let mut run = run.stdout(Stdio::piped()).spawn().unwrap();
    assert_eq!(first_line(&mut run), "running\n");
    // As the batch system does: to all processes of the job, so to the command by weir run.
    kill(pid_of(&run), Signal::SIGTERM).unwrap();
    assert_eq!(run.wait().unwrap().code(), Some(128 + 15));
    assert_same(&source, &room.path().join("out/source"));
    assert_eq!(room.left_behind(), [""; 0]);
}

/// The first child of a process that is a stage, stopped in the middle of its work: when `dir` has something.
struct StoppedStage(Pid);

impl StoppedStage {
    fn stop_stage_of(parent: &mut Child, dir: &Path) -> StoppedStage {
        let pid = pid_of(parent);
        loop {
            assert_eq!(parent.try_wait().unwrap(), None, "it has ended");
            let is_at_work = fs::read_dir(dir).is_ok_and(|mut names| names.next().is_some());
            if let Some(stage) = stage_of(pid).filter(|_| is_at_work) {
                kill(stage, Signal::SIGSTOP).unwrap();
                return StoppedStage(stage);
            }
            std::thread::sleep(Duration::from_micros(200));
        }
    }

    fn go_on(self) {
        kill(self.0, Signal::SIGCONT).unwrap();
    }
}

/// The stage, or the drain, that a process has started.
fn stage_of(parent: Pid) -> Option<Pid> {
    let processes = fs::read_dir("/proc").unwrap().map_while(Result::ok);
    let mut numbers = processes.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    numbers.find_map(|number: i32| {
        let words = fs::read_to_string(format!("/proc/{number}/cmdline")).ok()?;
        let is_stage = words.contains("\0stage\0out\0") || words.contains("\0drain-process\0");
        let process = Pid::from_raw(number);
        (is_stage && parent_of(process) == parent).then_some(process)
    })
}

/// Makes a directory with so many files that a stage takes a while.
fn many_files(room: &Room) {
    let dir = room.path().join("many");
    fs::create_dir(&dir).unwrap();
    for number in 0..1000 {
        fs::write(dir.join(number.to_string()), number.to_string()).unwrap();
    }
}

fn count(dir: &Path) -> usize {
    fs::read_dir(dir).map_or(0, Iterator::count)
}

#[test]
fn signals_for_the_command_do_not_end_its_drain_and_nobody_stops_its_instance() {
    let room = Room::new();
    many_files(&room);
    room.ok(&["start", "x"]);
    let out = room.path().join("out");
    let options = ["-i", "x", "--stage-in", "many", "--drain-to", "out"];
    let mut run = room.weir(&[&["run"], &options[..], &["true"]].concat());
    let mut run = run.stderr(Stdio::null()).spawn().unwrap();
    let stage = StoppedStage::stop_stage_of(&mut run, &out.join("many"));
    let weir = pid_of(&run);
    // A batch system sends them to all; weir run passes its own on.
    for signal in [
        Signal::SIGUSR1,
        Signal::SIGUSR2,
        Signal::SIGALRM,
        Signal::SIGXCPU,
    ] {
        kill(weir, signal).unwrap();
        kill(stage.0, signal).unwrap();
    }
    room.says(6, "weir run (process ", &["stop", "x"]);
    stage.go_on();
    assert_eq!(run.wait().unwrap().code(), Some(0));
    assert_eq!(count(&out.join("many")), 1000);
    room.ok(&["stop", "x"]);
}

#[test]
fn copies_of_one_signal_stop_a_stage_in_order() {
    let room = Room::new();
    many_files(&room);
    room.ok(&["start", "x"]);
    room.ok(&["stage", "in", "-i", "x", "many", "/weir"]);
    let out = room.path().join("out");
    let mut stop = room.weir(&["stop", "x", "--drain-to", "out"]);
    let mut stop = stop.stderr(Stdio::null()).spawn().unwrap();
    let stage = StoppedStage::stop_stage_of(&mut stop, &out.join("many"));
    for _ in 0..2 {
        kill(stage.0, Signal::SIGTERM).unwrap();
        kill(pid_of(&stop), Signal::SIGTERM).unwrap();
    }
    stage.go_on();
    assert_eq!(stop.wait().unwrap().code(), Some(7));
    assert_eq!(parts(&out), 0, "it ended in order");
    room.ok(&["stop", "x", "--drain-to", "out"]);
    assert_eq!(count(&out.join("many")), 1000);
}

#[test]
fn a_stop_moves_what_programs_wrote_while_it_moved() {
    for servers in ["1", "2"] {
        let room = Room::new();
        many_files(&room);
        room.ok(&["start", "x", "--servers", servers]);
        room.ok(&["stage", "in", "-i", "x", "many", "/weir"]);
        let out = room.path().join("out");
        let mut stop = room.weir(&["stop", "x", "--drain-to", "out"]);
        let mut stop = stop.stderr(Stdio::null()).spawn().unwrap();
        let stage = StoppedStage::stop_stage_of(&mut stop, &out.join("many"));
        let late = room.write("late", "late");
        room.ok(&["stage", "in", "-i", "x", late.to_str().unwrap(), "/weir/0"]);
        stage.go_on();
        assert_eq!(stop.wait().unwrap().code(), Some(0));
        assert_eq!(fs::read(out.join("0")).unwrap(), b"late");
        assert_eq!(count(&out.join("many")), 1000);
        assert_eq!(room.left_behind(), [""; 0]);
    }
}

/// `weir stage in --follow` in the background.
fn follow(room: &Room, source: &str, target: &str) -> Child {
    let mut follow = room.weir_with_all_signals(&[
        "stage", "in", "--follow", "--json", "-i", "x", source, target,
    ]);
    follow.stdout(Stdio::piped()).stderr(Stdio::piped());
    follow.spawn().unwrap()
}

/// The summary of a stage that has ended well, and what it said.
fn summary_of(follow: Child) -> (serde_json::Value, String) {
    let out = follow.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&out.stderr).into_owned();
    assert!(out.status.success(), "{said}");
    (serde_json::from_slice(&out.stdout).unwrap(), said)
}

#[test]
fn files_that_come_later_are_followed_until_a_signal() {
    let room = Room::new();
    let dir = room.path().join("source");
    fs::create_dir(&dir).unwrap();
    fs::write(dir.join("one"), "1").unwrap();
    room.ok(&["start", "x"]);
    let listed = |dir: &str| room.run(&["ls", "-i", "x", dir]).out;
    let all = follow(&room, "source", "/weir/in");
    let chosen = follow(&room, "source/*.h5", "/weir/chosen");
    wait_until("files", || listed("/in/source") == "one\n");
    fs::create_dir(dir.join("sub")).unwrap();
    fs::write(dir.join("sub/two.h5"), "22").unwrap();
    fs::write(dir.join("three.h5"), "333").unwrap();
    wait_until("files", || listed("/in/source") == "one\nsub\nthree.h5\n");
    wait_until("files", || listed("/in/source/sub") == "two.h5\n");
    wait_until("files", || listed("/chosen") == "three.h5\n");
    kill(pid_of(&all), Signal::SIGTERM).unwrap();
    let (summary, _) = summary_of(all);
    assert_eq!(summary["files"], 3, "{summary}");
    assert_eq!(summary["bytes"], 6, "{summary}");
    assert_eq!(summary["stopped"], false, "{summary}");
    // The other one ends with the instance, which does not wait for it.
    room.ok(&["stop", "x"]);
    let (summary, said) = summary_of(chosen);
    assert_eq!(summary["files"], 1, "{summary}");
    assert!(said.contains("the instance has ended"), "{said}");
    room.ok(&["start", "x"]);
    let missing = ["stage", "in", "--follow", "-i", "x", "missing", "/weir"];
    room.says(2, "missing: no such file", &missing);
    room.ok(&["stop", "x"]);
    assert_eq!(room.left_behind(), [""; 0]);
}
