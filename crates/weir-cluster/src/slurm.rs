//! Slurm on a cluster: slurmctld on the first node, slurmd and munged on each, as separate processes in
//! the cluster's directory. They end with their nodes.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{ensure, Context, Result};

use crate::{find_program, Cluster, Node};

/// The time limit for the nodes to become idle.
const START: Duration = Duration::from_secs(60);

/// A Slurm that serves a cluster.
#[derive(Debug)]
pub struct Slurm<'c> {
    cluster: &'c Cluster,
    config: PathBuf,
}

/// The things that the machine lacks to run Slurm, a line each.
pub fn missing() -> Vec<String> {
    let programs = [
        ("slurmctld", "slurmctld"),
        ("slurmd", "slurmd"),
        ("sbatch", "slurm-client"),
        ("munged", "munge"),
    ];
    let absent = programs
        .iter()
        .filter(|(program, _)| find_program(program).is_none());
    absent
        .map(|(program, package)| format!("{program} (apt-get install {package})"))
        .collect()
}

impl<'c> Slurm<'c> {
    /// Starts the daemons and waits until all nodes are idle.
    pub fn up(cluster: &'c Cluster) -> Result<Self> {
        let dir = cluster.dir().join("slurm");
        std::fs::create_dir_all(dir.join("state"))?;
        let config = dir.join("slurm.conf");
        let slurm = Self { cluster, config };
        std::fs::write(&slurm.config, slurm.text())?;
        let key = dir.join("munge.key");
        std::fs::write(&key, format!("{:-<64}", cluster.name()))?;
        std::fs::set_permissions(&key, std::fs::Permissions::from_mode(0o600))?;
        for node in cluster.nodes() {
            slurm.start_munge(node)?;
        }
        slurm.start_daemon(cluster.node(0), "slurmctld")?;
        for node in cluster.nodes() {
            slurm.start_daemon(node, "slurmd")?;
        }
        slurm.wait_until_idle()?;
        Ok(slurm)
    }

    /// The value of SLURM_CONF.
    pub fn config(&self) -> &Path {
        &self.config
    }

    fn text(&self) -> String {
        let dir = self.cluster.dir().join("slurm");
        let (dir, name) = (dir.display(), self.cluster.name());
        let last = self.cluster.nodes().len() - 1;
        format!(
            "ClusterName={name}\nSlurmctldHost={name}-0\nAuthType=auth/munge\nSlurmUser=root\n\
             SlurmdUser=root\nStateSaveLocation={dir}/state\nSlurmdSpoolDir={dir}/spool-%n\n\
             SlurmctldPidFile={dir}/slurmctld.pid\nSlurmdPidFile={dir}/slurmd-%n.pid\n\
             SlurmctldLogFile={dir}/slurmctld.log\nSlurmdLogFile={dir}/slurmd-%n.log\n\
             ProctrackType=proctrack/linuxproc\nTaskPlugin=task/none\nMpiDefault=none\n\
             ReturnToService=2\nSelectType=select/cons_tres\nSelectTypeParameters=CR_CPU\n\
             JobAcctGatherType=jobacct_gather/none\n\
             AccountingStorageType=accounting_storage/none\nKillWait=5\n\
             NodeName={name}-[0-{last}] CPUs=1 State=UNKNOWN\n\
             PartitionName=all Nodes=ALL Default=YES State=UP MaxTime=INFINITE\n"
        )
    }

    fn start_munge(&self, node: &Node) -> Result<()> {
        let dir = self.cluster.dir().join("slurm");
        let (dir, host) = (dir.display(), node.host());
        // munged runs as root, in a directory of root's, and must be told that this is intended.
        let script = format!(
            "mkdir -p /run/munge && chmod 755 /run/munge && munged --force \
             --key-file {dir}/munge.key --log-file {dir}/munge-{host}.log \
             --socket /run/munge/munge.socket.2 --pid-file /run/munge/pid \
             --seed-file /run/munge/seed"
        );
        run(node.command("sh").args(["-c", &script]))
    }

    fn start_daemon(&self, node: &Node, program: &str) -> Result<()> {
        let program = find_program(program).with_context(|| program.to_owned())?;
        run(node.command(program).arg("-f").arg(&self.config))
    }

    fn wait_until_idle(&self) -> Result<()> {
        let start = Instant::now();
        let nodes = self.cluster.nodes().len().to_string();
        loop {
            let asked = self
                .command(self.cluster.node(0), "sinfo")
                .args(["--noheader", "--states=idle", "--format=%D"])
                .output()?;
            if String::from_utf8_lossy(&asked.stdout).trim() == nodes {
                return Ok(());
            }
            ensure!(
                start.elapsed() < START,
                "Slurm's nodes are not idle: {asked:?}"
            );
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// A command of Slurm on a node.
    pub fn command(&self, node: &Node, program: &str) -> Command {
        let mut command = node.command(program);
        command.env("SLURM_CONF", &self.config);
        command
    }
}

fn run(command: &mut Command) -> Result<()> {
    let output = command.output().with_context(|| format!("{command:?}"))?;
    ensure!(output.status.success(), "{command:?}: {output:?}");
    Ok(())
}
