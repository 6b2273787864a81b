//! An instance to be measured: its servers, a worker beside each, processes with the client
//! injected on each node, and one more server alone on this node, for comparison.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{ensure, Context, Result};
use weir_config::{Environment, Loaded};
use weir_core::types::Rank;
use weir_instance::place::Job;
use weir_instance::roster;
use weir_launch::agent;
use weir_launch::errand::Task;
use weir_launch::nodes::Found;
use weir_launch::root::{self, Root};
use weir_launch::server::{self, Launch, Server};

use super::hands::{Hand, Hands};
use super::plan::CREATORS;
use crate::exit::Failure;
use crate::inject;

/// A node of the instance.
#[derive(Clone, Debug)]
pub struct Node {
    /// What it is called.
    pub host: String,
    /// The worker that moves plain bytes.
    pub worker: Hand,
    /// Those that use the file system.
    pub processes: Vec<Hand>,
}

/// Counts of one server, by name.
pub type Counts = BTreeMap<String, u64>;

/// What is on.
pub struct Stage {
    /// Who does things.
    pub hands: Hands,
    /// By rank.
    pub nodes: Vec<Node>,
    /// Where files of the run are.
    pub place: PathBuf,
    /// The processes at a server alone.
    pub alone: Vec<Hand>,
    /// Whether all nodes are one machine.
    pub one_machine: bool,
    /// Whether servers talk over libfabric.
    pub libfabric: bool,
    run_dir: PathBuf,
    next: Hand,
    single: Option<Server>,
    root: Root,
}

impl Stage {
    /// Starts all, with `processes` on each node; with a server alone too, if it is to be.
    pub fn set(
        found: &Found,
        settings: &Loaded,
        env: &Environment,
        processes: usize,
        alone: bool,
    ) -> Result<Stage, Failure> {
        let mut root = root::start(found, None, settings, &Job::of(env), true)?;
        let ready = root.server(root.own).context("no server on this node")?;
        let (run_dir, mount) = (ready.run_dir.clone(), ready.mount.clone());
        let roster = roster::read(&run_dir)?.context("no roster")?;
        let own = roster.member(Rank(root.own)).context("not in the roster")?;
        let patience = Duration::from_secs(u64::from(settings.config.launch.deadline_s));
        let hands = Hands::listen(own.address.ip(), patience)?;
        let mut nodes: Vec<Node> = Vec::new();
        for member in roster.members() {
            hands.expect(member.rank.0, &member.host);
            nodes.push(Node {
                host: member.host.clone(),
                worker: member.rank.0,
                processes: Vec::new(),
            });
        }
        root.employ(hands.errand())?;
        let mut stage = Stage {
            next: roster.servers(),
            libfabric: roster.endpoints().is_ok(),
            place: mount,
            alone: Vec::new(),
            one_machine: false,
            single: None,
            hands,
            nodes,
            run_dir,
            root,
        };
        stage.gather(processes)?;
        if alone {
            let single = server::start(&Launch {
                name: None,
                run_dir: None,
                job: Job::of(env),
                lifeline: true,
                settings: settings.toml(),
                part: None,
            })?;
            stage.employ_alone(&single, env)?;
            stage.single = Some(single);
        }
        Ok(stage)
    }

    fn gather(&mut self, processes: usize) -> Result<()> {
        let workers: Vec<Hand> = self.nodes.iter().map(|node| node.worker).collect();
        self.hands.gather(&workers)?;
        let mut machines = Vec::new();
        for worker in workers {
            machines.push(self.hands.listen_at(worker, false)?.machine);
        }
        self.one_machine = machines.iter().all(|machine| *machine == machines[0]);
        for at in 0..self.nodes.len() {
            let numbers = self.numbers(processes)?;
            self.hands.spawn(self.nodes[at].worker, &numbers)?;
            self.nodes[at].processes = numbers;
        }
        Ok(())
    }

    /// As many processes as create files on all nodes together, at the server alone.
    fn employ_alone(&mut self, single: &Server, env: &Environment) -> Result<()> {
        let program = std::env::current_exe().context("finding the weir program")?;
        let library = inject::find_library(env, &program)?;
        let run_dir = &single.ready.run_dir;
        let variables = inject::variables(run_dir, &library, env)?;
        let numbers = self.numbers(self.nodes.len() * CREATORS)?;
        for number in &numbers {
            self.hands.expect(*number, "this node");
            let task = Task {
                errand: self.hands.errand().clone(),
                number: *number,
                run_dir: run_dir.clone(),
            };
            let mut child = task.start(&variables)?;
            std::thread::spawn(move || child.wait());
        }
        self.hands.gather(&numbers)?;
        self.alone = numbers;
        Ok(())
    }

    fn numbers(&mut self, count: usize) -> Result<Vec<Hand>> {
        let first = self.next;
        let end = usize::from(first) + count;
        self.next = Hand::try_from(end).context("too many processes")?;
        Ok((first..self.next).collect())
    }

    /// A process of node `node`.
    pub fn process(&self, node: usize, number: usize) -> Hand {
        self.nodes[node].processes[number]
    }

    /// A path of the file system.
    pub fn path(&self, name: &str) -> PathBuf {
        self.place.join(name)
    }

    /// What each server has counted.
    pub fn counts(&self) -> Result<Vec<Counts>> {
        let seen = agent::status(&self.run_dir)?.context("the agent was lost")?;
        ensure!(seen.len() == self.nodes.len(), "not all servers answer");
        let mut all = Vec::new();
        for seen in seen {
            let host = &seen.seat.host;
            let report = seen
                .report
                .map_err(|why| anyhow::anyhow!("{host}: {why}"))?;
            // Looking is not what is counted.
            let requests = report.requests.into_iter();
            let requests = requests.filter(|(name, _)| !name.ends_with("status"));
            let counters = report.counters.into_iter();
            let counters = counters.filter(|(name, _)| name.starts_with("fabric_"));
            all.push(requests.chain(counters).collect());
        }
        Ok(all)
    }

    /// Ends all.
    pub fn strike(self) -> Result<()> {
        drop(self.hands);
        if let Some(single) = self.single {
            single.stop()?;
        }
        let summary = self.root.stop()?;
        for problem in &summary.problems {
            eprintln!("weir: {problem}");
        }
        ensure!(summary.lost == 0, "{} servers were lost", summary.lost);
        Ok(())
    }
}

/// How much of `name` was counted between two looks, by server.
pub fn since(before: &[Counts], after: &[Counts], wanted: impl Fn(&str) -> bool) -> Vec<u64> {
    let difference = |(before, after): (&Counts, &Counts)| {
        let wanted = after.iter().filter(|(name, _)| wanted(name));
        wanted
            .map(|(name, count)| count - before.get(name).unwrap_or(&0).min(count))
            .sum()
    };
    before.iter().zip(after).map(difference).collect()
}

/// Whether a count is of requests.
pub fn is_request(name: &str) -> bool {
    !name.starts_with("fabric_")
}
