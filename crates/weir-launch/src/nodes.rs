//! Which nodes an instance is to have, and what starts programs there.
//!
//! | | the nodes | what starts |
//! | --- | --- | --- |
//! | Slurm | `SLURM_JOB_NODELIST`, expanded by `scontrol show hostnames` | `srun`, one for all |
//! | Flux | `flux getattr hostlist` | `flux exec`, one for all |
//! | PBS | the file `PBS_NODEFILE` | `pbsdsh`, one a node |
//! | LSF | the file `LSB_DJOB_HOSTFILE`, or `LSB_HOSTS` | `blaunch`, one a node |
//! | else | `--hosts`, `--hostfile` | ssh |
//!
//! `--hosts` and `--hostfile` choose within a job, too. Without a job and without options it is
//! this node alone.

use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{bail, ensure, Context, Result};
use weir_config::settings::Launch;
use weir_config::{Environment, Method};

use crate::address::is_here;
use crate::hosted_server::{own_name, HostedServer, OwnServers};
use crate::hosts;
use crate::random::random;
use crate::reach::StartMethod;

/// The most servers on one machine.
const SERVERS_MOST: u16 = 256;

/// The options about nodes.
#[derive(Clone, Debug, Default)]
pub struct NodeOptions<'a> {
    /// `--hosts`.
    pub hosts: Option<&'a str>,
    /// `--hostfile`.
    pub hostfile: Option<&'a Path>,
    /// `--servers`: several on this machine.
    pub servers: Option<u16>,
    /// `--movers`: nodes on which no program runs.
    pub movers: Option<&'a str>,
}

/// The servers of an instance of several.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodePlan {
    /// This node's own servers first.
    pub servers: Vec<HostedServer>,
    /// The ones among them that are this node's.
    pub own: OwnServers,
    /// The commands that start agents on the other nodes.
    pub reach: StartMethod,
}

/// Finds the nodes; `None` for this node alone.
pub fn find(
    wanted: &NodeOptions<'_>,
    launch: &Launch,
    env: &Environment,
) -> Result<Option<NodePlan>> {
    if let Some(servers) = wanted.servers {
        return on_this_machine(servers);
    }
    let method = method(launch, env)?;
    let movers = wanted.movers.map(hosts::expand).transpose();
    let movers = movers.context("--movers")?.unwrap_or_default();
    let mut hosts = match (wanted.hosts, wanted.hostfile) {
        (Some(list), _) => hosts::expand(list).context("--hosts")?,
        (None, Some(file)) => {
            let text = std::fs::read_to_string(file).with_context(|| file.display().to_string())?;
            hosts::of_file(&text).with_context(|| file.display().to_string())?
        }
        (None, None) => match hosts_of_job(method, env)? {
            Some(hosts) => hosts,
            None if movers.is_empty() => return Ok(None),
            None => vec![own_name()],
        },
    };
    hosts.extend(movers.iter().cloned());
    let mut servers = rank_hosts(hosts::once(hosts)?, env)?;
    for server in &mut servers {
        server.is_mover = movers.contains(&server.host);
    }
    ensure!(
        !servers.iter().all(|server| server.is_mover),
        "--movers: no node of the instance is left for programs"
    );
    if servers.len() == 1 {
        return Ok(None);
    }
    Ok(Some(NodePlan {
        reach: reach(method, &servers, launch, env)?,
        own: OwnServers::First,
        servers,
    }))
}

/// Plans how to reach the nodes of `servers` again, of which this node's own is the first. With `one_each` no command starts the agents
/// of several nodes, so that a node that cannot be reached does not keep the others.
pub fn plan_again(
    servers: Vec<HostedServer>,
    launch: &Launch,
    env: &Environment,
    one_each: bool,
) -> Result<NodePlan> {
    let mut plan = NodePlan {
        reach: StartMethod::Nowhere,
        own: OwnServers::First,
        servers,
    };
    if plan.servers.len() < 2 {
        return Ok(plan);
    }
    let method = method(launch, env)?;
    plan.reach = reach(method, &plan.servers, launch, env)?;
    if one_each && matches!(plan.reach, StartMethod::All { .. }) {
        let others = plan.servers[1..].iter();
        let commands = others.map(|server| {
            match reach(
                method,
                &[plan.servers[0].clone(), server.clone()],
                launch,
                env,
            )? {
                StartMethod::All { command, .. } => Ok(command),
                other => bail!("{other:?} is no command for several nodes"),
            }
        });
        plan.reach = StartMethod::Each {
            commands: commands.collect::<Result<_>>()?,
        };
    }
    Ok(plan)
}

fn on_this_machine(servers: u16) -> Result<Option<NodePlan>> {
    ensure!(
        (1..=SERVERS_MOST).contains(&servers),
        "--servers: 1 to {SERVERS_MOST}"
    );
    let server = |rank| HostedServer::new(rank, "localhost".to_owned());
    Ok((servers > 1).then(|| NodePlan {
        servers: (0..servers).map(server).collect(),
        own: OwnServers::All,
        reach: StartMethod::Nowhere,
    }))
}

/// The method of the settings, else the batch system whose job this is, else ssh.
fn method(launch: &Launch, env: &Environment) -> Result<Method> {
    let set = |name| env.get(name).is_some();
    let method = match launch.method {
        Method::Auto if set("SLURM_JOB_NODELIST") => Method::Slurm,
        // A task of a job has FLUX_JOB_ID; the script of an instance of one's own does not.
        Method::Auto if set("FLUX_URI") && !set("FLUX_JOB_ID") => Method::Flux,
        Method::Auto if set("PBS_NODEFILE") => Method::Pbs,
        Method::Auto if set("LSB_DJOB_HOSTFILE") || set("LSB_HOSTS") => Method::Lsf,
        Method::Auto => Method::Ssh,
        chosen => chosen,
    };
    let needed = match method {
        Method::Slurm => "SLURM_JOB_NODELIST",
        Method::Flux => "FLUX_URI",
        _ => return Ok(method),
    };
    ensure!(
        set(needed),
        "launch.method = {}: {needed} is not set",
        method.word()
    );
    Ok(method)
}

/// The nodes of the job; `None` where there is no job, or this is one task of many, each of
/// which would start all.
fn hosts_of_job(method: Method, env: &Environment) -> Result<Option<Vec<String>>> {
    let variable = |name| env.get(name).with_context(|| format!("{name} is not set"));
    let hosts = match method {
        Method::Slurm => {
            let tasks = env.get("SLURM_STEP_NUM_TASKS").unwrap_or("1");
            if tasks != "1" {
                return Ok(None);
            }
            let list = variable("SLURM_JOB_NODELIST")?;
            match said(&["scontrol", "show", "hostnames", list]) {
                Ok(lines) => lines.lines().map(str::to_owned).collect(),
                Err(_) => hosts::expand(list)?,
            }
        }
        Method::Flux => hosts::expand(said(&["flux", "getattr", "hostlist"])?.trim())?,
        Method::Pbs => {
            let file = variable("PBS_NODEFILE")?;
            let text = std::fs::read_to_string(file).with_context(|| file.to_owned())?;
            hosts::of_file(&text)?
        }
        Method::Lsf => lsf_hosts(env)?,
        Method::Auto | Method::Ssh => return Ok(None),
    };
    hosts::once(hosts).map(Some)
}

fn lsf_hosts(env: &Environment) -> Result<Vec<String>> {
    if let Some(file) = env.get("LSB_DJOB_HOSTFILE") {
        let text = std::fs::read_to_string(file).with_context(|| file.to_owned())?;
        return hosts::of_file(&text);
    }
    let hosts = env.get("LSB_HOSTS").context("LSB_HOSTS is not set")?;
    Ok(hosts.split_whitespace().map(str::to_owned).collect())
}

/// Gives ranks in the order of the hosts, and puts this node's server first.
fn rank_hosts(hosts: Vec<String>, env: &Environment) -> Result<Vec<HostedServer>> {
    let slurm = env.get("SLURMD_NODENAME");
    let here = |server: &HostedServer| match slurm {
        Some(name) if server.host == name => true,
        _ => is_here(&server.host).unwrap_or(false),
    };
    let server = |(rank, host)| HostedServer::new(rank, host);
    let mut servers: Vec<HostedServer> = (0..).zip(hosts).map(server).collect();
    let Some(at) = servers.iter().position(here) else {
        bail!(
            "this node, {}, is not among the nodes of the instance ({}, ...): start it from one \
             of them",
            nix::unistd::gethostname().unwrap_or_default().display(),
            servers[0].host
        );
    };
    servers[..=at].rotate_right(1);
    Ok(servers)
}

/// How the others are reached.
fn reach(
    method: Method,
    servers: &[HostedServer],
    launch: &Launch,
    env: &Environment,
) -> Result<StartMethod> {
    let program = match &launch.program {
        Some(program) => program.clone(),
        None => std::env::current_exe().context("finding the weir program")?,
    };
    let program = program.to_str().context("the path of weir is not UTF-8")?;
    let others: Vec<&str> = servers[1..]
        .iter()
        .map(|server| server.host.as_str())
        .collect();
    Ok(match method {
        Method::Slurm => StartMethod::All {
            command: srun(&others, program),
            alive: env.get("SLURM_JOB_ID").map_or_else(Vec::new, |id| {
                let job = format!("--jobs={id}");
                words(&["squeue", "--noheader", "--states=RUNNING", &job])
            }),
        },
        Method::Flux => StartMethod::All {
            command: flux_exec(&others, program)?,
            alive: Vec::new(),
        },
        Method::Lsf => StartMethod::Each {
            commands: others
                .iter()
                .map(|host| words(&["blaunch", host, program, "agent"]))
                .collect(),
        },
        Method::Pbs => pbsdsh(&others, program, env)?,
        Method::Ssh | Method::Auto => StartMethod::Shell {
            words: launch.ssh.0.clone(),
            program: program.to_owned(),
            fanout: launch.fanout,
        },
    })
}

/// One step over the other nodes that shares all with the job's own steps, outlives a node that
/// fails, and gives its standard input to every task.
fn srun(others: &[&str], program: &str) -> Vec<String> {
    let n = others.len();
    let mut command = words(&["srun"]);
    command.extend([
        format!("--nodes={n}"),
        format!("--ntasks={n}"),
        "--ntasks-per-node=1".into(),
        format!("--nodelist={}", others.join(",")),
    ]);
    command.extend(words(&[
        "--overlap",
        "--cpu-bind=none",
        "--mpi=none",
        "--no-kill",
        "--kill-on-bad-exit=0",
        "--wait=0",
        "--input=all",
        "--export=ALL",
        "--job-name=weir",
        program,
        "agent",
    ]));
    command
}

fn flux_exec(others: &[&str], program: &str) -> Result<Vec<String>> {
    let list = said(&["flux", "getattr", "hostlist"])?;
    // A broker's rank is its place in the list, in which a host may stand more than once.
    let brokers = hosts::expand_all(list.trim())?;
    let rank = |host: &&str| {
        let at = brokers.iter().position(|broker| broker == host);
        at.map(|at| at.to_string())
            .with_context(|| format!("{host} is not in this Flux instance"))
    };
    let ranks: Result<Vec<String>> = others.iter().map(rank).collect();
    let ranks = ranks?.join(",");
    Ok(words(&["flux", "exec", "-r", &ranks, program, "agent"]))
}

/// pbsdsh counts nodes as the file lists them, a line a slot. The invitation lies in the home
/// directory, which the nodes of a cluster share.
fn pbsdsh(others: &[&str], program: &str, env: &Environment) -> Result<StartMethod> {
    let file = env.get("PBS_NODEFILE").context("PBS_NODEFILE is not set")?;
    let text = std::fs::read_to_string(file).with_context(|| file.to_owned())?;
    let slots: Vec<&str> = text.split_whitespace().collect();
    let home = env.get("HOME").context("HOME is not set")?;
    let number = u64::from_le_bytes(random()?);
    let invitation = format!("{home}/.weir-join-{number:016x}");
    let command = |host: &&str| {
        let at = slots.iter().position(|slot| slot == host);
        let at = at
            .with_context(|| format!("{host} is not in {file}"))?
            .to_string();
        let join = ["agent", "--join", &invitation];
        let start = ["pbsdsh", "-n", &at, "--", program];
        Ok(words(&[&start[..], &join[..]].concat()))
    };
    Ok(StartMethod::Join {
        commands: others.iter().map(command).collect::<Result<_>>()?,
        file: invitation.clone(),
    })
}

fn words(words: &[&str]) -> Vec<String> {
    words.iter().map(|&word| word.to_owned()).collect()
}

/// Runs a command of the batch system, and gives the lines that it prints.
fn said(command: &[&str]) -> Result<String> {
    let shown = command.join(" ");
    let output = Command::new(command[0])
        .args(&command[1..])
        .env("LD_PRELOAD", "")
        .stdin(Stdio::null())
        .output()
        .with_context(|| shown.clone())?;
    let error = String::from_utf8_lossy(&output.stderr);
    ensure!(
        output.status.success(),
        "{shown}: {} {}",
        output.status,
        error.trim()
    );
    String::from_utf8(output.stdout).context(shown)
}

#[cfg(test)]
mod tests {
    use super::*;
    use weir_config::settings::Config;

    fn launch(method: Method) -> Launch {
        let mut launch = Config::defaults(&Environment::default()).unwrap().launch;
        launch.method = method;
        launch.program = Some("/opt/weir".into());
        launch
    }

    fn own() -> String {
        nix::unistd::gethostname().unwrap().into_string().unwrap()
    }

    #[test]
    fn without_a_job_it_is_this_node() {
        let found = find(
            &NodeOptions::default(),
            &launch(Method::Auto),
            &Environment::default(),
        );
        assert_eq!(found.unwrap(), None);
    }

    #[test]
    fn several_servers_of_one_machine_need_nothing() {
        let wanted = NodeOptions {
            servers: Some(3),
            ..NodeOptions::default()
        };
        let found = find(&wanted, &launch(Method::Auto), &Environment::default());
        let found = found.unwrap().unwrap();
        assert_eq!((found.servers.len(), found.own), (3, OwnServers::All));
    }

    #[test]
    fn this_node_comes_first_with_its_rank_and_must_be_among_them() {
        let list = format!("a[1-2],{},b", own());
        let wanted = NodeOptions {
            hosts: Some(&list),
            ..NodeOptions::default()
        };
        let found = find(&wanted, &launch(Method::Auto), &Environment::default());
        let found = found.unwrap().unwrap();
        let ranks: Vec<u16> = found.servers.iter().map(|server| server.rank).collect();
        assert_eq!(ranks, [2, 0, 1, 3]);
        assert_eq!(found.servers[0].host, own());
        assert!(matches!(found.reach, StartMethod::Shell { fanout: 32, .. }));
        let wanted = NodeOptions {
            hosts: Some("a1,a2"),
            ..NodeOptions::default()
        };
        let error = find(&wanted, &launch(Method::Auto), &Environment::default()).unwrap_err();
        assert!(error.to_string().contains("not among"), "{error}");
    }

    #[test]
    fn movers_are_nodes_of_the_instance_too() {
        let (env, launch) = (Environment::default(), launch(Method::Auto));
        let list = format!("{},a", own());
        let found = |hosts, movers| {
            let wanted = NodeOptions {
                hosts,
                movers: Some(movers),
                ..NodeOptions::default()
            };
            let found = find(&wanted, &launch, &env)?.expect("several nodes");
            let servers = found.servers.into_iter();
            Ok(servers
                .map(|server| (server.host, server.is_mover))
                .collect::<Vec<_>>())
        };
        let (own, a, b) = (own(), "a".to_owned(), "b".to_owned());
        let expected = [(own.clone(), false), (a.clone(), true), (b.clone(), true)];
        assert_eq!(found(Some(&list), "a,b").unwrap(), expected);
        assert_eq!(found(None, "b").unwrap(), [(own.clone(), false), (b, true)]);
        let error: Result<_> = found(Some(&list), &list);
        assert!(error.unwrap_err().to_string().contains("left for programs"));
    }

    #[test]
    fn a_job_says_its_nodes() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("nodes");
        std::fs::write(&file, format!("{}\n{}\nb\nb\n", own(), own())).unwrap();
        let file = file.to_str().unwrap();
        let env: Environment = [("LSB_DJOB_HOSTFILE", file)].into_iter().collect();
        let found = find(&NodeOptions::default(), &launch(Method::Auto), &env);
        let StartMethod::Each { commands } = found.unwrap().unwrap().reach else {
            panic!();
        };
        assert_eq!(commands, [["blaunch", "b", "/opt/weir", "agent"]]);
        let env = [("PBS_NODEFILE", file), ("HOME", "/home/u")];
        let env: Environment = env.into_iter().collect();
        let found = find(&NodeOptions::default(), &launch(Method::Auto), &env);
        let StartMethod::Join { commands, file } = found.unwrap().unwrap().reach else {
            panic!();
        };
        assert!(file.starts_with("/home/u/.weir-join-"), "{file}");
        let expected = [
            "pbsdsh",
            "-n",
            "2",
            "--",
            "/opt/weir",
            "agent",
            "--join",
            &file,
        ];
        assert_eq!(commands, [expected]);
    }

    #[test]
    fn one_task_of_many_does_not_start_all() {
        let env = [("SLURM_JOB_NODELIST", "a,b"), ("SLURM_STEP_NUM_TASKS", "2")];
        let env: Environment = env.into_iter().collect();
        let found = find(&NodeOptions::default(), &launch(Method::Auto), &env);
        assert_eq!(found.unwrap(), None);
        assert!(find(
            &NodeOptions::default(),
            &launch(Method::Slurm),
            &Environment::default()
        )
        .is_err());
    }

    #[test]
    fn the_same_nodes_are_reached_again_by_one_command_or_one_each() {
        let servers: Vec<HostedServer> = ["a", "b", "c"]
            .iter()
            .zip([1, 0, 2])
            .map(|(host, rank)| HostedServer::new(rank, (*host).to_owned()))
            .collect();
        let env: Environment = [("SLURM_JOB_NODELIST", "a,b,c")].into_iter().collect();
        let launch = launch(Method::Auto);
        let all = plan_again(servers.clone(), &launch, &env, false).unwrap();
        assert!(matches!(&all.reach, StartMethod::All { command, .. }
            if command.contains(&"--nodelist=b,c".to_owned())));
        let each = plan_again(servers.clone(), &launch, &env, true).unwrap();
        let StartMethod::Each { commands } = &each.reach else {
            panic!("{each:?}");
        };
        let lists = ["--nodelist=b", "--nodelist=c"].map(str::to_owned);
        assert_eq!(commands.len(), 2);
        assert!(commands
            .iter()
            .zip(&lists)
            .all(|(command, list)| command.contains(list)));
        let alone = plan_again(servers[..1].to_vec(), &launch, &env, false).unwrap();
        assert_eq!(alone.reach, StartMethod::Nowhere);
        assert_eq!(alone.servers, servers[..1]);
    }
}
