//! The promises of weir's memory and file tiers as one table, and whether they are met.
//!
//! A promise is judged by the median over the rounds of a ratio taken within each round, without any tolerance.
//! A promise that was not measured is not met.

use serde::Serialize;

use crate::args::{BenchArgs, Target};
use crate::layout::Pattern;
use crate::plan::{Cases, DataCase, Metric, Op, DEVICE};
use crate::results::{Results, Series, Spread};

/// The divisor of a rate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RateDivisor {
    Baseline,
    CopyLimit,
    Device,
}

/// How many processes take part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Processes {
    /// As many as `--processes` says.
    All,
    One,
}

/// One promise about data: (operation, pattern, transfer, processes, against, at least this ratio).
type DataRow = (Op, Pattern, u64, Processes, RateDivisor, f64);

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;

#[rustfmt::skip] // A table reads best as one.
const DATA_ROWS: &[DataRow] = {
    use {RateDivisor::{Baseline, CopyLimit, Device}, Op::{FirstWrite, ReadOther, ReadSame, Write}};
    use {Pattern::{Nn, Segmented, Strided}, Processes::{All, One}};
    &[
        (Write,      Segmented, MIB,      All, Baseline,  4.0),
        (Write,      Segmented, MIB,      All, CopyLimit, 0.8),
        (Write,      Nn,        MIB,      All, Baseline,  2.5),
        (Write,      Nn,        MIB,      All, CopyLimit, 0.8),
        (Write,      Strided,   47_008,   All, Baseline,  4.0),
        (Write,      Strided,   64 * KIB, All, Baseline,  4.0),
        (Write,      Nn,        KIB,      One, Baseline,  10.0),
        (Write,      Nn,        64,       One, Baseline,  50.0),
        (ReadSame,   Segmented, MIB,      All, Baseline,  2.0),
        (ReadSame,   Segmented, MIB,      All, CopyLimit, 0.8),
        (ReadSame,   Segmented, 64 * KIB, All, Baseline,  2.0),
        (ReadSame,   Segmented, 64 * KIB, All, CopyLimit, 0.8),
        (ReadOther,  Segmented, MIB,      All, Baseline,  2.0),
        (ReadOther,  Segmented, MIB,      All, CopyLimit, 0.8),
        (ReadOther,  Segmented, 64 * KIB, All, Baseline,  2.0),
        (ReadOther,  Segmented, 64 * KIB, All, CopyLimit, 0.8),
        (FirstWrite, Segmented, MIB,      All, Baseline,  1.0),
        (Write,      Segmented, MIB,      All, Device,    1.0),
    ]
};

/// One promise about files: (operation, at least this ratio to the baseline), in own and shared directories.
const META_ROWS: &[(Op, f64)] = &[
    (Op::Stat, 0.5),
    (Op::Open, 0.5),
    (Op::Create, 0.33),
    (Op::Remove, 0.33),
];

/// A judged promise.
#[derive(Debug, Clone, Serialize)]
pub struct Verdict {
    /// The promise, in words.
    pub promise: String,
    /// The measured metric.
    pub metric: Metric,
    /// The target that promises.
    pub target: String,
    /// The divisor of the rate.
    pub against: String,
    /// The least ratio.
    pub at_least: f64,
    /// The measured ratio, if it was measured.
    pub ratio: Option<Spread>,
    /// The ratio of the fastest rounds, which other load on the machine disturbs least; not judged.
    pub ratio_of_best: Option<f64>,
    /// Why it was not measured.
    pub why_not: Option<String>,
    /// True if the median reaches the promised ratio.
    pub met: bool,
}

impl Verdict {
    /// `yes`, `NO` or `NOT MEASURED`.
    pub fn word(&self) -> &'static str {
        match (self.met, self.ratio) {
            (true, _) => "yes",
            (false, Some(_)) => "NO",
            (false, None) => "NOT MEASURED",
        }
    }
}

/// The cases that the promises need.
pub fn cases(args: &BenchArgs) -> anyhow::Result<Cases> {
    let mut cases = Cases {
        meta: args.meta_cases(),
        ..Cases::default()
    };
    for &row in DATA_ROWS {
        let case = case_of(row, args)?;
        let alike = |c: &&mut DataCase| {
            (c.pattern, c.transfer, c.processes) == (case.pattern, case.transfer, case.processes)
        };
        if case.first {
            cases.first = Some(case);
        } else if case.fsync {
            cases.durable.push(case);
        } else if let Some(same) = cases.data.iter_mut().find(alike) {
            same.read_same |= case.read_same;
            same.read_other |= case.read_other;
        } else {
            cases.data.push(case);
        }
    }
    Ok(cases)
}

fn case_of(row: DataRow, args: &BenchArgs) -> anyhow::Result<DataCase> {
    let (op, pattern, transfer, processes, against, _) = row;
    let case = args.data_case(pattern, transfer, 1)?;
    Ok(DataCase {
        processes: match processes {
            Processes::All => case.processes,
            Processes::One => 1,
        },
        fsync: against == RateDivisor::Device,
        first: op == Op::FirstWrite,
        read_same: op == Op::ReadSame,
        read_other: op == Op::ReadOther,
        ..case
    })
}

/// The device's case: like the durable one, in the block size of it.
pub fn device_case(args: &BenchArgs) -> anyhow::Result<DataCase> {
    Ok(DataCase {
        fsync: true,
        read_same: true,
        ..args.data_case(Pattern::Nn, MIB, 1)?
    })
}

/// Judges every promise of `subject` (and, for the device, of the durable targets).
pub fn judge(
    results: &Results,
    args: &BenchArgs,
    subject: &str,
    baseline: &str,
    durable: &[Target],
) -> Vec<Verdict> {
    let mut verdicts = Vec::new();
    let mut judge = |metric: Metric, targets: &[&str], against, at_least| {
        for target in targets {
            let metric = metric.clone();
            verdicts.push(judge_row(
                results, metric, target, baseline, against, at_least,
            ));
        }
    };
    let durable: Vec<&str> = durable.iter().map(|target| target.name.as_str()).collect();
    for &row in DATA_ROWS {
        let (op, _, _, _, against, at_least) = row;
        let case = case_of(row, args).expect("the same cases were run");
        let targets = match against {
            RateDivisor::Device if durable.is_empty() => &["-"],
            RateDivisor::Device => &durable[..],
            _ => &[subject],
        };
        judge(case.metric(op), targets, against, at_least);
    }
    for &(op, at_least) in META_ROWS {
        for case in args.meta_cases() {
            judge(case.metric(op), &[subject], RateDivisor::Baseline, at_least);
        }
    }
    verdicts
}

fn judge_row(
    results: &Results,
    metric: Metric,
    target: &str,
    baseline: &str,
    against: RateDivisor,
    at_least: f64,
) -> Verdict {
    let over = Series {
        metric: &metric,
        name: target,
    };
    let device = Metric {
        transfer: metric.transfer,
        ..Metric::new(Op::DeviceWrite, metric.processes)
    };
    let limit = metric.copy_limit();
    let limit = limit.as_ref().and_then(|metric| {
        let name = results.best(metric)?;
        Some(Series { metric, name })
    });
    let (under, name, missing) = match against {
        RateDivisor::Baseline => {
            let under = Series {
                metric: &metric,
                name: baseline,
            };
            (Some(under), baseline, "no samples")
        }
        RateDivisor::CopyLimit => (
            limit,
            "copy limit",
            "the limit was not measured (--no-limits)",
        ),
        RateDivisor::Device => {
            let missing = "needs --durable NAME=DIR and --device DIR";
            let under = Series {
                metric: &device,
                name: DEVICE,
            };
            (Some(under), DEVICE, missing)
        }
    };
    let ratio = under.and_then(|under| results.ratio(over, under));
    let best = under.and_then(|under| results.ratio_of_best(over, under));
    Verdict {
        promise: metric.label(),
        target: target.into(),
        against: name.into(),
        at_least,
        met: ratio.is_some_and(|r| r.median >= at_least),
        why_not: ratio.is_none().then(|| missing.into()),
        ratio,
        ratio_of_best: best,
        metric,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::timing::Measured;

    fn metric() -> Metric {
        Metric::new(Op::Write, 4)
    }

    fn judged(seconds: &[f64]) -> Verdict {
        let mut results = Results::default();
        for (round, &s) in (0u32..).zip(seconds) {
            for (series, seconds) in [("weir", s), ("tmpfs", 1.0)] {
                let measured = Measured {
                    start_ns: 0,
                    seconds,
                    bytes: MIB,
                    ops: 1,
                };
                results.add(metric(), series, round, measured);
            }
        }
        judge_row(
            &results,
            metric(),
            "weir",
            "tmpfs",
            RateDivisor::Baseline,
            4.0,
        )
    }

    #[test]
    fn a_promise_is_judged_by_its_median_and_absence_is_failure() {
        assert_eq!(judged(&[0.25, 0.2, 0.5]).word(), "yes");
        assert_eq!(judged(&[0.26, 0.1, 0.5]).word(), "NO");
        assert_eq!(judged(&[]).word(), "NOT MEASURED");
    }
}
