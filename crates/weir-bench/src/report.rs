//! The JSON report. `format` is raised when a field changes its meaning or goes away.

use std::path::Path;
use std::time::SystemTime;

use anyhow::{Context, Result};
use serde::Serialize;

use crate::args::Target;
use crate::machine::Machine;
use crate::plan::Metric;
use crate::results::{Results, RoundSample, Series, Spread};
use crate::suite::Verdict;

/// A report: what every one begins with, and its content.
#[derive(Serialize)]
struct Envelope<'a, T> {
    /// The tool.
    tool: &'static str,
    /// The tool's version.
    version: &'static str,
    /// The version of this format.
    format: u32,
    /// The command line.
    command: Vec<String>,
    /// When the run ended, in seconds since 1970.
    ended_unix_s: u64,
    /// The machine.
    machine: Machine,
    #[serde(flatten)]
    content: &'a T,
}

/// Writes the report of a run that ends now.
pub fn write_report(path: &Path, tool: &'static str, content: &impl Serialize) -> Result<()> {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH)?;
    let command = std::env::args_os();
    let report = Envelope {
        tool,
        version: env!("CARGO_PKG_VERSION"),
        format: 1,
        command: command.map(|a| a.to_string_lossy().into_owned()).collect(),
        ended_unix_s: now.as_secs(),
        machine: Machine::of_here(),
        content,
    };
    let text = serde_json::to_string_pretty(&report)?;
    std::fs::write(path, text + "\n").with_context(|| format!("writing {}", path.display()))
}

/// The report on directories.
#[derive(Serialize)]
pub struct Report<'a> {
    /// The targets.
    pub targets: Vec<&'a Target>,
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
    pub samples: &'a [RoundSample],
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
        ratio_to_baseline: {
            let [series, baseline] = [name, baseline].map(|name| Series { metric, name });
            results.ratio(series, baseline)
        },
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
