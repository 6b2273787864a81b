//! A network that is cut and heals: no completed call is lost, none acts twice, and a failed one acted
//! once or not at all (`tests/hold/cut.c`). Both sides see the same afterwards.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use weir_cluster::guard::wait_until;

use super::probes::{self, Place, FILES};
use super::room::Room;
use super::talk::Talk;

const NODES: usize = 4;
const EIO: i32 = 5;

/// A program that appends, creates and renames on a node.
struct Writer {
    program: Talk,
    log: PathBuf,
    tag: String,
}

impl Writer {
    fn start(room: &Room, node: usize) -> Writer {
        let log = room.cluster.dir().join(format!("shared/log-{node}"));
        let tag = format!("w{node}");
        let words = ["/weir", log.to_str().unwrap(), &tag];
        let mut program = Talk::start(room, node, "cut.c", &words);
        assert_eq!(program.read_line(), "ready\n");
        Writer { program, log, tag }
    }

    /// The number of calls that succeeded, and of all that ended.
    fn lines(&self) -> [usize; 2] {
        let log = std::fs::read_to_string(&self.log).unwrap_or_default();
        let good = log.lines().filter(|line| !line.starts_with("FAIL"));
        [good.count(), log.lines().count()]
    }

    fn good(&self) -> usize {
        self.lines()[0]
    }

    /// Ends it; returns for each kind of call those that succeeded, and those that failed.
    fn end(mut self) -> Done {
        self.program.send_line();
        self.program.wait_for_end();
        let mut done = Done {
            tag: self.tag,
            ..Done::default()
        };
        for line in std::fs::read_to_string(&self.log).unwrap().lines() {
            assert!(!line.starts_with("WRONG"), "{line}");
            let (set, line) = match line.strip_prefix("FAIL ") {
                Some(line) => (&mut done.failed, line),
                None => (&mut done.returned, line),
            };
            let (kind, number) = line.split_once(' ').unwrap();
            let number = number.parse().unwrap();
            set.entry(kind.to_owned()).or_default().insert(number);
        }
        done
    }
}

type ByKind = BTreeMap<String, BTreeSet<u64>>;

#[derive(Default)]
struct Done {
    tag: String,
    returned: ByKind,
    failed: ByKind,
}

impl Done {
    fn has(&self, of: fn(&Done) -> &ByKind, kind: &str, number: u64) -> bool {
        of(self).get(kind).is_some_and(|set| set.contains(&number))
    }
}

/// The lines and names that a node sees.
#[derive(PartialEq, Eq, Debug)]
struct Sight {
    lines: Vec<String>,
    names: BTreeSet<String>,
}

fn look(room: &Room, node: usize) -> Sight {
    let lines = room.shell(node, "cat /weir/lines");
    let names = room.shell(node, "ls /weir");
    // Zeros are the place of a failed append, as of one that was killed.
    let words = |text: &str| -> Vec<String> {
        let words = text.split(['\n', '\0']).filter(|word| !word.is_empty());
        words.map(str::to_owned).collect()
    };
    Sight {
        lines: words(&lines),
        names: words(&names).into_iter().collect(),
    }
}

#[track_caller]
fn judge(done: &Done, sight: &Sight) {
    let mut count: BTreeMap<u64, u64> = BTreeMap::new();
    let own = format!("{} ", done.tag);
    for line in sight
        .lines
        .iter()
        .filter_map(|line| line.strip_prefix(&own))
    {
        *count.entry(line.parse().unwrap()).or_default() += 1;
    }
    let twice: Vec<_> = count.iter().filter(|(_, n)| **n > 1).collect();
    assert!(twice.is_empty(), "{}: appended twice: {twice:?}", done.tag);
    for number in done.returned.get("A").into_iter().flatten() {
        assert!(
            count.contains_key(number),
            "{}: line {number} is lost",
            done.tag
        );
    }
    let there = |what: &str, number: u64| {
        sight
            .names
            .contains(&format!("{what}-{}-{number}", done.tag))
    };
    for number in done.returned.get("C").into_iter().flatten().copied() {
        let (made, named) = (there("made", number), there("named", number));
        assert!(made != named, "{}: {number}: {made} {named}", done.tag);
        if done.has(|done| &done.returned, "R", number) {
            assert!(named, "{}: renamed {number} is lost", done.tag);
        }
    }
}

#[test]
fn over_a_short_cut_nothing_is_lost_or_done_twice() {
    over_a_cut(Duration::ZERO);
}

#[test]
fn over_a_long_cut_nothing_is_lost_or_done_twice() {
    over_a_cut(Duration::from_secs(8));
}

/// Cuts the network until both sides have noticed, and at least for `least`.
fn over_a_cut(least: Duration) {
    let settings = [("WEIR_FABRIC_DEADLINE_S", "3")];
    let Some(mut room) = Room::up("a cut network", NODES, &settings) else {
        return;
    };
    probes::prepare(&room, 1);
    let writers: Vec<Writer> = (0..NODES).map(|node| Writer::start(&room, node)).collect();
    let mut probes: Vec<_> = (0..NODES)
        .flat_map(|node| probes::start(&room, node, &format!("at{node}")))
        .collect();
    wait_until("all write", || {
        writers.iter().all(|writer| writer.good() >= 30)
    });
    room.cluster.cut(&[&[0, 1], &[2, 3]]).unwrap();
    let cut = Instant::now();
    wait_until("both sides notice", || {
        let noticed = |node: usize| room.log(node).contains("a server is lost");
        (0..2).any(noticed) && (2..NODES).any(noticed)
    });
    // No call hangs on either side, and some succeed: on the side of the root directory's home.
    let before: Vec<[usize; 2]> = writers.iter().map(Writer::lines).collect();
    wait_until("calls end on both sides", || {
        let now = writers.iter().map(Writer::lines).zip(&before);
        let more = now.map(|([good, all], before)| (good > before[0] + 5, all > before[1] + 30));
        let more: Vec<(bool, bool)> = more.collect();
        more.iter().any(|(good, _)| *good) && more.iter().all(|(_, all)| *all)
    });
    if least > Duration::ZERO {
        // A silent server is given up, once for leases and once for bytes; then no call waits for it.
        probes::wait_for_calls(&mut probes, FILES);
    }
    std::thread::sleep(least.saturating_sub(cut.elapsed()));
    eprintln!("healing after {:?}", cut.elapsed());
    room.cluster.heal().unwrap();
    let healed = Instant::now();
    let before: Vec<usize> = writers.iter().map(Writer::good).collect();
    wait_until("all write again", || {
        let more = |node: usize| writers[node].good() > before[node] + 30;
        (0..NODES).all(more)
    });
    eprintln!("all write again after {:?}", healed.elapsed());
    // Each pair of servers reconnects by itself: it retries twice a second.
    wait_until("every node reaches all", || {
        // Up to the present end of the file: cat would follow the writers.
        let lines = "head -c \"$(stat -c %s /weir/lines)\" /weir/lines";
        let script = format!("{lines} && cat /weir/data/* && ls /weir");
        let script = ["-c", &script];
        let reads = |node| room.run(node, "bash", &script).output().unwrap();
        (0..NODES).all(|node| reads(node).status.success())
    });
    eprintln!("and reach each other after {:?}", healed.elapsed());
    let outcomes = probes::stop_probes(probes);
    let done: Vec<Done> = writers.into_iter().map(Writer::end).collect();
    let sights: Vec<Sight> = (0..NODES).map(|node| look(&room, node)).collect();
    for (node, sight) in sights.iter().enumerate() {
        assert_eq!(sight.names, sights[0].names, "names at {node}");
        assert_eq!(sight.lines, sights[0].lines, "lines at {node}");
        for done in &done {
            judge(done, sight);
        }
    }
    for node in 0..NODES {
        probes::all_good(&room, node, &format!("after{node}"));
    }
    probes::judge(&outcomes, &[EIO]);
    room.stop();
}
