//! Instances whose server was killed: nobody but `weir stop`, their own restart and the end of their
//! job clears them, and each command that meets one says so.

mod common;

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Stdio};

use common::{wait_until, Done, Room};

const DEAD: Option<i32> = Some(5);

/// The name that an instance gets outside of jobs.
fn user() -> String {
    format!("user-{}", nix::unistd::geteuid())
}

fn pid_of(status: &str) -> i32 {
    let status: serde_json::Value = serde_json::from_str(status).unwrap();
    i32::try_from(status["pid"].as_i64().unwrap()).unwrap()
}

fn kill(pid: i32) {
    let pid = nix::unistd::Pid::from_raw(pid);
    nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGKILL).unwrap();
}

/// Starts an instance and kills its server.
fn killed(room: &Room, start: &[&str], name: &str) {
    room.run(&[&["start"], start].concat()).ok();
    kill_server(room, name);
}

fn kill_server(room: &Room, name: &str) {
    kill(pid_of(&room.run(&["status", name, "--json"]).ok()));
    wait_until("the server is gone", || {
        room.run(&["status", name]).code == DEAD
    });
}

/// A batch system's job, of which `squeue` says what is in a file.
fn in_job(command: &mut Command, room: &Room, id: &str) {
    let bin = room.path().join("bin");
    let path = std::env::var("PATH").unwrap();
    command
        .env("SLURM_JOB_ID", id)
        .env("PATH", format!("{}:{path}", bin.display()));
}

fn squeue(room: &Room, script: &str) {
    let bin = room.path().join("bin");
    std::fs::create_dir_all(&bin).unwrap();
    let path = bin.join("squeue");
    std::fs::write(&path, format!("#!/bin/sh\n{script}\n")).unwrap();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
}

fn run_in_job(room: &Room, id: &str, arguments: &[&str]) -> Done {
    let mut command = room.weir(arguments);
    in_job(&mut command, room, id);
    Done::from_output(&command.output().unwrap())
}

#[test]
fn each_command_says_what_is_dead_and_what_to_do() {
    let room = Room::new();
    killed(&room, &["x", "--mount", "/burst"], "x");
    let advice = "weir start x goes on with it, weir stop x clears it";
    for command in [&["ls", "-i", "x"][..], &["laminate", "-i", "x", "f"]] {
        let done = room.run(command);
        assert_eq!(done.code, DEAD, "{done:?}");
        assert!(done.err.contains(advice), "{done:?}");
    }
    let list = room.run(&["status"]).ok();
    assert!(
        list.contains("x at /burst, dead: its server was killed (no job)"),
        "{list}"
    );
    assert!(list.contains(" in memory, 0 B in files"), "{list}");
    let json = room.run(&["status", "--json"]).ok();
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!(json["dead"], true);
    assert_eq!(json["recoverable"], true);
    assert!(json["memory_bytes"].as_u64().unwrap() > 0, "{json}");
    let doctor = room.run(&["doctor"]).out;
    assert!(doctor.contains("instance x (no job) is dead"), "{doctor}");
    assert!(doctor.contains(advice), "{doctor}");

    let stop = room.run(&["stop", "x"]);
    assert_eq!(stop.code, Some(0), "{stop:?}");
    assert!(stop.err.contains("cleared"), "{stop:?}");
    assert_eq!(room.left_behind(), [""; 0]);
    assert_eq!(room.run(&["status", "x"]).code, Some(4));
}

#[test]
fn commands_that_have_nothing_to_do_with_it_leave_it_alone() {
    let room = Room::new();
    killed(&room, &["x"], "x");
    let before = room.left_behind();
    let run = room.run(&["run", "true"]);
    assert_eq!(run.code, Some(0), "{run:?}");
    assert!(run.err.contains("instance x (no job) is dead"), "{run:?}");
    let several = room.run(&["run", "--servers", "2", "true"]);
    assert_eq!(several.code, Some(0), "{several:?}");
    let other = room.run(&["start", "other"]);
    assert_eq!(other.code, Some(0), "{other:?}");
    assert!(
        other.err.contains("instance x (no job) is dead"),
        "{other:?}"
    );
    room.run(&["stop", "other"]).ok();
    assert_eq!(room.left_behind(), before);
    room.run(&["stop", "x"]).ok();
}

#[test]
fn the_next_run_goes_on_with_it_as_it_was() {
    let room = Room::new();
    let storage = room.path().join("storage");
    std::fs::create_dir(&storage).unwrap();
    let storage = storage.to_str().unwrap();
    killed(&room, &["--mount", "/burst", "--storage", storage], &user());
    let script = "echo $WEIR_INSTANCE";
    let run = room.run(&["run", "sh", "-c", script]);
    assert_eq!(run.code, Some(0), "{run:?}");
    assert!(run.err.contains("a new server goes on with it"), "{run:?}");
    assert!(run.out.trim_end().ends_with(&user()), "{run:?}");
    let status = room.run(&["status"]).ok();
    assert!(status.contains(" at /burst, process "), "{status}");
    assert!(status.contains(storage), "{status}");

    // By its name in the environment as well, and as `weir start`, with where its data is.
    let run_dir = run.out.trim_end().to_owned();
    kill_server(&room, &user());
    let mut named = room.weir(&["run", "true"]);
    let named = Done::from_output(&named.env("WEIR_INSTANCE", &run_dir).output().unwrap());
    assert_eq!(named.code, Some(0), "{named:?}");
    assert!(named.err.contains("a new server goes on"), "{named:?}");
    kill_server(&room, &user());
    let moved = room.run(&["start", "--mount", "/elsewhere"]);
    assert_eq!(moved.code, Some(2), "{moved:?}");
    assert!(moved.err.contains("mount.prefix = "), "{moved:?}");
    let start = room.run(&["start", "--memory", "64M"]);
    assert_eq!(start.code, Some(0), "{start:?}");
    assert!(start.out.contains(" serves /burst;"), "{start:?}");
    assert!(start.err.contains("a new server goes on"), "{start:?}");
    room.run(&["stop"]).ok();
    assert_eq!(room.left_behind(), [""; 0]);
}

#[test]
fn what_nothing_can_go_on_with_is_refused_until_it_is_cleared() {
    let room = Room::new();
    killed(&room, &[], &user());
    let journal = format!("weir-{}-memory/{}/journal", nix::unistd::geteuid(), user());
    std::fs::remove_file(room.memory().join(journal)).unwrap();
    let run = room.run(&["run", "true"]);
    assert_eq!(run.code, Some(125), "{run:?}");
    assert!(run.err.contains("its journal was given up"), "{run:?}");
    let start = room.run(&["start"]);
    assert_eq!(start.code, DEAD, "{start:?}");
    let several = room.run(&["start", "--servers", "2"]);
    assert_eq!(several.code, DEAD, "{several:?}");
    room.run(&["stop"]).ok();
    assert_eq!(room.left_behind(), [""; 0]);
    room.run(&["start"]).ok();
    room.run(&["stop"]).ok();
}

#[test]
fn one_of_several_servers_killed_with_their_agent_is_refused_until_it_is_cleared() {
    let room = Room::new();
    room.run(&["start", "x", "--servers", "2"]).ok();
    let status = room.run(&["status", "x", "--json"]).ok();
    let status: serde_json::Value = serde_json::from_str(&status).unwrap();
    let pid = |rank: usize| i32::try_from(status["each"][rank]["pid"].as_i64().unwrap()).unwrap();
    let file = std::fs::read_to_string(format!("/proc/{}/status", pid(0))).unwrap();
    let agent = file.lines().find_map(|line| line.strip_prefix("PPid:"));
    let agent: i32 = agent.unwrap().trim().parse().unwrap();
    let stop = |pid| {
        let pid = nix::unistd::Pid::from_raw(pid);
        nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGSTOP).unwrap();
    };
    // All at once: none may hear of another's end.
    let all = [agent, pid(0), pid(1)];
    all.into_iter().for_each(stop);
    all.into_iter().for_each(kill);
    wait_until("all are gone", || room.run(&["status", "x"]).code == DEAD);
    let start = room.run(&["start", "x", "--servers", "2"]);
    assert_eq!(start.code, DEAD, "{start:?}");
    assert!(start.err.contains("weir stop x clears it"), "{start:?}");
    let run = room.run(&["run", "-i", "x", "true"]);
    assert_eq!(run.code, Some(125), "{run:?}");
    // The second one may have taken a moment longer to end.
    wait_until("all is cleared", || {
        let stop = room.run(&["stop", "x"]);
        assert!(matches!(stop.code, Some(0 | 4)), "{stop:?}");
        room.left_behind().is_empty()
    });
}

#[test]
fn a_server_killed_under_weir_run_is_there_for_a_start() {
    let room = Room::new();
    let script = "echo $WEIR_INSTANCE; exec sleep 1000";
    let mut run = room.weir(&["run", "sh", "-c", script]);
    let run = run.stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut run = run.spawn().unwrap();
    let mut line = String::new();
    let mut says = std::io::BufReader::new(run.stdout.take().unwrap());
    std::io::BufRead::read_line(&mut says, &mut line).unwrap();
    let run_dir = line.trim_end();
    kill_server(&room, run_dir);
    let pid = nix::unistd::Pid::from_raw(i32::try_from(run.id()).unwrap());
    nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGTERM).unwrap();
    let done = Done::from_output(&run.wait_with_output().unwrap());
    assert_eq!(done.code, Some(125), "{done:?}");
    let name = Path::new(run_dir).file_name().unwrap().to_str().unwrap();
    let advice = format!("weir start {name} goes on with it");
    assert!(done.err.contains(&advice), "{done:?}");
    room.run(&["start", name]).ok();
    room.run(&["stop", name]).ok();
    assert_eq!(room.left_behind(), [""; 0]);
}

#[test]
fn what_another_job_left_goes_once_that_job_is_known_to_be_over() {
    let room = Room::new();
    squeue(&room, "exit 0");
    let started = run_in_job(&room, "17", &["start"]);
    assert_eq!(started.code, Some(0), "{started:?}");
    kill_server(&room, "job-17");
    let left = room.left_behind();
    assert!(left.contains(&"job-17".to_owned()), "{left:?}");
    // The batch system does not answer, or says that it runs.
    for script in ["echo unreachable >&2; exit 1", "echo RUNNING"] {
        squeue(&room, script);
        let other = run_in_job(&room, "18", &["run", "true"]);
        assert_eq!(other.code, Some(0), "{other:?}");
        assert_eq!(room.left_behind(), left, "{script}");
    }
    let list = room.run(&["status"]).ok();
    assert!(list.contains("its server was killed (job 17)"), "{list}");
    squeue(&room, "echo 'error: Invalid job id specified' >&2; exit 1");
    let other = run_in_job(&room, "18", &["run", "true"]);
    assert_eq!(other.code, Some(0), "{other:?}");
    assert!(
        other
            .err
            .contains("cleared what instance job-17 left, whose job is over"),
        "{other:?}"
    );
    wait_until("it is cleared", || room.left_behind().is_empty());
}

#[test]
fn a_job_that_was_started_anew_begins_with_nothing() {
    let room = Room::new();
    let started = run_in_job(&room, "17", &["start"]);
    assert_eq!(started.code, Some(0), "{started:?}");
    kill_server(&room, "job-17");
    let mut again = room.weir(&["start"]);
    in_job(&mut again, &room, "17");
    let again = Done::from_output(&again.env("SLURM_RESTART_COUNT", "1").output().unwrap());
    assert_eq!(again.code, Some(0), "{again:?}");
    assert!(again.err.contains("whose job is over"), "{again:?}");
    assert!(!again.err.contains("goes on"), "{again:?}");
    room.run(&["stop", "job-17"]).ok();
    wait_until("all is cleared", || room.left_behind().is_empty());
}
