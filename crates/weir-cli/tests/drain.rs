//! Moving files out of an instance while a command works: `weir run --drain-to`, and `weir drain`. The rounds
//! themselves are in the tests of weir-mover, and those beside real programs in tests/real.

mod common;

use std::fs;
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};

use common::drained::Drained;
use common::{movers_of, pid_of, wait_until, Room};
use nix::sys::signal::{kill, Signal};
use weir_mover::tree::FileTree as _;
use weir_mover::InstanceTree;

#[test]
fn files_are_moved_while_the_command_works() {
    let room = Room::new();
    let drained = Drained::start(&room, &[]);
    drained.write("one", "first");
    drained.waits_for("one", "first");
    drained.write("one", "the second version");
    drained.waits_for("one", "the second version");
    // The file has its name before the round ends.
    wait_until("both are told", || drained.status()["moved_files"] == 2);
    let status = drained.status();
    assert_eq!(status["safe_files"], 1, "{status}");
    drained.write("late", "late");
    let said = drained.ends(0);
    // The last one if the drain looked again before the end.
    let moved = ["2 files (23 B)", "3 files (27 B)"];
    let says = |moved: &&str| said.contains(&format!("{moved} moved while the command ran"));
    assert!(moved.iter().any(says), "{said}");
    assert_eq!(fs::read(room.path().join("out/late")).unwrap(), b"late");
    room.ok(&["stop", "x"]);
    assert_eq!(room.left_behind(), [""; 0]);
}

#[test]
fn a_drain_is_waited_for_and_its_code_tells_how_it_ended() {
    let room = Room::new();
    room.says(4, "no instance", &["drain", "-i", "x"]);
    let drained = Drained::start(&room, &["--set", "drain.interval_s=3600"]);
    drained.write("dir/one", "first");
    let wait = ["drain", "-i", "x", "--wait"];
    drained.status();
    let done = room.ends(0, &wait);
    assert!(done.out.starts_with("1 files (5 B) safe in "), "{done:?}");
    assert_eq!(fs::read(drained.out("dir/one")).unwrap(), b"first");
    room.ok(&[&wait[..], &["/weir/dir/one"]].concat());
    room.ok(&[&wait[..], &["/weir/dir", "/weir"]].concat());
    room.says(
        2,
        "di: not in the instance",
        &[&wait[..], &["/weir/di"]].concat(),
    );
    room.says(2, "not in the instance", &[&wait[..], &["/tmp"]].concat());
    room.ends(2, &["drain", "-i", "x", "--timeout", "1"]);
    for time in ["soon", "inf", "-1", "1e300"] {
        let timeout = format!("--timeout={time}");
        room.says(2, "write 30", &[&wait[..], &[&timeout]].concat());
    }
    // A file that cannot be moved: a directory has its name.
    fs::create_dir_all(drained.out("two/x")).unwrap();
    drained.write("two", "second");
    room.says(7, "is in the way", &wait);
    room.ok(&[&wait[..], &["/weir/dir"]].concat());
    room.ends(7, &["drain", "-i", "x", "--status", "/weir/two"]);
    let said = drained.ends(122);
    assert!(said.contains("is in the way"), "{said}");
    room.says(1, "nothing drains the instance", &["drain", "-i", "x"]);
    fs::remove_dir_all(room.path().join("out/two")).unwrap();
    room.ok(&["stop", "x", "--drain-to", "out"]);
    assert_eq!(fs::read(room.path().join("out/two")).unwrap(), b"second");
}

/// Code 0 says that everything is on the target: not that an earlier look found it there.
#[test]
fn nothing_counts_as_safe_by_an_older_look() {
    let room = Room::new();
    let drained = Drained::start(&room, &["--set", "drain.interval_s=3600"]);
    let ask = ["drain", "-i", "x", "--status"];
    let of = |path| [&ask[..], &[path]].concat();
    drained.status();
    drained.write("one", "first");
    room.ok(&["drain", "-i", "x", "--wait"]);
    room.ok(&ask);
    room.ok(&["drain", "-i", "x", "--pause"]);
    drained.write("late", "late");
    room.says(8, "the drain is paused", &ask);
    room.says(8, "late is not moved yet", &of("/weir/late"));
    room.says(
        8,
        "late is not moved yet",
        &["drain", "-i", "x", "/weir/late"],
    );
    room.says(2, "none: not in the instance", &of("/weir/none"));
    let told = room.ends(8, &of("--json")).out;
    let told: serde_json::Value = serde_json::from_str(&told).unwrap();
    assert_eq!(told[0]["verdict"], "not-yet");
    assert!(told[0]["reason"].as_str().unwrap().contains("paused"));
    room.ok(&["drain", "-i", "x", "--resume"]);
    room.ok(&["drain", "-i", "x", "--wait"]);
    room.ok(&ask);
    drained.ends(0);
    room.ok(&["stop", "x"]);
}

#[test]
fn a_name_that_was_removed_is_not_safe_before_it_is_gone_from_the_target() {
    let room = Room::new();
    let drained = Drained::start(&room, &["--set", "drain.interval_s=3600"]);
    let wait = ["drain", "-i", "x", "--wait"];
    drained.status();
    drained.write("dir/DONE", "first");
    drained.write("other", "other");
    room.ok(&wait);
    let run_dir = room.status("x")["run_dir"].as_str().unwrap().to_owned();
    let instance = InstanceTree::attach(Path::new(&run_dir)).unwrap();
    instance.remove(Path::new("/dir/DONE")).unwrap();
    room.ok(&[&wait[..], &["/weir/dir/DONE"]].concat());
    assert!(!drained.out("dir/DONE").exists());
    room.says(
        2,
        "dir/DONE: not in the instance",
        &[&wait[..], &["/weir/dir/DONE"]].concat(),
    );
    room.ok(&[&wait[..], &["/weir/other"]].concat());
    drained.ends(0);
    room.ok(&["stop", "x"]);
}

/// A process that says nothing does not hold up those who ask beyond their time.
#[test]
fn a_drain_that_is_stopped_is_waited_for_no_longer_than_was_said() {
    let room = Room::new();
    let drained = Drained::start(&room, &[]);
    let process = drained.process();
    kill(process, Signal::SIGSTOP).unwrap();
    // It ends while the process is stopped.
    let wait = ["drain", "-i", "x", "--wait", "--timeout", "1"];
    room.says(8, "the drain has not answered for", &wait);
    kill(process, Signal::SIGCONT).unwrap();
    drained.ends(0);
    room.ok(&["stop", "x"]);
}

/// A hook hears of each version of a file, and a file has the state, so that a script need not ask.
#[test]
fn scripts_hear_of_each_file() {
    let room = Room::new();
    let (heard, state) = (room.path().join("heard"), room.path().join("state"));
    let hook = room.write(
        "hook",
        &format!("#!/bin/sh\nexec cat > {}\n", heard.display()),
    );
    fs::set_permissions(&hook, PermissionsExt::from_mode(0o700)).unwrap();
    let settings = [
        format!("drain.hook={}", hook.display()),
        format!("drain.status_file={}", state.display()),
    ];
    let set = settings
        .each_ref()
        .map(|setting| ["--set", setting])
        .concat();
    let drained = Drained::start(&room, &set);
    drained.write("one", "first");
    drained.waits_for("one", "first");
    let json = |text: &str| serde_json::from_str::<serde_json::Value>(text).unwrap();
    wait_until("its state", || {
        fs::read_to_string(&state).is_ok_and(|text| json(&text)["safe_files"] == 1)
    });
    drained.write("one", "again");
    drained.waits_for("one", "again");
    fs::create_dir_all(drained.out("two/x")).unwrap();
    drained.write("two", "second");
    drained.ends(122);
    let lines = fs::read_to_string(&heard).unwrap();
    let lines: Vec<_> = lines.lines().map(json).collect();
    let told = |event: &str, name: &str| {
        let path = format!("/weir/{name}");
        let is_told = |line: &&serde_json::Value| line["event"] == event && line["path"] == *path;
        lines.iter().filter(is_told).count()
    };
    assert_eq!(told("safe", "one"), 2, "{lines:?}");
    assert!(
        told("failed", "two") > 0 && told("safe", "two") == 0,
        "{lines:?}"
    );
    let end = serde_json::json!({ "event": "finished", "safe": false });
    assert_eq!(lines.last(), Some(&end));
    let state = json(&fs::read_to_string(&state).unwrap());
    assert_eq!(
        (&state["step"], &state["failed_files"]),
        (&"ended".into(), &1.into())
    );
    room.ok(&["stop", "x"]);
    // One that fails is said, once; so is one that is not there, and everything is moved all the same.
    fs::write(&hook, "#!/bin/sh\ncat > /dev/null; exit 3\n").unwrap();
    let drained = Drained::start(&room, &["--set", &settings[0]]);
    let said = drained.ends(0);
    assert_eq!(
        said.matches("drain.hook ended with exit status: 3").count(),
        1,
        "{said}"
    );
    room.ok(&["stop", "x"]);
    let drained = Drained::start(&room, &["--set", "drain.hook=/none/hook"]);
    drained.write("three", "third");
    let said = drained.ends(0);
    assert!(said.contains("drain.hook: /none/hook"), "{said}");
    assert_eq!(fs::read(room.path().join("out/three")).unwrap(), b"third");
    room.ok(&["stop", "x"]);
    assert_eq!(room.left_behind(), [""; 0]);
}

#[test]
fn a_warning_of_the_batch_system_moves_what_is_there() {
    let room = Room::new();
    let drained = Drained::start(&room, &["--set", "drain.interval_s=3600"]);
    drained.write("one", "first");
    let process = drained.process();
    for signal in [
        Signal::SIGUSR1,
        Signal::SIGTERM,
        Signal::SIGINT,
        Signal::SIGHUP,
    ] {
        let rounds = drained.status()["rounds"].as_u64();
        kill(process, signal).unwrap();
        wait_until("a round", || drained.status()["rounds"].as_u64() > rounds);
    }
    assert_eq!(drained.process(), process);
    drained.ends(0);
    room.ok(&["stop", "x"]);
}

#[test]
fn a_drain_that_is_killed_is_made_up_for_in_the_end() {
    let room = Room::new();
    let drained = Drained::start(&room, &[]);
    drained.write("one", "first");
    let process = drained.process();
    kill(process, Signal::SIGKILL).unwrap();
    drained.write("two", "second");
    let gone = ["drain", "-i", "x"];
    wait_until("its end", || room.run(&gone).code == Some(1));
    let said = drained.ends(0);
    assert!(said.contains("SIGKILL); moving everything again"), "{said}");
    for (name, content) in [("one", "first"), ("two", "second")] {
        let moved = fs::read(room.path().join("out").join(name)).unwrap();
        assert_eq!(moved, content.as_bytes());
    }
    room.ok(&["stop", "x"]);
    assert_eq!(room.left_behind(), [""; 0]);
}

#[test]
fn a_drain_ends_with_its_run() {
    let room = Room::new();
    let drained = Drained::start(&room, &[]);
    let process = drained.process();
    kill(pid_of(&drained.run), Signal::SIGKILL).unwrap();
    let there = PathBuf::from(format!("/proc/{process}/cwd"));
    wait_until("its end", || fs::read_link(&there).is_err());
    let status: serde_json::Value =
        serde_json::from_str(&room.ok(&["status", "x", "--json"])).unwrap();
    let run_dir = Path::new(status["run_dir"].as_str().unwrap());
    assert!(!run_dir.join(format!("drain-{process}.socket")).exists());
    room.ok(&["stop", "--force", "x"]);
}

#[test]
fn a_drain_at_the_end_only_is_a_setting() {
    let room = Room::new();
    let drained = Drained::start(&room, &["--set", "drain.while_running=false"]);
    drained.write("one", "first");
    room.says(1, "nothing drains the instance", &["drain", "-i", "x"]);
    let said = drained.ends(0);
    assert!(said.contains("1 files (5 B) moved"), "{said}");
    room.ok(&["stop", "x"]);
}

/// Whatever comes through the socket, the drain goes on.
#[test]
fn garbage_does_not_disturb_a_drain() {
    use std::os::unix::net::UnixStream;
    let room = Room::new();
    let drained = Drained::start(&room, &[]);
    let status: serde_json::Value =
        serde_json::from_str(&room.ok(&["status", "x", "--json"])).unwrap();
    let run_dir = Path::new(status["run_dir"].as_str().unwrap());
    let socket = run_dir.join(format!("drain-{}.socket", drained.process()));
    for garbage in [
        &b""[..],
        b"\n",
        b"{}\n",
        b"\xff\xfe\n",
        b"{\"begin\":3,\"wait\":[],\"paths\":7}\n",
    ] {
        let mut stream = UnixStream::connect(&socket).unwrap();
        stream.write_all(garbage).unwrap();
    }
    // A request without an end.
    let mut endless = UnixStream::connect(&socket).unwrap();
    let many = vec![b'x'; 65536];
    while endless.write_all(&many).is_ok() {}
    drained.write("one", "first");
    drained.waits_for("one", "first");
    drained.ends(0);
    room.ok(&["stop", "x"]);
}

#[test]
fn files_are_chosen_by_patterns() {
    let room = Room::new();
    let choice = [
        "--set",
        "drain.only=/weir/ckpt.*:log",
        "--set",
        "drain.skip=ckpt.*/scratch",
    ];
    let drained = Drained::start(&room, &choice);
    for name in ["ckpt.1/a", "ckpt.1/scratch/b", "log", "other/c"] {
        drained.write(name, name);
    }
    drained.waits_for("ckpt.1/a", "ckpt.1/a");
    drained.waits_for("log", "log");
    room.ok(&["drain", "-i", "x", "--wait"]);
    kill(drained.process(), Signal::SIGKILL).unwrap();
    drained.write("ckpt.2", "second");
    drained.write("again", "again");
    drained.ends(0);
    let out = room.path().join("out");
    assert_eq!(fs::read(out.join("ckpt.2")).unwrap(), b"second");
    for name in ["ckpt.1/scratch", "other", "again"] {
        assert!(!out.join(name).exists(), "{name}");
    }
    let staged = [
        "stage",
        "out",
        "-i",
        "x",
        "--only",
        "/weir/**/b",
        "--skip=/other",
        "/weir/",
        "staged",
    ];
    room.ok(&staged);
    assert!(room.path().join("staged/ckpt.1/scratch/b").exists());
    assert!(!room.path().join("staged/log").exists());
    assert!(!room.path().join("staged/other").exists());
    let skip = ["--skip", "staged/ckpt.1"];
    room.ok(&[&["stage", "in", "-i", "x"], &skip[..], &["staged", "/weir"]].concat());
    assert!(!room
        .ok(&["ls", "-i", "x", "/weir/staged"])
        .contains("ckpt.1"));
    room.says(
        2,
        "--only, --skip: ",
        &[
            "stage",
            "out",
            "-i",
            "x",
            "--only=a[",
            "/weir/log",
            "staged",
        ],
    );
    room.ok(&["stop", "x"]);
}

#[test]
fn a_report_says_that_a_choice_was_moved() {
    let room = Room::new();
    fs::write(room.path().join("one"), "first").unwrap();
    let skip = [
        "run",
        "--set",
        "drain.skip=/one",
        "--stage-in",
        "one",
        "--drain-to",
        "out",
        "true",
    ];
    room.says(0, "if drain.only and drain.skip choose them", &skip);
    assert!(!room.path().join("out/one").exists());
}

#[test]
fn movers_beside_other_servers_help() {
    let room = Room::new();
    let drained = Drained::start_on(&room, "3", &[]);
    wait_until("two movers", || drained.status()["movers"] == 2);
    let source = room.path().join("many");
    fs::create_dir(&source).unwrap();
    for number in 0..1000 {
        fs::write(source.join(number.to_string()), number.to_string()).unwrap();
    }
    room.ok(&["stage", "in", "-i", "x", "many", "/weir"]);
    room.ok(&["drain", "-i", "x", "--wait"]);
    for number in [0, 499, 999] {
        let moved = fs::read(drained.out("many").join(number.to_string())).unwrap();
        assert_eq!(moved, number.to_string().as_bytes());
    }
    let movers = movers_of(&room);
    assert_eq!(movers.len(), 2);
    kill(movers[0], Signal::SIGKILL).unwrap();
    for number in 0..1000 {
        fs::write(source.join(number.to_string()), format!("again {number}")).unwrap();
    }
    room.ok(&["stage", "in", "-i", "x", "many", "/weir"]);
    let said = drained.ends(0);
    for number in 0..1000 {
        let moved = fs::read(room.path().join("out/many").join(number.to_string())).unwrap();
        assert_eq!(moved, format!("again {number}").as_bytes(), "{said}");
    }
    wait_until("the movers' end", || movers_of(&room).is_empty());
    room.ok(&["stop", "x"]);
    assert_eq!(room.left_behind(), [""; 0]);
}

#[test]
fn nothing_is_moved_in_a_pause_and_a_move_keeps_its_limit() {
    let room = Room::new();
    let drained = Drained::start(&room, &["--set", "drain.limit=8M"]);
    drained.write("before", "before");
    drained.waits_for("before", "before");
    room.ok(&["drain", "-i", "x", "--pause"]);
    drained.write("late", "late");
    assert_eq!(drained.status()["is_paused"], true);
    // Longer than a file is left alone.
    std::thread::sleep(Duration::from_millis(1500));
    assert!(!drained.out("late").exists());
    room.ok(&["drain", "-i", "x", "--resume"]);
    drained.waits_for("late", "late");
    // The end of the command ends a pause.
    room.ok(&["drain", "-i", "x", "--pause"]);
    let large = "x".repeat(16 << 20);
    drained.write("large", &large);
    let began = Instant::now();
    let out = drained.out("large");
    drained.ends(0);
    // Four writes, of which the first waits for nothing.
    assert!(began.elapsed() >= Duration::from_millis(1400));
    assert!(fs::read(out).unwrap() == large.as_bytes());
    room.ok(&["stop", "x"]);
}

/// The signal before the end of a job ends most commands: their code alone would not say that files are not safe.
#[test]
fn a_run_that_a_signal_ends_says_if_files_are_not_safe() {
    let room = Room::new();
    for (is_safe, code) in [(true, 143), (false, 122)] {
        let drained = Drained::start(&room, &[]);
        drained.status();
        drained.write("one", "first");
        if !is_safe {
            fs::create_dir_all(drained.out("two/x")).unwrap();
            drained.write("two", "second");
        }
        drained.ends_by(Signal::SIGTERM, code);
        room.ok(&["stop", "x"]);
    }
}

/// The file system of a job's output may be full, and the reader of a pipe may have ended.
#[test]
fn what_cannot_be_said_does_not_end_a_run() {
    let room = Room::new();
    room.write("in", "content");
    let out = room.path().join("out");
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let full = fs::File::options().write(true).open("/dev/full").unwrap();
    for stderr in [Stdio::from(full), Stdio::from(writer)] {
        let mut run = room.weir(&["run", "--stage-in", "in", "--drain-to", "out", "true"]);
        let status = run.stdout(Stdio::null()).stderr(stderr).status().unwrap();
        assert_eq!(status.code(), Some(0));
        assert_eq!(fs::read(out.join("in")).unwrap(), b"content");
        fs::remove_dir_all(&out).unwrap();
        assert_eq!(room.left_behind(), [""; 0]);
    }
}

/// So may that of a server's log.
#[test]
fn a_log_that_cannot_be_written_does_not_end_a_server() {
    let room = Room::new();
    let log = ["--set", "log.file=/dev/full", "--set", "log.level=debug"];
    room.ok(&[&["start", "x"], &log[..]].concat());
    room.write("in", "content");
    room.ok(&["stage", "in", "-i", "x", "in", "/weir/in"]);
    room.ok(&["stop", "x", "--drain-to", "out"]);
    let out = room.path().join("out").join("in");
    assert_eq!(fs::read(out).unwrap(), b"content");
}

/// An instance that has started is named all the same: it runs.
#[test]
fn an_instance_whose_start_cannot_be_told_is_named_on_standard_error() {
    let room = Room::new();
    let full = fs::File::options().write(true).open("/dev/full").unwrap();
    let mut start = room.weir(&["start", "x", "--shell"]);
    let done = start.stdout(full).stderr(Stdio::piped()).output().unwrap();
    let said = String::from_utf8_lossy(&done.stderr).into_owned();
    assert_eq!(done.status.code(), Some(1), "{said}");
    assert!(
        said.contains("weir: instance x serves /weir; WEIR_INSTANCE="),
        "{said}"
    );
    room.ok(&["stop", "x"]);
}
