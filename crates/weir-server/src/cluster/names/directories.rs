//! Directories whose entries are at several servers.
//!
//! A directory's home knows the servers that may hold entries of it. A server *enrols* before its
//! first entry, and stays enrolled until the home, to remove the directory, asks it to retire.
//! Meanwhile the home enrols no server.

use std::collections::{BTreeMap, BTreeSet};

use futures_util::future::join_all;
use weir_core::elevated;
use weir_core::journal::{self, Item};
use weir_core::names::{Attr, FileType};
use weir_core::proto::peer::{self, PartOfDir};
use weir_core::proto::{self, FsError, Listing, PathInTree, Served};
use weir_core::types::{Ino, Rank};

use crate::cluster::abilities::{NameTables, Waits};
use crate::cluster::names::{InstanceNames, NameSteps, NamesNeeds};
use crate::cluster::snapshot::show_from;
use crate::cluster::ROOT;
use crate::node::{SnapshotPosition, Visit};

/// In a readdir cookie, the rank is above this many bits.
const COOKIE_BITS: u32 = 48;
const COOKIE_MASK: u64 = (1 << COOKIE_BITS) - 1;

/// The directory state of a server.
#[derive(Debug)]
pub struct DirectoryTable {
    /// For each directory of this server: the other servers that may hold entries of it.
    enrolled: BTreeMap<Ino, BTreeSet<Rank>>,
    /// Names of directories whose entry is at another server, for their paths.
    moved: BTreeMap<Ino, Vec<u8>>,
}

impl DirectoryTable {
    /// Only the root: every server stands in for it from the beginning.
    pub fn new(rank: Rank, servers: u16) -> DirectoryTable {
        let mut enrolled = BTreeMap::new();
        if rank == ROOT.rank() {
            enrolled.insert(ROOT, (1..servers).map(Rank).collect());
        }
        DirectoryTable {
            enrolled,
            moved: BTreeMap::new(),
        }
    }

    fn enrolled_at(&self, dir: Ino) -> Vec<Rank> {
        let ranks = self.enrolled.get(&dir);
        ranks.into_iter().flatten().copied().collect()
    }

    /// Restores the state from the journal.
    pub(super) fn take_up(&mut self, state: &mut journal::Cluster) {
        self.enrolled.extend(std::mem::take(&mut state.enrolled));
        self.moved = std::mem::take(&mut state.moved).into_iter().collect();
    }

    /// See [`NamesState::show_enrolled`](super::NamesState::show_enrolled).
    pub(super) fn show_enrolled(
        &self,
        from: SnapshotPosition,
        most: usize,
        visit: Visit<'_>,
    ) -> Option<SnapshotPosition> {
        show_from(self.enrolled.range(from.ino..), from, most, |dir, ranks| {
            for rank in ranks {
                visit(&Item::Enrolled(*dir, *rank));
            }
        })
    }

    /// See [`NamesState::show_moved`](super::NamesState::show_moved).
    pub(super) fn show_moved(
        &self,
        from: SnapshotPosition,
        most: usize,
        visit: Visit<'_>,
    ) -> Option<SnapshotPosition> {
        show_from(self.moved.range(from.ino..), from, most, |dir, name| {
            visit(&Item::RemoteName(*dir, name));
        })
    }
}

impl<S: NamesNeeds> InstanceNames<S> {
    /// Ensures that entries of `dir` can be made here. The caller holds `stands` for it.
    pub(super) async fn stand_in(&self, dir: Ino) -> Result<(), FsError> {
        if dir.rank() == self.server.rank() {
            let buried = self.state().burials.is_held(&dir);
            return if buried {
                Err(FsError::WouldBlock)
            } else {
                Ok(())
            };
        }
        if self.server.node(|node| node.names().stands_in(dir)) {
            return Ok(());
        }
        let attr = self.server.call(dir.rank(), peer::Enrol { dir }).await?;
        self.server.node(|node| node.names().adopt_dir(&attr))
    }

    /// Returns true if entries of `dir` can be made here at once: it is here or has a stand-in, and
    /// is not being removed.
    pub(super) fn takes_entries(&self, dir: Ino) -> bool {
        match dir.rank() == self.server.rank() {
            true => !self.state().burials.is_held(&dir),
            false => {
                !self.state().stands.is_held(&dir)
                    && self.server.node(|node| node.names().stands_in(dir))
            }
        }
    }

    pub(in crate::cluster) fn enrol(&self, from: Rank, dir: Ino) -> Result<Attr, FsError> {
        // The home has its own entries in its own table; enrolled, it would ask itself.
        if from == self.server.rank() {
            return Err(FsError::Malformed);
        }
        let attr = self.living_dir(dir)?;
        if self.state().burials.is_held(&dir) {
            return Err(FsError::WouldBlock);
        }
        self.expect_entries(from, dir);
        Ok(attr)
    }

    /// Records that a server may hold entries of a directory of this one.
    pub(super) fn expect_entries(&self, at: Rank, dir: Ino) {
        let mut dirs = self.state().dirs.borrow_mut();
        if at != self.server.rank() && dirs.enrolled.entry(dir).or_default().insert(at) {
            self.server.note(&Item::Enrolled(dir, at));
        }
    }

    /// The attributes of a directory of this server that has a name.
    pub(super) fn living_dir(&self, dir: Ino) -> Result<Attr, FsError> {
        let attr = self.server.node(|node| node.names().attr_of(dir))?;
        if attr.file_type() != FileType::Dir {
            return Err(FsError::NotADirectory);
        }
        (attr.nlink > 0).then_some(attr).ok_or(FsError::NotFound)
    }

    /// Removes a directory that is empty everywhere.
    pub(in crate::cluster) async fn bury(&self, dir: Ino) -> Result<(), FsError> {
        if dir == ROOT {
            return Err(FsError::Busy);
        }
        let _alone = self
            .state()
            .burials
            .hold(dir, self.server.peers().token())
            .await;
        let part = self.server.node(|node| node.names().part_of(dir))?;
        if part.entries > 0 {
            return Err(FsError::NotEmpty);
        }
        let ranks = self.state().dirs.borrow().enrolled_at(dir);
        let asked = ranks
            .iter()
            .map(|rank| self.server.call(*rank, peer::Retire { dir }));
        let answers = join_all(asked).await;
        let mut refused = Ok(());
        for (rank, answer) in ranks.iter().zip(answers) {
            match answer {
                Ok(()) => {
                    let mut dirs = self.state().dirs.borrow_mut();
                    if let Some(enrolled) = dirs.enrolled.get_mut(&dir) {
                        enrolled.remove(rank);
                        self.server.note(&Item::Retired(dir, *rank));
                    }
                }
                Err(error) => refused = Err(error),
            }
        }
        refused?;
        self.server.node(|node| node.end_dir(dir))?;
        let mut dirs = self.state().dirs.borrow_mut();
        dirs.enrolled.remove(&dir);
        dirs.moved.remove(&dir);
        self.forget_placement(dir);
        self.server.note(&Item::DirectoryGone(dir));
        Ok(())
    }

    pub(in crate::cluster) async fn settle(&self, dir: Ino) {
        self.state()
            .burials
            .free(dir, self.server.peers().token())
            .await;
    }

    pub(in crate::cluster) async fn retire(&self, dir: Ino) -> Result<(), FsError> {
        let _alone = self
            .state()
            .stands
            .hold(dir, self.server.peers().token())
            .await;
        self.server.node(|node| node.known().drop_guard(dir));
        self.server.node(|node| node.names().disown_dir(dir))?;
        self.forget_placement(dir);
        Ok(())
    }

    pub(in crate::cluster) fn enrolled(&self, dir: Ino) -> Result<Vec<u16>, FsError> {
        self.server.node(|node| node.names().part_of(dir))?;
        let others = self.state().dirs.borrow().enrolled_at(dir);
        let home = std::iter::once(self.server.rank());
        let mut ranks: Vec<u16> = home.chain(others).map(|rank| rank.0).collect();
        ranks.sort_unstable();
        Ok(ranks)
    }

    pub(in crate::cluster) fn part(&self, dir: Ino) -> Result<PartOfDir, FsError> {
        let part = self.server.node(|node| node.names().part_of(dir))?;
        Ok(PartOfDir {
            dirs: part.dirs,
            changed_ns: part.changed_ns,
        })
    }

    /// A directory's attributes, combined from all servers that hold entries of it.
    pub(in crate::cluster) async fn dir_attr(&self, mut attr: Attr) -> Result<Attr, FsError> {
        let ranks = self.state().dirs.borrow().enrolled_at(attr.ino);
        let asked = ranks
            .into_iter()
            .map(|rank| self.server.call(rank, peer::Part { dir: attr.ino }));
        for part in join_all(asked).await {
            match part {
                Ok(part) => {
                    attr.nlink = attr.nlink.saturating_add(part.dirs);
                    if part.changed_ns != 0 {
                        attr.mtime_ns = attr.mtime_ns.max(part.changed_ns);
                        attr.ctime_ns = attr.ctime_ns.max(part.changed_ns);
                    }
                }
                // The server retired meanwhile, or is lost. Its part of times and links is then
                // unknown, but the directory is there, and entries made in it at other servers need
                // it.
                Err(FsError::Stale | FsError::NotFound | FsError::Unreachable) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(attr)
    }

    /// Tells the servers that hold entries of a directory its mode and group, which new files in it may inherit, and
    /// the time set on it, which overrides their earlier changes.
    pub(in crate::cluster) async fn tell_dir(&self, attr: &Attr, mtime_ns: Option<i64>) {
        let ranks = self.state().dirs.borrow().enrolled_at(attr.ino);
        let asked = ranks.into_iter().map(|rank| {
            let set = proto::SetAttr {
                ino: attr.ino,
                mode: Some(attr.mode & 0o7777),
                uid: Some(attr.uid),
                gid: Some(attr.gid),
                atime_ns: None,
                mtime_ns,
                policy: Some(attr.policy),
            };
            self.server.call(rank, peer::SetAttr { set })
        });
        join_all(asked).await;
    }

    /// Entries for a client: those of one server after the other, in the order of ranks.
    pub(in crate::cluster) fn readdir_for_client(
        &self,
        op: proto::Readdir,
    ) -> Served<Result<Listing, FsError>> {
        if self.server.has_all_names() {
            return Served::Now(self.server.node(|node| node.list(&op)));
        }
        self.later(|this| async move { this.list_homes(op).await })
    }

    async fn list_homes(&self, op: proto::Readdir) -> Result<Listing, FsError> {
        let dir = self.server.resolve(op.ino)?;
        let ranks = self.listed_servers(dir).await?;
        let at = u16::try_from(op.cookie >> COOKIE_BITS).unwrap_or(u16::MAX);
        for rank in ranks.into_iter().filter(|rank| *rank >= at) {
            let begun = if rank == at { op.cookie } else { 0 };
            // A cookie of another server does not apply here.
            let is_of_rank = |until: &u64| until >> COOKIE_BITS == u64::from(rank);
            let list = peer::List {
                dir,
                cookie: begun & COOKIE_MASK,
                until: op
                    .until
                    .map(|until| Some(until).filter(is_of_rank).unwrap_or(0) & COOKIE_MASK),
                budget_bytes: op.budget_bytes,
            };
            let listed = self.server.call(Rank(rank), list).await;
            let home_is_lost = self.server.peers().is_given_up(dir.rank());
            let mut listed = match listed {
                Err(FsError::Stale) => continue,
                Err(FsError::NotFound) if home_is_lost => continue,
                listed => listed?,
            };
            if !listed.entries.is_empty() {
                let in_cookies = u64::from(rank) << COOKIE_BITS;
                for entry in &mut listed.entries {
                    entry.cookie |= in_cookies;
                }
                listed.until |= in_cookies;
                return Ok(listed);
            }
        }
        Ok(Listing {
            entries: Vec::new(),
            until: op.until.unwrap_or(0),
        })
    }

    /// The servers that may hold entries of a directory, and that are not given up.
    async fn listed_servers(&self, dir: Ino) -> Result<Vec<u16>, FsError> {
        if self.server.peers().is_given_up(dir.rank()) {
            // Only the lost home knows which of them do.
            let is_there = |rank: &Rank| !self.server.peers().is_given_up(*rank);
            return Ok(self
                .server
                .peers()
                .ranks()
                .filter(is_there)
                .map(|rank| rank.0)
                .collect());
        }
        let mut ranks = self.server.call(dir.rank(), peer::Enrolled { dir }).await?;
        ranks.retain(|rank| !self.server.peers().is_given_up(Rank(*rank)));
        Ok(ranks)
    }

    pub(super) fn note_moved(&self, ino: Ino, parent: Ino, name: Vec<u8>) -> Result<(), FsError> {
        self.server
            .node(|node| node.names().set_parent(ino, parent))?;
        self.server.note(&Item::RemoteName(ino, &name));
        self.state().dirs.borrow_mut().moved.insert(ino, name);
        Ok(())
    }

    pub(in crate::cluster) fn whereabouts(
        &self,
        ino: Ino,
    ) -> Result<Option<(Ino, Vec<u8>)>, FsError> {
        if ino == ROOT {
            return Ok(None);
        }
        if let Some(found) = self.server.node(|node| node.names().parent_and_name(ino)) {
            return Ok(Some(found));
        }
        let attr = self.server.node(|node| node.names().attr_of(ino))?;
        let dirs = self.state().dirs.borrow();
        let name = dirs.moved.get(&ino).filter(|_| attr.parent != Ino::NONE);
        Ok(name.map(|name| (attr.parent, name.clone())))
    }

    /// The path of a directory, from the root of its tree.
    pub(in crate::cluster) fn path_for_client(
        &self,
        ino: Ino,
    ) -> Served<Result<PathInTree, FsError>> {
        if self.server.has_all_names() {
            return Served::Now(self.server.node(|node| node.names().path_here(ino)));
        }
        self.later(|this| async move { this.path_by_homes(ino).await })
    }

    pub(in crate::cluster) async fn path_by_homes(&self, ino: Ino) -> Result<PathInTree, FsError> {
        let mut names: Vec<(Ino, Vec<u8>)> = Vec::new();
        let mut at = self.server.resolve(ino)?;
        let mut root = ROOT;
        while at != ROOT {
            if self.has_lost_home(at) && self.is_root_of_tree(at) {
                root = at;
                break;
            }
            let found = self
                .server
                .call(at.rank(), peer::Whereabouts { ino: at })
                .await?;
            let Some((parent, name)) = found else {
                // An instance without elevated trees gives this number to something else.
                let of_tree = names.pop().filter(|_| at == elevated::PARENT);
                root = of_tree.ok_or(FsError::NotFound)?.0;
                break;
            };
            names.push((at, name));
            at = parent;
        }
        let parts = names.iter().rev();
        let path = match names.is_empty() {
            true => b"/".to_vec(),
            false => parts
                .flat_map(|(_, name)| [b"/", &name[..]].concat())
                .collect(),
        };
        Ok(PathInTree { root, path })
    }

    /// Returns true if `ino` is `ancestor` or below it. No directory moves meanwhile: the caller
    /// has the permit.
    pub(super) async fn is_within(&self, mut ino: Ino, ancestor: Ino) -> Result<bool, FsError> {
        while ino != ancestor {
            match self
                .server
                .call(ino.rank(), peer::Whereabouts { ino })
                .await
            {
                Ok(Some((parent, _))) => ino = parent,
                Ok(None) | Err(FsError::Stale) => return Ok(false),
                Err(error) => return Err(error),
            }
        }
        Ok(true)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use weir_core::journal::State;

    #[test]
    fn all_servers_hold_entries_of_the_root_and_others_when_they_have_enrolled() {
        let all = |table: &DirectoryTable| table.enrolled_at(ROOT);
        assert_eq!(all(&DirectoryTable::new(Rank(0), 3)), [Rank(1), Rank(2)]);
        assert_eq!(all(&DirectoryTable::new(Rank(1), 3)), [], "the home knows");
        let mut table = DirectoryTable::new(Rank(0), 3);
        let dirs = [5, 6, 7].map(|index| Ino::new(Rank(0), 0, index));
        for (dir, rank) in [(dirs[0], 2), (dirs[2], 1), (dirs[2], 2)] {
            table.enrolled.entry(dir).or_default().insert(Rank(rank));
        }
        table.moved.insert(dirs[1], b"name".to_vec());
        table.moved.insert(dirs[2], b"other".to_vec());
        let mut state = State::new(Rank(0));
        let mut visit = |item: &Item<'_>| state.apply(item).unwrap();
        for shows_moved in [false, true] {
            let mut from = Some(SnapshotPosition::FIRST);
            while let Some(position) = from {
                from = match shows_moved {
                    false => table.show_enrolled(position, 1, &mut visit),
                    true => table.show_moved(position, 1, &mut visit),
                };
            }
        }
        let mut taken_up = DirectoryTable::new(Rank(0), 3);
        taken_up.take_up(&mut state.cluster);
        assert_eq!(taken_up.enrolled, table.enrolled);
        assert_eq!(taken_up.moved, table.moved);
    }
}
