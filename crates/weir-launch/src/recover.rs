//! Instances of several servers that were all killed. They can be brought back: the servers go on together with what they
//! left, on the nodes where it is, with new addresses and a new secret. Or what they left is cleared on all nodes.
//!
//! A server that cannot be brought back counts as lost, and the others are started again without it, so that each try
//! is one that can succeed. What they hold stays where it is as long as nobody orders its end: also if this process is
//! killed.

use std::time::Duration;

use anyhow::{anyhow, Context, Result};
use weir_config::settings::Launch;
use weir_config::{Environment, Loaded};
use weir_core::roster::{Roster, Secret};
use weir_core::types::Rank;
use weir_instance::directories::{Label, Remains, ServerPart};

use crate::error::LaunchError;
use crate::hosted_server::{HostedServer, OwnServers};
use crate::message::{AgentAssignment, AgentTask, StartFailure};
use crate::nodes::{plan_again, NodePlan};
use crate::random::random;
use crate::reach::StartMethod;
use crate::root::{begin, clear as clear_by_agents, explain_failure, RootAgent};

/// The number of times that the end of servers of the previous attempt is waited for.
const LIVES_MOST: u32 = 10;
/// For how long.
const LIVES_PAUSE: Duration = Duration::from_secs(1);

/// An instance that is back.
#[derive(Debug)]
pub struct RecoveredInstance {
    /// Its agents and servers.
    pub root: RootAgent,
    /// The servers that are lost.
    pub missing: Vec<MissingServer>,
}

/// A server that could not be brought back.
#[derive(Clone, Debug)]
pub struct MissingServer {
    /// Its rank and host.
    pub server: HostedServer,
    /// Why.
    pub why: String,
}

/// Brings the servers of `remains` back. `launch` says how the other nodes are reached.
pub fn recover(
    remains: &Remains,
    launch: &Launch,
    env: &Environment,
) -> Result<RecoveredInstance, LaunchError> {
    // Of several servers of this machine, the first may be among those that cannot go on.
    let mut labels = remains.labels.iter();
    let usable = labels.find(|label| label.obstacle().is_none());
    let Some(label) = usable else {
        let why = remains.describe();
        return Err(LaunchError::Dead { why });
    };
    let mut recovery = DeadServers::from_label(label, &remains.name)?;
    let mut one_each = false;
    let mut waits_left = LIVES_MOST;
    loop {
        let plan = recovery.plan(launch, env, one_each)?;
        let starts_all = matches!(plan.reach, StartMethod::All { .. });
        let failed = match begin(recovery.assignment(plan, launch, recovery.recovery())?)? {
            Ok(root) => {
                let missing = recovery.missing;
                return Ok(RecoveredInstance { root, missing });
            }
            Err(failed) => failed,
        };
        if failed.lives.is_some() {
            if waits_left == 0 {
                return Err(explain_failure(failed, &remains.name));
            }
            waits_left -= 1;
            std::thread::sleep(LIVES_PAUSE);
        } else if starts_all {
            // It does not say which of its nodes failed.
            one_each = true;
        } else {
            recovery.give_up(failed)?;
        }
    }
}

/// Clears what the servers of `remains` left on all nodes. Returns the servers whose remains could not be cleared.
pub fn clear(
    remains: &Remains,
    launch: &Launch,
    env: &Environment,
) -> Result<Vec<MissingServer>, LaunchError> {
    let mut labels = remains.labels.iter();
    let Some(label) = labels.find(|label| label.roster().is_some()) else {
        remains.clear()?;
        return Ok(Vec::new());
    };
    let dead = DeadServers::from_label(label, &remains.name)?;
    let failed = |one_each| -> Result<Vec<MissingServer>> {
        let plan = dead.plan(launch, env, one_each)?;
        let cleared = clear_by_agents(dead.assignment(plan, launch, AgentTask::Clear)?)?;
        let failed = cleared.into_iter();
        let failed = failed.filter_map(|(server, done)| Some((server, done.err()?)));
        Ok(failed
            .map(|(server, why)| MissingServer { server, why })
            .collect())
    };
    let mut missing = failed(false)?;
    if missing.len() > 1 {
        // One command for all nodes fails with one of them.
        missing = failed(true)?;
    }
    Ok(missing)
}

/// The servers of an instance that were killed.
struct DeadServers<'a> {
    label: &'a Label,
    own: &'a ServerPart,
    name: &'a str,
    roster: Roster,
    missing: Vec<MissingServer>,
}

impl<'a> DeadServers<'a> {
    fn from_label(label: &'a Label, name: &'a str) -> Result<Self> {
        Ok(Self {
            label,
            own: label.part.as_ref().context("it was one of one server")?,
            name,
            roster: label.roster().context("the list of its servers is gone")?,
            missing: Vec::new(),
        })
    }

    /// The servers that are tried, and the commands that reach them.
    fn plan(&self, launch: &Launch, env: &Environment, one_each: bool) -> Result<NodePlan> {
        let is_missing = |rank| self.missing.iter().any(|one| one.server.rank == rank);
        let members = self.roster.members().iter();
        let mut servers: Vec<HostedServer> = members
            .filter(|member| !is_missing(member.rank.0))
            .map(HostedServer::from)
            .collect();
        if self.own.share > 1 {
            return Ok(NodePlan {
                servers,
                own: OwnServers::All,
                reach: StartMethod::Nowhere,
            });
        }
        let own = servers
            .iter()
            .position(|server| server.rank == self.own.rank);
        servers[..=own.context("this node's server is not among them")?].rotate_right(1);
        plan_again(servers, launch, env, one_each)
    }

    /// The task of bringing back the servers that are not missing.
    fn recovery(&self) -> AgentTask {
        let lost = self.missing.iter();
        let lost = lost.filter_map(|one| self.roster.member(Rank(one.server.rank)).cloned());
        AgentTask::Recover {
            missing: lost.collect(),
        }
    }

    fn assignment(
        &self,
        plan: NodePlan,
        launch: &Launch,
        task: AgentTask,
    ) -> Result<AgentAssignment> {
        Ok(AgentAssignment {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            instance: self.own.instance,
            secret: Secret::new(random()?),
            name: self.name.to_owned(),
            job: self.label.job.clone(),
            servers: self.label.servers,
            drain_to: self.label.drain_to.clone(),
            settings: self.label.settings.clone(),
            assigned: plan.servers,
            own: plan.own,
            reach: plan.reach,
            task,
            deadline_ms: u64::from(launch.deadline_s) * 1000,
            root: true,
            lifeline: true,
            heed_signals: false,
        })
    }

    /// Goes on without the server of a failure.
    fn give_up(&mut self, failed: StartFailure) -> Result<()> {
        let member = failed.rank.and_then(|rank| self.roster.member(Rank(rank)));
        let is_last = self.missing.len() + 1 == self.roster.members().len();
        let Some(member) = member.filter(|_| !is_last) else {
            return Err(anyhow!("{}: {}", failed.host, failed.why));
        };
        if self.own.share <= 1 && member.rank.0 == self.own.rank {
            return Err(anyhow!(
                "this node's server cannot go on ({}); weir recover on another node goes on without it",
                failed.why
            ));
        }
        let server = HostedServer::from(member);
        self.missing.push(MissingServer {
            server,
            why: failed.why,
        });
        Ok(())
    }
}

/// The settings by which nodes are reached: those given now, and otherwise those of the start.
pub fn launch_settings(remains: &Remains, given: &Loaded) -> Result<Launch> {
    let saved = Loaded::from_toml(&remains.first().settings, &Environment::default())?;
    let now = &given.config.launch;
    let mut launch = saved.config.launch;
    if given.is_set("launch.method") {
        launch.method = now.method;
    }
    if given.is_set("launch.ssh") {
        launch.ssh = now.ssh.clone();
    }
    if given.is_set("launch.program") {
        launch.program.clone_from(&now.program);
    }
    if given.is_set("launch.fanout") {
        launch.fanout = now.fanout;
    }
    if given.is_set("launch.deadline_s") {
        launch.deadline_s = now.deadline_s;
    }
    Ok(launch)
}
