//! The command's side of movers: it asks the agents to start them, and admits those that it can use.

use std::collections::BTreeSet;
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use anyhow::{Context, Result};
use weir_core::roster::{InstanceId, Member, Roster, Secret};
use weir_core::types::Rank;
use weir_instance::connection::Connection;
use weir_instance::errln;
use weir_instance::roster;
use weir_launch::agent;
use weir_launch::random::random;
use weir_launch::workers::{WorkerInvitation, WorkerProgram};
use weir_mover::drain::OwnShare;
use weir_mover::MoverNews;

use super::probes::TargetProbes;
use super::remote::RemoteMover;
use super::MoverRole;

/// The paths that the nodes of movers must have in common with this one.
#[derive(Debug)]
pub enum SharedPaths {
    /// Directories of the parallel file system in which this process may write.
    Targets(Vec<PathBuf>),
    /// Nodes of it that are read.
    Sources(Vec<PathBuf>),
}

/// The movers that have connected, and those that were refused.
#[derive(Debug, Default)]
pub struct MoverGate {
    /// The ranks of the movers that are expected.
    invited: BTreeSet<u16>,
    own_share: OwnShare,
    state: Arc<GateState>,
}

#[derive(Debug, Default)]
struct GateState {
    news: Mutex<Vec<MoverNews>>,
    /// The most bytes that each mover writes in a second; 0: without limit.
    limit_of_each: Arc<AtomicU64>,
    probes: TargetProbes,
}

impl MoverGate {
    /// Asks the agents to start movers on the other nodes; they connect later. An instance of one server has no movers.
    /// `purpose`: the command's name for the work in messages.
    pub fn open(
        run_dir: &Path,
        purpose: &'static str,
        shared: SharedPaths,
        role: MoverRole,
    ) -> Result<MoverGate> {
        let Some(roster) = roster::read(run_dir)? else {
            return Ok(MoverGate::default());
        };
        let own = Rank(Connection::to(run_dir)?.welcome().rank);
        let member = roster.member(own).context("not in the roster")?;
        let nodes = MoverNodes::for_role(&roster, role);
        let wanted = wanted_movers(&roster, member, nodes);
        if wanted.is_empty() {
            return Ok(MoverGate::default());
        }
        let listener =
            TcpListener::bind((member.address.ip(), 0)).context("listening for movers")?;
        let invitation = WorkerInvitation {
            program: WorkerProgram::Mover,
            address: listener.local_addr()?,
            run: InstanceId(random()?),
            secret: Secret::new(random()?),
        };
        if !agent::employ(run_dir, &invitation)? {
            tracing::debug!("the agent of the first node is not here: this node moves everything");
            return Ok(MoverGate::default());
        }
        let (targets, sources) = match shared {
            SharedPaths::Targets(targets) => (targets, Vec::new()),
            SharedPaths::Sources(sources) => (Vec::new(), sources),
        };
        let gate = MoverGate {
            invited: wanted.clone(),
            own_share: match nodes {
                MoverNodes::WithoutPrograms if !member.is_mover => OwnShare::Rest,
                _ => OwnShare::Equal,
            },
            state: Arc::new(GateState {
                probes: TargetProbes::new(&targets),
                ..GateState::default()
            }),
        };
        let door = MoverDoor {
            state: Arc::clone(&gate.state),
            invitation,
            wanted: Mutex::new(wanted),
            purpose,
            sources,
            role,
        };
        std::thread::spawn(move || door.let_in_all(&listener));
        Ok(gate)
    }

    /// The ranks of the movers that are expected.
    pub fn invited(&self) -> Vec<u16> {
        self.invited.iter().copied().collect()
    }

    /// The part of the copying that this process does.
    pub fn own_share(&self) -> OwnShare {
        self.own_share
    }

    /// The news of movers since the last call.
    pub fn take_news(&self) -> Vec<MoverNews> {
        std::mem::take(&mut *self.state.news())
    }

    /// The limit that movers keep from their next order on.
    pub fn limit_of_each(&self) -> Arc<AtomicU64> {
        Arc::clone(&self.state.limit_of_each)
    }
}

impl Drop for MoverGate {
    fn drop(&mut self) {
        self.state.probes.close();
    }
}

impl GateState {
    fn news(&self) -> MutexGuard<'_, Vec<MoverNews>> {
        self.news.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The nodes that move files.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum MoverNodes {
    All,
    /// Those that run programs: bytes that come in are kept by the node that moves them.
    WithPrograms,
    /// Those that only move files.
    WithoutPrograms,
}

impl MoverNodes {
    fn for_role(roster: &Roster, role: MoverRole) -> MoverNodes {
        let is_split = roster.members().iter().any(|member| member.is_mover);
        match (is_split, role.is_inward) {
            (false, _) => MoverNodes::All,
            (true, true) => MoverNodes::WithPrograms,
            (true, false) => MoverNodes::WithoutPrograms,
        }
    }

    fn include(self, member: &Member) -> bool {
        match self {
            MoverNodes::All => true,
            MoverNodes::WithPrograms => !member.is_mover,
            MoverNodes::WithoutPrograms => member.is_mover,
        }
    }
}

/// The ranks of one server on each other node; if all servers are on one machine, of all but this one.
fn wanted_movers(roster: &Roster, own: &Member, nodes: MoverNodes) -> BTreeSet<u16> {
    let members = || {
        let members = roster.members().iter();
        members.filter(|member| nodes.include(member))
    };
    let mut hosts = BTreeSet::from([own.host.as_str()]);
    let others = members().filter(|member| hosts.insert(&member.host));
    let others: BTreeSet<u16> = others.map(|member| member.rank.0).collect();
    match others.is_empty() {
        true => members()
            .map(|member| member.rank.0)
            .filter(|rank| *rank != own.rank.0)
            .collect(),
        false => others,
    }
}

/// Admits movers.
struct MoverDoor {
    state: Arc<GateState>,
    invitation: WorkerInvitation,
    /// The ranks that may come, each once.
    wanted: Mutex<BTreeSet<u16>>,
    purpose: &'static str,
    /// Nodes of the parallel file system that they must see.
    sources: Vec<PathBuf>,
    role: MoverRole,
}

impl MoverDoor {
    fn let_in_all(&self, listener: &TcpListener) {
        std::thread::scope(|scope| {
            for stream in listener.incoming().flatten() {
                // One thread for each: a silent mover must not delay the others.
                scope.spawn(|| self.let_in(stream));
            }
        });
    }

    fn let_in(&self, stream: TcpStream) {
        let rank = self.invitation.known().let_in(&stream, |rank| {
            let mut wanted = self.wanted.lock().unwrap_or_else(PoisonError::into_inner);
            wanted.remove(&rank)
        });
        let rank = match rank {
            Ok(rank) => rank,
            // A stranger, or a second mover of a node.
            Err(error) => return tracing::debug!("turned away: {error:#}"),
        };
        let news = match self.check(rank, stream) {
            Ok(mover) => MoverNews::Arrived(Box::new(mover)),
            Err(error) if self.state.probes.is_closed() => {
                return tracing::debug!("the command has ended: {error:#}")
            }
            Err(error) => {
                errln!(
                    "weir: {}: server {rank} does not help: {error:#}",
                    self.purpose
                );
                MoverNews::Refused(rank)
            }
        };
        self.state.news().push(news);
    }

    fn check(&self, rank: u16, stream: TcpStream) -> Result<RemoteMover> {
        let limit = Arc::clone(&self.state.limit_of_each);
        let mover = RemoteMover::new(rank, stream, limit).context("its connection")?;
        mover.check_targets(&self.state.probes)?;
        let mut sources = self.sources.iter();
        sources.try_for_each(|path| mover.check_source(path))?;
        mover.begin(self.role)?;
        Ok(mover)
    }
}
