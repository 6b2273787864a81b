//! Tables for people.

use comfy_table::{CellAlignment, Table};

use crate::plan::Metric;
use crate::results::{Results, Series, Spread};
use crate::suite::Verdict;

/// A rate with its unit: `12.3 GiB/s`, `845 MiB/s` or `125 k/s`.
pub fn show_rate(metric: &Metric, rate: f64) -> String {
    let steps: &[(f64, &str)] = if metric.op.is_metadata() {
        &[(1e6, "M/s"), (1e3, "k/s"), (1.0, "/s")]
    } else {
        &[
            (1_073_741_824.0, "GiB/s"),
            (1_048_576.0, "MiB/s"),
            (1024.0, "KiB/s"),
            (1.0, "B/s"),
        ]
    };
    let found = steps.iter().find(|(unit, _)| rate >= *unit);
    let (unit, name) = found.unwrap_or(&steps[steps.len() - 1]);
    format!("{} {name}", digits(rate / unit))
}

/// Three significant digits, more before the point if need be.
pub fn digits(value: f64) -> String {
    if value >= 99.95 {
        format!("{value:.0}")
    } else if value >= 9.995 {
        format!("{value:.1}")
    } else {
        format!("{value:.2}")
    }
}

fn show_time(seconds: f64) -> String {
    let steps = [(1.0, "s"), (1e-3, "ms"), (1e-6, "us"), (1e-9, "ns")];
    let (unit, name) = steps
        .into_iter()
        .find(|(unit, _)| seconds >= *unit)
        .unwrap_or((1e-9, "ns"));
    format!("{} {name}", digits(seconds / unit))
}

fn show_spread(spread: Option<Spread>, show: impl Fn(f64) -> String) -> String {
    match spread {
        None => String::new(),
        Some(s) if s.min.to_bits() == s.max.to_bits() => show(s.median),
        Some(s) => format!("{} ({}..{})", show(s.median), show(s.min), show(s.max)),
    }
}

/// The table of the targets, which come in the order of `targets`.
pub fn targets(results: &Results, targets: &[&str], baseline: &str) -> Table {
    let versus = format!("x {baseline}");
    let header = [
        "operation",
        "how",
        "transfer",
        "procs",
        "target",
        "rate",
        "min..max",
        "a call",
    ];
    let mut table = new_table(&[&header[..], &[&versus, "of copy limit"]].concat());
    let metrics = results.metrics().filter(|m| !m.op.is_limit());
    add_rows(&mut table, results, metrics, targets, Some(baseline));
    table
}

/// The table of the machine's limits; a star marks the way of copying that shares are taken of.
pub fn limits(results: &Results) -> Table {
    let header = [
        "machine", "", "transfer", "procs", "by", "rate", "min..max", "a call",
    ];
    let mut table = new_table(&header);
    let metrics = results.metrics().filter(|m| m.op.is_limit());
    add_rows(&mut table, results, metrics, &[], None);
    table
}

/// The table of single calls: the time of each in each target, and how many times that of the baseline.
pub fn calls(results: &Results, targets: &[&str], baseline: &str) -> Table {
    let mut header = vec!["call".to_owned()];
    let others = || targets.iter().filter(|&&target| target != baseline);
    header.extend(targets.iter().map(|&target| target.to_owned()));
    header.extend(others().map(|target| format!("{target} / {baseline}")));
    let mut table = new_table(&header.iter().map(String::as_str).collect::<Vec<_>>());
    for metric in results.metrics().filter(|m| m.op.is_call()) {
        let mut row = vec![metric.op.words().to_owned()];
        row.extend(targets.iter().map(|target| {
            let times = results.samples(metric, target).iter();
            let time = Spread::from_values(times.map(|s| s.seconds_per_call(metric.processes)));
            time.map_or_else(String::new, |t| show_time(t.median))
        }));
        row.extend(others().map(|target| {
            // Of two rates this way round it is the ratio of two times.
            let [baseline, target] = [baseline, target].map(|name| Series { metric, name });
            let ratio = results.ratio(baseline, target);
            show_spread(ratio, digits)
        }));
        table.add_row(row);
    }
    for column in table.column_iter_mut().skip(1) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    table
}

/// Adds the series of each metric: those named in `order` first, the words of a metric once.
fn add_rows<'a>(
    table: &mut Table,
    results: &Results,
    metrics: impl Iterator<Item = &'a Metric>,
    order: &[&str],
    baseline: Option<&str>,
) {
    for column in [2, 3, 5, 7] {
        let column = table.column_mut(column).expect("the header has it");
        column.set_cell_alignment(CellAlignment::Right);
    }
    for metric in metrics {
        let mut head = [
            metric.op.words().to_owned(),
            metric.how(),
            metric.size(),
            metric.processes.to_string(),
        ];
        let mut series: Vec<_> = results.series_of(metric).collect();
        series.sort_by_key(|s| order.iter().position(|o| o == s));
        for series in series {
            let mut row = head.to_vec();
            row.extend(rate_cells(results, metric, series));
            row.extend(baseline.map_or(vec![], |b| ratio_cells(results, metric, series, b)));
            table.add_row(row);
            head = Default::default();
        }
    }
}

fn rate_cells(results: &Results, metric: &Metric, series: &str) -> Vec<String> {
    let rate = results.rate(metric, series).expect("a series has samples");
    let calls = results.samples(metric, series).iter();
    let call = Spread::from_values(calls.map(|s| s.seconds_per_call(metric.processes)));
    let one_of_many = metric.op.is_limit() && results.series_of(metric).count() > 1;
    let star = if one_of_many && results.best(metric) == Some(series) {
        " *"
    } else {
        ""
    };
    let range = format!(
        "{}..{}",
        show_rate(metric, rate.min),
        show_rate(metric, rate.max)
    );
    let single = rate.min.to_bits() == rate.max.to_bits();
    vec![
        format!("{series}{star}"),
        show_rate(metric, rate.median),
        if single { String::new() } else { range },
        call.map(|c| show_time(c.median)).unwrap_or_default(),
    ]
}

fn ratio_cells(results: &Results, metric: &Metric, series: &str, baseline: &str) -> Vec<String> {
    let [over, under] = [series, baseline].map(|name| Series { metric, name });
    let against = (series != baseline).then(|| results.ratio(over, under));
    let share = results.share_of_copy_limit(metric, series);
    vec![
        show_spread(against.flatten(), digits),
        show_spread(share, |v| format!("{:.0} %", v * 100.0)),
    ]
}

/// The table of the suite's rows.
pub fn verdicts(verdicts: &[Verdict]) -> Table {
    let mut table = new_table(&[
        "promise",
        "target",
        "against",
        "at least",
        "measured",
        "min..max",
        "best/best",
        "met",
    ]);
    for verdict in verdicts {
        let show = |value: f64| {
            if verdict.against == "copy limit" {
                format!("{:.0} %", value * 100.0)
            } else {
                format!("{} x", digits(value))
            }
        };
        let (measured, range) = match verdict.ratio {
            Some(r) => (show(r.median), format!("{}..{}", show(r.min), show(r.max))),
            None => ("-".into(), verdict.why_not.clone().unwrap_or_default()),
        };
        table.add_row([
            verdict.promise.clone(),
            verdict.target.clone(),
            verdict.against.clone(),
            show(verdict.at_least),
            measured,
            range,
            verdict.ratio_of_best.map(show).unwrap_or_default(),
            verdict.word().into(),
        ]);
    }
    table
}

/// An empty table with this header.
pub fn new_table(header: &[&str]) -> Table {
    let mut table = Table::new();
    // A line under the header and nothing else, so that rows can be cut and pasted.
    table.load_preset("     --            ").set_header(header);
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn three_digits_are_shown() {
        assert_eq!(digits(0.071), "0.07");
        assert_eq!(digits(9.999), "10.0");
        assert_eq!(digits(12.34), "12.3");
        assert_eq!(digits(999.9), "1000");
        assert_eq!(show_time(7.2e-9), "7.20 ns");
        assert_eq!(show_time(0.0012), "1.20 ms");
    }
}
