//! The seats of an instance: a server and its node each; which of them this node has.

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};
use weir_core::roster::Member;

use crate::address::is_here;

/// A server of an instance and its node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServerPosition {
    /// Its rank.
    pub rank: u16,
    /// As the batch system or the user calls its node.
    pub host: String,
    /// True if its node runs no program of the job, and is there to move files.
    #[serde(default)]
    pub is_mover: bool,
}

impl ServerPosition {
    /// That of a node on which programs run.
    pub fn new(rank: u16, host: String) -> ServerPosition {
        ServerPosition {
            rank,
            host,
            is_mover: false,
        }
    }
}

impl From<&Member> for ServerPosition {
    fn from(member: &Member) -> ServerPosition {
        ServerPosition {
            rank: member.rank.0,
            host: member.host.clone(),
            is_mover: member.is_mover,
        }
    }
}

/// Which seats are an agent's own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum OwnPositions {
    /// The first; the others are below it.
    First,
    /// The one whose host is this node; others were told the same.
    ByName,
    /// All: several servers on one machine.
    All,
}

/// The instance's name at a server: several of one machine each have their own.
pub fn name_of(name: &str, rank: u16, share: u32) -> String {
    if share > 1 && rank > 0 {
        format!("{name}.{rank}")
    } else {
        name.to_owned()
    }
}

/// The name that this node gives itself.
pub fn own_name() -> String {
    let name = nix::unistd::gethostname().unwrap_or_default();
    name.to_string_lossy().into_owned()
}

/// The seat whose host is this node: as Slurm calls it, or as it calls itself.
pub fn find_here(seats: &[ServerPosition]) -> Result<ServerPosition> {
    let slurm = std::env::var("SLURMD_NODENAME").ok();
    let named = |seat: &&ServerPosition| match &slurm {
        Some(name) => seat.host == *name,
        None => is_here(&seat.host).unwrap_or(false),
    };
    let seat = seats.iter().find(named);
    let seat = seat.with_context(|| format!("{} is not among the nodes", own_name()))?;
    Ok(seat.clone())
}
