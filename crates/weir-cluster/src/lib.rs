//! Test clusters: a set of network namespaces on one machine, each of them a node with a host
//! name, address, process table, `/tmp`, `/dev/shm`, `/run` and `/etc/hosts` of its own.
//!
//! ```text
//!  switch: namespace with bridge br0 -- n0 -- veth -- eth0 10.77.0.1  node 0: NAME-0
//!                                    -- n1 -- veth -- eth0 10.77.0.2  node 1: NAME-1 ...
//! ```
//!
//! Invariants:
//! - nothing of a cluster is in the machine's own network namespace, so that two clusters
//!   cannot meet although their addresses are the same;
//! - a node's processes form a PID namespace. Killing its first process loses the node, because the
//!   kernel then kills them all; killing every first process removes all devices;
//! - the first process of a node ends when its standard input ends, which happens when the program
//!   that made the cluster ends in any way. Only [`Cluster::leave`] changes that;
//! - the directory of a cluster is locked as long as a first process lives; a directory that is not
//!   locked is a leftover, which the next cluster removes.
//!
//! Left out: user namespaces. All this needs root; [`missing`] lists the things that a machine lacks.

#![forbid(unsafe_code)]

mod directory;
pub mod guard;
pub mod leftovers;
mod net;
mod node;
mod processes;
pub mod skip;
pub mod slurm;
mod ssh;
pub mod threads;

use std::path::{Path, PathBuf};

use anyhow::{ensure, Context, Result};

use directory::ClusterDirectory;
pub use node::Node;
use node::{start_init, Init};
pub use skip::{skip, skip_for_kernel};

/// The parameters of a cluster.
#[derive(Clone, Debug, Default)]
pub struct Spec {
    /// The number of nodes, 1 to [`NODES_MOST`].
    pub nodes: usize,
    /// The name; the default is made of this process's id.
    pub name: Option<String>,
    /// The rate of each node's link, both ways, in tc(8)'s notation: `10gbit`.
    pub rate: Option<String>,
    /// True if a real sshd serves each node, with a key that every node has.
    pub ssh: bool,
}

impl Spec {
    /// Nodes with an sshd each, and nothing else of note.
    pub fn with_ssh(nodes: usize) -> Spec {
        Spec {
            nodes,
            ssh: true,
            ..Spec::default()
        }
    }
}

/// The maximum number of nodes of a cluster.
pub const NODES_MOST: usize = 250;

/// A cluster; dropping it removes it.
#[derive(Debug)]
pub struct Cluster {
    directory: ClusterDirectory,
    nodes: Vec<Node>,
    /// The first processes of the switch and of the nodes; none for a cluster that another process made.
    inits: Vec<Init>,
    /// The number of groups into which the network is cut.
    cuts: usize,
    /// True if dropping this leaves the cluster running.
    left: bool,
}

/// The things that this machine lacks for a cluster, a line each; empty if it lacks none.
pub fn missing(ssh: bool) -> Vec<String> {
    let mut lacks = Vec::new();
    if !nix::unistd::geteuid().is_root() {
        lacks.push("root's rights".to_owned());
    }
    let mut programs = vec![
        ("ip", "iproute2"),
        ("tc", "iproute2"),
        ("unshare", "util-linux"),
        ("nsenter", "util-linux"),
        ("setpriv", "util-linux"),
        ("bash", "bash"),
    ];
    if ssh {
        programs.extend([
            ("sshd", "openssh-server"),
            ("ssh", "openssh-client"),
            ("ssh-keygen", "openssh-client"),
        ]);
    }
    for (program, package) in programs {
        if find_program(program).is_none() {
            lacks.push(format!("{program} (apt-get install {package})"));
        }
    }
    if lacks.is_empty() {
        lacks.extend(net::refused());
    }
    lacks
}

/// Can a test that needs a cluster run here? If not, it is skipped or fails ([`mod@skip`]).
pub fn can_test(what: &str, ssh: bool) -> bool {
    can_test_with(what, &missing(ssh))
}

/// The same for a test that lacks `lacks`, which may include needs of its own.
pub fn can_test_with(what: &str, lacks: &[String]) -> bool {
    match lacks {
        [] => return true,
        [refused] if net::refused().as_ref() == Some(refused) => skip_for_kernel(what, refused),
        lacks => skip(what, &lacks.join("; ")),
    }
    false
}

/// A program in PATH or in the system's directories.
fn find_program(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path)
        .chain(["/usr/sbin".into(), "/sbin".into()])
        .map(|dir| dir.join(name))
        .find(|file| file.is_file())
}

/// The first `count` nodes of a cluster.
fn nodes_in(directory: &ClusterDirectory, count: usize) -> Vec<Node> {
    (0..count)
        .map(|index| Node::new(directory, index))
        .collect()
}

impl Cluster {
    /// Makes a cluster.
    pub fn up(spec: &Spec) -> Result<Self> {
        ensure!(
            (1..=NODES_MOST).contains(&spec.nodes),
            "a cluster has 1 to {NODES_MOST} nodes"
        );
        let lacks = missing(spec.ssh);
        ensure!(lacks.is_empty(), "this machine lacks {}", lacks.join("; "));
        let directory = ClusterDirectory::claim(spec.name.as_deref())?;
        let mut cluster = Self {
            nodes: nodes_in(&directory, spec.nodes),
            directory,
            inits: Vec::new(),
            cuts: 0,
            left: false,
        };
        cluster.make(spec)?;
        Ok(cluster)
    }

    fn make(&mut self, spec: &Spec) -> Result<()> {
        let dir = self.directory.dir();
        std::fs::write(dir.join("hosts"), self.hosts())?;
        std::fs::write(dir.join("init.sh"), include_str!("init.sh"))?;
        if spec.ssh {
            ssh::prepare(dir, &self.nodes)?;
        }
        let switch = start_init(dir, None)?;
        self.inits.push(switch);
        for node in &self.nodes {
            std::fs::create_dir_all(node.storage())?;
            std::fs::create_dir_all(node.dir().join("tmp"))?;
            self.inits.push(start_init(dir, Some(node))?);
        }
        for init in &mut self.inits {
            init.wait_until_ready()?;
        }
        let (switch, nodes) = self.inits.split_first().expect("the switch");
        net::connect(switch, nodes, spec.rate.as_deref())?;
        if spec.ssh {
            ssh::serve(dir, &self.nodes)?;
        }
        Ok(())
    }

    /// The lines that every node has as `/etc/hosts`.
    fn hosts(&self) -> String {
        let lines = self
            .nodes
            .iter()
            .map(|node| format!("{} {}\n", node.address(), node.host()));
        std::iter::once("127.0.0.1 localhost\n".to_owned())
            .chain(lines)
            .collect()
    }

    /// A cluster that was left ([`Cluster::leave`]); dropping it leaves it again.
    pub fn open(name: &str) -> Result<Self> {
        let directory = ClusterDirectory::existing(name)?;
        let nodes = nodes_in(&directory, directory.node_count()?);
        Ok(Self {
            directory,
            nodes,
            inits: Vec::new(),
            cuts: 0,
            left: true,
        })
    }

    /// The names of clusters that live on this machine.
    pub fn living() -> Vec<String> {
        directory::names(true)
    }

    /// Removes the leftovers of dead clusters; returns their names.
    pub fn sweep() -> Vec<String> {
        directory::sweep()
    }

    /// The name.
    pub fn name(&self) -> &str {
        self.directory.name()
    }

    /// A directory on disk that all nodes see under this path.
    pub fn dir(&self) -> &Path {
        self.directory.dir()
    }

    /// The nodes, by number.
    pub fn nodes(&self) -> &[Node] {
        &self.nodes
    }

    /// Node `index`, from 0.
    pub fn node(&self, index: usize) -> &Node {
        &self.nodes[index]
    }

    /// Host names with commas between, as `--hosts` takes them.
    pub fn host_list(&self) -> String {
        let names: Vec<&str> = self.nodes.iter().map(Node::host).collect();
        names.join(",")
    }

    /// Kills every process of node `index` at once, and with them its address, like a loss of power. Its
    /// files on disk stay.
    pub fn lose(&mut self, index: usize) -> Result<()> {
        self.nodes[index].kill()?;
        if let Some(init) = self.inits.get_mut(index + 1) {
            init.reap()?;
        }
        Ok(())
    }

    /// Cuts the network between groups of nodes, like a broken link between switches: packets from one
    /// group to another are dropped silently. Nodes in no group stay together. [`Cluster::heal`] undoes
    /// it.
    pub fn cut(&mut self, groups: &[&[usize]]) -> Result<()> {
        self.heal()?;
        self.cuts = groups.len();
        net::cut(&self.switch()?, groups)
    }

    /// Joins all nodes again.
    pub fn heal(&mut self) -> Result<()> {
        let groups = std::mem::take(&mut self.cuts);
        if groups == 0 {
            return Ok(());
        }
        net::heal(&self.switch()?, self.nodes.len(), groups)?;
        for pid in self.nodes.iter().filter_map(Node::pid) {
            net::forget_neighbours(&pid.to_string())?;
        }
        Ok(())
    }

    /// The switch's first process.
    fn switch(&self) -> Result<String> {
        let switch = self.inits.first().context("another process's cluster")?;
        switch.number()
    }

    /// Leaves the cluster running after this process, until a program calls [`down`](Self::down).
    pub fn leave(mut self) -> Result<()> {
        for init in &mut self.inits {
            init.leave()?;
        }
        self.left = true;
        Ok(())
    }

    /// Removes the cluster: processes, devices, directories.
    pub fn down(mut self) -> Result<()> {
        self.remove()
    }

    fn remove(&mut self) -> Result<()> {
        self.left = true;
        processes::kill_all(self.directory.dir()).context("ending the nodes")?;
        for init in &mut self.inits {
            init.reap()?;
        }
        self.directory.remove()
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        if !self.left {
            if let Err(e) = self.remove() {
                eprintln!("cluster {}: {e:#}", self.directory.name());
            }
        }
    }
}

/// The directory of all clusters' directories: `WEIR_CLUSTER_DIR`, else `/var/tmp/weir-clusters`. Not
/// below `/tmp` or `/run`, which each node has of its own.
pub fn base() -> PathBuf {
    std::env::var_os("WEIR_CLUSTER_DIR")
        .map_or_else(|| PathBuf::from("/var/tmp/weir-clusters"), PathBuf::from)
}
