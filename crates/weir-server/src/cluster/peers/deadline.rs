//! One deadline for one operation, however many calls between servers it takes.
//!
//! What a client asks is to end within the deadline of the fabric (`fabric.deadline_s`). Calls
//! that one operation makes in a row, at whatever server, share that time: a call takes what is
//! left of it along, and what its handler asks in turn ends by then as well.
//!
//! ```text
//!  client --> serve, by 30 s --> call, 30 s left --> handle --> call, 30 s left --> ...
//!                            \-> call, 18 s left --> handle --> tell, 18 s left --> ...
//! ```
//!
//! The deadline is the task's: [`Cluster::by`] sets it for as long as what it runs is being
//! polled, and all of a server runs on one thread, so who makes a call need not be handed it.
//!
//! A call of a program may be several requests of its client (a path of which each name is asked
//! for, then what is done there): each says how long the ones before have waited.
//!
//! Invariants:
//! - A task that [`Cluster::spawn`] starts has no deadline: its calls have the fabric's each.
//! - What is owed, and what is seen through, is done to its end; only who waits for it goes.
//! - Whoever cannot be told in time is believed no more (`Cluster::outwait`): an operation that
//!   is late may make no other's read old. So telling may take [`TELLING_NS`] longer, and waiting
//!   until a lease is over is not cut short.
//!
//! Left out: bytes of logs (`Net::read`), which have deadlines of their own, and clocks: servers
//! say to each other how much is left, not until when. What a message is on its way is not counted.

use std::future::{poll_fn, Future};
use std::hash::Hash;
use std::pin::pin;

use futures_util::future::{select, Either};
use weir_core::proto::FsError;
use weir_core::types::Rank;

use crate::cluster::keyed::{Guard, Keyed};
use crate::cluster::{Answer, Cluster, Lost};
use crate::node::Platform;

/// A call of no operation waits for locks so long, ns.
const PATIENCE_NS: i64 = 30_000_000_000;
/// Who must be told something is waited for so long, though the time is over, ns.
const TELLING_NS: i64 = 500_000_000;

impl<P: Platform> Cluster<P> {
    /// Runs something that is to end by a time.
    pub(in crate::cluster) fn by<'a, T: 'a>(
        &'a self,
        deadline_ns: i64,
        act: impl Future<Output = T> + 'a,
    ) -> impl Future<Output = T> + 'a {
        self.run_for(None, deadline_ns, act)
    }

    /// The same, of what another server asked within a session.
    pub(in crate::cluster) async fn run_for<T>(
        &self,
        asker: Option<(Rank, u64)>,
        deadline_ns: i64,
        act: impl Future<Output = T>,
    ) -> T {
        let mut act = pin!(act);
        let (deadline, asking) = (&self.inner.deadline, &self.inner.asker);
        poll_fn(|context| {
            let outer = (deadline.replace(Some(deadline_ns)), asking.get());
            asking.set(asker.or(outer.1));
            let polled = act.as_mut().poll(context);
            deadline.set(outer.0);
            asking.set(outer.1);
            polled
        })
        .await
    }

    /// By when an operation that begins now is to end.
    pub(in crate::cluster) fn next_deadline(&self) -> i64 {
        self.now_ns().saturating_add(self.longest())
    }

    /// The same, of one that has spent so many ms before. What a client says of itself costs it its
    /// time at most: a little is left in any case, of which a server that is well needs a part.
    pub(in crate::cluster) fn next_deadline_of(&self, spent_ms: u32) -> i64 {
        let longest = self.longest();
        let left = longest - i64::from(spent_ms).saturating_mul(1_000_000).min(longest);
        self.now_ns().saturating_add(left.max(longest / 20))
    }

    /// The same, of one that has so many ms left.
    pub(in crate::cluster) fn deadline_in(&self, left_ms: u32) -> i64 {
        let left = i64::from(left_ms).saturating_mul(1_000_000);
        self.now_ns().saturating_add(left.min(self.longest()))
    }

    /// By when what runs now is to end; without an operation, a while from now.
    pub(in crate::cluster) fn deadline(&self) -> i64 {
        let deadline = self.inner.deadline.get();
        deadline.unwrap_or_else(|| self.now_ns().saturating_add(PATIENCE_NS))
    }

    /// The time for one call of what runs now, ns; not more than the fabric waits.
    pub(in crate::cluster) fn time_left(&self) -> i64 {
        let longest = self.longest();
        let deadline = self.inner.deadline.get();
        deadline.map_or(longest, |by| (by - self.now_ns()).min(longest))
    }

    /// The time for which the fabric waits for a call, ns.
    pub(in crate::cluster) fn longest(&self) -> i64 {
        i64::try_from(self.inner.net.deadline().as_nanos()).unwrap_or(i64::MAX)
    }

    /// What a call brings that was sent with so much time left. The fabric has the deadline of a
    /// call that begins as its operation does, or nearly so.
    pub(in crate::cluster) async fn brought(
        &self,
        to: Rank,
        call: impl Future<Output = Result<Answer, Lost>> + Unpin,
        left_ns: i64,
    ) -> Result<Answer, Lost> {
        let longest = self.longest();
        if left_ns >= longest - longest / 20 {
            return call.await;
        }
        let late = self.until(self.now_ns() + left_ns);
        match select(call, Box::pin(late)).await {
            Either::Left((answer, _)) => answer,
            Either::Right(_) => Err(Lost(to)),
        }
    }

    /// What comes of it, unless the time for it is over before.
    pub(in crate::cluster) async fn in_time<T>(
        &self,
        act: impl Future<Output = Result<T, FsError>>,
    ) -> Result<T, FsError> {
        let late = self.until(self.deadline());
        match select(Box::pin(act), Box::pin(late)).await {
            Either::Left((done, _)) => done,
            Either::Right(_) => Err(FsError::Unreachable),
        }
    }

    /// Takes a lock, if it can be had in time.
    pub(in crate::cluster) async fn hold_in_time<'k, K: Hash + Ord + Clone>(
        &self,
        locks: &'k Keyed<K>,
        key: K,
    ) -> Result<Guard<'k, K>, FsError> {
        let held = locks.hold(key, self.token());
        self.in_time(async { Ok(held.await) }).await
    }

    /// Runs what tells others something that they must hear: with a little time, however late.
    pub(in crate::cluster) async fn in_time_to_tell<T>(&self, act: impl Future<Output = T>) -> T {
        match self.inner.deadline.get() {
            None => act.await,
            Some(by) => self.by(by.max(self.now_ns() + TELLING_NS), act).await,
        }
    }
}
