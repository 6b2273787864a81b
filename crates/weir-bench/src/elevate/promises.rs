//! The rows of `weir bench --elevate`, and their promises: one place for each number.

use super::watched::WatchedRun;
use crate::rows::Bar::{AtLeast, AtMost};
use crate::rows::PromiseRow;
use crate::rows::PromiseTable;
use crate::rows::Unit::{BytesPerSecond, Seconds};

/// The part of a checkpoint between whose ends the rate of its move is taken: looks at the target take time.
const INNER: (f64, f64) = (0.05, 0.95);

/// The checkpoints of a run.
#[derive(Clone, Copy, Debug)]
pub struct CheckpointPlan {
    /// Bytes of a checkpoint.
    pub checkpoint_bytes: u64,
    /// Checkpoints.
    pub checkpoints: u32,
}

/// The runs of a round.
#[derive(Debug)]
pub struct ElevateRound {
    /// Their checkpoints.
    pub plan: CheckpointPlan,
    /// Directly, with as much computation as `eased`.
    pub direct: WatchedRun,
    /// Directly, with as much as `even`.
    pub direct_even: WatchedRun,
    /// To an instance that moves nothing.
    pub in_weir: WatchedRun,
    /// Through an instance, with computation that lets the target keep up.
    pub eased: WatchedRun,
    /// Through an instance, with as much computation as direct I/O takes.
    pub even: WatchedRun,
    /// One checkpoint through an instance, moved once the program has ended.
    pub idle: WatchedRun,
}

#[allow(clippy::cast_precision_loss)] // bytes of a run, far below 2^53
impl ElevateRound {
    /// The rate of direct writes, B/s.
    fn direct_rate(&self) -> f64 {
        self.plan.checkpoint_bytes as f64 / self.direct.io_s()
    }

    /// The rate at which a checkpoint reaches the target, B/s; `None`: it did not.
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)] // a part of the bytes
    fn move_rate(&self, run: &WatchedRun, checkpoint: u32) -> Option<f64> {
        let bytes = self.plan.checkpoint_bytes as f64;
        let at = |part: f64| {
            let wanted = bytes * (f64::from(checkpoint) + part);
            run.reached_ns(wanted as u64)
        };
        let taken_ns = at(INNER.1)?.checked_sub(at(INNER.0)?)?;
        (taken_ns > 0).then(|| bytes * (INNER.1 - INNER.0) * 1e9 / taken_ns as f64)
    }

    /// The mean rate of the checkpoints that were moved while the program computed.
    fn rate_while_computing(&self) -> Option<f64> {
        let moved = 0..self.plan.checkpoints - 1;
        let rates: Option<Vec<f64>> = moved.map(|at| self.move_rate(&self.eased, at)).collect();
        let rates = rates?;
        Some(rates.len() as f64 / rates.iter().map(|rate| rate.recip()).sum::<f64>())
    }

    /// Computation and one drain, s.
    fn computation_and_drain_s(&self) -> f64 {
        let computation = self.direct_even.computation_s() * f64::from(self.plan.checkpoints);
        computation + self.direct_even.io_s()
    }

    /// Adds the samples of all rows.
    pub fn add_to(&self, rows: &mut PromiseTable) {
        let row = |what: &str, beside: &str, unit, bar| PromiseRow {
            what: what.to_owned(),
            beside: beside.to_owned(),
            unit,
            bar,
        };
        let direct = row("checkpoint, directly", "elevated", Seconds, AtLeast(10.0));
        rows.add(&direct, self.direct.io_s(), Some(self.eased.io_s()));
        let elevated = row("checkpoint, elevated", "in weir only", Seconds, AtMost(1.1));
        rows.add(&elevated, self.eased.io_s(), Some(self.in_weir.io_s()));
        let whole = row(
            "whole run, as much computation as direct I/O",
            "computation and one drain",
            Seconds,
            AtMost(1.05),
        );
        let whole_beside = self.computation_and_drain_s();
        rows.add(&whole, self.even.whole_s(), Some(whole_beside));
        let busy = row(
            "drain while the program computes",
            "direct",
            BytesPerSecond,
            AtLeast(0.95),
        );
        let idle = row(
            "drain when it has ended",
            "direct",
            BytesPerSecond,
            AtLeast(0.98),
        );
        for (row, rate) in [
            (&busy, self.rate_while_computing()),
            (&idle, self.move_rate(&self.idle, 0)),
        ] {
            match rate {
                Some(rate) => rows.add(row, rate, Some(self.direct_rate())),
                None => rows.why_not(row, "the target did not get it, or too fast to tell"),
            }
        }
        let computation = row(
            "computation beside a drain",
            "without",
            Seconds,
            AtMost(1.03),
        );
        let beside = self.direct.computation_s();
        rows.add(&computation, self.eased.computation_s(), Some(beside));
    }

    /// A line of progress.
    pub fn in_words(&self) -> String {
        format!(
            "checkpoint {:.3} s directly, {:.3} s elevated; whole run {:.1} s",
            self.direct.io_s(),
            self.eased.io_s(),
            self.even.whole_s()
        )
    }
}

#[cfg(test)]
mod tests {
    use super::super::program::{Interval, ProgramReport};
    use super::super::watched::TargetSample;
    use super::*;

    const SECOND: u64 = 1_000_000_000;

    /// Checkpoints of 1000 bytes, each written in `io_s` and moved at 100 B/s from the moment it is written.
    fn run(io_s: f64, computation_s: f64, checkpoints: u32) -> WatchedRun {
        let from_ns = |seconds: f64| std::time::Duration::from_secs_f64(seconds);
        let at = |number: u32| f64::from(number) * (io_s + computation_s);
        let interval = |from: f64, seconds| Interval {
            start_ns: u64::try_from(from_ns(from).as_nanos()).unwrap(),
            seconds,
        };
        let samples = (0..u64::from(checkpoints) * 20).map(|half_second| TargetSample {
            at_ns: half_second * SECOND / 2,
            bytes: (half_second * 50).min(u64::from(checkpoints) * 1000),
        });
        WatchedRun {
            program: ProgramReport {
                writes: (0..checkpoints).map(|n| interval(at(n), io_s)).collect(),
                computations: (0..checkpoints)
                    .map(|n| interval(at(n) + io_s, computation_s))
                    .collect(),
            },
            ended_ns: u64::from(checkpoints) * 12 * SECOND,
            target: samples.collect(),
        }
    }

    #[test]
    fn a_round_is_judged_by_what_was_beside_it() {
        let round = ElevateRound {
            plan: CheckpointPlan {
                checkpoint_bytes: 1000,
                checkpoints: 3,
            },
            direct: run(10.0, 12.5, 2),
            direct_even: run(10.0, 10.0, 2),
            in_weir: run(0.5, 12.5, 3),
            eased: run(0.5, 12.5, 3),
            even: run(0.5, 10.0, 3),
            idle: run(0.5, 0.0, 1),
        };
        let mut rows = PromiseTable::default();
        round.add_to(&mut rows);
        let verdicts = rows.verdicts();
        let ratios: Vec<f64> = verdicts
            .iter()
            .map(|verdict| verdict.ratio.unwrap().median)
            .collect();
        let wanted = [20.0, 1.0, 36.0 / 40.0, 1.0, 1.0, 1.0];
        for (ratio, wanted) in ratios.iter().zip(wanted) {
            assert!((ratio / wanted - 1.0).abs() < 0.06, "{ratios:?}");
        }
        assert!(
            verdicts.iter().all(|verdict| verdict.met == Some(true)),
            "{verdicts:?}"
        );
    }

    #[test]
    fn what_never_reaches_the_target_is_not_met() {
        let mut lost = run(0.5, 0.0, 1);
        lost.target.retain(|sample| sample.bytes < 900);
        let round = ElevateRound {
            plan: CheckpointPlan {
                checkpoint_bytes: 1000,
                checkpoints: 2,
            },
            direct: run(10.0, 12.5, 2),
            direct_even: run(10.0, 10.0, 2),
            in_weir: run(0.5, 12.5, 2),
            eased: run(0.5, 12.5, 2),
            even: run(0.5, 10.0, 2),
            idle: lost,
        };
        let mut rows = PromiseTable::default();
        round.add_to(&mut rows);
        let verdicts = rows.verdicts();
        let idle = verdicts
            .iter()
            .find(|verdict| verdict.what.contains("ended"))
            .unwrap();
        assert_eq!(idle.met, Some(false));
        assert!(idle.why_not.is_some());
    }
}
