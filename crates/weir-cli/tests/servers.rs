//! Several servers on one machine, over its loopback: no rights and no namespaces needed.

mod common;

use std::io::{BufRead, BufReader};
use std::net::Shutdown;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread::ScopedJoinHandle;

use common::{first_line, parent_of, pid_in, wait_until, Done, Room};
use nix::sys::signal::{kill as send_signal, Signal};
use nix::unistd::Pid;

/// Where instances of several servers have their run directories.
fn runs(room: &Room) -> PathBuf {
    room.path().join(format!("weir-{}", nix::unistd::geteuid()))
}

fn left_of(room: &Room, name: &str) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(runs(room))
        .into_iter()
        .flatten()
        .flatten();
    let paths = entries.map(|entry| entry.path());
    let ours = |path: &PathBuf| {
        path.file_name()
            .unwrap()
            .to_string_lossy()
            .starts_with(name)
    };
    paths.filter(ours).filter(|path| path.is_dir()).collect()
}

/// Ends the instance also when the test fails.
struct Instance<'r>(&'r Room, String);

impl Drop for Instance<'_> {
    fn drop(&mut self) {
        let _ = self.0.weir(&["stop", &self.1]).output();
    }
}

fn start<'r>(room: &'r Room, of: &str, servers: &str) -> Instance<'r> {
    let name = of.to_owned();
    let said = room.ok(&["start", &name, "--servers", servers]);
    assert!(said.contains(&format!("on {servers} servers")), "{said}");
    Instance(room, name)
}

/// The process of a server, if it answers.
fn try_server_pid(room: &Room, instance: &Instance<'_>, rank: usize) -> Option<Pid> {
    let out = room.run(&["status", &instance.1, "--json"]).out;
    let status: serde_json::Value = serde_json::from_str(&out).ok()?;
    let each = &status["each"][rank];
    assert_eq!(each["rank"], rank, "{out}");
    each["pid"].is_number().then(|| pid_in(each))
}

/// The process of a server.
fn server_pid(room: &Room, instance: &Instance<'_>, rank: usize) -> Pid {
    try_server_pid(room, instance, rank).unwrap()
}

/// Kills a process.
fn kill(pid: Pid) {
    send_signal(pid, Signal::SIGKILL).unwrap();
}

#[test]
fn each_has_a_run_directory_and_knows_all() {
    let room = Room::new();
    let instance = start(&room, "all", "3");
    let dirs = left_of(&room, &instance.1);
    assert_eq!(dirs.len(), 3);
    let roster = |dir: &PathBuf| std::fs::read_to_string(dir.join("roster.json")).unwrap();
    assert!(dirs.iter().all(|dir| roster(dir) == roster(&dirs[0])));
    let roster: serde_json::Value = serde_json::from_str(&roster(&dirs[0])).unwrap();
    assert_eq!(roster["members"].as_array().unwrap().len(), 3);
    let status = room.ok(&["status"]);
    assert_eq!(status.matches(", 3 servers, ").count(), 1, "{status}");
    assert_eq!(
        status.matches(" localhost: process ").count(),
        3,
        "{status}"
    );
    room.ends(3, &["start", &instance.1, "--servers", "2"]);
    room.ok(&["stop", &instance.1]);
    assert_eq!(left_of(&room, &instance.1), [""; 0].map(PathBuf::from));
    room.ends(4, &["stop", &instance.1]);
}

#[test]
fn a_command_uses_the_server_that_is_asked_for() {
    let room = Room::new();
    let instance = start(&room, "rank", "3");
    let used = |rank: &str| {
        let script = "echo $WEIR_INSTANCE";
        let run = ["run", "-i", &instance.1, "--rank", rank, "sh", "-c", script];
        room.ok(&run).trim().to_owned()
    };
    let first = runs(&room).join(&instance.1).display().to_string();
    assert_eq!(used("0"), first);
    assert_eq!(used("2"), format!("{first}.2"));
    room.ends(125, &["run", "-i", &instance.1, "--rank", "3", "true"]);
}

#[test]
fn an_instance_of_run_ends_with_its_command() {
    let room = Room::new();
    let script = "echo $WEIR_INSTANCE; exit 7";
    let done = room.ends(
        7,
        &["run", "--servers", "4", "--rank", "1", "sh", "-c", script],
    );
    assert!(done.out.trim().ends_with(".1"), "{done:?}");
    assert!(done.err.contains("weir: written"), "{done:?}");
    assert!(!Path::new(done.out.trim()).exists());
    assert_eq!(room.left_behind(), [""; 0]);
}

#[test]
fn nothing_outlives_a_killed_run() {
    let room = Room::new();
    let script = "echo $WEIR_INSTANCE; exec sleep 1000";
    let mut run = room.weir(&["run", "--servers", "2", "sh", "-c", script]);
    let mut run = run.stdout(Stdio::piped()).spawn().unwrap();
    let run_dir = PathBuf::from(first_line(&mut run).trim());
    assert!(run_dir.join("roster.json").is_file());
    run.kill().unwrap();
    run.wait().unwrap();
    wait_until("the servers are gone", || {
        !run_dir.exists() && room.left_behind().is_empty()
    });
}

#[test]
fn nothing_outlives_a_killed_agent() {
    let room = Room::new();
    let instance = start(&room, "agent", "2");
    kill(parent_of(server_pid(&room, &instance, 0)));
    wait_until("the servers are gone", || {
        left_of(&room, &instance.1).is_empty()
    });
}

#[test]
fn a_lost_server_is_named_and_the_others_go_on() {
    let room = Room::new();
    let instance = start(&room, "lost", "3");
    // With nothing to come back to, it is not started again.
    let memory = format!("weir-{}-memory/lost.1/journal", nix::unistd::geteuid());
    std::fs::remove_file(room.memory().join(memory)).unwrap();
    kill(server_pid(&room, &instance, 1));
    let run = ["run", "-i", &instance.1, "--rank", "2", "true"];
    room.ok(&run);
    // Until the try to start it again has failed, it says so.
    wait_until("the agent has given it up", || {
        let status = room.ok(&["status", &instance.1]);
        status.contains("server 1   localhost: it was lost\n")
    });
    let stop = room.run(&["stop", &instance.1]);
    assert!(
        stop.err
            .contains("server 1 on localhost: the server was lost"),
        "{stop:?}"
    );
    assert_eq!(stop.code, Some(1), "{stop:?}");
}

/// Until a killed server is back, its directories look like those that a dead instance left behind.
#[test]
fn other_starts_do_not_clear_away_a_killed_server() {
    const STARTS: usize = 25;
    let room = Room::new();
    let instance = start(&room, "swept", "2");
    let start_others = || {
        for _ in 0..STARTS {
            room.ok(&["run", "--servers", "1", "true"]);
        }
    };
    std::thread::scope(|scope| {
        let others = [(); 3].map(|()| scope.spawn(start_others));
        while !others.iter().all(ScopedJoinHandle::is_finished) {
            let killed = server_pid(&room, &instance, 1);
            kill(killed);
            wait_until("the killed server is back", || {
                try_server_pid(&room, &instance, 1).is_some_and(|pid| pid != killed)
            });
        }
    });
}

#[test]
fn run_uses_the_instance_of_a_start_without_a_name() {
    let room = Room::new();
    let user = format!("user-{}", nix::unistd::geteuid());
    room.ok(&["start"]);
    let says = |options: &[&str]| {
        let command = ["sh", "-c", "echo $WEIR_INSTANCE"];
        room.ok(&[&["run"], options, &command].concat())
    };
    assert!(says(&[]).trim_end().ends_with(&user));
    assert!(!says(&["--memory", "64M"]).contains(&user));
    room.ok(&["stop"]);
    assert!(!says(&[]).contains(&user));
}

#[test]
fn a_reader_that_has_seen_enough_is_no_failure() {
    let room = Room::new();
    // Not a pipe: a process that another test is just starting may hold its other end a little longer.
    let (reader, output) = UnixStream::pair().unwrap();
    reader.shutdown(Shutdown::Read).unwrap();
    let mut config = room.weir(&["config"]);
    let end = config.stdout(OwnedFd::from(output)).output().unwrap();
    assert_eq!(String::from_utf8_lossy(&end.stderr), "");
    assert_eq!(end.status.code(), Some(141));
}

#[test]
fn a_killed_server_is_started_again_each_time() {
    let room = Room::new();
    let instance = start(&room, "again", "3");
    for rank in [1, 0, 1] {
        let killed = server_pid(&room, &instance, rank);
        kill(killed);
        wait_until("it is back", || {
            try_server_pid(&room, &instance, rank).is_some_and(|pid| pid != killed)
        });
    }
    room.ends(0, &["stop", &instance.1]);
    assert_eq!(left_of(&room, &instance.1), [""; 0].map(PathBuf::from));
}

#[test]
fn a_stop_that_waits_says_for_whom() {
    let room = Room::new();
    let instance = start(&room, "slow", "2");
    let pid = server_pid(&room, &instance, 1);
    send_signal(pid, Signal::SIGSTOP).unwrap();
    let stop = room
        .weir(&["stop", &instance.1])
        .stderr(Stdio::piped())
        .spawn();
    let mut stop = stop.unwrap();
    let mut line = String::new();
    let mut says = BufReader::new(stop.stderr.take().unwrap());
    says.read_line(&mut line).unwrap();
    assert_eq!(line, "weir: waiting for server 1 on localhost\n");
    send_signal(pid, Signal::SIGCONT).unwrap();
    assert!(stop.wait().unwrap().success());
}

#[test]
fn a_server_that_cannot_start_leaves_none() {
    let room = Room::new();
    let name = "full".to_owned();
    let output = room
        .weir(&["start", &name, "--servers", "2"])
        .env("WEIR_MEMORY_DIRECTORY", "/nonexistent")
        .output()
        .unwrap();
    let done = Done::from_output(&output).ended(1);
    assert!(
        done.err.contains("localhost: ") && done.err.contains("/nonexistent"),
        "{done:?}"
    );
    assert_eq!(left_of(&room, &name), [""; 0].map(PathBuf::from));
}

#[test]
fn the_secret_is_nowhere_to_be_seen() {
    let room = Room::new();
    let instance = start(&room, "secret", "2");
    let run_dir = runs(&room).join(&instance.1);
    let secret = std::fs::read_to_string(run_dir.join("secret")).unwrap();
    assert_eq!(secret.len(), 64);
    let server = server_pid(&room, &instance, 0);
    for pid in [server, parent_of(server)] {
        for file in ["cmdline", "environ"] {
            let shown = std::fs::read(format!("/proc/{pid}/{file}")).unwrap();
            assert!(!String::from_utf8_lossy(&shown).contains(&secret), "{file}");
        }
    }
    for file in ["server.log", "agent.log", "roster.json"] {
        let text = std::fs::read_to_string(run_dir.join(file)).unwrap();
        assert!(!text.contains(&secret), "{file}");
    }
    let listed = Command::new("stat")
        .args(["-c", "%a"])
        .arg(run_dir.join("secret"))
        .output();
    assert_eq!(String::from_utf8(listed.unwrap().stdout).unwrap(), "600\n");
}
