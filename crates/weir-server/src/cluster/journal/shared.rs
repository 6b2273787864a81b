//! The state that a server keeps as one of several: written to the journal and taken up again; and
//! the message to the others that the server is back.
//!
//! The leases, holds and locks that it had granted or obtained are void. The server tells the others so before it
//! confirms that any write is known to all servers. They answer once the server knows their holds again. Until then
//! files without a name stay.

use std::future::Future;

use futures_util::future::join_all;
use weir_core::journal::{self};
use weir_core::proto::{peer, FsError};
use weir_core::types::Rank;

use crate::cluster::files::FileParts;
use crate::cluster::keyed::Token;
use crate::cluster::peers::calls::ServerCalls;
use crate::cluster::snapshot::SharedTable;
use crate::cluster::Cluster;
use crate::node::{Node, Platform, SnapshotPosition, Visit};

impl<P: Platform> Cluster<P> {
    /// Takes up the shared state of a killed server, whose node has been taken up already. See
    /// [`Cluster::announce`].
    pub fn take_up(&self, mut state: journal::Cluster) {
        let now_ns = self.peers().now_ns();
        self.inner.names.take_up_history(&mut state);
        if self.has_all_extents() {
            return; // the node has all other state
        }
        // Sessions of an earlier life are void, and the others may know renames of it by their tokens.
        self.peers().begin_anew();
        self.inner.names.take_up(&mut state);
        self.inner.extents.take_up(&mut state);
        let stand_ins = self.node(|node| node.names.file_stand_ins());
        for (ino, (_, stored)) in &state.published {
            self.node(|node| node.writes().set_stored(*ino, *stored));
        }
        self.inner.files.take_up(&mut state, stand_ins, now_ns);
        let dirty = self.extents().dirty();
        self.stand_ins().unify_sizes(&dirty);
        let own = dirty.iter().filter(|ino| ino.rank() == self.rank());
        for ino in own.clone() {
            self.stand_ins().know_writer(*ino, self.rank());
        }
        self.tokens().begin_tokens(self.rank(), own.copied());
        // Other nodes may have written bytes that they did not publish.
        self.node(|node| node.names.ask_of_raw_files());
        self.appends().await_written_files(&self.peers().others());
    }

    /// Shows all state that is not the node's own, as items.
    pub fn for_each_item(&self, visit: Visit<'_>) {
        let mut at = Some(SnapshotPosition::FIRST);
        while let Some(from) = at {
            at = self.show_some(from, visit);
        }
        self.show_publishing(visit);
    }

    /// As [`Node::set_snapshot_step`].
    pub fn set_snapshot_step(&self, most: usize) {
        self.inner.journal.snapshot_step.set(most);
    }

    /// Shows some entries of the tables that grow with the files, from a position on. Returns the
    /// next position.
    pub fn show_some(&self, from: SnapshotPosition, visit: Visit<'_>) -> Option<SnapshotPosition> {
        let most = self.inner.journal.snapshot_step.get();
        let next = match from.table {
            SharedTable::Slices => self.inner.extents.show_slices(from, most, visit),
            SharedTable::Published => self.inner.files.show_published(from, most, visit),
            SharedTable::Enrolled => self.inner.names.show_enrolled(from, most, visit),
            SharedTable::Moved => self.inner.names.show_moved(from, most, visit),
            SharedTable::Placements => self.inner.names.show_placements(from, most, visit),
            SharedTable::AllHere => self.inner.names.show_all_here(from, most, visit),
            SharedTable::LostNames => self.inner.names.show_lost_names(from, most, visit),
        };
        next.or_else(|| from.of_next_table())
    }

    /// Shows the batches that are being published, the answers to other publishers, and the renames
    /// in progress.
    pub fn show_publishing(&self, visit: Visit<'_>) {
        self.inner.extents.show_publishes(visit);
        self.inner.files.show_counted(visit);
        self.inner.names.show_renames(visit);
    }

    /// Tells all others that this server is back. Operations that must wait for that, and for the
    /// end of renames in progress, wait from now on, even before the future is run.
    pub fn announce(&self) -> impl Future<Output = ()> + 'static {
        let token = self.peers().token();
        self.inner.journal.announcing.take_free((), token);
        self.names().go_on_with_moves();
        let this = self.clone();
        async move { this.announce_as(token).await }
    }

    async fn announce_as(&self, token: Token) {
        let telling = self.inner.journal.announcing.hold((), token).await;
        let others = self.peers().others();
        let told = others.iter().map(|rank| self.call(*rank, peer::Back {}));
        for (rank, told) in others.iter().zip(join_all(told).await) {
            if let Err(error) = told {
                // That server stops believing its leases when their term is over.
                tracing::warn!(rank = rank.0, %error, "a server was not told that this one is back");
                self.peers().outwait(*rank).await;
            }
        }
        // Publishes may wait for this lock, and erasing waits for those publishes.
        drop(telling);
        self.node(|node| {
            node.files.keep_orphans_no_more();
            node.sweep();
        });
        self.ends().erase_gone().await;
    }

    /// Handles a killed server that is back: tells it which of its files are open here.
    pub(in crate::cluster) async fn came_back(&self, rank: Rank) -> Result<(), FsError> {
        self.peer_gone(rank);
        self.names().forget_called_off(rank);
        self.names().forget_steps(rank, u64::MAX);
        // The new session tells the server what this node holds. A node that has a removed file open finds out by
        // itself.
        self.peers().begin_session(rank).await.map(drop)
    }

    /// Appends the noted changes to the journal.
    pub(in crate::cluster) fn commit(&self) {
        self.node(Node::commit);
    }
}
