//! Names of other servers, kept by servers that asked for them, so that a path is walked without
//! asking again for names that were looked up before.
//!
//! The home of an entry notes the servers that keep it. It recalls the entry under the name's lock
//! before the entry changes ([`InstanceNames::recall_entry`]). Until then the name cannot be asked for
//! again.
//!
//! Invariants:
//! - A server believes another's entry only on the home's word. It does not keep a reply that a recall has
//!   overtaken; the count of recalls shows that.
//! - An entry is believed for a term, like a lease (`session`): a home that cannot recall it waits
//!   until the term is over, and a restarted home tells all servers before it changes any.
//! - The processes of this node see the kept entries in shared memory ([`weir_core::node::known`]).
//!   An entry is removed there before this server stops believing it.
//!
//! Left out: negative entries.

use std::collections::{BTreeSet, HashMap};

use futures_util::future::join_all;
use weir_core::names::Attr;
use weir_core::node::known::Guard;
use weir_core::proto::peer::{self, News};
use weir_core::proto::{self, Child, FsError, Kept};
use weir_core::types::{Ino, Rank};

use crate::cluster::abilities::NameTables;
use crate::cluster::names::placements::NameUse;
use crate::cluster::names::{InstanceNames, NameKey, NameSteps, NamesNeeds};
use crate::cluster::ROOT;

/// The most entries kept; beyond that all are dropped.
const KNOWN_MOST: usize = 1 << 16;
/// The most entries whose keepers are noted; beyond that no entry is given to keep.
const NOTED_MOST: usize = 1 << 18;

/// Entries kept here, and the keepers of this server's entries.
#[derive(Debug, Default)]
pub struct EntryCache {
    /// The inode that each name names, and the home of the entry.
    known: HashMap<NameKey, (Child, Rank)>,
    /// The number of recalls.
    recalls: u64,
    /// The servers that keep entries of this one.
    keepers: HashMap<NameKey, BTreeSet<Rank>>,
}

impl EntryCache {
    fn find_entry(&self, key: &NameKey) -> Option<(Child, Rank)> {
        self.known.get(key).copied()
    }

    /// Keeps an entry of another server.
    fn keep_entry(&mut self, key: NameKey, child: Child, home: Rank) {
        if self.known.len() >= KNOWN_MOST {
            self.known.clear();
        }
        self.known.insert(key, (child, home));
    }

    /// Drops an entry that its home recalls.
    fn drop_entry(&mut self, key: &NameKey) {
        self.recalls += 1;
        self.known.remove(key);
    }

    /// Drops all entries of a server.
    fn drop_home(&mut self, home: Rank) {
        self.recalls += 1;
        self.known.retain(|_, (_, of)| *of != home);
    }

    /// Returns true if another server may be noted as a keeper of an entry.
    fn has_room_for_keeper(&self, key: &NameKey) -> bool {
        self.keepers.len() < NOTED_MOST || self.keepers.contains_key(key)
    }

    /// Returns true if another server may keep an entry.
    pub(super) fn is_kept(&self, key: &NameKey) -> bool {
        self.keepers.contains_key(key)
    }

    fn add_keeper(&mut self, key: NameKey, keeper: Rank) {
        self.keepers.entry(key).or_default().insert(keeper);
    }

    /// Takes out the servers that keep an entry.
    fn take_keepers(&mut self, key: &NameKey) -> Vec<Rank> {
        let keepers = self.keepers.remove(key);
        keepers.into_iter().flatten().collect()
    }

    /// Forgets the entries that a server keeps.
    fn forget_keeper(&mut self, keeper: Rank) {
        self.keepers.retain(|_, keepers| {
            keepers.remove(&keeper);
            !keepers.is_empty()
        });
    }
}

impl<S: NamesNeeds> InstanceNames<S> {
    /// Finds a name at any server.
    pub(super) async fn find_anywhere(&self, op: proto::Find) -> Result<Option<Child>, FsError> {
        let (dir, name) = (self.server.resolve(op.dir)?, op.name);
        if self.has_all_entries(dir) {
            return self.find_among_all(dir, name).await;
        }
        // Each server knows by itself where the names of the root are.
        if dir != ROOT && self.has_lost_home(dir) {
            return self.find_without_home(dir, &name).await;
        }
        let key = NameKey::new(dir, name.clone());
        let recalls = {
            let entries = self.state().entries.borrow();
            if let Some((child, home)) = entries.find_entry(&key) {
                self.server.peers().use_lease(home);
                self.show_entry(&key, child);
                return Ok(Some(child));
            }
            entries.recalls
        };
        let asked_ns = self.server.peers().now_ns();
        let find = peer::FindToKeep {
            dir,
            name: name.clone(),
        };
        let asked = self.ask_home(dir, &name, NameUse::Existing, find).await;
        let (mut found, home, session) = match asked {
            Err(FsError::NotFound) => return Ok(None),
            asked => asked?,
        };
        if home == self.server.rank() {
            return Ok(found.what);
        }
        found.may_keep &= self.server.peers().is_session(home, session)
            && self.server.peers().believe_lease(home, asked_ns);
        let mut entries = self.state().entries.borrow_mut();
        found.may_keep &= entries.recalls == recalls;
        if let Some(child) = found.what.filter(|_| found.may_keep) {
            self.show_entry(&key, child);
            entries.keep_entry(key, child, home);
        }
        Ok(found.what)
    }

    /// Shows a believed entry to the processes of this node.
    fn show_entry(&self, key: &NameKey, child: Child) {
        self.server.node(|node| {
            let known = node.known_to_keep();
            known.keep_entry(key.dir, &key.name, child.ino, child.kind);
        });
    }

    /// Finds a name in a directory that has all its entries here.
    async fn find_among_all(&self, dir: Ino, name: Vec<u8>) -> Result<Option<Child>, FsError> {
        let find = peer::Find {
            dir,
            name: name.clone(),
        };
        let found = self.call_home(dir, &name, NameUse::Existing, find);
        let found = found.await?;
        if found.is_none() && self.has_all_entries(dir) {
            self.server
                .node(|node| node.known_to_keep().keep_all_here(dir));
        }
        Ok(found)
    }

    /// Finds a name at its home, for a server that may keep the entry.
    pub(in crate::cluster) async fn find_to_keep(
        &self,
        from: Rank,
        op: peer::FindToKeep,
    ) -> Result<Kept<Option<Child>>, FsError> {
        let (dir, name) = (op.dir, op.name);
        let key = NameKey::new(dir, name.clone());
        let what = self.find(peer::Find { dir, name }).await?;
        let mut entries = self.state().entries.borrow_mut();
        let room = entries.has_room_for_keeper(&key);
        let asks_still = self.server.peers().check_session_of(from).is_ok();
        let may_keep = what.is_some() && room && from != self.server.rank() && asks_still;
        if may_keep {
            entries.add_keeper(key, from);
        }
        Ok(Kept { what, may_keep })
    }

    /// Makes other servers drop an entry of this server before it changes. The caller has it
    /// locked.
    pub(super) async fn recall_entry(&self, key: &NameKey) {
        self.server.announced().await;
        let ranks = self.state().entries.borrow_mut().take_keepers(key);
        if ranks.is_empty() {
            return;
        }
        let NameKey { dir, name } = key.clone();
        let news = News::DropEntry(peer::DropEntry { dir, name });
        let told = self.server.peers().tell(&ranks, &news).await;
        join_all(
            told.lost
                .into_iter()
                .map(|rank| self.server.peers().outwait(rank)),
        )
        .await;
    }

    pub(in crate::cluster) fn drop_entry(&self, key: &NameKey) {
        let mut entries = self.state().entries.borrow_mut();
        entries.drop_entry(key);
        self.server
            .node(|node| node.known().drop_entry(key.dir, &key.name));
    }

    /// Drops all entries of a server whose session or term has ended.
    pub(in crate::cluster) fn forget_known(&self, of: Rank) {
        let mut entries = self.state().entries.borrow_mut();
        entries.drop_home(of);
        self.server.node(|node| node.forget_known());
    }

    /// Forgets the entries that a server keeps: it begins a session, so it keeps none.
    pub(in crate::cluster) fn forget_kept(&self, by: Rank) {
        let mut entries = self.state().entries.borrow_mut();
        entries.forget_keeper(by);
    }

    /// Type, mode and owner of a directory of any server. If the directory has entries here, they are known here, since
    /// its home reports their changes.
    pub(in crate::cluster) async fn passage_here(&self, ino: Ino) -> Result<Attr, FsError> {
        let dir = self.server.resolve(ino)?;
        if dir.rank() == self.server.rank() {
            return self.server.node(|node| node.names().attr_of(dir));
        }
        let Some(attr) = self.server.node(|node| node.names().passage(dir)) else {
            return match self.has_lost_home(dir) {
                true => self.attr_without_home(dir).await,
                false => self.server.call(dir.rank(), peer::Passage { dir }).await,
            };
        };
        self.server
            .node(|node| node.known_to_keep().keep_guard(dir, &Guard::from(&attr)));
        Ok(attr)
    }

    /// See [`peer::Passage`].
    pub(in crate::cluster) fn passage_for_peer(&self, dir: Ino) -> Result<Attr, FsError> {
        if dir.rank() == self.server.rank() {
            return self.server.node(|node| node.names().attr_of(dir));
        }
        let stand_in = self.server.node(|node| node.names().passage(dir));
        let stand_in = stand_in.filter(|_| self.has_lost_home(dir));
        stand_in.ok_or(FsError::Malformed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use weir_core::names::FileType;

    fn key(name: &str) -> NameKey {
        NameKey::new(Ino(1), name.as_bytes().to_vec())
    }

    fn child(ino: u64) -> Child {
        Child {
            ino: Ino(ino),
            kind: FileType::File,
        }
    }

    #[test]
    fn entries_go_with_a_recall_or_with_their_home() {
        let mut cache = EntryCache::default();
        for (name, home) in [("a", 1), ("b", 1), ("c", 2)] {
            cache.keep_entry(key(name), child(7), Rank(home));
        }
        let before = cache.recalls;
        cache.drop_entry(&key("a"));
        assert_eq!(cache.find_entry(&key("a")), None);
        assert_eq!(cache.find_entry(&key("b")), Some((child(7), Rank(1))));
        cache.drop_home(Rank(1));
        assert_eq!(cache.find_entry(&key("b")), None);
        assert_eq!(cache.find_entry(&key("c")), Some((child(7), Rank(2))));
        assert_eq!(cache.recalls, before + 2, "answers on their way are old");
    }

    #[test]
    fn an_entry_is_recalled_from_each_keeper_once() {
        let mut cache = EntryCache::default();
        for keeper in [2, 1, 2] {
            cache.add_keeper(key("a"), Rank(keeper));
        }
        cache.add_keeper(key("b"), Rank(1));
        cache.forget_keeper(Rank(1));
        assert_eq!(cache.take_keepers(&key("a")), [Rank(2)]);
        assert_eq!(cache.take_keepers(&key("a")), []);
        assert_eq!(cache.take_keepers(&key("b")), []);
    }
}
