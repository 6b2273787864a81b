//! Truncations: at a file's home, which erases published bytes, and at the nodes that hold the
//! file, which give up their unpublished bytes.

use weir_core::proto::peer::{self, LogRange, News};
use weir_core::proto::{FsError, Served};
use weir_core::types::Ino;

use crate::cluster::abilities::{NameTables, Waits};
use crate::cluster::extents::publish::bytes_of;
use crate::cluster::extents::WriteTables;
use crate::cluster::files::{FileParts, FilesNeeds, Truncation};

impl<S: FilesNeeds> Truncation<S> {
    pub(in crate::cluster) fn truncate_for_client(
        &self,
        ino: Ino,
        size: u64,
    ) -> Served<Result<(), FsError>> {
        if self.server.has_all_extents() {
            return Served::Now(self.server.node(|node| {
                node.names().check_size(ino, size)?;
                node.writes().set_size(ino, size)
            }));
        }
        self.later(|this| async move { this.ask_to_truncate(ino, size).await })
    }

    async fn ask_to_truncate(&self, ino: Ino, size: u64) -> Result<(), FsError> {
        let ino = self.server.resolve(ino)?;
        self.server.extents().publish(ino).await?;
        self.server
            .call(ino.rank(), peer::Truncate { ino, size })
            .await
    }

    /// Sets the size of a file of this server, at all nodes.
    pub(in crate::cluster) async fn truncate_at_home(
        &self,
        ino: Ino,
        size: u64,
    ) -> Result<(), FsError> {
        let _alone = self.server.hold_for_change(ino).await?;
        let was_evicted = self.server.node(|node| node.names().regular(ino))?.evicted;
        self.state().published.borrow_mut().begin_cut(ino, size);
        let mut cut = self.cut_everywhere(ino, size).await;
        let old = self.state().published.borrow_mut().end_cut(ino);
        if cut.is_err() {
            // Bytes may be left behind the new end: the file keeps its size, so that the next
            // truncation erases them.
            cut = self
                .server
                .stand_ins()
                .raise_published(ino, old, 0)
                .and(cut);
            if was_evicted {
                self.server.eviction().mark_evicted(ino, true).await?;
            }
        }
        self.server.stand_ins().note_published(ino);
        cut
    }

    /// Waits until a file of this server is not being truncated. A node that has given up its
    /// unpublished bytes must not read older bytes that were published after the first erasing.
    pub(in crate::cluster::files) async fn await_truncation(
        &self,
        ino: Ino,
    ) -> Result<(), FsError> {
        while self.state().published.borrow().is_being_cut(ino) {
            drop(
                self.server
                    .peers()
                    .hold_in_time(&self.state().changing, ino)
                    .await?,
            );
        }
        Ok(())
    }

    async fn cut_everywhere(&self, ino: Ino, size: u64) -> Result<(), FsError> {
        let (old, erased) = self.cut_published(ino, size).await?;
        let holders = self.server.stand_ins().holders_of(ino);
        // Each of these servers either begins its session later, and is told then, or is a holder
        // now.
        self.state().holders.borrow_mut().note_missed(
            ino,
            size,
            &holders,
            &self.server.appends().silent_servers(),
        );
        let number = self.number_of_cut();
        let cut = peer::Cut { ino, size, number };
        let told = self.server.peers().tell(&holders, &News::Cut(cut)).await;
        told.lost
            .iter()
            .for_each(|rank| self.server.peers().refuse(*rank));
        self.state()
            .holders
            .borrow_mut()
            .note_missed(ino, size, &holders, &told.lost);
        let heard = holders.iter().filter(|rank| !told.lost.contains(rank));
        self.state()
            .holders
            .borrow_mut()
            .note_told(ino, size, heard.copied());
        let behind = match holders.is_empty() {
            true => 0,
            false => old.max(told.end),
        };
        let again = self.cut_again(ino, size, behind).await;
        let old = again.as_ref().map_or(behind, |(old, _)| *old);
        if self.state().holders.borrow().is_missed(ino) {
            self.server.extents().erase_untold(ino, size.max(old)).await;
        }
        self.server.stand_ins().recall_leases(ino, None).await;
        let freed = match again {
            Ok((_, freed)) => [erased, freed].concat(),
            Err(error) => {
                self.server.extents().give_back_late(ino, erased);
                return Err(error);
            }
        };
        self.server.stand_ins().add_stored(ino, -bytes_of(&freed));
        self.server.extents().give_back(freed).await;
        Ok(())
    }

    /// Erases the published bytes of a file of this server behind its new end, and gives up those that
    /// this node has not published. Returns the end up to which bytes may have been published, and the
    /// bytes that become free.
    async fn cut_published(&self, ino: Ino, size: u64) -> Result<(u64, Vec<LogRange>), FsError> {
        // The bytes of a publish under way reach the slices before they are erased, and may
        // make the file longer.
        let extents = self.server.extents();
        let _sent = extents.hold_publishing(ino).await?;
        self.server
            .node(|node| node.names().check_size(ino, size))?;
        // This includes publishes under way, which may have reached only some of the servers.
        let old = self.note_published_end(ino, 0);
        // Erase before any node, this one too, gives up its unpublished bytes. Otherwise its
        // programs see the older published bytes there: if an append makes the file longer
        // meanwhile, or if this server is killed now and the truncation never ends. If not
        // everything can be erased, no node gives up anything.
        let erased = self.server.extents().erase_everywhere(ino, size, old).await;
        self.server.stand_ins().recall_here(ino);
        let erased = erased?;
        // Another node may have published meanwhile.
        let old = old.max(self.server.stand_ins().published_size(ino));
        if let Err(error) = self.cut_own(ino, size) {
            self.server.extents().give_back_late(ino, erased);
            return Err(error);
        }
        Ok((old, erased))
    }

    /// Erases the bytes behind the new end of a file that were published since [`Truncation::cut_published`]: by other
    /// nodes, up to `behind`, and by this one. Unpublished writes of this node since then are given up, too; otherwise
    /// an older one could stay where a newer one is erased. Returns the same as [`Truncation::cut_published`].
    async fn cut_again(
        &self,
        ino: Ino,
        size: u64,
        behind: u64,
    ) -> Result<(u64, Vec<LogRange>), FsError> {
        let extents = self.server.extents();
        let _sent = extents.hold_publishing(ino).await?;
        // Publishes of other nodes have arrived and raised the size, but perhaps not all of them.
        let old = self.note_published_end(ino, behind);
        // Set the size first: other nodes may publish during the erasure, and the size that they report must stay.
        self.cut_own(ino, size)?;
        let erased = self
            .server
            .extents()
            .erase_everywhere(ino, size, old)
            .await?;
        Ok((old, erased))
    }

    /// Notes and returns the end up to which bytes of a file that is being cut may have been published; other nodes
    /// have published up to `behind`.
    fn note_published_end(&self, ino: Ino, behind: u64) -> u64 {
        let here = self
            .server
            .stand_ins()
            .published_size(ino)
            .max(self.server.extents().end_in_flight(ino));
        let end = here.max(behind);
        self.state().published.borrow_mut().note_behind(ino, end);
        end
    }

    /// Gives up this node's unpublished bytes of a file of this server behind its new end.
    fn cut_own(&self, ino: Ino, size: u64) -> Result<(), FsError> {
        self.set_published_size(ino, size)?;
        self.state().published.borrow_mut().note_cut_here(ino);
        self.server.extents().cut_in_flight(ino, size);
        self.server.appends().cut_appends(ino, size);
        Ok(())
    }

    /// The offset at which a file ends for readers here. Extents behind it may still be known, but
    /// are being erased.
    pub(in crate::cluster) fn erased_from(&self, ino: Ino) -> u64 {
        self.state().published.borrow().erased_from(ino)
    }

    fn set_published_size(&self, ino: Ino, size: u64) -> Result<(), FsError> {
        self.server.node(|node| node.writes().set_size(ino, size))?;
        {
            let mut published = self.state().published.borrow_mut();
            let old = published.set_size(ino, size);
            published.note_behind(ino, old);
        }
        self.server.stand_ins().note_published(ino);
        Ok(())
    }

    /// Cuts a file here on behalf of its home, which then erases the published bytes.
    pub(in crate::cluster) async fn cut_here(&self, op: &peer::Cut) -> Result<u64, FsError> {
        let ino = op.ino;
        let session = self.server.peers().session_now(ino.rank());
        // The bytes of a publish under way reach the slices before they are erased.
        let extents = self.server.extents();
        let _sent = extents.hold_publishing_surely(ino).await;
        // The home was restarted meanwhile: it does not know of this truncation any more, and will
        // erase nothing for it.
        if self.server.peers().session_now(ino.rank()) != session {
            return Err(FsError::Unreachable);
        }
        let is_new = {
            let mut stand_ins = self.state().stand_ins.borrow_mut();
            let known = stand_ins.get_mut(&ino);
            let known = known.filter(|known| known.cut < op.number);
            known.map(|known| known.cut = op.number).is_some()
        };
        if !is_new {
            self.server.stand_ins().recall_here(ino);
            return Ok(0);
        }
        self.cut_at_once(ino, op.size)
    }

    pub(in crate::cluster) fn cut_at_once(&self, ino: Ino, size: u64) -> Result<u64, FsError> {
        let end = self.server.extents().end_in_flight(ino);
        self.server.extents().cut_in_flight(ino, size);
        if let Some(local) = self.server.local(ino) {
            self.server
                .node(|node| node.writes().set_size(local, size))?;
        }
        self.server.stand_ins().recall_here(ino);
        Ok(end)
    }

    /// A number greater than the last one, also than the last one before a restart.
    fn number_of_cut(&self) -> u64 {
        let now = u64::try_from(self.server.peers().now_ns()).unwrap_or(0);
        let number = now.max(self.state().cuts.get() + 1);
        self.state().cuts.set(number);
        number
    }

    /// Forgets the number of the last truncation: a restarted home may number its truncations anew.
    pub(in crate::cluster) fn forget_cuts(&self, ino: Ino) {
        if let Some(known) = self.state().stand_ins.borrow_mut().get_mut(&ino) {
            known.cut = 0;
        }
    }
}
