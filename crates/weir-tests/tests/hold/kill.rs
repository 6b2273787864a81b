//! Servers and nodes that are killed, stay away, or stop answering, under load.

use std::process::{Child, Stdio};
use std::time::Instant;

use rustix::io::Errno;
use weir_cluster::guard::{self, wait_until};
use weir_tests::build::Compiler;
use weir_tests::needs::{missing, MPICH_CC, MPICH_RUN};

use super::probes::{self, Outcome, Place, FILES};
use super::room::{program, Room};
use super::talk::Talk;

const EIO: i32 = Errno::IO.raw_os_error();
const ESHUTDOWN: i32 = Errno::SHUTDOWN.raw_os_error();

/// All requests of one call share the deadline, also while 44 processes start on a few cores.
const SETTINGS: [(&str, &str); 1] = [("WEIR_FABRIC_DEADLINE_S", "5")];
/// The node with the server that is hurt.
const VICTIM: usize = 1;
const OTHERS: [usize; 3] = [0, 2, 3];

/// Probes of all kinds: on the victim's node, and on the others.
struct Watch {
    own: Vec<Talk>,
    others: Vec<Talk>,
}

fn watch(room: &Room) -> Watch {
    let own = probes::start(room, VICTIM, "own");
    let others = OTHERS.map(|node| probes::start(room, node, &format!("at{node}")));
    Watch {
        own,
        others: others.into_iter().flatten().collect(),
    }
}

/// The load: eight MPI ranks on all nodes; `None` if there is no MPICH.
fn load(room: &Room, seconds: u32) -> Option<Child> {
    if !missing(&[MPICH_RUN, MPICH_CC]).is_empty() {
        weir_cluster::skip("the MPI program", "MPICH (apt-get install mpich)");
        return None;
    }
    let load = program("load.c", Compiler::Mpich).display().to_string();
    let hosts = room.cluster.host_list();
    let seconds = seconds.to_string();
    let words = ["-hosts", &hosts, "-n", "8", &load, "/weir", &seconds];
    let mut command = room.run(0, "mpiexec.mpich", &words);
    Some(command.stdout(Stdio::piped()).spawn().unwrap())
}

/// Waits until the load has ended; checks that no rank read another's bytes, and that each wrote and read.
#[track_caller]
fn judge_load(load: Option<Child>) {
    let Some(load) = load else { return };
    let output = guard::wait_for_output(load);
    let text = String::from_utf8_lossy(&output.stdout);
    eprint!("{text}");
    assert!(output.status.success(), "{output:?}");
    let lines: Vec<&str> = text.lines().filter(|l| l.starts_with("rank ")).collect();
    assert_eq!(lines.len(), 8, "{text}");
    for line in lines {
        let word = |name: &str| -> u64 {
            let mut words = line.split_whitespace().skip_while(|word| *word != name);
            words.nth(1).unwrap().parse().unwrap()
        };
        assert_eq!(word("wrong"), 0, "{line}");
        assert!(word("rounds") > 0, "{line}");
    }
}

/// The number of calls of a kind that failed.
fn failed(outcomes: &[Outcome], kind: &str) -> u64 {
    let of_kind = outcomes.iter().filter(|outcome| outcome.kind == kind);
    of_kind.map(|outcome| outcome.failed).sum()
}

fn host(room: &Room) -> String {
    room.cluster.node(VICTIM).host().to_owned()
}

/// True if the log of another node has a line with these words and the victim's name.
fn logged(room: &Room, words: &str) -> bool {
    let host = host(room);
    let has = |log: String| log.lines().any(|l| l.contains(words) && l.contains(&host));
    OTHERS.iter().any(|node| has(room.log(*node)))
}

/// The log's message about a file that cannot be read.
const LOST_FILE: &str = "bytes of a file that only this node has cannot be read";

/// The file that a line of a log names.
fn named_file(line: &str) -> &str {
    let (_, rest) = line.split_once("file=\"").unwrap();
    rest.split_once('"').unwrap().0
}

#[track_caller]
fn all_good_everywhere(room: &Room, tag: &str) {
    for node in 0..4 {
        probes::all_good(room, node, &format!("{tag}{node}"));
    }
}

#[test]
fn a_killed_server_is_started_again_and_the_others_go_on() {
    let Some(room) = Room::up("a killed server", 4, &SETTINGS) else {
        return;
    };
    probes::prepare(&room, VICTIM);
    let load = load(&room, 8);
    let mut watch = watch(&room);
    let pid = room.server_pid(VICTIM);
    room.signal(VICTIM, "-KILL", pid);
    wait_until("weir status elsewhere says so", || {
        room.status(2)["each"][VICTIM]["restarts"] == 1
    });
    wait_until("a log elsewhere says so", || {
        logged(&room, "a server is lost, or was started again")
    });
    probes::wait_for_calls(watch.own.iter_mut().chain(&mut watch.others), FILES);
    let own = probes::stop_probes(watch.own);
    probes::judge(&own, &[EIO, ESHUTDOWN]);
    let others = probes::stop_probes(watch.others);
    probes::judge(&others, &[EIO]);
    assert!(others.iter().all(|outcome| outcome.ok > 0));
    judge_load(load);
    all_good_everywhere(&room, "after");
    room.stop();
}

#[test]
fn a_killed_server_that_stays_away_costs_its_bytes_alone() {
    a_server_stays_away("raw");
}

#[test]
fn a_killed_server_that_stays_away_keeps_nobody_from_writing_relaxed_files() {
    a_server_stays_away("ras");
}

fn a_server_stays_away(visibility: &str) {
    let settings = [SETTINGS[0], ("WEIR_VISIBILITY_DEFAULT", visibility)];
    let Some(room) = Room::up("a server that stays away", 4, &settings) else {
        return;
    };
    probes::prepare(&room, VICTIM);
    let while_away = load(&room, 12);
    let mut watch = watch(&room);
    let (agent, pid) = (room.agent_pid(VICTIM), room.server_pid(VICTIM));
    // The agent is stopped, so that it does not restart the server.
    room.signal(VICTIM, "-STOP", agent);
    room.signal(VICTIM, "-KILL", pid);
    wait_until("a log elsewhere says that it is lost", || {
        logged(&room, "a server is lost")
    });
    wait_until("and whose bytes do not come", || {
        logged(&room, "bytes that only this server has did not come")
    });
    wait_until("and which files those are of", || logged(&room, LOST_FILE));
    // No call waits for it to come back: all of them end while it is away.
    probes::wait_for_calls(watch.own.iter_mut().chain(&mut watch.others), FILES);
    judge_load(while_away);
    let own = probes::stop_probes(watch.own);
    probes::judge(&own, &[EIO, ESHUTDOWN]);
    let others = probes::stop_probes(watch.others);
    probes::judge(&others, &[EIO]);
    assert!(failed(&others, "read") > 0, "the bytes were only there");
    if visibility == "ras" {
        assert_eq!(failed(&others, "write"), 0, "writing asks nobody");
    }
    assert!(others.iter().all(|outcome| outcome.ok > 0));
    // Once for each file, however often it was read.
    for log in OTHERS.map(|node| room.log(node)) {
        let lines = log.lines().filter(|line| line.contains(LOST_FILE));
        let mut files: Vec<&str> = lines.map(named_file).collect();
        let of_probes = files.iter().filter(|file| file.starts_with("/data/"));
        assert!(of_probes.count() > 0, "{log}");
        files.sort_unstable();
        let named = files.len();
        files.dedup();
        assert_eq!(files.len(), named, "{log}");
    }
    let over_return = load(&room, 4);
    room.signal(VICTIM, "-CONT", agent);
    wait_until("it is back", || {
        let status = room.status(0);
        status["each"][VICTIM]["pid"]
            .as_u64()
            .is_some_and(|now| now != pid)
    });
    judge_load(over_return);
    all_good_everywhere(&room, "after");
    room.stop();
}

#[test]
fn a_server_that_stops_answering_costs_the_deadline() {
    let Some(room) = Room::up("a server that hangs", 4, &SETTINGS) else {
        return;
    };
    probes::prepare(&room, VICTIM);
    let mut watch = watch(&room);
    let pid = room.server_pid(VICTIM);
    room.signal(VICTIM, "-STOP", pid);
    // Calls of other nodes end while it is stopped.
    probes::wait_for_calls(&mut watch.others, 2);
    let others = probes::stop_probes(watch.others);
    assert!(failed(&others, "read") > 0, "the bytes were only there");
    // The victim's own programs wait as long as it lives, like those of a slow server.
    room.signal(VICTIM, "-CONT", pid);
    probes::judge(&others, &[EIO]);
    probes::wait_for_calls(&mut watch.own, FILES);
    let own = probes::stop_probes(watch.own);
    probes::judge(&own, &[EIO]);
    all_good_everywhere(&room, "after");
    room.stop();
}

#[test]
fn a_lost_node_is_reported_and_its_bytes_are_not_zeros() {
    let Some(mut room) = Room::up("a lost node", 4, &SETTINGS) else {
        return;
    };
    probes::prepare(&room, VICTIM);
    let mut others = OTHERS.map(|node| probes::start(&room, node, &format!("at{node}")));
    room.cluster.lose(VICTIM).unwrap();
    let lost = Instant::now();
    wait_until("weir status elsewhere says so", || {
        let status = room.status(2);
        let said = status["each"][VICTIM]["error"].as_str();
        said.is_some_and(|said| said.contains("lost"))
    });
    eprintln!("status after {:?}", lost.elapsed());
    wait_until("a log elsewhere says so", || {
        logged(&room, "a server is lost")
    });
    eprintln!("log after {:?}", lost.elapsed());
    probes::wait_for_calls(others.iter_mut().flatten(), FILES);
    let others: Vec<_> = others.into_iter().flat_map(probes::stop_probes).collect();
    probes::judge(&others, &[EIO]);
    let reads = others.iter().filter(|outcome| outcome.kind == "read");
    assert!(reads.clone().all(|outcome| outcome.failed > 0));
    let mut stop = room.weir(0, &["stop", "hold"]);
    let output = stop.output().unwrap();
    let words = String::from_utf8_lossy(&output.stderr);
    assert!(
        words.contains(&host(&room)),
        "the end says what was lost: {output:?}"
    );
}
