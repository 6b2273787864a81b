//! The state of an agent, and the events that change it.

use std::collections::{BTreeSet, HashMap};
use std::io::Write;
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::{Child, ChildStdin};
use std::sync::mpsc::{Receiver, Sender};

use anyhow::{Context, Result};
use nix::sys::signal::Signal;
use weir_config::{Environment, Loaded};
use weir_core::roster::{Member, Roster};
use weir_instance::lock::Lock;
use weir_instance::report::Report;

use super::summary::Request;
use crate::hosted_server::HostedServer;
use crate::join;
use crate::link::Link;
use crate::message::{
    send_up, AgentAssignment, AgentTask, MessageDown, MessageUp, ReadyServer, ServerReport,
};
use crate::server::{to_line, LifelineWord, ReadyInstance, ServerEnd, ServerMessage};

/// Something that happened.
pub(super) enum Event {
    Above(Result<Option<MessageDown>>),
    Server(usize, Option<ServerMessage>),
    Link(usize, Option<MessageUp>),
    Signal(Signal),
    Asked(Request, UnixStream),
    Seen(u64, ServerReport),
    LookOver(u64),
    JobOver,
    Joined(u16, TcpStream),
}

/// That all have ended; the report is of the root.
pub(super) struct EndNotice {
    pub(super) report: Option<Box<Report>>,
}

/// A server of this node.
pub(super) struct LocalServer {
    pub(super) server: HostedServer,
    pub(super) child: Child,
    pub(super) lifeline: Option<ChildStdin>,
    pub(super) run_dir: Option<PathBuf>,
    pub(super) bound: bool,
    pub(super) ready: Option<ReadyInstance>,
    /// Its directories, once it was ready.
    pub(super) dirs: Vec<PathBuf>,
    /// The locks that keep its directories while it does not live.
    pub(super) kept: Vec<Lock>,
    pub(super) ended: Option<ServerEnd>,
    pub(super) closed: bool,
    /// How often it was killed and started again.
    pub(super) restarts: u32,
}

impl LocalServer {
    /// Has it stop, and remove what it holds.
    pub(super) fn order_stop(&mut self) {
        if let Some(mut lifeline) = self.lifeline.take() {
            // A server that was lost shows that by its end.
            let _ = writeln!(lifeline, "{}", to_line(&LifelineWord::Stop));
        }
    }
}

/// Why an agent ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum AgentEnding {
    /// It was told to.
    Ordered,
    /// The process above was lost: it ended without a word.
    Orphaned,
    /// The start failed, or what servers left is being cleared: what is heard of the end of others follows from that.
    GivenUp,
}

pub(super) struct Agent {
    /// Its own among all agents, before it knows its rank; drawn at random.
    pub(super) number: u64,
    pub(super) charge: AgentAssignment,
    pub(super) locals: Vec<LocalServer>,
    pub(super) links: Vec<Link>,
    pub(super) members: Vec<Member>,
    pub(super) ready_servers: Vec<ReadyServer>,
    pub(super) roster: Option<Roster>,
    pub(super) ended: Vec<(HostedServer, ServerEnd)>,
    pub(super) lost: Vec<String>,
    pub(super) farewell: Option<EndNotice>,
    pub(super) asked: Vec<UnixStream>,
    pub(super) looks: ReportQueries,
    pub(super) started: bool,
    /// Set once it is to end.
    pub(super) ending: Option<AgentEnding>,
    pub(super) above_closed: bool,
    /// The outcome of clearing what servers left, of [`AgentTask::Clear`].
    pub(super) cleared: Vec<(HostedServer, Result<(), String>)>,
    pub(super) up: Box<dyn Write + Send>,
    pub(super) invitation: Option<join::Invited>,
    pub(super) events: Receiver<Event>,
    pub(super) tell: Sender<Event>,
}

/// Questions that wait for answers.
#[derive(Default)]
pub(super) struct ReportQueries {
    pub(super) count: u64,
    /// At the root: those under way.
    pub(super) open: HashMap<u64, ReportQuery>,
    /// Asked here, of the root.
    pub(super) waiting: HashMap<u64, UnixStream>,
    /// Asked below, and through which link.
    pub(super) routes: HashMap<u64, usize>,
}

/// The asker of the root.
pub(super) enum QuerySource {
    Here(UnixStream),
    Below(usize),
}

pub(super) struct ReportQuery {
    pub(super) asker: QuerySource,
    pub(super) missing: BTreeSet<u16>,
    pub(super) seen: Vec<ServerReport>,
}

impl Agent {
    pub(super) fn new(
        number: u64,
        charge: AgentAssignment,
        up: Box<dyn Write + Send>,
        events: Receiver<Event>,
        tell: Sender<Event>,
    ) -> Self {
        Self {
            cleared: Vec::new(),
            number,
            charge,
            locals: Vec::new(),
            links: Vec::new(),
            members: Vec::new(),
            ready_servers: Vec::new(),
            roster: None,
            ended: Vec::new(),
            lost: Vec::new(),
            farewell: None,
            asked: Vec::new(),
            looks: ReportQueries::default(),
            started: false,
            ending: None,
            above_closed: false,
            up,
            invitation: None,
            events,
            tell,
        }
    }

    /// True if what the servers hold stays, as if they had been killed, when the process above is lost: it is to be
    /// moved to the parallel file system, and is nowhere else.
    pub(super) fn keeps_remains(&self) -> bool {
        let settings = Loaded::from_toml(&self.charge.settings, &Environment::default());
        let elevates = |loaded: Loaded| !loaded.config.elevated_directories().is_empty();
        self.charge.drain_to.is_some() || settings.is_ok_and(elevates) || self.recovers()
    }

    /// True if the servers go on with what they left when they were killed.
    pub(super) fn recovers(&self) -> bool {
        matches!(self.charge.task, AgentTask::Recover { .. })
    }

    /// The servers that do not go on with the others.
    pub(super) fn given_up(&self) -> Vec<u16> {
        match &self.charge.task {
            AgentTask::Recover { missing } => missing.iter().map(|one| one.rank.0).collect(),
            AgentTask::Start | AgentTask::Clear => Vec::new(),
        }
    }

    /// Tells what is above. That it is gone shows by the end of what it sends.
    pub(super) fn say(&mut self, up: &MessageUp) {
        let _ = send_up(&mut self.up, self.number, up);
    }
}

/// Starts a thread with a small stack.
pub(super) fn spawn(name: &str, run: impl FnOnce() + Send + 'static) -> Result<()> {
    let builder = std::thread::Builder::new().name(name.into());
    builder
        .stack_size(256 << 10)
        .spawn(run)
        .map(drop)
        .context("starting a thread")
}

/// Standard output was the pipe to `weir start`, and standard input too.
pub(super) fn forget_stdio() {
    if let Ok(null) = std::fs::File::options().write(true).open("/dev/null") {
        let _ = nix::unistd::dup2_stdout(&null);
    }
}
