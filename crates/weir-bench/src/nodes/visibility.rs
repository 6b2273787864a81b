//! The cost of visibility raw. Each phase of a program runs in a raw and in a ras directory before the
//! next phase begins; odd rounds swap the two directories.
//!
//! Phases of writes, and of reads by other nodes, make the same calls in both, `fsync` after the
//! writes too. Programs that exchange bytes in lock-step need `fsync` in ras, and none in raw: each
//! does what it needs to read the right bytes, and these are compared in every turn.

use anyhow::Result;

use super::instance::{increase, is_request, ServerCounters};
use super::measure::{group, number, per_second, write_kept, HostsRun, KIB, MIB};
use super::plan::{self, WriteSharing};
use crate::links::BarrierHolder;
use crate::mixed::Mixed;
use crate::pieces::FilePieces;
use crate::random::random;
use crate::wire::Step;
use crate::workers::{Assignment, WorkerId};

/// The directories, each with the visibility that it is named after.
const BOTH: [&str; 2] = ["raw", "ras"];
const RAW: usize = 0;
const RAS: usize = 1;

/// Bytes of a piece of a strided file, and of an exchange.
const SMALL: u64 = 64 * KIB;

impl HostsRun<'_> {
    /// All rows.
    pub(super) fn visibility(&mut self) -> Result<()> {
        let workers = self.one_each();
        for layout in WriteSharing::ALL {
            self.in_both(&workers, |run| run.phases(&workers, layout))?;
        }
        self.in_both(&workers, |run| run.exchanges(&workers))
    }

    /// Something in a directory of each visibility, both made for it.
    fn in_both(
        &mut self,
        workers: &[WorkerId],
        measure: impl FnOnce(&mut Self) -> Result<()>,
    ) -> Result<()> {
        for name in BOTH {
            let directory = self.instance.path(name);
            let set = Step::Visibility {
                directory: directory.clone(),
                visibility: name.to_owned(),
            };
            for step in [Step::Directory(directory), set] {
                self.instance.workers.run(&[(workers[0], step)])?;
            }
        }
        measure(self)?;
        BOTH.iter()
            .try_for_each(|name| self.remove(workers[0], name))
    }

    /// Which of the two is first in this round.
    fn order(&self) -> [usize; 2] {
        let odd = usize::from(self.round % 2 == 1);
        [odd, 1 - odd]
    }

    /// The bytes that each process writes.
    fn parts(
        &self,
        workers: &[WorkerId],
        layout: WriteSharing,
        directory: &str,
    ) -> Vec<(WorkerId, FilePieces)> {
        let (bytes, servers) = (self.plan.bytes, self.servers());
        let part = |i: u64| match layout {
            WriteSharing::Segmented => {
                self.part(&format!("{directory}/segmented"), i * bytes, bytes, MIB)
            }
            WriteSharing::Strided => {
                let whole = self.part(&format!("{directory}/strided"), 0, bytes, SMALL);
                whole.spread(i * SMALL, servers * SMALL, bytes / SMALL)
            }
            WriteSharing::Apart => self.part(&format!("{directory}/apart.{i}"), 0, bytes, MIB),
        };
        group(workers, part)
    }

    /// A phase of writes, and one of reads by the neighbours.
    fn phases(&mut self, workers: &[WorkerId], layout: WriteSharing) -> Result<()> {
        let rows = plan::raw_phases(layout);
        self.say(&rows[0].what);
        let groups = BOTH.map(|directory| self.parts(workers, layout, directory));
        let (mut rates, mut requests) = ([[0.0; 3]; 2], [0.0; 2]);
        for at in self.order() {
            let before = self.instance.counters()?;
            let wrote = self.each(&groups[at], write_kept)?;
            let published = self.each(&groups[at], |_| Step::Publish)?;
            let synced = wrote.slowest() + published.slowest();
            requests[at] += self.requests_since(&before)?;
            rates[at][0] = per_second(wrote.bytes(), wrote.slowest());
            rates[at][1] = per_second(wrote.bytes(), synced);
        }
        for at in self.order() {
            let others = groups[at].iter().cycle().skip(1);
            let others = others.map(|(_, data)| data.clone());
            let group: Vec<(WorkerId, FilePieces)> = workers.iter().copied().zip(others).collect();
            let before = self.instance.counters()?;
            let read = self.each(&group, Step::Read)?;
            requests[at] += self.requests_since(&before)?;
            rates[at][2] = per_second(read.bytes(), read.slowest());
            self.verified += self.each(&group, Step::Verify)?.bytes();
        }
        for (row, rate) in rows.iter().zip(0..3) {
            self.rows.add(row, rates[RAW][rate], Some(rates[RAS][rate]));
        }
        self.rows.add(&rows[3], requests[RAW], Some(requests[RAS]));
        Ok(())
    }

    /// Exchanges with a neighbour, in lock-step and not.
    fn exchanges(&mut self, workers: &[WorkerId]) -> Result<()> {
        let rows = plan::raw_mixed();
        self.say(&rows.lock_step.what);
        let groups = BOTH.map(|directory| {
            let file = format!("{directory}/mixed");
            group(workers, |i| self.part(&file, i * SMALL, SMALL, SMALL))
        });
        for group in &groups {
            self.each(group, write_kept)?;
            self.each(group, |_| Step::Publish)?;
        }
        let [mut lock_step, mut requests, mut free] = [[0.0; 2]; 3];
        // Without a barrier first: the content is still the one that was written before.
        for at in self.order() {
            free[at] = self.turns(&groups[at], at == RAS, false)?;
        }
        let unsynced = self.turns(&groups[RAS], false, false)?;
        for at in self.order() {
            let before = self.instance.counters()?;
            lock_step[at] = self.turns(&groups[at], at == RAS, true)?;
            requests[at] = self.requests_since(&before)? / f64::from(self.plan.turns);
        }
        let none = groups[RAS].iter();
        let none = none.map(|(worker, data)| (*worker, data.clone().spread(0, SMALL, 0)));
        let none: Vec<(WorkerId, FilePieces)> = none.collect();
        let barriers = self.turns(&none, false, true)?;
        let told = &mut *self.rows;
        told.add(&rows.lock_step, lock_step[RAW], Some(lock_step[RAS]));
        told.add(&rows.requests, requests[RAW], Some(requests[RAS]));
        told.add(&rows.barriers, barriers, None);
        told.add(&rows.free, free[RAW], Some(free[RAS]));
        told.add(&rows.unsynced, free[RAW], Some(unsynced));
        Ok(())
    }

    /// Each writes its part and reads its neighbour's, many times; s a turn of the slowest.
    fn turns(
        &mut self,
        group: &[(WorkerId, FilePieces)],
        fsync: bool,
        barrier: bool,
    ) -> Result<f64> {
        let turns = self.plan.turns;
        let worker = self.instance.nodes[0].worker;
        let token = random()?;
        let meeting = match barrier {
            true => Some(BarrierHolder {
                address: self.instance.workers.listen_at(worker, false)?.address,
                token,
            }),
            false => None,
        };
        let neighbours = group.iter().cycle().skip(1);
        let steps = group
            .iter()
            .zip(neighbours)
            .map(|((worker, own), (_, other))| {
                let mixed = Mixed {
                    write: own.clone(),
                    read: other.clone(),
                    turns,
                    fsync,
                    barrier: meeting.clone(),
                };
                (*worker, Step::Mixed(mixed))
            });
        let mut steps: Vec<Assignment> = steps.collect();
        if barrier {
            let held = Step::Barrier {
                from: u32::try_from(group.len())?,
                times: 2 * turns,
                token,
            };
            steps.push((worker, held));
        }
        let did = self.instance.workers.run(&steps)?;
        self.verified += did.bytes();
        Ok(did.slowest() / f64::from(turns))
    }

    /// How many requests there were of any kind.
    fn requests_since(&self, before: &[ServerCounters]) -> Result<f64> {
        let asked = increase(before, &self.instance.counters()?, is_request);
        Ok(number(asked.iter().sum()))
    }
}
