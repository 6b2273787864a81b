//! Appends by programs of several nodes to one file.
//!
//! While one node writes a file, its programs reserve the offsets of their appends in shared
//! memory. When a second node opens the file for writing, the home tells both: from then on each
//! append asks the home, which hands out offsets one after the other. Before that it learns how far
//! each node has reserved, so that no two appends share bytes across the change either.
//!
//! A node may reserve by itself while it believes the home's word (`session`). A node that the home cannot ask stops
//! when that term is over. Until it is back, the home does not know how far it had reserved: appends wait for it, but
//! at most [`AWAITED_NS`].
//!
//! A restarted server does not know the writers of its files. Until each other server has named the files that it has
//! open (`Cluster::accept_session`), any of them may have placed appends, so a node that opens a file must ask. The
//! home remembers the offsets that it handed out until their nodes have said that they publish nothing more: a server
//! that was cut off can still use its offsets when it is back.

use std::collections::{BTreeMap, BTreeSet};

use futures_util::future::join_all;
use weir_core::extent::MAX_OFFSET;
use weir_core::proto::{self, peer, FsError};
use weir_core::types::{Ino, Rank};

use crate::cluster::abilities::NameTables;
use crate::cluster::extents::WriteTables;
use crate::cluster::files::{FileParts, FilesNeeds, SharedAppends, AWAITED_NS};
use crate::cluster::visibility::is_raw;

/// The state of appends to a file.
#[derive(Debug, Default)]
pub struct Appends {
    /// The next offset.
    next: u64,
    /// The offset up to which each node had reserved when it began to ask.
    reserved: BTreeMap<Rank, u64>,
    /// Nodes that know that they must ask, or that cannot reserve by themselves.
    told: BTreeSet<Rank>,
    /// Nodes that were given up or not reached, and may have reserved by themselves, with the time until which appends
    /// wait for them, ns since 1970.
    awaited: BTreeMap<Rank, i64>,
    /// True if a server was given up while it wrote the file, and may come back with offsets that it was handed.
    lost: bool,
}

impl Appends {
    fn place(&mut self, from: Rank, op: &peer::Append, published: u64) -> Result<u64, FsError> {
        if let Some(at) = op.reserved {
            let upto = self.reserved.get(&from).copied().unwrap_or(0);
            // These bytes were counted when the node began to ask.
            if at.checked_add(op.length).is_some_and(|end| end <= upto) {
                return Ok(at);
            }
        }
        let at = self.next.max(published).max(op.at_least);
        let end = at.checked_add(op.length).filter(|end| *end <= MAX_OFFSET);
        self.next = end.ok_or(FsError::TooBig)?;
        Ok(at)
    }
}

impl<S: FilesNeeds> SharedAppends<S> {
    /// Handles a node that begins to write a file of this server. If it is not the only writer, this server hands out
    /// the offsets of appends from now on. The node learns that before it may append; the next append waits for a
    /// writer that cannot be reached now.
    pub(super) async fn share_appends(&self, ino: Ino, new: Rank) {
        let shared = {
            let mut all = self.state().appends.borrow_mut();
            let appends = all.get_mut(&ino);
            appends.map(|appends| appends.told.remove(&new)).is_some()
        };
        if !shared && self.server.stand_ins().writers_of(ino).len() < 2 {
            // Its appends wait for the servers that have not named the files they write.
            if !self.silent_servers().is_empty() {
                self.have_ask(ino, new).await;
            }
            return;
        }
        let untold = self.who_places(ino);
        join_all(untold.into_iter().map(|rank| self.have_ask(ino, rank))).await;
    }

    /// The nodes that may have placed appends of which this server, the file's home, does not know.
    fn who_places(&self, ino: Ino) -> BTreeSet<Rank> {
        let now_ns = self.server.peers().now_ns();
        let mut all = self.state().appends.borrow_mut();
        let appends = all.entry(ino).or_default();
        appends.awaited.retain(|_, until_ns| *until_ns > now_ns);
        let awaited = appends.awaited.keys().copied();
        let writers = self.server.stand_ins().writers_of(ino).into_iter();
        let unheard = self.silent_servers().into_iter();
        let untold = writers.chain(unheard);
        let untold = untold.filter(|rank| !appends.told.contains(rank));
        untold.chain(awaited).collect()
    }

    /// Returns true if a node that writes a file beside others may not have heard yet that it must
    /// ask for the offsets of its appends.
    pub(super) fn places_untold(&self, ino: Ino, writer: Rank) -> bool {
        let all = self.state().appends.borrow();
        let untold = all
            .get(&ino)
            .is_none_or(|appends| !appends.told.contains(&writer));
        untold && self.server.stand_ins().writers_of(ino).len() > 1
    }

    /// Begins to wait for the other servers after a restart: none has named the files that it
    /// writes.
    pub(in crate::cluster) fn await_written_files(&self, others: &[Rank]) {
        let until_ns = self.server.peers().now_ns() + AWAITED_NS;
        let unheard = others.iter().map(|rank| (*rank, until_ns)).collect();
        self.state().silent_servers.replace(unheard);
    }

    /// Notes that another server has named the files that it writes.
    pub(in crate::cluster) fn note_written_files(&self, rank: Rank) {
        self.state().silent_servers.borrow_mut().remove(&rank);
    }

    pub(super) fn silent_servers(&self) -> Vec<Rank> {
        let now_ns = self.server.peers().now_ns();
        let mut unheard = self.state().silent_servers.borrow_mut();
        unheard.retain(|_, until_ns| *until_ns > now_ns);
        unheard.keys().copied().collect()
    }

    /// Returns true if all servers have named the files that they write.
    pub(in crate::cluster) fn knows_all_writers(&self) -> bool {
        self.silent_servers().is_empty()
    }

    /// Ensures that no node that writes a file of this server reserves offsets by itself, and that
    /// all their reservations are known. Waits for a node that cannot be reached.
    async fn all_ask(&self, ino: Ino) {
        let _turn = self
            .state()
            .sharing_appends
            .hold(ino, self.server.peers().token())
            .await;
        loop {
            let untold = self.who_places(ino);
            if untold.is_empty() {
                return;
            }
            let told = untold.into_iter().map(|rank| async move {
                if !self.have_ask(ino, rank).await {
                    self.await_writer(ino, rank).await;
                }
            });
            join_all(told).await;
        }
    }

    /// Makes a node ask for offsets; returns false if it was not reached.
    async fn have_ask(&self, ino: Ino, rank: Rank) -> bool {
        let Ok(end) = self.server.call(rank, peer::ShareAppends { ino }).await else {
            return false;
        };
        let end = end.min(MAX_OFFSET);
        let mut all = self.state().appends.borrow_mut();
        let appends = all.entry(ino).or_default();
        appends.told.insert(rank);
        appends.awaited.remove(&rank);
        appends.next = appends.next.max(end);
        appends.reserved.insert(rank, end);
        true
    }

    /// Waits for a server that was not reached, for a limited time.
    async fn await_writer(&self, ino: Ino, rank: Rank) {
        let over_ns = self.server.peers().now_ns() + AWAITED_NS;
        let until_ns = {
            let mut all = self.state().appends.borrow_mut();
            let appends = all.entry(ino).or_default();
            *appends.awaited.entry(rank).or_insert(over_ns)
        };
        self.server.peers().served_or(rank, until_ns).await;
        if self.server.peers().now_ns() >= until_ns {
            let mut all = self.state().appends.borrow_mut();
            all.entry(ino).or_default().told.insert(rank);
        }
    }

    /// Makes this node's programs ask for offsets: those that write the file, and later ones. Returns the file's end
    /// here, with their reservations.
    pub(in crate::cluster) fn share_appends_here(&self, ino: Ino) -> u64 {
        self.state().shared_appends.borrow_mut().insert(ino);
        let local = self.server.local(ino);
        local.map_or(0, |local| {
            self.server.node(|node| node.writers().share_appends(local))
        })
    }

    /// Makes programs of this node that write a server's files ask it for the offsets of their
    /// appends, because its word is not believed any more.
    pub(in crate::cluster) fn reserve_no_more(&self, home: Rank) {
        for ino in self.server.stand_ins().stand_ins_of(home) {
            self.share_appends_here(ino);
        }
    }

    /// Notes that a client of this node was attached to a file.
    pub(in crate::cluster) fn attached_here(&self, ino: Ino, local: Ino) {
        if self.server.has_all_extents() {
            return;
        }
        if ino.rank() == self.server.rank() && !self.silent_servers().is_empty() {
            self.state().shared_appends.borrow_mut().insert(ino);
        }
        if self.state().shared_appends.borrow().contains(&ino) {
            self.server.node(|node| node.writers().share_appends(local));
        }
        self.server.tokens().renew_token_word(ino, local);
    }

    /// The offset at which a program of this node appends.
    pub(in crate::cluster) async fn append_for_client(
        &self,
        op: proto::Append,
    ) -> Result<u64, FsError> {
        if self.server.has_all_extents() {
            return Err(FsError::Invalid); // programs of one node place their appends themselves
        }
        let ino = self.server.resolve(op.ino)?;
        let local = self.server.local(ino).ok_or(FsError::Stale)?;
        let at_least = self
            .server
            .node(|node| node.writers().attr_now(local))?
            .size;
        let is_counted = |at: &u64| {
            self.server.node(|node| {
                let block = node.writers().shared_block(local);
                block.is_some_and(|block| block.is_counted(*at, op.length))
            })
        };
        let asked = peer::Append {
            ino,
            length: op.length,
            at_least,
            reserved: op.reserved.filter(is_counted),
        };
        let at = self.server.call(ino.rank(), asked).await?;
        // A restarted home asks for this (`have_ask`).
        self.server.node(|node| {
            if let Some(block) = node.writers().shared_block(local) {
                block.placed_below(at.saturating_add(op.length));
            }
        });
        Ok(at)
    }

    pub(in crate::cluster) async fn append_at_home(
        &self,
        from: Rank,
        op: &peer::Append,
    ) -> Result<u64, FsError> {
        // Other nodes may have to report their reservations first.
        self.server.announced().await;
        let all_ask = async {
            self.all_ask(op.ino).await;
            Ok(())
        };
        self.server.peers().in_time(all_ask).await?;
        let raw = is_raw(&self.server.node(|node| node.names().writable(op.ino))?);
        if raw {
            // Other nodes may have written, without appending, behind the end known here.
            let known = self.end_known(op.ino)?.max(op.at_least);
            let next = self
                .state()
                .appends
                .borrow()
                .get(&op.ino)
                .map_or(0, |a| a.next);
            self.server
                .tokens()
                .end_writes_behind(op.ino, from, known.max(next))
                .await?;
        }
        let known = self.end_known(op.ino)?;
        let mut all = self.state().appends.borrow_mut();
        all.entry(op.ino).or_default().place(from, op, known)
    }

    /// The end of a file of this server, including this node's unpublished bytes.
    fn end_known(&self, ino: Ino) -> Result<u64, FsError> {
        let own = self.server.node(|node| node.writers().attr_now(ino))?.size;
        Ok(self.server.stand_ins().published_size(ino).max(own))
    }

    /// Continues appends at the end of a file that was cut.
    pub(super) fn cut_appends(&self, ino: Ino, size: u64) {
        if let Some(appends) = self.state().appends.borrow_mut().get_mut(&ino) {
            appends.next = size;
            appends.reserved.clear();
        }
    }

    /// Ends the appends of a node that no longer writes a file of this server, or was given up.
    pub(super) fn end_appends_of(&self, ino: Ino, writer: Rank, lost: bool) {
        let until_ns = self.server.peers().now_ns() + AWAITED_NS;
        let writes = self.server.stand_ins().writers_of(ino).contains(&writer);
        let mut all = self.state().appends.borrow_mut();
        if lost && writes {
            let appends = all.entry(ino).or_default();
            if !appends.told.remove(&writer) {
                appends.awaited.entry(writer).or_insert(until_ns);
            }
            appends.lost = true;
        } else if let Some(appends) = all.get_mut(&ino) {
            appends.told.remove(&writer);
            appends.awaited.remove(&writer);
        }
    }

    /// Stops waiting for a server that begins a session: it has published all of the files that it
    /// does not hold.
    pub(in crate::cluster) fn await_no_more(&self, rank: Rank, held: &BTreeSet<Ino>) {
        let mut all = self.state().appends.borrow_mut();
        for (_, appends) in all.iter_mut().filter(|(ino, _)| !held.contains(ino)) {
            appends.awaited.remove(&rank);
        }
    }

    /// Ends the appends to a file of this server that no node writes any more.
    pub(super) fn end_appends(&self, ino: Ino) {
        let mut all = self.state().appends.borrow_mut();
        if all.get(&ino).is_some_and(|appends| appends.lost) {
            return;
        }
        all.remove(&ino);
        self.state().shared_appends.borrow_mut().remove(&ino);
    }

    /// Forgets a file of this server that is gone.
    pub(super) fn forget_appends(&self, ino: Ino) {
        self.state().appends.borrow_mut().remove(&ino);
        self.state().shared_appends.borrow_mut().remove(&ino);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_follow_each_other_and_what_was_reserved_is_honoured() {
        let ino = Ino::new(Rank(0), 0, 5);
        let op = |length, at_least, reserved| peer::Append {
            ino,
            length,
            at_least,
            reserved,
        };
        let mut appends = Appends {
            next: 100,
            reserved: BTreeMap::from([(Rank(1), 100)]),
            ..Appends::default()
        };
        let mut place = |rank, op| appends.place(Rank(rank), &op, 40);
        assert_eq!(place(2, op(10, 0, None)), Ok(100));
        assert_eq!(place(1, op(20, 0, Some(80))), Ok(80), "it was counted");
        assert_eq!(place(1, op(20, 0, Some(100))), Ok(110), "it was not");
        assert_eq!(place(2, op(20, 0, Some(80))), Ok(130), "another node's");
        assert_eq!(place(1, op(1, 1000, None)), Ok(1000), "its node knows more");
        let most = op(MAX_OFFSET, 0, None);
        assert_eq!(place(1, most), Err(FsError::TooBig));
        assert_eq!(place(1, op(1, 0, Some(u64::MAX))), Ok(1001));
    }
}
