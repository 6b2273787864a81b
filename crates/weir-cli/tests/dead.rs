//! Instances whose server was killed: nobody but `weir stop`, their own restart and the end of their
//! job clears them, and each command that meets one says so.

mod common;

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Stdio};

use common::{first_line, parent_of, pid_in, pid_of, wait_until, Done, Room};
use nix::sys::signal::{kill, Signal};

/// The name that an instance gets outside of jobs.
fn user() -> String {
    format!("user-{}", nix::unistd::geteuid())
}

/// Starts an instance and kills its server.
fn killed(room: &Room, start: &[&str], name: &str) {
    room.ok(&[&["start"], start].concat());
    room.kill_server(name);
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
        room.says(5, advice, command);
    }
    let list = room.ok(&["status"]);
    assert!(
        list.contains("x at /burst, dead: its server was killed (no job)"),
        "{list}"
    );
    assert!(list.contains(" in memory, 0 B in files"), "{list}");
    let json = room.ok(&["status", "--json"]);
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!(json["dead"], true);
    assert_eq!(json["recoverable"], true);
    assert!(json["memory_bytes"].as_u64().unwrap() > 0, "{json}");
    let doctor = room.run(&["doctor"]).out;
    assert!(doctor.contains("instance x (no job) is dead"), "{doctor}");
    assert!(doctor.contains(advice), "{doctor}");

    room.says(0, "cleared", &["stop", "x"]);
    assert_eq!(room.left_behind(), [""; 0]);
    room.ends(4, &["status", "x"]);
}

#[test]
fn commands_that_have_nothing_to_do_with_it_leave_it_alone() {
    let room = Room::new();
    killed(&room, &["x"], "x");
    let before = room.left_behind();
    room.says(0, "instance x (no job) is dead", &["run", "true"]);
    room.ends(0, &["run", "--servers", "2", "true"]);
    room.says(0, "instance x (no job) is dead", &["start", "other"]);
    room.ok(&["stop", "other"]);
    assert_eq!(room.left_behind(), before);
    room.ok(&["stop", "x"]);
}

#[test]
fn of_many_a_few_are_named_and_the_others_summed_up() {
    let room = Room::new();
    let names = ["a", "b", "c", "d", "e", "f"];
    let named = |run: &Done| run.err.matches(") is dead").count();
    for (number, name) in names.iter().enumerate() {
        killed(&room, &[name], name);
        let run = room.ends(0, &["run", "true"]);
        let wanted = match number + 1 {
            all if all <= 4 => (all, false),
            _ => (3, true),
        };
        let has_more = run.err.contains("more instances are dead, and hold ");
        assert_eq!((named(&run), has_more), wanted, "{run:?}");
    }
    let list = room.ok(&["recover", "--list"]);
    for name in names {
        assert!(list.contains(&format!("instance {name} ")), "{list}");
        room.ok(&["stop", name]);
    }
}

#[test]
fn the_next_run_goes_on_with_it_as_it_was() {
    let room = Room::new();
    let storage = room.path().join("storage");
    std::fs::create_dir(&storage).unwrap();
    let storage = storage.to_str().unwrap();
    killed(&room, &["--mount", "/burst", "--storage", storage], &user());
    let script = "echo $WEIR_INSTANCE";
    let run = room.says(
        0,
        "a new server goes on with it",
        &["run", "sh", "-c", script],
    );
    assert!(run.out.trim_end().ends_with(&user()), "{run:?}");
    let status = room.ok(&["status"]);
    assert!(status.contains(" at /burst, process "), "{status}");
    assert!(status.contains(storage), "{status}");

    // By its name in the environment as well, and as `weir start`, with where its data is.
    let run_dir = run.out.trim_end().to_owned();
    room.kill_server(&user());
    let mut named = room.weir(&["run", "true"]);
    Done::from_output(&named.env("WEIR_INSTANCE", &run_dir).output().unwrap())
        .ended(0)
        .complains("a new server goes on");
    room.kill_server(&user());
    room.says(2, "mount.prefix = ", &["start", "--mount", "/elsewhere"]);
    let start = room.ends(0, &["start", "--memory", "64M"]);
    assert!(start.out.contains(" serves /burst;"), "{start:?}");
    assert!(start.err.contains("a new server goes on"), "{start:?}");
    room.ok(&["stop"]);
    assert_eq!(room.left_behind(), [""; 0]);
}

#[test]
fn what_nothing_can_go_on_with_is_refused_until_it_is_cleared() {
    let room = Room::new();
    killed(&room, &[], &user());
    let journal = format!("weir-{}-memory/{}/journal", nix::unistd::geteuid(), user());
    std::fs::remove_file(room.memory().join(journal)).unwrap();
    room.says(125, "its journal was given up", &["run", "true"]);
    room.ends(5, &["start"]);
    room.ends(5, &["start", "--servers", "2"]);
    room.ok(&["stop"]);
    assert_eq!(room.left_behind(), [""; 0]);
    room.ok(&["start"]);
    room.ok(&["stop"]);
}

#[test]
fn one_of_several_servers_killed_with_their_agent_is_refused_until_it_is_cleared() {
    let room = Room::new();
    room.ok(&["start", "x", "--servers", "2"]);
    let status = room.status("x");
    let pids = [0, 1].map(|rank: usize| pid_in(&status["each"][rank]));
    // All at once: none may hear of another's end.
    let all = [parent_of(pids[0]), pids[0], pids[1]];
    for signal in [Signal::SIGSTOP, Signal::SIGKILL] {
        for pid in all {
            kill(pid, signal).unwrap();
        }
    }
    wait_until("all are gone", || room.is_dead("x"));
    room.says(
        5,
        "weir stop x clears it",
        &["start", "x", "--servers", "2"],
    );
    room.ends(125, &["run", "-i", "x", "true"]);
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
    let line = first_line(&mut run);
    let run_dir = line.trim_end();
    room.kill_server(run_dir);
    let pid = pid_of(&run);
    kill(pid, Signal::SIGTERM).unwrap();
    let done = Done::from_output(&run.wait_with_output().unwrap()).ended(125);
    let name = Path::new(run_dir).file_name().unwrap().to_str().unwrap();
    let advice = format!("weir start {name} goes on with it");
    assert!(done.err.contains(&advice), "{done:?}");
    room.ok(&["start", name]);
    room.ok(&["stop", name]);
    assert_eq!(room.left_behind(), [""; 0]);
}

#[test]
fn what_another_job_left_goes_once_that_job_is_known_to_be_over() {
    let room = Room::new();
    squeue(&room, "exit 0");
    run_in_job(&room, "17", &["start"]).ended(0);
    room.kill_server("job-17");
    let left = room.left_behind();
    assert!(left.contains(&"job-17".to_owned()), "{left:?}");
    // The batch system does not answer, or says that it runs.
    for script in ["echo unreachable >&2; exit 1", "echo RUNNING"] {
        squeue(&room, script);
        run_in_job(&room, "18", &["run", "true"]).ended(0);
        assert_eq!(room.left_behind(), left, "{script}");
    }
    let list = room.ok(&["status"]);
    assert!(list.contains("its server was killed (job 17)"), "{list}");
    squeue(&room, "echo 'error: Invalid job id specified' >&2; exit 1");
    run_in_job(&room, "18", &["run", "true"])
        .ended(0)
        .complains("cleared what instance job-17 left, whose job is over");
    wait_until("it is cleared", || room.left_behind().is_empty());
}

#[test]
fn a_job_that_was_started_anew_begins_with_nothing() {
    let room = Room::new();
    run_in_job(&room, "17", &["start"]).ended(0);
    room.kill_server("job-17");
    let mut again = room.weir(&["start"]);
    in_job(&mut again, &room, "17");
    let again = Done::from_output(&again.env("SLURM_RESTART_COUNT", "1").output().unwrap())
        .ended(0)
        .complains("whose job is over");
    assert!(!again.err.contains("goes on"), "{again:?}");
    room.ok(&["stop", "job-17"]);
    wait_until("all is cleared", || room.left_behind().is_empty());
}

/// A run of three servers that took files in and is to move them out, all of which is killed.
struct KilledServers<'r> {
    room: &'r Room,
    name: String,
}

impl<'r> KilledServers<'r> {
    fn start_and_kill(room: &'r Room) -> Self {
        let input = room.path().join("in");
        std::fs::create_dir_all(&input).unwrap();
        for n in 0..30_usize {
            std::fs::write(input.join(n.to_string()), n.to_string().repeat(1000 * n)).unwrap();
        }
        let mut run = room.weir(&[
            "run",
            "--servers",
            "3",
            "--stage-in",
            "in",
            "--drain-to",
            "out",
        ]);
        run.env("WEIR_DRAIN_WHILE_RUNNING", "false");
        run.args(["sh", "-c", "echo $WEIR_INSTANCE; exec sleep 1000"]);
        let run = run.stdout(Stdio::piped()).stderr(Stdio::null());
        let mut run = run.spawn().unwrap();
        let line = first_line(&mut run);
        let run_dir = Path::new(line.trim_end());
        let name = run_dir.file_name().unwrap().to_str().unwrap().to_owned();
        let status = room.status(&name);
        let pids = [0, 1, 2].map(|rank: usize| pid_in(&status["each"][rank]));
        let all = [&pids[..], &[parent_of(pids[0]), pid_of(&run)]].concat();
        for signal in [Signal::SIGSTOP, Signal::SIGKILL] {
            for pid in &all {
                kill(*pid, signal).unwrap();
            }
        }
        run.wait().unwrap();
        wait_until("all are gone", || room.is_dead(&name));
        Self { room, name }
    }

    /// The command's files are where the end of the run would have moved them, and nothing is left.
    fn is_recovered(&self) {
        let [input, output] = ["in", "out/in"].map(|dir| self.room.path().join(dir));
        for n in 0..30_usize {
            let [was, is] = [&input, &output].map(|dir| std::fs::read(dir.join(n.to_string())));
            assert_eq!(was.unwrap(), is.unwrap(), "{n}");
        }
        assert_eq!(self.room.left_behind(), [""; 0]);
    }
}

/// A server takes a moment to notice that its run was killed, and to end: it holds its directories as long. One that is killed with
/// its run may be faster than this test, so that is what holds them here.
#[test]
fn a_server_that_is_ending_is_waited_for_by_a_recovery() {
    let room = Room::new();
    room.write("in", "content");
    let mut run = room.weir(&["run", "--stage-in", "in", "--drain-to", "out"]);
    run.env("WEIR_DRAIN_WHILE_RUNNING", "false");
    run.args(["sh", "-c", "echo $WEIR_INSTANCE; exec sleep 30"]);
    let run = run.stdout(Stdio::piped()).stderr(Stdio::null());
    let mut run = run.spawn().unwrap();
    let line = first_line(&mut run);
    let run_dir = Path::new(line.trim_end());
    let held = weir_instance::directories::keep(&[run_dir.to_owned()]).unwrap();
    run.kill().unwrap();
    run.wait().unwrap();
    let mut recover = room.weir(&["recover"]).spawn().unwrap();
    std::thread::sleep(std::time::Duration::from_millis(500));
    // Else there was nothing to wait for, and it has said so.
    assert!(recover.try_wait().unwrap().is_none(), "it does not wait");
    drop(held);
    let recovered = recover.wait_with_output().unwrap();
    assert_eq!(recovered.status.code(), Some(0));
    let moved = std::fs::read(room.path().join("out/in")).unwrap();
    assert_eq!(moved, b"content");
    assert_eq!(room.left_behind(), [""; 0]);
}

#[test]
fn several_servers_that_were_killed_are_recovered_together() {
    let room = Room::new();
    for command in ["recover", "stop"] {
        let killed = KilledServers::start_and_kill(&room);
        let list = room.ok(&["recover", "--list"]);
        for words in [
            &format!(
                "instance {} (no job) is dead: its 3 servers on localhost",
                killed.name
            )[..],
            &format!("files for {}", room.path().join("out").display()),
            &format!("weir recover {} moves what is in it", killed.name),
        ] {
            assert!(list.contains(words), "{list}");
        }
        let before = room.left_behind();
        let advice = "to the parallel file system";
        room.says(5, advice, &["start", &killed.name, "--servers", "3"]);
        room.says(125, advice, &["run", "-i", &killed.name, "true"]);
        room.says(0, advice, &["run", "--servers", "2", "true"]);
        assert_eq!(room.left_behind(), before);
        room.says(0, "its servers go on with it", &[command, &killed.name]);
        killed.is_recovered();
        std::fs::remove_dir_all(room.path().join("out")).unwrap();
    }
    let killed = KilledServers::start_and_kill(&room);
    // It is found by its name where instances of one server have their run directories elsewhere.
    let elsewhere = room.path().join("elsewhere");
    std::fs::create_dir(&elsewhere).unwrap();
    let mut stop = room.weir(&["stop", "--no-drain", &killed.name]);
    stop.env("XDG_RUNTIME_DIR", &elsewhere);
    Done::from_output(&stop.output().unwrap())
        .ended(0)
        .complains("cleared");
    assert_eq!(room.left_behind(), [""; 0]);
}

#[test]
fn several_servers_one_of_which_cannot_go_on_stay_until_they_are_given_up() {
    let room = Room::new();
    let killed = KilledServers::start_and_kill(&room);
    let of_second = format!("weir-{}-memory/{}.1", nix::unistd::geteuid(), killed.name);
    let [journal, aside] =
        ["journal", "aside"].map(|name| room.memory().join(&of_second).join(name));
    std::fs::rename(&journal, &aside).unwrap();
    let lost = "server 1 on localhost cannot be brought back";
    let recovered = room.says(7, lost, &["recover"]);
    // Files of which it had a part are named, and all others are there.
    let mut moved = 0;
    for n in 0..30_usize {
        let [was, is] = ["in", "out/in"].map(|dir| room.path().join(dir).join(n.to_string()));
        match std::fs::read(is) {
            Ok(is) => {
                assert_eq!(std::fs::read(was).unwrap(), is, "{n}");
                moved += 1;
            }
            Err(_) => assert!(
                recovered.err.contains(&format!("/in/{n}: ")),
                "{recovered:?}"
            ),
        }
    }
    assert!(moved > 0, "{recovered:?}");
    // With it everything is there again.
    std::fs::rename(&aside, &journal).unwrap();
    room.ok(&["recover"]);
    killed.is_recovered();
}

#[test]
fn a_recovery_that_is_killed_is_begun_again() {
    let room = Room::new();
    let killed = KilledServers::start_and_kill(&room);
    let mut killed_at_work = 0;
    // Some before they have begun, and some while they move files.
    for (begins, wait_ms) in [
        (false, 0),
        (false, 20),
        (true, 0),
        (true, 5),
        (true, 20),
        (true, 50),
    ] {
        let said = room.path().join("said");
        let mut recover = room
            .weir(&["recover"])
            .stdout(Stdio::null())
            .stderr(std::fs::File::create(&said).unwrap())
            .spawn()
            .unwrap();
        let goes_on = || {
            let said = std::fs::read_to_string(&said).unwrap();
            said.contains("its servers go on with it")
        };
        if begins {
            wait_until("it begins or ends", || {
                goes_on() || recover.try_wait().unwrap().is_some()
            });
        }
        std::thread::sleep(std::time::Duration::from_millis(wait_ms));
        let is_at_work = goes_on() && recover.try_wait().unwrap().is_none();
        killed_at_work += u32::from(is_at_work);
        recover.kill().unwrap();
        recover.wait().unwrap();
    }
    assert!(killed_at_work > 0, "all had ended before");
    // The servers of the last one may be ending.
    wait_until("it is recovered", || {
        room.run(&["recover"]).code == Some(0) && room.left_behind().is_empty()
    });
    killed.is_recovered();
}

/// A batch system sends SIGTERM to all processes of a job whose time is up. The files that are moved then are in
/// tests/real/shell/elevate.sh.
#[test]
fn an_instance_that_may_have_files_to_move_is_not_cleared_by_a_signal() {
    let room = Room::new();
    std::fs::create_dir(room.path().join("pfs")).unwrap();
    let target = room.path().join("pfs");
    let elevate = ["--elevate", target.to_str().unwrap()];
    for servers in ["1", "3"] {
        for options in [&elevate[..], &[]] {
            room.ok(&[&["start", "x", "--servers", servers], options].concat());
            let first = room.server("x");
            let told = match servers {
                "1" => first,
                _ => parent_of(first),
            };
            kill(told, Signal::SIGTERM).unwrap();
            if !options.is_empty() {
                wait_until("all are gone", || room.is_dead("x"));
                room.ok(&["recover", "x"]);
            }
            wait_until("all is cleared", || room.left_behind().is_empty());
        }
    }
}
