//! What a server knows as one of several, written down and taken up again; and the word to the
//! others that it is back.
//!
//! What it had given or was given before is void: leases, holds, locks. The others are told so
//! before it says of any write that all have been told of it. They answer once they hold again
//! what they hold; until then files without a name stay.

use futures_util::future::join_all;
use weir_core::extent::MAX_OFFSET;
use weir_core::journal::{self, Item};
use weir_core::proto::{peer, FsError};
use weir_core::types::Rank;

use super::files::Extent;
use super::publish::{Batch, Last};
use super::Cluster;
use crate::node::{Node, Platform, Visit};

impl<P: Platform> Cluster<P> {
    /// Takes up what a server knew that was killed; its node has done so already.
    pub fn take_up(&self, state: journal::Cluster) {
        let now_ns = self.now_ns();
        {
            let mut shards = self.inner.shards.borrow_mut();
            shards.indexes = state.kept;
            shards.next_stamp = state.kept_stamp;
            for (ino, batches) in state.in_flight {
                let batches = batches.into_iter().map(|(publish, runs)| Batch {
                    publish,
                    runs,
                    cut: MAX_OFFSET,
                    freed: None,
                });
                shards.in_flight.insert(ino, batches.collect());
            }
            for (key, (publish, parts)) in state.last {
                shards.by_publish.insert((key.1, publish), key.0);
                shards.last.insert(key, Last { publish, parts });
            }
        }
        {
            let mut dirs = self.inner.dirs.borrow_mut();
            dirs.enrolled.extend(state.enrolled);
            dirs.moved = state.moved;
        }
        let stand_ins = self.node(|node| node.file_stand_ins());
        let mut files = self.inner.files.borrow_mut();
        for (home, local) in stand_ins {
            files.take_up_stand_in(home, local, now_ns);
        }
        for (ino, (size, stored)) in state.published {
            files.published.insert(ino, Extent { size, stored });
            self.node(|node| node.take_up_stored(ino, stored));
        }
        files.counted = state.counted;
        drop(files);
        self.node(|node| node.keep_orphans(true));
        let others = self.ranks().filter(|rank| *rank != self.rank());
        let mut sessions = self.inner.sessions.borrow_mut();
        sessions.begin_anew(others, now_ns);
    }

    /// Shows all that is not the node's own, as items.
    pub fn for_each_item(&self, visit: Visit<'_>) {
        let shards = self.inner.shards.borrow();
        for (ino, index) in &shards.indexes {
            let mut runs = Vec::new();
            index.for_each_run(&mut |run| runs.push(run));
            visit(&Item::Kept(*ino, runs));
        }
        for (ino, batches) in &shards.in_flight {
            for batch in batches {
                visit(&Item::InFlight(*ino, batch.publish, batch.runs.clone()));
            }
        }
        for ((ino, from), last) in &shards.last {
            for (part, freed) in &last.parts {
                visit(&Item::Answered {
                    ino: *ino,
                    from: *from,
                    publish: last.publish,
                    part: *part,
                    freed: freed.clone(),
                });
            }
        }
        let dirs = self.inner.dirs.borrow();
        for (dir, ranks) in &dirs.enrolled {
            for rank in ranks {
                visit(&Item::Enrolled(*dir, *rank));
            }
        }
        for (dir, name) in &dirs.moved {
            visit(&Item::Moved(*dir, name));
        }
        let files = self.inner.files.borrow();
        for (ino, file) in &files.published {
            visit(&Item::Published(*ino, file.size, file.stored));
        }
        for ((ino, from), publish) in &files.counted {
            visit(&Item::Counted(*ino, *from, *publish));
        }
    }

    /// Tells all others that this server is back.
    pub async fn announce(&self) {
        let _all_told = self.inner.returning.hold((), self.token()).await;
        let others = self.ranks().filter(|rank| *rank != self.rank());
        let told = others.map(|rank| self.call(rank, peer::Back {}));
        for (rank, told) in join_all(told).await.into_iter().enumerate() {
            if let Err(error) = told {
                // It stops believing its leases when their term is over.
                tracing::warn!(rank, %error, "a server was not told that this one is back");
                if let Ok(rank) = u16::try_from(rank) {
                    self.outwait(Rank(rank)).await;
                }
            }
        }
        self.node(|node| {
            node.keep_orphans(false);
            node.sweep();
        });
        self.erase_gone().await;
    }

    /// A server is back that was killed: this one says what of its files is open here.
    pub(super) async fn came_back(&self, rank: Rank) -> Result<(), FsError> {
        self.peer_gone(rank);
        // The session says what is held. A file that is gone is found to be so by who has it open.
        self.begin_session(rank).await.map(drop)
    }

    /// Writes down what was noted.
    pub(super) fn commit(&self) {
        self.node(Node::commit);
    }

    pub(super) fn note(&self, item: &Item<'_>) {
        self.node(|node| node.note(item));
    }
}
