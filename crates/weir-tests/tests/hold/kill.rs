//! Servers and nodes that are killed, stay away, or stop answering, under load.

use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use rustix::io::Errno;
use weir_tests::build::Compiler;
use weir_tests::needs::{missing, MPICH_CC, MPICH_RUN};

use super::probes::{self, Place};
use super::room::{finish, program, until, Room};
use super::talk::Talk;

const EIO: i32 = Errno::IO.raw_os_error();
const ESHUTDOWN: i32 = Errno::SHUTDOWN.raw_os_error();

/// The time limit for others to report that a server is lost.
const REPORTED: Duration = Duration::from_secs(2);
/// A call, or a report, that takes longer hangs. Not a promise: no load of the machine makes one take so long.
const HANG: Duration = Duration::from_secs(60);
/// `fabric.deadline_s` of these tests: all requests of one call share it, also while 44 processes start
/// on a few cores.
const DEADLINE: Duration = Duration::from_secs(5);
const SETTINGS: [(&str, &str); 1] = [("WEIR_FABRIC_DEADLINE_S", "5")];
/// The node with the server that is hurt.
const VICTIM: usize = 1;
const OTHERS: [usize; 3] = [0, 2, 3];

/// The time that the machine may add to a bound. Such a test runs 52 processes: four cores get a second,
/// fewer cores proportionally more.
fn slack() -> Duration {
    let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    Duration::from_secs(4 / u64::try_from(cores.clamp(1, 4)).unwrap_or(1))
}

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

/// Checks that no rank read another's bytes, none hung, and those of other nodes succeeded.
#[track_caller]
fn judge_load(load: Option<Child>, bound: Duration) {
    let Some(load) = load else { return };
    let output = finish(load, Duration::from_secs(60));
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
        assert!(
            u128::from(word("slowest_ms")) <= bound.as_millis(),
            "{line}"
        );
    }
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
    let watch = watch(&room);
    let pid = room.server_pid(VICTIM);
    room.signal(VICTIM, "-KILL", pid);
    until("weir status elsewhere says so", HANG, || {
        room.status(2)["each"][VICTIM]["restarts"] == 1
    });
    until("a log elsewhere says so", HANG, || {
        logged(&room, "a server is lost, or was started again")
    });
    // The calls that still succeed do so for a while.
    std::thread::sleep(Duration::from_secs(2));
    // What the calls come to is the subject here; their times are that of the tests in which a server stays away.
    let own = probes::stop_probes(watch.own);
    probes::judge(&own, HANG, &[EIO, ESHUTDOWN]);
    let others = probes::stop_probes(watch.others);
    probes::judge(&others, HANG, &[EIO]);
    assert!(others.iter().all(|outcome| outcome.ok > 0));
    judge_load(load, HANG);
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
    let load = load(&room, 12);
    let watch = watch(&room);
    let (agent, pid) = (room.agent_pid(VICTIM), room.server_pid(VICTIM));
    // The agent is stopped, so that it does not restart the server.
    room.signal(VICTIM, "-STOP", agent);
    room.signal(VICTIM, "-KILL", pid);
    until(
        "a log elsewhere says that it is lost",
        REPORTED + slack(),
        || logged(&room, "a server is lost"),
    );
    until("and whose bytes do not come", REPORTED + slack(), || {
        logged(&room, "bytes that only this server has did not come")
    });
    until("and which files those are of", REPORTED + slack(), || {
        logged(&room, LOST_FILE)
    });
    std::thread::sleep(Duration::from_secs(2));
    // On its node calls fail at once, with the right errno.
    let own = probes::stop_probes(watch.own);
    probes::judge(&own, REPORTED + slack(), &[EIO, ESHUTDOWN]);
    let others = probes::stop_probes(watch.others);
    probes::judge(&others, REPORTED + slack(), &[EIO]);
    let failed = |kind: &str| {
        let of_kind = others.iter().filter(|outcome| outcome.kind == kind);
        of_kind.map(|outcome| outcome.failed).sum::<u64>()
    };
    assert!(failed("read") > 0, "the bytes were only there");
    if visibility == "ras" {
        assert_eq!(failed("write"), 0, "writing asks nobody");
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
    room.signal(VICTIM, "-CONT", agent);
    until("it is back", Duration::from_secs(10), || {
        let status = room.status(0);
        status["each"][VICTIM]["pid"]
            .as_u64()
            .is_some_and(|now| now != pid)
    });
    judge_load(load, REPORTED + slack());
    all_good_everywhere(&room, "after");
    room.stop();
}

#[test]
fn a_server_that_stops_answering_costs_the_deadline() {
    let Some(room) = Room::up("a server that hangs", 4, &SETTINGS) else {
        return;
    };
    probes::prepare(&room, VICTIM);
    let watch = watch(&room);
    let pid = room.server_pid(VICTIM);
    room.signal(VICTIM, "-STOP", pid);
    let stopped = Instant::now();
    std::thread::sleep(DEADLINE * 3);
    // The victim's own programs wait as long as it lives, like those of a slow server.
    let others = probes::stop_probes(watch.others);
    room.signal(VICTIM, "-CONT", pid);
    let frozen = stopped.elapsed();
    // One deadline, for any number of requests in a call and servers that each asks in turn; then the
    // term of a lease that could not be recalled.
    probes::judge(&others, DEADLINE + REPORTED + slack() * 2, &[EIO]);
    let own = probes::stop_probes(watch.own);
    probes::judge(&own, frozen + REPORTED + slack() * 2, &[EIO]);
    all_good_everywhere(&room, "after");
    room.stop();
}

#[test]
fn a_lost_node_is_reported_and_its_bytes_are_not_zeros() {
    let Some(mut room) = Room::up("a lost node", 4, &SETTINGS) else {
        return;
    };
    probes::prepare(&room, VICTIM);
    let others = OTHERS.map(|node| probes::start(&room, node, &format!("at{node}")));
    room.cluster.lose(VICTIM).unwrap();
    let lost = Instant::now();
    until("weir status elsewhere says so", REPORTED + slack(), || {
        let status = room.status(2);
        let said = status["each"][VICTIM]["error"].as_str();
        said.is_some_and(|said| said.contains("lost"))
    });
    eprintln!("status after {:?}", lost.elapsed());
    until("a log elsewhere says so", REPORTED + slack(), || {
        logged(&room, "a server is lost")
    });
    eprintln!("log after {:?}", lost.elapsed());
    std::thread::sleep(Duration::from_secs(3));
    let others: Vec<_> = others.into_iter().flat_map(probes::stop_probes).collect();
    probes::judge(&others, REPORTED + slack(), &[EIO]);
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
