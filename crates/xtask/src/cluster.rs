//! `cargo xtask cluster`: a test cluster for hands (see the crate `weir-cluster`).

use std::os::unix::process::CommandExt;
use std::process::ExitCode;

use anyhow::{bail, Context, Result};
use weir_cluster::{Cluster, Spec};

/// What `cargo xtask cluster` understands.
pub const USAGE: &str = "\
usage: cargo xtask cluster up N [--rate 10gbit] [--ssh] [--name NAME]
       cargo xtask cluster exec [--name NAME] I -- COMMAND...
       cargo xtask cluster status
       cargo xtask cluster down [--name NAME]
NAME need not be given where one cluster is up.";

/// Runs the words after `cluster`.
pub fn run(words: &[String]) -> Result<ExitCode> {
    let mut words = Words::of(words)?;
    let verb = words.next().context(USAGE)?;
    match verb.as_str() {
        "up" => up(words)?,
        "exec" => return exec(words),
        "status" => status(),
        "down" => down(&words)?,
        other => bail!("cluster {other} is not known\n{USAGE}"),
    }
    Ok(ExitCode::SUCCESS)
}

/// The words: options taken out, a command after `--` apart.
#[derive(Debug, Default)]
struct Words {
    plain: std::collections::VecDeque<String>,
    name: Option<String>,
    rate: Option<String>,
    ssh: bool,
    command: Vec<String>,
}

impl Words {
    fn of(words: &[String]) -> Result<Self> {
        let mut found = Self::default();
        let mut words = words.iter().cloned();
        while let Some(word) = words.next() {
            let mut value = || {
                words
                    .next()
                    .with_context(|| format!("{word} needs a value"))
            };
            match word.as_str() {
                "--" => found.command = words.by_ref().collect(),
                "--name" => found.name = Some(value()?),
                "--rate" => found.rate = Some(value()?),
                "--ssh" => found.ssh = true,
                option if option.starts_with('-') => bail!("{option} is not known\n{USAGE}"),
                _ => found.plain.push_back(word),
            }
        }
        Ok(found)
    }

    fn next(&mut self) -> Option<String> {
        self.plain.pop_front()
    }

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

fn up(mut words: Words) -> Result<()> {
    let nodes = words.next().context(USAGE)?;
    let cluster = Cluster::up(&Spec {
        nodes: nodes.parse().with_context(|| format!("{nodes} nodes"))?,
        name: words.name,
        rate: words.rate,
        ssh: words.ssh,
    })?;
    show(&cluster);
    cluster.leave()
}

fn exec(mut words: Words) -> Result<ExitCode> {
    let index: usize = words.next().context(USAGE)?.parse().context(USAGE)?;
    let cluster = words.cluster()?;
    let node = cluster.nodes().get(index).context("no such node")?;
    let (program, arguments) = words.command.split_first().context(USAGE)?;
    let mut command = node.command(program);
    Err(command.args(arguments).exec()).context("nsenter")
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

fn down(words: &Words) -> Result<()> {
    for name in Cluster::sweep() {
        println!("cluster {name}: dead; cleared what it left");
    }
    if words.name.is_none() && Cluster::living().is_empty() {
        return Ok(());
    }
    words.cluster()?.down()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_and_the_command_are_told_apart() {
        let words = ["exec", "--name", "c1", "2", "--", "ls", "--name", "x"];
        let words: Vec<String> = words.iter().map(|&word| word.to_owned()).collect();
        let mut words = Words::of(&words).unwrap();
        assert_eq!(words.next().unwrap(), "exec");
        assert_eq!(words.next().unwrap(), "2");
        assert_eq!(words.name.as_deref(), Some("c1"));
        assert_eq!(words.command, ["ls", "--name", "x"]);
        assert!(Words::of(&["--frobnicate".to_owned()]).is_err());
    }
}
