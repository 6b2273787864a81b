//! The placements of directories. All entries of a directory are at the server of the node that
//! makes them, as long as only one node does; see docs/design/0006-directories.md.
//!
//! ```text
//!  Unused --first maker--> At(node of the maker) --another maker--> Spread(FirstServer)
//! ```
//!
//! The directory's home decides ([`InstanceNames::place_entries`]), and tells each server that asks. A server refuses
//! requests for a name of which it is not the home ([`FsError::Elsewhere`]), so the placements that other servers
//! remember need not be right. No entry ever moves.
//!
//! Invariants:
//! - A server that has all entries of a directory knows so from the directory's home, and no other
//!   server is the home of a name in it before this server has agreed ([`InstanceNames::split_dir`]). It
//!   agrees when no name of the directory is locked or about to be changed.
//! - Once a directory is spread, its first server never gets a name whose hash names another home.
//! - A server checks that it is the home of a name under the name's lock, or awaits nothing between
//!   the check and the use.
//!
//! The root is spread from the beginning, and has no first server.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use weir_core::journal::{self, Item};
use weir_core::names::{NewTree, Policy};
use weir_core::placement::{hash_of_name, home_of_entry};
use weir_core::proto::peer::{self, FirstServer, PeerOperation, Placement, PlacementQuery};
use weir_core::proto::FsError;
use weir_core::types::{Ino, Rank};

use crate::cluster::abilities::NameTables;
use crate::cluster::names::{InstanceNames, NameKey, NamesNeeds};
use crate::cluster::snapshot::show_from;
use crate::cluster::ROOT;
use crate::node::{SnapshotPosition, Visit};

/// A directory with more entries at one server is not split, because its home must tell other
/// servers their names, and that message is bounded.
const SPLIT_MOST: u64 = 4096;
/// The most placements of other servers' directories that are remembered, and the most names of
/// their first servers; beyond that all are dropped.
const KNOWN_MOST: usize = 1 << 16;
const NAMES_MOST: usize = 1 << 20;

/// The pause before a server that refused is asked again, ns.
const PAUSE_NS: i64 = 5_000_000;

/// The placements that a server knows.
#[derive(Debug, Default)]
pub struct Placements {
    /// Placements of its own directories; a missing one has no entries.
    own: BTreeMap<Ino, Placement>,
    /// Placements of other servers' directories, as their homes have said. A spread directory stays
    /// spread.
    known: HashMap<Ino, Placement>,
    /// The number of names of first servers in `known`, at most.
    known_names: usize,
    /// Directories that have all their entries here.
    has_all: BTreeSet<Ino>,
    /// The number of requests to this server to split a directory.
    splits: u64,
}

impl Placements {
    fn placement_of(&self, dir: Ino) -> Option<&Placement> {
        self.own.get(&dir).or_else(|| self.known.get(&dir))
    }

    /// Remembers another server's answer about its directory.
    fn learn(&mut self, dir: Ino, placed: &Placement) {
        let names = match placed {
            Placement::Spread(first) => first.names.len(),
            _ => 0,
        };
        self.known_names += names;
        if self.known.len() >= KNOWN_MOST || self.known_names > NAMES_MOST {
            self.known.clear();
            self.known_names = names;
        }
        self.known.insert(dir, placed.clone());
    }

    /// Forgets a directory that is gone.
    pub(super) fn forget(&mut self, dir: Ino) {
        self.own.remove(&dir);
        self.known.remove(&dir);
    }

    /// Restores the state from the journal.
    pub(super) fn take_up(&mut self, state: &mut journal::Cluster) {
        self.own = std::mem::take(&mut state.placed);
        self.has_all = std::mem::take(&mut state.has_all);
    }

    /// Visits some of the journalled placements of its own directories; returns the position to go
    /// on from.
    pub(super) fn show_own(
        &self,
        from: SnapshotPosition,
        most: usize,
        visit: Visit<'_>,
    ) -> Option<SnapshotPosition> {
        show_from(self.own.range(from.ino..), from, most, |dir, placed| {
            visit(&Item::Placed(*dir, placed.clone()));
        })
    }

    /// Like [`Placements::show_own`], for the directories that have all their entries here.
    pub(super) fn show_all_here(
        &self,
        from: SnapshotPosition,
        most: usize,
        visit: Visit<'_>,
    ) -> Option<SnapshotPosition> {
        let all = self.has_all.range(from.ino..).map(|dir| (dir, ()));
        show_from(all, from, most, |dir, ()| {
            visit(&Item::HasAll(*dir, true));
        })
    }
}

/// The server that is taken for the home of a name.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::cluster) struct NameHome {
    pub(in crate::cluster) rank: Rank,
    /// True for the first server of a spread directory that kept the name when it was spread. If it refuses the name,
    /// it no longer has it.
    kept: bool,
}

/// The use that the asker is about to make of a name.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::cluster) enum NameUse {
    /// To find, change or take an existing name.
    Existing,
    /// To make the name refer to something.
    New,
}

impl<S: NamesNeeds> InstanceNames<S> {
    /// Asks the home of a name, and follows refusals to the right one; returns the reply, the home,
    /// and the number of the session. `NotFound` if the directory has no entry.
    pub(super) async fn ask_home<O: PeerOperation + Clone + 'static>(
        &self,
        dir: Ino,
        name: &[u8],
        name_use: NameUse,
        op: O,
    ) -> Result<(O::Reply, Rank, u64), FsError> {
        let mut refused = None;
        loop {
            let home = self.find_home(dir, name, name_use, refused).await?;
            let home = home.ok_or(FsError::NotFound)?;
            if refused == Some(home) {
                self.pause_before_retry().await?;
            }
            match self.server.call_in(home.rank, op.clone()).await {
                Err(FsError::Elsewhere) => refused = Some(home),
                answered => {
                    let (reply, session) = answered?;
                    return Ok((reply, home.rank, session));
                }
            }
        }
    }

    /// Like [`InstanceNames::ask_home`], but returns only the reply.
    pub(super) async fn call_home<O: PeerOperation + Clone + 'static>(
        &self,
        dir: Ino,
        name: &[u8],
        name_use: NameUse,
        op: O,
    ) -> Result<O::Reply, FsError> {
        Ok(self.ask_home(dir, name, name_use, op).await?.0)
    }

    /// The home of a name, to this server's knowledge; `None` if an existing name is asked for and the directory has no
    /// entry. `refused` is a server that was wrongly taken for the home.
    pub(super) async fn find_home(
        &self,
        dir: Ino,
        name: &[u8],
        name_use: NameUse,
        refused: Option<NameHome>,
    ) -> Result<Option<NameHome>, FsError> {
        let home = |rank| NameHome { rank, kept: false };
        let hashed = home(self.hashed_home(dir, name));
        if dir == ROOT {
            return Ok(Some(hashed));
        }
        let spread = |first: &FirstServer| {
            let kept = NameHome {
                rank: first.rank,
                kept: first.names.binary_search(&hash_of_name(dir, name)).is_ok(),
            };
            match kept.kept && refused != Some(kept) {
                true => kept,
                false => hashed,
            }
        };
        {
            let placements = self.state().placements.borrow();
            if refused.is_none() && placements.has_all.contains(&dir) {
                return Ok(Some(home(self.server.rank())));
            }
            match placements.placement_of(dir) {
                Some(Placement::Spread(first)) => return Ok(Some(spread(first))),
                Some(Placement::At { rank, .. }) if refused.is_none() => {
                    return Ok(Some(home(*rank)))
                }
                _ => {}
            }
        }
        let why = match (name_use, refused) {
            (NameUse::Existing, None) => PlacementQuery::Look,
            (NameUse::Existing, Some(_)) => PlacementQuery::Refused,
            (NameUse::New, None) => PlacementQuery::Make,
            (NameUse::New, Some(_)) => PlacementQuery::Split,
        };
        Ok(match self.ask_placement(dir, why).await? {
            Placement::Unused => None,
            Placement::At { rank, .. } => Some(home(rank)),
            Placement::Spread(first) => Some(spread(&first)),
        })
    }

    /// Waits before this server asks a server again that is said to be the home of a name and has refused it; fails if
    /// no time is left. The other server may wait for something that the directory's home has forgotten by a restart.
    pub(super) async fn pause_before_retry(&self) -> Result<(), FsError> {
        self.server
            .peers()
            .until(self.server.peers().now_ns() + PAUSE_NS)
            .await;
        (self.server.peers().time_left() > 0)
            .then_some(())
            .ok_or(FsError::Unreachable)
    }

    fn hashed_home(&self, dir: Ino, name: &[u8]) -> Rank {
        home_of_entry(dir, name, self.server.peers().servers())
    }

    /// Asks a directory's home for its placement, and remembers the answer.
    async fn ask_placement(&self, dir: Ino, query: PlacementQuery) -> Result<Placement, FsError> {
        let splits = self.state().placements.borrow().splits;
        let placed = self
            .server
            .call(dir.rank(), peer::PlaceEntries { dir, query })
            .await?;
        let mut placements = self.state().placements.borrow_mut();
        match &placed {
            Placement::At { rank, .. } | Placement::Spread(FirstServer { rank, .. })
                if rank.0 >= self.server.peers().servers() =>
            {
                return Err(FsError::Malformed);
            }
            Placement::At { rank, splitting } if *rank == self.server.rank() => {
                // A split requested meanwhile may be later than this answer.
                let is_so = !splitting && placements.splits == splits;
                if is_so && placements.has_all.insert(dir) {
                    self.server.note(&Item::HasAll(dir, true));
                }
            }
            Placement::At { .. } | Placement::Spread(_) if dir.rank() != self.server.rank() => {
                placements.learn(dir, &placed);
            }
            _ => {}
        }
        Ok(placed)
    }

    /// Refuses names of which this server is not the home; see the invariants.
    pub(super) async fn check_home(&self, key: &NameKey) -> Result<(), FsError> {
        let mut home = self.is_home(key);
        if home.is_none() {
            self.ask_placement(key.dir, PlacementQuery::Look).await?;
            home = self.is_home(key);
        }
        (home == Some(true)).then_some(()).ok_or(FsError::Elsewhere)
    }

    /// Returns true if this server is the home of a name; `None` if the directory's home has to be
    /// asked.
    fn is_home(&self, key: &NameKey) -> Option<bool> {
        let NameKey { dir, name } = key;
        let hashed = || self.hashed_home(*dir, name) == self.server.rank();
        if *dir == ROOT {
            return Some(hashed());
        }
        if self.state().splitting.is_held(dir) {
            return Some(false);
        }
        let placements = self.state().placements.borrow();
        if placements.has_all.contains(dir) {
            return Some(true);
        }
        if self
            .server
            .node(|node| matches!(node.names().find_child(*dir, name), Ok(Some(_))))
        {
            return Some(true);
        }
        match placements.placement_of(*dir) {
            Some(Placement::Spread(_)) => Some(hashed()),
            _ => None,
        }
    }

    /// Returns true if this server has all entries of a directory: a name without an entry here has
    /// none.
    pub(super) fn has_all_entries(&self, dir: Ino) -> bool {
        let placements = self.state().placements.borrow();
        placements.has_all.contains(&dir) && !self.state().splitting.is_held(&dir)
    }

    /// Refuses another server's new name if the directory has all its entries here and is to be
    /// split for that name.
    pub(super) fn refuse_to_split(&self, from: Rank, dir: Ino) -> Result<(), FsError> {
        let splits = from != self.server.rank() && self.has_all_entries(dir) && self.can_split(dir);
        (!splits).then_some(()).ok_or(FsError::Elsewhere)
    }

    /// Returns true if this server may split a directory once no request locks a name of it.
    fn can_split(&self, dir: Ino) -> bool {
        let entries = self
            .server
            .node(|node| node.names().part_of(dir))
            .map(|part| part.entries);
        // It may have no entry yet.
        entries.unwrap_or(0) <= SPLIT_MOST && !self.has_loose_moves(dir)
    }

    /// See [`peer::PlaceEntries`].
    pub(in crate::cluster) async fn place_entries(
        &self,
        from: Rank,
        op: peer::PlaceEntries,
    ) -> Result<Placement, FsError> {
        let (dir, placing) = (op.dir, &self.state().placing);
        if matches!(op.query, PlacementQuery::Make | PlacementQuery::Split) {
            self.settle(dir).await;
        }
        let _turn = match op.query {
            PlacementQuery::Look | PlacementQuery::Make => None,
            PlacementQuery::Refused | PlacementQuery::Split => {
                Some(self.server.peers().hold_in_time(placing, dir).await?)
            }
        };
        self.living_dir(dir)?;
        let placed = match (self.current_placement(dir), op.query) {
            (Placement::Unused, PlacementQuery::Make | PlacementQuery::Split) => {
                self.expect_entries(from, dir);
                settled_at(from)
            }
            (Placement::At { rank, .. }, PlacementQuery::Split) if rank != from => {
                match self.server.call(rank, peer::SplitDir { dir }).await? {
                    Some(mut names) => {
                        names.sort_unstable();
                        Placement::Spread(FirstServer { rank, names })
                    }
                    None => return Ok(settled_at(rank)),
                }
            }
            // The turn keeps other requests from splitting the directory.
            (Placement::At { rank, .. }, PlacementQuery::Refused | PlacementQuery::Split) => {
                return Ok(settled_at(rank))
            }
            (placed, _) => return Ok(placed),
        };
        self.server.note(&Item::Placed(dir, placed.clone()));
        let mut placements = self.state().placements.borrow_mut();
        placements.own.insert(dir, placed.clone());
        Ok(placed)
    }

    fn current_placement(&self, dir: Ino) -> Placement {
        match self.state().placements.borrow().own.get(&dir) {
            None => Placement::Unused,
            Some(Placement::At { rank, .. }) => Placement::At {
                rank: *rank,
                splitting: self.state().placing.is_held(&dir),
            },
            Some(placed) => placed.clone(),
        }
    }

    /// See [`peer::SplitDir`].
    pub(in crate::cluster) async fn split_dir(
        &self,
        dir: Ino,
    ) -> Result<Option<Vec<u64>>, FsError> {
        self.state().placements.borrow_mut().splits += 1;
        let _splitting = self
            .server
            .peers()
            .hold_in_time(&self.state().splitting, dir)
            .await?;
        let quiet = async {
            let names = &self.state().name_locks;
            while let Some(key) = names.first_held(|key| key.dir == dir) {
                // A stuck lock has no queue, so it is polled.
                if names
                    .try_hold(key, self.server.peers().token())
                    .await
                    .is_err()
                {
                    self.pause_before_retry().await?;
                }
            }
            Ok(())
        };
        self.server.peers().in_time(quiet).await?;
        if !self.can_split(dir) {
            return Ok(None);
        }
        let names = self.server.node(|node| node.names().names_of(dir));
        let hashes = names.iter().map(|name| hash_of_name(dir, name));
        let mut placements = self.state().placements.borrow_mut();
        if placements.has_all.remove(&dir) {
            self.server.note(&Item::HasAll(dir, false));
        }
        drop(placements);
        self.server.node(|node| node.known().drop_all_here(dir));
        Ok(Some(hashes.collect()))
    }

    /// Makes the trees of elevated directories, before anything else is made; files in them get this
    /// policy.
    pub fn make_trees(&self, trees: &[NewTree], policy: Policy) -> Result<(), FsError> {
        let filled = self
            .server
            .node(|node| node.names().make_trees(trees, policy))?;
        let mut placements = self.state().placements.borrow_mut();
        for dir in filled {
            placements.own.insert(dir, settled_at(self.server.rank()));
            placements.has_all.insert(dir);
        }
        Ok(())
    }

    /// Forgets the placement of a directory that is gone, or of which this server holds no entry
    /// any more.
    pub(super) fn forget_placement(&self, dir: Ino) {
        let mut placements = self.state().placements.borrow_mut();
        placements.forget(dir);
        if placements.has_all.remove(&dir) {
            self.server.note(&Item::HasAll(dir, false));
        }
        self.server.node(|node| node.known().drop_all_here(dir));
    }
}

fn settled_at(rank: Rank) -> Placement {
    Placement::At {
        rank,
        splitting: false,
    }
}

#[cfg(test)]
mod tests;
