//! Names of other servers, kept by servers that asked for them, so that a path is walked without
//! asking again for names that were looked up before.
//!
//! The home of an entry notes the servers that keep it. It recalls the entry under the name's lock
//! before the entry changes ([`Cluster::recall_entry`]). Until then the name cannot be asked for
//! again.
//!
//! Invariants:
//! - A server believes of another's entry only what the home says: it does not keep a reply that a
//!   recall overtook, as the count of recalls shows.
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

use crate::cluster::names::placements::NameUse;
use crate::cluster::Cluster;
use crate::node::Platform;

/// The most entries kept; beyond that all are dropped.
const KNOWN_MOST: usize = 1 << 16;
/// The most entries whose keepers are noted; beyond that no entry is given to keep.
const NOTED_MOST: usize = 1 << 18;

/// A directory and a name in it.
pub(in crate::cluster) type Key = (Ino, Vec<u8>);

/// Entries kept here, and the keepers of this server's entries.
#[derive(Debug, Default)]
pub struct EntryCache {
    /// The inode that each name names, and the home of the entry.
    known: HashMap<Key, (Child, Rank)>,
    /// The number of recalls.
    recalls: u64,
    kept: HashMap<Key, BTreeSet<Rank>>,
}

impl<P: Platform> Cluster<P> {
    /// Finds a name at any server.
    pub(super) async fn find_anywhere(&self, op: proto::Find) -> Result<Option<Child>, FsError> {
        let (dir, name) = (self.resolve(op.dir)?, op.name);
        if self.has_all_entries(dir) {
            return self.find_among_all(dir, name).await;
        }
        let key = (dir, name.clone());
        let recalls = {
            let entries = self.inner.names.entries.borrow();
            if let Some((child, home)) = entries.known.get(&key) {
                self.use_lease(*home);
                self.show_entry(&key, *child);
                return Ok(Some(*child));
            }
            entries.recalls
        };
        let asked_ns = self.now_ns();
        let find = peer::FindToKeep {
            dir,
            name: name.clone(),
        };
        let asked = self.ask_home(dir, &name, NameUse::Existing, find).await;
        let (mut found, home, session) = match asked {
            Err(FsError::NotFound) => return Ok(None),
            asked => asked?,
        };
        if home == self.rank() {
            return Ok(found.what);
        }
        found.may_keep &= self.is_session(home, session) && self.believe_lease(home, asked_ns);
        let mut entries = self.inner.names.entries.borrow_mut();
        found.may_keep &= entries.recalls == recalls;
        if let Some(child) = found.what.filter(|_| found.may_keep) {
            if entries.known.len() >= KNOWN_MOST {
                entries.known.clear();
            }
            self.show_entry(&key, child);
            entries.known.insert(key, (child, home));
        }
        Ok(found.what)
    }

    /// Shows a believed entry to the processes of this node.
    fn show_entry(&self, (dir, name): &Key, child: Child) {
        let what = (child.ino, child.kind);
        self.node(|node| node.known_to_keep().keep_entry(*dir, name, what));
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
            self.node(|node| node.known_to_keep().keep_all_here(dir));
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
        let key = (dir, name.clone());
        let what = self.find(peer::Find { dir, name }).await?;
        let mut entries = self.inner.names.entries.borrow_mut();
        let room = entries.kept.len() < NOTED_MOST || entries.kept.contains_key(&key);
        let asks_still = self.check_session_of(from).is_ok();
        let may_keep = what.is_some() && room && from != self.rank() && asks_still;
        if may_keep {
            entries.kept.entry(key).or_default().insert(from);
        }
        Ok(Kept { what, may_keep })
    }

    /// Makes other servers drop an entry of this server before it changes. The caller has it
    /// locked.
    pub(super) async fn recall_entry(&self, key: &Key) {
        self.announced().await;
        let Some(ranks) = self.inner.names.entries.borrow_mut().kept.remove(key) else {
            return;
        };
        let ranks: Vec<Rank> = ranks.into_iter().collect();
        let (dir, name) = key.clone();
        let news = News::DropEntry(peer::DropEntry { dir, name });
        let told = self.tell(&ranks, &news).await;
        join_all(told.lost.into_iter().map(|rank| self.outwait(rank))).await;
    }

    pub(in crate::cluster) fn drop_entry(&self, key: &Key) {
        let mut entries = self.inner.names.entries.borrow_mut();
        entries.recalls += 1;
        entries.known.remove(key);
        self.node(|node| node.known().drop_entry(key.0, &key.1));
    }

    /// Drops all entries of a server whose session or term has ended.
    pub(in crate::cluster) fn forget_known(&self, of: Rank) {
        let mut entries = self.inner.names.entries.borrow_mut();
        entries.recalls += 1;
        entries.known.retain(|_, (_, home)| *home != of);
        self.node(|node| node.forget_known());
    }

    /// Forgets the entries that a server keeps: it begins a session, so it keeps none.
    pub(in crate::cluster) fn forget_kept(&self, by: Rank) {
        let mut entries = self.inner.names.entries.borrow_mut();
        entries.kept.retain(|_, ranks| {
            ranks.remove(&by);
            !ranks.is_empty()
        });
    }

    /// Type, mode and owner of a directory of any server. If it has entries here, they are known,
    /// since its home tells when they change.
    pub(in crate::cluster) async fn passage_here(&self, ino: Ino) -> Result<Attr, FsError> {
        let dir = self.resolve(ino)?;
        if dir.rank() == self.rank() {
            return self.node(|node| node.attr_of(dir));
        }
        let Some(attr) = self.node(|node| node.passage(dir)) else {
            return self.call(dir.rank(), peer::Passage { dir }).await;
        };
        self.node(|node| node.known_to_keep().keep_guard(dir, &Guard::from(&attr)));
        Ok(attr)
    }
}
