//! Clusters that are made, used, lost and cleared away. Skipped, loudly, without root.

use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::process::{Command, Stdio};

use weir_cluster::{can_test, Cluster, Node, Spec};

fn spec(nodes: usize) -> Spec {
    Spec {
        nodes,
        ..Spec::default()
    }
}

#[track_caller]
fn said(node: &Node, script: &str) -> String {
    let output = node.command("sh").args(["-c", script]).output().unwrap();
    assert!(output.status.success(), "{script}: {output:?}");
    String::from_utf8(output.stdout).unwrap().trim().to_owned()
}

#[test]
fn nodes_have_names_addresses_and_directories_of_their_own() {
    if !can_test("nodes", false) {
        return;
    }
    let (one, two) = (
        Cluster::up(&spec(2)).unwrap(),
        Cluster::up(&spec(2)).unwrap(),
    );
    assert_ne!(one.name(), two.name());
    for cluster in [&one, &two] {
        for node in cluster.nodes() {
            assert_eq!(said(node, "hostname"), node.host());
            // Below /tmp there are only the sources, if they are there outside.
            let seen = said(node, "ls -A /tmp /dev/shm | grep -v :");
            let sources = Path::new(env!("CARGO_MANIFEST_DIR")).strip_prefix("/tmp");
            let top = sources.ok().and_then(|path| path.iter().next());
            assert_eq!(seen, top.map_or("", |name| name.to_str().unwrap()));
            said(node, "touch /tmp/mine /dev/shm/mine");
        }
    }
    let (dir, name) = (one.dir().to_owned(), one.name().to_owned());
    assert!(Cluster::living().contains(&name));
    one.down().unwrap();
    assert!(!dir.exists() && !Cluster::living().contains(&name));
    assert_eq!(said(two.node(0), "hostname"), two.node(0).host());
}

#[test]
fn nodes_reach_each_other_by_name_over_a_limited_link_and_ssh() {
    if !can_test("links", true) {
        return;
    }
    let cluster = Cluster::up(&Spec {
        rate: Some("1gbit".into()),
        ssh: true,
        ..spec(3)
    })
    .unwrap();
    let (first, last) = (cluster.node(0), cluster.node(2));
    assert_eq!(
        said(first, &format!("ssh {} hostname", last.host())),
        last.host()
    );
    let classes = said(first, "tc class show dev eth0");
    assert!(classes.contains("rate 1Gbit"), "{classes}");
}

#[test]
fn a_cut_network_carries_nothing_and_heals() {
    if !can_test("cutting the network", false) {
        return;
    }
    let mut cluster = Cluster::up(&spec(4)).unwrap();
    let reaches = |cluster: &Cluster, from: usize, to: usize| {
        // To a port on which nobody listens: refused by the other end, or no answer at all.
        let address = cluster.node(to).address();
        let script = format!("timeout 0.5 bash -c 'exec 3<>/dev/tcp/{address}/9'; [ $? -ne 124 ]");
        let mut bash = cluster.node(from).command("bash");
        let output = bash.args(["-c", &script]).output().unwrap();
        output.status.success()
    };
    cluster.cut(&[&[0, 1], &[2]]).unwrap();
    assert!(reaches(&cluster, 0, 1));
    for (from, to) in [(0, 2), (2, 1), (3, 0), (2, 3)] {
        assert!(!reaches(&cluster, from, to), "{from} reaches {to}");
    }
    cluster.heal().unwrap();
    for (from, to) in [(0, 2), (2, 1), (3, 0), (0, 1)] {
        assert!(reaches(&cluster, from, to), "{from} does not reach {to}");
    }
}

#[test]
fn a_lost_node_takes_its_processes_with_it() {
    if !can_test("losing a node", false) {
        return;
    }
    let mut cluster = Cluster::up(&spec(2)).unwrap();
    let mut sleeper = cluster.node(1).command("sh");
    let sleeper = sleeper.args(["-c", "echo here; exec sleep 1000"]);
    let mut sleeper = sleeper.stdout(Stdio::piped()).spawn().unwrap();
    let mut says = BufReader::new(sleeper.stdout.take().unwrap());
    says.read_line(&mut String::new()).unwrap();
    cluster.lose(1).unwrap();
    assert_eq!(says.read_to_string(&mut String::new()).unwrap(), 0);
    assert!(!sleeper.wait().unwrap().success());
    assert_eq!(cluster.node(1).pid(), None);
    said(cluster.node(0), "true");
}

const OWNER: &str = "WEIR_TEST_CLUSTER_OWNER";

#[test]
fn a_killed_owner_leaves_no_process_and_the_next_clears_its_directory() {
    if !can_test("a killed owner", false) {
        return;
    }
    if std::env::var_os(OWNER).is_some() {
        let cluster = Cluster::up(&spec(1)).unwrap();
        println!("{OWNER} {}", cluster.name());
        std::io::stdin().read_to_string(&mut String::new()).unwrap();
        return;
    }
    let mut owner = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "--nocapture"])
        .arg("a_killed_owner_leaves_no_process_and_the_next_clears_its_directory")
        .env(OWNER, "1")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let lines = BufReader::new(owner.stdout.take().unwrap()).lines();
    let name = lines.map_while(Result::ok).find_map(|line| {
        let (_, name) = line.split_once(OWNER)?;
        Some(name.trim().to_owned())
    });
    let name = name.expect("a cluster");
    owner.kill().unwrap();
    owner.wait().unwrap();
    let dir = weir_cluster::base().join(&name);
    // The kernel ends the node once it finds nobody at the other end.
    let lock = std::fs::File::open(dir.join("lock")).unwrap();
    lock.lock().unwrap();
    // Not by closing it: a process that another test is just starting may have it open.
    lock.unlock().unwrap();
    Cluster::sweep();
    assert!(!dir.exists());
}

#[test]
fn a_cluster_that_was_left_is_found_and_taken_down() {
    if !can_test("leaving a cluster", false) {
        return;
    }
    let cluster = Cluster::up(&spec(2)).unwrap();
    let name = cluster.name().to_owned();
    cluster.leave().unwrap();
    let found = Cluster::open(&name).unwrap();
    assert_eq!(found.nodes().len(), 2);
    said(found.node(1), "true");
    drop(found);
    Cluster::open(&name).unwrap().down().unwrap();
    assert!(Cluster::open(&name).is_err());
}
