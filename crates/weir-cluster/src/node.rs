//! One node: its first process, and commands in it.

use std::ffi::OsStr;
use std::io::{BufRead, BufReader, Write};
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use anyhow::{bail, Context, Result};
use nix::unistd::Pid;

use crate::directory::ClusterDirectory;
use crate::processes::{kill_recorded, record, recorded};

/// A node of a cluster.
#[derive(Clone, Debug)]
pub struct Node {
    dir: PathBuf,
    host: String,
    address: Ipv4Addr,
}

impl Node {
    pub(crate) fn new(directory: &ClusterDirectory, index: usize) -> Self {
        let last = u8::try_from(index + 1).expect("at most NODES_MOST");
        Self {
            dir: directory.node_dir(index),
            host: format!("{}-{index}", directory.name()),
            address: Ipv4Addr::new(10, 77, 0, last),
        }
    }

    /// Its host name.
    pub fn host(&self) -> &str {
        &self.host
    }

    /// Its address on the cluster's network.
    pub fn address(&self) -> Ipv4Addr {
        self.address
    }

    /// The machine's path of the node's directory, in which `tmp` is the node's `/tmp`.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// A directory on disk for the node's own storage; every node sees it, because its path is unique.
    pub fn storage(&self) -> PathBuf {
        self.dir.join("storage")
    }

    /// The machine's number of its first process, if that lives.
    pub fn pid(&self) -> Option<u32> {
        let pid = recorded(&self.dir.join("pid"))?;
        u32::try_from(pid.as_raw()).ok()
    }

    /// A command in the node. It is killed together with the nsenter that stands for it outside; its
    /// descendants are not. Variables that name directories of the machine are removed, except `HOME`.
    pub fn command(&self, program: impl AsRef<OsStr>) -> Command {
        // Without a first process nsenter reports that; no process has the number 0.
        let pid = self.pid().unwrap_or(0).to_string();
        let mut command = Command::new("nsenter");
        command
            .args(["-t", &pid, "-m", "-u", "-i", "-n", "-p", "--"])
            .args(["setpriv", "--pdeathsig", "KILL", "--"])
            .arg(program)
            .env_remove("TMPDIR")
            .env_remove("XDG_RUNTIME_DIR")
            .current_dir("/");
        command
    }

    pub(crate) fn kill(&self) -> Result<()> {
        kill_recorded(&self.dir.join("pid"))
    }
}

/// The first process of a node or of the switch, seen from its maker.
#[derive(Debug)]
pub struct Init {
    /// unshare(1), whose child it is.
    unshare: Child,
    pid_file: PathBuf,
    lifeline: Option<ChildStdin>,
    says: BufReader<ChildStdout>,
    log: PathBuf,
}

/// Starts the first process of `node`, or of the switch.
pub fn start_init(cluster: &Path, node: Option<&Node>) -> Result<Init> {
    let mut command = Command::new("unshare");
    command.args(["--net", "--pid", "--fork", "--kill-child", "--mount-proc"]);
    let dir = node.map_or_else(|| cluster.join("switch"), |node| node.dir.clone());
    if node.is_some() {
        command.args(["--uts", "--ipc"]);
    }
    command
        .arg("bash")
        .arg(cluster.join("init.sh"))
        .arg(cluster);
    if let Some(node) = node {
        // The directory of the programs to run may lie below /tmp, which each node has of its own.
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let source = source.canonicalize().unwrap_or(source);
        command.arg(&node.dir).arg(&node.host).arg(source);
    }
    std::fs::create_dir_all(&dir)?;
    let log = dir.join("init.log");
    let mut unshare = command
        .current_dir("/")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(std::fs::File::create(&log)?)
        .spawn()
        .context("unshare")?;
    let lifeline = unshare.stdin.take();
    let says = BufReader::new(unshare.stdout.take().expect("piped"));
    Ok(Init {
        unshare,
        pid_file: dir.join("pid"),
        lifeline,
        says,
        log,
    })
}

impl Init {
    /// Waits for the node's report that it is ready, and records its first process.
    pub fn wait_until_ready(&mut self) -> Result<()> {
        let mut line = String::new();
        self.says.read_line(&mut line)?;
        if line != "ready\n" {
            let why = std::fs::read_to_string(&self.log).unwrap_or_default();
            bail!("a node did not come up: {}", why.trim());
        }
        record(&self.pid_file, self.pid()?)
    }

    /// The only child of unshare(1).
    fn pid(&self) -> Result<Pid> {
        let parent = self.unshare.id();
        let path = format!("/proc/{parent}/task/{parent}/children");
        let children = std::fs::read_to_string(&path).context(path)?;
        let child = children.split_whitespace().next();
        let child = child.context("a first process died at once")?;
        Ok(Pid::from_raw(child.parse()?))
    }

    /// The number by which nsenter(1) and ip(8) know its namespaces.
    pub fn number(&self) -> Result<String> {
        let pid = recorded(&self.pid_file).context("a node is gone")?;
        Ok(pid.to_string())
    }

    /// Lets it live on after this process.
    pub fn leave(&mut self) -> Result<()> {
        if let Some(mut lifeline) = self.lifeline.take() {
            writeln!(lifeline, "stay").context("leaving a node")?;
        }
        Ok(())
    }

    /// Waits for the end of a process that was killed.
    pub fn reap(&mut self) -> Result<()> {
        self.lifeline = None;
        self.unshare.wait().context("waiting for a node's end")?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_without_a_first_process_takes_no_command() {
        let node = Node {
            dir: "/nonexistent".into(),
            host: "none".into(),
            address: Ipv4Addr::LOCALHOST,
        };
        assert_eq!(node.pid(), None);
        let output = node.command("true").output();
        // If nsenter is missing it cannot be started, which passes as well.
        assert!(output.map_or(true, |output| !output.status.success()));
    }
}
