//! The movers on other nodes that help with a stage.
//!
//! They are started once there is enough to move, and come in their own time. Until then each has one task that nobody
//! else takes, for a while: so a stage that the command's node could just about do alone is shared, too.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::mover::FileMover;

/// The files or the bytes from which on other nodes are asked for help.
const TEAM_FILES: u64 = 256;
/// The bytes.
const TEAM_BYTES: u64 = 16 << 20;
/// How long a mover may take to come before others do what is kept for it.
const ARRIVAL_TIME: Duration = Duration::from_secs(10);

/// Which node moves a file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FilePlacement {
    /// The one that has its bytes: the source is an instance.
    Held,
    /// Each node as many bytes as any other one: they stay where they are written, in an instance.
    Spread,
}

/// News of a mover that was to come.
#[derive(Debug)]
pub enum MoverNews {
    /// It is here.
    Arrived(Box<dyn FileMover>),
    /// That of this rank does not help.
    Refused(u16),
}

/// Something that starts movers.
pub trait MoverSource: Sync + Debug {
    /// Has movers started on other nodes. Returns the ranks of their servers.
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
    /// The time until which others leave a task to it, by rank.
    awaited: BTreeMap<u16, Instant>,
    movers: BTreeMap<u16, Arc<dyn FileMover>>,
    /// The bytes of the tasks that each node with room has got, this one too.
    placed: BTreeMap<u16, u64>,
}

/// A change of a team.
pub(super) enum TeamChange {
    Arrived(Arc<dyn FileMover>),
    /// The mover of this rank does not come, or not soon.
    NotThere(u16),
}

impl<'m> StageTeam<'m> {
    /// Nobody was asked to help yet. `rank`: of the server beside this process.
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

    /// Asks for help if there are so many files and bytes that it is worth it. Calls `expect` with each rank that is to
    /// come, before there is news of it.
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

    /// The movers that are here, and the ranks of those that are to come.
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
                    // One that has come late, too.
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

    /// Has all movers end what they do. Returns the ranks of those that are not awaited any more.
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

    /// The rank whose node is to do a task of this number of bytes, most of which `holder` has.
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
