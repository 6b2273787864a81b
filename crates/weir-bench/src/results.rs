//! Samples, and the values computed from them: rates, their spread over the rounds, and ratios within rounds.
//!
//! A ratio is taken between two samples of the same round, which met the same noise; the median is over
//! those ratios, not a ratio of medians.

use std::collections::BTreeMap;

use serde::Serialize;

use crate::plan::Metric;
use crate::timing::Measured;

/// One measurement of a series in one round.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct RoundSample {
    /// The round, from 0.
    pub round: u32,
    /// Seconds from the first start to the last end.
    pub seconds: f64,
    /// Bytes of all processes.
    pub bytes: u64,
    /// Calls or files of all processes.
    pub ops: u64,
}

impl RoundSample {
    /// Bytes a second, or files a second for metadata.
    #[allow(clippy::cast_precision_loss)] // Counts far below 2^53.
    pub fn rate(&self, metric: &Metric) -> f64 {
        let amount = if metric.op.is_metadata() {
            self.ops
        } else {
            self.bytes
        };
        amount as f64 / self.seconds
    }

    /// Seconds that one call of one process took.
    #[allow(clippy::cast_precision_loss)] // Counts far below 2^53.
    pub fn seconds_per_call(&self, processes: u32) -> f64 {
        self.seconds * f64::from(processes) / self.ops as f64
    }
}

/// The middle and the ends of some values.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Spread {
    /// The median (of an even number, the mean of the middle two).
    pub median: f64,
    /// The smallest.
    pub min: f64,
    /// The largest.
    pub max: f64,
}

impl Spread {
    /// Of `values`; `None` if there are none.
    pub fn from_values(values: impl IntoIterator<Item = f64>) -> Option<Self> {
        let mut values: Vec<f64> = values.into_iter().collect();
        values.sort_by(f64::total_cmp);
        let (&min, &max) = (values.first()?, values.last()?);
        let middle = values.len() / 2;
        let median = if values.len() % 2 == 1 {
            values[middle]
        } else {
            f64::midpoint(values[middle - 1], values[middle])
        };
        Some(Spread { median, min, max })
    }
}

/// The series of one metric.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Series<'r> {
    /// The metric.
    pub metric: &'r Metric,
    /// The target, or the way to measure a limit.
    pub name: &'r str,
}

/// All samples: of each metric, by series (a target, or a way to measure a limit).
#[derive(Default)]
pub struct Results(BTreeMap<Metric, BTreeMap<String, Vec<RoundSample>>>);

impl Results {
    /// Adds a sample.
    pub fn add(&mut self, metric: Metric, series: &str, round: u32, measured: Measured) {
        let all = self.0.entry(metric).or_default();
        all.entry(series.to_owned()).or_default().push(RoundSample {
            round,
            seconds: measured.seconds,
            bytes: measured.bytes,
            ops: measured.ops,
        });
    }

    /// The metrics, sorted.
    pub fn metrics(&self) -> impl Iterator<Item = &Metric> {
        self.0.keys()
    }

    /// The names of the series of a metric.
    pub fn series_of(&self, metric: &Metric) -> impl Iterator<Item = &str> {
        self.0
            .get(metric)
            .into_iter()
            .flat_map(|all| all.keys().map(String::as_str))
    }

    /// The samples of a series; empty if there are none.
    pub fn samples(&self, metric: &Metric, series: &str) -> &[RoundSample] {
        self.0
            .get(metric)
            .and_then(|all| all.get(series))
            .map_or(&[], Vec::as_slice)
    }

    /// The rate of a series.
    pub fn rate(&self, metric: &Metric, series: &str) -> Option<Spread> {
        Spread::from_values(self.samples(metric, series).iter().map(|s| s.rate(metric)))
    }

    /// The ratio of two series, round by round.
    pub fn ratio(&self, over: Series<'_>, under: Series<'_>) -> Option<Spread> {
        let above = self.samples(over.metric, over.name);
        let below = self.samples(under.metric, under.name);
        Spread::from_values(above.iter().filter_map(|sample| {
            let other = below.iter().find(|s| s.round == sample.round)?;
            Some(sample.rate(over.metric) / other.rate(under.metric))
        }))
    }

    /// The ratio of the fastest samples of two series, in whichever rounds those were: what remains when other
    /// load on the machine slows some rounds, since load never makes anything faster.
    pub fn ratio_of_best(&self, over: Series<'_>, under: Series<'_>) -> Option<f64> {
        let best = |series: Series<'_>| Some(self.rate(series.metric, series.name)?.max);
        Some(best(over)? / best(under)?)
    }

    /// The fastest series by median: one way to measure for all rounds, since the best of each round would be
    /// biased by noise.
    pub fn best(&self, metric: &Metric) -> Option<&str> {
        let rated = self
            .series_of(metric)
            .filter_map(|s| Some((s, self.rate(metric, s)?.median)));
        rated
            .max_by(|a, b| a.1.total_cmp(&b.1))
            .map(|(series, _)| series)
    }

    /// The share of the copy limit that a series reaches.
    pub fn share_of_copy_limit(&self, metric: &Metric, series: &str) -> Option<Spread> {
        let limit = metric.copy_limit()?;
        let reached = Series {
            metric,
            name: series,
        };
        let limit = Series {
            metric: &limit,
            name: self.best(&limit)?,
        };
        self.ratio(reached, limit)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::Op;

    #[test]
    fn ratios_are_taken_within_rounds() {
        let metric = Metric::new(Op::Write, 1);
        let mut results = Results::default();
        // The machine is ten times slower in round 1, for both alike.
        for (series, round, seconds) in [
            ("a", 0, 1.0),
            ("b", 0, 2.0),
            ("a", 1, 10.0),
            ("b", 1, 20.0),
            ("b", 2, 1.0),
        ] {
            let measured = Measured {
                start_ns: 0,
                seconds,
                bytes: 100,
                ops: 1,
            };
            results.add(metric.clone(), series, round, measured);
        }
        let [a, b, none] = ["a", "b", "none"].map(|name| Series {
            metric: &metric,
            name,
        });
        let ratio = results.ratio(a, b).unwrap();
        let two = |value: f64| (value - 2.0).abs() < 1e-9;
        assert!(
            two(ratio.min) && two(ratio.median) && two(ratio.max),
            "{ratio:?}"
        );
        assert!((results.rate(&metric, "a").unwrap().median - 55.0).abs() < 1e-9);
        let best = results.ratio_of_best(a, b).unwrap();
        assert!(
            (best - 1.0).abs() < 1e-9,
            "100 / s in round 0 against 100 / s in round 2: {best}"
        );
        assert_eq!(results.best(&metric), Some("a"));
        assert_eq!(results.ratio(a, none), None);
    }
}
