//! `cargo xtask cluster`: a test cluster for hands (see the crate `weir-cluster`).

use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::process::ExitCode;

use anyhow::{bail, ensure, Context, Result};
use clap::{Args, Subcommand};
use weir_cluster::slurm::{self, Slurm};
use weir_cluster::{Cluster, Spec};

/// What `cargo xtask cluster` understands.
#[derive(Subcommand, Debug)]
pub enum Chore {
    /// Makes a cluster of network namespaces, as root.
    Up {
        /// How many nodes.
        nodes: usize,
        /// What each node's link lets through, such as 10gbit.
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
        which: Which,
    },
    /// Runs a command on a node.
    Exec {
        /// Which cluster.
        #[command(flatten)]
        which: Which,
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
        which: Which,
    },
}

/// Which cluster is meant.
#[derive(Args, Debug)]
pub struct Which {
    /// The cluster's name; need not be given where one is up.
    #[arg(long)]
    name: Option<String>,
}

impl Which {
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
pub fn run(chore: Chore) -> Result<ExitCode> {
    match chore {
        Chore::Up {
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
            show(&cluster);
            if slurm {
                let missing = slurm::missing();
                ensure!(missing.is_empty(), "missing: {}", missing.join(", "));
                let slurm = Slurm::up(&cluster)?;
                println!("  SLURM_CONF={}", slurm.config().display());
            }
            cluster.leave()?;
        }
        Chore::Exec {
            which,
            index,
            command,
        } => return exec(&which, index, &command),
        Chore::Status => status(),
        Chore::Down { which } => down(&which)?,
    }
    Ok(ExitCode::SUCCESS)
}

fn exec(which: &Which, index: usize, command: &[OsString]) -> Result<ExitCode> {
    let cluster = which.cluster()?;
    let node = cluster.nodes().get(index).context("no such node")?;
    let (program, arguments) = command.split_first().context("no command")?;
    Err(node.command(program).args(arguments).exec()).context("nsenter")
}

fn status() {
    for name in Cluster::living() {
        match Cluster::open(&name) {
            Ok(cluster) => show(&cluster),
            Err(e) => println!("{name}: {e:#}"),
        }
    }
}

fn show(cluster: &Cluster) {
    println!("cluster {} in {}", cluster.name(), cluster.dir().display());
    for (i, node) in cluster.nodes().iter().enumerate() {
        let state = node
            .pid()
            .map_or("lost".to_owned(), |pid| format!("process {pid}"));
        println!("  {i}  {}  {}  {state}", node.host(), node.address());
    }
}

fn down(which: &Which) -> Result<()> {
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
        chore: Chore,
    }

    #[test]
    fn options_and_the_command_are_told_apart() {
        let words = ["x", "exec", "--name", "c1", "2", "--", "ls", "--name", "x"];
        let words = Words::try_parse_from(words).unwrap();
        let Chore::Exec {
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
