//! Which seat is this node's, and what an instance is called there.

use anyhow::{Context, Result};

use crate::launch::address::is_here;
use crate::launch::message::Seat;

/// The instance's name at a server: several of one machine each have their own.
pub fn name_of(name: &str, rank: u16, share: u32) -> String {
    if share > 1 && rank > 0 {
        format!("{name}.{rank}")
    } else {
        name.to_owned()
    }
}

/// What this node calls itself.
pub fn own_name() -> String {
    let name = nix::unistd::gethostname().unwrap_or_default();
    name.to_string_lossy().into_owned()
}

/// The seat whose host is this node: as Slurm calls it, or as it calls itself.
pub fn find_here(seats: &[Seat]) -> Result<Seat> {
    let slurm = std::env::var("SLURMD_NODENAME").ok();
    let named = |seat: &&Seat| match &slurm {
        Some(name) => seat.host == *name,
        None => is_here(&seat.host).unwrap_or(false),
    };
    let seat = seats.iter().find(named);
    let seat = seat.with_context(|| format!("{} is not among the nodes", own_name()))?;
    Ok(seat.clone())
}
