//! The starter's end of an instance of several servers: it starts the agent of this node, which
//! does the rest, and hears what came of it.

use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use anyhow::{anyhow, Context, Result};
use weir_config::Loaded;
use weir_core::roster::{InstanceId, Secret};
use weir_instance::directories::Job;

use crate::agent::Summary;
use crate::error::LaunchError;
use crate::hosted_server::HostedServer;
use crate::message::{
    AgentAssignment, AgentLine, AgentLineReader, AgentTask, MessageDown, MessageUp, ReadyServer,
    StartFailure,
};
use crate::nodes::NodePlan;
use crate::random::random;
use crate::server::{read_line, to_line, ReadyInstance};
use crate::workers::WorkerInvitation;

/// An instance of several servers that runs.
#[derive(Debug)]
pub struct RootAgent {
    child: Child,
    lifeline: ChildStdin,
    words: AgentLineReader<BufReader<ChildStdout>>,
    /// All servers, by rank.
    pub ready_servers: Vec<ReadyServer>,
    /// The rank of this node's server, or of the first of this machine's.
    pub own: u16,
}

/// The instance that is to be started.
#[derive(Clone, Copy, Debug)]
pub struct InstancePlan<'a> {
    /// Its name; `None` to make one up.
    pub name: Option<&'a str>,
    /// The job that it belongs to.
    pub job: &'a Job,
    /// The directory that everything in it is to be moved to at the end of the run.
    pub drain_to: Option<&'a Path>,
    /// The settings in force.
    pub settings: &'a Loaded,
    /// True if it ends with this process.
    pub lifeline: bool,
}

/// Starts the servers and waits until all are ready, or none is left.
pub fn start(found: &NodePlan, plan: InstancePlan<'_>) -> Result<RootAgent, LaunchError> {
    let instance = InstanceId(random()?);
    let made_up = format!("run-{}", &instance.to_string()[..12]);
    let name = plan.name.unwrap_or(&made_up);
    let charge = AgentAssignment {
        version: env!("CARGO_PKG_VERSION").to_owned(),
        instance,
        secret: Secret::new(random()?),
        name: name.to_owned(),
        job: plan.job.clone(),
        servers: u16::try_from(found.servers.len()).context("too many nodes")?,
        drain_to: plan.drain_to.map(Path::to_owned),
        settings: plan.settings.toml(),
        assigned: found.servers.clone(),
        own: found.own,
        reach: found.reach.clone(),
        task: AgentTask::Start,
        deadline_ms: u64::from(plan.settings.config.launch.deadline_s) * 1000,
        root: true,
        lifeline: plan.lifeline,
        heed_signals: !plan.lifeline,
    };
    begin(charge)?.map_err(|failed| explain_failure(failed, name))
}

/// The error of a start that failed.
pub(crate) fn explain_failure(failed: StartFailure, name: &str) -> LaunchError {
    match failed.lives {
        Some(run_dir) => LaunchError::AlreadyRunning {
            name: name.to_owned(),
            run_dir: format!("{}:{}", failed.host, run_dir.display()).into(),
        },
        None if failed.dead => LaunchError::Dead {
            why: format!("{}: {}", failed.host, failed.why),
        },
        None => anyhow!("{}: {}", failed.host, failed.why).into(),
    }
}

/// Starts the agent of this node, and waits for the outcome of the start.
pub(crate) fn begin(charge: AgentAssignment) -> Result<Result<RootAgent, StartFailure>> {
    let mut root = spawn(&charge)?;
    // If it died already, its answer shows that.
    let _ = writeln!(
        root.lifeline,
        "{}",
        to_line(&MessageDown::Charge(Box::new(charge)))
    );
    match root.answer()? {
        MessageUp::Ready(mut servers) => {
            servers.sort_by_key(|ready| ready.server.rank);
            root.ready_servers = servers;
            Ok(Ok(root))
        }
        MessageUp::Failed(failed) => {
            let _ = root.child.wait();
            Ok(Err(failed))
        }
        other => Err(anyhow!("the agent said {other:?}")),
    }
}

/// Has agents clear what the servers of an instance left; the outcome of each.
pub(crate) fn clear(charge: AgentAssignment) -> Result<Vec<(HostedServer, Result<(), String>)>> {
    let mut root = spawn(&charge)?;
    let line = to_line(&MessageDown::Charge(Box::new(charge)));
    let _ = writeln!(root.lifeline, "{line}");
    let answer = root.answer()?;
    root.abandon()?;
    match answer {
        MessageUp::Cleared(cleared) => Ok(cleared),
        MessageUp::Failed(failed) => Err(anyhow!("{}: {}", failed.host, failed.why)),
        other => Err(anyhow!("the agent said {other:?}")),
    }
}

fn spawn(charge: &AgentAssignment) -> Result<RootAgent> {
    let program = std::env::current_exe().context("finding the weir program")?;
    let mut child = Command::new(program)
        .arg("agent")
        .env("LD_PRELOAD", "")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .context("starting the agent")?;
    Ok(RootAgent {
        lifeline: child.stdin.take().expect("piped"),
        words: AgentLineReader::new(BufReader::new(child.stdout.take().expect("piped"))),
        child,
        ready_servers: Vec::new(),
        own: charge.assigned[0].rank,
    })
}

impl RootAgent {
    /// The first message that counts.
    fn answer(&mut self) -> Result<MessageUp> {
        loop {
            match self.words.hear()? {
                Some(AgentLine::Message(up)) if !matches!(*up, MessageUp::Lost { .. }) => {
                    return Ok(*up)
                }
                Some(_) => {}
                None => {
                    let status = self.child.wait().context("waiting for the agent")?;
                    return Err(anyhow!("the agent gave up ({status})"));
                }
            }
        }
    }

    /// The server of `rank`, if there is one on this node.
    pub fn server(&self, rank: u16) -> Option<&ReadyInstance> {
        let own = &self
            .ready_servers
            .iter()
            .find(|ready| ready.server.rank == self.own)?
            .server
            .host;
        let is_wanted =
            |ready: &&ReadyServer| ready.server.rank == rank && ready.server.host == *own;
        Some(&self.ready_servers.iter().find(is_wanted)?.ready)
    }

    /// Dead instances that were cleared, each with its node.
    pub fn cleared(&self) -> impl Iterator<Item = (&str, &str)> {
        self.ready_servers.iter().flat_map(|ready| {
            let host = ready.server.host.as_str();
            let names = ready.ready.cleared.iter();
            names.map(move |name| (host, name.as_str()))
        })
    }

    /// Has a worker started beside each server.
    pub fn employ(&mut self, invitation: &WorkerInvitation) -> Result<()> {
        let line = to_line(&MessageDown::Work(invitation.clone()));
        writeln!(self.lifeline, "{line}").context("the agent was lost")
    }

    /// Leaves the instance to itself: it stays until `weir stop`.
    pub fn leave(mut self) -> Result<()> {
        let line = to_line(&MessageDown::Stay);
        writeln!(self.lifeline, "{line}").context("the agent was lost")
    }

    /// Ends the instance and hears what it did.
    pub fn stop(mut self) -> Result<Summary> {
        // An agent that was lost shows that below.
        let _ = writeln!(self.lifeline, "{}", to_line(&MessageDown::Stop));
        drop(self.lifeline);
        let summary = read_summary(self.words.source());
        let status = self.child.wait().context("waiting for the agent")?;
        summary.with_context(|| format!("the agent was lost ({status})"))
    }

    /// Ends the agents without a word, if another command has not ended the instance. What is to be moved out of it
    /// stays with the directories of its servers.
    pub fn abandon(mut self) -> Result<()> {
        drop(self.lifeline);
        self.child.wait().context("waiting for the agent")?;
        Ok(())
    }
}

fn read_summary(words: &mut impl BufRead) -> Result<Summary> {
    read_line(words)
}

/// The run directory of the server of `rank` on this machine, of an instance whose first is in
/// `run_dir`; several servers of one machine have directories beside each other.
pub fn run_dir_of_rank(run_dir: &Path, rank: u16) -> PathBuf {
    if rank == 0 {
        return run_dir.to_owned();
    }
    let mut name = run_dir.file_name().unwrap_or_default().to_owned();
    name.push(format!(".{rank}"));
    run_dir.with_file_name(name)
}
