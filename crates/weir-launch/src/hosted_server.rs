//! The servers of an instance with their hosts, and the ones among them that run on this node.

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};
use weir_core::roster::Member;

use crate::address::is_here;

/// A server of an instance, and the host that it runs on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HostedServer {
    /// Its rank.
    pub rank: u16,
    /// The name by which the batch system or the user knows its node.
    pub host: String,
    /// True if its node runs no program of the job, and is there to move files.
    #[serde(default)]
    pub is_mover: bool,
}

impl HostedServer {
    /// Makes one whose node runs programs of the job.
    pub fn new(rank: u16, host: String) -> HostedServer {
        HostedServer {
            rank,
            host,
            is_mover: false,
        }
    }
}

impl From<&Member> for HostedServer {
    fn from(member: &Member) -> HostedServer {
        HostedServer {
            rank: member.rank.0,
            host: member.host.clone(),
            is_mover: member.is_mover,
        }
    }
}

/// The servers of an assignment that are the agent's own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum OwnServers {
    /// The first; the others are below it.
    First,
    /// The one whose host is this node; all agents get the same assignment.
    ByName,
    /// All: several servers on one machine.
    All,
}

/// Returns the name of the instance at a server: several servers of one machine have a name each.
pub fn name_of(name: &str, rank: u16, share: u32) -> String {
    if share > 1 && rank > 0 {
        format!("{name}.{rank}")
    } else {
        name.to_owned()
    }
}

/// Returns the host name of this node.
pub fn own_name() -> String {
    let name = nix::unistd::gethostname().unwrap_or_default();
    name.to_string_lossy().into_owned()
}

/// Finds the server whose host is this node, by the name that Slurm gives it or by its own.
pub fn find_here(servers: &[HostedServer]) -> Result<HostedServer> {
    let slurm = std::env::var("SLURMD_NODENAME").ok();
    let named = |server: &&HostedServer| match &slurm {
        Some(name) => server.host == *name,
        None => is_here(&server.host).unwrap_or(false),
    };
    let server = servers.iter().find(named);
    let server = server.with_context(|| format!("{} is not among the nodes", own_name()))?;
    Ok(server.clone())
}
