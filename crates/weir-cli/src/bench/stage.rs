//! An instance to be measured: its servers, a worker beside each, processes with the client
//! injected on each node, and one more server alone on this node, for comparison.

use std::path::Path;
use std::time::Duration;

use anyhow::{ensure, Context, Result};
use weir_bench::nodes::{InstanceNode, ServerCounters, TestInstance, CREATORS};
use weir_bench::{WorkerId, Workers};
use weir_config::{Environment, Loaded};
use weir_core::types::Rank;
use weir_instance::directories::Job;
use weir_instance::errln;
use weir_instance::roster;
use weir_launch::agent;
use weir_launch::nodes::NodePlan;
use weir_launch::root::{self, InstancePlan, RootAgent};
use weir_launch::server::{self, Launch, Server};
use weir_launch::workers::Task;

use super::gate::WorkerGate;
use crate::exit::Failure;
use crate::inject::{self, InjectedLibraries};

/// An instance that was started to be measured.
pub struct BenchInstance {
    /// The instance, as the benchmark sees it.
    pub instance: TestInstance,
    /// The gate for its workers.
    pub gate: WorkerGate,
    /// True if servers talk over libfabric.
    pub libfabric: bool,
    next: WorkerId,
    single: Option<Server>,
    root: RootAgent,
}

impl BenchInstance {
    /// Starts all, with `processes` on each node; with a server alone too, if it is to be.
    pub fn set(
        found: &NodePlan,
        settings: &Loaded,
        env: &Environment,
        processes: usize,
        alone: bool,
    ) -> Result<BenchInstance, Failure> {
        let plan = InstancePlan {
            name: None,
            job: &Job::from_environment(env),
            drain_to: None,
            settings,
            lifeline: true,
        };
        let mut root = root::start(found, plan)?;
        let ready = root.server(root.own).context("no server on this node")?;
        let (run_dir, mount) = (ready.run_dir.clone(), ready.mount.clone());
        let roster = roster::read(&run_dir)?.context("no roster")?;
        let own = roster.member(Rank(root.own)).context("not in the roster")?;
        let patience = Duration::from_secs(u64::from(settings.config.launch.deadline_s));
        let gate = WorkerGate::listen(own.address.ip(), patience)?;
        let mut nodes: Vec<InstanceNode> = Vec::new();
        for member in roster.members() {
            gate.expect(member.rank.0, &member.host);
            nodes.push(InstanceNode {
                host: member.host.clone(),
                worker: member.rank.0,
                processes: Vec::new(),
            });
        }
        root.employ(gate.invitation())?;
        let servers = nodes.len();
        let mut stage = BenchInstance {
            next: roster.servers(),
            libfabric: roster.endpoints().is_ok(),
            instance: TestInstance {
                workers: Workers::default(),
                nodes,
                directory: mount,
                alone: Vec::new(),
                one_machine: false,
                read_counters: Box::new(move || read_counters(&run_dir, servers)),
            },
            single: None,
            gate,
            root,
        };
        stage.gather(processes)?;
        if alone {
            let single = server::start(&Launch {
                name: None,
                run_dir: None,
                job: Job::from_environment(env),
                lifeline: true,
                drain_to: None,
                settings: settings.toml(),
                part: None,
            })?;
            stage.employ_alone(&single, env)?;
            stage.single = Some(single);
        }
        Ok(stage)
    }

    fn gather(&mut self, processes: usize) -> Result<()> {
        let workers: Vec<WorkerId> = self.instance.nodes.iter().map(|node| node.worker).collect();
        self.gate.gather(&mut self.instance.workers, &workers)?;
        let mut machines = Vec::new();
        for worker in &workers {
            machines.push(self.instance.workers.listen_at(*worker, false)?.machine);
        }
        self.instance.one_machine = machines.iter().all(|machine| *machine == machines[0]);
        for (node, worker) in workers.into_iter().enumerate() {
            let ids = self.numbers(processes)?;
            for id in &ids {
                self.gate.expect(*id, &self.instance.nodes[node].host);
            }
            self.instance.workers.spawn(worker, &ids)?;
            self.gate.gather(&mut self.instance.workers, &ids)?;
            self.instance.nodes[node].processes = ids;
        }
        Ok(())
    }

    /// Starts as many processes at the server alone as create files on all nodes together.
    fn employ_alone(&mut self, single: &Server, env: &Environment) -> Result<()> {
        let program = std::env::current_exe().context("finding the weir program")?;
        let library = InjectedLibraries::client_alone(inject::find_library(env, &program)?);
        let run_dir = &single.ready.run_dir;
        let variables = inject::variables(run_dir, &library, env)?;
        let ids = self.numbers(self.instance.nodes.len() * CREATORS)?;
        for id in &ids {
            self.gate.expect(*id, "this node");
            let task = Task {
                invitation: self.gate.invitation().clone(),
                number: *id,
                run_dir: run_dir.clone(),
            };
            let mut child = task.start(&variables)?;
            std::thread::spawn(move || child.wait());
        }
        self.gate.gather(&mut self.instance.workers, &ids)?;
        self.instance.alone = ids;
        Ok(())
    }

    fn numbers(&mut self, count: usize) -> Result<Vec<WorkerId>> {
        let first = self.next;
        let end = usize::from(first) + count;
        self.next = WorkerId::try_from(end).context("too many processes")?;
        Ok((first..self.next).collect())
    }

    /// Ends all.
    pub fn strike(self) -> Result<()> {
        drop(self.instance);
        if let Some(single) = self.single {
            single.stop()?;
        }
        let summary = self.root.stop()?;
        for problem in &summary.problems {
            errln!("weir: {problem}");
        }
        ensure!(summary.lost == 0, "{} servers were lost", summary.lost);
        Ok(())
    }
}

/// Reads the counters of each server.
fn read_counters(run_dir: &Path, servers: usize) -> Result<Vec<ServerCounters>> {
    let seen = agent::status(run_dir)?.context("the agent was lost")?;
    ensure!(seen.len() == servers, "not all servers answer");
    let mut all = Vec::new();
    for seen in seen {
        let host = &seen.server.host;
        let report = seen
            .report
            .map_err(|why| anyhow::anyhow!("{host}: {why}"))?;
        // The readings themselves are not counted.
        let requests = report.requests.into_iter();
        let requests = requests.filter(|(name, _)| !name.ends_with("status"));
        let counters = report.counters.into_iter();
        let counters = counters.filter(|(name, _)| name.starts_with("fabric_"));
        all.push(requests.chain(counters).collect());
    }
    Ok(all)
}
