//! The ways to ask a server, which may be this one.
//!
//! A call of another server goes out by [`PeerServers`]. A call of this server to itself stays a call: it is not encoded, and
//! has no session.

use futures_channel::oneshot;
use futures_util::future::{select, Either, LocalBoxFuture};
use weir_core::proto::peer::{self, PeerOperation};
use weir_core::proto::FsError;
use weir_core::types::Rank;

use crate::cluster::peers::outcome::PendingOutcome;
use crate::cluster::peers::PeerServers;

/// The reply to an operation, and the bytes that follow it.
pub(in crate::cluster) type Replied<O> = Result<(<O as PeerOperation>::Reply, Vec<u8>), FsError>;

/// A server that asks others and itself.
pub(in crate::cluster) trait ServerCalls: Clone + 'static {
    /// The other servers.
    fn peers(&self) -> &PeerServers;

    /// Serves a request of this server to itself. Boxed, because a handler may send requests too.
    fn do_here<O: PeerOperation + 'static>(&self, op: O) -> LocalBoxFuture<'_, Replied<O>>;

    /// The rank of this server.
    fn rank(&self) -> Rank {
        self.peers().rank()
    }

    /// True if all names and inodes live here. Then an operation on names is one change of this
    /// server's tables, the processes of this node see it whole, and no other server keeps any
    /// names.
    fn has_all_names(&self) -> bool {
        self.peers().servers() == 1
    }

    /// True if no other node has, or asks for, bytes of any file. Then the index of this node's
    /// writes is complete. Nothing is published, and no file is shared.
    fn has_all_extents(&self) -> bool {
        self.peers().servers() == 1
    }

    /// Sends a request to a server, which may be this one.
    async fn call<O: PeerOperation + 'static>(&self, to: Rank, op: O) -> Result<O::Reply, FsError> {
        Ok(self.call_for_bytes(to, op).await?.0)
    }

    /// As [`ServerCalls::call`], with the number of the session in which it was answered.
    async fn call_in<O: PeerOperation + 'static>(
        &self,
        to: Rank,
        op: O,
    ) -> Result<(O::Reply, u64), FsError> {
        if to == self.rank() {
            return Ok((self.do_here(op).await?.0, 0));
        }
        let (answer, number) = self.peers().ask(to, peer::request(op)).await?;
        Ok((peer::reply::<O>(&answer.body)?, number))
    }

    /// As [`ServerCalls::call`], with the bytes that followed the reply.
    async fn call_for_bytes<O: PeerOperation + 'static>(&self, to: Rank, op: O) -> Replied<O> {
        if to == self.rank() {
            return self.do_here(op).await;
        }
        let (answer, _) = self.peers().ask(to, peer::request(op)).await?;
        Ok((peer::reply::<O>(&answer.body)?, answer.bulk))
    }

    /// Asks a server, without a time limit. `Unreachable` if the server was restarted meanwhile, and may have acted.
    async fn surely<O: PeerOperation + 'static>(
        &self,
        to: Rank,
        op: O,
    ) -> Result<O::Reply, FsError> {
        let answer = self.surely_told(to, op).await;
        answer.unwrap_or(Err(FsError::Unreachable))
    }

    /// Like [`ServerCalls::surely`], but `None` if the server was restarted, and it is unknown if it
    /// acted.
    async fn surely_told<O: PeerOperation + 'static>(
        &self,
        to: Rank,
        op: O,
    ) -> Option<Result<O::Reply, FsError>> {
        if to == self.rank() {
            return Some(self.call(to, op).await);
        }
        self.peers().surely_told(to, op).await
    }

    /// Asks surely, but waits only as long as for any call; if the server is lost meanwhile, `late`
    /// is given the result. `Unreachable` if it was not done, or if `late` will be called. Does not
    /// ask if too many such calls wait.
    async fn surely_or<O, L>(&self, to: Rank, op: O, late: L) -> Result<O::Reply, FsError>
    where
        O: PeerOperation + 'static,
        L: FnOnce(&Self, Result<O::Reply, FsError>) + 'static,
    {
        if to == self.rank() {
            return self.call(to, op).await;
        }
        let peers = self.peers();
        peers.session_in_time(to).await?;
        if peers.is_asked_enough(to) {
            return Err(FsError::Unreachable);
        }
        let (sender, done) = oneshot::channel();
        let this = self.clone();
        peers.spawn(async move {
            if let Err(result) = sender.send(this.surely(to, op).await) {
                late(&this, result);
            }
        });
        peers.told_or_lost(to, done).await
    }

    /// Asks surely; if that takes too long, tells the task that waits for the outcome. `None` if
    /// the server was restarted, and it is unknown if it acted.
    async fn see_through<O: PeerOperation + 'static>(
        &self,
        to: Rank,
        op: O,
        outcome: &PendingOutcome,
    ) -> Option<Result<O::Reply, FsError>> {
        if to != self.rank() && self.peers().session_in_time(to).await.is_err() {
            outcome.report_late();
        }
        let done = Box::pin(self.surely_told(to, op));
        match select(done, Box::pin(self.peers().lost(to))).await {
            Either::Left((result, _)) => result,
            Either::Right(((), done)) => {
                outcome.report_late();
                done.await
            }
        }
    }
}
