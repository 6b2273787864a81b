//! One deadline for one operation, however many calls between servers it takes.
//!
//! A client's request must end within the deadline of the fabric (`fabric.deadline_s`). The calls
//! that one operation makes in a row, at any servers, share that time: a call carries the time
//! left, and the calls of its handler end by then as well.
//!
//! ```text
//!  client --> serve, by 30 s --> call, 30 s left --> handle --> call, 30 s left --> ...
//!                            \-> call, 18 s left --> handle --> tell, 18 s left --> ...
//! ```
//!
//! The deadline is the task's: [`PeerServers::by`] sets it while the future that it runs is being
//! polled. All of a server runs on one thread, so a caller need not be handed the deadline.
//!
//! One call of a program may be several requests of its client (one for each name of a path, then
//! the operation itself): each carries the time that the earlier ones took.
//!
//! Invariants:
//! - A task that [`PeerServers::spawn`] starts has no deadline: each of its calls has the fabric's.
//! - A debt, and an operation that is seen through, is done to its end; only the waiting request
//!   gives up.
//! - If a server cannot be told in time, this one waits until that server has stopped believing its leases
//!   (`PeerServers::outwait`): otherwise that server might read stale data after a late operation. So telling
//!   may take [`TELLING_NS`] longer, and waiting for the end of a lease is not cut short.
//!
//! Left out: bytes of logs (`Net::read`), which have deadlines of their own; clocks: servers tell
//! each other the time left, not a point in time; the time that a message is on its way.

use std::future::{poll_fn, Future};
use std::hash::Hash;
use std::pin::pin;

use futures_util::future::{select, Either};
use weir_core::proto::FsError;
use weir_core::types::Rank;

use crate::cluster::keyed::{Guard, Keyed};
use crate::cluster::peers::PeerServers;
use crate::cluster::{Answer, Lost};

/// A call outside an operation waits this long for locks, ns.
const PATIENCE_NS: i64 = 30_000_000_000;
/// The time to wait for a server that must be told something, though the deadline is over, ns.
const TELLING_NS: i64 = 500_000_000;

impl PeerServers {
    /// Runs `act` with a deadline.
    pub(in crate::cluster) fn by<'a, T: 'a>(
        &'a self,
        deadline_ns: i64,
        act: impl Future<Output = T> + 'a,
    ) -> impl Future<Output = T> + 'a {
        self.run_for(None, deadline_ns, act)
    }

    /// Like [`PeerServers::by`], for a request of another server within a session.
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

    /// The deadline of an operation that begins now.
    pub(in crate::cluster) fn next_deadline(&self) -> i64 {
        self.now_ns().saturating_add(self.longest())
    }

    /// The deadline of an operation that has spent `spent_ms` before. A client that claims too much
    /// loses only its own time: a small part is always left, enough for a healthy server.
    pub(in crate::cluster) fn next_deadline_of(&self, spent_ms: u32) -> i64 {
        let longest = self.longest();
        let left = longest - i64::from(spent_ms).saturating_mul(1_000_000).min(longest);
        self.now_ns().saturating_add(left.max(longest / 20))
    }

    /// The deadline of an operation that has `left_ms` left.
    pub(super) fn deadline_in(&self, left_ms: u32) -> i64 {
        let left = i64::from(left_ms).saturating_mul(1_000_000);
        self.now_ns().saturating_add(left.min(self.longest()))
    }

    /// The deadline of the current operation; outside an operation, a while from now.
    pub(super) fn deadline(&self) -> i64 {
        let deadline = self.inner.deadline.get();
        deadline.unwrap_or_else(|| self.now_ns().saturating_add(PATIENCE_NS))
    }

    /// The time for one call of the current operation, ns; at most the time that the fabric waits.
    pub(in crate::cluster) fn time_left(&self) -> i64 {
        let longest = self.longest();
        let deadline = self.inner.deadline.get();
        deadline.map_or(longest, |by| (by - self.now_ns()).min(longest))
    }

    /// The time for which the fabric waits for a call, ns.
    pub(in crate::cluster) fn longest(&self) -> i64 {
        i64::try_from(self.inner.net.deadline().as_nanos()).unwrap_or(i64::MAX)
    }

    /// Awaits a call that was sent with `left_ns` left. If the call begins when its operation does,
    /// or nearly so, the fabric's own deadline is enough.
    pub(super) async fn brought(
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

    /// The result of `act`, unless the deadline passes before.
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

    /// Takes a lock, if that succeeds in time.
    pub(in crate::cluster) async fn hold_in_time<'k, K: Hash + Ord + Clone>(
        &self,
        locks: &'k Keyed<K>,
        key: K,
    ) -> Result<Guard<'k, K>, FsError> {
        let held = locks.hold(key, self.token());
        self.in_time(async { Ok(held.await) }).await
    }

    /// Runs `act`, which tells other servers something that they must hear: it has a little time
    /// even after the deadline.
    pub(super) async fn in_time_to_tell<T>(&self, act: impl Future<Output = T>) -> T {
        match self.inner.deadline.get() {
            None => act.await,
            Some(by) => self.by(by.max(self.now_ns() + TELLING_NS), act).await,
        }
    }
}
