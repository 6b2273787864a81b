//! The network: the bridge in the switch, and a veth pair to each node.
//!
//! ip(8) and tc(8) do all of it in batches inside the namespaces, one process each, so that a cluster of
//! many nodes is up at once.

use std::fmt::Write as _;
use std::io::Write as _;
use std::process::{Command, Stdio};

use anyhow::{ensure, Context, Result};

use crate::node::Init;

/// Connects the nodes, with addresses from 10.77.0.1 on, at `rate` (tc(8)).
pub fn connect(switch: &Init, nodes: &[Init], rate: Option<&str>) -> Result<()> {
    let mut lines = String::from("link set lo up\nlink add br0 type bridge\nlink set br0 up\n");
    for (i, node) in nodes.iter().enumerate() {
        let pid = node.number()?;
        writeln!(lines, "link add n{i} type veth peer name eth0 netns {pid}")?;
        writeln!(lines, "link set n{i} master br0 up")?;
    }
    batch("ip", &switch.number()?, &lines)?;
    for (i, node) in nodes.iter().enumerate() {
        let address = format!("10.77.0.{}/24", i + 1);
        let lines = format!("link set lo up\naddress add {address} dev eth0\nlink set eth0 up\n");
        batch("ip", &node.number()?, &lines)?;
    }
    if let Some(rate) = rate {
        let ports: Vec<String> = (0..nodes.len())
            .map(|i| limit(&format!("n{i}"), rate))
            .collect();
        batch("tc", &switch.number()?, &ports.concat())?;
        for node in nodes {
            batch("tc", &node.number()?, &limit("eth0", rate))?;
        }
    }
    Ok(())
}

/// Lines for tc(8) that limit the traffic that leaves `device` to `rate`.
fn limit(device: &str, rate: &str) -> String {
    format!(
        "qdisc add dev {device} root handle 1: htb default 1\n\
         class add dev {device} parent 1: classid 1:1 htb rate {rate} burst 256k cburst 256k quantum 60000\n"
    )
}

/// Moves each group of nodes to a new bridge of its own; `switch` is the number of the switch's first
/// process. Packets for other groups are dropped silently.
pub fn cut(switch: &str, groups: &[&[usize]]) -> Result<()> {
    let mut lines = String::new();
    for (group, nodes) in groups.iter().enumerate() {
        let bridge = format!("cut{group}");
        writeln!(lines, "link add {bridge} type bridge\nlink set {bridge} up")?;
        for node in *nodes {
            writeln!(lines, "link set n{node} master {bridge}")?;
        }
    }
    batch("ip", switch, &lines)
}

/// Joins `nodes` nodes again after [`cut`] made `groups` groups.
pub fn heal(switch: &str, nodes: usize, groups: usize) -> Result<()> {
    let mut lines = String::new();
    for node in 0..nodes {
        writeln!(lines, "link set n{node} master br0")?;
    }
    for group in 0..groups {
        writeln!(lines, "link del cut{group}")?;
    }
    batch("ip", switch, &lines)
}

/// Forgets what the node of the process `pid` knows of its neighbours: of one that it has looked for in vain it
/// asks once a second only, and so would not reach it at once when the network is whole again.
pub fn forget_neighbours(pid: &str) -> Result<()> {
    batch("ip", pid, "neigh flush all\n")
}

/// Runs a batch of ip(8) or tc(8) in the network namespace of the process `pid`.
fn batch(program: &str, pid: &str, lines: &str) -> Result<()> {
    let mut child = Command::new("nsenter")
        .args(["-t", pid, "-n", "--", program, "-batch", "-"])
        .stdin(Stdio::piped())
        .spawn()
        .context("nsenter")?;
    let mut stdin = child.stdin.take().expect("piped");
    let written = stdin.write_all(lines.as_bytes());
    drop(stdin);
    let status = child.wait()?;
    ensure!(status.success(), "{program} failed ({status}):\n{lines}");
    written.context(program.to_owned())
}

/// The operation that the kernel refuses, found by trying: root in a container may lack the
/// capabilities.
pub fn refused() -> Option<String> {
    let script = "ip link add br0 type bridge && ip link add veth0 type veth peer name veth1";
    let tried = Command::new("unshare")
        .args([
            "--net", "--mount", "--pid", "--fork", "--uts", "sh", "-c", script,
        ])
        .stdin(Stdio::null())
        .output();
    match tried {
        Ok(output) if output.status.success() => None,
        Ok(output) => Some(format!(
            "the right to make namespaces, bridges or veth pairs: {}",
            String::from_utf8_lossy(&output.stderr).trim()
        )),
        Err(e) => Some(format!("unshare: {e}")),
    }
}
