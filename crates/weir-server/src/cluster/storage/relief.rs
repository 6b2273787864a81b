//! Writes that wait for room.
//!
//! A write to an elevated tree that finds no room waits while the process that moves the tree makes some. That process
//! reports to each server now and then. If a server gets no reports, or a report that there is nothing to move, it lets
//! the writes fail with ENOSPC. A write waits by repeated short requests, so that the wait of a process that is gone
//! ends.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::pin::pin;

use futures_channel::oneshot;
use futures_util::future::select;
use weir_core::elevated::MOST_TREES;
use weir_core::proto::peer;
use weir_core::proto::{AwaitRoom, FsError, FsStat, ReportRelief, RoomOutlook, RoomState};
use weir_core::types::{Ino, Rank};

use crate::cluster::abilities::FindsPaths;
use crate::cluster::ROOT;

/// The time for which a report holds, ns: longer than the longest round.
const REPORT_NS: i64 = 120_000_000_000;
/// The time for which a request waits, ns.
const WAIT_NS: i64 = 200_000_000;
/// The longest time for which the reply to a report waits, ns.
const LONGEST_REPORT_NS: i64 = 10_000_000_000;
/// The time between two looks for room, ns.
const LOOK_NS: i64 = 20_000_000;

/// The last report of each tree, and the writes that wait.
#[derive(Debug, Default)]
pub(in crate::cluster) struct RoomRelief {
    reports: RefCell<BTreeMap<u16, OutlookReport>>,
    waiting: Cell<u32>,
    /// Reports whose replies wait for a write that waits.
    watchers: RefCell<Vec<oneshot::Sender<()>>>,
}

#[derive(Clone, Copy, Debug)]
struct OutlookReport {
    at_ns: i64,
    /// The time from which it holds.
    since_ns: i64,
    outlook: RoomOutlook,
}

impl RoomRelief {
    /// True if a write that has waited since `since_ns` goes on waiting.
    fn has_hope(&self, since_ns: i64, now_ns: i64) -> bool {
        let reports = self.reports.borrow();
        reports
            .values()
            .any(|report| report.has_hope(since_ns, now_ns))
    }
}

impl OutlookReport {
    fn has_hope(&self, since_ns: i64, now_ns: i64) -> bool {
        if now_ns - self.at_ns >= REPORT_NS {
            return false;
        }
        match self.outlook {
            RoomOutlook::Working => true,
            RoomOutlook::Failing { patience_ms } => {
                let patience_ns = patience_ms.saturating_mul(1_000_000);
                u64::try_from(now_ns - since_ns).is_ok_and(|waited| waited < patience_ns)
            }
            // A report from before the write says nothing about its bytes.
            RoomOutlook::Hopeless => since_ns > self.since_ns,
        }
    }
}

/// Counts a write that waits.
struct WaitingWrite<'r>(&'r RoomRelief);

impl<'r> WaitingWrite<'r> {
    fn begin(relief: &'r RoomRelief) -> WaitingWrite<'r> {
        relief.waiting.set(relief.waiting.get() + 1);
        // A watcher whose time is over is gone.
        for watcher in relief.watchers.borrow_mut().drain(..) {
            let _ = watcher.send(());
        }
        WaitingWrite(relief)
    }
}

impl Drop for WaitingWrite<'_> {
    fn drop(&mut self) {
        self.0.waiting.set(self.0.waiting.get() - 1);
    }
}

/// The parts of the server that waiting for room needs.
pub(in crate::cluster) trait ReliefNeeds: FindsPaths {
    /// The reports and the writes that wait.
    fn relief_state(&self) -> &RoomRelief;
    /// The room of this server.
    fn room(&self) -> FsStat;
}

/// Writes that wait for room, and the reports of the processes that make room.
#[derive(Clone)]
pub(in crate::cluster) struct Relief<S> {
    server: S,
}

impl<S: ReliefNeeds> Relief<S> {
    pub(in crate::cluster) fn new(server: &S) -> Relief<S> {
        Relief {
            server: server.clone(),
        }
    }

    fn state(&self) -> &RoomRelief {
        self.server.relief_state()
    }

    /// Returns once there may be room. `NoSpace`: nothing makes room.
    pub(in crate::cluster) async fn await_room_for_client(
        &self,
        op: AwaitRoom,
    ) -> Result<(), FsError> {
        let relief = self.state();
        let begun_ns = self.server.peers().now_ns();
        let waited_ns = i64::try_from(op.waited_ms.saturating_mul(1_000_000)).unwrap_or(i64::MAX);
        let since_ns = begun_ns.saturating_sub(waited_ns);
        if !relief.has_hope(since_ns, begun_ns) || !self.is_elevated(op.ino).await? {
            return Err(FsError::NoSpace);
        }
        let _waiting = WaitingWrite::begin(relief);
        let free_before = self.server.room().free_bytes;
        while relief.has_hope(since_ns, self.server.peers().now_ns()) {
            let is_over = self.server.peers().now_ns() - begun_ns >= WAIT_NS;
            if is_over || self.server.room().free_bytes > free_before {
                return Ok(());
            }
            self.server
                .peers()
                .until(self.server.peers().now_ns() + LOOK_NS)
                .await;
        }
        Err(FsError::NoSpace)
    }

    /// True if a file is in an elevated tree; or may be, since it has no name.
    async fn is_elevated(&self, ino: Ino) -> Result<bool, FsError> {
        let ino = self.server.resolve(ino)?;
        let attr = self
            .server
            .call(ino.rank(), peer::GetAttr { ino, keep: false })
            .await?;
        match attr.what.parent {
            Ino::NONE => Ok(true),
            parent => Ok(self.server.path_by_homes(parent).await?.root != ROOT),
        }
    }

    /// Passes a report of the process that moves an elevated tree to a server.
    pub(in crate::cluster) async fn report_relief_for_client(
        &self,
        op: ReportRelief,
    ) -> Result<RoomState, FsError> {
        let ReportRelief {
            rank,
            tree,
            outlook,
            age_ms,
            wait_ms,
        } = op;
        let report = peer::ReportRelief {
            tree,
            outlook,
            age_ms,
        };
        let room = self.server.call(Rank(rank), report).await?;
        if Rank(rank) != self.server.rank() || room.waiting > 0 || wait_ms == 0 {
            return Ok(room);
        }
        let (sender, waits) = oneshot::channel();
        self.state().watchers.borrow_mut().push(sender);
        let wait_ns = (i64::from(wait_ms) * 1_000_000).min(LONGEST_REPORT_NS);
        let over = pin!(self
            .server
            .peers()
            .until(self.server.peers().now_ns() + wait_ns));
        select(waits, over).await;
        Ok(self.room_state())
    }

    /// Notes a report, and returns the room here. `Invalid`: there is no such tree.
    pub(in crate::cluster) fn note_relief(
        &self,
        op: &peer::ReportRelief,
    ) -> Result<RoomState, FsError> {
        if usize::from(op.tree) >= MOST_TREES {
            return Err(FsError::Invalid);
        }
        let now_ns = self.server.peers().now_ns();
        let age_ns = i64::try_from(op.age_ms.saturating_mul(1_000_000)).unwrap_or(i64::MAX);
        let report = OutlookReport {
            at_ns: now_ns,
            since_ns: now_ns.saturating_sub(age_ns),
            outlook: op.outlook,
        };
        self.state().reports.borrow_mut().insert(op.tree, report);
        Ok(self.room_state())
    }

    fn room_state(&self) -> RoomState {
        let room = self.server.room();
        RoomState {
            capacity_bytes: room.capacity_bytes,
            free_bytes: room.free_bytes,
            waiting: self.state().waiting.get(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn relief(outlook: RoomOutlook, since_ns: i64) -> RoomRelief {
        let report = OutlookReport {
            at_ns: 100,
            since_ns,
            outlook,
        };
        RoomRelief {
            reports: RefCell::new(BTreeMap::from([(0, report)])),
            ..RoomRelief::default()
        }
    }

    #[test]
    fn a_write_waits_as_long_as_there_is_hope() {
        let silent = RoomRelief::default();
        assert!(!silent.has_hope(0, 100));
        let working = relief(RoomOutlook::Working, 50);
        assert!(working.has_hope(0, 100));
        assert!(!working.has_hope(0, 100 + REPORT_NS));
        let failing = relief(RoomOutlook::Failing { patience_ms: 1 }, 50);
        assert!(failing.has_hope(0, 999_999));
        assert!(!failing.has_hope(0, 1_000_000));
        let hopeless = relief(RoomOutlook::Hopeless, 50);
        assert!(!hopeless.has_hope(50, 100));
        assert!(
            hopeless.has_hope(51, 100),
            "the look began before the write"
        );
    }
}
