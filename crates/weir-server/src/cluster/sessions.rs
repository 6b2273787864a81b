//! The beginning and the end of a session, in all rooms; and messages to many servers.

use std::collections::BTreeSet;
use std::rc::{Rc, Weak};
use std::sync::atomic::Ordering;

use futures_util::future::{join, LocalBoxFuture};
use weir_core::proto::peer::{self, LogRange, News, Told};
use weir_core::proto::FsError;
use weir_core::types::{Ino, Rank};

use crate::cluster::files::FileParts;
use crate::cluster::names::NameKey;
use crate::cluster::peers::calls::ServerCalls;
use crate::cluster::peers::debts::{link_taken, Debt};
use crate::cluster::peers::{tell, PeersNeeds};
use crate::cluster::visibility::is_raw;
use crate::cluster::{Cluster, Inner};
use crate::node::Platform;

/// A server as its sessions know it. It may be gone: then a session has nothing left to change.
pub(super) struct ServerOfSessions<P: Platform + 'static> {
    server: Weak<Inner<P>>,
}

impl<P: Platform> ServerOfSessions<P> {
    pub(super) fn new(server: &Rc<Inner<P>>) -> ServerOfSessions<P> {
        ServerOfSessions {
            server: Rc::downgrade(server),
        }
    }

    fn server(&self) -> Option<Cluster<P>> {
        let inner = self.server.upgrade()?;
        Some(Cluster { inner })
    }
}

impl<P: Platform> PeersNeeds for ServerOfSessions<P> {
    fn commit(&self) {
        if let Some(server) = self.server() {
            server.commit();
        }
    }

    fn set_believed_until(&self, until_ns: Option<i64>) {
        if let Some(server) = self.server() {
            let until_ns = until_ns.map_or(0, |until_ns| u64::try_from(until_ns).unwrap_or(1));
            let hub = server.node(|node| node.open.hub);
            hub.believed_until_ns.store(until_ns, Ordering::SeqCst);
        }
    }

    fn doubt(&self, home: Rank) {
        if let Some(server) = self.server() {
            server.doubt(home);
        }
    }

    fn uses_files_of(&self, home: Rank) -> bool {
        self.server()
            .is_some_and(|server| !server.stand_ins().stand_ins_of(home).is_empty())
    }

    fn held_of(&self, home: Rank) -> Option<peer::Begin> {
        let server = self.server()?;
        Some(server.stand_ins().held_of(home))
    }

    fn cut(&self, files: &[(Ino, u64)]) {
        let Some(server) = self.server() else {
            return;
        };
        for (ino, size) in files {
            // The cut does not wait for a publish under way, which may wait for this session.
            let _ = server.truncation().cut_at_once(*ino, *size);
        }
    }

    fn note_own_session(&self, with: Rank) {
        if let Some(server) = self.server() {
            server.reads().expect_again(with);
            server.sharing().ask_for_policies(with);
        }
    }

    fn pay_here(&self, debt: Debt) -> LocalBoxFuture<'static, Result<(), FsError>> {
        let server = self.server();
        Box::pin(async move {
            match server {
                Some(server) => server.pay_here(debt).await,
                None => Err(FsError::Unreachable),
            }
        })
    }

    fn give_back(&self, freed: Vec<LogRange>) -> LocalBoxFuture<'static, ()> {
        let server = self.server();
        Box::pin(async move {
            if let Some(server) = server {
                server.extents().give_back(freed).await;
            }
        })
    }
}

impl<P: Platform> Cluster<P> {
    /// Handles a server that cannot be reached or has started anew: its locks and holds end, and
    /// the sessions with it. It may believe its leases from this server until the term is over.
    pub fn peer_gone(&self, rank: Rank) {
        self.peers().end_sessions(rank);
        self.names().drop_names_of(rank);
        self.ends().forget_holder(rank);
        self.locks().drop_locks_of(rank);
        // Its session has ended, and with it the leases that it granted to this server.
        self.doubt(rank);
        for ino in self.stand_ins().stand_ins_of(rank) {
            self.truncation().forget_cuts(ino);
        }
    }

    /// Stops believing this server's knowledge of the names and files of another one, which may no longer report
    /// changes.
    fn doubt(&self, home: Rank) {
        self.names().forget_known(home);
        self.appends().reserve_no_more(home);
        for ino in self.stand_ins().stand_ins_of(home) {
            self.stand_ins().recall_here(ino);
            self.tokens().give_up_token(ino);
        }
    }

    /// Begins a session of another server, which holds the files listed in `op`.
    pub(super) fn accept_session(&self, from: Rank, op: peer::Begin) -> Vec<(Ino, u64)> {
        self.names().drop_names_of(from);
        self.names().forget_steps(from, op.renames_since);
        let held: BTreeSet<Ino> = op.held.iter().map(|(ino, _)| *ino).collect();
        let mut cuts = self.stand_ins().keep_held(from, &held);
        let written = op.held.iter().filter(|(_, write)| *write);
        let written: Vec<Ino> = written.map(|(ino, _)| *ino).collect();
        // A laminated file does not change: the asker gives up the bytes that it did not publish.
        let is_late = |ino: &Ino| {
            ino.rank() == self.rank() && self.sharing().laminated_here(*ino) == Some(*ino)
        };
        let late = written.iter().copied().filter(is_late);
        cuts.extend(late.map(|ino| (ino, 0)));
        self.appends().await_no_more(from, &held);
        self.stand_ins().await_writer_no_more(from);
        self.names().forget_kept(from);
        let raw = |ino: &Ino| {
            self.node(|node| node.names.attr_of(*ino))
                .is_ok_and(|attr| is_raw(&attr))
        };
        self.tokens()
            .begin_tokens(from, written.into_iter().filter(raw));
        for (ino, write) in op.held {
            if ino.rank() == self.rank() && self.node(|node| node.names.is_file(ino)) {
                self.stand_ins().add_holder(ino, from);
                if write && self.stand_ins().know_writer(ino, from) {
                    // Not awaited: the task asks the asker, which waits for this reply.
                    let this = self.clone();
                    self.peers()
                        .spawn(async move { this.stand_ins().tell_of_writer(ino, from).await });
                }
            }
        }
        self.appends().note_written_files(from);
        cuts
    }

    /// Pays a debt of this server to itself.
    async fn pay_here(&self, debt: Debt) -> Result<(), FsError> {
        let here = self.rank();
        match debt {
            Debt::Link(ino) => self.call(here, link_taken(ino)).await.map(drop),
            Debt::Freed(ranges) => self.call(here, peer::Freed { ranges }).await,
            Debt::Unlock(op) => self.call(here, op).await,
            Debt::UnlockMoves(op) => self.call(here, op).await,
            Debt::Erased(ino, to) => {
                let freed = self.call(here, peer::Erase { ino, from: 0, to }).await?;
                self.extents().give_back(freed).await;
                Ok(())
            }
        }
    }

    /// Passes on a message of another server, and carries it out.
    pub(super) async fn relay(&self, op: peer::Relay) -> Result<Told, FsError> {
        let peers = self.peers();
        if op
            .below
            .iter()
            .any(|rank| rank.0 >= peers.servers() || *rank == self.rank())
        {
            return Err(FsError::Malformed);
        }
        let (own, mut told) = join(self.hear(&op.news), peers.pass_on(op.below, &op.news)).await;
        tell::add_answer(&mut told, self.rank(), own);
        Ok(told)
    }

    /// Carries out a message.
    async fn hear(&self, news: &News) -> Result<Told, FsError> {
        let mut told = Told::default();
        match news {
            News::Recall(op) => self.stand_ins().recall_here(op.ino),
            News::Mark(op) => self.sharing().mark_here(op).await?,
            News::Cut(op) => told.end = self.truncation().cut_here(op).await?,
            News::Publish(op) => self.extents().publish_for_all(op).await?,
            News::Revoke(op) => self.tokens().revoke_here(op.ino).await?,
            News::Laminated(op) => self.sharing().believe(op)?,
            News::Forget(op) => self.extents().forget_here(op.ino),
            News::DropEntry(op) => {
                let key = NameKey::new(op.dir, op.name.clone());
                self.names().drop_entry(&key);
            }
            News::Seal(op) => told.writers = self.sharing().seal_here(op.ino)?,
            News::Writers(op) => told.writers = self.sharing().writers_here(op.ino),
        }
        Ok(told)
    }
}
