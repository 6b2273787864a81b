//! Instances of several nodes over ssh: namespaces of one machine, each with an sshd. Skipped,
//! loudly, without root.

mod common;

use std::path::Path;
use std::process::Stdio;
use std::time::Instant;

use common::{first_line, Done, Room};
use weir_cluster::leftovers::{assert_gone, left_behind};
use weir_cluster::{can_test, Cluster, Node, Spec};

fn cluster(what: &str, nodes: usize) -> Option<Cluster> {
    can_test(what, true).then(|| Cluster::up(&Spec::with_ssh(nodes)).unwrap())
}

/// weir on a node, with small budgets. The node's own `/tmp` and `/dev/shm` are its rooms.
fn weir(node: &Node, arguments: &[&str]) -> Done {
    Done::from_output(&command(node, arguments).output().unwrap())
}

fn command(node: &Node, arguments: &[&str]) -> std::process::Command {
    let mut command = node.command(env!("CARGO_BIN_EXE_weir"));
    Room::prepare(&mut command, arguments);
    command
}

#[test]
fn start_and_stop_over_nodes_with_the_same_path_on_each() {
    let Some(cluster) = cluster("start over ssh", 4) else {
        return;
    };
    let hosts = format!("{}-[0-3]", cluster.name());
    let said = weir(cluster.node(0), &["start", "job", "--hosts", &hosts]).ok();
    assert!(said.contains("on 4 servers"), "{said}");
    assert_eq!(said.lines().count(), 1);
    let read = |node: &Node, file: &str| {
        let path = format!("/tmp/weir-0/job/{file}");
        let output = node.command("cat").arg(path).output().unwrap();
        String::from_utf8(output.stdout).unwrap()
    };
    let roster = read(cluster.node(0), "roster.json");
    for node in cluster.nodes() {
        assert!(roster.contains(node.host()) && roster.contains(&node.address().to_string()));
        assert_eq!(read(node, "roster.json"), roster);
        assert_eq!(read(node, "secret"), read(cluster.node(0), "secret"));
        let script = "echo $WEIR_INSTANCE";
        let used = weir(node, &["run", "-i", "job", "sh", "-c", script]).ok();
        assert_eq!(used.trim(), "/tmp/weir-0/job");
    }
    for node in [cluster.node(0), cluster.node(3)] {
        let status = weir(node, &["status", "job"]).ok();
        assert!(
            status.starts_with("job at /weir, 4 servers, up "),
            "{status}"
        );
        for other in cluster.nodes() {
            assert!(
                status.contains(&format!("{}: process ", other.host())),
                "{status}"
            );
        }
    }
    // From any node.
    weir(cluster.node(2), &["stop", "job"]).ok();
    assert_gone(&cluster);
}

#[test]
fn a_hostfile_and_a_tree_of_two_branches() {
    let Some(cluster) = cluster("a tree", 8) else {
        return;
    };
    let lines: Vec<String> = cluster
        .nodes()
        .iter()
        .map(|node| format!("{} slots=2\n", node.host()))
        .collect();
    let file = cluster.dir().join("shared/hosts");
    std::fs::write(&file, lines.concat()).unwrap();
    let file = file.to_str().unwrap();
    for fanout in ["launch.fanout=2", "launch.fanout=32"] {
        let mut times_ms = Vec::new();
        for _ in 0..5 {
            let begin = Instant::now();
            let start = ["start", "tree", "--hostfile", file, "--set", fanout];
            weir(cluster.node(3), &start).ok();
            times_ms.push(begin.elapsed().as_millis());
            let status = weir(cluster.node(7), &["status", "tree"]).ok();
            assert_eq!(status.matches(": process ").count(), 8, "{status}");
            weir(cluster.node(3), &["stop", "tree"]).ok();
            assert_gone(&cluster);
        }
        times_ms.sort_unstable();
        println!("weir start, 8 nodes, {fanout}: {times_ms:?} ms");
    }
}

#[test]
fn nothing_outlives_a_killed_run() {
    let Some(cluster) = cluster("a killed run", 3) else {
        return;
    };
    let hosts = cluster.host_list();
    let script = "echo up; exec sleep 1000";
    let run = ["run", "--hosts", &hosts, "sh", "-c", script];
    let mut run = command(cluster.node(0), &run);
    let mut run = run.stdout(Stdio::piped()).spawn().unwrap();
    first_line(&mut run);
    assert!(left_behind(cluster.node(2)).contains("weir server"));
    run.kill().unwrap();
    run.wait().unwrap();
    assert_gone(&cluster);
}

#[test]
fn a_node_that_cannot_is_named_and_nothing_is_left() {
    let Some(cluster) = cluster("failing nodes", 3) else {
        return;
    };
    let (first, bad) = (cluster.node(0), cluster.node(2));
    let hosts = cluster.host_list();
    let refused = |settings: &[&str], hosts: &str| {
        let mut start = vec!["start", "job", "--hosts", hosts];
        for set in settings {
            start.extend(["--set", set]);
        }
        let done = weir(first, &start).ended(1);
        assert_gone(&cluster);
        done.err
    };
    // No such host.
    let err = refused(&[], &format!("{hosts},no-such-host"));
    assert!(err.contains("no-such-host: ssh ended with"), "{err}");
    // No such program, in the words of the shell there.
    let err = refused(&["launch.program=/no/such/weir"], &hosts);
    assert!(
        err.contains("/no/such/weir") && err.contains(cluster.name()),
        "{err}"
    );
    // One that hangs.
    let stuck = cluster.dir().join("shared/stuck");
    let script = format!(
        "#!/bin/sh\nhost=$1\n[ $host = {} ] && exec sleep 1000\nexec ssh \"$@\"\n",
        bad.host()
    );
    std::fs::write(&stuck, script).unwrap();
    make_executable(&stuck);
    let ssh = format!("launch.ssh={}", stuck.display());
    let err = refused(&[&ssh, "launch.deadline_s=2"], &hosts);
    assert!(
        err.contains(&format!("{}: not ready after 2 s", bad.host())),
        "{err}"
    );
    // One on which something stands in the way.
    let status = bad
        .command("touch")
        .arg("/tmp/weir-0.tmp")
        .status()
        .unwrap();
    assert!(status.success());
    let plant = "rm -rf /tmp/weir-0; touch /tmp/weir-0";
    assert!(bad
        .command("sh")
        .args(["-c", plant])
        .status()
        .unwrap()
        .success());
    let err = refused(&[], &hosts);
    assert!(
        err.contains(bad.host()) && err.contains("/tmp/weir-0"),
        "{err}"
    );
}

fn make_executable(path: &Path) {
    use std::os::unix::fs::PermissionsExt;
    let mode = std::fs::Permissions::from_mode(0o755);
    std::fs::set_permissions(path, mode).unwrap();
}

#[test]
fn the_others_go_on_when_a_node_is_lost() {
    let Some(mut cluster) = cluster("a lost node", 3) else {
        return;
    };
    let hosts = cluster.host_list();
    // A node without power closes no connection: ssh has to ask.
    let ssh = "launch.ssh=ssh -x -T -o ServerAliveInterval=1 -o ServerAliveCountMax=2";
    let start = ["start", "job", "--hosts", &hosts, "--set", ssh];
    weir(cluster.node(0), &start).ok();
    let lost = cluster.node(2).host().to_owned();
    cluster.lose(2).unwrap();
    weir(cluster.node(1), &["run", "-i", "job", "true"]).ok();
    let status = weir(cluster.node(1), &["status", "job"]).ok();
    let line = status.lines().find(|line| line.contains(&lost));
    let line = line.expect("a line for the lost node");
    assert!(
        line.contains("it was lost") || line.contains("no answer"),
        "{status}"
    );
    weir(cluster.node(0), &["stop", "job"])
        .ended(1)
        .complains(&format!("server 2 on {lost}"));
    assert_gone(&cluster);
}
