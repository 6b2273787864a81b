//! Room for writes to an elevated tree: files that are on the target are evicted before the instance is full, and writes
//! that find no room wait meanwhile (`weir-server`, `cluster/storage/relief.rs`).
//!
//! A thread asks the servers for their room, and sends them the outlook for writes that wait. The rounds of the drain
//! evict, since they know the files that are on the target.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use weir_core::proto::{ReportRelief, RoomOutlook, RoomState};
use weir_mover::drain::{AheadResult, Drain};
use weir_mover::{DirectoryTree, InstanceTree, MoveError, StageProgress, WatchedTree};

use super::service::{DrainActivity, DrainService};

/// The time between two reports while a write waits.
const SHORT_INTERVAL: Duration = Duration::from_millis(100);
/// The same while none does.
const INTERVAL: Duration = Duration::from_millis(INTERVAL_MS as u64);
const INTERVAL_MS: u32 = 1000;
/// The least time for each server, which counts in a large instance.
const INTERVAL_OF_SERVER: Duration = Duration::from_millis(2);
/// The time after the last byte for which a move counts as being under way.
const LIVELY: Duration = Duration::from_secs(5);
/// Eviction ends this many percentage points below the level at which it begins.
const HYSTERESIS: u64 = 15;
/// A round copies the smallest server's storage divided by this; then its files can be evicted.
const ROUND_SHARE: u64 = 8;
/// The least bytes of a round.
const SMALLEST_ROUND: u64 = 64 << 20;

/// The relief of the servers of an instance.
#[derive(Debug)]
pub struct ServerRelief {
    instance: InstanceTree,
    tree: u16,
    servers: u16,
    /// The percentage of a server's storage in use at which eviction begins; 0: never.
    percent: u64,
    /// The time for which writes wait while nothing can be moved.
    patience: Duration,
    /// The servers that have little room.
    pressed: Mutex<BTreeSet<u16>>,
    /// The storage of the smallest server, bytes.
    smallest: AtomicU64,
}

/// The activity of the drain, and the time at which its amount last changed.
struct Observation {
    activity: DrainActivity,
    changed: Instant,
}

impl ServerRelief {
    /// `percent`: of the storage of a server, 0 to 100.
    pub fn new(
        instance: InstanceTree,
        tree: usize,
        percent: u32,
        patience: Duration,
    ) -> std::io::Result<ServerRelief> {
        Ok(ServerRelief {
            servers: instance.servers()?,
            instance,
            tree: u16::try_from(tree).unwrap_or(u16::MAX),
            percent: percent.min(100).into(),
            patience,
            pressed: Mutex::default(),
            smallest: AtomicU64::new(u64::MAX),
        })
    }

    /// The bytes after which a round ends.
    pub fn round_limit(&self) -> u64 {
        (self.smallest.load(Ordering::Relaxed) / ROUND_SHARE).max(SMALLEST_ROUND)
    }

    /// True if there is one server.
    pub fn is_alone(&self) -> bool {
        self.servers <= 1
    }

    /// True if a server has little room.
    pub fn is_pressed(&self) -> bool {
        !self.pressed().is_empty()
    }

    fn pressed(&self) -> std::sync::MutexGuard<'_, BTreeSet<u16>> {
        self.pressed.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reports to the servers until the command has ended, and requests rounds for those that have little room.
    pub fn report(&self, service: &DrainService) {
        let mut observed = Observation {
            activity: service.activity(),
            changed: Instant::now(),
        };
        while !service.is_finishing() {
            let activity = service.activity();
            if activity.amount != observed.activity.amount {
                observed.changed = Instant::now();
            }
            observed.activity = activity;
            let began = Instant::now();
            let waiting = self.report_once(service, &observed);
            service.show_waiting(waiting);
            let interval = match waiting {
                0 => INTERVAL,
                _ => SHORT_INTERVAL,
            };
            let interval = interval.max(INTERVAL_OF_SERVER * self.servers.into());
            // If no write waits, the reply of this node's server took the whole interval already.
            service.await_end(interval.saturating_sub(began.elapsed()));
        }
    }

    /// Reports to each server; returns the number of writes that wait.
    fn report_once(&self, service: &DrainService, observed: &Observation) -> u32 {
        let mut waiting = 0;
        for rank in 0..self.servers {
            let began = observed.activity.began;
            let report = ReportRelief {
                rank,
                tree: self.tree,
                outlook: self.outlook(observed),
                age_ms: began.map_or(u64::MAX, |began| in_ms(began.elapsed())),
                // This node's server delays its reply up to this time, until a write waits for room.
                wait_ms: INTERVAL_MS,
            };
            // Skip a server that cannot be reached.
            let Ok(room) = self.instance.report_relief(report) else {
                continue;
            };
            waiting += room.waiting;
            self.smallest
                .fetch_min(room.capacity_bytes, Ordering::Relaxed);
            if self.missing(&room) > 0 {
                self.pressed().insert(rank);
                service.want_relief();
            }
        }
        waiting
    }

    /// The outlook for a write that waits.
    fn outlook(&self, observed: &Observation) -> RoomOutlook {
        let activity = &observed.activity;
        match () {
            () if self.percent == 0 => RoomOutlook::Hopeless,
            () if observed.changed.elapsed() < LIVELY => RoomOutlook::Working,
            () if activity.is_moving || activity.awaits_move => RoomOutlook::Failing {
                patience_ms: in_ms(self.patience),
            },
            () => RoomOutlook::Hopeless,
        }
    }

    /// The bytes that are to be evicted for a server.
    fn missing(&self, room: &RoomState) -> u64 {
        let capacity = room.capacity_bytes;
        let used = capacity.saturating_sub(room.free_bytes);
        let part = |percent: u64| capacity / 100 * percent;
        let is_due = room.waiting > 0 || used > part(self.percent) && self.percent < 100;
        match is_due && self.percent > 0 {
            true => used
                .saturating_sub(part(self.percent.saturating_sub(HYSTERESIS)))
                .max(1),
            false => 0,
        }
    }

    /// Evicts files for the servers that have little room. `ahead`: if these are not enough, evicts also ranges of files
    /// that programs write, with this number of threads.
    pub fn evict(
        &self,
        drain: &mut Drain<'_, InstanceTree, WatchedTree<DirectoryTree>>,
        service: &DrainService,
        ahead: Option<(usize, &StageProgress)>,
    ) -> Result<AheadResult, MoveError> {
        let mut result = AheadResult::default();
        if self.percent == 0 {
            return Ok(result);
        }
        let mut asked = self.pressed().clone();
        if self.is_alone() {
            // It costs nothing to ask.
            asked.insert(0);
        }
        for rank in asked {
            let report = ReportRelief {
                rank,
                tree: self.tree,
                // The eviction itself counts as work.
                outlook: RoomOutlook::Working,
                age_ms: 0,
                wait_ms: 0,
            };
            let Ok(room) = self.instance.report_relief(report) else {
                continue;
            };
            let missing = self.missing(&room);
            if missing == 0 {
                self.pressed().remove(&rank);
                continue;
            }
            self.pressed().insert(rank);
            let mut more = drain.evict(rank, missing)?;
            if let Some((threads, progress)) = ahead.filter(|_| more.bytes < missing) {
                let missing = missing - more.bytes;
                let ranges = drain.evict_open_files(rank, missing, threads, progress);
                more += ranges.evicted;
                result.failed.extend(ranges.failed);
            }
            result.evicted += more;
        }
        service.count_evicted(result.evicted);
        Ok(result)
    }
}

fn in_ms(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}
