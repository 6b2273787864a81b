//! Many of everything: servers of one machine, clients of one server, and few descriptors. Needs no
//! privileges and no namespaces.

use super::local::Local;
use super::probes::{self, Place};
use super::room::said;
use super::talk::Talk;

/// EUSERS: the maximum number of clients is reached.
const EUSERS: i32 = 87;

/// The server's resident memory in bytes, and its open descriptors.
fn weight(pid: u64) -> (u64, usize) {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let field = |name: &str| -> u64 {
        let line = status.lines().find(|line| line.starts_with(name)).unwrap();
        line.split_whitespace().nth(1).unwrap().parse().unwrap()
    };
    let descriptors = std::fs::read_dir(format!("/proc/{pid}/fd")).unwrap();
    (field("RssAnon:") * 1024, descriptors.count())
}

/// The result of a crowd: the number of processes that succeeded, and of the others by errno.
#[derive(Debug)]
struct Crowd {
    good: u64,
    failed: Vec<(i32, u64)>,
}

/// Runs this number of processes at once (`tests/hold/crowd.c`); calls `meanwhile` when all are there.
fn crowd(local: &Local, processes: u32, meanwhile: impl FnOnce()) -> Crowd {
    let words = ["/weir", &processes.to_string(), "2"];
    let mut program = Talk::start(local, 0, "crowd.c", &words);
    assert_eq!(program.read_line(), "all there\n");
    meanwhile();
    program.send_line();
    let text = program.wait_for_end();
    let mut lines = text.lines();
    let good = lines.next().unwrap().strip_suffix(" good").unwrap();
    let failed = lines.map(|line| {
        let (errno, count) = line.split_once(": ").unwrap();
        (errno.parse().unwrap(), count.parse().unwrap())
    });
    Crowd {
        good: good.parse().unwrap(),
        failed: failed.collect(),
    }
}

#[test]
fn a_thousand_clients_of_one_server() {
    let local = Local::start("crowd", &[], &[]);
    let pid = local.status()["pid"].as_u64().unwrap();
    let (memory, _) = weight(pid);
    let came = crowd(&local, 1000, || {
        let (now, descriptors) = weight(pid);
        eprintln!(
            "{} bytes a client, {descriptors} descriptors",
            (now - memory) / 1000
        );
        // A connection and a process descriptor each, and the parent.
        assert!(descriptors < 2 * 1001 + 100, "{descriptors}");
        assert!(now < memory + (64 << 20), "{memory} then {now} bytes");
        assert_eq!(local.status()["clients"], 1000);
    });
    assert_eq!((came.good, &came.failed[..]), (1000, &[][..]));
    let status = local.status();
    assert_eq!(status["clients_ever"], 1000);
    assert_eq!(status["files"], 3000);
    assert!(
        status["rejected"].as_object().unwrap().is_empty(),
        "{status}"
    );
    let (_, descriptors) = weight(pid);
    assert!(descriptors < 100, "{descriptors}: they were not closed");
}

#[test]
fn beyond_the_most_clients_comes_a_clear_error() {
    let local = Local::start("full", &[], &[("WEIR_SERVER_MAX_CLIENTS", "40")]);
    let came = crowd(&local, 60, || {});
    assert_eq!(came.good, 40, "{came:?}");
    assert_eq!(came.failed, [(EUSERS, 20)]);
    let status = local.status();
    assert_eq!(
        status["rejected"]["socket: too many clients"], 20,
        "{status}"
    );
    // After they have gone, others may come.
    assert_eq!(crowd(&local, 30, || {}).good, 30);
}

#[test]
fn few_descriptors_mean_few_clients_and_a_clear_error() {
    let by = ["prlimit", "--nofile=400:400"];
    let local = Local::start_by(&by, "few", &[], &[]);
    let log = local.log();
    assert!(log.contains("the limit of open files"), "{log}");
    // 400 minus the server's own, two for each client.
    let most = 70;
    let came = crowd(&local, 100, || {});
    assert_eq!(came.good, most, "{came:?}");
    assert_eq!(came.failed, [(EUSERS, 100 - most)]);
    assert!(!local.log().contains("no descriptors left"));
    let listed = said(&mut local.run(0, "ls", &["/weir"]));
    assert_eq!(listed.lines().count(), 3 * usize::try_from(most).unwrap());
}

#[test]
fn sixty_four_servers_of_one_machine() {
    let local = Local::start("many", &["--servers", "64"], &[]);
    probes::prepare(&local, 5);
    for rank in [0, 31, 63] {
        probes::all_good(&local, rank, &format!("r{rank}"));
    }
    let status = local.status();
    assert_eq!(status["servers"], 64);
    let each = status["each"].as_array().unwrap();
    assert!(each.iter().all(|one| one["pid"].is_u64()), "{status}");
    said(&mut local.weir(&["stop", "many"]));
    let left = std::fs::read_dir(local.memory()).unwrap().flatten();
    let left = left.flat_map(|parent| std::fs::read_dir(parent.path()).unwrap().flatten());
    let left: Vec<_> = left.filter(|entry| entry.path().is_dir()).collect();
    assert!(left.is_empty(), "{left:?}");
}
