//! The JSON report. `format` is raised when a field changes its meaning or goes away.

use serde::Serialize;

use crate::args::Target;
use crate::machine::Machine;
use crate::plan::Metric;
use crate::results::{Results, Sample, Spread};
use crate::suite::Verdict;

/// The whole report.
#[derive(Serialize)]
pub struct Report<'a> {
    /// `weir-bench`.
    pub tool: &'static str,
    /// The tool's version.
    pub version: &'static str,
    /// The version of this format.
    pub format: u32,
    /// The command line.
    pub command: Vec<String>,
    /// When the run ended, in seconds since 1970.
    pub ended_unix_s: u64,
    /// The machine.
    pub machine: Machine,
    /// The targets.
    pub targets: Vec<TargetReport<'a>>,
    /// The target of `ratio_to_baseline`.
    pub baseline: &'a str,
    /// Rounds.
    pub rounds: u32,
    /// True if every byte was read back and compared; a run that finds a wrong one ends without a report.
    pub verified: bool,
    /// How many bytes were compared.
    pub verified_bytes: u64,
    /// All numbers.
    pub results: Vec<MetricReport<'a>>,
    /// The promises, with --suite.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub suite: Option<&'a [Verdict]>,
}

/// A target.
#[derive(Serialize)]
pub struct TargetReport<'a> {
    /// Its name.
    pub name: &'a str,
    /// Its directory.
    pub dir: String,
}

impl<'a> From<&'a Target> for TargetReport<'a> {
    fn from(target: &'a Target) -> Self {
        TargetReport {
            name: &target.name,
            dir: target.dir.to_string_lossy().into_owned(),
        }
    }
}

/// One metric on all targets, or a limit in all variants.
#[derive(Serialize)]
pub struct MetricReport<'a> {
    /// The metric.
    #[serde(flatten)]
    pub metric: &'a Metric,
    /// The unit of rates: `bytes/s`, `files/s` or `calls/s`.
    pub unit: &'static str,
    /// The series.
    pub series: Vec<SeriesReport<'a>>,
}

/// The samples of one target, or of one way to measure a limit.
#[derive(Serialize)]
pub struct SeriesReport<'a> {
    /// The target or the variant.
    pub name: &'a str,
    /// The rate over the rounds.
    pub rate: Option<Spread>,
    /// Against the baseline, round by round.
    pub ratio_to_baseline: Option<Spread>,
    /// Against the best copy limit, round by round.
    pub ratio_to_copy_limit: Option<Spread>,
    /// Every sample.
    pub samples: &'a [Sample],
}

/// The results, with their ratios.
pub fn metrics<'a>(results: &'a Results, baseline: &str) -> Vec<MetricReport<'a>> {
    results
        .metrics()
        .map(|metric| of_metric(results, metric, baseline))
        .collect()
}

fn of_metric<'a>(results: &'a Results, metric: &'a Metric, baseline: &str) -> MetricReport<'a> {
    let series = results.series_of(metric).map(|name| SeriesReport {
        name,
        rate: results.rate(metric, name),
        ratio_to_baseline: results.ratio((metric, name), (metric, baseline)),
        ratio_to_copy_limit: results.share_of_copy_limit(metric, name),
        samples: results.samples(metric, name),
    });
    MetricReport {
        metric,
        unit: if metric.op.is_call() {
            "calls/s"
        } else if metric.op.is_metadata() {
            "files/s"
        } else {
            "bytes/s"
        },
        series: series.collect(),
    }
}
