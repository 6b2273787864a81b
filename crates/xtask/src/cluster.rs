//! `cargo xtask cluster`: a test cluster for hands (see the crate `weir-cluster`).

use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::process::ExitCode;

use anyhow::{bail, ensure, Context, Result};
use clap::{Args, Subcommand};
use weir_cluster::slurm::{self, Slurm};
use weir_cluster::{Cluster, Spec};

/// The commands of `cargo xtask cluster`.
#[derive(Subcommand, Debug)]
pub enum ClusterChore {
    /// Makes a cluster of network namespaces, as root.
    Up {
        /// How many nodes.
        nodes: usize,
        /// The rate of each node's link, such as 10gbit.
        #[arg(long)]
        rate: Option<String>,
        /// With an sshd on each node.
        #[arg(long)]
        ssh: bool,
        /// With a Slurm of all nodes: its commands want the SLURM_CONF that is printed.
        #[arg(long)]
        slurm: bool,
        /// Which cluster.
        #[command(flatten)]
        which: ClusterName,
    },
    /// Runs a command on a node.
    Exec {
        /// Which cluster.
        #[command(flatten)]
        which: ClusterName,
        /// Of the node, from 0 on.
        index: usize,
        /// The command and its arguments.
        #[arg(last = true, required = true)]
        command: Vec<OsString>,
    },
    /// Shows the clusters that are up, and their nodes.
    Status,
    /// Removes a cluster, and what dead ones left.
    Down {
        /// Which cluster.
        #[command(flatten)]
        which: ClusterName,
    },
}

/// The cluster on which a command acts.
#[derive(Args, Debug)]
pub struct ClusterName {
    /// The cluster's name; need not be given where one is up.
    #[arg(long)]
    name: Option<String>,
}

impl ClusterName {
    /// The cluster of that name, or the only one.
    fn cluster(&self) -> Result<Cluster> {
        if let Some(name) = &self.name {
            return Cluster::open(name);
        }
        match &Cluster::living()[..] {
            [] => bail!("no cluster is up"),
            [name] => Cluster::open(name),
            names => bail!("say --name: {} are up", names.join(", ")),
        }
    }
}

/// Does it.
pub fn run(chore: ClusterChore) -> Result<ExitCode> {
    match chore {
        ClusterChore::Up {
            nodes,
            rate,
            ssh,
            slurm,
            which,
        } => {
            let name = which.name;
            let cluster = Cluster::up(&Spec {
                nodes,
                name,
                rate,
                ssh,
            })?;
            print_cluster(&cluster);
            if slurm {
                let missing = slurm::missing();
                ensure!(missing.is_empty(), "missing: {}", missing.join(", "));
                let slurm = Slurm::up(&cluster)?;
                println!("  SLURM_CONF={}", slurm.config().display());
            }
            cluster.leave()?;
        }
        ClusterChore::Exec {
            which,
            index,
            command,
        } => return exec(&which, index, &command),
        ClusterChore::Status => status(),
        ClusterChore::Down { which } => down(&which)?,
    }
    Ok(ExitCode::SUCCESS)
}

fn exec(which: &ClusterName, index: usize, command: &[OsString]) -> Result<ExitCode> {
    let cluster = which.cluster()?;
    let node = cluster.nodes().get(index).context("no such node")?;
    let (program, arguments) = command.split_first().context("no command")?;
    Err(node.command(program).args(arguments).exec()).context("nsenter")
}

fn status() {
    for name in Cluster::living() {
        match Cluster::open(&name) {
            Ok(cluster) => print_cluster(&cluster),
            Err(e) => println!("{name}: {e:#}"),
        }
    }
}

fn print_cluster(cluster: &Cluster) {
    println!("cluster {} in {}", cluster.name(), cluster.dir().display());
    for (i, node) in cluster.nodes().iter().enumerate() {
        let state = node
            .pid()
            .map_or("lost".to_owned(), |pid| format!("process {pid}"));
        println!("  {i}  {}  {}  {state}", node.host(), node.address());
    }
}

fn down(which: &ClusterName) -> Result<()> {
    for name in Cluster::sweep() {
        println!("cluster {name}: dead; cleared what it left");
    }
    if which.name.is_none() && Cluster::living().is_empty() {
        return Ok(());
    }
    which.cluster()?.down()
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Words {
        #[command(subcommand)]
        chore: ClusterChore,
    }

    #[test]
    fn options_and_the_command_are_told_apart() {
        let words = ["x", "exec", "--name", "c1", "2", "--", "ls", "--name", "x"];
        let words = Words::try_parse_from(words).unwrap();
        let ClusterChore::Exec {
            which,
            index,
            command,
        } = words.chore
        else {
            panic!("{:?}", words.chore);
        };
        assert_eq!((which.name.as_deref(), index), (Some("c1"), 2));
        assert_eq!(command, ["ls", "--name", "x"]);
        assert!(Words::try_parse_from(["x", "--frobnicate"]).is_err());
        assert!(Words::try_parse_from(["x", "exec", "2"]).is_err());
    }
}
