//! The rows of `weir bench --hosts`, `--elevate` and `--connectors`: what is promised, what was measured, and whether that is met.
//!
//! A row's value is judged by the median over the rounds of its ratio to what was measured beside
//! it in the same round, or by its own median where the promise is a number. There is no
//! tolerance; what was not measured is not met.

use std::collections::BTreeMap;

use serde::Serialize;

use crate::results::Spread;
use crate::table::{digits, new_table};

/// The unit of a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Unit {
    /// Bytes a second.
    BytesPerSecond,
    /// Seconds.
    Seconds,
    /// Bytes.
    Bytes,
    /// Files a second.
    FilesPerSecond,
    /// A number of its own.
    Number,
}

impl Unit {
    fn format_value(self, value: f64) -> String {
        let steps: &[(f64, &str)] = match self {
            Unit::BytesPerSecond => &[(1e9, " GB/s"), (1e6, " MB/s"), (1e3, " kB/s")],
            Unit::Seconds => &[(1.0, " s"), (1e-3, " ms"), (1e-6, " us"), (1e-9, " ns")],
            Unit::Bytes => &[(1e9, " GB"), (1e6, " MB"), (1e3, " kB"), (1.0, " B")],
            Unit::FilesPerSecond => &[(1e6, " M/s"), (1e3, " k/s"), (1.0, " /s")],
            Unit::Number if value < 0.01 => return format!("{value:.5}"),
            Unit::Number => &[(1.0, "")],
        };
        let found = steps.iter().find(|(step, _)| value >= *step);
        let (step, name) = found.unwrap_or(&steps[steps.len() - 1]);
        format!("{}{name}", digits(value / step))
    }
}

/// The promise.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Bar {
    /// The ratio, or the value where nothing is beside it, is at least this.
    AtLeast(f64),
    /// Likewise.
    AtMost(f64),
    /// Nothing: it is reported.
    Reported,
}

/// A row of the table: a measurement, and what is promised of it.
#[derive(Clone, Debug)]
pub struct PromiseRow {
    /// The measurement, in words.
    pub what: String,
    /// The measurement beside it; empty if there is none.
    pub beside: String,
    /// The unit of both.
    pub unit: Unit,
    /// The promise.
    pub bar: Bar,
}

impl PromiseRow {
    /// The same, with a measurement beside it.
    #[must_use]
    pub fn beside(self, beside: &str) -> PromiseRow {
        let beside = beside.to_owned();
        PromiseRow { beside, ..self }
    }
}

/// The values of a row in one round.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct PairedSample {
    /// The value.
    pub value: f64,
    /// The value that was measured beside it.
    pub beside: Option<f64>,
}

/// All rows, with their values.
#[derive(Debug, Default)]
pub struct PromiseTable {
    /// The rows, in the order of the report.
    order: Vec<PromiseRow>,
    samples: BTreeMap<String, Vec<PairedSample>>,
    why_not: BTreeMap<String, String>,
}

impl PromiseTable {
    /// Adds a row, even if nothing is measured for it.
    pub fn declare(&mut self, row: &PromiseRow) {
        if !self.order.iter().any(|known| known.what == row.what) {
            self.order.push(row.clone());
        }
    }

    /// Adds the values of a round.
    pub fn add(&mut self, row: &PromiseRow, value: f64, beside: Option<f64>) {
        self.declare(row);
        let all = self.samples.entry(row.what.clone()).or_default();
        all.push(PairedSample { value, beside });
    }

    /// Notes why a row is not measured.
    pub fn why_not(&mut self, row: &PromiseRow, why: &str) {
        self.declare(row);
        self.why_not.insert(row.what.clone(), why.to_owned());
    }

    /// Judges all rows.
    pub fn verdicts(&self) -> Vec<RowVerdict> {
        self.order.iter().map(|row| self.judge(row)).collect()
    }

    fn judge(&self, row: &PromiseRow) -> RowVerdict {
        let samples = self.samples.get(&row.what).cloned().unwrap_or_default();
        let ratios = samples.iter().filter_map(|s| Some(s.value / s.beside?));
        let ratio = Spread::from_values(ratios);
        let value = Spread::from_values(samples.iter().map(|s| s.value));
        let judged = if row.beside.is_empty() { value } else { ratio };
        let met = match row.bar {
            Bar::AtLeast(least) => Some(judged.is_some_and(|j| j.median >= least)),
            Bar::AtMost(most) => Some(judged.is_some_and(|j| j.median <= most)),
            Bar::Reported => None,
        };
        RowVerdict {
            what: row.what.clone(),
            beside: row.beside.clone(),
            unit: row.unit,
            bar: row.bar,
            value,
            measured_beside: Spread::from_values(samples.iter().filter_map(|s| s.beside)),
            ratio,
            met,
            why_not: self.why_not.get(&row.what).cloned(),
            samples,
        }
    }
}

/// A row with its values, and whether the promise is met.
#[derive(Clone, Debug, Serialize)]
pub struct RowVerdict {
    /// The measurement, in words.
    pub what: String,
    /// The measurement beside it; empty if there is none.
    pub beside: String,
    /// The unit of both: SI, without prefixes.
    pub unit: Unit,
    /// The promise.
    pub bar: Bar,
    /// The value over the rounds.
    pub value: Option<Spread>,
    /// The value that was measured beside it.
    pub measured_beside: Option<Spread>,
    /// The ratio of the two, within each round.
    pub ratio: Option<Spread>,
    /// True if the promise is met; none if nothing is promised.
    pub met: Option<bool>,
    /// Why it was not measured.
    pub why_not: Option<String>,
    /// Each round.
    pub samples: Vec<PairedSample>,
}

impl RowVerdict {
    fn word(&self) -> String {
        match (&self.why_not, self.met, self.value) {
            (Some(why), _, None) => format!("NOT MEASURED: {why}"),
            (None, _, None) => "NOT MEASURED".to_owned(),
            (_, Some(true), _) => "yes".to_owned(),
            (_, Some(false), _) => "NO".to_owned(),
            (_, None, _) => "reported".to_owned(),
        }
    }

    fn cells(&self) -> [String; 6] {
        let unit = self.unit;
        let show = |spread: Option<Spread>| {
            spread
                .map(|s| unit.format_value(s.median))
                .unwrap_or_default()
        };
        let beside = match self.measured_beside {
            Some(_) => format!("{} {}", self.beside, show(self.measured_beside)),
            None => self.beside.clone(),
        };
        let plain = self.beside.is_empty();
        let number = |value: f64| match plain {
            true => unit.format_value(value),
            false => digits(value),
        };
        let bar = match self.bar {
            Bar::AtLeast(least) => format!("at least {}", number(least)),
            Bar::AtMost(most) => format!("at most {}", number(most)),
            Bar::Reported => String::new(),
        };
        let judged = if plain { self.value } else { self.ratio };
        let ratio = judged.map_or_else(String::new, |s| {
            let range = format!("({}..{})", number(s.min), number(s.max));
            match plain {
                true => range,
                false => format!("{} {range}", number(s.median)),
            }
        });
        [
            self.what.clone(),
            show(self.value),
            beside,
            ratio,
            bar,
            self.word(),
        ]
    }
}

/// The table for people.
pub fn table(verdicts: &[RowVerdict]) -> String {
    let header = ["row", "weir", "beside it", "ratio", "bar", "met"];
    let mut table = new_table(&header);
    for verdict in verdicts {
        table.add_row(verdict.cells());
    }
    table.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(bar: Bar, beside: &str) -> PromiseRow {
        PromiseRow {
            what: "read".into(),
            beside: beside.into(),
            unit: Unit::BytesPerSecond,
            bar,
        }
    }

    fn judged(row: &PromiseRow, samples: &[(f64, Option<f64>)]) -> String {
        let mut rows = PromiseTable::default();
        rows.declare(row);
        for (value, beside) in samples {
            rows.add(row, *value, *beside);
        }
        rows.verdicts()[0].word()
    }

    #[test]
    fn ratios_are_judged_by_the_median_of_rounds() {
        let row = row(Bar::AtLeast(0.9), "plain TCP");
        let of = |value| (value, Some(1e9));
        assert_eq!(judged(&row, &[of(0.9e9), of(1e9), of(0.1e9)]), "yes");
        assert_eq!(judged(&row, &[of(0.89e9), of(0.1e9), of(1e9)]), "NO");
        assert_eq!(judged(&row, &[]), "NOT MEASURED");
        assert_eq!(judged(&row, &[(1e9, None)]), "NO");
    }

    #[test]
    fn numbers_are_judged_themselves_and_some_are_only_told() {
        let most = row(Bar::AtMost(1e6), "");
        assert_eq!(judged(&most, &[(1e6, None)]), "yes");
        assert_eq!(judged(&most, &[(1.1e6, None)]), "NO");
        assert_eq!(judged(&row(Bar::Reported, ""), &[(1.0, None)]), "reported");
        let mut rows = PromiseTable::default();
        rows.why_not(&most, "no libfabric");
        assert_eq!(rows.verdicts()[0].word(), "NOT MEASURED: no libfabric");
        let text = table(&rows.verdicts());
        assert!(text.contains("at most 1.00 MB/s"), "{text}");
    }

    #[test]
    fn values_have_units() {
        assert_eq!(Unit::Seconds.format_value(0.0123), "12.3 ms");
        assert_eq!(Unit::BytesPerSecond.format_value(1.25e9), "1.25 GB/s");
        assert_eq!(Unit::Number.format_value(0.0004), "0.00040");
        assert_eq!(Unit::Bytes.format_value(12.0), "12.0 B");
    }
}
