//! The movers on other nodes that help with a stage.
//!
//! They are started once there is enough to move, and connect later. Until then, for up to `ARRIVAL_TIME`, one task or more
//! is kept for each: so other nodes get a share of a short stage, too.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::mover::FileMover;

/// The number of files from which on other nodes are asked for help.
const TEAM_FILES: u64 = 256;
/// The number of bytes from which on they are asked.
const TEAM_BYTES: u64 = 16 << 20;
/// If a mover has not come after this time, others do the tasks that were kept for it.
const ARRIVAL_TIME: Duration = Duration::from_secs(10);

/// The rule for the node that moves a file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FilePlacement {
    /// The node that has its bytes: the source is an instance.
    Held,
    /// Each node moves about as many bytes as the others: the target is an instance, and bytes stay on the node that writes
    /// them.
    Spread,
}

/// News of an expected mover.
#[derive(Debug)]
pub enum MoverNews {
    /// It has come.
    Arrived(Box<dyn FileMover>),
    /// The mover of this rank does not help.
    Refused(u16),
}

/// A source of movers: it starts them on other nodes.
pub trait MoverSource: Sync + Debug {
    /// Starts movers on other nodes. Returns the ranks of their servers.
    fn invite(&self) -> Vec<u16>;
    /// The news since the last call.
    fn take_news(&self) -> Vec<MoverNews>;
    /// Notes that a mover does not help any more.
    fn note_loss(&self, _rank: u16, _reason: &str) {}
}

/// The movers of a stage, or of several, one after the other.
#[derive(Debug)]
pub struct StageTeam<'m> {
    rank: u16,
    placement: FilePlacement,
    source: &'m dyn MoverSource,
    state: Mutex<TeamState>,
}

#[derive(Debug)]
struct TeamState {
    is_invited: bool,
    /// For each expected mover, by rank, the time until which tasks are kept for it.
    awaited: BTreeMap<u16, Instant>,
    movers: BTreeMap<u16, Arc<dyn FileMover>>,
    /// The bytes of the tasks that each node with room has got, including this one.
    placed: BTreeMap<u16, u64>,
}

/// A change of a team.
pub(super) enum TeamChange {
    Arrived(Arc<dyn FileMover>),
    /// The mover of this rank does not come, or not soon.
    NotThere(u16),
}

impl<'m> StageTeam<'m> {
    /// A team whose movers are not invited yet. `rank`: that of this node's server.
    pub fn new(rank: u16, placement: FilePlacement, source: &'m dyn MoverSource) -> StageTeam<'m> {
        StageTeam {
            rank,
            placement,
            source,
            state: Mutex::new(TeamState {
                is_invited: false,
                awaited: BTreeMap::new(),
                movers: BTreeMap::new(),
                placed: BTreeMap::from([(rank, 0)]),
            }),
        }
    }

    fn state(&self) -> MutexGuard<'_, TeamState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn rank(&self) -> u16 {
        self.rank
    }

    pub(super) fn placement(&self) -> FilePlacement {
        self.placement
    }

    /// Invites movers if there are enough files or bytes. Calls `expect` with the rank of each invited mover, before there
    /// is news of it.
    pub(super) fn invite(&self, files: u64, bytes: u64, expect: impl Fn(u16)) {
        if files < TEAM_FILES && bytes < TEAM_BYTES {
            return;
        }
        let mut state = self.state();
        if state.is_invited {
            return;
        }
        state.is_invited = true;
        let invited = self.source.invite();
        let until = Instant::now() + ARRIVAL_TIME;
        for rank in invited.iter().filter(|rank| **rank != self.rank) {
            state.awaited.insert(*rank, until);
            state.placed.insert(*rank, 0);
            expect(*rank);
        }
    }

    /// The movers that have come, and the ranks of those that are expected.
    pub(super) fn members(&self) -> (Vec<Arc<dyn FileMover>>, Vec<u16>) {
        let state = self.state();
        let movers = state.movers.values().cloned().collect();
        (movers, state.awaited.keys().copied().collect())
    }

    pub(super) fn has_members(&self) -> bool {
        let state = self.state();
        !state.movers.is_empty() || !state.awaited.is_empty()
    }

    /// The changes since the last call.
    pub(super) fn take_changes(&self) -> Vec<TeamChange> {
        let mut changes = Vec::new();
        let news = self.source.take_news();
        let mut state = self.state();
        for news in news {
            match news {
                MoverNews::Arrived(mover) => {
                    let (rank, mover) = (mover.rank(), Arc::from(mover));
                    state.awaited.remove(&rank);
                    let most = state.placed.values().max().copied().unwrap_or(0);
                    // This includes a mover that has come late.
                    state.placed.entry(rank).or_insert(most);
                    state.movers.insert(rank, Arc::clone(&mover));
                    changes.push(TeamChange::Arrived(mover));
                }
                MoverNews::Refused(rank) => {
                    state.awaited.remove(&rank);
                    state.placed.remove(&rank);
                    changes.push(TeamChange::NotThere(rank));
                }
            }
        }
        let now = Instant::now();
        let late: Vec<u16> = state
            .awaited
            .iter()
            .filter(|(_, until)| **until < now)
            .map(|(rank, _)| *rank)
            .collect();
        for rank in late {
            state.awaited.remove(&rank);
            state.placed.remove(&rank);
            changes.push(TeamChange::NotThere(rank));
        }
        changes
    }

    /// Stops all movers. Returns the ranks of those that are not expected any more.
    pub(super) fn stop(&self) -> Vec<u16> {
        let mut state = self.state();
        state.movers.values().for_each(|mover| mover.stop());
        std::mem::take(&mut state.awaited).into_keys().collect()
    }

    /// Forgets a mover that does not help any more.
    pub(super) fn dismiss(&self, rank: u16, reason: &str) {
        let mut state = self.state();
        state.movers.remove(&rank);
        state.placed.remove(&rank);
        drop(state);
        self.source.note_loss(rank, reason);
    }

    /// Notes that a node has no room. Returns the number of other nodes that may have some.
    pub(super) fn note_full(&self, rank: u16) -> usize {
        let mut state = self.state();
        state.placed.remove(&rank);
        state.placed.len()
    }

    /// The rank whose node does a task of this number of bytes, most of which `holder` has.
    pub(super) fn place(&self, holder: u16, bytes: u64) -> u16 {
        if self.placement == FilePlacement::Held {
            return holder;
        }
        let mut state = self.state();
        let least = state.placed.iter_mut().min_by_key(|(_, placed)| **placed);
        let Some((rank, placed)) = least else {
            return self.rank;
        };
        // Empty files are work, too.
        *placed += bytes.max(1);
        *rank
    }
}
